"""Nests turned around until a tensor stays on chip, and tensors that every turn of a loop writes anew."""
from itertools import product

import numpy as np
import pytest
from kernel_lab.nki import ArraySpec, assert_ok, execute, schedule
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.aligned_nests import align_step, alignment_moves, tile_moves
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.on_chip import hold_on_chip

HEAD = '''import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray((4, 128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    held = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.private_hbm)
    start = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=start, src=x[0])
    BEFORE
    for k in nl.sequential_range(4):
        t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        u = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[k])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
BODY
        nisa.dma_copy(dst=out[k], src=u)
    return out
'''
STORE_ALL, STORE_HALF = 'nisa.dma_copy(dst=held, src=t)', 'nisa.dma_copy(dst=held[:, :32], src=t[:, :32])'
STORE_REST, STORE_START = 'nisa.dma_copy(dst=held[:, 32:], src=t[:, 32:])', 'nisa.dma_copy(dst=held, src=start)'
LOAD, LOAD_HALF = 'nisa.dma_copy(dst=u, src=held)', 'nisa.dma_copy(dst=u[:, :32], src=held[:, :32])'
COPY_REST = 'nisa.tensor_copy(dst=u[:, 32:], src=t[:, 32:])'
BODIES = {
    'anew': (STORE_ALL, LOAD), 'in halves': (STORE_HALF, STORE_REST, LOAD), 'half of it': (STORE_HALF, LOAD_HALF, COPY_REST),
    'half is old': (STORE_HALF, LOAD), 'loaded first': (LOAD, STORE_ALL), 'stored twice': (STORE_ALL, STORE_HALF, LOAD),
    'loaded between': (STORE_HALF, LOAD_HALF, STORE_REST, COPY_REST), 'from outside': (STORE_START, LOAD)}


def number_of(program, name): return [t.name for t in program.tensors].index(name)


def variant(name, filled):
    body = '\n'.join(f'        {line}' for line in BODIES[name])
    source = HEAD.replace('BODY', body).replace('BEFORE', STORE_START if filled else 'pass')
    return assert_ok(trace_source(source, None, [ArraySpec((4, 128, 64), 'float32')], 'trn2'))


@pytest.mark.parametrize('name, filled', [(n, f) for n, f in product(BODIES, (False, True))
                                          if f or n not in ('half is old', 'loaded first')])
def test_what_every_turn_writes_anew(name, filled):
    "Held on chip, with the same numbers, or refused; what an earlier turn left is never lost."
    program, x = variant(name, filled), np.random.default_rng(0).standard_normal((4, 128, 64), np.float32)
    try: after = hold_on_chip(program, number_of(program, 'held'))
    except IllegalTransformation:
        assert filled or name in ('half of it', 'stored twice', 'loaded between')
        return
    assert name in ('anew', 'in halves', 'from outside') and not filled
    assert execute(assert_ok(after), x)[0].tobytes() == execute(program, x)[0].tobytes()
    scope = after.tensors[number_of(after, 'held')].scope
    assert scope == (('i0',) if name != 'in halves' else ())        # no single store fills what is loaded


SCORES = '''import nki
import nki.isa as nisa
import nki.language as nl

def made(x, y, between, h, i, j):
    a = nl.ndarray((64, 128), dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray((64, 512), dtype=x.dtype, buffer=nl.sbuf)
    p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    c = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=y[h, :, 512 * j:512 * (j + 1)])
    nisa.dma_copy(dst=a, src=x[h, :, 128 * i:128 * (i + 1)])
    nisa.nc_matmul(dst=p, stationary=a, moving=b)
    nisa.tensor_copy(dst=c, src=p)
    nisa.dma_copy(dst=between[HEAD 128 * i:128 * (i + 1), 512 * j:512 * (j + 1)], src=c)

@nki.jit
def kernel(x, y):
    out = nl.ndarray((2, 512, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    between = nl.ndarray(SHAPE, dtype=x.dtype, buffer=nl.private_hbm)
    for h in nl.affine_range(2):
        for j in nl.affine_range(2):
            for i in nl.affine_range(4):
                made(x, y, between, h, i, j)
        for i in nl.affine_range(4):
            t = nl.ndarray((128, 1024), dtype=x.dtype, buffer=nl.sbuf)
            s = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=between[HEAD ROWS, :])
            nisa.tensor_reduce(dst=s, op=nl.maximum, data=t, axis=1)
            nisa.dma_copy(dst=out[h, 128 * i:128 * (i + 1), :], src=s)
    return out
'''
X = [ArraySpec((2, 64, 512), 'float32'), ArraySpec((2, 64, 1024), 'float32')]


