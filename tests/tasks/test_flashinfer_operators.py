"""FlashInfer-Bench's ten operators: each reference against a second, plainer computation; workloads that fit, a dataset
that comes back as it was written, Triton kernels of ours judged on it, and what is refused."""
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernel_lab.cli.app import run
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.tasks.importers.flashinfer_bench import read_dataset, stored_tensor
from kernel_lab.tasks.importers.flashinfer_export import dataset_of
from kernel_lab.tasks.importers.flashinfer_operators import FLASHINFER_OPERATORS, operator_definition
from kernel_lab.tasks.importers.flashinfer_suite import (
    FLASHINFER_KERNELS, WORKLOAD_SIZES, flashinfer_dataset, random_workload, require_workload, write_flashinfer)
from kernel_lab.tasks.importers.import_suite import import_suite

NAMES = dict(zip(('norm', 'add_norm', 'product', 'decode', 'prefill', 'ragged', 'mla', 'moe', 'dsa', 'gdn'), (
    'rmsnorm_h4096', 'fused_add_rmsnorm_h7168', 'gemm_n4096_k4096', 'gqa_paged_decode_h32_kv8_d128_ps1',
    'gqa_paged_prefill_causal_h32_kv8_d128_ps1', 'gqa_ragged_prefill_causal_h32_kv8_d128',
    'mla_paged_decode_h16_ckv512_kpe64_ps1', 'moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048',
    'dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64', 'gdn_decode_qk4_v8_d128_k_last')))


def text_of(kind):
    "The function `run` of a definition, from its text alone."
    space = {}
    exec(compile(operator_definition(NAMES[kind])['reference'], kind, 'exec'), space)
    return space['run']


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=drawn.generator)


@pytest.fixture(autouse=True)
def seeded():
    drawn.generator = torch.Generator().manual_seed(7)


def whole(*values):
    return torch.tensor(values, dtype=torch.int32)


def same(got, want, bound=1e-10):
    assert got.shape == want.shape and got.dtype == want.dtype
    assert (got - want).abs().max() <= bound * max(1.0, float(want.abs().max()))


def log2_sum(q, k, scale, causal=False):
    "Base-2 log-sum-exp of one sequence by numpy: q [Q, H, D], k [N, H, D] → [Q, H]."
    q, k = q.numpy(), k.numpy()
    out = np.empty(q.shape[:2])
    for i, h in np.ndindex(*out.shape):
        last = len(k) - len(q) + i + 1 if causal else len(k)
        out[i, h] = np.log2(np.exp([scale * float(q[i, h] @ k[n, h]) for n in range(last)]).sum())
    return torch.from_numpy(out)


def dense(q, k, v, scale, causal=False):
    "torch's own attention on one sequence: q [Q, H, D], k and v [N, H, D] → [Q, H, D]."
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)) if causal else None
    turned = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(*turned, attn_mask=mask, scale=scale)[0].transpose(0, 1)


def test_the_ten_names_are_those_that_are_published():
    assert set(FLASHINFER_OPERATORS) == set(NAMES.values()) == set(WORKLOAD_SIZES)


def test_norms():
    x, r, w = drawn(3, 40), drawn(3, 40), drawn(40)
    same(text_of('norm')(x, w), F.rms_norm(x, (40,), w, 1e-5))
    same(text_of('add_norm')(x, r, w), F.rms_norm(x + r, (40,), w, 1e-6))
    assert text_of('norm')(x.bfloat16(), w.bfloat16()).dtype == torch.bfloat16


def test_product():
    a, b = drawn(5, 24), drawn(7, 24)
    same(text_of('product')(a, b), F.linear(a, b))


@pytest.mark.parametrize('page_size', [1, 4])
def test_paged_decode(page_size):
    q, k, v = drawn(3, 8, 16), drawn(11, page_size, 2, 16), drawn(11, page_size, 2, 16)
    pages = whole(9, 0, 4, 7, 2, 10)
    out, lse = text_of('decode')(q, k, v, whole(0, 1, 4, 6), pages, 0.3)
    for n, mine in enumerate(((9,), (0, 4, 7), (2, 10))):
        keys, values = (torch.cat([c[p] for p in mine]).repeat_interleave(4, 1) for c in (k, v))
        same(out[n:n + 1], dense(q[n:n + 1], keys, values, 0.3))
        same(lse[n:n + 1], log2_sum(q[n:n + 1], keys, 0.3))


