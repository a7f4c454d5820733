"""Copies between a row and parts of its blocks left out: random kernels keep their bits; what reads a row keeps its copy."""
import random

import numpy as np
import pytest

from kernel_lab.nki import ArraySpec, check, execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.hbm_copies import strided_copies
from kernel_maker import bits_of

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def parts(x, c):
    out = nl.ndarray((64, 256), nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(1):
        t = nl.ndarray((64, 256), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        k = nl.ndarray((64, 128), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=k, src=c)
        u = nl.ndarray((64, 256), nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=u, value=0.25)
"""


class Parts:
    "A random kernel: halves of blocks of a tile as rows, work on them and on the tile, rows put back into halves."
    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.lines, self.blocks, self.rows, self.sums = [], rng.choice((2, 4, 8)), ['k'], 0
        self.taken()
        for _ in range(rng.randint(2, 7)):
            rng.choice((self.taken, self.work, self.work, self.work, self.put_back, self.change, self.sum))()
        self.put_back()
        self.put('nisa.dma_copy(dst=out, src=u)')
        self.source = HEAD + '\n'.join(self.lines) + '\n    return out\n'

    def put(self, text): self.lines.append(f'        {text}')

    def new(self, columns=128):
        name = f'r{len(self.lines)}'
        self.put(f'{name} = nl.ndarray((64, {columns}), nl.float32, buffer=nl.sbuf)')
        return name

    def half(self, tile):
        wide, first = 256 // self.blocks, self.rng.choice((0, 1)) * 128 // self.blocks
        return f'{tile}.reshape((64, {self.blocks}, {wide}))[:, :, {first}:{first + wide // 2}]'

    def flat(self, row): return f'{row}.reshape((64, {self.blocks}, {128 // self.blocks}))'

    def taken(self):
        row = self.new()
        self.put(f'nisa.tensor_copy(dst={self.flat(row)}, src={self.half("t")})')
        self.rows.append(row)

    def work(self):
        a, b = self.rng.choices(self.rows, k=2)
        into = self.rng.choice(self.rows[1:]) if self.rng.random() < .15 else self.new()
        if self.rng.random() < .5: self.put(f'nisa.tensor_tensor(dst={into}, data1={a}, data2={b}, op=nl.multiply)')
        else: self.put(f'nisa.activation(dst={into}, op=nl.tanh, data={a})')
        if into not in self.rows: self.rows.append(into)

    def sum(self):
        total, row = self.new(1), self.new()
        self.put(f'nisa.tensor_reduce(dst={total}, op=nl.add, data={self.rng.choice(self.rows)}, axis=1)')
        self.put(f'nisa.tensor_scalar(dst={row}, data={self.rng.choice(self.rows)}, op0=nl.add, operand0={total})')
        self.rows.append(row)

    def change(self): self.put('nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=0.5)')

    def put_back(self): self.put(f'nisa.tensor_copy(dst={self.half("u")}, src={self.flat(self.rng.choice(self.rows))})')


def left_out(seeds):
    "(copies that went, kernels that kept one)"
    gone, kept = 0, 0
    for seed in seeds:
        program = trace_source(Parts(seed).source, None, [ArraySpec((64, 256)), ArraySpec((64, 128))], 'trn2')
        rng = np.random.default_rng(seed)
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((64, 256), (64, 128))]
        (want,) = execute(program, *arrays)
        while found := [after for _, after in strided_copies(program)]:
            program, gone = random.Random(seed).choice(found), gone + 1
            (got,) = execute(program, *arrays)
            assert not check(program) and not (bits_of(want, False) != bits_of(got, False)).any(), seed
        kept += any(o.op == 'tensor_copy' for o in program.instructions)
    return gone, kept


def test_strided_copies_that_go_keep_the_bits():
    gone, kept = left_out(range(40))
    assert gone > 20 and kept > 5, (gone, kept)


@pytest.mark.slow
def test_strided_copies_of_three_thousand_kernels(): print(left_out(range(1000, 4000)))
