"""Loads that the earlier compiler keeps for their next turn: as many as there is room for, each fetched at least once, and
none in memory that another value has."""
import math
import random

import numpy as np
import pytest
from memory_programs import memory_program
from test_memory_reuse import overfull

from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.explain.traffic import traffic
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.ir.spilling import sbuf_room
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing import allocation, dependencies
from kernel_lab.nki.timing.flat_program import flatten
from kernel_lab.nki.timing.lifetimes import lifetimes_of, walk_of
from kernel_lab.nki.timing.timeline import schedule

HEAD = {'neuronxcc.nki': 'import neuronxcc.nki as nki, neuronxcc.nki.language as nl',
        'nki': 'import nki, nki.language as nl'}


def repeated(tensors, tiles, columns, turns, beside, dialect='neuronxcc.nki'):
    "Tiles of fp32 of some tensors fetched in every turn, beside one that is alive all the time."
    names = [f'w{k}' for k in range(tensors)]
    loops = ''.join(f'''
        for j{k} in nl.affine_range({tiles}): nl.store(out[i, {k}, j{k}], nl.exp(nl.load({name}[j{k}])))'''
                    for k, name in enumerate(names))
    text = f'''{HEAD[dialect]}
@nki.jit
def turns({', '.join(names)}, x):
    out = nl.ndarray(({turns}, {tensors}, {tiles}, 128, {columns}), x.dtype, buffer=nl.shared_hbm)
    last = nl.ndarray((128, {beside}), x.dtype, buffer=nl.shared_hbm)
    big = nl.load(x)
    for i in nl.affine_range({turns}):{loops}
    nl.store(last, big)
    return out, last
'''
    return trace_source(text, specs=[ArraySpec((tiles, 128, columns))] * tensors + [ArraySpec((128, beside))])


