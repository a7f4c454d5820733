"Numbers at their edges: conversions, sums that begin, functions outside their tables; interpreted and planned alike."
import ml_dtypes, numpy as np, pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import assert_ok, execute, trace
from kernel_lab.nki.executor import plan
from kernel_lab.nki.chip.dtypes import NUMPY, cast_result
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki import ArraySpec
from dialects import nisa, nl, old, onl

F32, RNG = np.float32, np.random.default_rng(7)

@pytest.fixture(autouse=True)
def always_planned(monkeypatch): monkeypatch.setattr(plan, "MIN_ELEMENTS_PER_INSTRUCTION", 0)

def both(kernel, *arrays, chip='trn2'):
    "The first output, which the interpreter and the planned execution agree on."
    program = trace(kernel, *arrays, chip=chip)
    (one,), (other,) = interpret(program, *arrays), execute(program, *arrays)
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one.astype(F32), other.astype(F32))
    return one

def cast_by(how, kind):
    def kernel(x):
        out, t, c = nl.ndarray(x.shape, kind, buffer=nl.shared_hbm), nl.load(x), nl.ndarray(x.shape, kind)
        if how == 'tensor_copy': nisa.tensor_copy(c, t)
        if how == 'activation': nisa.activation(c, nl.copy, t)
        if how == 'tensor_scalar': nisa.tensor_scalar(c, t, nl.add, 0.0)
        if how == 'dma_copy': nisa.dma_copy(out, t)
        else: nisa.dma_copy(out, c)
        return out
    return kernel

EDGES = np.float32([
    -1e10, -40000, -129, -128.5, -128, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 128, 255.5, 256, 32767.5, 40000,
    65535.5, 1e10, 4e9, np.inf, -np.inf, np.nan, 7])

@pytest.mark.parametrize('how', ['tensor_copy', 'activation', 'tensor_scalar', 'dma_copy'])
@pytest.mark.parametrize('kind', ['int8', 'uint8', 'int16', 'uint16', 'int32', 'uint32'])
def test_to_integers_is_nearest_even_and_saturates(how, kind):
    want = [
        0 if np.isnan(v) else min(
            max(int(np.rint(v)) if np.isfinite(v) else int(np.sign(v)) * 2 ** 40,
                np.iinfo(kind).min),
            np.iinfo(kind).max) for v in EDGES.astype(np.float64)]
    got = both(cast_by(how, getattr(nl, kind)), np.stack([EDGES, EDGES]))
    assert got.dtype == np.dtype(kind) and got[0].tolist() == want

@pytest.mark.parametrize('how', ['tensor_copy', 'dma_copy'])
def test_integers_pass_through_fp32_on_their_way_to_others(how):
    x = np.int32([[2**24 + 1, -300, 300, -1, 70000, 5]])
    assert both(cast_by(how, nl.int16), x)[0].tolist() == [32767, -300, 300, -1, 32767, 5]
    assert both(cast_by(how, nl.uint8), x)[0].tolist() == [255, 0, 255, 0, 255, 5]
    assert both(cast_by(how, nl.uint32), x)[0].tolist() == [2**24, 0, 300, 0, 70000, 5]
    assert both(cast_by(how, nl.int32), x)[0].tolist() == x[0].tolist(), 'the same dtype is copied bit by bit'

@pytest.mark.parametrize('kind', ['bfloat16', 'float16', 'float8_e4m3', 'float8_e5m2'])
def test_to_floats_is_nearest_even(kind):
    x = np.concatenate([RNG.normal(0, s, 500) for s in (1e-3, 1, 100)]).astype(F32)[None]
    np.testing.assert_array_equal(
        both(cast_by('tensor_copy', getattr(nl, kind)), x).astype(F32),
        x.astype(NUMPY[kind]).astype(F32))

def test_a_copy_keeps_the_bits_of_a_nan():
    x = np.uint32([[0x7fc00001, 0xffc12345, 0x7f800000, 0x80000000]]).view(F32)
    assert both(cast_by('tensor_copy', nl.float32), x).tobytes() == x.tobytes()

