"""Random programs for tests of what accesses touch: negative and double steps, blocks, aliases of another shape or
dtype, loops, masks on one axis and on two."""
import random

from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.overlap import touched_bytes_of
from kernel_lab.nki.ir.program import Program

TENSORS = (
    Tensor('h', (16, 24), 'float32', 'hbm', 'input'), Tensor('h_t', (24, 16), 'float32', 'hbm', alias=0),
    Tensor('h_16', (16, 48), 'bfloat16', 'hbm', alias=0), Tensor('h_1', (384,), 'float32', 'hbm', alias=0),
    Tensor('b', (3, 8, 24), 'float32', 'sbuf', par=1), Tensor('b_16', (3, 8, 48), 'bfloat16', 'sbuf', par=1, alias=4),
    Tensor('c', (8, 24), 'float32', 'sbuf'), Tensor('g', (12, 32), 'float32', 'hbm', 'input'),
    Tensor('h_3', (2, 8, 24), 'float32', 'hbm', alias=0), Tensor('c_3', (8, 6, 4), 'float32', 'sbuf', alias=6),
    Tensor('b_3', (3, 8, 2, 12), 'float32', 'sbuf', par=1, alias=4))
HBM, CHIP = (0, 1, 2, 3, 7, 8), (4, 5, 6, 9, 10)


def axes_of(rng, t, counts):
    "Steps and a first element for an access of so many elements along each axis, partitions first on the chip."
    if t.buffer == 'hbm':
        steps = [rng.choice((1, -1, 2, t.shape[-1], -t.shape[-1], 2 * t.shape[-1], t.shape[-1] + 1, 3)) for _ in counts]
        low = sum(min(0, s * (n - 1)) for s, n in zip(steps, counts))
        high = sum(max(0, s * (n - 1)) for s, n in zip(steps, counts))
        return (steps, rng.randrange(-low, t.size - high)) if high - low < t.size else None
    row, down = t.tile_size // t.shape[t.par], rng.choice((1, 1, 2, -1))
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
        first = rng.choice((-2**38, 2**38)) if rng.random() < 0.05 else rng.randrange(-far, far + 1)
        some.append((Affine(first, terms), axes))
    return tuple(some)


def instruction(rng, loops):
    while True:
        counts = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.choice((2, 2, 3))))
        op = rng.choice(('dma_copy', 'dma_copy', 'tensor_copy', 'tensor_copy', 'tensor_tensor', 'memset'))
        places = [access(rng, rng.choice(CHIP if op != 'dma_copy' else HBM + CHIP), counts, loops) for _ in range(3)]
        if None in places: continue
        dst, one, other = places
        ins = {'memset': {'value': 1.0}, 'tensor_tensor': {'data1': one, 'data2': other}}.get(op, {'src': one})
        engine = '' if op == 'dma_copy' else rng.choice(('Vector', 'GpSimd', *('', '', 'Scalar')[:3 * (op == 'tensor_copy')]))
        return Instruction(op, {'dst': dst}, ins, {'op': 'add'} if op == 'tensor_tensor' else {}, engine,
                           mask(rng, counts, loops), 1)


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


def overlaps(p):
    "(rows, [(earlier row, later row)] that touch a byte of one memory, one of them writing), by sets of bytes."
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
