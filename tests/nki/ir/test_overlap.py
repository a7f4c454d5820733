"""Executor, checks and clock ask where an operand lies; each is held against the elements one by one, on random
programs: negative and double steps, blocks, aliases of another shape or dtype, loops, masks on one axis and on two."""
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from random_programs import TENSORS, instruction, overlaps, random_program, rows_of

from kernel_lab.nki.checks.aliasing import placed_accesses
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.executor.interpreter import run_program
from kernel_lab.nki.executor.memory import Memory, View
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.overlap import blocks_reached, flags_of, in_bytes, touched, touched_bytes_of
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.ir.regions import covers_tile, fills_interval, matrix_box
from kernel_lab.nki.timing import scheduler
from kernel_lab.nki.timing.dependencies import dependency_graph
from kernel_lab.nki.timing.masked_work import box_extents


def whole(k): return Access(k, Affine(), tuple((s, n) for s, n in zip((192, 24, 1)[-len(TENSORS[k].shape):],
                                                                       TENSORS[k].shape)), 0)


@pytest.mark.parametrize('seed', range(60))
def test_the_interpreter_touches_these_elements(seed):
    "What a masked instruction changes in memories of zeros."
    rng = random.Random(seed)
    for _ in range(6):
        o = instruction(rng, [Loop('i', 3, ())])
        fill = Instruction('memset', o.outs, {'value': 1.0}, {}, 'Vector', o.mask, 1)
        zero = [Instruction('memset', {'dst': whole(k)}, {'value': 0.0}, {}, 'Vector') for k in (4, 6)]
        p = Program('p', TENSORS, (*zero, Loop('i', 3, (fill,), 'sequential')), (), chip='trn2')
        memory = run_program(p, [np.zeros(t.shape, np.float32) for t in p.inputs], watch=lambda o, ins: None)
        t, base = TENSORS[o.outs['dst'].tensor], p.base[o.outs['dst'].tensor]
        got = np.flatnonzero(memory.flat[base].view('u4' if t.dtype == 'float32' else 'u2'))
        assert np.array_equal(got, np.unique(np.concatenate([touched(fill, 'dst', {'i': i}) for i in range(3)]))), fill


@pytest.mark.parametrize('seed', range(30))
def test_the_clock_charges_the_elements_that_are_touched(seed):
    "As many where conditions name one axis each; where they name several, the box around them; nothing where none is."
    p = random_program(seed)
    graph = dependency_graph(p, CHIPS['trn2'])
    charged = {(int(k), int(t)): s for k, t, s in zip(graph.instr, graph.turn, graph.share)}
    for k, turn, env in rows_of(p):
        o, a = p.instructions[k], p.instructions[k].outs['dst']
        at, joint = touched(o, 'dst', env), any(len(axes) > 1 for _, axes in o.mask)
        share = charged.get((k, turn), 0.0) * a.free * a.partitions
        extents = box_extents(o, p.walked[k][0], np.array([turn]))[0]
        if not share:
            assert not at.size
            continue
        assert round(share) == extents.prod() and abs(share - round(share)) < 1e-6
        assert at.size <= share if joint or not fills_interval(a.ap) else at.size == round(share)
    assert len(charged) == len(graph.instr)


MODES = [(0, False, 1), (0, True, 1), (0, False, 2), (5, False, 1), (64, False, 1), (400, True, 2)]


def late(seed, ahead, balance, queues, n=14):
    "[(earlier instruction, later one)] that overlap in a random program, and run at once."
    p = random_program(seed, n)
    run = scheduler.run(p, CHIPS['trn2'].but(vector_queues=queues), ahead, balance=balance)
    place = {(int(k), int(t)): n for n, (k, t) in enumerate(zip(run.instr, run.turn))}
    rows, found = overlaps(p)
    at = lambda n: place[rows[n][:2]]
    return [(p.instructions[rows[m][0]], p.instructions[rows[n][0]]) for m, n in found
            if run.rows.end[at(m)] > run.rows.start[at(n)] + 1e-6]


@pytest.mark.parametrize('mode', MODES, ids=str)
@pytest.mark.parametrize('seed', [*range(8), 83, 109, 118, 126])
def test_what_overlaps_is_in_order(seed, mode):
    """On every lane: in program order and looking ahead, where the compiler chooses engines, with a second queue of
    Vector. In the last seeds the last of several reads runs first."""
    assert not late(seed, *mode)


