"""What vendors' examples and newcomers write: it runs and computes what it says, or it is refused with the way out."""
import os
import warnings

import numpy as np
import pytest
from dialects import nisa, nki, nl, normal, oisa, old, onl, run
from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.nki import assert_ok, execute, simulate, trace
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.ir.inputs import narrow

X = normal(128, 512)

def legacy(body, *arrays, shape=None, dtype=np.float32):
    "The output of a kernel of the earlier dialect whose body writes to `out`."
    @old.jit
    def kernel(*xs):
        out = onl.ndarray(shape or xs[0].shape, dtype, buffer=onl.shared_hbm)
        body(*xs, out)
        return out
    return run(kernel, *(arrays or (X,)))[0]

def current(body, *arrays, shape=None, chip='trn2'):
    "The output of a kernel of the current dialect, on both paths."
    @nki.jit
    def kernel(*xs):
        out = nl.ndarray(shape or xs[0].shape, xs[0].dtype, buffer=nl.shared_hbm)
        body(*xs, out)
        return out
    arrays = arrays or (X,)
    program = assert_ok(trace(kernel, *arrays, chip=chip))
    got = execute(program, *arrays)[0]
    np.testing.assert_array_equal(got, interpret(program, *arrays)[0])
    return got

def loaded(x):
    t = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(t, x)
    return t

# --- masks joined by words

@pytest.mark.parametrize('mask, kept', [
    (lambda p, f, i: p < 100 and f < 500, lambda p, f: (p < 100) & (f < 500)),
    (lambda p, f, i: p < 100 and f < 500 and p + f > 9, lambda p, f: (p < 100) & (f < 500) & (p + f > 9)),
    (lambda p, f, i: (p < 100 or f < 500), lambda p, f: (p < 100) | (f < 500)),
    (lambda p, f, i: p >= 3 and (f < 9 or f >= 500), lambda p, f: (p >= 3) & ((f < 9) | (f >= 500))),
    (lambda p, f, i: p != 7 and f < 500, lambda p, f: (p != 7) & (f < 500)),
    (lambda p, f, i: (p < 200) and f < 500, lambda p, f: f < 500),
    (lambda p, f, i: i < 100 and f < 500, lambda p, f: f < 500),
])
def test_masks_joined_by_words(mask, kept):
    def body(x, out):
        p, f = onl.arange(128)[:, None], onl.arange(512)[None, :]
        for i in onl.affine_range(1): onl.store(out[p, f], onl.zeros((128, 512), onl.float32))
        for i in onl.affine_range(2): onl.store(out[p, f], onl.load(x[p, f]), mask=mask(p, f, i))
    p, f = np.arange(128)[:, None], np.arange(512)[None, :]
    np.testing.assert_array_equal(legacy(body), np.where(kept(p, f), X, 0))

def test_a_side_that_would_be_lost_is_refused():
    def body(x, out, n=5):
        p, f = onl.arange(128)[:, None], onl.arange(512)[None, :]
        onl.store(out[p, f], onl.load(x[p, f]), mask=(f < 500 and n > 3))
    with pytest.raises(KernelError, match='would be lost') as e: legacy(body)
    assert e.value.line
    assert legacy(lambda x, out: onl.store(out, onl.load(x))).shape == X.shape      # and the next trace is clean

# --- indices

def test_ranges_of_loops_are_indices():
    def body(x, out):
        rows, columns = onl.affine_range(128), onl.affine_range(512)[None, :]
        onl.store(out[rows, 0:256], onl.load(x[rows, 0:256]))
        p = onl.affine_range(128)[:, None]
        onl.store(out[p, columns], onl.load(x[p, columns]), mask=columns >= 256)
    np.testing.assert_array_equal(legacy(body), X)

def test_a_range_is_still_a_loop():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(4): nl.store(out[32 * i:32 * (i + 1)], nl.load(x[32 * i:32 * (i + 1)]))
        return out
    assert len(trace(kernel, X).body) == 1
    np.testing.assert_array_equal(run(kernel, X)[0], X)

def test_patterns_on_slices_count_in_the_tensor():
    def scalar(x, i, out):
        k = loaded(i)
        t = nl.ndarray((128, 64), x.dtype)
        half = x[:, 256:512]
        nisa.dma_copy(t, half.ap([[512, 128], [1, 64]], scalar_offset=k, indirect_dim=1))
        nisa.dma_copy(out, t)
    k = np.array([[5]], np.int32)
    np.testing.assert_array_equal(current(scalar, X, k, shape=(128, 64)), X[:, 261:325])
    def rows(x, i, out):
        k, t = loaded(i), nl.ndarray((64, 128), x.dtype)
        nisa.dma_copy(t, x[:, 256:512].ap([[512, 64], [1, 128]], vector_offset=k, indirect_dim=0))
        nisa.dma_copy(out, t)
    chosen = np.random.default_rng(0).permutation(128)[:64].astype(np.int32).reshape(64, 1)
    np.testing.assert_array_equal(current(rows, X, chosen, shape=(64, 128)), X[chosen[:, 0], 256:384])