@pytest.mark.parametrize('each_head', [True, False])
def test_scores_of_a_head_stay_on_chip(each_head):
    head, shape = ('h,', '(2, 512, 1024)') if each_head else ('', '(512, 1024)')
    source = SCORES.replace('HEAD', head).replace('SHAPE', shape).replace('ROWS', '128 * i:128 * (i + 1)')
    program = assert_ok(trace_source(source, None, X, 'trn2'))
    found = dict(alignment_moves(program))
    assert any('between, ' in change for change in found)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s.shape, np.float32) for s in X]
    for change, after in found.items():
        assert execute(assert_ok(after), *arrays)[0].tobytes() == execute(program, *arrays)[0].tobytes(), change
        assert not any(t.name == 'between' and t.buffer == 'hbm' for t in after.tensors)
    assert min(schedule(p).latency_us for p in found.values()) < schedule(program).latency_us


@pytest.mark.parametrize('rows', ['128 * (3 - i):128 * (4 - i)', '0:128'])
def test_another_order_is_refused(rows):
    source = SCORES.replace('HEAD', 'h,').replace('SHAPE', '(2, 512, 1024)').replace('ROWS', rows)
    program = trace_source(source, None, X, 'trn2')
    assert not [*alignment_moves(program)]
    with pytest.raises(IllegalTransformation, match='walk alike'): align_step(program, number_of(program, 'between'))


KEYS = """import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, y):
    out = nl.ndarray((4, 64, 256), dtype=nl.float32, buffer=nl.shared_hbm)
    keys = nl.ndarray((64, 4, 256), dtype=nl.float32, buffer=nl.sbuf)
    BEFORE
    for part in nl.affine_range(2):
        for head in nl.affine_range(4):
            nisa.dma_copy(dst=keys[:, FILLED, 128 * part:128 * (part + 1)], src=y[head, :, 128 * part:128 * (part + 1)])
    for head in nl.affine_range(4):
        a = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
        p = nl.ndarray((64, 256), dtype=nl.float32, buffer=nl.psum)
        c = nl.ndarray((64, 256), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[head])
        nisa.nc_matmul(dst=p, stationary=a, moving=keys[:, READ, :])
        nisa.tensor_copy(dst=c, src=p)
        nisa.dma_copy(dst=out[head], src=c)
    AFTER
    return out
"""


@pytest.mark.parametrize('filled, read, before, after, is_smaller', [
    ('head', 'head', 'pass', 'pass', True),
    ('head', '3 - head', 'pass', 'pass', False),                                # read the other way round
    ('head', '0', 'pass', 'pass', False),                                       # one head serves all
    ('head', 'head', 'nisa.memset(dst=keys, value=1.0)', 'pass', False),        # filled as a whole before
    ('head', 'head', 'pass', 'nisa.dma_copy(dst=out[0], src=keys[:, 3, :])', False)])   # needed after the nests
def test_a_tile_shrinks_only_where_its_nests_walk_alike(filled, read, before, after, is_smaller):
    source = KEYS.replace('FILLED', filled).replace('READ', read).replace('BEFORE', before).replace('AFTER', after)
    program = assert_ok(trace_source(source, None, [ArraySpec((4, 64, 64)), ArraySpec((4, 64, 256))], 'trn2'))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 64, 64), (4, 64, 256))]
    found, want = [*tile_moves(program)], execute(program, *arrays)[0]
    size = lambda p: p.tensors[number_of(p, 'keys')].size
    assert bool([p for _, p in found if size(p) == 64 * 256]) == is_smaller
    for _, smaller in found:
        assert size(smaller) < size(program)
        assert execute(assert_ok(smaller), *arrays)[0].tobytes() == want.tobytes()
