"Masks of the earlier dialect where they are not simply a smaller tile: operands, reductions, transposes, gathers."
import ml_dtypes, numpy as np, pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import trace
from dialects import normal, oisa as nisa, old as nki, onl as nl, run

def hbm(shape, dtype=np.float32): return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)

@pytest.mark.parametrize('rows', [128, 100, 1])
def test_a_reduction_masked_on_both_axes(rows):
    @nki.jit
    def f(x):
        out, (p, k) = hbm((128, 1)), nl.mgrid[0:128, 0:96]
        t = nl.zeros((128, 1), dtype=np.float32)
        t[...] = nl.sum(nl.load(x), axis=1, mask=(p < rows) & (k < 40))
        nl.store(out, value=t)
        return out
    x = normal(128, 96)
    want = np.where(np.arange(128)[:, None] < rows, x[:, :40].sum(1, keepdims=True), 0)
    np.testing.assert_allclose(run(f, x)[0], want, rtol=1e-5, atol=1e-6)

def test_a_reduction_over_axes_in_the_middle():
    @nki.jit
    def f(x):
        out = hbm((100, 14))
        p, a, b, c = nl.mgrid[0:128, 0:3, 0:14, 0:3]
        t = nl.load(x[nl.arange(128)[:, None], nl.arange(64)[None, :]], mask=nl.arange(128)[:, None] < 100)
        m = nl.max(t[p, 16 * a + b + c], axis=[1, 3], mask=p < 100)
        i, j = nl.mgrid[0:128, 0:14]
        nl.store(out[i, j], value=m, mask=i < 100)
        return out
    x = normal(100, 64)
    window = np.stack([x[:, 16 * a + c:16 * a + c + 14] for a in range(3) for c in range(3)])
    np.testing.assert_array_equal(run(f, x)[0], window.max(0))

def test_a_transpose_is_masked_in_the_axes_of_its_operand():
    @nki.jit
    def f(x):
        out, (p, q) = hbm((128, 128)), nl.mgrid[0:128, 0:128]
        t = nl.zeros((128, 128), dtype=np.float32)
        t[p, q] = nisa.nc_transpose(nl.load(x), mask=(p < 100) & (q < 30))
        nl.store(out, value=t)
        return out
    x, want = normal(128, 128), np.zeros((128, 128), np.float32)
    want[:30, :100] = x[:100, :30].T
    np.testing.assert_array_equal(run(f, x)[0], want)

@pytest.mark.parametrize('k,m,n', [(128, 64, 200), (77, 128, 256), (3, 1, 1)])
def test_operand_masks_of_a_matmul(k, m, n):
    @nki.jit
    def f(x, y):
        out, (p, c), q = hbm((128, 256)), nl.mgrid[0:128, 0:256], nl.arange(128)[None, :]
        s = nl.zeros((128, 256), dtype=np.float32)
        s[...] = nisa.nc_matmul(nl.load(x)[(p < k) & (q < m)], nl.load(y)[(p < k) & (c < n)])
        nl.store(out, value=s)
        return out
    x, y, want = normal(128, 128), normal(128, 256, seed=1), np.zeros((128, 256), np.float32)
    want[:m, :n] = x[:k, :m].T @ y[:k, :n]
    np.testing.assert_allclose(run(f, x, y)[0], want, rtol=1e-4, atol=1e-4)

def test_an_index_outside_its_tensor_is_fine_where_the_mask_hides_it():
    @nki.jit
    def f(x, idx, n):
        out, (p, c) = hbm((40, 8)), nl.mgrid[0:64, 0:8]
        i = nl.load(idx)
        nl.store(out[p, c], value=nl.load(x[i, c], mask=p < n), mask=p < n)
        return out
    x, idx = normal(50, 8), np.arange(64, dtype=np.int32)[:, None]
    np.testing.assert_array_equal(run(f, x, idx, 40)[0], x[:40])
    with pytest.raises(KernelError, match='outside'): run(f, x, idx, 60)

def test_what_a_mask_left_out_is_nan_and_a_missing_mask_shows():
    @nki.jit
    def f(x, masked):
        out, (p, c) = hbm((128, 8)), nl.mgrid[0:128, 0:8]
        t = nl.exp(nl.load(x[p, c], mask=p < 100))
        nl.store(out[p, c], value=t) if not masked else nl.store(out[p, c], value=t, mask=p < 128)
        return out
    x = normal(100, 8)
    got = run(f, x, False)[0]
    np.testing.assert_allclose(got[:100], np.exp(x), rtol=1e-6)
    assert np.isnan(got[100:]).all()

def test_masks_of_reductions_join_with_and_only():
    @nki.jit
    def f(x):
        c = nl.arange(8)[None, :]
        return nl.sum(nl.load(x), axis=1, mask=(c < 3) | (c > 5))
    with pytest.raises(KernelError, match='joined with &'): trace(f, normal(128, 8))

def test_a_mask_that_only_its_value_decides_unrolls_its_loops():
    @nki.jit
    def f(x):
        out, (p, c) = hbm((256, 8)), nl.mgrid[0:128, 0:8]
        for i in nl.affine_range(2):
            for j in nl.affine_range(2):
                inside = (2 * i + j) * 128 < 256
                nl.store(out[(2 * i + j) * 128 + p, c], value=nl.load(x[(2 * i + j) * 128 + p, c], mask=inside),
                         mask=inside)
        return out
    x = normal(256, 8)
    np.testing.assert_array_equal(run(f, x)[0], x)

def test_two_rows_of_weights_in_a_partition():
    @nki.jit
    def f(x, y):
        out = hbm((64, 256))
        nl.store(out, value=nisa.nc_matmul(nl.load(x), nl.load(y), perf_mode='double_row_gen3'))
        return out
    x, y = (normal(128, 2, n).astype(ml_dtypes.float8_e4m3) for n in (64, 256))
    want = x.astype(np.float32).reshape(256, 64).T @ y.astype(np.float32).reshape(256, 256)
    np.testing.assert_allclose(run(f, x, y, chip='trn2')[0], want, rtol=1e-5, atol=1e-5)

def test_plain_numbers_widen_narrow_tiles_and_integers_divide_into_fp32():
    @nki.jit
    def f(x, i):
        out = hbm((128, 8))
        assert nl.add(nl.load(x), 1.2).dtype == np.float32 and nl.add(nl.load(x), np.float16(2)).dtype == np.float16
        nl.store(out, value=nl.load(i) / 4)
        return out
    i = np.arange(1024, dtype=np.int32).reshape(128, 8)
    np.testing.assert_array_equal(run(f, normal(128, 8).astype(np.float16), i)[0], i / np.float32(4))

@pytest.mark.parametrize('n', [96, 50, 1])
def test_a_scan_cut_short(n):
    @nki.jit
    def f(x):
        out, (p, k) = hbm((128, 96)), nl.mgrid[0:128, 0:96]
        t = nl.load(x)
        nl.store(out, value=nl.zeros((128, 96), dtype=np.float32))
        nl.store(
            out[p, k], value=nisa.tensor_tensor_scan(nl.full((128, 96), 1.0, dtype=np.float32), t, 0.0, np.multiply,
                                                     np.add, mask=k < n), mask=k < n)
        return out
    x, want = normal(128, 96), np.zeros((128, 96), np.float32)
    want[:, :n] = np.cumsum(x[:, :n], 1, dtype=np.float32)
    np.testing.assert_allclose(run(f, x)[0], want, rtol=1e-5, atol=1e-5)
