"""Rarer names and rules: grids in parts, ranges by keyword, columns added in place, places read from memory,
generators, PSUM."""
from functools import partial
import ml_dtypes, numpy as np, pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import Stepper, assert_ok, installed, jit, simulate, trace

with installed():
    import nki.isa as nisa, nki.language as nl
    import neuronxcc.nki as onki, neuronxcc.nki.isa as oisa, neuronxcc.nki.language as onl

def old(f): return jit(f, dialect='neuronxcc.nki')
def made(*shape): return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    'grid, sizes',
    [((onl.spmd_dim(2, onl.nc(2)), 2), (4, 2)), ((onl.nc(2) * 2,), (4,)), ((onl.spmd_dim(onl.nc(2), 3),), (6,))],
)
def test_a_grid_in_parts_runs_every_program(grid, sizes):
    def kernel(x):
        out = onl.ndarray(x.shape, x.dtype, buffer=onl.shared_hbm)
        at = tuple(onl.program_id(k) for k in range(len(sizes)))
        onl.store(out[at], onl.load(x[at]))
        return out
    x = made(*sizes, 8, 4)
    assert (old(kernel)[grid](x) == x).all()

@pytest.mark.parametrize('loop', ['affine_range', 'sequential_range', 'static_range'])
def test_ranges_take_keywords(loop):
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out[0], nl.load(x[0]))
        for i in getattr(nl, loop)(start=1, stop=6, step=2):
            nl.store(out[i], nl.multiply(nl.load(x[i]), 2.0))
            nl.store(out[i + 1], nl.load(x[i + 1]))
        return out
    x = made(7, 8, 4)
    assert (simulate(kernel, x) == x * np.array([1, 2, 1, 2, 1, 2, 1], np.float32)[:, None, None]).all()

@pytest.mark.parametrize('kind', [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize('shape', [(128, 16), (128, 4, 8)])
def test_a_column_is_added_in_place(kind, shape):
    def kernel(x, c):
        out, t = onl.ndarray(x.shape, x.dtype, buffer=onl.shared_hbm), onl.load(x)
        t += onl.load(c)
        onl.store(out, t)
        return out
    x, c = made(*shape), np.arange(128, dtype=np.float32)[:, None].astype(kind)
    assert np.allclose(simulate(old(kernel), x, c), x + c.astype(np.float32).reshape(128, *[1] * (len(shape) - 1)))

@pytest.mark.parametrize('offset', [0, 17, 60])
def test_a_copy_starts_where_memory_says(offset):
    def kernel(x, at):
        out, t, k = onl.ndarray((128, 4), x.dtype, buffer=onl.shared_hbm), onl.load(x), onl.load(at)
        i_p, i_f = onl.mgrid[0:128, 0:4]
        onl.store(out, oisa.tensor_copy_dynamic_src(t[i_p, k[0, 0] + i_f]))
        return out
    x = made(128, 64)
    assert (simulate(old(kernel), x, np.array([[offset]], np.int32)) == x[:, offset:offset + 4]).all()
    with pytest.raises(KernelError, match='points outside'): simulate(old(kernel), x, np.array([[61]], np.int32))


@pytest.mark.parametrize('simulator', [onki.jit(mode='simulation'), lambda f: partial(onki.simulate_kernel, f)])
def test_the_earlier_simulator_raises_an_index_error_where_an_index_points_outside(simulator):
    def kernel(x, at):
        out, k = onl.ndarray((128, 4), x.dtype, buffer=onl.shared_hbm), onl.load(at)
        i_p, i_f = onl.mgrid[0:128, 0:4]
        onl.store(out, onl.load(x[k[i_p, 0], i_f]))
        return out
    x, at = made(128, 4), np.arange(128, dtype=np.int32)[:, None]
    assert (simulator(kernel)(x, at) == x).all()
    with pytest.raises(IndexError) as found: simulator(kernel)(x, at + 1)
    with pytest.raises(IndexError) as numpys: x.reshape(-1)[(at + 1) * 4 + np.arange(4)]
    assert found.type is IndexError and str(found.value) == str(numpys.value)
    assert (found.value.__cause__.line, found.value.__cause__.value) == (kernel.__code__.co_firstlineno + 3, 128)

def product(dtype, flag, fill=None):
    def kernel(a, b):
        out, acc = nl.ndarray((32, 64), dtype, buffer=nl.shared_hbm), nl.ndarray((32, 64), dtype, buffer=nl.psum)
        if fill is not None: nisa.memset(acc, fill)
        nisa.nc_matmul(acc, nl.load(a), nl.load(b), accumulate=flag)
        nl.store(out, acc)
        return out
    return kernel


@pytest.mark.parametrize('chip, fine', [('trn1', False), ('trn2', False), ('trn3', True)])
@pytest.mark.parametrize(
    'kernel, says',
    [
        (product(nl.bfloat16, None), 'writes float32 into PSUM'),
        (product(nl.float32, True, 0.0), 'undefined'),
        (product(nl.float32, None, 1.0), 'undefined'),
    ],
)
def test_what_psum_takes_before_trn3(kernel, says, chip, fine):
    p = trace(kernel, made(128, 32), made(128, 64), chip=chip)
    if fine: assert assert_ok(p) is p
    else:
        with pytest.raises(KernelError, match=says): assert_ok(p)

def test_zeros_before_an_inferred_start_are_harmless():
    a, b = made(128, 32), made(128, 64)
    assert np.allclose(simulate(product(nl.float32, None, 0.0), a, b, chip='trn2'), a.T @ b, atol=1e-4)

@pytest.mark.parametrize('turns', [0, 1, 6])
def test_the_stepper_follows_a_loop_that_asks_memory(turns):
    def kernel(x, n):
        out, t, k = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.load(x), nl.load(n)
        for i in nl.dynamic_range(nisa.register_alloc(k)): nisa.tensor_scalar(t, t, nl.add, 1.0)
        nl.store(out, t)
        return out
    x, n = made(8, 4), np.array([[turns]], np.int32)
    s = Stepper(trace(kernel, x, n, chip='trn2'), x, n)
    assert s.count == 4 + turns
    s.goto(s.count)
    assert np.allclose(s.memory.flat[s.program.output_ids[0]].reshape(8, 4), x + turns)

def test_an_old_state_gives_the_old_numbers():
    def kernel(seeds):
        out, s, words = nl.ndarray(
            (2, 128, 6), nl.uint32,
            buffer=nl.shared_hbm), nl.load(seeds), [nl.ndarray((128, 6), nl.uint32) for _ in range(2)]
        for w in words:
            nisa.rand_set_state(s)
            nisa.rng(w, engine=nisa.gpsimd_engine)
        for k in range(2): nl.store(out[k], words[k])
        return out
    one, other = simulate(kernel, np.arange(128 * 6, dtype=np.uint32).reshape(128, 6), chip='trn2')
    assert (one == other).all() and len(np.unique(one)) > 700
