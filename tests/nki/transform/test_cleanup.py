"What is loaded twice is loaded once, whoever reads it: an operand, an index of a gather or of a scatter."
import numpy as np
import pytest

from kernel_lab.nki import ArraySpec, assert_ok, execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.cleanup import clean

SOURCE = '''import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, rows):
    out = nl.ndarray((32, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    one = nl.ndarray((32, 1), dtype=rows.dtype, buffer=nl.sbuf)
    other = nl.ndarray((32, 1), dtype=rows.dtype, buffer=nl.sbuf)
    t = nl.ndarray((32, 64), dtype=x.dtype, buffer=nl.sbuf)
    u = nl.ndarray((32, 64), dtype=x.dtype, buffer=nl.sbuf)
    s = nl.ndarray((32, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=one, src=rows)
    nisa.dma_copy(dst=other, src=rows)
    nisa.dma_copy(dst=t, src=x.ap([[64, 32], [1, 64]], vector_offset=one, indirect_dim=0))
    nisa.dma_copy(dst=u, src=x.ap([[64, 32], [1, 64]], vector_offset=other, indirect_dim=0))
    nisa.tensor_tensor(dst=s, data1=t, data2=u, op=nl.add)
    STORE
    return out
'''
STORES = {'plain': 'nisa.dma_copy(dst=out, src=s)',
          'scatter': 'nisa.dma_copy(dst=out.ap([[64, 32], [1, 64]], vector_offset=other, indirect_dim=0), src=s)'}


@pytest.mark.parametrize('store', STORES)
def test_an_index_that_is_loaded_twice(store):
    specs = [ArraySpec((32, 64), 'float32'), ArraySpec((32, 1), 'int32')]
    program = assert_ok(trace_source(SOURCE.replace('STORE', STORES[store]), None, specs, 'trn2'))
    after = clean(program)
    assert len(after.instructions) < len(program.instructions)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((32, 64), np.float32), rng.permutation(32).astype(np.int32)[:, None]]
    assert execute(assert_ok(after), *arrays)[0].tobytes() == execute(program, *arrays)[0].tobytes()
