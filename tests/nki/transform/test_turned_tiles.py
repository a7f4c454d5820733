"""A tile loaded or stored across, element by element, becomes blocks that the array turns: the same bits, for random
shapes, orders of axes, loops and steps, whatever the values."""
import random

import numpy as np
import pytest

from kernel_lab.nki import check, execute, schedule
from kernel_lab.nki.lang import isa as nisa, language as nl
from kernel_lab.nki.lang.trace import jit, trace
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.hbm_copies import transposed_copies, turned_tile
from kernel_lab.nki.transform.moves import FAMILIES
from kernel_maker import bits_of, nasty


def copies(shape, order, begin, stores):
    "A kernel that loads parts of `x` across, or stores them so."
    near = [shape[1 + k] for k in order]
    inner = (*(slice(0, n) for n in near[:-1]), slice(begin, begin + near[-1]))
    @jit
    def kernel(x):
        turns, part = shape[0], shape[1:]
        out = nl.ndarray((turns, *(part if stores else near)), x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(turns):
            t = nl.ndarray((near[0], *near[1:-1], near[-1] + begin), x.dtype, buffer=nl.sbuf)
            inside = t[inner]
            across = tuple(order)
            if stores:
                straight = nl.ndarray(near, x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=straight, src=x[i].permute(across))
                nisa.tensor_copy(dst=inside, src=straight)
                nisa.dma_copy(dst=out[i].permute(across), src=inside)
            else:
                nisa.dma_copy(dst=inside, src=x[i].permute(across))
                nisa.dma_copy(dst=out[i], src=inside)
        return out
    return kernel


def drawn_case(seed):
    rng = random.Random(seed)
    last, others = rng.choice((1, 2, 7, 64, 96, 128)), [rng.choice((1, 2, 3, 5, 24, 40, 128, 160)) for _ in range(rng.choice((1, 2)))]
    order = [len(others), *rng.sample(range(len(others)), len(others))]
    return (rng.choice((1, 2, 3)), *others, last), order, rng.choice((0, 0, 3)), rng.random() < 0.5, rng.choice(('trn1', 'trn2', 'trn3'))


def turned(seeds):
    "How many copies of random cases were turned; each with the same bits, and taken by the chip."
    count = 0
    for seed in seeds:
        shape, order, begin, stores, chip = drawn_case(seed)
        x = nasty(shape, np.dtype('float32'), seed, (2 / 3, 0.02, 0.0)[seed % 3])
        if chip == 'trn1': x = np.where(np.isfinite(x), x, np.float32(1))       # its array multiplies by ones
        program = trace(copies(shape, order, begin, stores), x, chip=chip)
        want = bits_of(execute(program, x)[0], False)
        for _, after in transposed_copies(program):
            assert not check(after), (seed, check(after))
            assert not (bits_of(execute(after, x)[0], False) != want).any(), (seed, shape, order)
            count += 1
    return count


def test_bits_stay_in_random_cases():
    assert turned(range(60)) > 40


@pytest.mark.slow
def test_bits_stay_in_a_thousand_random_cases():
    assert turned(range(60, 1060)) > 700


def test_infinities_make_it_inexact_on_an_array_that_multiplies():
    x = np.ones((1, 128, 64), np.float32)
    for chip, exact in (('trn1', False), ('trn2', True)):
        program = trace(copies(x.shape, [1, 0], 0, False), x, chip=chip)
        assert {m.is_exact for m in FAMILIES['turn on the array'].moves(program)} == {exact}


def program_of(shape, order=(1, 0), dtype='float32', stores=False):
    return trace(copies(shape, list(order), 0, stores), np.ones(shape, dtype), chip='trn2')


def test_a_column_of_many_numbers_is_loaded_in_runs():
    program = program_of((1, 512, 128))
    after = turned_tile(program, program.instructions[0])
    assert schedule(after).latency_us < schedule(program).latency_us / 2
    assert [o.op for o in after.instructions].count('nc_transpose') == 4


@pytest.mark.parametrize('shape, order, dtype, why', [
    ((1, 64, 32), (0, 1), 'float32', 'do not follow each other'),
    ((1, 64, 32), (1, 0), 'float16', 'transposes float16'),
    ((1, 64, 1), (1, 0), 'float32', 'do not follow each other'),
    ((1, 128 * 40, 8), (1, 0), 'float32', 'too many blocks')])
def test_what_is_refused(shape, order, dtype, why):
    program = program_of(shape, order, dtype)
    with pytest.raises(IllegalTransformation, match=why): turned_tile(program, program.instructions[0])


def test_a_part_that_begins_where_engines_do_not_is_refused():
    @jit
    def kernel(x):
        out = nl.ndarray((64, 512), x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t[1:65], src=x.permute((1, 0)))
        nisa.dma_copy(dst=out, src=t[1:65])
        return out
    program = trace(kernel, np.ones((512, 64), np.float32), chip='trn2')
    with pytest.raises(IllegalTransformation, match='do not begin at partition 1'): turned_tile(program, program.instructions[0])


def test_what_has_runs_already_is_not_turned_again():
    program = trace(copies((1, 512, 128), [1, 0], 0, False), np.ones((1, 512, 128), np.float32), chip='trn2')
    after = turned_tile(program, program.instructions[0])
    assert not list(transposed_copies(after))
