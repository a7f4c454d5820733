"Each instruction against plain numpy, through trace, check, file format and execution."
import ml_dtypes, numpy as np, pytest
from kernel_lab.core.errors import KernelError
from dialects import nisa, nl, normal, on_tile, run

X = normal(128, 96)
ONE = normal(128, 1, seed=9)

def check(write, want, x=X, shape_out=None, tol=1e-5, dtype=np.float32):
    got, = run(on_tile(write, x.shape, shape_out, dtype), x)
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=tol, atol=tol)

def test_tensor_copy(): check(lambda d, s: nisa.tensor_copy(d, s), X)
def test_tensor_copy_rounds_to_bf16():
    check(lambda d, s: nisa.tensor_copy(d, s),
          X.astype(ml_dtypes.bfloat16).astype(np.float32), dtype=ml_dtypes.bfloat16)
def test_memset(): check(lambda d, s: nisa.memset(d, 3.5), np.full_like(X, 3.5))
def test_tensor_scalar_one_op(): check(lambda d, s: nisa.tensor_scalar(d, s, nl.multiply, 2.0), 2 * X)
def test_tensor_scalar_reverse(): check(lambda d, s: nisa.tensor_scalar(d, s, nl.subtract, 1.0, reverse0=True), 1 - X)
def test_tensor_scalar_two_ops():
    check(lambda d, s: nisa.tensor_scalar(d, s, nl.multiply, 2.0, op1=nl.add, operand1=3.0), 2 * X + 3)
def test_tensor_scalar_column(): check(lambda d, s: nisa.tensor_scalar(d, s, nl.add, s[:, 0:1]), X + X[:, :1])
def test_tensor_scalar_compare():
    check(lambda d, s: nisa.tensor_scalar(d, s, nl.greater, 0.0), (X > 0).astype(np.float32))
def test_tensor_tensor(): check(lambda d, s: nisa.tensor_tensor(d, s, s, nl.multiply), X * X)
def test_tensor_tensor_slices():
    check(lambda d, s: nisa.tensor_tensor(d, s[:, 0:48], s[:, 48:96], nl.maximum), np.maximum(X[:, :48], X[:, 48:]),
          shape_out=(128, 48))
def test_scalar_tensor_tensor(): check(lambda d, s: nisa.scalar_tensor_tensor(d, s, nl.multiply, 3.0, nl.add, s), 4 * X)
def test_reciprocal(): check(lambda d, s: nisa.reciprocal(d, s), 1 / X, tol=1e-4)
def test_activation_scale_bias():
    check(lambda d, s: nisa.activation(d, nl.exp, s, bias=s[:, 0:1], scale=0.5), np.exp(0.5 * X + X[:, :1]))
def test_activation_scale_column(): check(lambda d, s: nisa.activation(d, nl.copy, s, scale=s[:, 1:2]), X * X[:, 1:2])
def test_activation_silu(): check(lambda d, s: nisa.activation(d, nl.silu, s), X / (1 + np.exp(-X)))
def test_activation_gelu_is_odd_around_half():
    check(lambda d, s: nisa.activation(d, nl.gelu, s), X * 0.5 * (1 + np.vectorize(__import__('math').erf)(X / 2**0.5)))
def test_reduce_max_negated():
    check(lambda d, s: nisa.tensor_reduce(d, nl.maximum, s, axis=1, negate=True), -X.max(1, keepdims=True),
          shape_out=(128, 1))
def test_reduce_add():
    check(lambda d, s: nisa.tensor_reduce(d, nl.add, s, axis=1), X.sum(1, keepdims=True), shape_out=(128, 1), tol=1e-4)
def test_reduce_inner_of_three():
    check(lambda d, s: nisa.tensor_reduce(d, nl.add, s.reshape(128, 12, 8), axis=2),
          X.reshape(128, 12, 8).sum(2), shape_out=(128, 12), tol=1e-4)
def test_iota():
    check(lambda d, s: nisa.iota(d, [[2, 96]], offset=5, channel_multiplier=10),
          5 + 10 * np.arange(128)[:, None] + 2 * np.arange(96)[None, :])
