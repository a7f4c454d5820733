"""Triton kernels judged on a CPU: right ones of every kind pass, wrong ones are told what is wrong and where."""

import pytest
pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
import torch
from gpu_gallery import HEAD, MATMUL, RIGHT, WRONG, text_of, wrong_text
from kernel_lab.cli.gpu_rows import gpu_line
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.evaluation import Evaluation
from kernel_lab.evaluate.sandbox.protocol import Limits
from kernel_lab.tasks.model.task import Task
from kernel_lab.tasks.model.workload import Kernel, Workload
from kernel_lab.tasks.suite.registry import get_task


@pytest.mark.sampled(14)
@pytest.mark.parametrize('name', RIGHT)
def test_a_right_kernel_passes(name):
    task, workload, text = text_of(name)
    e = evaluate(Kernel(text, target='triton'), task, workload, seeds=1)
    assert e.status == 'correct', f'{e}\n{e.log}'
    assert e.profile is None and e.latency_us is None and e.speedup is None and not e.gpu.findings
    kind = {'bfloat16': 'bf16'}.get(workload.dtype, 'tf32' if name.endswith(', TF32') else 'fp32')
    assert e.gpu.precision == kind and e.gpu.floor_us > 0 and e.gpu.kernels[0].registers > 0
    if e.gpu.error and e.gpu.eager_error and kind != 'tf32': assert e.gpu.error.relative <= 8 * e.gpu.eager_error.relative + 1e-7
    assert Evaluation.from_dict(e.to_dict()) == e


@pytest.mark.sampled(9)
@pytest.mark.parametrize('name', WRONG)
def test_a_wrong_kernel_is_told_why(name):
    task, workload, text, status, says = wrong_text(name)
    limits = Limits(seconds=6, work_seconds=20) if status == 'timeout' else Limits(seconds=60)
    e = evaluate(Kernel(text, target='triton'), task, workload, seeds=1, limits=limits)
    said = f'{e}\n{e.log}\n{e.error or ""}'
    assert status is None or e.status == status, said
    assert e.status != 'correct', said
    assert says is None or says in said, said


def test_a_race_is_no_success_although_the_numbers_are_right():
    "Programs one after the other hide it; a GPU runs them at once."
    task, workload, text, *_ = wrong_text('a sum without atomics')
    e = evaluate(Kernel(text, target='triton'), task, workload, seeds=1)
    assert e.status == 'implausible' and e.verification.passed and e.guards[0].line == 8 and any('line 8' in f for f in e.gpu.findings), e
    assert Evaluation.from_dict(e.to_dict()) == e


def test_times_of_two_precision_classes_are_not_compared():
    made = [evaluate(Kernel(text_of(n)[2], target='triton'), *text_of(n)[:2], seeds=1) for n in ('matmul', 'matmul, TF32')]
    with pytest.raises(UsageError, match='different precision classes'): made[0].against(made[1])
    with pytest.raises(UsageError, match='has no latency'): made[0].against(made[0])


def test_errors_tell_precision_classes_apart():
    e = {n: evaluate(Kernel(text_of(n)[2], target='triton'), *text_of(n)[:2], seeds=1).gpu for n in ('matmul', 'matmul, three TF32', 'matmul, TF32')}
    small, three, big = (e[n].error.relative for n in e)
    assert small < 1e-6 and three < 1e-6 < 1e-4 < big and [g.precision for g in e.values()] == ['fp32', 'fp32', 'tf32']
    assert 'line 14' in e['matmul, TF32'].precision_why


def test_the_store_knows_a_gpu_kernel_again_and_keeps_it_apart(tmp_path):
    from kernel_lab.evaluate.store.store import Store
    task, workload, text = text_of('relu')
    store = Store(tmp_path / 'store.db')
    first = evaluate(Kernel(text, target='triton'), task, workload, seeds=1, store=store)
    again = evaluate(Kernel(text, target='triton'), task, workload, seeds=1, store=store)
    assert again.cached and again.id == first.id and again.gpu == first.gpu and (again.target, again.chip) == ('triton', 'sm_90')
    other = evaluate(Kernel(text, target='triton'), task, workload, 'sm_80', seeds=1, store=store)
    assert not other.cached and other.chip == 'sm_80'
    with pytest.raises(UsageError, match='no GPU'): evaluate(Kernel(text, target='triton'), task, workload, 'sm_12')