def expected_loads(chip, tensors, tiles, columns, turns, beside):
    "Worked out by hand: whole tiles in what is left beside three live ones and the reserve, of tensors that fit there."
    room = sbuf_room(chip) - 4 * (2 * columns + beside) - chip.compiler_stream_bytes
    kept = int(room // (4 * columns)) if room >= 4 * columns * tiles else 0
    return turns * tensors * tiles - (turns - 1) * kept


def cases(count):
    """(tensors, tiles of each, columns, turns, columns beside): at least 64 KiB of the tiles do not stay, so that none does
    by chance."""
    draws, found, kinds = random.Random(1), [], ((1, 2, 3, 5), range(4, 40), (512, 1024, 2048, 4096), (2, 3, 5),
                                                 (512, 8192, 16384))
    while len(found) < count:
        one = tuple(draws.choice(x) for x in kinds)
        if 4 * (one[0] * one[1] - 1) * one[2] > sbuf_room(CHIPS['trn2']) + 65536: found.append(one)
    return found


@pytest.mark.parametrize('chip', ['trn1', 'trn2'])
@pytest.mark.parametrize('case', cases(16), ids=str)
def test_as_many_stay_as_there_is_room_for(case, chip):
    tensors, tiles, columns, _, beside = case
    t = schedule(repeated(*case), chip)
    assert t.bytes_in == 128 * 4 * (expected_loads(CHIPS[chip], *case) * columns + beside)
    assert t.spilled == t.reloaded == 0 and t.sbuf_peak <= sbuf_room(CHIPS[chip])
    table = traffic(t)
    assert table.unique[table.way == 'in'].sum() == 128 * 4 * (tensors * tiles * columns + beside)


def test_the_cases_keep_some_and_none():
    kept = [turns * tensors * tiles - expected_loads(CHIPS['trn2'], tensors, tiles, columns, turns, beside)
            for tensors, tiles, columns, turns, beside in cases(16)]
    assert kept.count(0) >= 4 and len(kept) - kept.count(0) >= 4


@pytest.mark.parametrize('case', cases(4), ids=str)
def test_the_current_dialect_fetches_what_it_says(case):
    tensors, tiles, columns, turns, beside = case
    t = schedule(repeated(*case, dialect='nki'), 'trn2')
    assert t.bytes_in == 128 * 4 * (turns * tensors * tiles * columns + beside)


@pytest.mark.parametrize('case', cases(16), ids=str)
def test_no_time_is_gained_that_its_bytes_do_not_give(case):
    "Not faster than the chip fetches every tile once, and the others as often as they come, and stores the results."
    chip, t = CHIPS['trn2'], schedule(repeated(*case), 'trn2')
    assert t.latency_us >= max(t.bytes_in, t.bytes_out) / 1e3 / chip.hbm_gbps


@pytest.mark.parametrize('split', ['shapes', 'views', 'lines'])
def test_a_tensor_counts_whole_however_it_is_loaded(split):
    "A tensor that does not fit is fetched in every turn, also where its halves, which would fit, are loaded apart."
    half = {'shapes': 'nl.store(out[i, 1, j], nl.exp(nl.load(w[16 + j, :, 0:2048])))',
            'views': 'nl.store(out[i, 1, j], nl.exp(nl.load(v[32 + 2 * j, 0:128])))',
            'lines': 'nl.store(out[i, 1, j], nl.exp(nl.load(w[16 + j])))'}[split]
    columns = 2048 if split != 'lines' else 4096
    text = f'''{HEAD['neuronxcc.nki']}
@nki.jit
def kernel(w):
    v = w.reshape((64, 128, 2048))
    out = nl.ndarray((4, 2, 16, 128, 4096), w.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        for j in nl.affine_range(8): nl.store(out[i, 0, j], nl.exp(nl.load(w[j])))
        for j in nl.affine_range(16):
            {half.replace('out[i, 1, j]', f'out[i, 1, j, :, 0:{columns}]')}
    return out
'''
    t = schedule(trace_source(text, specs=[ArraySpec((32, 128, 4096))]), 'trn2')
    assert t.bytes_in == 4 * 128 * 4 * (8 * 4096 + 16 * columns)


def test_what_is_fetched_once_takes_no_room():
    "A tile of its own in each turn stands before the repeated ones, which stay all the same."
    source = HEAD['neuronxcc.nki'] + '''
@nki.jit
def mixed(w, x):
    out = nl.ndarray((4, 8, 128, 4096), w.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        for j in nl.affine_range(8): nl.store(out[i, j], nl.add(nl.load(x[i, j]), nl.load(w[j])))
    return out
'''
    t = schedule(trace_source(source, specs=[ArraySpec((8, 128, 4096)), ArraySpec((4, 8, 128, 4096))]), 'trn2')
    assert t.bytes_in == 128 * 16384 * (32 + 8)


def test_a_kept_tile_goes_when_no_load_needs_it_any_more():
    "Two sets of tiles, one loop after the other: the second has the room that the first one had."
    source = HEAD['neuronxcc.nki'] + '''
@nki.jit
def both(w, x):
    out = nl.ndarray((2, 4, 9, 128, 4096), w.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        for j in nl.affine_range(9): nl.store(out[0, i, j], nl.exp(nl.load(w[j])))
    for k in nl.affine_range(4):
        for m in nl.affine_range(9): nl.store(out[1, k, m], nl.exp(nl.load(x[m])))
    return out
'''
    t = schedule(trace_source(source, specs=[ArraySpec((9, 128, 4096))] * 2), 'trn2')
    assert t.bytes_in == 2 * 9 * 128 * 16384


# memory for what is alive at once and this much more, in which loads may stay
ROOM = [(400, True, True, 1, 2), (400, True, True, 2, 0), (0, True, False, 1, 0)]


@pytest.fixture
def rooms(monkeypatch):
    "The rooms to keep loads in, noted."
    found, real = [], dependencies.room_to_keep
    monkeypatch.setattr(dependencies, 'room_to_keep', lambda *a: found.append(real(*a)) or found[-1])
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize('more', [2048, 6144, 20000])
@pytest.mark.parametrize('mode', ROOM, ids=str)
def test_no_memory_of_a_kept_load_has_another_user(mode, more, rooms):
    assert not {seed: x for seed in range(12) if (x := overfull(seed, mode, 'neuronxcc.nki', 30, more))}
    assert sum(r > 0 for r in rooms) >= 6


@pytest.mark.slow
@pytest.mark.parametrize('mode', ROOM, ids=str)
def test_no_memory_of_a_kept_load_has_another_user_in_many_programs(mode):
    for more in (2048, 6144, 20000):
        assert not {seed: x for seed in range(300) if (x := overfull(seed, mode, 'neuronxcc.nki', 30, more))}


def test_the_fetches_counted_are_those_of_the_program():
    "Of random programs: every turn of every load that something repeats."
    for seed in range(20):
        p = memory_program(seed, 30, 'neuronxcc.nki')
        flat = flatten(p, CHIPS['trn2'], True)
        fetched = allocation.fetched_table(flat, lifetimes_of(flat, len(p.loops))[2], True)
        by_key = np.zeros(max(flat.loads['key'].max(), 0) + 1)
        allocation._count_fetches(flat, walk_of(flat, len(p.loops)), fetched, by_key)
        turns = [math.prod(l.trips for l in loops) for loops, _ in p.walk()]
        assert fetched['left'].sum() == sum(n for n, key in zip(turns, flat.loads['key']) if key >= 0)
