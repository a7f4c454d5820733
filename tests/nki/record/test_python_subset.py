"""Kernels whose Python the vendor's compiler does not take: a warning that names the line, a refusal under strict."""
import ast
import warnings

import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, trace
from kernel_lab.nki.lang.trace import load_source
from kernel_lab.nki import installed
from kernel_lab.nki.record.python_subset import PYTHON_TABLE, check_python, lines_outside, read_outside

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

def traced(line, strict=False, head=HEAD):
    "The warnings of a kernel whose line 9 is this one."
    source = head + ''.join(f'    {part}\n' for part in line.split('\n')) + TAIL
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
           'def each():\n    yield 1\nfor n in each(): pass', 'try: n = 1\nexcept* ValueError: n = 2',
           'several = set([1, 2])', 'raw = b"a"', 'several = frozenset((1, 2))\nfor n in several: pass',
           'def inner(t, f=lambda t: t): return f(t)\ninner(x)', 'def inner(t): return [u for u in (t,)]\ninner(x)',
           'table = {}\ntable[1] = 2', 'table = dict()\nfor n in range(2): table[n] = x', 'dict(a=1).setdefault(2, x)']

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

# a dictionary, by any way to make one; what makes it needs of a file
DICTS = {'{}': '', 'dict()': '', "{'a': 1}": '', 'dict(a=1)': '', 'made()': 'def made(): return {}', 'TABLE': 'TABLE = {}',
         "{} if x.shape[0] > 1 else dict()": '', 'TABLE.copy()': "TABLE = {'a': 1}"}
# a key that is no text; what a loop or an assignment before must say
NUMBERS = {'1': '', '(0, 1)': '', 'None': '', 'True': '', 'k': 'k = 3', 'j + 1': 'j = len(x.shape)', 'x.shape[0]': '',
           'x.shape[0] // 2': '', 'a': 'a, b = 1, 2', '-n': 'n = 0\nwhile n < 3: n += 1', 'size': 'size: int = x.bits',
           'm': 'for m in range(2): pass', 'i': 'for i in nl.affine_range(2): pass', 's': 'for s in (4, 5): pass'}
# all that stores or looks up a key
USES = ['d[KEY] = 1', 'd[KEY] = d.get("a")', 'd["a"], d[KEY] = 1, 2', 'd.setdefault(KEY, 1)', 'd.update({KEY: 1})',
        'd.update([(KEY, 1)])', 'd = dict([(KEY, 1)])', 'd = dict.fromkeys([KEY])', 'd = dict(zip([KEY], [1]))',
        'd.__setitem__(KEY, 1)', 'd |= {KEY: 1}', 'put(d, KEY)', 'put(key=KEY, table=d)', 'Box(d).put(KEY)',
        'def inside(key): d[key] = 1\ninside(KEY)']
HELPERS = """def put(table, key): table[key] = 1
class Box(nl.NKIObject):
    def __init__(self, table): self.table = table
    def put(self, key): self.table[key] = 1
"""

def keyed(make, key, use, before=''):
    "The lines that are found in a kernel that makes a dictionary and uses a key."
    lines = f'{NUMBERS.get(key, before)}\nd = {make}\n{use.replace("KEY", key)}'.strip('\n').split('\n')
    source = f'{HEAD}{TAIL}{HELPERS}{DICTS[make]}\ndef kernel(x):\n' + ''.join(f'    {part}\n' for part in lines)
    ast.parse(source)
    return [what for _, what, _ in read_outside(source, 'kernel')]

def mixes(keys):
    "(way to make it, key, use) with two of the three at their first, and each way with each use."
    makes, keys = list(DICTS), list(keys)
    yield from ((m, k, USES[0]) for m in makes for k in keys)
    yield from ((makes[0], k, u) for k in keys for u in USES)
    yield from ((m, keys[0], u) for m in makes for u in USES)

def test_a_key_that_is_no_text_is_found_however_it_gets_into_a_dictionary():
    for mix in mixes(NUMBERS): assert keyed(*mix) == ['a dictionary whose keys are no texts'], mix

TEXTS = {"'a'": '', "f'{x.shape}'": '', 'str(1)': '', "'a' * 2": '', 'x.name': '', 'both': "both = 1\nboth = 'a'", 'nl.relu': '',
         'who': 'who = unheard(x)', 'part': "for part in names(x): pass", "'a' + str(3)": '', 'last': "last = x.parts[-1]"}

def test_a_key_that_may_be_a_text_is_none_of_them():
    for make, key, use in mixes(TEXTS): assert keyed(make, key, use, TEXTS[key]) == [], (make, key, use)

def test_numbers_as_keys_of_what_may_be_no_dictionary_are_none_of_them():
    for make in ('[1, 2]', 'x', 'unheard()', 'nl.ndarray((128, 4), nl.float32)', '[] if x else {}', 'x.table'):
        source = f'def put(t, k): t[k] = 1\ndef kernel(x):\n    d = {make}\n    d[1] = 2\n    put(d, 1)\n    put(d, "a")\n'
        assert read_outside(source, 'kernel') == [], make

