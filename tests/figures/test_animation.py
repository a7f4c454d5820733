"The animation of kernels that no page shows: two cores, masks of the earlier dialect, unrolled code, places, other clocks."
import gzip
import json

import numpy as np
import pytest

from dialects import nisa, nl, normal, old as nki, onl
from kernel_lab.core.errors import KernelError
from kernel_lab.figures.animation.animate import animate, fold
from kernel_lab.figures.animation.memory_map import addresses, lives
from kernel_lab.nki import ArraySpec, schedule, trace
from kernel_lab.nki.executor.stepper import Stepper
from kernel_lab.nki.lang.trace import installed
from kernel_lab.nki.ir.overlap import touched

with installed(): import neuronxcc.nki.compiler as ncc


def two_cores(x):
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.sequential_range(3):
        t = nl.ndarray((128, 64), x.dtype)
        at = nl.ds(i * 64, 64)
        nisa.dma_copy(t, x[core, :, at])
        nisa.activation(t, nl.exp, t)
        nisa.dma_copy(out[core, :, at], t)
    return out


@nki.jit
def tail(x, n):
    out = onl.ndarray(x.shape, dtype=x.dtype, buffer=onl.shared_hbm)
    p, f = onl.arange(128)[:, None], onl.arange(n)[None, :]
    for i in onl.affine_range(-(-x.shape[0] // 128)):
        inside = (i * 128 + p < x.shape[0]) & (f < x.shape[1])
        t = onl.load(x[i * 128 + p, f], mask=inside)
        onl.store(out[i * 128 + p, f], value=onl.multiply(t, 3.0), mask=inside)
    return out


def unrolled(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.static_range(10):
        t = nl.ndarray((128, 8), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=t)
    return out


def made(kernel, *inputs, **how): return animate(trace(kernel, *inputs, chip='trn2', **how), *inputs)


X = {'two cores': normal(2, 128, 192), 'masked': normal(200, 33), 'unrolled': normal(1280, 8)}
FOUND = {'two cores': lambda: made(two_cores, X['two cores'], grid=(2,)),
         'masked': lambda: animate(trace(tail, X['masked'], 40, chip='trn2'), X['masked']),
         'unrolled': lambda: made(unrolled, X['unrolled'])}


@pytest.fixture(scope='module')
def found(): return {name: make() for name, make in FOUND.items()}


@pytest.mark.parametrize('name', FOUND)
def test_ranges_are_those_of_a_run(found, name):
    "What each row wrote, against the stepper and the elements that the instruction touches."
    m = found[name]
    t, where, values = m.timeline, m.where, m.values
    writes, rows = np.flatnonzero(where.writes), {k: r for r, k in enumerate(zip(t.instr.tolist(), t.turn.tolist()))}
    s, seen = Stepper(t.program, X[name]), 0
    while s.at < s.count:
        s.forward()
        turn = 0
        for l in t.program.walked[s.last.number][0]: turn = turn * l.trips + s.last.env[l.name]
        row = rows.get((s.last.number, turn))
        if row is None: continue
        n, = np.flatnonzero(where.row[writes] == row)
        out, = s.last.instruction.outs
        k = s.last.instruction.outs[out].tensor
        x = s.elements(k, touched(s.last.instruction, out, s.last.env)).compressed()
        assert (values.least[n], values.greatest[n], values.nans[n]) == (np.nanmin(x), np.nanmax(x), np.isnan(x).sum())
        assert t.program.base[k] == where.tensor[where.value[writes[n]]]
        seen += 1
    assert seen == len(t) == values.known and not values.why_not


@pytest.mark.parametrize('name', FOUND)
def test_tiles_that_live_at_once_lie_apart(found, name):
    m = found[name]
    for t in (m.timeline, *(c.timeline for c in m.clocks if c.timeline.program is m.timeline.program)):
        begin, end = lives(m.where, t.start_us, t.end_us)
        pieces, tensors = addresses(t.program, t.chip, m.where, begin, end), t.program.tensors
        mine = [k for k, p in enumerate(pieces) if p]
        assert mine and all(tensors[m.where.tensor[k]].buffer != 'hbm' for k in mine)
        for a in mine:
            for b in mine:
                if a >= b or m.where.core[a] != m.where.core[b] or end[a] <= begin[b] or end[b] <= begin[a]: continue
                assert all(p + n <= q or q + k <= p for p, n in pieces[a] for q, k in pieces[b])


def test_each_core_has_tiles_of_its_own(found):
    where = found['two cores'].where
    on_chip = [found['two cores'].timeline.program.tensors[k].buffer != 'hbm' for k in where.tensor]
    assert np.bincount(where.core[on_chip]).tolist() == [3, 3]


def test_where_the_kernel_says_where_its_tiles_are():
    def placed(a):
        out = onl.ndarray((4, 128, 64), dtype=onl.float32, buffer=onl.shared_hbm)
        place = ncc.sbuf.mod_alloc(base_addr=512, num_free_tiles=(2,))
        t = onl.ndarray((4, onl.par_dim(128), 64), onl.float32, buffer=place)
        for i in onl.affine_range(4):
            t[i] = onl.load(a[i])
            onl.store(out[i], t[i])
        return out
    m = animate(trace(nki.jit(placed), normal(4, 128, 64), chip='trn2'))
    t = m.timeline
    pieces = addresses(t.program, t.chip, m.where, *lives(m.where, t.start_us, t.end_us))
    assert [p for p in pieces if p] == [[(512, 256)], [(768, 256)]] * 2


def test_unrolled_code_loses_its_middle(found):
    t = found['unrolled'].timeline
    rows, says = fold(t, 6)
    assert rows.tolist() == [0, 1, 2, 17, 18, 19] and says == ['Of 20 instructions the first 3 and the last 3 are shown.']
    m = animate(t, X['unrolled'], most=6)
    raw = gzip.decompress(m.packed)
    head = json.loads(raw[8:8 + int(raw[:8], 16)])
    assert (head['count'], head['rows'], len(head['instructions']), head['chip']) == (20, 6, 6, 'trn2')
    assert all(len(c['folded']) for c in head['clocks'] if c['name'] != 'free DMA')     # there all is at one moment
    assert len(head['clocks'][0]['tensors']) == 2 + 4                   # what is not shown is not told


def test_a_kernel_that_is_refused_has_no_animation():
    def wrong(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((256, 8), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(t, x)
        nisa.dma_copy(out, t)
        return out
    with pytest.raises(KernelError, match='partition'): animate(wrong, ArraySpec((256, 8)))


def test_an_index_out_of_reach_ends_the_values():
    def gathered(x, index):
        out = nl.ndarray((4, 8), x.dtype, buffer=nl.shared_hbm)
        i, t = nl.ndarray((4, 1), index.dtype, buffer=nl.sbuf), nl.ndarray((4, 8), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(i, index)
        nisa.dma_copy(t, x.ap([[8, 4], [1, 8]], vector_offset=i, indirect_dim=0))
        nisa.dma_copy(out, t)
        return out
    x, index = normal(16, 8), np.array([[1], [3], [99], [2]], np.int32)
    m = animate(gathered, x, index)
    assert m.values.known == 1 and 'up to instruction 1: ' in m.notes[-1]
    assert schedule(m.timeline.program, 'trn2').latency_us == m.timeline.latency_us     # the clock does not mind