def test_paged_and_ragged_prefill_are_causal():
    q, k, v = drawn(5, 4, 8), drawn(9, 1, 2, 8), drawn(9, 1, 2, 8)
    pages, queries, keys = whole(8, 3, 1, 6, 2, 0, 5), whole(0, 2, 5), whole(0, 4, 7)
    out, lse = text_of('prefill')(q, k, v, queries, keys, pages, 0.5)
    flat = [c[pages.long(), 0] for c in (k, v)]
    for (a, b), (c, d) in (((0, 2), (0, 4)), ((2, 5), (4, 7))):
        mine, its = (x[c:d].repeat_interleave(2, 1) for x in flat)
        same(out[a:b], dense(q[a:b], mine, its, 0.5, causal=True))
        same(lse[a:b], log2_sum(q[a:b], mine, 0.5, causal=True))
    again = text_of('ragged')(q, *flat, queries, keys, 0.5)
    same(again[0], out)
    same(again[1], lse)


def test_latent_decode_and_sparse_attention():
    q, p, ckv, kpe = drawn(2, 3, 12), drawn(2, 3, 4), drawn(8, 1, 12), drawn(8, 1, 4)
    out, lse = text_of('mla')(q, p, ckv, kpe, whole(0, 2, 5), whole(6, 1, 3, 0, 7), 0.2)
    for n, mine in enumerate(([6, 1], [3, 0, 7])):
        keys = torch.cat([ckv[mine, 0], kpe[mine, 0]], -1)[:, None].expand(-1, 3, -1)
        values = F.pad(ckv[mine, 0], (0, 4))[:, None].expand(-1, 3, -1)
        joined = torch.cat([q[n:n + 1], p[n:n + 1]], -1)
        same(out[n:n + 1], dense(joined, keys, values, 0.2)[..., :12])
        same(lse[n:n + 1], log2_sum(joined, keys, 0.2))
    places = whole(6, 1, -1, -1), whole(3, 0, 7, -1)                 # the same tokens, in pages of 4
    sparse = text_of('dsa')(q, p, ckv.view(2, 4, 12), kpe.view(2, 4, 4), torch.stack(places), 0.2)
    same(sparse[0], out)
    same(sparse[1], lse)


def experts(T, E=16, local=4, H=8, width=4, blocks=2):
    "Inputs of a small mixture: logits, bias, states, scale, both weights with theirs."
    return (drawn(T, E), drawn(E) / 4, drawn(T, H), drawn(blocks, T).abs(), drawn(local, 2 * width, H), drawn(local, blocks, blocks).abs(),
            drawn(local, H, width), drawn(local, blocks, 1).abs())


