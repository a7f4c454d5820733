"Tensors are called after the kernel's variables."
import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, trace, trace_source
from dialects import nisa, nl, old, oisa, onl

def names(kernel, *specs, **kw): return [t.name for t in trace(kernel, *specs, **kw).tensors]
X = ArraySpec((128, 64))

def test_current_dialect():
    def kernel(x):
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        x_tile, sums = nl.load(x), nl.ndarray((128, 1), nl.float32, name='given')
        nisa.tensor_reduce(sums, nl.add, x_tile, axis=1)
        y: object = nl.add(x_tile, 1.0)
        nl.store(out, y)
        return out
    assert set(names(kernel, X)) == {'x', 'out', 'x_tile', 'given', 'y'}

def test_earlier_dialect_operators_and_temporaries():
    @old.jit
    def kernel(a):
        out = onl.ndarray((128, 64), dtype=onl.float32, buffer=onl.shared_hbm)
        t = onl.load(a)
        both = t * 2.0 + onl.exp(t)
        scaled = oisa.activation(op=onl.exp, data=both, scale=0.5)[:, 0:64]
        onl.store(out, scaled)
        return out
    found = names(kernel, X)
    assert {'a', 'out', 't', 'both', 'scaled'} <= set(found) and len([n for n in found if n[1:].isdigit()]) == 2

def test_names_are_unique():
    def kernel(x, x_2):
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        for i in range(3):
            x_tile = nl.load(x)
            nl.store(out, x_tile)
        x = nl.load(x_2)
        nl.store(out, x)
        return out
    found = names(kernel, X, X)
    assert len(set(found)) == len(found) and {'x', 'x_2', 'x_3', 'x_tile', 'x_tile_2', 'x_tile_3'} < set(found)

def test_helpers_and_several_lines():
    def loaded(x):
        inner = nl.load(
            x,
            dtype=nl.float32)
        return inner
    def kernel(x):
        out = nl.ndarray((128, 64), nl.float32,
                         buffer=nl.shared_hbm)
        nl.store(out, loaded(x))
        return out
    assert names(kernel, X) == ['x', 'out', 'inner']

def test_without_source():
    scope = {'nl': nl}
    exec(compile('def kernel(x):\n    out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)\n    t = '
                 'nl.load(x)\n    nl.store(out, t)\n    return out', 'nowhere', 'exec'), scope)
    assert names(scope['kernel'], X) == ['x', 't1', 't2']

@pytest.mark.parametrize('name', ['two\nlines', '\x1b[31mred', 'n' * 151, 'back\rwards', '\u202eturned', 7, b'bytes'])
def test_a_name_that_no_table_can_show_is_refused_in_its_line(name):
    def kernel(x):
        t = nl.ndarray(x.shape, x.dtype, name=name)
        nisa.dma_copy(t, x)
        return x
    with pytest.raises(KernelError, match='a name is a text of one line') as e: trace(kernel, np.zeros((4, 8), np.float32))
    assert e.value.line and e.value.kind == 'trace' and '\n' not in str(e.value) and '\x1b' not in str(e.value)

@pytest.mark.parametrize('template', ['def {0}(x):\n{1}', '@nki.jit\ndef kernel({0}):\n    x = {0}\n{1}',
                                      'def kernel(x):\n{1}'])
def test_long_names_of_python_are_cut(template):
    body = '    {0} = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n    nisa.dma_copy({0}, x)\n    return {0}\n'
    long = 'n' * (150 if '({0})' in template else 5000)
    text = 'import nki, nki.isa as nisa, nki.language as nl\n' + template.format(long, body.format('o' * 5000))
    program = trace_source(text, None, [ArraySpec((4, 8), np.float32)])
    assert type(program).from_json(program.to_json()).hash == program.hash
