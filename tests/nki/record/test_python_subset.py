"""Kernels whose Python the vendor's compiler does not take: a warning that names the line, a refusal under strict."""
import ast
import warnings

import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, trace
from kernel_lab.nki.lang.trace import load_source
from kernel_lab.nki import installed
from kernel_lab.nki.record.python_subset import PYTHON_TABLE, lines_outside

HEAD = '''import nki
import nki.language as nl
import nki.isa as nisa
ALL = [n for n in range(3)]
def stored(out, t): nl.store(out, t)
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
'''
TAIL = '    stored(out, nl.load(x))\n    return out\n'

def traced(line, strict=False):
    "The warnings of a kernel whose line 9 is this one."
    source = HEAD + ''.join(f'    {part}\n' for part in line.split('\n')) + TAIL
    with warnings.catch_warnings(record=True) as seen, installed():
        warnings.simplefilter('always')
        trace(load_source(source), ArraySpec((128, 64)), chip='trn2', strict=strict)
    return [str(w.message) for w in seen]

OUTSIDE = ['parts = [n for n in range(3)]', 'total = sum(n for n in range(3))', 'table = {n: 1 for n in range(3)}',
           'several = {1, 2}', 'several = {n for n in range(2)}', 'table = {1: 2}', "table = {'a': 1, (0, 1): 2}",
           'pick = lambda t: t', 'for k, n in enumerate([1, 2]): pass', 'for a, b in zip([1], [2]): pass',
           'for n in reversed([1, 2]): pass', 'for n in sorted([1, 2]): pass', 'import math', 'from math import sqrt',
           'try: n = 1\nexcept ValueError: n = 2', 'if (n := 3) > 2: pass', 'n = 1\ndel n', 'class Config: size = 3',
           'if x is None: raise ValueError', 'global ALL\nALL = []', 'match 3:\n    case 3: pass',
           'def each():\n    yield 1\nfor n in each(): pass']

@pytest.mark.parametrize('line', OUTSIDE)
def test_outside(line):
    said, = traced(line)
    assert 'is outside the Python' in said and said.startswith('Line '), said
    assert 9 <= int(said.split(':')[0].split()[1]) <= 9 + line.count('\n')
    with pytest.raises(KernelError, match='is outside the Python') as e: traced(line, strict=True)
    assert e.value.kind == 'unsupported' and 9 <= e.value.line <= 9 + line.count('\n')

INSIDE = ['for n in range(3): pass', 'for n in [1, 2]: pass', 'for n in (1, 2): pass', 'n = 3\nwhile n: n -= 1',
          "table = {'a': 1}\nfor k in table.keys(): pass", 'parts = []\nparts.append(1)', 'assert x.shape[0] == 128',
          "print(f'{x.shape}')", 'n = 1 if x.shape[0] > 2 else 2', 'a, b = x.shape', 'for i in nl.affine_range(2): pass',
          'def inner(t): return t\ninner(x)', 'n, m = divmod(7, 2)', "table = dict()\ntable['a'] = 1", 'act = nl.relu']

@pytest.mark.parametrize('line', INSIDE)
def test_inside(line):
    assert traced(line) == [] and traced(line, strict=True) == []

def test_functions_that_a_kernel_calls_are_read_and_others_are_not():
    source = HEAD.replace('def stored(out, t): nl.store(out, t)',
                          'def stored(out, t): [nl.store(out, t) for _ in range(1)]\ndef unused(): return {1: 2}') + TAIL
    assert [(line, what) for line, what, _ in lines_outside(ast.parse(source), 'kernel')] == [(5, 'a list comprehension')]

def test_the_earlier_dialect_is_not_read():
    source = (HEAD + '    parts = [n for n in range(3)]\n' + TAIL).replace('import nki\n', 'import neuronxcc.nki as nki\n')
    source = source.replace('import nki.language', 'import neuronxcc.nki.language').replace('import nki.isa', 'import math')
    with warnings.catch_warnings(), installed():
        warnings.simplefilter('error')
        trace(load_source(source), ArraySpec((128, 64)), strict=True)

def test_strict_is_no_argument_of_the_kernel():
    from kernel_lab.nki import simulate
    from dialects import nl
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out
    x = np.ones((128, 8), np.float32)
    np.testing.assert_array_equal(simulate(kernel, x, strict=True), x)

def test_every_row_of_the_table_says_what_to_write():
    assert all(what and hint.endswith('.') for what, hint in PYTHON_TABLE.values())
