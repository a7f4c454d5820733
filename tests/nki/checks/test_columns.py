"A per-partition operand has an element in every partition: no lane reads another's."
import numpy as np
import pytest
from dialects import nisa, nl, normal
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import assert_ok, trace
from kernel_lab.nki.checks.rules_elementwise import COLUMNS, OTHER_COLUMNS

X = normal(128, 64)
USES = {                            # what takes a column: a function of dst, data and that column
    ('tensor_scalar', 'operand0'): lambda d, t, c: nisa.tensor_scalar(d, t, nl.multiply, c),
    ('tensor_scalar', 'operand1'): lambda d, t, c: nisa.tensor_scalar(d, t, nl.multiply, 2.0, op1=nl.add, operand1=c),
    ('scalar_tensor_tensor', 'operand0'): lambda d, t, c: nisa.scalar_tensor_tensor(d, t, nl.multiply, c, nl.add, t),
    ('activation', 'bias'): lambda d, t, c: nisa.activation(d, nl.exp, t, bias=c),
    ('activation', 'scale'): lambda d, t, c: nisa.activation(d, nl.exp, t, scale=c),
    ('tensor_scalar_reduce', 'operand0'): lambda d, t, c: nisa.tensor_scalar_reduce(d, t, nl.multiply, c, nl.add, d[:, 0:1]),
    ('tensor_scalar_reduce', 'reduce_init'): lambda d, t, c: nisa.tensor_scalar_reduce(
        d, t, nl.multiply, 2.0, nl.add, d[:, 0:1], reduce_cmd='load_reduce', reduce_init=c),
    ('tensor_tensor_scan', 'initial'): lambda d, t, c: nisa.tensor_tensor_scan(d, t, t, c, nl.multiply, nl.add),
    ('tensor_scalar_cumulative', 'imm0'): lambda d, t, c: nisa.tensor_scalar_cumulative(d, t, nl.add, nl.add, c),
    ('tensor_scalar_cumulative', 'imm1'): lambda d, t, c: nisa.tensor_scalar_cumulative(
        d, t, nl.add, nl.add, 1.0, c, 'load_reduce'),
    ('range_select', 'bound0'): lambda d, t, c: nisa.range_select(d, t, nl.greater_equal, nl.less, c, t[:, 0:1], 'idle'),
    ('range_select', 'bound1'): lambda d, t, c: nisa.range_select(d, t, nl.greater_equal, nl.less, t[:, 0:1], c, 'idle'),
    ('dropout', 'prob'): lambda d, t, c: nisa.dropout(d, t, c),
    ('exponential', 'max_value'): lambda d, t, c: nisa.exponential(d, t, c),
    ('exponential', 'reduce_init'): lambda d, t, c: nisa.exponential(d, t, 0.0, d[:, 0:1], 'load_reduce', c),
    ('activate2', 'imm0'): lambda d, t, c: nisa.activate2(d, nl.exp, t, c, 1.0, nl.multiply, nl.add),
    ('activate2', 'imm1'): lambda d, t, c: nisa.activate2(d, nl.exp, t, 1.0, c, nl.multiply, nl.add),
    ('activate2', 'relu_param'): lambda d, t, c: nisa.activate2(d, 'prelu', t, 1.0, 0.0, nl.multiply, nl.add, c)}

def program(use, rows):
    def kernel(x):
        out, t, d = (nl.ndarray(x.shape, x.dtype, buffer=b) for b in (nl.shared_hbm, nl.sbuf, nl.sbuf))
        nisa.dma_copy(t, x)
        use(d, t, t[0:rows, 3:4])
        nisa.dma_copy(out, d)
        return out
    return trace(kernel, X, chip='trn3')

def test_every_column_is_tried():
    assert {*USES} == {(o, k) for table in (COLUMNS, OTHER_COLUMNS) for o, ks in table.items() for k in ks}

@pytest.mark.parametrize('use', USES.values(), ids=map(' '.join, USES))
def test_a_column_has_all_partitions(use):
    assert_ok(program(use, 128))
    for rows in (1, 32):
        with pytest.raises(KernelError, match='a per-partition operand is one column|not broadcast|different shapes'):
            assert_ok(program(use, rows))

def test_a_tile_of_one_partition_has_columns_of_one():
    def kernel(x):
        out, t = (nl.ndarray((1, 64), x.dtype, buffer=b) for b in (nl.shared_hbm, nl.sbuf))
        nisa.dma_copy(t, x[0:1])
        nisa.tensor_scalar(t, t, nl.multiply, t[0:1, 0:1])
        nisa.dma_copy(out, t)
        return out
    assert np.prod(assert_ok(trace(kernel, X, chip='trn2')).tensors[0].shape) == X.size