def test_without_triton_it_says_what_to_install(monkeypatch):
    import importlib.util
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    task, workload, text = text_of('relu')
    with pytest.raises(UsageError, match=r'kernel-lab\[gpu\]'): evaluate(Kernel(text, target='triton'), task, workload, seeds=1)


CUDA = '''import torch
TEXT = r"""
extern "C" __global__ void relu(const float* x, float* out, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = fmaxf(x[k], 0.0f);
}
"""
def kernel(x):
    out = torch.empty_like(x)
    torch.cuda._compile_kernel(TEXT, 'relu')(grid=((x.numel() + 255) // 256, 1, 1), block=(256, 1, 1), args=[x, out, x.numel()])
    return out
'''


def test_cuda_is_compiled_and_says_that_it_is_not_verified():
    e = evaluate(Kernel(CUDA, target='cuda'), 'relu', seeds=1)
    assert (e.status, e.verification, e.gpu.error) == ('compiled', None, None) and 'not verified' in str(e) and e.gpu.kernels[0].registers > 0
    assert 'not verified' in e._repr_html_() and 'not verified' in gpu_line('relu.py', e)
    host = 'from torch.utils.cpp_extension import load_inline\nimport torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x\n'
    e = evaluate(Kernel(host, target='cuda'), 'relu', seeds=1)
    assert e.status == 'unsupported' and 'needs a machine with a card' in str(e)
    e = evaluate(Kernel(CUDA, target='triton'), 'relu', seeds=1)
    assert e.status == 'unsupported' and 'written in CUDA C++' in str(e)


LINEAR = '''import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, inside, outside, slope):
        super().__init__()
        self.linear, self.slope = nn.Linear(inside, outside), slope
    def forward(self, x): return torch.nn.functional.leaky_relu(self.linear(x), self.slope)

batch, inside, outside = 32, 64, 48
def get_inputs(): return [torch.rand(batch, inside)]
def get_init_inputs(): return [inside, outside, 0.1]
'''
NEW = '''import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def fused(x, w, b, out, M, N, K, slope, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    a = tl.load(x + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
    c = tl.load(w + n[None, :] * K + k[:, None], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0)
    y = tl.dot(a, c, input_precision='ieee') + tl.load(b + n, mask=n < N, other=0.0)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], tl.where(y > 0, y, y * slope), mask=(m[:, None] < M) & (n[None, :] < N))

class ModelNew(nn.Module):
    def __init__(self, inside, outside, slope):
        super().__init__()
        self.linear, self.slope = nn.Linear(inside, outside), slope
    def forward(self, x):
        M, K = x.shape
        out = torch.empty(M, self.linear.out_features, device=x.device)
        size = triton.next_power_of_2
        fused[(1,)](x, self.linear.weight, self.linear.bias, out, M, out.shape[1], K, self.slope, BM=size(M), BN=size(out.shape[1]), BK=size(K))
        return out
'''


@pytest.mark.slow
def test_a_task_in_the_form_of_kernelbench_is_a_gpu_task(tmp_path):
    "A file with Model; a ModelNew gets the task's weights under its parameters' names."
    from kernel_lab.tasks.importers.import_suite import import_suite
    (tmp_path / '7_linear.py').write_text(LINEAR)
    task, = import_suite(tmp_path).tasks.values()
    e = evaluate(Kernel(NEW, target='triton'), task, seeds=1)
    assert e.status == 'correct', f'{e}\n{e.log}'
    wrong = evaluate(Kernel(NEW.replace('y * slope', 'y'), target='triton'), task, seeds=1)
    assert wrong.status == 'wrong_result', wrong
    renamed = evaluate(Kernel(NEW.replace('self.linear', 'self.layer'), target='triton'), task, seeds=1)
    assert renamed.status == 'input_written' and 'parameter layer.weight' in str(renamed), renamed


