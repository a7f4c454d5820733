"""What numpy cannot compute is said truly: of shapes where shapes do not meet, of values where it is the values."""
import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, trace_source
from kernel_lab.nki.executor.bodies import named_failure
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.ir.nodes import Instruction

KERNEL = '''import nki.language as nl
import nki.isa as nisa
def kernel(x, y):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        a, b = nl.load(x[i * 128:(i + 1) * 128]), nl.load(y[i * 128:(i + 1) * 128])
        t = nl.ndarray(a.shape, x.dtype, buffer=nl.sbuf)
        {}
        nl.store(out[i * 128:(i + 1) * 128], t)
    return out
'''
WAYS = ['nisa.tensor_tensor(t, a, b, op=nl.power)', 'nisa.tensor_scalar(t, a, op0=nl.power, operand0=-2)',
        'nisa.tensor_scalar(t, a, op0=nl.add, operand0=0, op1=nl.power, operand1=-2)',
        'nisa.scalar_tensor_tensor(t, a, op0=nl.add, operand0=0, op1=nl.power, operand1=b)']


@pytest.mark.parametrize('rows', [128, 4096])
@pytest.mark.parametrize('dtype', ['int32', 'int16', 'int8'])
@pytest.mark.parametrize('way', WAYS)
def test_negative_powers_of_whole_numbers(way, dtype, rows):
    x = np.full((rows, 8), 3, dtype)
    y = x.copy()
    y[5, 7] = -2
    try: program = trace_source(KERNEL.format(way), None, [ArraySpec(x.shape, dtype)] * 2, 'trn2')
    except KernelError as e: pytest.skip(f'not accepted: {e}')
    for run in (interpret, execute):
        try: run(program, x, y)
        except KernelError as e:
            assert (e.kind, e.line) == ('unsupported', 8) and e.value == '3 ** -2', e
            assert 'fit' not in str(e) and 'Slice' not in str(e)


SHAPES = [lambda: np.zeros((2, 3)) + np.zeros((2, 4)), lambda: np.zeros(3) @ np.zeros(4), lambda: np.zeros(6).reshape(4),
          lambda: np.copyto(np.zeros(3), np.zeros(4)), lambda: np.concatenate([np.zeros((2, 2)), np.zeros((2, 3, 1))]),
          lambda: np.zeros(3).sum(axis=4), lambda: np.zeros((2, 2))[:, 5], lambda: np.add(1, np.zeros(3), out=np.zeros(2))]
VALUES = [lambda: np.power(np.int32(3), np.int32(-2)), lambda: int(float('nan')), lambda: int(float('inf')),
          lambda: np.array([300]).astype(object).item() << -1, lambda: np.uint8(3) + {}]

@pytest.mark.parametrize('fails, kind', [*((f, 'shape') for f in SHAPES), *((f, 'unsupported') for f in VALUES)])
def test_failures_by_kind(fails, kind):
    with pytest.raises((ValueError, IndexError, TypeError, OverflowError)) as e: fails()
    said = named_failure(Instruction('activation', {}, {}, line=4), e.value)
    assert (said.kind, said.line, said.instruction) == (kind, 4, 'activation'), (said, e.value)