# where a list comprehension may stand, and the line of it; a kernel that reaches it, and one that does not
PLACES = {
    'method': ('class C(nl.NKIObject):\n    def go(self):\n        LIST\n', 'C().go()', 'C()'),
    'method of an argument': ('class C(nl.NKIObject):\n    def go(self):\n        LIST\n', 'x.go()', 'x.stop()'),
    'method of an annotated argument': ('class B:\n    def go(self):\n        LIST\ndef put(b: B): b.go()', 'put(x)',
                                        'x.go()'),
    'method by a method': ('class C(nl.NKIObject):\n    def go(self): self.on()\n    def on(self):\n        LIST\n', 'C().go()', 'C()'),
    'inherited method': ('class B(nl.NKIObject):\n    def go(self):\n        LIST\nclass C(B): pass', 'C().go()', 'x.stop()'),
    'static method': ('class C(nl.NKIObject):\n    @staticmethod\n    def go():\n        LIST\n', 'C.go()', 'C.stop'),
    'property': ('class C(nl.NKIObject):\n    @property\n    def size(self):\n        LIST\n', 'C().size', 'C()'),
    'initialiser': ('class C(nl.NKIObject):\n    def __init__(self):\n        LIST\n', 'C()', 'x.C'),
    'operator': ('class C(nl.NKIObject):\n    def __add__(self, other):\n        LIST\n', 'C() + C()', 'x + x'),
    'class body': ('class C(nl.NKIObject):\n    parts = LIST\n', 'C()', 'x.C'),
    'function in a function': ('def f():\n    def g():\n        LIST\n    g()', 'f()', 'x.f()'),
    'function that is passed on': ('def f():\n    LIST\ndef g(h): h()', 'g(f)', 'g(x)'),
    'decorator': ('def deco(f):\n    def inner():\n        LIST\n    return inner\n@deco\ndef g(): pass', 'g()', 'x.g()'),
    'branch': ('def f(n):\n    if n:\n        LIST\n', 'f(0)', 'x.f(0)')}

@pytest.mark.parametrize('place', PLACES)
def test_all_that_a_kernel_reaches_is_read_and_nothing_else(place):
    text, call, other = PLACES[place]
    text = text.replace('LIST', '[n for n in range(3)]')
    found = read_outside(f'{text}\ndef kernel(x):\n    {call}\n', 'kernel')
    at = 1 + next(k for k, line in enumerate(text.splitlines()) if 'for n in' in line)
    assert (at, 'a list comprehension') in [row[:2] for row in found], found
    found = read_outside(f'{text}\ndef kernel(x):\n    {other}\n', 'kernel')
    assert 'a list comprehension' not in [what for _, what, _ in found], found

def test_a_method_is_warned_of_with_its_line_and_refused_under_strict():
    method = 'class Row(nl.NKIObject):\n    def fill(self, t):\n        self.table = {}\n        self.table[1] = t\n'
    head = HEAD.replace('@nki.jit\n', f'{method}@nki.jit\n')
    said, = traced('Row().fill(x)', head=head)
    with pytest.raises(KernelError, match='keys are no texts') as e: traced('Row().fill(x)', strict=True, head=head)
    assert said.startswith('Line 9: ') and e.value.line == 9

# values that Python computes for a kernel: what of them the compiler cannot take
VALUES = {'lambda t: t': 'a lambda', '[1, lambda t: t]': 'a lambda', "{'a': lambda t: t}": 'a lambda', '{1, 2}': 'a set',
          'set([1])': 'a set', '{1: 2}': 'a dictionary whose keys are no texts', '(n for n in ())': 'a generator expression',
          '{n: 1 for n in range(3)}': 'a dictionary whose keys are no texts', '[n for n in range(3)]': None,
          "{n: 1 for n in 'ab'}": None, 'sorted([1])': None, "{'a': 1}": None, '{nl.int32: 1}': None, '[{}, ()]': None}

@pytest.mark.parametrize('value', VALUES)
def test_values_of_the_file_and_defaults_are_read_where_they_are_used(value):
    expected = [(1, VALUES[value])] if VALUES[value] else []
    for text in (f'V = {value}\ndef kernel(x): return V', f'def f(v={value}): return v\ndef kernel(x): return f()',
                 f'def kernel(x, v={value}): return v'):
        assert [row[:2] for row in read_outside(text, 'kernel')] == expected, text
    assert read_outside(f'V = {value}\ndef kernel(x): return x\ndef f(V): return V', 'kernel') == []

def test_stores_of_the_file_into_a_dictionary_that_the_kernel_uses():
    text = 'V = {}\nV[1] = 2\nV.update({3: 4})\nW = {}\nW[1] = 2\ndef kernel(x): return V'
    assert [line for line, _, _ in read_outside(text, 'kernel')] == [2, 3]

