"""Attention as one pass: which graphs have it, that its numbers are those of the reference, and what is refused."""
import math
import numpy as np
import pytest
import torch
from kernel_lab.evaluate.verification.verify import verify
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.record.python_subset import read_outside
from kernel_lab.tasks.baselines.eager import graph_specs
from kernel_lab.tasks.codegen.attention.matching import HalfPlane, half_planes
from kernel_lab.tasks.codegen.attention.one_pass import with_attention
from kernel_lab.tasks.codegen.graph import capture
from kernel_lab.tasks.codegen.lower import lower_fused
from kernel_lab.tasks.codegen.precision import kernel_graph
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.suite.registry import get_task


def task_of(reference, draw=None, **shapes):
    return task_from(reference, lambda rng: {k: rng.standard_normal(s, np.float32) for k, s in shapes.items()} |
                     (draw(rng) if draw else {}), name='mine')


GRAPHS = []            # (task, graph) of the last one: torch traces it once for all that a test asks


def graph_of(task):
    if not any(known is task for known, _ in GRAPHS): GRAPHS[:] = [(task, capture(task))]
    return GRAPHS[0][1]


def passes(graph): return sum(n.op == 'attention' for n in with_attention(graph).nodes)


def error(task):
    "The largest error of the kernel with one pass, over 1 + |reference|."
    graph, arrays = graph_of(task), task.draw()
    assert passes(graph) == 1
    source = lower_fused(graph, chip=None)
    assert read_outside(source) == []
    got = execute(trace_source(source, None, graph_specs(graph)), *arrays.values())
    return max(float(np.max(abs(g - w) / (1 + abs(w)))) for g, w in zip(got, task.expected(arrays)))


def causal(s): return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
def scores(q, k): return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def by_places(s, keep):
    i, j = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None, :]
    return torch.where(keep(i, j), s, -math.inf)


def window(s, size):
    ones = torch.ones(s.shape[-2:], dtype=torch.bool)
    return s.masked_fill(ones.triu(1) | ones.tril(-size), -math.inf)


CHAINS = {
    'plain': lambda s: s, 'causal': causal, 'kept by tril': lambda s: s.masked_fill(
        torch.ones(s.shape[-2:]).tril() == 0, -math.inf),
    'not tril': lambda s: s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -1e38),
    'window': lambda s: window(s, 70), 'narrow window': lambda s: window(s, 1),
    'arange': lambda s: by_places(s, lambda i, j: j <= i + 3), 'arange, both': lambda s: by_places(
        s, lambda i, j: (j <= i) & (i - j < 50)),
    'softcap': lambda s: causal(torch.tanh(s / 5) * 5), 'scaled behind the mask': lambda s: causal(s) * 3.0,
    'negative factor': lambda s: s * -2.0, 'relu': lambda s: s.relu() - 1, 'squared': lambda s: causal(s * s)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize('name', CHAINS)
def test_chains_of_elementwise_operations_and_masks(name):
    f = lambda q, k, v: CHAINS[name](scores(q, k)).softmax(-1) @ v
    assert error(task_of(f, q=(2, 200, 40), k=(2, 200, 40), v=(2, 200, 24))) < 1e-4


@pytest.mark.parametrize('q, k, v', [
    ((3, 2, 130, 64), (3, 2, 70, 64), (3, 2, 70, 48)), ((1, 64), (300, 64), (300, 64)), ((128, 200), (128, 200), (128, 1)),
    ((2, 5, 300), (2, 640, 300), (2, 640, 130)), ((4, 257, 16), (4, 1, 16), (4, 1, 16)), ((2, 100, 32), (100, 32), (100, 8)),
    ((96, 2), (2048, 2), (2048, 512))])
def test_shapes(q, k, v):
    assert error(task_of(lambda q, k, v: scores(q, k).softmax(-1) @ v, q=q, k=k, v=v)) < 1e-4


def test_operands_of_the_scores():
    def f(q, k, v, bias, keep, slope, place):
        s = scores(q, k) + bias + slope * (place - place[:, None])
        return causal(s.masked_fill(keep[:, None, None, :] == 0, -math.inf)).softmax(-1) @ v
    draw = lambda rng: {'keep': ((rng.random((2, 140)) < .7) | (np.arange(140) == 0)).astype(np.float32),
                        'place': np.arange(140, dtype=np.float32)}
    assert error(task_of(f, draw, q=(2, 3, 140, 16), k=(2, 3, 140, 16), v=(2, 3, 140, 16), bias=(3, 140, 140),
                         keep=(2, 140), slope=(3, 1, 1), place=(140,))) < 1e-4


