"""Iterations side by side on the partitions: on random kernels, to the last bit; and what forbids it."""
import random
import re

import numpy as np
import pytest

from kernel_lab.nki import ArraySpec, check, execute
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.lanes.fill_lanes import fill_lanes, fill_moves
from kernel_lab.nki.transform.moves import FAMILIES
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.nki.writing.writer import to_source

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, table, row):
    out = nl.ndarray((B, H, C), nl.float32, buffer=nl.shared_hbm)
    low = nl.ndarray((B, H, 1), nl.float32, buffer=nl.shared_hbm)
"""


class Sized:
    "A kernel over batches of `rows` rows: x [batches, rows or more, columns], a table for all batches, a number a row."
    def __init__(self, batches, rows, columns, more=0):
        self.batches, self.rows, self.columns, self.more = batches, rows, columns, more
        high = rows + more
        self.shapes = ((batches, high, columns), (rows, columns), (rows, 1))
        self.sizes = dict(B=batches, H=high, R=rows, C=columns)

    def program(self, body, chip='trn2'):
        text = re.sub(r'\b[BHRC]\b', lambda m: str(self.sizes[m[0]]), HEAD + body + '\n    return out, low\n')
        return trace_source(text, None, [ArraySpec(s) for s in self.shapes], chip)

    def arrays(self, seed):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(s).astype(np.float32) for s in self.shapes]


START = """
    c = nl.ndarray((R, C), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=c, src=table)
    bias = nl.ndarray((R, 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=bias, src=row)
    nisa.activation(dst=bias, op=nl.square, data=bias)
    for i in nl.affine_range(B):
        t = nl.ndarray((R, C), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i, 0:R, :])
"""
END = """
        s = nl.ndarray((R, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=s, op=nl.maximum, data=t, axis=1)
        nisa.dma_copy(dst=low[i, 0:R, :], src=s)
        nisa.dma_copy(dst=out[i, 0:R, :], src=t)
"""
STEPS = ['nisa.tensor_tensor(dst=t, data1=t, data2=c, op=nl.multiply)',
         'nisa.activation(dst=t, op=nl.exp, data=t, scale=0.25, bias=bias)',
         'nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=bias)',
         'nisa.scalar_tensor_tensor(dst=t, data=c, op0=nl.multiply, operand0=bias, op1=nl.add, operand1=t)',
         'nisa.tensor_tensor(dst=t[:, 0:8], data1=t[:, 8:16], data2=c[:, 0:8], op=nl.subtract)']


def random_body(seed):
    rng, text = random.Random(seed), START
    text += ''.join(f'        {rng.choice(STEPS)}\n' for _ in range(rng.randint(1, 5)))
    return text + END


@pytest.mark.parametrize('batches,rows,columns,more,several', [
    (2, 64, 32, 0, 2), (8, 32, 16, 0, 4), (6, 32, 48, 0, 3), (9, 40, 32, 0, 3), (4, 64, 32, 5, 2), (5, 25, 16, 3, 5),
    (10, 60, 24, 68, 2)])
def test_any_rows_to_the_last_bit(batches, rows, columns, more, several):
    """Rows that follow each other from batch to batch and rows that do not, odd numbers of them."""
    sized = Sized(batches, rows, columns, more)
    for seed in range(4):
        body = random_body(seed)
        if more: body = f'    rest = nl.ndarray(({more}, {columns}), nl.float32, buffer=nl.sbuf)\n' \
                        f'    nisa.memset(dst=rest, value=0.0)\n    for b in nl.affine_range({batches}):\n' \
                        f'        nisa.dma_copy(dst=out[b, {rows}:{rows + more}, :], src=rest)\n' \
                        f'        nisa.dma_copy(dst=low[b, {rows}:{rows + more}, :], src=rest[:, 0:1])\n' + body
        program = sized.program(body)
        name = [*program.loops][-1]
        after = fill_lanes(program, name, several)
        assert not check(after) and {t.shape[0] for t in after.tensors if 'lanes' in t.name} <= {rows * several}
        for arrays in (sized.arrays(seed), sized.arrays(seed + 100)):
            wanted = execute(program, *arrays)
            for found in (execute(after, *arrays), interpret(after, *arrays)):
                for a, b in zip(found, wanted): np.testing.assert_array_equal(a, b)


def test_rows_that_follow_each_other_are_one_copy():
    sized = Sized(8, 32, 16)
    copies = lambda p: [o.ins['src'].shape for o in p.instructions if o.op == 'dma_copy']
    assert (128, 16) in copies(fill_lanes(sized.program(random_body(0)), 'i0', 4))
    sized = Sized(4, 32, 16, 1)                       # a row between those of two batches
    assert copies(fill_lanes(sized.program(START + END), 'i0', 4)).count((32, 16)) == 4 + 4      # loads and stores


def test_written_back_as_source():
    sized = Sized(8, 32, 16)
    after = fill_lanes(sized.program(random_body(1)), 'i0', 4)
    again = trace_source(to_source(after), None, [ArraySpec(s) for s in sized.shapes], 'trn2')
    assert first_difference(again, after) is None


def test_a_move_of_all_lanes():
    program = Sized(8, 32, 16).program(random_body(2))
    changes = [m.change for m in FAMILIES['use all lanes'].moves(program)]
    assert '4 iterations of loop i0 side by side' in changes


@pytest.mark.parametrize('body,says', [
    (START + '        nisa.tensor_copy(dst=c, src=t)\n' + END, 'share c'),
    (START + '        nisa.tensor_tensor(dst=t[0:16, :], data1=t[0:16, :], data2=c[0:16, :], op=nl.add)\n' + END,
     'row after row'),
    (START + '        nisa.affine_select(dst=t, pattern=[[1, C]], channel_multiplier=-1, offset=0, on_true_tile=t, '
             'on_false_value=0.0, cmp_op=nl.greater_equal)\n' + END, 'affine_select'),
    (START + '        nisa.tensor_copy(dst=t[:, 0:1], src=c[:, nl.ds(i, 1)])\n' + END, 'elsewhere in each iteration'),
    (START + '        turn = nl.ndarray((C, R), nl.float32, buffer=nl.psum)\n'
             '        nisa.nc_transpose(dst=turn, data=t)\n        nisa.tensor_copy(dst=t[:, 0:8], src=turn[:, 0:8])\n' + END,
     'partitions|nc_transpose'),
    (START.replace('x[i, 0:R, :]', 'out[0, 0:R, :]') + END, 'iterations of i0 share out')])
def test_what_forbids_it(body, says):
    if 'out[0, 0' in body:
        body = '    first = nl.ndarray((R, C), nl.float32, buffer=nl.sbuf)\n    nisa.memset(dst=first, value=1.0)\n' \
               '    nisa.dma_copy(dst=out[0, 0:R, :], src=first)\n' + body
    program = Sized(8, 32, 32).program(body)
    with pytest.raises(IllegalTransformation, match=says): fill_lanes(program, 'i0', 4)
    assert not [c for c, _ in fill_moves(program) if 'loop i0 ' in c]


def test_full_tiles_and_odd_trips_have_no_move():
    assert [*fill_moves(Sized(3, 128, 16).program(random_body(0)))] == []
    assert [*fill_moves(Sized(5, 32, 16).program(random_body(0)))] == []
    with pytest.raises(IllegalTransformation, match='no whole number'):
        fill_lanes(Sized(5, 32, 16).program(random_body(0)), 'i0', 2)
