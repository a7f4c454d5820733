"A kernel file that asks whether a version of NKI has a name gets Python's answer; one that uses the name is told."
import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, trace_source

MODULES = ('nki.isa', 'nki.language', 'neuronxcc.nki.isa', 'neuronxcc.nki.language')
KERNEL = '''
import {root}, {module} as m
import {root}.language as nl
{asks}
@{root}.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    {uses}
    nl.store(out, nl.load(x))
    return out
'''
ASKS = ['assert not hasattr(m, "frobnicate")', 'assert getattr(m, "frobnicate", 5) == 5',
        'try: m.frobnicate\nexcept AttributeError: pass', 'try: from {module} import frobnicate\nexcept ImportError: pass',
        'import contextlib\nwith contextlib.suppress(ImportError): from {module} import (memset, frobnicate as f)']

def traced(module, asks='', uses=''):
    text = KERNEL.format(root=module.rsplit('.', 1)[0], module=module, asks=asks.format(module=module), uses=uses)
    return trace_source(text, None, [ArraySpec((128, 4), np.float32)], 'trn2')

@pytest.mark.parametrize('module', MODULES)
@pytest.mark.parametrize('asks', ASKS)
def test_who_asks_is_answered(module, asks): assert len(traced(module, asks).instructions) == 2

@pytest.mark.parametrize('module', MODULES)
def test_who_asks_while_traced_is_answered(module):
    assert len(traced(module, uses='assert not hasattr(m, "frobnicate")').instructions) == 2

@pytest.mark.parametrize('module', MODULES)
@pytest.mark.parametrize('where, line', [('m.frobnicate', 4), ('from {module} import frobnicate', 4),
                                         ('from {module} import memset, frobnicate', 4)])
def test_who_uses_it_is_told(module, where, line):
    with pytest.raises(KernelError, match=rf'{module}\.(frobnicate|memset) does not exist in NKI') as e:
        traced(module, where)
    assert e.value.line == line and e.value.kind == 'unsupported'

@pytest.mark.parametrize('module', MODULES)
def test_who_uses_it_in_a_kernel_is_told(module):
    with pytest.raises(KernelError, match='does not exist in NKI') as e: traced(module, uses='m.frobnicate(x)')
    assert e.value.line == 8