def test_heads_are_read_and_written_where_they_lie():
    def f(x, w, v):
        q, k = (x @ w).chunk(2, -1)
        heads = lambda t: t.unflatten(-1, (-1, 16)).transpose(-3, -2)
        mixed = causal(scores(heads(q), heads(k).repeat_interleave(1, 0))).softmax(-1) @ heads(v).repeat_interleave(2, 0)
        return mixed.transpose(-3, -2).flatten(-2)
    task = task_of(f, x=(130, 32), w=(32, 128), v=(130, 32))
    assert error(task) < 1e-4
    ops = [n.op for n in with_attention(graph_of(task)).nodes]
    assert ops == ['matmul', 'attention']


def test_groups_of_queries_share_keys():
    share = lambda t: t.repeat_interleave(3, 0)
    f = lambda q, k, v: causal(scores(q, share(k))).softmax(-1) @ share(v)
    task = task_of(f, q=(6, 150, 32), k=(2, 150, 32), v=(2, 150, 32))
    assert error(task) < 1e-4
    node = next(n for n in with_attention(graph_of(task)).nodes if n.op == 'attention')
    assert node.kwargs['spec'].loops == (2, 3) and node.refs() == ('q', 'k', 'v')


def turned(x, angle):
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


@pytest.mark.parametrize('tokens', [100, 128, pytest.param(300, marks=pytest.mark.slow)])
def test_queries_and_keys_are_turned_on_chip(tokens):
    def f(x, y, angle):
        q, k = (t.unflatten(-1, (-1, 16)).transpose(-3, -2) for t in (x, y))
        return causal(scores(turned(q, angle), turned(k, angle).repeat_interleave(2, 0))).softmax(-1) @ \
            k.repeat_interleave(2, 0)
    task = task_of(f, x=(tokens, 64), y=(tokens, 32), angle=(tokens, 8))
    assert error(task) < 1e-4
    assert [n.op for n in with_attention(graph_of(task)).nodes if n.op not in ('cos', 'sin')] == ['attention']


def test_parts_of_queries_that_others_read_stay_in_hbm():
    def f(q, k, v, angle):
        q, k = turned(q, angle), torch.cat([k[..., :5] * 2, k[..., 5:], angle * angle], -1)
        return scores(q, k).softmax(-1) @ v, q
    task = task_of(f, q=(2, 50, 16), k=(2, 50, 8), v=(2, 50, 4), angle=(2, 50, 8))
    assert [n.op for n in with_attention(graph_of(task)).nodes].count('cat') == 1
    assert error(task) < 1e-4


def test_a_sink_and_sums_of_products():
    def f(q, k, v, sink):
        s = causal(scores(q, k))
        return torch.cat([s, sink[:, None, None].expand(*s.shape[:-1], 1)], -1).softmax(-1)[..., :-1] @ v
    assert error(task_of(f, q=(2, 150, 8), k=(2, 150, 8), v=(2, 150, 8), sink=(2,))) < 1e-4
    g = lambda q, k, a, b, v: ((q @ k.mT + a @ b.mT) / 7).softmax(-1) @ v
    assert error(task_of(g, q=(2, 150, 8), k=(2, 150, 8), a=(2, 150, 5), b=(150, 5), v=(2, 150, 8))) < 1e-4


@pytest.mark.parametrize('offset', [3e4, -3e4])
def test_scores_far_from_zero(offset):
    f = lambda q, k, v, far: causal(scores(q, k) + far).softmax(-1) @ v
    draw = lambda rng: {'far': np.full((140, 1), offset, np.float32)}
    assert error(task_of(f, draw, q=(140, 16), k=(140, 16), v=(140, 16), far=(140, 1))) < 2e-2


REFUSED = {
    'the scores are returned': lambda q, k, v: ((s := scores(q, k)).softmax(-1) @ v, s),
    'the probabilities are returned': lambda q, k, v: ((p := scores(q, k).softmax(-1)) @ v, p),
    'columns are normalised': lambda q, k, v: scores(q, k).softmax(-2) @ v,
    'the probabilities are on the right': lambda q, k, v: v.mT @ scores(q, k).softmax(-1),
    'something lies between': lambda q, k, v: scores(q, k).softmax(-1).exp() @ v,
    'no product': lambda q, k, v: (q + k)[:, :60].softmax(-1) @ v[:, :60].mT @ v}


