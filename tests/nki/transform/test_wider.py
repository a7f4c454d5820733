"""Halves of the partitions stacked, and iterations as one: on random kernels, to the last bit; and what forbids each."""
import random
from collections import Counter

import numpy as np
import pytest

from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, check, execute
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.lanes.several_at_once import widen_loop, widening_moves
from kernel_lab.nki.transform.wider import lane_moves, stack_halves
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.nki.writing.writer import to_source

SHAPES = ((128, 512), (64, 512), (128, 1))
HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def halves(x, c, row):
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
"""
NASTY = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 3e38], np.float32)


def program_of(body, chip='trn1'): return trace_source(
    HEAD + body + '\n    return out\n', None, [ArraySpec(s) for s in SHAPES], chip)


def arrays_for(seed, share=0.0):
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in SHAPES]
    for a in arrays: a[rng.random(a.shape) < share] = rng.choice(NASTY)
    return arrays


class Halves:
    """A random kernel whose loop works on halves of a tile: values of either half, copies of them, loads of half a
    tile, numbers for rows; sums beside differences; tiles that are written again, read late, or shared by iterations."""
    def __init__(self, seed):
        self.rng, self.lines, self.count = random.Random(seed), [], 0
        rng, put = self.rng, self.put
        self.columns = rng.choice((64, 128))
        put('kept = nl.ndarray((64, COLUMNS), nl.float32, buffer=nl.sbuf)', 4)
        put('nisa.memset(dst=kept, value=0.5)', 4)
        put('rows = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)', 4)
        put('nisa.dma_copy(dst=rows, src=row)', 4)
        put(f'for i in nl.{rng.choice(("affine", "sequential"))}_range({512 // self.columns}):', 4)
        put('t = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.sbuf)')
        put('nisa.dma_copy(dst=t, src=x[:, nl.ds(COLUMNS * i, COLUMNS)])')
        self.values = ['t[0:64, :]', 't[64:128, :]', 'kept']
        for _ in range(rng.randint(1, 2)): self.load()
        for _ in range(rng.randint(2, 7)): rng.choice((self.binary, self.binary, self.binary, self.single))()
        self.result()
        self.source = '\n'.join(self.lines).replace('COLUMNS', str(self.columns))

    def put(self, text, depth=8): self.lines.append(f'{" " * depth}{text}')

    def tile(self):
        self.count += 1
        self.put(f'v{self.count} = nl.ndarray((64, COLUMNS), nl.float32, buffer=nl.sbuf)')
        return f'v{self.count}'

    def target(self):
        if self.rng.random() < .1: return self.rng.choice(self.values)         # written again
        found = self.tile()
        self.values.append(found)
        return found

    def load(self):
        self.values.append(self.tile())
        self.put(f'nisa.dma_copy(dst={self.values[-1]}, src=c[:, nl.ds(COLUMNS * i, COLUMNS)])')

    def any(self): return self.rng.choice(self.values[-6:])

    def binary(self, dst=None):
        a, b, op = self.any(), self.any(), self.rng.choice(('multiply', 'multiply', 'add', 'subtract', 'maximum'))
        self.put(f'nisa.tensor_tensor(dst={dst or self.target()}, data1={a}, data2={b}, op=nl.{op})')

    def single(self):
        a, pick = self.any(), self.rng.random()
        if pick < .4: self.put(f'nisa.tensor_copy(dst={self.target()}, src={a})')
        elif pick < .7: self.put(f'nisa.activation(dst={self.target()}, op=nl.square, data={a})')
        else:
            by = self.rng.choice(('rows[0:64, :]', 'rows[64:128, :]', '2.0'))
            self.put(f'nisa.tensor_scalar(dst={self.target()}, data={a}, op0=nl.multiply, operand0={by})')

    def result(self):
        self.put('r = nl.ndarray((128, COLUMNS), nl.float32, buffer=nl.sbuf)')
        first = self.rng.random() < .5
        for half in ('r[0:64, :]', 'r[64:128, :]') if first else ('r[64:128, :]', 'r[0:64, :]'):
            self.binary(half)
            if self.rng.random() < .15: self.values.append(half)
            if self.rng.random() < .1: self.put(f'nisa.tensor_copy(dst={self.any()}, src={self.any()})')
        self.put('nisa.dma_copy(dst=out[:, nl.ds(COLUMNS * i, COLUMNS)], src=r)')


def walk(seeds, depth=4):
    "Random moves of random kernels, compared after each: moves taken by kind, and kernels that were refused."
    taken, refused = Counter(), 0
    for seed in seeds:
        rng, arrays = random.Random(seed), arrays_for(seed, (0.0, 0.02)[seed % 2])
        try:
            program = program_of(Halves(seed).source, ('trn1', 'trn2')[seed % 2])
            if check(program): raise KernelError('refused')
            want = interpret(program, *arrays)
        except KernelError: refused += 1; continue
        for _ in range(depth):
            found = [(s.__name__, p) for s in (lane_moves, widening_moves) for _, p in s(program) if not check(p)]
            if not found: break
            name, program = rng.choice(found)
            taken[name] += 1
            for a, b in zip(want, interpret(program, *arrays), strict=True):
                np.testing.assert_array_equal(b, a, f'{seed}')
                assert (np.signbit(a) == np.signbit(b))[~np.isnan(a)].all(), seed
    return taken, refused


def test_random_wider_instructions_keep_the_bits():
    taken, refused = walk(range(10), 3)
    assert taken['lane_moves'] > 5 and taken['widening_moves'] > 5 and refused < 4, (taken, refused)


@pytest.mark.slow
def test_wider_instructions_of_three_thousand_kernels(): print(walk(range(1000, 4000), 6))


PAIR = """
    a = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    u = nl.ndarray((64, 512), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=u, src=c)
    r = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    FIRST
    BETWEEN
    SECOND
    nisa.dma_copy(dst=out, src=r)"""
FIRST = 'nisa.tensor_tensor(dst=r[0:64, :], data1=a[0:64, :], data2=u, op=nl.add)'
SECOND = 'nisa.tensor_tensor(dst=r[64:128, :], data1=a[64:128, :], data2=u, op=nl.add)'


@pytest.mark.parametrize('first, between, second, why', [
    (FIRST, '', SECOND, ''),
    (FIRST, '', SECOND.replace('nl.add', 'nl.subtract'), ''),
    (FIRST, '', SECOND.replace('nl.add', 'nl.maximum'), 'do not do the same'),
    (FIRST, 'nisa.memset(dst=u, value=1.0)', SECOND, 'writes u in between'),
    (FIRST, 'nisa.tensor_copy(dst=a[64:128, :], src=r[0:64, :])', SECOND, 'uses r in between'),
    (FIRST, '', SECOND.replace('data2=u', 'data2=r[0:64, :]'), 'r is read and written')])
def test_what_forbids_two_halves_as_one(first, between, second, why):
    program = program_of(PAIR.replace('FIRST', first).replace('BETWEEN', between).replace('SECOND', second))
    pair = [o for o in program.instructions if o.op == 'tensor_tensor']
    if why:
        with pytest.raises(IllegalTransformation, match=why): stack_halves(program, *pair)
        return
    after, arrays = stack_halves(program, *pair), arrays_for(0)
    assert execute(program, *arrays)[0].tobytes() == execute(after, *arrays)[0].tobytes()
    assert sum(o.op == 'tensor_tensor' for o in after.instructions) == 1 and not check(after)
    again = trace_source(to_source(after), None, [ArraySpec(s) for s in SHAPES], 'trn1')
    assert not first_difference(after, again)


@pytest.mark.parametrize('operands', [('a[0:64, 0:1]', '2.0'), ('2.0', 'a[64:128, 0:1]'), ('2.0', '3.0')])
def test_a_column_and_a_number_are_no_operands_of_one_instruction(operands):
    first, second = (f'nisa.tensor_scalar(dst=r[{at}, :], data=a[{at}, :], op0=nl.multiply, operand0={x})'
                     for at, x in zip(('0:64', '64:128'), operands))
    program = program_of(PAIR.replace('FIRST', first).replace('BETWEEN', '').replace('SECOND', second))
    with pytest.raises(IllegalTransformation, match='take other numbers'):
        stack_halves(program, *[o for o in program.instructions if o.op == 'tensor_scalar'])


def test_a_load_stays_where_a_copy_of_its_tile_has_another_reader():
    made = ('w = nl.ndarray((64, 512), nl.float32, buffer=nl.sbuf); nisa.tensor_copy(dst=w, src=u); '
            's = nl.ndarray((64, 512), nl.float32, buffer=nl.sbuf); nisa.activation(dst=s, op=nl.square, data=w); ')
    first, second = made + FIRST.replace('data2=u', 'data2=w'), SECOND.replace('data2=u', 'data2=s')
    program = program_of(PAIR.replace('FIRST', first).replace('BETWEEN', '').replace('SECOND', second))
    with pytest.raises(IllegalTransformation, match='u is needed as it was, too'):
        stack_halves(program, *[o for o in program.instructions if o.op == 'tensor_tensor'])


def test_a_pair_that_is_needed_as_it_was_too_stays():
    sums = '; '.join(f'v{n} = nl.ndarray((64, 512), nl.float32, buffer=nl.sbuf); '
                     f'nisa.tensor_tensor(dst=v{n}, data1=a[{64 * n}:{64 * n + 64}, :], data2=u, op=nl.add)' for n in range(2))
    lower, upper = (f'nisa.tensor_tensor(dst=r[{64 * n}:{64 * n + 64}, :], data1=v{n}, data2=v{n}, op=nl.{op})'
                    for n, op in enumerate(('subtract', 'add')))
    program = program_of(PAIR.replace('FIRST', sums).replace('BETWEEN', lower).replace('SECOND', upper))
    with pytest.raises(IllegalTransformation, match='is needed as it was, too'):
        stack_halves(program, *[o for o in program.instructions if o.op == 'tensor_tensor'][2:])


LOOP = """
    kept = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=kept, value=1.0)
    for i in nl.sequential_range(8):
        u = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=u, src=x[:, nl.ds(64 * i, 64)])
        ITEM
        nisa.dma_copy(dst=out[:, nl.ds(64 * (WHERE), 64)], src=u)"""


@pytest.mark.parametrize('item, where, why', [
    ('nisa.activation(dst=u, op=nl.square, data=u)', 'i', ''),
    ('nisa.tensor_tensor(dst=u, data1=u, data2=kept, op=nl.add)', '7 - i', ''),
    ('nisa.tensor_tensor(dst=kept, data1=u, data2=kept, op=nl.add)', 'i', 'iterations of'),
    ('nisa.tensor_copy(dst=kept, src=u); nisa.tensor_copy(dst=u, src=kept)', 'i', 'iterations of'),
    ('pass', '0', 'iterations of'),
    ('nisa.activation_reduce(dst=u, op=nl.exp, data=u, reduce_op=nl.add, reduce_res=kept[:, 0:1])', 'i', 'does more than')])
def test_what_forbids_several_iterations_as_one(item, where, why):
    program = program_of(LOOP.replace('ITEM', item).replace('WHERE', where))
    if why:
        with pytest.raises(IllegalTransformation, match=why): widen_loop(program, 'i0', 4)
        return
    after, arrays = widen_loop(program, 'i0', 4), arrays_for(0)
    assert execute(program, *arrays)[0].tobytes() == execute(after, *arrays)[0].tobytes()
    assert after.count < program.count / 3 and not check(after)
