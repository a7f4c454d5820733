"""Bodies that work on rows, in blocks of their columns: on random kernels, to the last bit; and what forbids it."""
import random

import numpy as np
import pytest

from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, check
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.aligned_nests import block_moves, in_column_blocks
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.tiles import copies_left_out
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.nki.writing.writer import to_source

COLUMNS, BLOCK = 1024, 256
SHAPES = ((256, COLUMNS), (2, COLUMNS), (128, 1))
HEAD = f"""import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def rows(x, y, start):
    out = nl.ndarray((256, {COLUMNS}), nl.float32, buffer=nl.shared_hbm)
    total = nl.ndarray((128, {COLUMNS}), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.5)
    ones = nl.ndarray((1, 128), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    first = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=first, src=start)
    for i in nl.sequential_range(2):
"""
ARRAYS = [np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in SHAPES]


def program_of(body, chip='trn1'):
    lines = '\n'.join(f'        {line}' for line in body)
    return trace_source(f'{HEAD}{lines}\n    return out\n', None, [ArraySpec(s) for s in SHAPES], chip)


class Rows:
    """Random work on whole rows: loads, products that spread a row in banks, element-wise instructions, scans; tiles
    that are used again, that other iterations share, read in reverse, or reduced; numbers that a scan begins with."""
    def __init__(self, seed):
        self.rng, self.body, self.values = random.Random(seed), [], []
        rng = self.rng
        self.load(); self.spread()
        for _ in range(rng.randint(1, 5)): rng.choice((self.spread, self.load, *[self.binary] * 4, self.scan, self.scan, self.odd))()
        self.body.append(f'nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src={self.values[-1]})')

    def tile(self, columns=COLUMNS):
        if self.values and self.rng.random() < .15: return self.rng.choice(self.values)
        self.values.append(f'v{len(self.values)}')
        self.body.append(f'{self.values[-1]} = nl.ndarray((128, {columns}), nl.float32, buffer=nl.sbuf)')
        return self.values[-1]

    def any(self): return self.rng.choice([*self.values, *self.values, 'total'])

    def load(self): self.body.append(f'nisa.dma_copy(dst={self.tile()}, src=x[128 * i:128 * (i + 1), :])')

    def spread(self):
        held, body = self.tile(), self.body
        at = self.rng.choice(['k'] * 5 + ['3 - k'])
        body += [f'for k in nl.affine_range({COLUMNS // BLOCK}):',
                 f'    part = nl.ndarray((1, {BLOCK}), nl.float32, buffer=nl.sbuf)',
                 f'    nisa.dma_copy(dst=part, src=y[i:i + 1, nl.ds({BLOCK} * ({at}), {BLOCK})])',
                 f'    bank = nl.ndarray((128, {BLOCK}), nl.float32, buffer=nl.psum)',
                 '    nisa.nc_matmul(dst=bank, stationary=ones, moving=part)',
                 f'    nisa.tensor_copy(dst={held}[:, nl.ds({BLOCK} * ({self.rng.choice(["k"] * 5 + ["3 - k"])}), {BLOCK})], src=bank)']

    def binary(self):
        a, b, op = self.any(), self.any(), self.rng.choice(('multiply', 'add', 'maximum'))
        to = 'total' if self.rng.random() < .15 else self.tile()
        self.body.append(f'nisa.tensor_tensor(dst={to}, data1={a}, data2={b}, op=nl.{op})')

    def scan(self):
        a, b, first = self.any(), self.any(), self.rng.choice(('0.0', '1.5', 'first'))
        self.body.append(f'nisa.tensor_tensor_scan(dst={self.tile()}, data0={a}, data1={b}, initial={first}, op0=nl.multiply, '
                         'op1=nl.add)')

    def odd(self):
        a, pick = self.any(), self.rng.random()
        if pick < .3: self.body.append(f'nisa.tensor_reduce(dst=first, op=nl.maximum, data={a}, axis=1)')
        elif pick < .5: self.body.append(f'nisa.tensor_copy(dst={self.tile()}, src={a}.ap([[{COLUMNS}, 128], [-1, {COLUMNS}]], '
                                         f'offset={COLUMNS - 1}))')
        elif pick < .75: self.body.append(f'nisa.tensor_scalar(dst={self.tile()}, data={a}, op0=nl.multiply, operand0=first)')
        else: self.body.append(f'nisa.tensor_copy(dst=first, src={a}[:, 5:6])')


