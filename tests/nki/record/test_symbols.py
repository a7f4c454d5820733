"Questions that Python asks of a loop variable: answered as for a number, in both dialects."
import random
import numpy as np, pytest
from kernel_lab.nki import trace
from dialects import nl as cnl, nki as current, normal, old, onl, run

X = normal(128, 64)

def scaled(nl, factor, loop):
    "A kernel that stores x · factor(i) for four i."
    def kernel(x):
        out = nl.ndarray((4, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        for i in loop(4): nl.store(out[i], nl.multiply(nl.load(x), factor(i)))
        return out
    return kernel

FACTORS = [
    lambda i: float(str(i)), lambda i: {'2': 5.0}.get(f'{i}', 1.0), lambda i: 4.0
    if f'{i}' == '1' else 1.0, lambda i: len(f'{i * 6}') * 1.0, lambda i: 1.0
    if i != 2 else 7.0, lambda i: float(format(i, 'd'))]

@pytest.mark.parametrize('lang,jit', [(cnl, current.jit), (onl, old.jit)], ids=['current', 'earlier'])
@pytest.mark.parametrize('factor', FACTORS, ids=range(len(FACTORS)))
def test_as_a_number(factor, lang, jit):
    for loop in (lang.affine_range, lang.sequential_range):
        got = run(jit(scaled(lang, factor, loop)), X)[0]
        np.testing.assert_allclose(got, np.stack([X * np.float32(factor(i)) for i in range(4)]), rtol=1e-6)

def test_type_in_the_loop_itself():
    def kernel(x):
        out = onl.ndarray((4, 128, 64), dtype=onl.float32, buffer=onl.shared_hbm)
        for i in onl.affine_range(4): onl.store(out[i], onl.multiply(onl.load(x), 2.0 if type(i) is int else 3.0))
        return out
    np.testing.assert_allclose(run(old.jit(kernel), X)[0], np.stack([2 * X] * 4), rtol=1e-6)


@pytest.mark.parametrize(
    'draw',
    [lambda rng: random.random(), lambda rng: float(np.random.rand()), lambda rng: float(rng.random())],
    ids=['python', 'numpy', 'generator'],
)
def test_random_numbers_are_drawn_for_every_iteration(draw):
    def kernel(x):
        out, rng = onl.ndarray((4, 128, 64), dtype=onl.float32, buffer=onl.shared_hbm), np.random.default_rng(0)
        for i in onl.affine_range(4): onl.store(out[i], onl.multiply(onl.load(x), draw(rng)))
        return out
    factors = {o.ins['operand0'] for o in trace(old.jit(kernel), X).instructions if o.op == 'tensor_scalar'}
    assert len(factors) == 4

def test_a_name_keeps_the_loop():
    def kernel(x):
        out = onl.ndarray((4, 128, 64), dtype=onl.float32, buffer=onl.shared_hbm)
        for i in onl.affine_range(4):
            t = onl.ndarray((128, 64), dtype=onl.float32, name=f'tile_{i}')
            t[...] = onl.load(x)
            onl.store(out[i], t)
        return out
    program = trace(old.jit(kernel), X)
    assert len(program.instructions) == 2 and any(t.name == 'tile_i0' for t in program.tensors)
