"""Random programs whose tiles take one another's memory, and what is alive at once in their timelines."""
import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
from random_programs import rows_of

from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.liveness import value_lives
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor, accesses
from kernel_lab.nki.ir.program import Program

HBM = (Tensor('x', (128, 2048), 'float32', 'hbm', 'input'), Tensor('y', (128, 2048), 'float32', 'hbm'))
BANK_ELEMENTS = 512                                                             # of float32


def columns(k, t, first, end): return Access(k, Affine(first), ((t.shape[-1], t.partitions), (1, end - first)), 0)


def part(rng, k, t, whole):
    "All of a tile, or some of its columns."
    width = t.shape[-1] if whole or t.shape[-1] < 4 else rng.randrange(1, t.shape[-1] + 1)
    first = rng.randrange(t.shape[-1] - width + 1)
    return columns(k, t, first, first + width)


def pieces(rng, k, t):
    "One to three accesses that cover a tile."
    inner = rng.sample(range(1, t.shape[-1]), min(rng.choice((0, 0, 1, 2)), t.shape[-1] - 1))
    ends = [0, *sorted(inner), t.shape[-1]]
    return [columns(k, t, *x) for x in zip(ends, ends[1:])]


def shaped(a, width): return replace(a, ap=(a.ap[0], (1, width)))


def memory_program(seed, n=20, dialect='nki'):
    """Tiles of random widths: written, at once or in pieces, then read and written a few times, by every engine and DMA;
    some in loops, that begin anew in each iteration."""
    rng, tensors = random.Random(seed), [*HBM]

    def tile(scope):
        buffer = rng.choice(('sbuf', 'sbuf', 'sbuf', 'psum'))
        width = rng.choice((1, 3, 16, 40, 200, 512, 512, 1024 if buffer == 'sbuf' else 700))
        tensors.append(Tensor(f't{len(tensors)}', (rng.choice((4, 128)), width), 'float32', buffer, scope=scope))
        return len(tensors) - 1

    def write(dst, sources):
        k = dst.tensor
        partitions, width = dst.shape
        fits = [s for s in sources if tensors[s].partitions == partitions and tensors[s].shape[1] >= width]
        kind = rng.choice(('memset', 'load', 'copy', 'copy', 'add')) if fits else rng.choice(('memset', 'load'))
        if kind == 'load' and tensors[k].buffer == 'sbuf':
            column = rng.randrange(0, 2048 - width, 512) if width <= 1024 else 0
            src = Access(0, Affine(column), ((2048, partitions), (1, width)))
            return Instruction('dma_copy', {'dst': dst}, {'src': src}, line=1)
        if kind in ('memset', 'load'):
            return Instruction('memset', {'dst': dst}, {'value': 1.0}, {}, rng.choice(('Vector', 'GpSimd')), line=1)
        some = [shaped(part(rng, s, tensors[s], True), width) for s in rng.choices(fits, k=2)]
        if kind == 'copy':
            engine = rng.choice(('', '', 'Vector', 'Scalar', 'GpSimd'))
            return Instruction('tensor_copy', {'dst': dst}, {'src': some[0]}, {}, engine, line=1)
        return Instruction('tensor_tensor', {'dst': dst}, dict(zip(('data1', 'data2'), some)), {'op': 'add'},
                           rng.choice(('Vector', 'GpSimd')), line=1)

    def store(k):
        src = part(rng, k, tensors[k], rng.random() < 0.5)
        dst = Access(1, Affine(rng.randrange(0, 1024)), ((2048, src.shape[0]), (1, src.shape[1])))
        return Instruction('dma_copy', {'dst': dst}, {'src': src}, line=1)

    def body(loops, depth, count):
        alive = []
        for _ in range(count):
            if depth and rng.random() < 0.2:
                name = f'i{rng.randrange(10**9)}'
                yield Loop(name, rng.randrange(2, 5), tuple(body((*loops, name), depth - 1, rng.randrange(3, 8))),
                           'sequential')
                continue
            choice = rng.random()
            if choice < 0.5 or not alive:
                alive.append(tile(loops))
                for dst in pieces(rng, alive[-1], tensors[alive[-1]]): yield write(dst, alive[:-1])
            elif choice < 0.75:
                k = rng.choice(alive)
                yield write(part(rng, k, tensors[k], rng.random() < 0.3), alive)
            else: yield store(rng.choice([k for k in alive if tensors[k].buffer == 'sbuf'] or alive))
            if len(alive) > 4: alive.pop(rng.randrange(len(alive) - 1))
    inside = tuple(body((), 2, n))
    return Program(f'memory {seed}', tuple(tensors), inside, (), dialect, 'trn2')


def used_units(chip, t):
    "Bytes a partition of SBUF, or banks of PSUM, that a tile takes."
    return float(-(-t.tile_bytes // chip.psum_bank_bytes)) if t.buffer == 'psum' else float(t.tile_bytes)


def most(events):
    "The greatest sum of (time, units) that come and, negative, go; what goes at a time goes before what comes."
    when, change = (np.array(x) for x in zip(*events))
    return float(np.cumsum(change[np.lexsort((change, np.round(when, 6)))]).max(initial=0))


def load_key(program, row):
    "What a load fetches and where it puts it; None of other rows."
    k, _, env = row
    o = program.instructions[k]
    if o.op != 'dma_copy' or program.tensors[o.ins['src'].tensor].buffer != 'hbm': return None
    src, dst = o.ins['src'], o.outs['dst']
    return src.tensor, src.offset(env), src.ap, dst.offset(env), dst.ap, program.tensors[dst.tensor].shape


def peaks(program, chip, start, end):
    """{buffer: the most units alive at once}: each value from the start of its first instruction to the end of its last,
    where `start` and `end` are times by row. A value whose first row has none (a load that was left out) has the memory
    of the one that was loaded alike before."""
    rows, spans, touched, loaded = rows_of(program), {}, defaultdict(list), {}
    for n, (k, _, env) in enumerate(rows):
        for a in accesses(program.instructions[k]):
            t = program.tensors[program.base[a.tensor]]
            if t.buffer != 'hbm': touched[program.base[a.tensor], a.offset(env) // t.tile_size].append(n)
    for number, v in enumerate(value_lives(program)):
        key = load_key(program, rows[v.first])
        if v.first not in start: number = loaded[key]
        elif key: loaded[key] = number
        mine = [n for n in touched[v.tensor, v.block] if v.first <= n <= v.last and n in start]
        spans.setdefault(number, (program.tensors[v.tensor], []))[1].extend(mine)
    events = defaultdict(list)
    for t, mine in spans.values():
        units = used_units(chip, t)
        events[t.buffer] += [(min(start[n] for n in mine), units), (max(end[n] for n in mine), -units)]
    return {buffer: most(x) for buffer, x in events.items()}
