"""Calls that do not fit: every function of both dialects says which argument is wrong, in which line, and how it is
called; loop variables and tiles meet Python's numbers as a reader expects."""
import inspect
import math
import operator

import numpy as np
import pytest
from dialects import nisa, nki, nl, normal, oisa, old, onl, run
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, trace
from kernel_lab.nki.ir.instructions import INSTRUCTIONS
from kernel_lab.nki.lang.isa_core import BadCall

X = normal(128, 64)
MODULES = {'nki.isa': (nisa, nki.jit), 'nki.language': (nl, nki.jit), 'old isa': (oisa, old.jit),
           'old language': (onl, old.jit)}
CALLBACKS = ('fori_loop', 'while_loop')                     # the tracer speaks for these: their bodies are the kernel's
SAMPLE = ('load', 'store', 'affine_range', 'zeros', 'multiply', 'sum', 'softmax', 'where', 'expand_dims', 'program_id')

def functions(module):
    "The instructions of a module, and a sample of a language's functions."
    names = [k for k in (*INSTRUCTIONS, *SAMPLE) if inspect.isfunction(vars(module).get(k))]
    return [(k, vars(module)[k]) for k in names]

def refusal(jit, use):
    "The error of a kernel that calls `use(tile)`."
    @jit
    def kernel(x): use(nl.load(x))
    with pytest.raises(KernelError) as e: trace(kernel, ArraySpec((128, 64)), chip='trn3')
    return e.value

