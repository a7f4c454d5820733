"Places and sizes are whole numbers, made of loops and axes: everything else is refused where it stands, with the way out."
import numpy as np
import pytest
from dialects import nisa, nl, normal, oisa, old, onl, run
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import trace

X = normal(128, 64)

def of(body, dialect='nki'):
    "A kernel whose body gets a loaded tile; what it stores is a copy."
    lang = nl if dialect == 'nki' else onl
    def kernel(x):
        out, t = lang.ndarray(x.shape, x.dtype, buffer=lang.shared_hbm), lang.load(x)
        body(t)
        lang.store(out, t)
        return out
    return kernel if dialect == 'nki' else old.jit(kernel)

def loops(lang, *names): return [lambda t, f=f, n=n: [None for _ in getattr(lang, n)(*f)]
                                 for n in names for f in ((4.0,), (1.5, 4), (0, 4, 2.0))]

CURRENT = [lambda t: t[:, 0:64 / 2], lambda t: t[:, 2.0:8], lambda t: t[:, 0:8:2.0], lambda t: t[:, nl.ds(0, 8.0)],
           lambda t: t[:, nl.ds(0.5, 8)], lambda t: t.ap([[64, 128], [1, 8.0]]), lambda t: t.ap([[64, 128], [1, 8]], 1.5),
           lambda t: nisa.iota(t, [[1, 64.0]]), lambda t: nisa.iota(t, [[1, 64]], 0.5),
           lambda t: nisa.affine_select(t, [[1.5, 64]], 1, t, 0.0),
           lambda t: nisa.affine_select(t, [[1, 64]], 0.5, t, 0.0), lambda t: t[:, 0:'8'], lambda t: nl.ndarray((8.0, 2), t.dtype),
           *loops(nl, 'affine_range', 'sequential_range', 'static_range', 'dynamic_range')]
EARLIER = [lambda t: t[onl.arange(128)[:, None], onl.arange(8.0)[None, :]], lambda t: onl.mgrid[0:64.5, 0:2],
           lambda t: onl.ndarray((4, onl.par_dim(64.5), 2), t.dtype), lambda t: t[:, 0:64 / 2],
           lambda t: t[:, onl.ds(0, 8.0)], *loops(onl, 'affine_range', 'sequential_range', 'static_range')]

@pytest.mark.parametrize('dialect, body', [('nki', b) for b in CURRENT] + [('neuronxcc.nki', b) for b in EARLIER])
def test_fractions_are_refused(dialect, body):
    with pytest.raises(KernelError, match='whole number|positive number') as e: trace(of(body, dialect), X)
    assert e.value.line

@pytest.mark.parametrize('body', [
    lambda p, f, t: t[p * p, f], lambda p, f, t: t[p, f * f], lambda p, f, t: t[p * f, f],
    lambda p, f, t: onl.copy(t[p, f], mask=p * f < 50),
    lambda p, f, t: [onl.copy(t[p, f], mask=i * p * f < 50) for i in onl.affine_range(2)]])
def test_products_of_index_arrays_are_refused(body):
    p, f = onl.arange(128)[:, None], onl.arange(64)[None, :]
    with pytest.raises(KernelError, match='a product of two index arrays') as e:
        trace(of(lambda t: body(p, f, t), 'neuronxcc.nki'), X)
    assert e.value.line

@pytest.mark.parametrize('dialect', ['nki', 'neuronxcc.nki'])
def test_arrays_of_numpy_are_no_indices(dialect):
    p, f = np.mgrid[0:128, 0:64]
    for key in ((p, f), (p[:, :1], f[:1]), (slice(None), np.arange(4))):
        with pytest.raises(KernelError, match='an array of NumPy is no index'): trace(of(lambda t: t[key], dialect), X)
    assert run(of(lambda t: t[:, np.int64(3):np.int32(7)], dialect), X)[0].shape == X.shape

def test_a_loop_variable_times_an_index_array_is_unrolled():
    @old.jit
    def kernel(x):
        out, (p, f) = onl.ndarray((3, 16, 4), x.dtype, buffer=onl.shared_hbm), onl.mgrid[0:16, 0:4]
        for i in onl.affine_range(3): onl.store(out[i, p, f], onl.load(x[p + i * p, f]))
        return out
    np.testing.assert_array_equal(run(kernel, X)[0], np.stack([X[:16 * k:k, :4] for k in (1, 2, 3)]))

def test_backwards_in_each_dialect():
    for dialect, hint in (('nki', r'\.ap\('), ('neuronxcc.nki', 'nl.arange')):
        with pytest.raises(KernelError, match=hint): trace(of(lambda t: t[:, ::-1], dialect), X)

@pytest.mark.parametrize('dtype', ['int32', 'uint8'])
def test_a_bias_of_the_earlier_dialect_is_a_float(dtype):
    with pytest.raises(KernelError, match='a bias of the earlier dialect is a float'):
        run(of(lambda t: oisa.activation(np.exp, t, bias=onl.zeros((128, 1), dtype)), 'neuronxcc.nki'), X)

# --- the counter of a loop whose length is in memory

def counted(body, after=lambda t, x: None):
    def kernel(x, count):
        out, t, c = (nl.ndarray(s.shape, s.dtype, buffer=b) for s, b in (
            (x, nl.shared_hbm), (x, nl.sbuf), (count, nl.sbuf)))
        nisa.dma_copy(t, x)
        nisa.dma_copy(c, count)
        n = nisa.register_alloc()
        nisa.register_load(n, c)
        for i in nl.dynamic_range(n): found = body(t, i)
        after(t, found)
        nisa.dma_copy(out, t)
        return out
    return kernel

def when(holds, t):
    if holds: nisa.memset(t, 0.0)

@pytest.mark.parametrize('body', [
    lambda t, i: when(i > 2, t), lambda t, i: when(i < 1, t), lambda t, i: when(i == 0, t), lambda t, i: when(i != 0, t),
    lambda t, i: when(i in (1, 2), t), lambda t, i: when(i % 2, t), lambda t, i: when(i, t), lambda t, i: t[:, i // 2],
    lambda t, i: t[:, i * i], lambda t, i: nisa.memset(t, float(i)), lambda t, i: [1.0, 2.0][i], lambda t, i: range(i),
    lambda t, i: t[:, 0:i], lambda t, i: nisa.tensor_scalar(t, t, nl.add, i), lambda t, i: t[:, nl.ds(0, i)],
    lambda t, i: [nisa.memset(t, 0.0) for _ in nl.affine_range(i)]])
def test_nothing_is_decided_by_a_counter_without_values(body):
    with pytest.raises(KernelError, match='how often this loop turns is in memory') as e:
        trace(counted(body), X, np.int32([[3]]), chip='trn2')
    assert e.value.line and e.value.kind == 'unsupported'

def test_a_tile_of_such_a_loop_ends_with_it():
    def made(t, i):
        u = nl.ndarray(t.shape, t.dtype)
        nisa.memset(u, 1.0)
        return u
    with pytest.raises(KernelError, match='is used after its loop, but how often'):
        trace(counted(made, lambda t, u: nisa.tensor_copy(t, u)), X, np.int32([[3]]), chip='trn2')

def test_a_counter_is_an_index():
    def body(t, i): nisa.memset(t[:, nl.ds(4 * i + 8, 2)], 7.0)
    want = X.copy()
    want[:, [8, 9, 12, 13, 16, 17]] = 7
    np.testing.assert_array_equal(run(counted(body), X, np.int32([[3]]), chip='trn2')[0], want)
