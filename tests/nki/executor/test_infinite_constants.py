"""Constants that are infinite or no numbers, as in `nisa.memset(tile, -np.inf)`: they travel through JSON, both executors
give the same bits, numpy agrees, and the writer's source gives the same program."""
import json

import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, Program, assert_ok, interpret, schedule
from kernel_lab.nki.executor import plan, vectorized
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.writing.writer import to_source
from kernel_maker import bits_of

HEAD = '''import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for k in nl.affine_range(4):
        u = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        r = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        c = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=u, src=x[k * 128:(k + 1) * 128, :])
        BODY
        nisa.dma_copy(dst=out[k * 128:(k + 1) * 128, :], src=r)
    return out
'''
where = lambda mask: lambda x, v: np.where(mask, x, np.float32(v))
below = np.tile(np.arange(128)[:, None] >= np.arange(64), (4, 1))
CASES = {
    'memset': ('nisa.memset(r, VALUE)', lambda x, v: np.full_like(x, v)),
    'scalar maximum': ('nisa.tensor_scalar(dst=r, data=u, op0=nl.maximum, operand0=VALUE)', lambda x, v: np.maximum(x, v)),
    'scalar multiply': ('nisa.tensor_scalar(dst=r, data=u, op0=nl.multiply, operand0=VALUE)', lambda x, v: x * v),
    'two scalars': ('nisa.tensor_scalar(dst=r, data=u, op0=nl.add, operand0=VALUE, op1=nl.multiply, operand1=0.0)',
                    lambda x, v: (x + v) * 0),
    'bias': ('nisa.memset(c, VALUE)\n        nisa.activation(dst=r, op=nl.exp, data=u, bias=c)',
             lambda x, v: np.exp(x + v)),
    'scale': ('nisa.activation(dst=r, op=nl.copy, data=u, scale=VALUE)', lambda x, v: x * v),
    'select': ('nisa.affine_select(dst=r, pattern=[[-1, 64]], channel_multiplier=1, on_true_tile=u, on_false_value=VALUE, '
               'cmp_op=nl.greater_equal)', where(below)),
}


@pytest.mark.parametrize('value', [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize('name', CASES)
def test_constants_that_are_not_finite(name, value):
    body, answer = CASES[name]
    x = np.random.default_rng(0).standard_normal((512, 64), np.float32)
    x[3, :4] = 0, np.inf, -np.inf, np.nan
    source = HEAD.replace('BODY', body.replace('VALUE', f"float('{value}')"))
    program = assert_ok(trace_source(source, None, [ArraySpec(x.shape, 'float32')], 'trn2'))
    again = Program.from_json(program.to_json())
    assert again.to_json() == program.to_json() and 'Infinity' not in again.to_json() and 'NaN' not in again.to_json()
    one, (other,) = interpret(again, x)[0], vectorized._run_plan(*plan.plan_of(again), [x], 1)
    assert (bits_of(one, False) == bits_of(other, False)).all()
    with np.errstate(invalid='ignore'): want = answer(x, np.float32(value))
    np.testing.assert_allclose(one, want, 1e-5)
    written = trace_source(to_source(again), None, [ArraySpec(x.shape, 'float32')], 'trn2')
    assert (bits_of(interpret(written, x)[0], False) == bits_of(one, False)).all()
    assert schedule(written).latency_us == pytest.approx(schedule(program).latency_us, rel=0.01)


@pytest.mark.parametrize('forged', ['"Infinity"', '"1e999"', '"x"', '""', 'Infinity', 'NaN', '1e999', '"infinity"'])
def test_only_three_names_are_numbers(forged):
    source = HEAD.replace('BODY', 'nisa.memset(r, 0.625)')
    text = trace_source(source, None, [ArraySpec((512, 64), 'float32')], 'trn2').to_json()
    with pytest.raises(KernelError, match='not valid'): Program.from_json(text.replace('0.625', forged))


def test_the_bounds_of_a_loop_are_no_such_number():
    source = HEAD.replace('affine_range(4)', 'dynamic_range(nisa.register_alloc(4))').replace('BODY', 'nisa.memset(r, 0.5)')
    source = source.replace('x[k * 128:(k + 1) * 128, :]', 'x[0:128, :]').replace('out[k * 128:(k + 1) * 128, :]', 'out[0:128, :]')
    data = json.loads(trace_source(source, None, [ArraySpec((512, 64), 'float32')], 'trn2').to_json())
    loop = next(o for o in data['body'] if o.get('kind') == 'dynamic')
    assert Program.from_json(json.dumps(data))
    for n in (0, 1, 2):
        for value in ('inf', '-inf', 'nan'):
            kept, loop['bound'][n] = loop['bound'][n], value
            with pytest.raises(KernelError, match='wrong bounds'): Program.from_json(json.dumps(data))
            loop['bound'][n] = kept
