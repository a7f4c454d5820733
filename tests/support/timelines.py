"Kernels whose timelines are known, and what must hold of every timeline."
import numpy as np
from kernel_lab.nki import ArraySpec, trace
from kernel_lab.nki.ir.nodes import Access
from dialects import nisa, nl


def ns(us): return round(us * 1000)


def pipeline(steps, n, width, inside):
    "A kernel of `n` iterations that applies a list of engine steps to a tile of `width` columns."
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        outer = None if inside else nl.ndarray((128, width), x.dtype)
        for i in nl.affine_range(n):
            t = nl.ndarray((128, width), x.dtype) if inside else outer
            nisa.dma_copy(t, x[:, nl.ds(i * width, width)])
            for s in steps:
                if s == 'S': nisa.activation(t, nl.exp, t)
                if s == 'V': nisa.tensor_scalar(t, t, nl.add, 1.0)
                if s == 'G': nisa.affine_select(t, [[1, width]], 1, t, 0.0)
            nisa.dma_copy(out[:, nl.ds(i * width, width)], t)
        return out
    return trace(kernel, ArraySpec((128, n * width)))


def product(k, m, n, dtype, keep):
    "A product that loads its left operand once a row block (`keep`) or once a tile."
    def kernel(a, b):
        out = nl.ndarray((m * 128, n * 256), nl.float32, buffer=nl.shared_hbm)
        for i in nl.affine_range(m):
            kept = [nl.load(a[nl.ds(j * 128, 128), nl.ds(i * 128, 128)]) for j in range(k)] if keep else None
            for h in nl.affine_range(n):
                acc = nl.ndarray((128, 256), nl.float32, buffer=nl.psum)
                for j in range(k):
                    left = kept[j] if keep else nl.load(a[nl.ds(j * 128, 128), nl.ds(i * 128, 128)])
                    nisa.nc_matmul(acc, left, nl.load(b[nl.ds(j * 128, 128), nl.ds(h * 256, 256)]))
                nl.store(out[nl.ds(i * 128, 128), nl.ds(h * 256, 256)], nl.copy(acc))
        return out
    return trace(kernel, ArraySpec((k * 128, m * 128), dtype), ArraySpec((k * 128, n * 256), dtype))


def elements(program, a, env):
    "The numbers of the elements that an access means, in its tensor."
    at = np.array(a.offset(env))
    for step, n in a.ap: at = at[..., None] + step * np.arange(n)
    return at.ravel()

def rows_of(timeline):
    "Of each row, in program order: (row, what it reads, what it writes), as (tensor, elements)."
    walked = list(timeline.program.walk())
    for row, (k, turn) in enumerate(zip(timeline.instr, timeline.turn)):
        loops, o = walked[k]
        env = dict(zip([l.name for l in loops], np.unravel_index(turn, [l.trips for l in loops]) if loops else ()))
        told = lambda side: [(a.tensor, elements(timeline.program, a, env))
                             for a in side.values()
                             if isinstance(a, Access)]
        yield row, told(o.ins), told(o.outs)

def assert_after_its_inputs(t):
    """No row starts before the rows that wrote the elements it reads have ended, nor overwrites a lasting tile that
    others still write; counted element by element, apart from the clock."""
    wrote, checked = [np.full(x.size, -1) for x in t.program.tensors], 0
    for row, reads, writes in rows_of(t):
        for k, at in reads:
            before = np.unique(wrote[k][at])
            before = before[(before >= 0) & (before != row)]
            assert (t.end_us[before] <= t.start_us[row] + 1e-9).all(), f'row {row} starts before its input exists'
            checked += len(before)
        for k, at in writes:
            if not t.program.tensors[k].scope and t.program.tensors[k].buffer != 'hbm':
                before = np.unique(wrote[k][at])
                assert (t.end_us[before[before >= 0]]
                        <= t.start_us[row] + 1e-9).all(), f'row {row} overwrites what is still being written'
            wrote[k][at] = row
    return checked
