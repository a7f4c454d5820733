"""Products and convolutions that a task lets a GPU kernel leave to torch: done again on the CPU, right or wrong told
apart, and how much of the work they were."""
from dataclasses import replace

import pytest
pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
import torch.nn.functional as F
from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.evaluate import evaluate
from kernel_lab.evaluate.gpu.planning import plan_submission
from kernel_lab.gpu.plan.launch_plan import LaunchPlan
from kernel_lab.tasks import get_task, task_from
from kernel_lab.tasks.model.workload import Kernel

HEAD = '''import torch
import triton
import triton.language as tl

@triton.jit
def after(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.maximum(tl.load(x + k, mask=k < n), 0.0)
    tl.store(out + k, v * v, mask=k < n)

def relu2(y):
    out = torch.empty_like(y)
    after[(triton.cdiv(y.numel(), 1024),)](y, out, y.numel(), BLOCK=1024)
    return out

'''
LAYER = HEAD + 'def kernel(x, w): return relu2(x @ w)\n'
SPECS = [{'shape': [128, 128], 'dtype': 'float32'}, {'shape': [128, 256], 'dtype': 'float32'}]


def judged(text, task='linear_squared_relu', admits=('mm',), workload='small'):
    task = replace(get_task(task) if isinstance(task, str) else task, admits=admits)
    return evaluate(Kernel(text, entry='kernel', target='triton'), task, workload, seeds=2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize('call', ['x @ w', 'torch.mm(x, w)', 'torch.nn.functional.linear(x, w.T)', 'torch.bmm(x[None], w[None])[0]',
                                  'torch.addmm(torch.zeros(w.shape[1], device=x.device), x, w)', 'x[:, :] @ w.contiguous()'])
def test_a_product_of_the_library_is_done_again(call):
    e = judged(LAYER.replace('x @ w', call))
    assert e.status.value == 'correct' and '100 % of the FLOPs' in e.gpu.library, e.error
    assert any(line.startswith('library') for line in e.gpu.lines())


@pytest.mark.parametrize('wrong', [('v * v', 'v'), ('x @ w', 'w.T @ x.T'), ('x @ w', 'x @ (w.T.contiguous().T)[:, torch.arange(256).flip(0)]'),
                                   ('x @ w', 'x.T @ w')])
def test_a_wrong_plan_with_a_product_is_not_correct(wrong):
    e = judged(LAYER.replace(*wrong))
    assert e.status.value in ('wrong_result', 'wrong_shape', 'unsupported'), e.status


def test_nothing_else_and_nothing_unasked_is_admitted():
    for text, admits in ((LAYER, ()), (LAYER, ('convolution',)), (LAYER.replace('x @ w', 'torch.relu(x) @ w'), ('mm',)),
                         (LAYER.replace('relu2(x @ w)', 'torch.softmax(relu2(x @ w), 0)'), ('mm',))):
        e = judged(text, admits=admits)
        assert e.status.value == 'unsupported' and 'torch does part of the work' in e.error['message'], e.error
    assert '--admit mm' in judged(LAYER, admits=()).error['hint']
    with pytest.raises(UsageError, match='work of the library'): judged(LAYER, admits=('everything',))


def test_a_product_of_what_nobody_wrote_is_named():
    e = judged(LAYER.replace('x @ w', 'torch.empty_like(x) @ w'))
    assert e.status.value == 'uninitialised' and e.error['line'] == 16 and 'aten.mm reads' in e.error['message']


CONVOLUTION = HEAD + 'def kernel(x, w): return relu2(torch.nn.functional.conv2d(x, w, stride=2, padding=1))\n'


def test_a_convolution_is_done_again():
    def inputs(rng): return {'x': rng.standard_normal((2, 8, 12, 12)).astype('float32'), 'w': rng.standard_normal((4, 8, 3, 3)).astype('float32')}
    def reference(x, w): return F.relu(F.conv2d(x, w, stride=2, padding=1)).square()
    task = task_from(reference, inputs, name='conv_squared_relu')
    e = judged(CONVOLUTION, task, ('convolution',), None)
    assert e.status.value == 'correct' and 'convolution by the library: 100 % of the FLOPs' in e.gpu.library, (e.error, e.gpu)
    assert judged(CONVOLUTION.replace('stride=2', 'stride=1'), task, ('convolution',), None).status.value == 'wrong_shape'
    assert judged(CONVOLUTION.replace('w, stride', '-w, stride'), task, ('convolution',), None).status.value == 'unsupported'


def test_a_plan_with_a_product_is_data_and_a_forged_one_is_refused():
    plan, _ = plan_submission(LAYER, SPECS, entry='kernel')
    call, = plan.library_calls
    assert (call.name, call.flops, call.line) == ('aten.mm', 2 * 128 * 128 * 256, 16)
    text = plan.to_json()
    assert LaunchPlan.from_json(text).hash == plan.hash
    for old, new in (('"aten.mm"', '"aten.system"'), ('"aten.mm"', '"aten.convolution"'), ('"reads":[0,1]', '"reads":[0]'),
                     ('"given":[', '"given":[{"plain":"text"},'), ('"made":{"buffer":2', '"made":{"buffer":0')):
        assert old in text
        with pytest.raises(KernelError, match='the plan is not valid'): LaunchPlan.from_json(text.replace(old, new))
