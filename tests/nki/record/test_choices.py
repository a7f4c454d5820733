"Masks joined with |, turned round with ~ or made by !=; chained comparisons; slices that run backwards."
import numpy as np, pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import trace
from dialects import normal, oisa as nisa, old as nki, onl as nl, run

X = normal(128, 64)
P, F = np.arange(128)[:, None], np.arange(64)[None, :]
MASKS = [
    lambda p, f: f != 3, lambda p, f: (f < 5) | (f > 50), lambda p, f: ~((f > 8) & (p < 64)), lambda p, f: (p != 7) &
    (f != 9), lambda p, f: (p + f < 40) | (p - f > 60), lambda p, f: (
        (f < 10) | (p < 10)) & (p + f != 30), lambda p, f: (f < 40) | (f > 20), lambda p, f: (f > 3) & (f < 9)]

def kernel(x, mask, how):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    p, f = nl.arange(128)[:, None], nl.arange(64)[None, :]
    m, base = mask(p, f), nl.full((128, 64), 7.0, nl.float32)
    if how == 'store':
        nl.store(out[p, f], base)
        nl.store(out[p, f], value=nl.load(x[p, f]), mask=m)
        return out
    t = nl.load(x)
    if how == 'assign': base[p, f] = nl.exp(t[p, f], mask=m)
    if how == 'kept':
        y = nl.exp(t[p, f], mask=m)
        base[p, f] = y
    if how == 'copy': base[p, f] = nl.copy(t[p, f], mask=m)
    if how == 'operator': base[p, f] = nl.add(t[p, f], 1.0, mask=m)
    nl.store(out, base)
    return out

WANT = {
    'store': lambda x: x, 'assign': np.exp, 'kept': np.exp, 'copy': lambda x: x,
    'operator': lambda x: x + np.float32(1)}

@pytest.mark.parametrize('how', WANT)
@pytest.mark.parametrize('mask', MASKS, ids=range(len(MASKS)))
def test_masks_of_parts(mask, how):
    want = np.where(np.broadcast_to(mask(P, F), X.shape), WANT[how](X), np.float32(7))
    np.testing.assert_allclose(run(nki.jit(kernel), X, mask, how)[0], want, rtol=1e-6)

def test_not_equal_to_a_loop_variable():
    def all_but_one(x):
        out = nl.ndarray((4, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        for i in nl.affine_range(4):
            nl.store(out[i], nl.zeros((128, 64), nl.float32))
            nl.store(out[i], nl.load(x), mask=(i != 2))
        return out
    def by_if(x):
        out = nl.ndarray((4, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        for i in nl.affine_range(4):
            nl.store(out[i], nl.load(x) if i != 2 else nl.zeros((128, 64), nl.float32))
        return out
    want = np.stack([X, X, 0 * X, X])
    for f in (all_but_one, by_if): np.testing.assert_array_equal(run(nki.jit(f), X)[0], want)


@pytest.mark.parametrize(
    'pred',
    [
        lambda p, f: p != f,
        lambda p, f: p == f,
        lambda p, f: (p >= f) & (f > 5),
        lambda p, f: (p >= f) & (f != 5) if False else p > f,
        lambda p, f: (p == f) & (f < 9),
    ],
)
def test_affine_select(pred):
    def k(x):
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        p, f = nl.arange(128)[:, None], nl.arange(64)[None, :]
        nl.store(out, nisa.affine_select(pred=pred(p, f), on_true_tile=nl.load(x), on_false_value=-5.0))
        return out
    np.testing.assert_array_equal(run(nki.jit(k), X)[0], np.where(pred(P, F), X, np.float32(-5)))

def refused(f, match):
    with pytest.raises(KernelError, match=match) as e: trace(nki.jit(f), X)
    assert e.value.line

def test_what_is_refused_teaches():
    def chained(x):
        out, f = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm), nl.arange(64)[None, :]
        nl.store(out[nl.arange(128)[:, None], f], nl.load(x), mask=1 < f < 4)
        return out
    def reduced(x):
        out, f = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.shared_hbm), nl.arange(64)[None, :]
        nl.store(out, nl.sum(nl.load(x)[nl.arange(128)[:, None], f], axis=1, mask=f != 3))
        return out
    def backwards(x):
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(nl.load(x)[:, ::-1]))
        return out
    refused(chained, r'\(a < f\) & \(f < b\)')
    refused(reduced, 'joined with & only')
    refused(backwards, 'a step of at least 1')

def test_backwards_by_an_index_array():
    def k(x):
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(nl.load(x)[nl.arange(128)[:, None], 63 - nl.arange(64)[None, :]]))
        return out
    np.testing.assert_array_equal(run(nki.jit(k), X)[0], X[:, ::-1])
