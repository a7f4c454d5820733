"""Numbers of rows that a loop moves become operands of its iterations as one instruction: the same bits, for random
chains of instructions, dtypes, engines and orders of operands."""
import random

import numpy as np
import pytest

from kernel_lab.nki import check, execute
from kernel_lab.nki.lang import isa as nisa, language as nl
from kernel_lab.nki.lang.trace import jit, trace
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.lanes.several_at_once import spread_numbers, widen_loop, widening_moves
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.nki.writing.writer import trace_again, write_lines
from kernel_maker import bits_of, nasty

OPS = nl.multiply, nl.add, nl.subtract, nl.maximum, nl.minimum


def chain(rng, turns, wide):
    "A kernel whose loop does a random chain on narrow tiles, with numbers of rows that move, stay, or are constants."
    names = [rng.choice(('scalar', 'both', 'activation', 'scaled', 'sum', 'tile')) for _ in range(rng.choice((1, 2, 3)))]
    draws = [(rng.choice(OPS), rng.choice(OPS), rng.random() < 0.5, rng.random() < 0.5, rng.randrange(4), rng.choice((nisa.engine.vector,
             nisa.engine.gpsimd))) for _ in names]
    dtype, other = rng.choice((nl.float32, nl.float32, nl.bfloat16)), rng.choice((nl.float32, nl.bfloat16))
    @jit
    def kernel(x, numbers):
        out = nl.ndarray((128, turns, wide), nl.float32, buffer=nl.shared_hbm)
        sums = nl.ndarray((128, turns, 1), nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, turns, wide), dtype, buffer=nl.sbuf)
        rows = nl.ndarray((128, turns + 1), nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, turns, 1), nl.float32, buffer=nl.sbuf)
        made = nl.ndarray((128, turns, wide), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        nisa.dma_copy(dst=rows, src=numbers)
        nisa.memset(dst=total, value=0.0)
        for i in nl.affine_range(turns):
            last = t[:, i, :]
            for n in range(len(names)):
                one, two, first, second, kind, engine = draws[n]
                end = made[:, i, :] if n == len(names) - 1 else nl.ndarray((128, wide), other, buffer=nl.sbuf)
                mine = rows[:, i:i + 1]
                if kind == 1: mine = rows[:, turns - 1 - i:turns - i]
                if kind == 3:
                    mine = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=mine, src=numbers[:, i:i + 1])
                fixed = rows[:, turns:turns + 1] if kind == 2 else 1.5
                if names[n] == 'scalar': nisa.tensor_scalar(dst=end, data=last, op0=one, operand0=mine, reverse0=first, engine=engine)
                if names[n] == 'both':
                    nisa.tensor_scalar(dst=end, data=last, op0=one, operand0=fixed if second else mine, reverse0=first, op1=two,
                                       operand1=mine, reverse1=second, engine=engine)
                if names[n] == 'activation': nisa.activation(dst=end, op=nl.relu if first else nl.copy, data=last, scale=mine)
                if names[n] == 'scaled': nisa.activation(dst=end, op=nl.square, data=last, scale=fixed, bias=mine)
                if names[n] == 'sum':
                    nisa.tensor_reduce(dst=total[:, i, :], op=nl.add if first else nl.maximum, data=last, axis=1, negate=second)
                    nisa.tensor_copy(dst=end, src=last)
                if names[n] == 'tile':
                    nisa.scalar_tensor_tensor(dst=end, data=last, op0=one, operand0=mine, op1=two, operand1=t[:, i, :],
                                              reverse0=first, reverse1=second)
                last = end
        nisa.dma_copy(dst=out, src=made)
        nisa.dma_copy(dst=sums, src=total)
        return out, sums
    return kernel


def widened(seeds):
    "How many loops of random kernels have iterations as one instruction, each with the same bits, taken by the chip."
    count = 0
    for seed in seeds:
        rng = random.Random(seed)
        turns, wide = rng.choice((2, 4, 6, 8)), rng.choice((2, 5, 16))
        inputs = [nasty((128, turns, wide), np.dtype('float32'), seed, 0.02), nasty((128, turns + 1), np.dtype('float32'), seed + 1, 0.02)]
        program = trace(chain(rng, turns, wide), *inputs, chip=rng.choice(('trn1', 'trn2', 'trn3')))
        want = [bits_of(x, False) for x in execute(program, *inputs)]
        for change, after in widening_moves(program):
            if check(after): continue                           # operands in wrong places, which a search leaves out too
            count += 'numbers' in change
            for one, other in zip(want, execute(after, *inputs)):
                assert not (bits_of(other, False) != one).any(), (seed, change)
            if seed % 10 == 0:
                assert first_difference(after, trace_again(write_lines(after), after)) is None, (seed, change)
    return count


@pytest.mark.filterwarnings('ignore:Line')
def test_bits_stay_in_random_chains():
    assert widened(range(60)) > 50


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:Line')
def test_bits_stay_in_a_thousand_random_chains():
    assert widened(range(60, 1060)) > 900


def test_whole_numbers_are_refused():
    @jit
    def kernel(x, numbers):
        out = nl.ndarray((128, 4, 8), nl.int32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 4, 8), nl.int32, buffer=nl.sbuf)
        rows = nl.ndarray((128, 4), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        nisa.dma_copy(dst=rows, src=numbers)
        for i in nl.affine_range(4):
            nisa.tensor_scalar(dst=t[:, i, :], data=t[:, i, :], op0=nl.multiply, operand0=rows[:, i:i + 1])
        nisa.dma_copy(dst=out, src=t)
        return out
    program = trace(kernel, np.ones((128, 4, 8), np.int32), np.ones((128, 4), np.float32), chip='trn2')
    with pytest.raises(IllegalTransformation, match='computes with whole numbers'):
        spread_numbers(program, next(iter(program.loops.values())))
    assert not [*widening_moves(program)]


def test_a_loop_whose_result_nothing_reads_is_no_error():
    @jit
    def kernel(x):
        out = nl.ndarray((128, 256), nl.float32, buffer=nl.shared_hbm)
        t, unread = (nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(dst=t, src=x)
        for i in nl.affine_range(4):
            nisa.tensor_scalar(dst=unread[:, nl.ds(64 * i, 64)], data=t[:, nl.ds(64 * i, 64)], op0=nl.multiply,
                               operand0=t[:, nl.ds(i, 1)])
        nisa.dma_copy(dst=out, src=t)
        return out
    program = trace(kernel, np.zeros((128, 256), np.float32), chip='trn2')
    assert list(widening_moves(program)) == []
    with pytest.raises(IllegalTransformation, match='nothing reads'):
        widen_loop(spread_numbers(program, program.loops['i0']), 'i0', 4)
