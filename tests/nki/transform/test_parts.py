"""Work in parts: the same bits for every instruction that can be cut, but for sums of rows; what cannot is refused."""
import numpy as np
import pytest

from kernel_lab.nki import check, execute, schedule
from kernel_lab.nki.lang import isa as nisa, language as nl
from kernel_lab.nki.lang.trace import jit, trace
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