@pytest.mark.slow
@pytest.mark.parametrize('mode', MODES, ids=str)
def test_what_overlaps_is_in_order_in_many_programs(mode):
    assert not [seed for seed in range(1000) if late(seed, *mode, 20)]


def test_a_write_waits_for_the_reads_of_both_engines():
    "In program order: a long copy that Vector makes, and a short one of the same tile that Scalar takes."
    long = Tensor('long', (8, 24 * 640), 'float32', 'sbuf')
    copy = lambda dst, src: Instruction('tensor_copy', {'dst': dst}, {'src': src})
    body = (Instruction('memset', {'dst': whole(6)}, {'value': 0.0}, {}, 'GpSimd'),
            copy(Access(len(TENSORS), Affine(), ((24 * 640, 8), (24, 640), (1, 24)), 0),
                 Access(6, Affine(), ((24, 8), (0, 640), (1, 24)), 0)),
            copy(Access(4, Affine(), ((24, 8), (1, 24)), 0), whole(6)),
            Instruction('dma_copy', {'dst': whole(6)}, {'src': Access(0, Affine(), ((24, 8), (1, 24)))}))
    run = scheduler.run(Program('p', (*TENSORS, long), body, (), chip='trn2'), CHIPS['trn2'], balance=True)
    assert len(set(run.rows.lane[1:3])) == 2 and run.rows.end[1] > run.rows.end[2]
    assert run.rows.start[3] >= run.rows.end[1]


def edge_rows(graph):
    return {(int(m), n) for n in range(len(graph.instr)) for m in graph.edges.row[graph.edges.first[n]:
                                                                                 graph.edges.first[n + 1]]}


@pytest.mark.parametrize('seed', range(20))
def test_boxes_wait_for_what_they_overlap_only(seed):
    "Rows and columns of one tensor: an edge, or a way over edges, exactly where bytes are shared."
    rng, body = random.Random(seed), []
    for _ in range(12):
        h, w = rng.randrange(1, 5), rng.randrange(1, 7)
        at = lambda k, n, m: Access(k, Affine(rng.randrange(n - h + 1) * m + rng.randrange(m - w + 1)), ((m, h), (1, w)),
                                    0 if k == 6 else None)
        near, far = at(6, 8, 24), at(7, 12, 32)
        body.append(Instruction('dma_copy', *(({'dst': far}, {'src': near}) if rng.random() < 0.5 else
                                              ({'dst': near}, {'src': far})), line=1))
    p = Program('boxes', TENSORS, tuple(body), (), chip='trn2')
    graph, (_, found) = dependency_graph(p, CHIPS['trn2']), overlaps(p)
    edges = edge_rows(graph)
    assert edges <= set(found), sorted(edges - set(found))


