"The earlier dialect: index arrays, masks, block dimensions, accumulation, grids."
import numpy as np, pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import trace
from dialects import normal, oisa as nisa, old as nki, onl as nl, run

X = normal(256, 96)

@nki.jit
def tail(x, n):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    p, f = nl.arange(128)[:, None], nl.arange(n)[None, :]
    for i in nl.affine_range(-(-x.shape[0] // 128)):
        for j in nl.affine_range(-(-x.shape[1] // n)):
            inside = (i * 128 + p < x.shape[0]) & (j * n + f < x.shape[1])
            t = nl.load(x[i * 128 + p, j * n + f], mask=inside)
            nl.store(out[i * 128 + p, j * n + f], value=nl.multiply(t, 3.0), mask=inside)
    return out

@pytest.mark.parametrize('rows,cols,n', [(256, 96, 32), (200, 96, 96), (130, 50, 32), (1, 1, 4), (257, 33, 16)])
def test_masked_tails(rows, cols, n):
    x = normal(rows, cols)
    np.testing.assert_array_equal(run(tail, x, n)[0], 3 * x)

def test_a_mask_that_does_not_cover_is_refused():
    @nki.jit
    def bad(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i = nl.arange(128)[:, None]
        for k in nl.affine_range(2):
            nl.store(out[k * 128 + i, nl.arange(96)[None, :]], value=nl.load(x[k * 128 + i, nl.arange(96)[None, :]]))
        return out
    with pytest.raises(KernelError, match='outside x') as e: trace(bad, normal(200, 96))
    assert '0..199' in str(e.value)

def test_block_dimensions():
    @nki.jit
    def blocks(x):
        out = nl.ndarray((2, 128, 96), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((2, nl.par_dim(128), 96), dtype=x.dtype, buffer=nl.sbuf)
        p, f = nl.arange(128)[:, None], nl.arange(96)[None, :]
        for i in nl.affine_range(2): t[i, p, f] = nl.load(x[128 * i + p, f])
        for i in nl.affine_range(2): nl.store(out[i, p, f], value=nl.exp(t[1 - i, p, f]))
        return out
    np.testing.assert_allclose(run(blocks, X)[0], np.exp(X.reshape(2, 128, 96)[::-1]), rtol=1e-6)
    assert trace(blocks, X).count == 6 and len(trace(blocks, X).instructions) == 3

def test_results_are_redirected_not_copied():
    @nki.jit
    def f(x):
        out, t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm), nl.ndarray((nl.par_dim(128), 96),
                                                                                      dtype=x.dtype)
        t[...] = nl.load(x)
        t[...] = nisa.activation(op=nl.exp, data=t, scale=-1.0)
        nl.store(out, value=t)
        return out
    x = X[:128]
    assert [o.op for o in trace(f, x).instructions] == ['dma_copy', 'activation', 'dma_copy']
    np.testing.assert_allclose(run(f, x)[0], np.exp(-x), rtol=1e-6)

def test_psum_accumulates_over_the_loop_that_does_not_index_it():
    @nki.jit
    def mm(a, b):
        out = nl.ndarray((2, 64, 80), dtype=np.float32, buffer=nl.shared_hbm)
        acc = nl.zeros((2, nl.par_dim(64), 80), dtype=np.float32, buffer=nl.psum, lazy_initialization=True)
        for j in nl.affine_range(2):
            for k in nl.affine_range(3):
                acc[j] += nisa.nc_matmul(nl.load(a[nl.ds(k * 128, 128), nl.ds(j * 64, 64)]),
                                         nl.load(b[nl.ds(k * 128, 128), :]))
            nl.store(out[j], value=nl.copy(acc[j]))
        return out
    a, b = normal(384, 128, seed=1), normal(384, 80, seed=2)
    np.testing.assert_allclose(run(mm, a, b)[0], (a.T @ b).reshape(2, 64, 80), rtol=1e-4, atol=1e-4)

def test_loop_reduce_starts_over_for_every_outer_iteration():
    @nki.jit
    def sums(x):
        out = nl.ndarray((2, 128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            total = nl.ndarray((nl.par_dim(128), 1), dtype=x.dtype)
            for j in nl.affine_range(3):
                part = nl.sum(nl.load(x[nl.ds(i * 128, 128), nl.ds(j * 32, 32)]), axis=[1])
                total[...] = nl.loop_reduce(part, op=np.add, loop_indices=[j])
            nl.store(out[i], value=total)
        return out
    np.testing.assert_allclose(run(sums, X)[0][..., 0], X.sum(1).reshape(2, 128), rtol=1e-4, atol=1e-4)

def test_a_name_carried_through_a_loop_is_unrolled():
    @nki.jit
    def running(x):
        out = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        best = nl.full((128, 1), -1e30, dtype=x.dtype)
        for j in nl.sequential_range(3): best = nl.maximum(best, nl.max(nl.load(x[0:128, nl.ds(j * 32, 32)]), axis=1))
        nl.store(out, value=best)
        return out
    np.testing.assert_array_equal(run(running, X)[0][:, 0], X[:128].max(1))
    assert not any(hasattr(o, 'body') for o in trace(running, X).body)

def test_a_branch_on_the_loop_variable_is_unrolled():
    @nki.jit
    def odd(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            t = nl.load(x[nl.ds(i * 128, 128), :])
            nl.store(out[nl.ds(i * 128, 128), :], value=t * 2 if i == 1 else t)
        return out
    np.testing.assert_array_equal(run(odd, X)[0], X * np.repeat([1, 2], 128)[:, None].astype(np.float32))

def test_nested_dependent_ranges_are_unrolled():
    @nki.jit
    def triangle(x):
        out = nl.ndarray((2, 128, 96), dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            acc = nl.zeros((128, 96), dtype=x.dtype)
            for j in nl.affine_range(i + 1): acc += nl.load(x[nl.ds(j * 128, 128), :])
            nl.store(out[i], value=acc)
        return out
    np.testing.assert_allclose(run(triangle, X)[0], np.cumsum(X.reshape(2, 128, 96), 0), rtol=1e-6)

def test_a_grid_is_a_parallel_loop():
    @nki.jit
    def g(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i, j = nl.program_id(0), nl.program_id(1)
        at = (nl.ds(i * 128, 128), nl.ds(j * 32, 32))
        nl.store(out[at], value=nl.load(x[at]) * 2)
        return out
    program = trace(g[2, 3], X)
    assert program.count == 18 and [l.kind
                                    for l in (program.body[0], program.body[0].body[0])] == ['parallel', 'parallel']
    np.testing.assert_array_equal(run(g[2, 3], X)[0], 2 * X)

def test_a_grid_whose_number_is_needed_is_unrolled():
    @nki.jit
    def g(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i = nl.program_id(0)
        scale = [2.0, 5.0][i]
        nl.store(out[nl.ds(i * 128, 128), :], value=nl.load(x[nl.ds(i * 128, 128), :]) * scale)
        return out
    np.testing.assert_array_equal(run(g[2], X)[0], X * np.repeat([2, 5], 128)[:, None].astype(np.float32))

def test_constants_are_part_of_the_program():
    @nki.jit
    def f(x):
        out, eye = nl.ndarray((4, 4), dtype=np.float32,
                              buffer=nl.shared_hbm), nl.shared_constant(np.arange(16.0).reshape(4, 4))
        nl.store(out, value=nl.load(eye) + nl.load(x))
        return out
    x = normal(4, 4)
    np.testing.assert_allclose(run(f, x)[0], x + np.arange(16).reshape(4, 4), rtol=1e-6)

def test_matmul_transposes_x():
    @nki.jit
    def f(a, b):
        out = nl.ndarray((128, 80), dtype=np.float32, buffer=nl.shared_hbm)
        nl.store(out, value=nl.matmul(nl.load(a), nl.load(b)))
        return out
    a, b = normal(128, 64, seed=3), normal(64, 80, seed=4)
    np.testing.assert_allclose(run(f, a, b)[0], a @ b, rtol=1e-4, atol=1e-4)

def test_broadcast_over_partitions_is_a_matmul_by_ones():
    @nki.jit
    def f(x, g):
        out = nl.ndarray((128, 600), dtype=np.float32, buffer=nl.shared_hbm)
        nl.store(out, value=nl.load(x) * nl.load(g).broadcast_to((128, 600)))
        return out
    x, g = normal(128, 600), normal(1, 600, seed=5)
    np.testing.assert_allclose(run(f, x, g)[0], x * g, rtol=1e-5)
    assert sum(o.op == 'nc_matmul' for o in trace(f, x, g).instructions) == 2

def test_where_and_comparison():
    @nki.jit
    def f(x):
        out, t = nl.ndarray((128, 96), dtype=np.float32, buffer=nl.shared_hbm), nl.load(x)
        nl.store(out, value=nl.where(t > 0, t, -1.0))
        return out
    x = X[:128]
    np.testing.assert_array_equal(run(f, x)[0], np.where(x > 0, x, np.float32(-1)))

def test_an_element_of_a_list_carried_through_a_loop_is_unrolled():
    @nki.jit
    def running(x):
        out = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        best = [nl.full((128, 1), -1e30, dtype=x.dtype)]
        for j in nl.sequential_range(3):
            best[0] = nl.maximum(best[0], nl.max(nl.load(x[0:128, nl.ds(j * 32, 32)]), axis=1))
        nl.store(out, value=best[0])
        return out
    np.testing.assert_array_equal(run(running, X)[0][:, 0], X[:128].max(1))

def test_state_kept_in_an_object_is_unrolled():
    class Counter: n = 0
    @nki.jit
    def staircase(x):
        out, count = nl.ndarray((3, 128, 96), dtype=x.dtype, buffer=nl.shared_hbm), Counter()
        for j in nl.affine_range(3):
            nl.store(out[j], value=nl.load(x[0:128, :]) * float(count.n))
            count.n += 1
        return out

    np.testing.assert_allclose(
        run(staircase, X)[0], X[None, :128] * np.arange(3, dtype=np.float32)[:, None, None], rtol=1e-6)

def test_simulate_kernel_keeps_narrow_floats_wide():
    @nki.jit
    def f(x):
        out = nl.ndarray(x.shape, dtype=np.float32, buffer=nl.shared_hbm)
        nl.store(out, value=nl.multiply(nl.load(x), np.float32(1 / 3), dtype=nl.bfloat16))
        return out
    x = normal(128, 8)
    np.testing.assert_allclose(nki.simulate_kernel(f, x), x / 3, rtol=1e-6)
    assert np.abs(run(f, x)[0] - x / 3).max() > 1e-4

def test_a_benchmarked_kernel_has_a_simulated_latency():
    @nki.benchmark(warmup=1, iters=2)
    def f(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nl.load(x))
        return out
    np.testing.assert_array_equal(f(X[:128]), X[:128])
    latency = f.benchmark_result.nc_latency
    assert latency.get_latency_percentile(1) == latency.get_latency_percentile(99) > 0 and 'simulated' in repr(latency)

def test_tf32_tiles_are_rounded():
    @nki.jit
    def f(x):
        out = nl.ndarray(x.shape, dtype=np.float32, buffer=nl.shared_hbm)
        nl.store(out, value=nl.copy(nl.copy(nl.load(x), dtype=nl.tfloat32), dtype=np.float32))
        return out
    x = normal(128, 8)
    got = run(f, x)[0]
    assert (got.view(np.uint32) & 0x1FFF == 0).all() and np.abs(got / x - 1).max() <= 2.0**-11