@pytest.mark.parametrize('place', MODULES)
def test_every_function_names_what_does_not_fit(place):
    module, jit = MODULES[place]
    wrong = {}
    for name, f in functions(module):
        takes = inspect.signature(f).parameters.values()
        needed = [p.name for p in takes if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        calls = {'unknown': lambda t: f(t, no_such_argument=1), 'many': lambda t: f(*[t] * 30)}
        if needed: calls['none'] = lambda t: f()
        for how, call in calls.items():
            e = refusal(jit, call)
            says = needed[0] if how == 'none' else 'no_such_argument' if how == 'unknown' else 'too many'
            is_good = isinstance(e, BadCall) and isinstance(e, TypeError) and e.instruction == f.__name__ and e.line
            if not (is_good and says in str(e) and f'It is called as {f.__name__}(' in str(e)): wrong[name, how] = str(e)
    assert not wrong

def test_the_missing_operand_is_named():
    e = refusal(nki.jit, lambda t: nisa.tensor_copy(src=t))
    assert (e.operand, e.instruction, e.hint) == (
        'dst', 'tensor_copy', "It is called as tensor_copy(dst, src, engine='', *, mask=None).")

@pytest.mark.parametrize('use, says', [
    (lambda t: nisa.memset(t, None), 'operand value is None'), (lambda t: nl.multiply(t, None), 'operand y is None'),
    (lambda t: nl.sum(t, axis=None), 'operand axis is None'), (lambda t: nisa.nc_transpose(t, 3), 'nc_transpose(dst, data'),
    (lambda t: nisa.iota(t, 3), 'iota(dst, pattern'), (lambda t: t.astype(), '.astype(dtype)'),
    (lambda t: t.permute(3), '.permute(dims)'), (lambda t: nl.ds(3), 'nl.ds(start, size)'),
    (lambda t: nl.fori_loop(0, 3), 'fori_loop(lower, upper, body_fun'), (lambda t: t.ap(), '.ap(pattern')])
def test_what_cannot_be_an_operand_is_said_with_the_call(use, says): assert says in str(refusal(nki.jit, use))

def test_a_library_may_try_one_call_and_then_another():
    def kernel(x):
        out, t = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.load(x)
        try: nl.store(out, t, t, t, t, t, t)
        except TypeError: nl.store(out, t)
        return out
    np.testing.assert_array_equal(run(kernel, X)[0], X)

NUMBERS = {'np.minimum': lambda i: np.minimum(i, 2), 'np.maximum': lambda i: np.maximum(1, i), 'max': lambda i: max(i, 1),
           'min': lambda i: min(i + 1, 3), 'clip': lambda i: np.clip(i, 0, 2), 'shift': lambda i: 1 << i,
           'power': lambda i: 2 ** i, 'invert': lambda i: ~i + 5, 'round': round, 'floor': lambda i: math.floor(i / 2),
           'half': lambda i: i // 2, 'odd': lambda i: i % 2, 'int': int, 'truth': lambda i: int(i == 2),
           'times truth': lambda i: (i > 1) * 3, 'numpy number': lambda i: int(np.float32(2) * i),
           'numpy operator': lambda i: np.subtract(9, i), 'array': lambda i: np.array([i, 4])[0],
           'divmod': lambda i: divmod(9, i + 1)[1], 'and': lambda i: 3 & i, 'root': lambda i: int(np.sqrt(i))}

@pytest.mark.parametrize('jit, lang', [(nki.jit, nl), (old.jit, onl)])
def test_numbers_of_loop_variables(jit, lang):
    for name, f in NUMBERS.items():
        @jit
        def kernel(x, f=f):
            out = lang.ndarray((4, 64), x.dtype, buffer=lang.shared_hbm)
            for i in lang.affine_range(4): lang.store(out[i:i + 1], lang.load(x[lang.ds(f(i), 1), 0:64]))
            return out
        np.testing.assert_array_equal(run(kernel, X)[0], np.stack([X[int(f(i))] for i in range(4)]), name)

WITH_TILES = {'*': operator.mul, '-': operator.sub, '+': operator.add, 'rev *': lambda t, i: i * t,
              'rev -': lambda t, i: i - t, 'rev +': lambda t, i: i + t, '/': lambda t, i: t / (i + 1),
              '>': lambda t, i: (t > i) * t, '==': lambda t, i: (t == i) * 5.0, 'truth': lambda t, i: t * (i > 1)}

@pytest.mark.parametrize('jit, lang', [(nki.jit, nl), (old.jit, onl)])
def test_loop_variables_are_numbers_for_tiles(jit, lang):
    x = np.round(normal(4, 64))
    for name, f in WITH_TILES.items():
        @jit
        def kernel(x, f=f):
            out = lang.ndarray((4, 64), x.dtype, buffer=lang.shared_hbm)
            for i in lang.affine_range(4): lang.store(out[i:i + 1], f(lang.load(x[i:i + 1]), i))
            return out
        want = np.stack([f(x[i], i) for i in range(4)])
        np.testing.assert_allclose(run(kernel, x)[0], want, rtol=1e-6, err_msg=name)

BINARY = '+ - * / % ** & | ^ << >> < <= > >= == !='.split()

@pytest.mark.sampled(3)
@pytest.mark.parametrize('sides', ['tile, number', 'number, tile', 'tile, tile'])
def test_every_operator_of_python_on_tiles(sides):
    "On integers, where all have a meaning; what NKI has no instruction for says so."
    x, number = np.arange(32, dtype=np.int32).reshape(4, 8) % 5 + 1, 2
    for name in BINARY:
        f = eval(f'lambda a, b: a {name} b')
        both = lambda t: [t if s == 'tile' else number for s in sides.split(', ')]
        @nki.jit
        def kernel(x, f=f):
            out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
            nl.store(out, nl.copy(f(*both(nl.load(x))), dtype=nl.float32))
            return out
        np.testing.assert_allclose(run(kernel, x)[0], f(*both(x)).astype(np.float32), rtol=1e-5, err_msg=name)
    for name in ('floordiv', 'matmul'):
        assert 'Write nl.' in str(refusal(nki.jit, lambda t, f=getattr(operator, name): f(t, t)))

@pytest.mark.parametrize('use, says', [
    (lambda t: t + np.ones((128, 64)), 'an array of the host does not meet a tile'),
    (lambda t: nl.store(t, t, mask=np.arange(64) < 3), 'mask= takes a comparison'),
    (lambda t: t.__setitem__(0, np.ones(64)), 'takes a tile or a number, not a ndarray'),
    (lambda t: t.__setitem__(0, [1]), 'takes a tile or a number, not a list'),
    (lambda t: nl.ndarray((4, 4), np.float64), 'NeuronCores have no float64. Convert to float32 first'),
    (lambda t: nl.dot(t, t), 'Write nl.matmul(x, y)'), (lambda t: nl.arange(64), 'Write slices'),
    (lambda t: nl.concatenate([t, t]), 'a wider tile'), (lambda t: nl.float64, 'Write nl.float32')])
def test_habits_of_the_host_end_in_the_words_of_nki(use, says):
    e = refusal(nki.jit, use)
    assert says in str(e) and 'Error: ' not in str(e)