def test_one_element_is_written_to_any_partition():
    def body(x, out):
        t = loaded(x)
        nisa.memset(t[5:6, 3:4], 7.0)
        nisa.tensor_copy(t[77:78, 9:10], t[0:1, 0:1])
        nisa.dma_copy(out, t)
    want = X.copy()
    want[5, 3], want[77, 9] = 7, X[0, 0]
    np.testing.assert_array_equal(current(body), want)
    def two(x, out):
        t = loaded(x)
        nisa.memset(t[5:6, 3:5], 7.0)
        nisa.dma_copy(out, t)
    with pytest.raises(KernelError, match='starts at partition 5'): current(two)

@pytest.mark.parametrize('columns', [4096, 4097, 16384])
def test_one_column_is_repeated_as_often_as_asked(columns):
    def body(x, out):
        t = nl.ndarray((128, columns), x.dtype)
        nisa.tensor_copy(t, loaded(x)[:, 1:2].broadcast(1, columns))
        nisa.dma_copy(out, t)
    np.testing.assert_array_equal(current(body, X, shape=(128, columns)), np.repeat(X[:, 1:2], columns, 1))
    def by_dma(x, out):
        t = nl.ndarray((128, columns), x.dtype)
        nisa.dma_copy(t, x[0:1, 0:1].ap([[0, 128], [0, columns]]))
        nisa.dma_copy(out, t)
    np.testing.assert_array_equal(current(by_dma, X, shape=(128, columns)), np.full((128, columns), X[0, 0]))

def test_a_column_of_psum_is_repeated_as_often_as_asked():
    def body(x, out):
        p, t = nl.ndarray((128, 512), x.dtype, buffer=nl.psum), nl.ndarray((128, 8192), x.dtype)
        nisa.tensor_copy(p, loaded(x))
        nisa.tensor_copy(t, p[:, 1:2].broadcast(1, 8192))
        nisa.dma_copy(out, t)
    np.testing.assert_array_equal(current(body, X, shape=(128, 8192)), np.repeat(X[:, 1:2], 8192, 1))

def test_placed_tiles_may_say_that_there_is_one():
    from kernel_lab.nki import installed
    with installed(): import neuronxcc.nki.compiler as ncc
    def body(x, out):
        t = onl.ndarray((128, 512), onl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(1,)))
        t[...] = onl.load(x)
        onl.store(out, t)
    np.testing.assert_array_equal(legacy(body), X)
    def two(x, out): onl.ndarray((128, 512), onl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2,)))
    with pytest.raises(KernelError, match='one number for each block'): legacy(two)

# --- memories and holes

def test_tiles_are_assigned_to_hbm_in_the_simulator_only():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        out[...] = loaded(x)
        return out
    with pytest.warns(UserWarning, match='simulator only'): got = nki.simulate(nki.jit(kernel))(X)
    np.testing.assert_array_equal(got, X)
    with pytest.raises(KernelError, match='by DMA only'): simulate(kernel, X)

def open_columns(reads):
    "A matmul whose moving tile is written in its first 256 columns; `reads` columns of the result are stored."
    def body(x, out):
        a, b = loaded(x), nl.ndarray((128, 512), nl.float32)
        nisa.tensor_copy(b[:, 0:256], a[:, 0:256])
        p, c = nl.ndarray((128, 512), nl.float32, buffer=nl.psum), nl.ndarray((128, 512), nl.float32)
        for i in range(2): nisa.nc_matmul(p, a[:, 0:128], b)
        nisa.tensor_copy(c[:, 0:reads], p[:, 0:reads])
        nisa.dma_copy(out, c[:, 0:reads])
    return body

def test_a_matmul_carries_unwritten_columns():
    got = current(open_columns(256), X, shape=(128, 256))
    np.testing.assert_allclose(got, 2 * X[:, :128].T @ X[:, :256], rtol=1e-3, atol=1e-3)
    for n in (257, 512):
        with pytest.raises(KernelError, match='before it is written'): current(open_columns(n), X, shape=(128, n))

# --- reductions and parameters

