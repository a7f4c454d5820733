"""Stepping through a program for two cores: they take turns as they do when the program runs."""
import numpy as np
import pytest
from dialects import nisa, nki, nl
from kernel_lab.nki import trace
from kernel_lab.nki.executor.interpreter import run_program
from kernel_lab.nki.executor.stepper import Stepper


def two_cores(x, more=3, meet=True):
    "Each core adds to its half, core 1 in a loop; after a barrier each takes what the other made."
    core, out = nl.program_id(0), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    part = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.load(x[core])
    if core == 1:
        for _ in nl.sequential_range(more): nisa.tensor_scalar(t, t, nl.add, 1.0)
    nisa.dma_copy(part[core], t)
    nisa.core_barrier(part, (0, 1))
    if meet: nisa.tensor_scalar(t, nl.load(part[1 - core]), nl.multiply, 2.0)
    nisa.dma_copy(out[core], t)
    return out


@pytest.mark.parametrize('more', [1, 3, 20])
def test_cores_take_turns_as_in_a_run(more):
    x = np.random.default_rng(0).standard_normal((2, 32, 8), np.float32)
    program = trace(nki.jit(two_cores)[2], x, chip='trn2', more=more)
    order = []
    run_program(program, [x], watch=lambda instruction, operands: order.append(instruction))
    s = Stepper(program, x)
    stepped = [s.course.at(k).instruction for k in range(s.count)]
    assert [id(o) for o in stepped] == [id(o) for o in order] and s.count == len(order)
    cores = [next(n for n in s.course.at(k).env if n.startswith('core'))[:5] for k in range(6)]
    assert cores[:4] == ['core0', 'core1', 'core0', 'core1']


def test_forward_back_and_the_end_agree_with_a_run():
    x = np.random.default_rng(1).standard_normal((2, 32, 8), np.float32)
    program = trace(nki.jit(two_cores)[2], x, chip='trn2')
    want = run_program(program, [x])
    s = Stepper(program, x)
    whole = lambda: {k: np.array(s.memory.flat[k]) for k in program.output_ids}
    s.forward(s.count)
    end = whole()
    for k in program.output_ids: np.testing.assert_array_equal(end[k], want.flat[k])
    for position in (s.count // 2, 1, s.count - 1, 0): s.goto(position)
    s.forward(s.count)
    for k in program.output_ids: np.testing.assert_array_equal(whole()[k], end[k])