@pytest.mark.parametrize('seed', range(200))
def test_the_box_around_an_access(seed):
    "Every element of random axes lies in the matrix box, for every first element."
    rng = random.Random(seed)
    row = rng.choice((5, 8, 24))
    ranges = tuple((rng.choice((1, -1, 2, row, -row, row + 1, row - 1, 3)), lo := rng.randrange(3), lo + rng.randrange(4))
                   for _ in range(rng.randrange(1, 4)))
    top, left, down, along = matrix_box(ranges, row)
    cells = [sum(x) for x in product(*([s * k for k in range(lo, hi + 1)] for s, lo, hi in ranges))]
    for first in range(40, 40 + row):
        y, x = divmod(first + top * row + left, row)
        if x + along >= row: x, along_, down_ = 0, row - 1, down + (x + along) // row
        else: along_, down_ = along, down
        assert all(y <= (first + c) // row <= y + down_ and x <= (first + c) % row <= x + along_ for c in cells)


@pytest.mark.parametrize('seed', range(100))
def test_what_fills_an_interval(seed):
    rng = random.Random(seed)
    ap = tuple((rng.choice((0, 1, 2, 3, 4, 6, -1, 8, 12)), rng.choice((1, 2, 3, 4))) for _ in range(rng.randrange(1, 4)))
    cells = [sum(x) for x in product(*([s * k for k in range(n)] for s, n in ap))]
    full = sorted(cells) == list(range(min(cells), min(cells) + len(cells)))
    assert fills_interval(ap) == full


@pytest.mark.parametrize('seed', range(100))
def test_flags_of_all_iterations(seed):
    "Views of the flags are the bytes of every iteration, one by one."
    rng, loops = random.Random(seed), [Loop('i', 3, ()), Loop('j', 2, ())]
    o = next(o for o in iter(lambda: instruction(rng, loops), None) if not o.mask)
    p = Program('p', TENSORS, (), ())
    for name, a in (*o.outs.items(), *((k, a) for k, a in o.ins.items() if isinstance(a, Access))):
        t = TENSORS[p.base[a.tensor]]
        flags = np.zeros(t.size * 4, bool)
        for view in flags_of(flags, in_bytes(p, a), {'i': 3, 'j': 2}): view[...] = True
        each = [touched_bytes_of(p, o, name, {'i': i, 'j': j}) for i in range(3) for j in range(2)]
        assert np.array_equal(np.flatnonzero(flags), np.unique(np.concatenate(each)))


@pytest.mark.parametrize('seed', range(100))
def test_what_the_executor_takes_as_written(seed):
    "After a random write without a mask."
    rng, near = random.Random(seed), Tensor('near', (2, 6), 'float32', 'sbuf')
    steps = lambda: tuple((rng.choice((0, 1, 2, 3, 6, 11, -1)), rng.choice((1, 2, 3, 6))) for _ in range(2))
    at = lambda a: Access(0, Affine(-min(0, a.span()[0])), a.ap, 0)
    w, r = (at(Access(0, Affine(), steps())) for _ in range(2))
    if seed < 5: w = Access(0, Affine(), ((11, 2), (0, 6)), 0)      # from the first to the last, and nothing between
    if any(a.offset.const + a.span()[1] >= 12 for a in (w, r)): return
    wrote, read = (set(touched(Instruction('memset', {'dst': a}, {}), 'dst', {}).tolist()) for a in (w, r))
    memory = Memory(Program('p', (near,), (), (), chip='trn2'))
    memory.allocate(0)
    View(memory, w).mark_written(w.offset.const)
    assert View(memory, r).is_written(r.offset.const) == (read <= wrote)
    assert covers_tile(near, w) == (len(wrote) == 12 == w.partitions * w.free)


def test_an_index_may_reach_several_blocks():
    "An access through an index waits for writes of every block that it may be in."
    number, at = Tensor('n', (1, 1), 'int32', 'sbuf'), ((24, 8), (1, 24))
    tensors = (*TENSORS, number)
    find = Access(4, Affine(), at, index=Access(8, Affine(), ((0, 8), (0, 24))), by=192, most=3)
    body = (Instruction('memset', {'dst': Access(8, Affine(), ((1, 1), (1, 1)))}, {'value': 2.0}, {}, 'Vector'),
            *(Instruction('memset', {'dst': Access(4, Affine(192 * k), at)}, {'value': 0.0}, {}, 'GpSimd')
              for k in range(3)),
            Instruction('tensor_copy', {'dst': Access(6, Affine(), at)}, {'src': find}, {}, 'Vector'))
    p = Program('indexed', tensors, body, (), chip='trn2')
    assert [*blocks_reached(p, find)] == [0, 1, 2]
    assert {(k, 4) for k in range(4)} <= edge_rows(dependency_graph(p, CHIPS['trn2']))


@pytest.mark.parametrize('seed', range(60))
def test_the_place_of_an_access(seed):
    "The smallest box around what is touched, in partitions and bytes from the place of its block on."
    rng, places = random.Random(seed), {4: ((0, 0), (32, 512), (64, 4096)), 6: ((0, 9000),)}
    tensors = tuple(replace(t, places=places.get(k, ())) for k, t in enumerate(TENSORS))
    p, loops = Program('p', tensors, (), ()), [Loop('i', 3, ())]
    o = next(o for o in iter(lambda: instruction(rng, loops), None) if not o.mask)
    for name, a in (*o.outs.items(), *((k, a) for k, a in o.ins.items() if isinstance(a, Access))):
        for i in range(3 if places.get(p.base[a.tensor]) else 0):
            at, t = touched_bytes_of(p, o, name, {'i': i}), tensors[p.base[a.tensor]]
            block, inside = at // (t.tile_bytes * t.partitions), at % (t.tile_bytes * t.partitions)
            start, byte = places[p.base[a.tensor]][block[0]]
            (placed,) = placed_accesses(p, a)
            rows, columns = inside // t.tile_bytes, inside % t.tile_bytes
            assert placed.at({'i': i}, places[placed.k]) == (block[0], start + rows.min(), byte + columns.min(),
                                                             byte + columns.max() + 1)
            assert placed.partitions == rows.max() - rows.min() + 1
