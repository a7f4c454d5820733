"""What is large beside the rest of an output, a mask or an outlier, widens no tolerance; infinite values must be met."""
import numpy as np
import pytest
import torch
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.verification.adversarial_inputs import admissions
from kernel_lab.puzzles import Puzzle
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import get_task

KERNEL = '''import nki
import nki.language as nl
import nki.isa as nisa

@nki.jit
def kernel(x, m):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=m)
    nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=FACTOR)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    nisa.dma_copy(dst=out, src=a)
    return out
'''
FILLS = [-np.inf, np.inf, -1e30, -1e9, -65504.0]


def inputs(fill):
    def draw(rng):
        m = np.zeros((128, 64), 'float32')
        m[:, ::4] = fill
        return {'x': rng.standard_normal((128, 64)).astype('float32'), 'm': m}
    return draw


@pytest.mark.parametrize('fill', FILLS)
def test_a_mask_buys_no_tolerance(fill):
    masked = task_from(lambda x, m: 2 * x + m, inputs(fill), name='masked')
    got = {f: evaluate(Kernel(KERNEL.replace('FACTOR', f)), masked).status for f in ('2.0', '2.001', '-3.0', '0.0')}
    assert got == {'2.0': 'correct', '2.001': 'wrong_result', '-3.0': 'wrong_result', '0.0': 'wrong_result'}


def test_a_puzzle_with_a_mask():
    puzzle = Puzzle('masked', lambda x, m: 2 * x + m, inputs(-np.inf))
    assert puzzle.check(Kernel(KERNEL.replace('FACTOR', '2.0'))).right
    assert not puzzle.check(Kernel(KERNEL.replace('FACTOR', '-3.0'))).right


def test_an_infinity_with_the_other_sign_is_wrong():
    masked = task_from(lambda x, m: 2 * x + m, inputs(-np.inf), name='masked')
    other = KERNEL.replace('FACTOR', '2.0').replace('data2=b, op=nl.add', 'data2=b, op=nl.subtract')
    assert evaluate(Kernel(other), masked).status == 'wrong_result'


def hidden(x, m): return torch.where(m < 0, -torch.inf, 2 * x)


@pytest.mark.parametrize('fill, reference', [(-np.inf, lambda x, m: 2 * x + m), (-1.0, hidden)])
def test_changed_inputs_are_tried_where_outputs_are_infinite(fill, reference):
    "None were: a kernel that is wrong on large values alone was right."
    masked = task_from(reference, inputs(fill), name='masked')
    admitted = [k for k, why in admissions(masked).items() if not why]
    assert len(admitted) >= 12 and {'large ×32', 'x: one of each row far out'} <= {*admitted}


def test_a_kernel_that_cuts_large_values_beside_infinite_ones_is_wrong():
    masked = task_from(lambda x, m: 2 * x + m, inputs(-np.inf), name='masked')
    cut = KERNEL.replace('operand0=FACTOR', 'operand0=2.0, op1=nl.minimum, operand1=20.0')
    assert evaluate(Kernel(cut), masked).status == 'wrong_result'


def test_values_that_overflow_are_not_tried():
    "What is infinite on changed inputs alone says nothing about a kernel."
    found = admissions(task_from(lambda x, m: torch.exp(200 * x.abs()) + m, inputs(0), name='overflow'))
    assert 'the reference is not finite' in found.values()


def test_an_output_that_is_infinite_throughout_is_not_compared():
    both = task_from(lambda x, m: (2 * x, torch.full_like(x, torch.inf)), inputs(0), name='both')
    assert {'the reference is not finite', 'it changes nothing'} == {*admissions(both).values()}


def test_a_reference_that_is_no_number_is_the_task_s_fault():
    for reference in (lambda x, m: x.log() + m, lambda x, m: torch.where(x > 3.2, torch.nan, 2 * x) + m):
        undefined = task_from(reference, inputs(0), name='undefined')
        with pytest.raises(UsageError, match='no number .* with seed'): evaluate(Kernel(KERNEL.replace('FACTOR', '2.0')), undefined)


def test_rare_ratios_of_a_policy_widen_no_tolerance():
    "One row in 256 of this loss is four thousand times as large as the others."
    assert all(get_task('grpo_loss').tolerance(w).atol < 0.03 for w in ('full', 'bf16', 'small'))
