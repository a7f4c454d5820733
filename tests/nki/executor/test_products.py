"""What a plan makes of matmuls: transposes that are left out, products that take the rows of a strip, tiles that stand side
by side. Every kind gives the numbers of the interpreter; a matmul within the tolerance of its sums."""
from unittest import mock

import numpy as np
import pytest
from kernel_lab.nki import execute, interpret, trace
from kernel_lab.nki.chip.dtypes import NUMPY
from kernel_lab.nki.executor import loop_passes, plan, vectorized
from kernel_lab.nki.lang import isa as nisa, language as nl, legacy_language as ol
from kernel_maker import bits_of

WAYS = ('nc_transpose', 'on vector', 'identity')


def turned(out, x, eye, how):
    "out = x with its axes swapped."
    if how == 'identity': nisa.nc_matmul(out, x, eye, is_transpose=True)
    else: nisa.nc_transpose(out, x, engine=nisa.vector_engine if how == 'on vector' else nisa.tensor_engine)


def product(how, dtype='float32', after=None, operand='stationary', one=np.eye(32, dtype=np.float32)):
    "x @ w, x transposed tile by tile for the matrix engine; `after` changes what was transposed before it is used."
    def kernel(x, w):
        out = nl.ndarray((x.shape[0], w.shape[1]) if operand == 'stationary' else (w.shape[1], x.shape[0]), nl.float32,
                         buffer=nl.shared_hbm)
        eye = nl.load(ol.shared_constant(one.astype(NUMPY[dtype]))) if how == 'identity' else None
        for m in nl.affine_range(x.shape[0] // 32):
            rows = nl.load(x[nl.ds(m * 32, 32), :])
            sums = nl.ndarray((32, w.shape[1]) if operand == 'stationary' else (w.shape[1], 32), nl.float32,
                              buffer=nl.psum)
            for k in nl.affine_range(x.shape[1] // 32):
                there = nl.ndarray((32, 32), x.dtype, buffer=nl.sbuf if how == 'on vector' else nl.psum)
                turned(there, rows[:, nl.ds(k * 32, 32)], eye, how)
                mine = nl.copy(there)
                if after == 'source': nisa.tensor_scalar(rows[:, nl.ds(k * 32, 32)], mine, nl.multiply, 3.0)
                if after == 'tile': nisa.tensor_scalar(mine, mine, nl.multiply, 3.0)
                side = nl.load(w[nl.ds(k * 32, 32), :])
                if operand == 'stationary': nisa.nc_matmul(sums, mine, side)
                else: nisa.nc_matmul(sums, side, mine)
            here = out[nl.ds(m * 32, 32), :] if operand == 'stationary' else out[:, nl.ds(m * 32, 32)]
            nl.store(here, nl.copy(sums))
        return out
    return kernel


def inputs(dtype='float32', m=128, k=96, n=64, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s).astype(NUMPY[dtype]) for s in ((m, k), (k, n))]


def planned(program, finite=True):
    return [o for o in plan.build_plan(program, finite)[0].ops if o]


def assert_near(program, xs, threads=(1, 2)):
    "The batched outputs are the interpreted ones, but for the order of sums; what is not finite is so in the same places."
    w, = interpret(program, *xs)
    for count in threads:
        y, = execute(program, *xs, threads=count)
        assert (np.isnan(w) == np.isnan(y)).all()
        np.testing.assert_allclose(y, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('operand', ('stationary', 'moving'))
@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
@pytest.mark.parametrize('chip', ('trn1', 'trn2'))
@pytest.mark.parametrize('how', WAYS)
def test_transposes_into_products_are_left_out(how, chip, dtype, operand):
    xs = inputs(dtype)
    program = trace(product(how, dtype, operand=operand), *xs, chip=chip)
    left, = planned(program)
    exact = chip == 'trn2' or how == 'on vector'
    assert left.op == 'nc_matmul' and left.attrs.get('finite') == (None if exact else [operand])
    assert len(planned(program, finite=False)) > 1
    assert_near(program, xs)


@pytest.mark.parametrize('bad', (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize('chip', ('trn1', 'trn2'))
@pytest.mark.parametrize('how', WAYS)
def test_what_is_not_finite_spoils_what_it_spoils_on_the_chip(how, chip, bad):
    "A transpose that multiplies spreads an infinity over its tile: a plan that left it out would keep it in its row."
    xs = inputs()
    xs[0][40, 7] = bad
    program = trace(product(how), *xs, chip=chip)
    assert_near(program, xs)
    spoilt = (~np.isfinite(execute(program, *xs)[0])).any(1).sum()
    assert spoilt == (1 if chip == 'trn2' or how == 'on vector' else 32)


@pytest.mark.parametrize('after', ('source', 'tile'))
@pytest.mark.parametrize('how', WAYS)
def test_what_changes_before_it_is_used_stays(how, after):
    xs = inputs()
    program = trace(product(how, after=after), *xs, chip='trn2')
    assert len(planned(program)) > 1
    assert_near(program, xs)


def test_another_matrix_is_no_transpose():
    "A permutation with a hole, as data: the plan multiplies."
    one = np.eye(32, dtype=np.float32)[::-1].copy()
    xs = inputs()
    program = trace(product('identity', one=one), *xs, chip='trn2')
    assert len(planned(program)) > 1
    assert_near(program, xs)


def test_products_take_the_rows_of_a_strip():
    "Rows that are normalised and multiplied: one product for several blocks of rows, elementwise work a block at a time."
    def kernel(x, w):
        out = nl.ndarray((x.shape[0], w.shape[1]), nl.float32, buffer=nl.shared_hbm)
        for m in nl.affine_range(x.shape[0] // 128):
            t = nl.load(x[nl.ds(m * 128, 128), :])
            t = nl.multiply(nl.exp(nl.multiply(t, 0.1)), 0.5)
            sums = nl.ndarray((128, w.shape[1]), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(x.shape[1] // 128):
                there = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
                nisa.nc_transpose(there, t[:, nl.ds(k * 128, 128)])
                nisa.nc_matmul(sums, nl.copy(there), nl.load(w[nl.ds(k * 128, 128), :]))
            nl.store(out[nl.ds(m * 128, 128), :], nl.copy(sums))
        return out
    xs = inputs(m=2048, k=512, n=512)
    program = trace(kernel, *xs, chip='trn2')
    code, (strips,) = plan.plan_of(program)
    blocks, rows = strips.nodes
    assert isinstance(blocks, loop_passes.LoopNode) and isinstance(rows, loop_passes.Nest)
    assert blocks.trips == dict(rows.loops)[blocks.name] > 1 and code.ops[rows.number].op == 'nc_matmul'
    assert_near(program, xs)


@pytest.mark.parametrize('parts', (1, 3, 64))
@pytest.mark.parametrize('width', (8, 96))
@pytest.mark.parametrize('along', ('rows', 'partitions'))
def test_tiles_side_by_side(along, width, parts):
    "Bit for bit, whether the tiles of a strip follow one another along rows or over them."
    shape = (2 * parts, 24 * width) if along == 'rows' else (2 * parts * 24, width)
    def kernel(x, c):
        out = nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm)
        for i in nl.affine_range(24):
            cut = lambda t, j: (t[j * parts:(j + 1) * parts, nl.ds(i * width, width)] if along == 'rows'
                                else t[nl.ds(j * 24 * parts + i * parts, parts), :])
            a, b, e = nl.load(cut(x, 0)), nl.load(cut(x, 1)), nl.load(cut(c, 0))
            nl.store(cut(out, 0), nl.subtract(nl.multiply(a, e), nl.multiply(b, b)))
            nl.store(cut(out, 1), nl.add(nl.multiply(b, e), nl.multiply(a, e)))
        return out
    xs = [np.random.default_rng(k).normal(size=shape).astype(np.float32) for k in range(2)]
    program = trace(kernel, *xs)
    code, nodes = plan.plan_of(program)
    wide = [t.shape for t in code.tensors if len(t.shape) == 3]
    assert wide and (parts == 1 or all(s[0 if along == 'rows' else 1] == parts for s in wide)), wide
    for count in (1, 2):
        assert (bits_of(execute(program, *xs, threads=count)[0], False) == bits_of(interpret(program, *xs)[0], False)).all()


@pytest.mark.parametrize('odd', (None, 1, 2, 3, 5, 6, 11, 12, 23))
def test_a_run_ends_at_the_first_block_that_differs(odd):
    "Unrolled blocks, one of them with another offset, factor or tile: loops and instructions are as many as were written."
    for kind in ('offset', 'factor', 'tile') if odd else ('',):
        def kernel(x):
            out, kept = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm), nl.ndarray((8, 4), nl.float32)
            nisa.memset(kept, 1.0)
            for k in range(24):
                t = kept if kind == 'tile' and k == odd else nl.ndarray((8, 4), nl.float32)
                at = (k + 7) % 24 if kind == 'offset' and k == odd else k
                nisa.dma_copy(t, x[:, 4 * at:4 * at + 4])
                nisa.tensor_scalar(t, t, nl.multiply, 3.0 if kind == 'factor' and k == odd else 2.0)
                nisa.dma_copy(out[:, 4 * k:4 * k + 4], t)
            nisa.dma_copy(out[:, 0:4], kept)
            return out
        x = np.random.default_rng(0).normal(size=(8, 96)).astype(np.float32)
        program = trace(kernel, x)
        folded = plan.rerolled(program)
        assert folded.count == program.count
        longest = max(loop.trips for loop in folded.loops.values())
        assert longest == (24 if odd is None else max(odd, 23 - odd) if max(odd, 23 - odd) >= 3 else 0)
        assert (interpret(folded, x)[0] == interpret(program, x)[0]).all()


def other_shapes(write, read, hole=None):
    "x, stored in HBM by strips of columns, by blocks of rows or in another shape, and doubled from there likewise."
    cuts = {'columns': (6, lambda t, i: t[:, nl.ds(i * 16, 16)]), 'rows': (4, lambda t, i: t[nl.ds(i * 32, 32), :]),
            'shape': (3, lambda t, i: t.reshape((96, 128))[nl.ds(i * 32, 32), :]),
            'uneven': (3, lambda t, i: t.reshape((192, 64))[nl.ds(i * 64, 64), :]),
            'flat': (2, lambda t, i: t.reshape((2, 128, 48))[i])}
    def kernel(x):
        there, out = (nl.ndarray((128, 96), nl.float32, buffer=b) for b in (nl.private_hbm, nl.shared_hbm))
        for (n, cut), src, dst in ((cuts[write], x, there), (cuts[read], there, out)):
            for i in nl.affine_range(n - 1 if hole and src is x else n):
                t = nl.ndarray(cut(src, 0).shape, nl.float32)
                nisa.dma_copy(t, cut(src, i))
                nisa.tensor_scalar(t, t, nl.multiply, 2.0)
                nisa.dma_copy(cut(dst, i), t)
        return out
    return kernel


SHAPES = ('columns', 'rows', 'shape', 'uneven', 'flat')


@pytest.mark.parametrize('write', SHAPES)
@pytest.mark.parametrize('read', SHAPES)
def test_memory_is_planned_in_whatever_shape_it_is_used(write, read):
    "Bit for bit; where the last turn of the writing loop is left out, there is no plan."
    x = np.random.default_rng(0).normal(size=(128, 96)).astype(np.float32)
    program = trace(other_shapes(write, read), x)
    assert plan.plan_of(program) is not None
    for count in (1, 2):
        y, = plan.in_shape(program, vectorized._run_plan(*plan.plan_of(program), [x], count))
        assert y.shape == x.shape and (y == 4 * x).all()
    assert plan.plan_of(trace(other_shapes(write, read, hole=True), x)) is None


@pytest.mark.parametrize('count', (1, 2, 3, 5))
def test_accumulators_that_take_turns_are_rolled(count):
    "Unrolled sums of several tiles side by side: one loop around one matmul for each tile, and no other order of a sum."
    def kernel(x, w):
        out = nl.ndarray((count * 32, w.shape[1]), nl.float32, buffer=nl.shared_hbm)
        sums = [nl.ndarray((32, w.shape[1]), nl.float32, buffer=nl.psum) for _ in range(count)]
        for j in range(4):
            side, rows = nl.load(w[j * 32:(j + 1) * 32, :]), nl.load(x[j * 32:(j + 1) * 32, :])
            for s in range(count): nisa.nc_matmul(sums[s], rows[:, s * 32:(s + 1) * 32], side)
        for s in range(count): nl.store(out[s * 32:(s + 1) * 32, :], nl.copy(sums[s]))
        return out
    xs = inputs(m=128, k=count * 32, n=64)[0], inputs(m=128, k=64)[0]
    program = trace(kernel, *xs)
    folded = plan.rerolled(program)
    loop = next(o for o in folded.body if getattr(o, 'trips', 0) == 4)
    assert [o.op for o in loop.body].count('nc_matmul') == count and folded.count == program.count
    assert sum(o.op == 'nc_matmul' for o in planned(program)) == count
    assert_near(program, xs)


@pytest.mark.parametrize('step', (32, 24))
@pytest.mark.parametrize('times', (1, 2))
def test_stores_beside_each_other_are_left_out(step, times):
    "Sums of two blocks stored beside each other: written where they belong. Where blocks overlap, the later one stands."
    def kernel(x, w):
        out = nl.ndarray((step + 32, w.shape[1]), nl.float32, buffer=nl.shared_hbm)
        sums = [nl.ndarray((32, w.shape[1]), nl.float32, buffer=nl.psum) for _ in range(2)]
        for j in nl.affine_range(4):
            side, rows = nl.load(w[nl.ds(j * 32, 32), :]), nl.load(x[nl.ds(j * 32, 32), :])
            for s in range(2): nisa.nc_matmul(sums[s], rows[:, s * 32:(s + 1) * 32], side)
        for _ in range(times):
            for s in (1, 0): nl.store(out[s * step:s * step + 32, :], nl.copy(sums[s]))
        return out
    xs = inputs(m=128, k=64)[0], inputs(m=128, k=64)[0]
    program = trace(kernel, *xs)
    ops = [o.op for o in planned(program)]
    assert ops.count('nc_matmul') == 2
    assert (set(ops) == {'nc_matmul'}) == (step == 32 and times == 1), ops
    assert_near(program, xs)
    y, = execute(program, *xs, threads=1)
    assert (bits_of(y, False) == bits_of(execute(program, *xs, threads=2)[0], False)).all()


def test_arrays_of_dead_tensors_are_used_again():
    "A chain of tensors in memory, each from the one before: the plan holds two arrays and the output, with no old value left."
    def kernel(x):
        t = x
        for k in range(6):
            made = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm if k == 5 else nl.private_hbm)
            for i in nl.affine_range(4):
                tile = nl.load(t[nl.ds(i * 128, 128), :])
                nl.store(made[nl.ds(i * 128, 128), :], nl.add(tile, nl.multiply(tile, 0.5)))
            t = made
        return t
    x = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    program, seen = trace(kernel, x), set()
    code, nodes = plan.plan_of(program)
    raw = vectorized.UncheckedMemory.allocate
    def allocate(memory, k):
        raw(memory, k)
        if code.tensors[k].size == x.size: seen.add(memory.flat[k].ctypes.data)
    with mock.patch.object(vectorized.UncheckedMemory, 'allocate', allocate):
        y, = vectorized._run_plan(code, nodes, [x], 1)
    assert (bits_of(y, False) == bits_of(interpret(program, x)[0], False)).all()
    assert len(seen) == 3
