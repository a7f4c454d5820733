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


GATHERS = [('uint32', (128, 4), (128, 4), 'nisa.nc_n_gather(t, a, i)', 64, '0..63'),
           ('uint16', (128, 1), (128, 16), 'nisa.local_gather(t, a, i)', 64, '0..63'),
           ('uint16', (128, 1), (128, 16, 4), 'nisa.local_gather(t, a, i, num_elem_per_idx=4)', 62, '0..60')]

@pytest.mark.parametrize('run', [interpret, execute])
@pytest.mark.parametrize('dtype, places, shape, way, at, limit', GATHERS)
def test_places_outside_the_tile_that_is_gathered_from(dtype, places, shape, way, at, limit, run):
    program = trace_source(f'''import nki.language as nl
import nki.isa as nisa
def kernel(x, places):
    out = nl.ndarray({shape}, x.dtype, buffer=nl.shared_hbm)
    a, i = nl.load(x), nl.load(places)
    t = nl.ndarray({shape}, x.dtype, buffer=nl.sbuf)
    {way}
    nl.store(out, t)
    return out
''', None, [ArraySpec((128, 64), 'float32'), ArraySpec(places, dtype)], 'trn2')
    x, i = np.zeros((128, 64), np.float32), np.zeros(places, dtype)
    run(program, x, i)
    i[5, 0] = at
    with pytest.raises(KernelError, match='points outside') as e: run(program, x, i)
    assert (e.value.line, e.value.limit, e.value.value) == (7, limit, at) and 'fit' not in str(e.value)


@pytest.mark.parametrize('at, limit', [(40, '0..32'), (64, '0..63'), (-1, '0..63')])
def test_the_last_place_where_a_window_fits(at, limit):
    program = trace_source('''import nki.language as nl
import nki.isa as nisa
def kernel(x, place):
    out = nl.ndarray((128, 32), x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 32), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x.ap([[64, 128], [1, 32]], offset=0, scalar_offset=nl.load(place), indirect_dim=1))
    nl.store(out, t)
    return out
''', None, [ArraySpec((128, 64), 'float32'), ArraySpec((1, 1), 'int32')], 'trn2')
    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    assert (execute(program, x, np.int32([[32]]))[0] == x[:, 32:]).all()
    with pytest.raises(KernelError, match='points outside') as e: execute(program, x, np.int32([[at]]))
    assert (e.value.line, e.value.limit, e.value.value) == (6, limit, at)


SAME = '''import nki.language as nl
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out
'''
@pytest.mark.parametrize('run', [interpret, execute])
@pytest.mark.parametrize('dtype, number, given', [
    ('int32', 2**40, 'int64'), ('int8', 300, 'int32'), ('uint8', -1, 'int8'), ('int32', 1.5, 'float32'),
    ('int32', np.nan, 'float32'), ('float32', 1e300, 'float64'), ('float32', 1j, 'complex64')])
def test_no_input_is_narrowed_in_silence(dtype, number, given, run):
    program = trace_source(SAME, None, [ArraySpec((128, 8), dtype)], 'trn2')
    x = np.zeros((128, 8), given)
    if x.dtype.kind != 'c': assert run(program, x)[0].dtype == dtype
    x[3, 4] = number
    with pytest.raises(KernelError, match='input x h') as e: run(program, x)
    assert e.value.kind == 'input' and e.value.hint

def test_what_is_given_instead_of_an_array():
    torch = pytest.importorskip('torch')
    program = trace_source(SAME, None, [ArraySpec((128, 8), 'float32')], 'trn2')
    x = np.random.default_rng(0).normal(size=(128, 8))
    for given in (x, torch.tensor(x), torch.tensor(x, requires_grad=True)):
        assert (execute(program, given)[0] == x.astype(np.float32)).all()
    with pytest.raises(KernelError, match='input x is no array'): execute(program, x.tolist())
