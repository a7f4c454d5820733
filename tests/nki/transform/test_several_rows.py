"""Loads that serve several iterations, loads that wait for their readers: right on every loop nest, or refused."""
from itertools import product

import numpy as np
import pytest
from kernel_lab.nki import ArraySpec, assert_ok, execute, schedule
from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.aligned_nests import several_moves, unroll
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.loops import load_where_read, wide_loads
from kernel_lab.nki.writing.writer import to_source, trace_again

HEAD = '''import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, y):
    out = nl.ndarray((SIZES), dtype=nl.float32, buffer=nl.shared_hbm)
    over = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.private_hbm)
    first = nl.ndarray((128, 4, 256), dtype=nl.float32, buffer=nl.sbuf)
    for k in nl.affine_range(4): nisa.dma_copy(dst=first[:, k, :], src=y[128 * k:128 * (k + 1), :])
    for k in nl.affine_range(4): nisa.dma_copy(dst=over[128 * k:128 * (k + 1), :], src=first[:, k, :])
    WIDE
    for i in nl.sequential_range(4):
        for j in nl.affine_range(2):
            p = nl.zeros((128, 128), dtype=nl.float32, buffer=nl.psum)
            c = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            for k in nl.affine_range(4):
                a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=a, src=x[128 * k:128 * (k + 1), 128 * i:128 * (i + 1)])
                LOAD
                nisa.nc_matmul(dst=p, stationary=a, moving=MOVING, accumulate=True)
            nisa.tensor_copy(dst=c, src=p)
            nisa.dma_copy(dst=out[PLACE], src=c)
            AFTER
    return out
'''
WIDE = '''b = nl.ndarray((128, 4, 256), dtype=nl.float32, buffer=nl.sbuf)
    for k in nl.affine_range(4): nisa.dma_copy(dst=b[:, k, :], src=SOURCE[128 * k:128 * (k + 1), :])'''
NARROW = '''b = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=b, src=SOURCE[128 * k:128 * (k + 1), 128 * j:128 * (j + 1)])'''
LOADS = {'narrow': ('pass', NARROW, 'b'), 'wide': (WIDE, 'pass', 'b[:, k, 128 * j:128 * (j + 1)]')}
PLACES = {      # shape of the result, place of a block, whether columns may come before rows
    'apart': ('512, 256', '128 * i:128 * (i + 1), 128 * j:128 * (j + 1)', True),
    'last row': ('128, 256', ':, 128 * j:128 * (j + 1)', True),
    'crossing': ('640, 128', '128 * (i + j):128 * (i + j + 1), :', False)}
AFTER = {'': 'pass', 'writes the source': 'nisa.dma_copy(dst=over[128 * i:128 * (i + 1), 0:128], src=c)'}


def variant(load, place, after='', source='y'):
    wide, narrow, moving = LOADS[load]
    text = HEAD.replace('WIDE', wide).replace('LOAD', narrow).replace('SOURCE', source).replace('MOVING', moving)
    text = text.replace('SIZES', PLACES[place][0]).replace('PLACE', PLACES[place][1]).replace('AFTER', AFTER[after])
    return assert_ok(trace_source(text, None, [ArraySpec((512, 512), 'float32'), ArraySpec((512, 256), 'float32')], 'trn2'))


def whole_numbers(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, shape).astype(np.float32) for shape in ((512, 512), (512, 256))]


@pytest.mark.parametrize('load, place, after', product(LOADS, PLACES, AFTER))
def test_every_move_keeps_the_numbers(load, place, after):
    "What a move changes is fast or slow, never wrong; where blocks cross or the source changes, none is left."
    program, args = variant(load, place, after, 'over'), whole_numbers()
    found = [(c, p) for c, p in several_moves(program) if not check(p)]
    mine = [c for c, _ in found if c.startswith('b ')]
    assert bool(mine) == (PLACES[place][2] and not after), mine
    expected = execute(program, *args)[0].tobytes()
    for change, p in found: assert execute(p, *args)[0].tobytes() == expected, change


@pytest.mark.parametrize('after', AFTER)
def test_a_load_waits_for_its_readers(after):
    program, args = variant('wide', 'apart', after, 'over'), whole_numbers()
    k = [t.name for t in program.tensors].index('b')
    assert k in wide_loads(program)
    if after:
        with pytest.raises(IllegalTransformation, match='is written while'): load_where_read(program, k)
        return
    narrow = load_where_read(program, k)
    assert execute(assert_ok(narrow), *args)[0].tobytes() == execute(program, *args)[0].tobytes()
    assert [t.shape for t in narrow.tensors if t.name == 'b'] == [(128, 128)]


def test_the_rows_share_a_load_and_have_a_bank_each():
    program, args = variant('narrow', 'apart'), whole_numbers()
    change, after = next((c, p) for c, p in several_moves(program) if c.startswith('b for 4'))
    banks = [t for t in after.tensors if t.buffer == 'psum']
    assert len(banks) in (1, 4) and not check(after)
    assert schedule(after, 'trn2').latency_us < schedule(program, 'trn2').latency_us
    again = trace_again(to_source(after), after)
    assert execute(again, *args)[0].tobytes() == execute(program, *args)[0].tobytes()


def test_a_loop_written_out_has_its_tiles_for_each_iteration():
    program, args = variant('narrow', 'apart'), whole_numbers()
    inner = next(l.name for l in program.loops.values() if l.trips == 4 and 'nc_matmul' in [getattr(o, 'op', '') for o in l.body])
    after = unroll(program, inner)
    assert inner not in after.loops and sum(t.name == 'a' for t in after.tensors) == 4
    assert execute(assert_ok(after), *args)[0].tobytes() == execute(program, *args)[0].tobytes()
    outer = next(iter(l.name for l in program.loops.values() if inner in [getattr(o, 'name', '') for o in l.body]))
    with pytest.raises(IllegalTransformation, match='holds loops'): unroll(program, outer)


@pytest.mark.parametrize('load', LOADS)
def test_sums_keep_their_order(load):
    "Instruction by instruction the bits stay; the executor joins products otherwise: the family may not claim them."
    program, rng = variant(load, 'apart'), np.random.default_rng(1)
    args = [rng.standard_normal(shape, np.float32) for shape in ((512, 512), (512, 256))]
    expected = interpret(program, *args)[0].tobytes()
    for change, p in several_moves(program):
        if not check(p): assert interpret(p, *args)[0].tobytes() == expected, change