def plain_mixture(logits, bias, x, xs, w1, s1, w2, s2, offset, factor):
    "The mixture by numpy, a token, an expert and a number at a time."
    arrays = [a.numpy() for a in (logits, bias, x, xs, w1, s1, w2, s2)]
    logits, bias, x, xs, w1, s1, w2, s2 = arrays
    (T, E), H, width = logits.shape, x.shape[1], w2.shape[2]
    out, sigmoid = np.zeros((T, H)), lambda z: 1 / (1 + np.exp(-z))
    blow = lambda s, shape: np.kron(s, np.ones((shape[0] // s.shape[0], shape[1] // s.shape[1])))
    for t in range(T):
        odds = sigmoid(logits[t])
        ranked, size = odds + bias, E // 8
        group = [sum(sorted(ranked[g * size:(g + 1) * size])[-2:]) for g in range(8)]
        kept = sorted(range(8), key=lambda g: -group[g])[:4]
        allowed = [e for e in range(E) if e // size in kept]
        chosen = sorted(allowed, key=lambda e: -ranked[e])[:8]
        state = x[t] * np.repeat(xs[:, t], H // len(xs))
        for e in chosen:
            if not offset <= e < offset + len(w1): continue
            both = (w1[e - offset] * blow(s1[e - offset], w1[0].shape)) @ state
            inner = both[:width] * both[width:] * sigmoid(both[width:])
            down = (w2[e - offset] * blow(s2[e - offset], w2[0].shape)) @ inner
            out[t] += factor * odds[e] / sum(odds[c] for c in chosen) * down
    return torch.from_numpy(out)


@pytest.mark.parametrize('offset', [0, 8])
def test_mixture_of_experts(offset):
    given = experts(6)
    want = plain_mixture(*given, offset, 2.5)
    assert float(want.abs().max()) > 0.1, 'no token came to these experts'
    same(text_of('moe')(*given, offset, 2.5), want)


def test_gated_delta_net():
    B, HV, D = 2, 4, 6
    q, k, v = drawn(B, 1, 2, D), drawn(B, 1, 2, D), drawn(B, 1, HV, D)
    state, decay, a, bias, b = drawn(B, HV, D, D), drawn(HV), drawn(B, 1, HV), drawn(HV), drawn(B, 1, HV)
    out, new = text_of('gdn')(q, k, v, state, decay, a, bias, b, 0.4)
    for n, h in np.ndindex(B, HV):
        key, query = k[n, 0, h // 2], q[n, 0, h // 2]
        fade = math.exp(-math.exp(decay[h]) * math.log1p(math.exp(a[n, 0, h] + bias[h])))
        beta = 1 / (1 + math.exp(-b[n, 0, h]))
        want = fade * state[n, h] @ (torch.eye(D, dtype=torch.float64) - beta * torch.outer(key, key)) + beta * torch.outer(v[n, 0, h], key)
        same(new[n, h], want)
        same(out[n, 0, h], 0.4 * want @ query)


@pytest.mark.parametrize('name', NAMES.values())
def test_workloads_are_the_same_for_a_seed_and_fit(name):
    d = operator_definition(name)
    for sizes in WORKLOAD_SIZES[name]:
        record, tensors = random_workload(name, sizes, 3)
        again, others = random_workload(name, sizes, 3)
        assert record == again and all(np.array_equal(tensors[k], others[k]) for k in tensors)
        assert {k for k, a in d['axes'].items() if a['type'] == 'var'} == set(record['axes']) and set(record['inputs']) == set(d['inputs'])
        for k in ('kv_indptr', 'qo_indptr'):
            if k in tensors: assert tensors[k][0] == 0 and (np.diff(tensors[k]) > 0).all()
        if 'kv_indices' in tensors: assert len(set(tensors['kv_indices'])) == len(tensors['kv_indices']) == tensors['kv_indptr'][-1]
        if 'qo_indptr' in tensors: assert (np.diff(tensors['qo_indptr']) <= np.diff(tensors['kv_indptr'])).all()
    drawn_again = random_workload(name, seed=4)[0]
    assert drawn_again['uuid'] != random_workload(name, seed=3)[0]['uuid']


def broken(**changes):
    "A paged decode with some stored tensors or axes changed."
    d, (record, tensors) = operator_definition(NAMES['decode']), random_workload(NAMES['decode'])
    axes = {k: v for k, v in {**record['axes'], **changes.pop('axes', {})}.items() if v is not None}
    return d, {**record, 'axes': axes}, {k: changes.get(k, lambda x: x)(x) for k, x in tensors.items()}


@pytest.mark.parametrize('changes, says', [
    (dict(kv_indptr=lambda x: x[[0, 2, 1]]), 'kv_indptr falls from'),
    (dict(kv_indptr=lambda x: x + 1), 'begins with 1'),
    (dict(kv_indptr=lambda x: np.where(x > 0, x + 1, x).astype(np.int32)), 'and kv_indices has'),
    (dict(kv_indices=lambda x: x - 1 - x.min()), 'kv_indices has -1'),
    (dict(kv_indices=lambda x: x + 10 ** 6), 'the cache has the places 0 to'),
    (dict(kv_indices=lambda x: x[:-1]), 'its axes say'),
    (dict(axes={'batch_size': None}), 'has no size'),
    (dict(axes={'batch_size': 0}), 'no elements'),
    (dict(axes={'head_dim': 64}), 'head_dim is no variable axis')])
def test_a_workload_that_does_not_fit_is_a_sentence(changes, says):
    require_workload(*broken())
    with pytest.raises(UsageError, match=re.escape(says)): require_workload(*broken(**changes))


@pytest.mark.parametrize('sizes', [{'batch_size': 0}, {'batch_size': 2.5}, {'batch_size': True}, {'batch': 3}])
def test_sizes_that_are_none(sizes):
    with pytest.raises(UsageError, match='is no size of rmsnorm_h4096'): random_workload('rmsnorm_h4096', sizes)


@pytest.fixture(scope='module')
def suite(tmp_path_factory):
    "(folder, import) of the ten, written once."
    folder = tmp_path_factory.mktemp('flashinfer')
    write_flashinfer(folder)
    return folder, import_suite(folder, workers=2)


@pytest.mark.slow
def test_what_is_written_comes_back(suite):
    folder, imported = suite
    data, blobs = flashinfer_dataset()
    found = read_dataset(folder)
    assert (found.definitions, found.workloads, found.solutions, found.left) == (data.definitions, data.workloads, data.solutions, ())
    assert blobs and all(torch.equal(stored_tensor(folder, p, k), torch.from_numpy(x)) for p, xs in blobs.items() for k, x in xs.items())
    assert not imported.left and {n.rpartition('/')[2] for n in imported.tasks} == set(NAMES.values())
    again, left = dataset_of(imported.tasks.values())
    assert not left and again.definitions == data.definitions and again.workloads == data.workloads
    assert {k.source for ks in imported.kernels.values() for k in ks} == {k.source for k in FLASHINFER_KERNELS.values()}


@pytest.mark.slow
def test_a_dataset_whose_pointers_fall_is_told(tmp_path):
    name = NAMES['decode']
    write_flashinfer(tmp_path, [name])
    lines = next(tmp_path.glob('workloads/*/*.jsonl'))
    first = json.loads(lines.read_text().splitlines()[0])
    lines.write_text(json.dumps(first) + '\n')
    file = tmp_path / first['workload']['inputs']['kv_indptr']['path']
    raw, at = file.read_bytes(), 8 + int.from_bytes(file.read_bytes()[:8], 'little')
    begin = at + json.loads(raw[8:at])['kv_indptr']['data_offsets'][0]
    file.write_bytes(raw[:begin + 4] + (10 ** 6).to_bytes(4, 'little') + raw[begin + 8:])
    left, = import_suite(tmp_path, workers=1).left
    assert 'kv_indptr falls from 1000000' in left.reason


@pytest.mark.slow
@pytest.mark.parametrize('name', FLASHINFER_KERNELS)
def test_kernels_of_ours_are_right_and_leave_no_trace_without_a_time(suite, name):
    pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
    task = next(t for n, t in suite[1].tasks.items() if n.endswith(f'/{name}'))
    found = evaluate(FLASHINFER_KERNELS[name], task, 'small', chip='sm_90', seeds=1)
    assert found.status == "correct" and found.profile is None, found.error
    data, left = dataset_of([task], [replace(found, workload=task.workloads[0].name)])
    assert not data.traces and 'judged without a card' in left[0][1]
    text = FLASHINFER_KERNELS[name].source
    wrong = replace(FLASHINFER_KERNELS[name], source=text.replace('scale * w', 'scale * w * 1.1').replace('total.to', '(1.1 * total).to'))
    assert evaluate(wrong, task, "small", chip="sm_90", seeds=1).status == "wrong_result"


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('KERNEL_LAB_HOME', str(tmp_path / 'home'))
    monkeypatch.chdir(tmp_path)
    assert run(['tasks', 'flashinfer', 'ops', 'rmsnorm_h4096']) == 0
    assert 'for rmsnorm_h4096' in capsys.readouterr().out
    assert [p.stem for p in tmp_path.glob('ops/definitions/*/*.json')] == ['rmsnorm_h4096']
    for words, says in ((['tasks', 'flashinfer'], 'needs a folder'), (['tasks', 'flashinfer', 'x', 'rmsnorm_h4'], 'no operator of FlashInfer-Bench')):
        assert run(words) == 2 and says in capsys.readouterr().err
    (tmp_path / 'file').write_text('')
    assert run(['tasks', 'flashinfer', 'file']) == 2 and 'Cannot write file' in capsys.readouterr().err