def test_stored_is_the_identity_on_what_fits():
    for kind in ('int8', 'uint16', 'int32'):
        low, high = np.iinfo(kind).min, min(np.iinfo(kind).max, 2**24)
        x = RNG.integers(max(low, -2**24), high, 200).astype(F32)
        np.testing.assert_array_equal(cast_result(x, np.dtype(kind)), x.astype(np.int64))

# --- sums in PSUM ---

def sums(flags, touch=False):
    def kernel(a, b):
        out = nl.ndarray((a.shape[1], b.shape[1]), F32, buffer=nl.shared_hbm)
        s, m, acc = nl.load(a), nl.load(b), nl.ndarray((a.shape[1], b.shape[1]), F32, buffer=nl.psum)
        if touch: nisa.nc_matmul(acc[0:32], s[:, 0:32], m, accumulate=False)
        for flag in flags: nisa.nc_matmul(acc, s, m, accumulate=flag)
        t = nl.ndarray(acc.shape, F32)
        nisa.tensor_copy(t, acc)
        nisa.dma_copy(out, t)
        return out
    return kernel

A, B = RNG.integers(-4, 5, (64, 64)).astype(F32), RNG.integers(-4, 5, (64, 32)).astype(F32)


@pytest.mark.parametrize(
    'flags, times',
    [
        ((False,), 1),
        ((None,), 1),
        ((False, True, True), 3),
        ((None, None), 2),
        ((None, True), 2),
        ((False, True, False), 1),
        ((False, None), 2),
    ],
)
def test_what_accumulates(flags, times):
    np.testing.assert_array_equal(both(sums(flags), A, B), times * A.T @ B)


@pytest.mark.parametrize('run', [interpret, execute])
@pytest.mark.parametrize(
    'flags, touch', [((True,), False), ((True, True), False), ((True, False), False), ((True,), True)]
)
def test_adding_to_what_nobody_wrote_is_refused(run, flags, touch):
    program = trace(sums(flags, touch), A, B, chip='trn2')
    with pytest.raises(KernelError) as e: run(program, A, B)
    assert e.value.kind == 'uninitialised' and e.value.line and 'accumulate=True adds to' in str(
        e.value) and 'nc_matmul' in str(e.value)

def test_a_loop_that_adds_from_its_second_turn_is_planned():
    def kernel(a, b):
        out, acc = nl.ndarray((32, 32), F32, buffer=nl.shared_hbm), nl.ndarray((32, 32), F32, buffer=nl.psum)
        for k in range(4):
            nisa.nc_matmul(acc, nl.load(a[k * 16:k * 16 + 16, 0:32]), nl.load(b[k * 16:k * 16 + 16, 0:32]), accumulate=k
                           > 0)
        nl.store(out, nl.copy(acc))
        return out
    np.testing.assert_array_equal(both(kernel, A, B), A[:, :32].T @ B)
    assert plan.build_plan(trace(kernel, A, B, chip='trn2')) is not None

EARLIER = '''
from neuronxcc import nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
@nki.jit
def kernel(a, b):
    out = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.zeros((64, 32), dtype=nl.float32, buffer=nl.psum, lazy_initialization=True)
    for k in nl.affine_range(4):
        acc += nisa.nc_matmul(nl.load(a[k * 16:k * 16 + 16, :]), nl.load(b[k * 16:k * 16 + 16, :]))
    nl.store(out, acc)
    return out
'''

def test_zeros_of_the_earlier_dialect_are_lazy():
    program = trace_source(EARLIER, None, [ArraySpec(A.shape), ArraySpec(B.shape)], 'trn1')
    for run in (interpret, execute): np.testing.assert_array_equal(run(program, A, B)[0], A.T @ B)

def test_fp32_products_are_fp32_sums():
    "Two passes cost time and lose nothing that is documented: the result is the fp32 sum of fp32 products."
    a, b = RNG.normal(size=(128, 64)).astype(F32), RNG.normal(size=(128, 32)).astype(F32)
    exact = a.astype(np.float64).T @ b
    assert np.abs(both(sums((False,)), a, b) - exact).max() <= 128 * 2.0**-24 * (np.abs(a).T @ np.abs(b)).max()