def test_transpose_on_vector(): check(lambda d, s: nisa.nc_transpose(d, s), normal(32, 32).T, x=normal(32, 32))

def test_affine_select_makes_a_causal_mask():
    write = lambda d, s: nisa.affine_select(d, [[-1, 96]], 1, s, -1e30, cmp_op=nl.greater_equal, offset=0)
    check(write, np.where(np.arange(128)[:, None] >= np.arange(96)[None, :], X, np.float32(-1e30)))

def test_activation_reduce_gives_both():
    def write(d, s):
        e = nl.ndarray((128, 96), nl.float32)
        nisa.activation_reduce(e, nl.exp, s, nl.add, d)
    check(write, np.exp(X).sum(1, keepdims=True), shape_out=(128, 1), tol=1e-4)

def test_scan_is_a_running_sum():
    check(lambda d, s: nisa.tensor_tensor_scan(d, 1.0, s, 0.0, nl.multiply, nl.add), np.cumsum(X, 1), tol=1e-4)

def test_transpose_on_tensor_goes_through_psum():
    def write(d, s):
        p = nl.ndarray((96, 128), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(p, s)
        nisa.tensor_copy(d, p)
    check(write, X.T, shape_out=(96, 128))

@pytest.mark.parametrize('chip', ['trn1', 'trn2'])
def test_matmul_accumulates(chip):
    a, b = normal(256, 64, seed=1), normal(256, 80, seed=2)
    def kernel(a, b):
        out, acc = nl.ndarray((64, 80), nl.float32, buffer=nl.shared_hbm), nl.ndarray((64, 80), nl.float32,
                                                                                      buffer=nl.psum)
        for k in nl.affine_range(2):
            nisa.nc_matmul(acc, nl.load(a[nl.ds(k * 128, 128), :]), nl.load(b[nl.ds(k * 128, 128), :]))
        nl.store(out, nl.copy(acc))
        return out
    np.testing.assert_allclose(run(kernel, a, b, chip=chip)[0], a.T @ b, rtol=1e-4, atol=1e-4)

def test_accumulate_false_overwrites():
    a = normal(128, 64)
    def kernel(a):
        out, acc, t = nl.ndarray((64, 64), nl.float32, buffer=nl.shared_hbm), nl.ndarray((64, 64), nl.float32,
                                                                                         buffer=nl.psum), nl.load(a)
        for _ in range(2): nisa.nc_matmul(acc, t, t, accumulate=False)
        nl.store(out, nl.copy(acc))
        return out
    np.testing.assert_allclose(run(kernel, a)[0], a.T @ a, rtol=1e-4, atol=1e-4)

def test_integers_are_rounded_on_write():
    got, = run(on_tile(lambda d, s: nisa.tensor_scalar(d, s, nl.multiply, 1.5), (4, 4), dtype=np.int32),
               np.full((4, 4), 3, np.float32))
    assert got.dtype == np.int32 and (got == 4).all()      # 4.5 rounds to even

def test_inputs_are_never_changed():
    x = X.copy()
    def kernel(x):
        t = nl.load(x)
        nisa.tensor_scalar(t, t, nl.multiply, 2.0)
        nisa.dma_copy(x, t)
        return x
    got, = run(kernel, x)
    assert (got == 2 * X).all() and (x == X).all()

def test_reading_the_unwritten_half_names_the_allocation():
    def write(d, s):
        t = nl.ndarray((128, 96), nl.float32, name='half')
        nisa.tensor_copy(t[:, 0:48], s[:, 0:48])
        nisa.tensor_copy(d, t)
    with pytest.raises(KernelError, match='half is read before it is written') as e: run(on_tile(write, X.shape), X)
    assert e.value.kind == 'uninitialised' and e.value.line

def test_fresh_tiles_of_each_iteration_are_unwritten():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            t = nl.ndarray((64, 96), nl.float32)
            nisa.dma_copy(t[:, 0:48], x[nl.ds(i * 64, 64), 0:48])
            nisa.dma_copy(out[nl.ds(i * 64, 64), :], t)
        return out
    with pytest.raises(KernelError, match='read before it is written'): run(kernel, X)
