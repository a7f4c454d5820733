"""Work in parts: the same bits for every instruction that can be cut, but for sums of rows; what cannot is refused."""
import numpy as np
import pytest

from kernel_lab.nki import check, execute, schedule
from kernel_lab.nki.lang import isa as nisa, language as nl
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import jit, trace, trace_source
from kernel_lab.nki.transform.cleanup import clean
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.moves import FAMILIES
from kernel_lab.nki.transform.overlap.parts import in_parts, part_moves


@jit
def normalised(x, gain):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    g = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=g, src=gain.broadcast(dim=0, size=128))
    for i in nl.affine_range(x.shape[0] // 128):
        t = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.sbuf)
        s = nl.ndarray((128, 1), x.dtype, buffer=nl.sbuf)
        m = nl.ndarray((128, 1), x.dtype, buffer=nl.sbuf)
        q = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        nisa.tensor_reduce(dst=m, op=nl.minimum, data=t, axis=1)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.subtract, operand0=m)
        nisa.activation_reduce(dst=q, op=nl.square, data=t, reduce_op=nl.add, reduce_res=s)
        nisa.activation(dst=s, op=nl.rsqrt, data=s, scale=1 / x.shape[1])
        nisa.scalar_tensor_tensor(dst=q, data=t, op0=nl.multiply, operand0=s, op1=nl.multiply, operand1=g)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=q)
    return out


def inputs(rows, columns): return [np.random.default_rng(0).standard_normal(s).astype('f4') for s in ((rows, columns), (1, columns))]


@pytest.mark.parametrize('chip', ['trn1', 'trn2', 'trn3'])
@pytest.mark.parametrize('parts', [2, 3, 4])
@pytest.mark.parametrize('columns', [400, 1001, 2048])
def test_each_instruction_in_parts(columns, parts, chip):
    x = inputs(256, columns)
    program = trace(normalised, *x, chip=chip)
    want, cut = execute(program, *x)[0], 0
    for o in program.instructions:
        try: after = in_parts(program, [o], parts)
        except IllegalTransformation: continue
        assert not check(after)
        got, cut = execute(after, *x)[0], cut + 1
        if o.attrs.get('reduce_op') == 'add': np.testing.assert_allclose(got, want, rtol=1e-5)
        else: assert got.tobytes() == want.tobytes(), o
    assert cut == 7                                         # all but the one number of each row


def test_moves_say_which_are_exact_and_shorten_a_kernel_of_two_large_tiles():
    x = inputs(256, 16_384)
    program = trace(normalised, *x, chip='trn2')
    found = {m.change: m for m in FAMILIES['work in parts'].moves(program)}
    assert {m.is_exact for m in found.values()} == {True, False}
    for m in found.values():
        if m.is_exact: assert execute(m.program, *x)[0].tobytes() == execute(program, *x)[0].tobytes()
    assert min(schedule(m.program).latency_us for m in found.values()) < 0.93 * schedule(program).latency_us


def test_a_long_kernel_of_small_tiles_is_left_alone():
    x = inputs(128 * 200, 256)
    assert not list(part_moves(trace(normalised, *x, chip='trn2')))


@jit
def odd_ones(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    b = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.sbuf)
    s = nl.ndarray((128, 1), nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.tensor_copy(dst=b, src=t)
    nisa.tensor_reduce(dst=s, op=nl.add, data=b, axis=1)
    nisa.tensor_copy(dst=t[:, 1:512], src=t[:, 0:511])
    nisa.affine_select(dst=t, pattern=[[1, 512]], channel_multiplier=1, on_true_tile=t, on_false_value=0.0)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=s)
    nisa.dma_copy(dst=out, src=t)
    return out


@pytest.mark.parametrize('op, nth, why', [('tensor_reduce', 0, 'would be rounded'), ('tensor_copy', 1, 'overwrites other columns'),
                                          ('affine_select', 0, 'cannot be cut')])
def test_what_is_refused(op, nth, why):
    program = trace(odd_ones, np.ones((128, 512), np.float32), chip='trn2')
    instruction = [o for o in program.instructions if o.op == op][nth]
    with pytest.raises(IllegalTransformation, match=why): in_parts(program, [instruction], 2)


def test_parts_of_fewer_than_64_columns_are_refused():
    program = trace(odd_ones, np.ones((128, 512), np.float32), chip='trn2')
    with pytest.raises(IllegalTransformation, match='too few columns'): in_parts(program, [program.instructions[0]], 16)


def kernel_of(lines, shape=(128, 1)):
    "The program of a few lines on tiles t (loaded from x), q and s, which end in `out`."
    source = f'''
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray({shape}, nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
    q = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
    s = nl.ndarray((128, 2), nl.float32, buffer=nl.sbuf)
    u = nl.ndarray((128, 1), nl.uint8, buffer=nl.sbuf)
''' + ''.join(f'    {line}\n' for line in lines) + '    return out\n'
    return trace_source(source, None, [ArraySpec((128, 1024), 'float32')], 'trn2')


