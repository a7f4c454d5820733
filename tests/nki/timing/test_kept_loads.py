"""Loads that the earlier compiler keeps for their next turn: as many as there is room for, each fetched at least once, and
none in memory that another value has."""
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
from kernel_lab.nki.timing.timeline import schedule

HEAD = {'neuronxcc.nki': 'import neuronxcc.nki as nki, neuronxcc.nki.language as nl',
        'nki': 'import nki, nki.language as nl'}
TURNS = '''
@nki.jit
def turns(w, x):
    out = nl.ndarray(({turns}, {tiles}, 128, {columns}), w.dtype, buffer=nl.shared_hbm)
    last = nl.ndarray((128, {beside}), w.dtype, buffer=nl.shared_hbm)
    big = nl.load(x)
    for i in nl.affine_range({turns}):
        for j in nl.affine_range({tiles}): nl.store(out[i, j], nl.exp(nl.load(w[j])))
    nl.store(last, big)
    return out, last
'''


def repeated(tiles, columns, turns, beside, dialect='neuronxcc.nki'):
    "Tiles of fp32 fetched in every turn, beside one that is alive all the time: a tile and its result, and `beside`."
    text = HEAD[dialect] + TURNS.format(tiles=tiles, columns=columns, turns=turns, beside=beside)
    return trace_source(text, specs=[ArraySpec((tiles, 128, columns)), ArraySpec((128, beside))])


def expected_loads(chip, tiles, columns, turns, beside):
    "Worked out by hand: whole tiles in what is left beside three live ones and the reserve."
    room = sbuf_room(chip) - 4 * (2 * columns + beside) - chip.compiler_stream_bytes
    kept = int(room // (4 * columns)) if room >= 0.25 * 4 * columns * tiles else 0
    return turns * tiles - (turns - 1) * kept


def cases(count):
    "(tiles, columns, turns, columns beside): at least 64 KiB of the tiles do not stay, so that none does by chance."
    draws, found = random.Random(1), []
    while len(found) < count:
        tiles, columns, turns, beside = (draws.choice(x) for x in (range(8, 160), (512, 1024, 2048, 4096), (2, 3, 5),
                                                                   (512, 8192, 16384)))
        if 4 * (tiles - 1) * columns > sbuf_room(CHIPS['trn2']) + 65536: found.append((tiles, columns, turns, beside))
    return found


@pytest.mark.parametrize('chip', ['trn1', 'trn2'])
@pytest.mark.parametrize('case', cases(12), ids=str)
def test_as_many_stay_as_there_is_room_for(case, chip):
    tiles, columns, turns, beside = case
    t = schedule(repeated(*case), chip)
    assert t.bytes_in == 128 * 4 * (expected_loads(CHIPS[chip], *case) * columns + beside)
    assert t.spilled == t.reloaded == 0 and t.sbuf_peak <= sbuf_room(CHIPS[chip])
    table = traffic(t)
    assert table.unique[table.way == 'in'].sum() == 128 * 4 * (tiles * columns + beside)


def test_the_cases_keep_some_and_none():
    kept = [turns * tiles - expected_loads(CHIPS['trn2'], tiles, columns, turns, beside)
            for tiles, columns, turns, beside in cases(12)]
    assert min(kept) == 0 < sorted(kept)[-4]


@pytest.mark.parametrize('case', cases(4), ids=str)
def test_the_current_dialect_fetches_what_it_says(case):
    tiles, columns, turns, beside = case
    t = schedule(repeated(*case, dialect='nki'), 'trn2')
    assert t.bytes_in == 128 * 4 * (turns * tiles * columns + beside)


@pytest.mark.parametrize('case', cases(4), ids=str)
def test_no_time_is_gained_that_its_bytes_do_not_give(case):
    "Each tile is fetched once, by a DMA that takes its time: not faster than all of them at the chip's bandwidth."
    chip, t = CHIPS['trn2'], schedule(repeated(*case), 'trn2')
    assert t.latency_us >= (t.bytes_in + t.bytes_out) / 1e3 / (2 * chip.hbm_gbps)
    assert t.latency_us <= schedule(repeated(*case), 'trn2', without=['reuse']).latency_us * 1.001


def test_what_is_fetched_once_takes_no_room():
    "A tile of its own in each turn stands before the repeated ones, which stay all the same."
    source = HEAD['neuronxcc.nki'] + '''
@nki.jit
def mixed(w, x):
    out = nl.ndarray((4, 12, 128, 4096), w.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        for j in nl.affine_range(12): nl.store(out[i, j], nl.add(nl.load(x[i, j]), nl.load(w[j])))
    return out
'''
    t = schedule(trace_source(source, specs=[ArraySpec((12, 128, 4096)), ArraySpec((4, 12, 128, 4096))]), 'trn2')
    kept = int((sbuf_room(CHIPS['trn2']) - 3 * 16384 - CHIPS['trn2'].compiler_stream_bytes) // 16384)
    assert t.bytes_in == 128 * 16384 * (48 + 48 - 3 * kept) and kept == 8


def test_a_kept_tile_goes_when_no_load_needs_it_any_more():
    "Two sets of tiles, one loop after the other: the second has the room that the first one had."
    source = HEAD['neuronxcc.nki'] + '''
@nki.jit
def both(w, x):
    out = nl.ndarray((2, 4, 16, 128, 4096), w.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        for j in nl.affine_range(16): nl.store(out[0, i, j], nl.exp(nl.load(w[j])))
    for k in nl.affine_range(4):
        for m in nl.affine_range(16): nl.store(out[1, k, m], nl.exp(nl.load(x[m])))
    return out
'''
    t = schedule(trace_source(source, specs=[ArraySpec((16, 128, 4096))] * 2), 'trn2')
    assert t.bytes_in == 2 * 128 * 16384 * (64 - 3 * 9)


# memory for what is alive at once and this much more, in which loads may stay
ROOM = [(400, True, True, 1, 2), (400, True, True, 2, 0), (0, True, False, 1, 0)]


@pytest.fixture
def rooms(monkeypatch):
    "The rooms to keep loads in, noted."
    found, real = [], dependencies.room_to_keep
    monkeypatch.setattr(dependencies, 'room_to_keep', lambda *a: found.append(real(*a)) or found[-1])
    return found


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


def test_the_count_of_fetches_is_that_of_the_program():
    "Of each load of random programs: its turns, and what it takes."
    for seed in range(20):
        p = memory_program(seed, 30, 'neuronxcc.nki')
        flat = allocation_flat(p)
        fetched = allocation.fetched_table(flat, dependencies.lifetimes_of(flat, len(p.loops))[2], True)
        repeated_units = np.zeros(1)
        allocation._count_fetches(flat, dependencies.walk_of(flat, len(p.loops)), fetched, repeated_units)
        trips = {name: l for name, l in p.trips.items()}
        turns = [int(np.prod([l.trips for l in loops])) for loops, _ in p.walk()]
        assert fetched['left'].sum() == sum(n for n, key in zip(turns, flat.loads['key']) if key >= 0) and trips is not None


def allocation_flat(program):
    return dependencies.flatten(program, CHIPS['trn2'], True)
