"""Executor, checks and clock ask where an operand lies; each is held against the elements one by one, on random
programs: negative and double steps, blocks, aliases of another shape or dtype, loops, masks on one axis and on two."""
import random
from itertools import product

import numpy as np
import pytest

from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.executor.interpreter import run_program
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.overlap import blocks_reached, touched, touched_bytes_of
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.ir.regions import fills_interval, matrix_box
from kernel_lab.nki.timing import scheduler
from kernel_lab.nki.timing.dependencies import dependency_graph
from kernel_lab.nki.timing.masked_work import box_extents

TENSORS = (
    Tensor('h', (16, 24), 'float32', 'hbm', 'input'), Tensor('h_t', (24, 16), 'float32', 'hbm', alias=0),
    Tensor('h_16', (16, 48), 'bfloat16', 'hbm', alias=0), Tensor('h_1', (384,), 'float32', 'hbm', alias=0),
    Tensor('b', (3, 8, 24), 'float32', 'sbuf', par=1), Tensor('b_16', (3, 8, 48), 'bfloat16', 'sbuf', par=1, alias=4),
    Tensor('c', (8, 24), 'float32', 'sbuf'), Tensor('g', (12, 32), 'float32', 'hbm', 'input'))
HBM, CHIP = (0, 1, 2, 3, 7), (4, 5, 6)


def axes_of(rng, t, counts):
    "Steps and a first element for an access of so many elements along each axis, partitions first on the chip."
    if t.buffer == 'hbm':
        steps = [rng.choice((1, -1, 2, t.shape[-1], -t.shape[-1], 2 * t.shape[-1], t.shape[-1] + 1, 3)) for _ in counts]
        low = sum(min(0, s * (n - 1)) for s, n in zip(steps, counts))
        high = sum(max(0, s * (n - 1)) for s, n in zip(steps, counts))
        return (steps, rng.randrange(-low, t.size - high)) if high - low < t.size else None
    row, down = t.shape[-1], rng.choice((1, 1, 2, -1))
    steps = [down * row, *(rng.choice((1, 1, 2, -1, 3)) for _ in counts[1:])]
    ends = [(min(0, s * (n - 1)), max(0, s * (n - 1))) for s, n in zip(steps, counts)]
    free = [sum(e[k] for e in ends[1:]) for k in (0, 1)]
    if free[1] - free[0] >= row or abs(down) * (counts[0] - 1) >= 8: return None
    partition = rng.randrange(-ends[0][0] // row, 8 - ends[0][1] // row)
    block = rng.randrange(t.size // t.tile_size)
    return steps, block * t.tile_size + partition * row + rng.randrange(-free[0], row - free[1])


def access(rng, k, counts, loops):
    "A random access to tensor `k` that stays inside it in all iterations (and on the chip in its rows), or None."
    t, found = TENSORS[k], axes_of(rng, TENSORS[k], counts)
    if found is None: return None
    steps, first = found
    a = Access(k, Affine(first), tuple(zip(steps, counts)), None if t.buffer == 'hbm' else 0)
    for l in loops:
        moved = rng.choice((0, t.tile_size, -t.tile_size) if t.buffer != 'hbm' else (0, 1, -2, t.shape[-1], 17))
        b = Access(k, Affine(first, (*a.offset.terms, (l.name, moved))), a.ap, a.par)
        (lo, hi), (low, high) = b.offset.bounds({l.name: l.trips for l in loops}), b.span()
        if moved and 0 <= lo + low and hi + high < t.size: a = b
    return a


def mask(rng, counts, loops):
    "No, one or two random conditions, on one axis or on two."
    some = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        ks = rng.sample(range(-len(counts), 0), rng.choice((1, 1, 2)))
        axes = tuple((k, rng.choice((1, -1, 2, -3))) for k in ks)
        far = sum(abs(c) * counts[k] for k, c in axes)
        terms = tuple((l.name, rng.choice((-1, 1, 2))) for l in loops if rng.random() < 0.5)
        some.append((Affine(rng.randrange(-far, far + 1), terms), axes))
    return tuple(some)


def instruction(rng, loops):
    while True:
        counts = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.choice((2, 2, 3))))
        op = rng.choice(('dma_copy', 'dma_copy', 'tensor_copy', 'memset'))
        places = [access(rng, rng.choice(CHIP if op != 'dma_copy' else HBM + CHIP), counts, loops) for _ in range(2)]
        if None in places: continue
        ins = {'value': 1.0} if op == 'memset' else {'src': places[1]}
        engine = '' if op == 'dma_copy' else rng.choice(('Vector', 'GpSimd'))
        return Instruction(op, {'dst': places[0]}, ins, {}, engine, mask(rng, counts, loops), 1)


def random_program(seed, n=14):
    rng, body = random.Random(seed), []
    while len(body) < n:
        loops = [Loop(f'i{len(body)}{d}', rng.randrange(1, 4), ()) for d in range(rng.randrange(3))]
        item = tuple(instruction(rng, loops) for _ in range(rng.randrange(1, 4)))
        for l in reversed(loops): item = (Loop(l.name, l.trips, item, 'sequential'),)
        body += item
    return Program(f'random {seed}', TENSORS, tuple(body), (), chip='trn2')


def rows_of(program):
    "(number of the instruction, repetition, loop values) of every row, in program order."
    count = [0] * len(program.instructions)
    def walk(body, env, number):
        for o in body:
            if not isinstance(o, Loop):
                yield number[0], count[number[0]], dict(env)
                count[number[0]] += 1
                number[0] += 1
                continue
            at = number[0]
            for i in range(o.trips):
                number[0] = at
                yield from walk(o.body, {**env, o.name: i}, number)
    return [*walk(program.body, {}, [0])]


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


def overlaps(p):
    "[(earlier row, later row)] that touch a byte of one memory, one of them writing, by sets of bytes."
    rows, touches = rows_of(p), []
    for n, (k, turn, env) in enumerate(rows):
        o = p.instructions[k]
        for side, writes in ((o.ins, False), (o.outs, True)):
            for name, a in side.items():
                if isinstance(a, Access):
                    at = touched_bytes_of(p, o, name, env)
                    touches.append((n, p.base[a.tensor], writes, set(at.tolist())))
    found = {(m, n) for m, b, w, x in touches for n, c, v, y in touches if m < n and b == c and (w or v) and x & y}
    return rows, sorted(found)


@pytest.mark.parametrize('ahead', [0, 64], ids=['in order', 'ahead'])
@pytest.mark.parametrize('seed', range(25))
def test_what_overlaps_is_in_order(seed, ahead):
    "On every lane, and where a scheduler may look ahead."
    p = random_program(seed)
    run = scheduler.run(p, CHIPS['trn2'], ahead)
    place = {(int(k), int(t)): n for n, (k, t) in enumerate(zip(run.instr, run.turn))}
    rows, found = overlaps(p)
    for m, n in found:
        a, b = (place[rows[x][:2]] for x in (m, n))
        assert run.rows.end[a] <= run.rows.start[b] + 1e-6, (seed, p.instructions[rows[m][0]],
                                                             p.instructions[rows[n][0]])


@pytest.mark.parametrize('seed', [144, 173, 189, 233])
def test_a_write_waits_for_every_read_ahead(seed):
    "Of several reads by one lane the last may run first."
    test_what_overlaps_is_in_order(seed, 64)


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