# --- dtypes and operations that no task of the suite has ---

def made(reference, inputs, shapes, dtype='float32', **more):
    "A task of one workload."
    return Task('made', 1, 'check', 'made for a test', reference, inputs, (Workload('only', shapes, dtype),), **more)


def normal(w, rng): return {k: rng.standard_normal(s).astype('float32') for k, s in w.shapes.items()}


def whole(w, rng): return {k: rng.integers(-1000, 1000, s, dtype='int32') for k, s in w.shapes.items()}


def launched(name, body, grid, out, names='x', more=''):
    "A submission of one kernel that is given its inputs, an output and the number of elements of the first."
    given = names.split()
    return HEAD + f'''@triton.jit
def {name}({", ".join(given)}, out, n, BLOCK: tl.constexpr):
{body}

def kernel({", ".join(given)}):
    out = {out}
    {name}[{grid}]({", ".join(given)}, out, {given[0]}.numel(), BLOCK=256)
    return out
'''


OTHERS = {
    'float16': (made(lambda x, w: x @ w, normal, dict(x=(64, 80), w=(80, 48)), 'float16', reduces=lambda s: s['x'][1]), MATMUL.replace(", input_precision='ieee'", ''), 'fp16'),
    'Gray code of int32': (made(lambda x: x ^ (x >> 1), whole, dict(x=(1000,))), launched(
        'gray', '    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    v = tl.load(x + k, mask=k < n, other=0)\n    tl.store(out + k, v ^ (v >> 1), mask=k < n)',
        '(triton.cdiv(x.numel(), 256),)', 'torch.empty_like(x)'), 'integer'),
    'division of negative numbers': (made(lambda x: torch.div(x, 7, rounding_mode='trunc'), whole, dict(x=(1000,))), launched(
        'divided', '    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    tl.store(out + k, tl.load(x + k, mask=k < n, other=0) // 7, mask=k < n)',
        '(triton.cdiv(x.numel(), 256),)', 'torch.empty_like(x)'), 'integer'),
    'histogram by atomics': (made(lambda x: torch.bincount(x.abs() % 16, minlength=16).int(), whole, dict(x=(1000,))), launched(
        'count', '    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    v = tl.abs(tl.load(x + k, mask=k < n, other=0)) % 16\n    tl.atomic_add(out + v, 1, mask=k < n)',
        '(triton.cdiv(x.numel(), 256),)', 'torch.zeros(16, dtype=torch.int32, device=x.device)'), 'integer'),
    'largest by atomics': (made(lambda x: x.max().reshape(1), normal, dict(x=(1000,))), launched(
        'largest', "    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    tl.atomic_max(out, tl.max(tl.load(x + k, mask=k < n, other=-float('inf')), axis=0))",
        '(triton.cdiv(x.numel(), 256),)', "torch.full((1,), -float('inf'), device=x.device)"), 'fp32'),
    'a loop with a condition': (made(lambda x: (x.abs() * 64).floor().clamp(max=20), normal, dict(x=(256,))), launched(
        'steps', '''    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v, count = tl.abs(tl.load(x + k)) * 64, tl.zeros((BLOCK,), tl.float32)
    i = 0
    while i < 20:
        count += tl.where(v >= i + 1, 1.0, 0.0)
        i += 1
    tl.store(out + k, count)''', '(1,)', 'torch.empty_like(x)'), 'fp32'),
    'sorted rows': (made(lambda x: x.sort(-1).values, normal, dict(x=(4, 64))), launched(
        'ordered', '    k = tl.program_id(0) * 64 + tl.arange(0, 64)\n    tl.store(out + k, tl.sort(tl.load(x + k)))', '(4,)', 'torch.empty_like(x)'), 'fp32'),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', OTHERS)
def test_other_dtypes_and_operations(name):
    task, text, precision = OTHERS[name]
    e = evaluate(Kernel(text, target='triton'), task, seeds=1)
    assert e.status == 'correct' and e.gpu.precision == precision, f'{e}\n{e.log}'


def test_whole_numbers_wrap_as_on_a_gpu():
    "A product of int32 has 32 bits, in a loop as elsewhere: Python's numbers would not wrap, and hide it."
    task = made(lambda x: x * 0 + 3 * 2**30, whole, dict(x=(256,)))
    text = launched('wide', '    k = tl.arange(0, BLOCK)\n    for i in range(3, 4):\n        tl.store(out + k, tl.zeros((BLOCK,), tl.int32) + i * 1073741824)', '(1,)', 'torch.empty_like(x)')
    e = evaluate(Kernel(text, target='triton'), task, seeds=1)
    assert e.status == 'correct', f'{e}\n{e.log}'


def test_eight_bit_floats_are_refused_with_a_sentence():
    from kernel_lab.tasks.suite.registry import get_task
    task = get_task('matmul_rows')
    w = next(w for w in task.workloads if w.dtype == 'float8_e4m3')
    e = evaluate(Kernel(MATMUL, target='triton'), task, w, seeds=1)
    assert e.status == 'unsupported' and 'float8' in str(e), e


def test_a_workload_that_is_too_large_names_a_way_out():
    task = made(lambda x: x + 1, normal, dict(x=(4096, 8)))
    text = launched('slow', '    k = tl.program_id(0)\n    tl.store(out + k, tl.load(x + k) + 1)', '(x.numel(),)', 'torch.empty_like(x)')
    e = evaluate(Kernel(text, target='triton'), task, seeds=1, limits=Limits(seconds=60, work_seconds=3))
    assert e.status == 'limit_exceeded' and 'for 32,768 programs' in str(e) and 'smaller workload' in str(e), e


def test_an_input_may_be_written_where_the_task_lets_it():
    "Under the submission's own name for it; another input may not."
    body = HEAD + '''@triton.jit
def add(here, there, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(here + k, tl.load(here + k, mask=k < n) + tl.load(there + k, mask=k < n), mask=k < n)

def kernel(mine, x):
    add[(4,)](mine, x, x.numel(), BLOCK=256)
    return mine
'''
    task = made(lambda cache, x: cache + x, normal, dict(cache=(1000,), x=(1000,)), in_place=('cache',))
    assert evaluate(Kernel(body, target='triton'), task, seeds=1).status == 'correct'
    e = evaluate(Kernel(body.replace('(mine, x, x', '(x, mine, x').replace('return mine', 'return x'), target='triton'), task, seeds=1)
    assert e.status == 'input_written' and 'the input x' in str(e), e


ROWS = """import torch
import triton
import triton.language as tl

@triton.jit
def rows(x, out, stride, n, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * stride + k, mask=k < n, other=-float('inf'))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + tl.program_id(0) * stride + k, e / tl.sum(e, axis=0), mask=k < n)

def softmax(x):
    out = torch.empty_like(x)
    rows[(x.shape[0],)](x, out, x.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize('old, new, status, says', [
    ('BLOCK=triton.next_power_of_2(x.shape[1])', 'BLOCK=1024', 'uninitialised', 'on x [256, 4096]'),
    ('[(x.shape[0],)]', '[(256,)]', 'uninitialised', 'on x [4096, 512]'),
    ('torch.empty_like(x)', 'torch.empty((256, 512), device=x.device)', 'wrong_shape', 'as torch.empty_like(x)')])
def test_what_holds_on_the_smallest_workload_only_is_found(old, new, status, says):
    "The asked workload is too large to interpret: one length at a time is as in it, and its outputs have its shape."
    task = get_task('softmax')
    assert old in ROWS
    e = evaluate(Kernel(ROWS.replace(old, new), target='triton'), task, task.workload('full'), seeds=1)
    assert e.status.value == status and says in str(e), str(e)


def test_a_right_kernel_is_judged_with_each_length_once_more():
    task = get_task('softmax')
    e = evaluate(Kernel(ROWS, target='triton'), task, task.workload('full'), seeds=1)
    assert e.status.value == 'correct' and e.gpu.judged_on == 'small' and e.gpu.judged.endswith(
        'x [512, 512] and on x [256, 4096]; right on x [253, 509], too'), e.gpu.judged


def test_lengths_that_two_workloads_share_are_one():
    from kernel_lab.evaluate.gpu.gpu_stages import stretched_workloads
    from kernel_lab.tasks.model.workload import Workload
    small, full = Workload('small', {'a': (8, 16), 'b': (16, 4)}), Workload('full', {'a': (64, 128), 'b': (128, 4)})
    found = stretched_workloads(small, full)
    assert [[w.shapes for w, _ in each] for each in found] == [
        [{'a': (64, 16), 'b': (16, 4)}, {'a': (64, 4), 'b': (4, 1)}, {'a': (64, 1), 'b': (1, 1)}, {'a': (16, 16), 'b': (16, 4)}],
        [{'a': (8, 128), 'b': (128, 4)}, {'a': (2, 128), 'b': (128, 1)}, {'a': (1, 128), 'b': (128, 1)}, {'a': (8, 32), 'b': (32, 4)}]]
    assert [control and control.shapes for _, control in found[0]] == [None, {'a': (8, 4), 'b': (4, 1)}, {'a': (8, 1), 'b': (1, 1)}, None]
    near = stretched_workloads(Workload('small', {'a': (128, 256)}), Workload('full', {'a': (128, 512)}))
    assert [[w.shapes['a'] for w, _ in each] for each in near] == [[(128, 512), (32, 512), (8, 512)]]
    one = stretched_workloads(Workload('small', {'a': (8,)}), Workload('full', {'a': (64,)}))
    assert [[(w.shapes, control) for w, control in each] for each in one] == [[({'a': (64,)}, None), ({'a': (16,)}, None)]]
    assert stretched_workloads(small, Workload('full', {'a': (64, 128)})) == []


@pytest.mark.parametrize('old, new, cause', [
    ('tl.exp(v - tl.max(v, axis=0))', 'tl.exp(v)', "subtract the row's maximum first"),
    ('tl.exp(v - tl.max(v, axis=0))', 'tl.exp(v - tl.max(tl.abs(v), axis=0))', 'exponentials that vanish'),
    ('x + tl.program_id(0) * stride + k', 'x + tl.program_id(0) + k', 'row r is read at r · 1 and not at r · 512'),
    ('e / tl.sum(e, axis=0)', 'v', 'a copy of x'),
    ('e / tl.sum(e, axis=0)', '2 * e / tl.sum(e, axis=0)', 'a factor')])
def test_a_wrong_number_is_explained_from_the_numbers(old, new, cause):
    task = get_task('softmax')
    assert old in ROWS
    e = evaluate(Kernel(ROWS.replace(old, new), target='triton'), task, task.workload('small'), seeds=1)
    assert e.status.value in ('not_finite', 'wrong_result') and cause in str(e.verification.guess), str(e.verification)


@pytest.mark.sampled(2)
@pytest.mark.parametrize('how', ['programs', 'time'])
def test_a_longer_workload_that_is_too_much_is_left_out_and_said(monkeypatch, how):
    from kernel_lab.core.errors import KernelError
    from kernel_lab.evaluate.gpu import gpu_stages
    from kernel_lab.gpu.interpret.kernel_memory import TOO_MUCH
    judge = gpu_stages.judge_plan

    def slow(plan, task, workload, *rest, **options):
        if workload.name != 'small': raise KernelError(TOO_MUCH, kind='limit')
        return judge(plan, task, workload, *rest, **options)
    monkeypatch.setattr(gpu_stages, *(('MOST_PROGRAMS', 10) if how == 'programs' else ('judge_plan', slow)))
    task = get_task('softmax')
    e = evaluate(Kernel(ROWS, target='triton'), task, task.workload('full'), seeds=1)
    says = '; not with 256 as 4096, 512 as 4096, which is too much to interpret or nothing for the reference'
    assert e.status.value == 'correct' and e.gpu.judged_on == 'small' and e.gpu.judged.endswith(says), e.gpu.judged


ONLINE = '''import torch
import triton
import triton.language as tl

@triton.jit
def stats(x, tops, sums, n, BLOCK: tl.constexpr):
    row, m, s = tl.program_id(0), -float('inf'), 0.0
    for start in range(0, n, BLOCK):
        k = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + k, mask=k < n, other=-float('inf'))
        new = tl.maximum(m, tl.max(v, axis=0))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(v - new), axis=0)
        m = new
    tl.store(tops + row, m)
    tl.store(sums + row, s)

@triton.jit
def scale(x, out, tops, sums, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * n + k, mask=k < n)
    tl.store(out + row * n + k, tl.exp(v - tl.load(tops + row)) / tl.load(sums + row), mask=k < n)

def softmax(x):
    rows, cols = x.shape
    out, tops, sums = torch.empty_like(x), torch.empty(rows, device=x.device), torch.empty(rows, device=x.device)
    stats[(rows,)](x, tops, sums, cols, BLOCK=1024)
    scale[(rows, triton.cdiv(cols, 1024))](x, out, tops, sums, cols, BLOCK=1024)
    return out
'''


@pytest.mark.sampled(4)
@pytest.mark.parametrize('old, new', [('s * tl.exp(m - new) + ', 's + '), ('range(0, n,', 'range(0, BLOCK,'), ('', ''), ('start + tl.arange', 'tl.arange')])
def test_a_loop_that_is_wrong_from_its_second_time_on_is_found(old, new):
    "On the smallest workload each loop runs once, and all rows with the asked length are too many programs."
    task = get_task('softmax')
    assert old in ONLINE
    e = evaluate(Kernel(ONLINE.replace(old, new), target='triton'), task, task.workload('full'), seeds=1)
    assert e.status.value == ('wrong_result' if old else 'correct'), str(e)
    assert 'x [64, 4096]' in e.gpu.judged


@pytest.mark.slow
def test_a_kernel_that_is_wrong_with_fewer_rows_is_not_blamed_for_a_length():
    "It wants 128 rows, as all workloads of the task have, so that rows are not what is shortened."
    task = get_task('softmax')
    picky = ONLINE.replace('    rows, cols = x.shape\n', '    rows, cols = x.shape\n    if rows % 128: return x\n')
    e = evaluate(Kernel(picky, target='triton'), task, task.workload('full'), seeds=1)
    assert e.status.value == 'correct' and 'x [256, 1024]' in e.gpu.judged, e.gpu.judged


def test_masks_that_hold_for_powers_of_two_only_are_told():
    task = get_task('softmax')
    bare = ROWS.replace(", mask=k < n, other=-float('inf')", '').replace(', mask=k < n', '')
    assert bare != ROWS
    e = evaluate(Kernel(bare, target='triton'), task, task.workload('full'), seeds=1)
    assert e.status.value == 'correct' and 'powers of two the load goes past the end of x' in e.gpu.judged, e.gpu.judged


@pytest.mark.parametrize('old, new, says', [
    ('[(x.shape[0],)]', '[(x.shape[0] + 1,)]', 'is the grid too large, or a stride wrong?'),
    ('](x, out, x.stride', '](out, x, x.stride', 'look at the order of the arguments')])
def test_what_is_wrong_with_a_launch_is_named_beside_the_mask(old, new, says):
    task = get_task('softmax')
    assert old in ROWS
    e = evaluate(Kernel(ROWS.replace(old, new), target='triton'), task, task.workload('small'), seeds=1)
    assert e.status.value != 'correct' and says in str(e), str(e)


def test_a_kernel_may_ask_for_the_gpu_when_it_is_loaded_and_may_put_nothing_on_it():
    task = get_task('softmax')
    asks = ROWS.replace('def softmax', "SMS = torch.cuda.get_device_properties(0).multi_processor_count\n\ndef softmax")
    assert evaluate(Kernel(asks, target='triton'), task, task.workload('small'), seeds=1).status.value == 'correct'
    puts = ROWS.replace('def softmax', "KEPT = torch.zeros(4, device='cuda')\n\ndef softmax")
    e = evaluate(Kernel(puts, target='triton'), task, task.workload('small'), seeds=1)
    assert e.status.value == 'unsupported' and 'line 12: a tensor is put on the card when the file is loaded' in str(e), str(e)