def test_a_class_must_be_for_kernels():
    bases = {'': 1, '(object)': 1, '(Other)': 1, '(NKIObject, Other)': 1, '(NKIObject)': 0, '(nl.NKIObject)': 0, '(Enum)': 0}
    for base, outside in bases.items():
        text = f'class C{base}: size = 3\ndef kernel(x): return C'
        assert [row[:2] for row in read_outside(text, 'kernel')] == [(1, 'a class that is not derived from NKIObject')] * outside
        assert read_outside(text.replace('return C', 'return x'), 'kernel') == []

def test_enumerations_as_keys_are_in_doubt_and_pass():
    text = 'class E(Enum):\n    one = 1\nT = {E.one: 2}\ndef kernel(x):\n    T[E.one] = 3\n    return T'
    assert read_outside(text, 'kernel') == []

def test_texts_that_are_hard_to_read_are_read_in_time():
    deep = 'def kernel(x):\n    d = {}\n    d[' + '+'.join(['1'] * 2500) + '] = 1\n'
    chain = 'def kernel(x):\n    d = {}\n' + ''.join(f'    a{n} = a{n + 1} + a{n + 1}\n' for n in range(2000)) + '    d[a0] = 1'
    calls = ''.join(f'def f{n}(t): f{n + 1}(t); f{n + 2}(t)\n' for n in range(1000)) + 'def kernel(x): f0({})'
    for text in (deep, chain, calls): read_outside(text, 'kernel')

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


@pytest.mark.parametrize('grid, is_told', [('grid=2', True), ('grid=[2]', True), ('grid=(4, 8)', True), ('grid=1', False),
                                           ('grid=(1,)', False), ("platform_target='trn2'", False)])
def test_a_grid_that_only_the_decorator_names_is_told(grid, is_told):
    "No such program is launched: the time would be that of one core without a word."
    head = HEAD.replace('@nki.jit', f'@nki.jit({grid})')
    told = ['Line 6: grid=… of a decorator has no effect in the lab: kernel is one program on one core. '
            'kernel[2] is a kernel that is launched as two.']
    assert traced('pass', head=head) == (told if is_told else [])
    source = head + TAIL
    with installed():
        one = trace(load_source(source), ArraySpec((128, 64)), chip='trn2')
        two = trace(load_source(source), ArraySpec((128, 64)), chip='trn2', grid=(2,))
    assert check_python(one) == (told[0] if is_told else None) and check_python(two) is None

def test_a_file_is_read_once_for_a_kernel_that_is_traced_often(monkeypatch):
    "A loop over calls of a kernel read the whole file at each of them; it is warned of each time."
    from kernel_lab.nki.record import python_subset
    reads, real = [], python_subset.grid_text
    monkeypatch.setattr(python_subset, 'grid_text', lambda *a: reads.append(a[1:]) or real(*a))
    with warnings.catch_warnings(record=True) as seen, installed():
        warnings.simplefilter('always')
        kernel = load_source(HEAD.replace('@nki.jit', '@nki.jit(grid=2)') + TAIL)
        for _ in range(3): trace(kernel, ArraySpec((128, 64)), chip='trn2')
        trace(kernel, ArraySpec((128, 64)), chip='trn2', grid=(2,))
    assert len(reads) == 1 and ['has no effect' in str(w.message) for w in seen] == [True] * 3

MET = HEAD.replace('@nki.jit', '@nki.jit(grid=2)') + '    nisa.core_barrier(out, (0, 1))\n' + TAIL

@pytest.mark.parametrize('chip, grid, cores', [
    ('trn1', (2,), 'one core: there are logical cores of two from trn2 on'), ('trn1', (1,), None), ('trn2', (2,), None),
    ('trn2', (4,), 'one core or two'), ('trn2', (2, 2), 'one core or two'), ('trn3', (2,), None), ('trn2', (), None)])
@pytest.mark.parametrize('text', [HEAD + TAIL, MET])
def test_a_launch_on_more_cores_than_there_are_is_told(chip, grid, cores, text):
    asked = f'kernel[{", ".join(map(str, grid))}]: the current dialect launches a kernel of {chip} on {cores}.'
    with warnings.catch_warnings(record=True) as seen, installed():
        warnings.simplefilter('always')
        p = trace(load_source(text), ArraySpec((128, 64)), chip=chip, grid=grid or None)
    told = [str(w.message) for w in seen if 'launches a kernel' in str(w.message)]
    assert told == ([f'{asked} The lab runs it all the same.'] if cores else [])
    said, no_effect = check_python(p) or '', text == MET and grid in ((1,), ())
    assert ('launches a kernel' in said, 'has no effect' in said) == (cores is not None, no_effect)

def test_a_grid_of_the_earlier_dialect_is_a_loop_and_not_told():
    text = (HEAD + TAIL).replace('import nki\nimport nki.', 'from neuronxcc import nki\nimport neuronxcc.nki.').replace(
        'import nki.isa', 'import neuronxcc.nki.isa')
    with warnings.catch_warnings(), installed():
        warnings.simplefilter('error')
        assert check_python(trace(load_source(text), ArraySpec((128, 64)), chip='trn1', grid=(4, 2))) is None