@pytest.mark.parametrize('name', REFUSED)
def test_what_is_no_such_attention_is_refused(name):
    assert passes(capture(task_of(REFUSED[name], q=(64, 64), k=(64, 64), v=(64, 64)))) == 0


def test_a_mask_that_leaves_a_row_nothing_is_no_constant_mask():
    f = lambda q, k, v: by_places(scores(q, k), lambda i, j: j < i).softmax(-1) @ v       # row 0 sees nothing
    graph = with_attention(capture(task_of(f, q=(64, 16), k=(64, 16), v=(64, 16))))
    node = next(n for n in graph.nodes if n.op == 'attention')
    assert node.kwargs['spec'].planes == () and 'where' in {n.op for n in node.kwargs['spec'].chain}


def test_half_planes_are_unions_or_none():
    def planes(f, value=True):
        graph = capture(task_of(lambda x: x.masked_fill(f(), 0.0), x=(8, 8)))
        mask = next(n for n in graph.nodes if n.op == 'masked_fill').args[1].name
        return half_planes(mask, graph, value)
    ones = lambda: torch.ones(8, 8, dtype=torch.bool)
    for f in (lambda: ones().triu(2), lambda: ~ones().tril(1), lambda: ones().triu(1) | ones().tril(-3),
              lambda: torch.arange(8)[:, None] < torch.arange(8) - 1, lambda: torch.arange(8) + 2 <= torch.arange(8)[:, None],
              lambda: ones().tril(-2) == 0):
        i, j = np.ogrid[:8, :8]
        found = np.logical_or.reduce([p.covers(i, j) for p in planes(f)])
        assert (found == f().numpy()).all()
    assert planes(lambda: ones().triu(1) & ones().tril(3)) is None
    assert planes(lambda: ones().triu(1) | ones().tril(-3), False) is None
    assert planes(lambda: torch.arange(8)[:, None] * 2 < torch.arange(8)) is None
    assert planes(lambda: torch.ones(8, 8, dtype=torch.bool).triu(1).triu(2)) is None
    assert HalfPlane(True, 3).other == HalfPlane(False, 2)


ATTENDING = ('multi_head_attention', 'sliding_window_attention', 'sink_attention', 'cross_attention',
             'grouped_query_attention', 'latent_attention', 'multi_query_decode', 'paged_decode')


def one_pass_verifies(task, dtype):
    "A task's kernel with one pass is right on the smallest workload of a dtype."
    workload = task.smallest(dtype)
    graph = kernel_graph(task, workload)
    assert passes(graph) == 1
    found = verify(trace_source(lower_fused(graph, chip=None), None, graph_specs(capture(task, workload))), task,
                   workload, [0])
    assert found.passed, str(found)


def dtypes_of(task): return list(dict.fromkeys(w.dtype for w in task.workloads))


@pytest.mark.sampled(3)
@pytest.mark.parametrize('name', ATTENDING)
def test_tasks_of_the_suite(name): one_pass_verifies(get_task(name), dtypes_of(get_task(name))[ATTENDING.index(name) % 2])


@pytest.mark.slow
@pytest.mark.parametrize('name', ATTENDING)
def test_tasks_of_the_suite_in_every_dtype(name):
    for dtype in dtypes_of(get_task(name)): one_pass_verifies(get_task(name), dtype)


def test_attentions_of_other_parts_of_one_tensor_are_not_one():
    "Two passes that read the same tensors, at other places, were taken for the same when composites had their parts."
    def f(q, k, v, share):
        mixed = lambda a, b: causal(scores(q[a:b], k[a:b])).softmax(-1) @ v
        return mixed(0, 2) - share * mixed(2, 4)
    task = task_of(f, q=(4, 96, 16), k=(4, 96, 16), v=(2, 96, 8), share=(2, 1, 1))
    graph, arrays = graph_of(task), task.draw()
    assert passes(graph) == 2
    got, = execute(trace_source(lower_fused(graph, chip=None), None, graph_specs(graph)), *arrays.values())
    assert np.max(abs(got - task.expected(arrays)[0])) < 1e-4
