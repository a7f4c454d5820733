"""Batched and interpreted execution give the same bits, for every row of the instruction table, in a loop, on values that
hide nothing: whole integers over all their range, infinities, NaN, −0, subnormals and the largest finite numbers.

What moves bits is compared bit by bit. What computes is, too, but a NaN equals any other NaN: IEEE 754 leaves the sign and
payload of a computed NaN to the implementation, numpy's vector and remainder loops differ in it, and no plan is made
for a program that could look at it (one that reads a memory as another dtype)."""
import ml_dtypes
import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import check, interpret, jit, trace
from kernel_lab.nki.chip.dtypes import NUMPY
from kernel_lab.nki.executor import plan, vectorized
from kernel_lab.nki.ir.instructions import INSTRUCTIONS
from kernel_lab.nki.ir.semantics import ACT, ALU, REDUCE
from kernel_lab.nki.ir.semantics_collective import COLLECTIVES
from kernel_lab.nki.lang import isa as nisa, language as nl, legacy_language as ol
from kernel_lab.nki.validate import conformance
from trials import all_trials

MOVES = {'tensor_copy', 'dma_copy', 'dma_transpose', 'nc_stream_shuffle', 'local_gather', 'nc_n_gather', 'register_move',
         'register_load', 'register_store', 'select', 'dropout', 'rng', 'memset', 'iota'}    # of one dtype: all bits
SUMS = {'nc_matmul': 2.0**-18}       # whose order batching may change: a tolerance relative to Σ |products|
INTERPRETED = {'nc_matmul_mx', 'quantize_mx', 'nonzero_with_count', 'set_rng_seed', 'rand_set_state', 'rand_get_state',
               'sendrecv', *COLLECTIVES}                       # rows that no plan takes: there is one path
TURNS = 3
FLOATS = ('float32', 'bfloat16', 'float16', 'float8_e4m3', 'float8_e5m2')
WHOLE = ('int32', 'uint32', 'int16', 'uint16', 'int8', 'uint8')


# --- values ---

def nasty(shape, dtype, seed=0):
    "Values of a dtype: a third of them its extremes, a third any bits, the rest ordinary numbers."
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    any_bits = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind)[..., 0]
    if kind == bool: return any_bits.view(np.uint8) % 2 == 1
    if kind.names: return any_bits
    if kind.kind in 'iu':
        most = np.iinfo(kind)
        ends = [most.min, most.max, most.max - 1, 0, 1, most.max // 2 + 1, min(most.max, 2**24 + 1), max(most.min, -1)]
        ends, usual = np.array(ends, kind), rng.integers(0, 9, shape).astype(kind)
    else:
        most, least = ml_dtypes.finfo(kind), np.array([1], f'u{kind.itemsize}').view(kind)[0]
        with np.errstate(all='ignore'):
            ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, most.max, -most.max, most.tiny, 1.0, -1.0, least, -least],
                            np.float64).astype(kind)
            usual = rng.normal(size=shape).astype(kind)
    return np.choose(rng.integers(0, 3, shape), [rng.choice(ends, shape), any_bits, usual])


def bits_of(x, exact):
    "The bits of an array; unless `exact`, every NaN as the same one."
    x = np.ascontiguousarray(x)
    bits = x.view(f'u{x.dtype.itemsize}').copy()
    if not exact and not x.dtype.names and x.dtype.kind not in 'iub': bits[np.isnan(x)] = 1
    return bits


# --- both paths ---

def on_both_paths(program, arrays):
    "(interpreted outputs, batched outputs) of a program; the latter None where there is no plan. Nothing falls back."
    want, made = interpret(program, *arrays), plan.plan_of(program)
    return want, made and vectorized._run_plan(*made, arrays, 2)


def assert_same(program, arrays, exact=False, near=None, planned=True):
    want, got = on_both_paths(program, arrays)
    assert got is not None or not planned, f'no plan:\n{program}'
    for k, (a, b) in enumerate(zip(want, got or want, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape
        off = bits_of(a, exact) != bits_of(b, exact)
        if near is not None: off &= ~(np.abs(a.astype(np.float64) - b) <= near)
        where = tuple(np.argwhere(off)[0]) if off.any() else ()
        assert not off.any(), f'output {k}: {off.sum()} differ, interpreted {a[where]!r}, batched {b[where]!r} at ' \
                              f'{where}\n{program}'
    return got is not None


# --- every trial of every row, in a loop ---

INDICES = {'local_gather': (1,), 'nc_n_gather': (1,), 'dma_copy': (), 'topk': ()}    # operands that are places

def in_a_loop(use, answers, buffer='sbuf', old=False):
    "The kernel use(*destinations, *tiles) for each entry of the inputs' first axis."
    lang = ol if old else nl
    def kernel(*xs):
        outs = [lang.ndarray((TURNS, *y.shape), y.dtype, buffer=lang.shared_hbm) for y in answers]
        for i in lang.affine_range(TURNS):
            tiles = [lang.load(x[i]) for x in xs]
            if old:
                got = use(*tiles)
                for o, t in zip(outs, got if isinstance(got, tuple) else (got,)): ol.store(o[i], t)
                continue
            dsts = [nl.ndarray(y.shape, y.dtype, buffer=buffer) for y in answers]
            use(*dsts, *tiles)
            for o, d in zip(outs, dsts): nisa.dma_copy(o[i], d if buffer == 'sbuf' else nl.copy(d))
        return tuple(outs)
    return jit(kernel, dialect='neuronxcc.nki') if old else kernel


def looped(case):
    "The kernel of a trial in a loop, or None where its way has no loop around it (ranks, cores, HBM as it comes)."
    way = getattr(case.way, 'func', case.way)
    if way is conformance.on_tiles:
        return in_a_loop(case.use, case.answers, getattr(case.way, 'keywords', {}).get('buffer', 'sbuf'))
    if way is conformance.in_legacy_dialect: return in_a_loop(case.use, case.answers, old=True)


def test_every_row_is_tried_in_a_loop():
    tried = {c.row for cs in all_trials().values() for c in cs if looped(c)}
    assert set(INSTRUCTIONS) - tried == {'sendrecv', 'dma_copy', *COLLECTIVES}
