"""Triton kernels judged on a CPU: right ones of every kind pass, wrong ones are told what is wrong and where."""

import pytest
pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from gpu_gallery import RIGHT, WRONG, text_of, wrong_text
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.evaluation import Evaluation
from kernel_lab.evaluate.sandbox.protocol import Limits
from kernel_lab.tasks.model.workload import Kernel


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
    host = 'from torch.utils.cpp_extension import load_inline\nimport torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x\n'
    e = evaluate(Kernel(host, target='cuda'), 'relu', seeds=1)
    assert e.status == 'unsupported' and 'on a machine with a card' in str(e)
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