@pytest.mark.parametrize('name, of', [('sum', np.sum), ('max', np.max), ('min', np.min)])
@pytest.mark.parametrize('axis', [1, [1], (1,), 2, [1, 2]])
def test_reductions_over_a_middle_axis(name, of, axis):
    x = normal(128, 4, 8)
    want = of(x, axis=tuple(axis) if isinstance(axis, list) else axis).reshape(128, -1)
    def body(x, out):
        t = getattr(onl, name)(onl.load(x), axis=axis)
        onl.store(out, t)
    np.testing.assert_allclose(legacy(body, x, shape=want.shape), want, rtol=1e-5, atol=1e-6)

SCALE, OTHER = 16, [1]

def test_constants_of_a_source_are_parameters():
    def kernel(x, SCALE):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(x), SCALE))
        return out
    np.testing.assert_array_equal(run(kernel, X)[0], 16 * X)
    np.testing.assert_array_equal(run(kernel, X, SCALE=2)[0], 2 * X)
    with pytest.raises(KernelError, match="missing a required argument: 'OTHER'"): trace(lambda x, OTHER: x, X)

# --- platforms and inputs

def double(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.load(x), nl.load(x)))
    return out

@pytest.mark.parametrize('name, generation', [('trn1', 2), ('inf2', 2), ('gen2', 2), ('trn2', 3), ('trn2n', 3), ('gen3', 3),
                                              ('trn3', 4), ('trn3pre', 4), ('TRN3_A0', 4), ('gen4', 4)])
def test_platform_names(name, generation, monkeypatch):
    monkeypatch.setenv('NEURON_PLATFORM_TARGET_OVERRIDE', name)
    np.testing.assert_array_equal(nki.jit(double)(X), 2 * X)
    assert int(nisa.get_nc_version()) == generation

def test_other_platforms_are_refused(monkeypatch):
    monkeypatch.setenv('NEURON_PLATFORM_TARGET_OVERRIDE', 'trn7')
    with pytest.raises(UsageError, match='There is no chip'): nki.jit(double)(X)

def test_the_decorator_names_a_platform():
    seen = []
    def kernel(x):
        seen.append(int(nisa.get_nc_version()))
        return double(x)
    nki.jit(kernel, platform_target='trn3pre')(X)
    assert seen == [4]

@pytest.mark.parametrize('wide', [np.array([[1, 2**31 - 1, -2**31]]), np.array([[0.5, np.inf, -np.inf, np.nan, 2.0**100]])])
def test_wide_inputs_that_fit_pass_silently(wide):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        np.testing.assert_array_equal(narrow(wide), wide)

@pytest.mark.parametrize('wide', [2**31, -2**31 - 1, 2**62, 1e39, -1.7e308])
def test_wide_inputs_out_of_range_are_refused(wide):
    x = np.zeros((4, 8), type(wide))
    x[2, 3] = wide
    with pytest.raises(KernelError, match='scale or split') as e: nki.jit(double)(x)
    assert e.value.kind == 'input'

def test_digits_that_are_lost_are_said():
    with pytest.warns(UserWarning, match='1 of 32 numbers changed'):
        x = np.zeros((4, 8))
        x[0, 0] = 0.1
        nki.jit(double)(x)

# --- partitions

def blocks_of(shape, buffer=onl.sbuf):
    "A kernel that fills blocks of a tensor of this shape, and stores them."
    def body(x, out):
        b = onl.ndarray(shape, onl.float32, buffer=buffer)
        for i in onl.affine_range(4): b[i] = onl.load(x[:, onl.ds(128 * i, 128)])
        for i in onl.affine_range(4): onl.store(out[:, onl.ds(128 * i, 128)], b[i])
    return body

def test_a_forgotten_par_dim_is_refused_where_it_fits():
    np.testing.assert_array_equal(legacy(blocks_of((4, onl.par_dim(128), 128))), X)
    with pytest.raises(KernelError, match=r'nl.par_dim\(128\)') as e: legacy(blocks_of((4, 128, 128)))
    assert e.value.line and e.value.operand == 'b'

def test_a_forgotten_par_dim_of_sums_is_refused():
    def body(x, out):
        t, sums = onl.load(x[:, 0:128]), onl.zeros((4, 128, 128), onl.float32, buffer=onl.psum)
        for i in onl.affine_range(4):
            for k in onl.affine_range(2): sums[i] += onl.matmul(t, t, transpose_x=True)
        onl.store(out[:, 0:128], sums[0])
    with pytest.raises(KernelError, match='par_dim'): legacy(body)