def test_tf32_operands_are_rounded_before_the_product():
    def kernel(a, b):
        out = nl.ndarray((16, 8), F32, buffer=nl.shared_hbm)
        s, m, acc = nl.ndarray((64, 16), nl.tfloat32), nl.ndarray((64, 8), nl.tfloat32), nl.ndarray((16, 8), F32,
                                                                                                    buffer=nl.psum)
        for t, x in ((s, a), (m, b)): nisa.tensor_copy(t, nl.load(x))
        nisa.nc_matmul(acc, s, m)
        nl.store(out, nl.copy(acc))
        return out
    a, b = (RNG.normal(size=(64, n)).astype(F32) for n in (16, 8))
    cut = lambda x: ((x.view(np.uint32).astype(np.uint64) + 0xFFF +
                      ((x.view(np.uint32) >> 13) & 1)) & 0xFFFFE000).astype(np.uint32).view(F32)
    np.testing.assert_allclose(both(kernel, a, b), cut(a).T @ cut(b), atol=1e-5)
    assert np.abs(cut(a).T @ cut(b) - a.T @ b).max() > 1e-4

# --- functions ---

def applied(func, language=False):
    def kernel(x):
        out, t = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.load(x)
        if language: t = getattr(nl, func)(t)
        else: nisa.activation(t, getattr(nl, func), t)
        nl.store(out, t)
        return out
    return kernel

def test_the_sine_of_the_engine_has_no_reduction():
    x = np.linspace(-9, 9, 181, dtype=F32)[None]
    y, inside = both(applied('sin'), x), np.abs(x) <= np.pi
    np.testing.assert_allclose(y[inside], np.sin(x[inside]), atol=1e-6)
    assert abs(y[0, -1] - 27.65) < 0.01 and abs(y[0, 0] + 27.65) < 0.01        # as documented
    assert np.abs(np.diff(y[0])).max() < 2, 'it is continuous at π'

@pytest.mark.parametrize('func', ['sin', 'cos'])
def test_the_language_reduces_first(func):
    x = np.linspace(-40, 40, 1001, dtype=F32)[None]
    np.testing.assert_allclose(both(applied(func, True), x), getattr(np, func)(x), atol=2e-5)

def test_functions_outside_their_tables_are_reported():
    from kernel_lab.nki.run import find_out_of_domain
    x = np.float32([[0.0, 1.0, 2.0**-50, 3.0]])
    names = lambda f, x: [(o.func, o.count) for o in find_out_of_domain(trace(applied(f), x, chip='trn2'), x)]
    assert names('sqrt', x) == [('sqrt', 1)] and names('reciprocal', x) == [('reciprocal', 2)] and names('exp', x) == []
    assert names('log', x) == [('log', 1)] and names('arctan', x) == [('arctan', 1)] and names('rsqrt', x + 1) == []


def test_outputs_in_another_shape_are_planned():
    "A returned view shares the memory of its tensor on both paths, a returned input too."
    from kernel_lab.nki.executor.interpreter import interpret
    from kernel_lab.nki.executor.plan import plan_of
    x = np.random.default_rng(0).normal(size=(8, 128, 64)).astype(np.float32)
    @old.jit
    def kernel(x):
        out = onl.ndarray((8, 128, 64), x.dtype, buffer=onl.shared_hbm)
        t = onl.ndarray((8, onl.par_dim(128), 64), x.dtype)
        for i in onl.affine_range(8):
            t[i] = onl.exp(onl.load(x[i]))
            onl.store(out[i], t[i])
        return out.reshape((1024, 64)), out, x.reshape((64, 1024))
    program = assert_ok(trace(kernel, x))
    assert plan_of(program) is not None
    for got, want in zip(execute(program, x), interpret(program, x)): np.testing.assert_array_equal(got, want)
    assert [y.shape for y in execute(program, x)] == [(1024, 64), (8, 128, 64), (64, 1024)]