def walk(seeds):
    "How many kernels had a move, and how many were refused; numbers are compared after each move."
    moved = refused = 0
    for seed in seeds:
        try:
            program = program_of(Rows(seed).body, ('trn1', 'trn2')[seed % 2])
            if check(program): raise KernelError('refused')
            want = interpret(program, *ARRAYS)
        except KernelError: refused += 1; continue
        found = [p for _, p in block_moves(program)]
        if found: found += [p for _, p in copies_left_out(found[0])][:1]
        for after in found:
            if check(after): continue
            moved += 1
            for a, b in zip(want, interpret(after, *ARRAYS), strict=True): np.testing.assert_array_equal(b, a, f'{seed}')
    return moved, refused


def test_random_rows_in_blocks_keep_the_bits():
    moved, refused = walk(range(16))
    assert moved > 5 and refused < 5, (moved, refused)


@pytest.mark.slow
def test_rows_in_blocks_of_two_thousand_kernels(): print(walk(range(1000, 3000)))


LOAD = 'v0 = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf); nisa.dma_copy(dst=v0, src=x[128 * i:128 * (i + 1), :])'
NEXT = 'v1 = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)'
STORE = 'nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=v1)'
SCAN = 'nisa.tensor_tensor_scan(dst=v1, data0=v0, data1=v0, initial={}, op0=nl.multiply, op1=nl.add)'


@pytest.mark.parametrize('items, why', [
    ([SCAN.format('0.5')], ''),
    ([SCAN.format('first')], ''),
    (['nisa.tensor_tensor(dst=v1, data1=v0, data2=total, op=nl.add)', 'nisa.tensor_copy(dst=total, src=v1)'], ''),
    (['nisa.tensor_reduce(dst=first, op=nl.maximum, data=v0, axis=1)', SCAN.format('first')], 'stands between'),
    ([SCAN.format('v0[:, 1023:1024]')], 'begins with what is made in blocks'),
    (['nisa.tensor_copy(dst=v1, src=v0.ap([[1024, 128], [-1, 1024]], offset=1023))'], 'are not apart')])
def test_what_forbids_blocks_of_columns(items, why):
    program = program_of([LOAD, NEXT, *items, STORE])
    if why:
        with pytest.raises(IllegalTransformation, match=why): in_column_blocks(program, ('i0',), 1024, 4)
        return
    after = in_column_blocks(program, ('i0',), 1024, 4)
    assert not check(after)
    for a, b in zip(interpret(program, *ARRAYS), interpret(after, *ARRAYS), strict=True): np.testing.assert_array_equal(b, a)
    again = trace_source(to_source(after), None, [ArraySpec(s) for s in SHAPES], 'trn1')
    assert not first_difference(after, again)


@pytest.mark.parametrize('reader, goes', [
    ('nisa.dma_copy(dst=out[128 * i:128 * (i + 1), nl.ds(256 * k, 256)], src=held)', False),
    ('nisa.tensor_scalar(dst=total[:, 0:256], data=held, op0=nl.add, operand0=1.0, engine=nisa.engine.gpsimd)', False),
    ('nisa.tensor_scalar(dst=total[:, 0:256], data=held, op0=nl.add, operand0=1.0)', True)])
def test_a_bank_is_read_by_engines_that_reach_it(reader, goes):
    program = program_of([
        'for k in nl.affine_range(4):',
        '    part = nl.ndarray((1, 256), nl.float32, buffer=nl.sbuf)',
        '    nisa.dma_copy(dst=part, src=y[i:i + 1, nl.ds(256 * k, 256)])',
        '    bank = nl.ndarray((128, 256), nl.float32, buffer=nl.psum)',
        '    nisa.nc_matmul(dst=bank, stationary=ones, moving=part)',
        '    held = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)',
        '    nisa.tensor_copy(dst=held, src=bank)',
        f'    {reader}',
        'nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=total)'])
    found = [after for _, after in copies_left_out(program)]
    assert len(found) == goes and not any(map(check, found))
    for after in found: assert interpret(after, *ARRAYS)[0].tobytes() == interpret(program, *ARRAYS)[0].tobytes()