LOAD = 'nisa.dma_copy(dst=t, src=x)'
BEGIN = 'nisa.activation(dst=q, op=nl.abs, data=t, reduce_op=nl.add, reduce_res=s[:, 0:1], reduce_cmd=nisa.reduce_cmd.reset_reduce)'
BEGIN_ONLY = 'nisa.activation(dst=q, op=nl.abs, data=t, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce)'
GO_ON = 'nisa.activation(dst=q, op=nl.square, data=t, reduce_op=nl.add, reduce_res=s[:, 1:2], reduce_cmd=nisa.reduce_cmd.reduce)'
LAST = 'nisa.dma_copy(dst=out, src=s[:, 1:2])'


@pytest.mark.parametrize('lines, nth, why', [
    ([LOAD, BEGIN, GO_ON, LAST], 1, 'stays in a register'),
    ([LOAD, BEGIN_ONLY, GO_ON, LAST], 1, 'goes on'),
    ([LOAD, BEGIN, GO_ON, LAST], 2, 'goes on'),
    ([LOAD, 'w = t.ap([[1024, 128], [0, 2], [1, 512]])', 'nisa.tensor_tensor(dst=w, data1=w, data2=w, op=nl.add)',
      'nisa.dma_copy(dst=out, src=t[:, 0:1])'], 1, 'writes an element twice'),
    ([LOAD, 'nisa.activation_reduce(dst=q, op=nl.copy, data=t, reduce_op=nl.maximum, reduce_res=q[:, 0:1])',
      'nisa.dma_copy(dst=out, src=q[:, 0:1])'], 1, 'writes an element twice'),
    (['nisa.dma_copy(dst=t[:, 0:512], src=x[:, 0:512])',
      'nisa.tensor_scalar(dst=q, data=t, op0=nl.multiply, operand0=2.0)',
      'nisa.dma_copy(dst=out, src=q[:, 0:1])'], 1, 'nothing may have written')])
def test_what_depends_on_other_columns_is_refused(lines, nth, why):
    program = kernel_of(lines)
    with pytest.raises(IllegalTransformation, match=why): in_parts(program, [program.instructions[nth]], 2)


@pytest.mark.parametrize('op', ['maximum', 'minimum'])
def test_parts_of_an_extreme_are_as_wide_as_the_engine(op):
    program = kernel_of([LOAD, f'nisa.tensor_reduce(dst=u, op=nl.{op}, data=t, axis=1, negate=True)',
                         'nisa.tensor_copy(dst=s[:, 0:1], src=u)', 'nisa.dma_copy(dst=out, src=s[:, 0:1])'])
    x = -np.random.default_rng(0).uniform(1, 90, (128, 1024)).astype('f4')
    after = in_parts(program, [program.instructions[1]], 2)
    assert execute(after, x)[0].tobytes() == execute(program, x)[0].tobytes()


def test_an_outer_axis_is_not_cut_into_a_few_columns():
    program = kernel_of([LOAD, 'nisa.tensor_copy(dst=q[:, 0:8].reshape((128, 8, 1)), src=t[:, 0:8].reshape((128, 8, 1)))',
                         'nisa.dma_copy(dst=out, src=q[:, 0:1])'])
    with pytest.raises(IllegalTransformation, match='too few columns'): in_parts(program, [program.instructions[1]], 2)


def test_a_register_that_is_read_later_keeps_what_begins_it():
    "Neither dead, nor a repetition: both go through `clean`, as every move does."
    x = np.random.default_rng(0).standard_normal((128, 1024)).astype('f4')
    again = GO_ON.replace('reduce_res=s[:, 1:2], ', '')
    for lines in ([LOAD, BEGIN_ONLY.replace('dst=q', 'dst=t'), GO_ON, LAST], [LOAD, BEGIN, again, again, GO_ON, LAST]):
        program = kernel_of(lines)
        after = clean(program)
        assert after.count == program.count and execute(after, x)[0].tobytes() == execute(program, x)[0].tobytes()


def test_zeros_of_two_signs_are_two_operands():
    program = kernel_of([LOAD, 'a = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)',
                         'nisa.tensor_scalar(dst=q, data=t, op0=nl.multiply, operand0=0.0)',
                         'nisa.tensor_scalar(dst=a, data=t, op0=nl.multiply, operand0=-0.0)',
                         'nisa.dma_copy(dst=out[:, 0:1], src=q[:, 0:1])', 'nisa.dma_copy(dst=out[:, 1:2], src=a[:, 0:1])'], (128, 2))
    x = np.ones((128, 1024), 'f4')
    after = clean(program)
    assert np.signbit(execute(after, x)[0]).tolist() == [[False, True]] * 128
