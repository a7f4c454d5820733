"""What an error says to write instead of a function of NumPy is something that runs, and that gives its numbers."""
import re
from inspect import signature

import numpy as np
import pytest
from kernel_lab.nki import KernelError, isa as nisa, language as nl, simulate, trace
from kernel_lab.nki.lang.numpy_habits import spelling

NAMES = sorted({n for n in (*dir(np), *dir(np.ndarray), 'norm') if not n.startswith('_') and spelling(n)})
CALL = re.compile(r'nl\.(\w+)\(([\w, =]*)\)')
FUNCTIONS = {'amax': np.max, 'amin': np.min, 'norm': np.linalg.norm, 'std': np.std}
# of two numbers, of one, and along an axis: what a tile has no method or operator for
TWO = ('add', 'subtract', 'multiply', 'divide', 'maximum', 'minimum', 'power', 'hypot', 'arctan2', 'floor_divide',
       'less', 'equal', 'true_divide')
ONE = ('exp', 'log', 'sqrt', 'tanh', 'square', 'rint', 'round', 'floor', 'expm1', 'log1p', 'exp2', 'log2', 'absolute',
       'negative', 'reciprocal')
ALONG = ('sum', 'mean', 'max', 'min', 'amax', 'var', 'std', 'norm', 'prod')


@pytest.mark.parametrize('name', [n for n in NAMES if CALL.fullmatch(spelling(n))])
def test_a_call_that_is_advised_has_the_arguments_it_needs(name):
    function, given = CALL.fullmatch(spelling(name)).groups()
    pairs = [a.partition('=') for a in given.split(', ')]
    takes = signature(getattr(nl, function))
    takes.bind(*[k for k, is_named, _ in pairs if not is_named], **{k: v for k, is_named, v in pairs if is_named})
    assert {k for k, *_ in pairs} <= set(takes.parameters)


@pytest.mark.parametrize('name', TWO + ONE + ALONG)
def test_what_is_advised_gives_the_numbers_of_numpy(name):
    text = spelling(name).partition(', where')[0]
    def kernel(a, b):
        names = {}
        for k, source in (('x', a), ('y', b)):
            names[k] = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(names[k], source)
        result = eval(text, {'nl': nl}, names)
        out = nl.ndarray(result.shape, nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, nl.copy(result, dtype=nl.float32))
        return out
    a, b = np.random.default_rng(3).uniform(0.3, 1.6, (2, 128, 6)).astype(np.float32)
    function = FUNCTIONS.get(name) or getattr(np, name)
    if name == 'arctan2': a, b = b, a                                   # the first is y
    want = function(a, axis=1, keepdims=True) if name in ALONG else function(a, b) if name in TWO else function(a)
    if name == 'arctan2': a, b = b, a
    np.testing.assert_allclose(simulate(kernel, a, b, chip='trn2'), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize('does', [lambda t: divmod(t, 2), lambda t: t // 2, lambda t: t @ t, round,
                                  lambda t: t.fill(0)])
def test_an_operator_that_tiles_lack_says_what_to_write(does):
    def kernel(x): does(nl.load(x))
    with pytest.raises(KernelError, match=r'Write n(l|isa)\.'): trace(kernel, np.ones((128, 8), np.float32))


@pytest.mark.parametrize('axis, keepdims', [(2, False), (2, True), ((1, 2), False), ((1, 2), True)])
def test_a_variance_has_the_shape_of_a_mean(axis, keepdims):
    def kernel(x):
        t = nl.load(x)
        same = nl.var(t, axis, keepdims=keepdims)
        assert same.shape == nl.mean(t, axis, keepdims=keepdims).shape
        out = nl.ndarray(same.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(out, same)
        return out
    x = np.random.default_rng(0).standard_normal((128, 3, 5)).astype(np.float32)
    found = simulate(kernel, x)
    np.testing.assert_allclose(found.reshape(-1), x.var(axis).reshape(-1), rtol=1e-4)
