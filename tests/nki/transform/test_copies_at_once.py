"""Loads and stores of several iterations as one, and differences inside of functions: on random kernels, to the last
bit; and what forbids each."""
import random
from collections import Counter

import numpy as np
import pytest

from kernel_lab.nki import ArraySpec, check, execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.combine import combined
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.lanes.several_at_once import at_once_moves, copies_at_once
from kernel_maker import bits_of

ROWS, COLUMNS, WIDTH = 64, 1024, 64
HEAD = f"""import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def blocks(x, row):
    out = nl.ndarray(({ROWS}, {COLUMNS}), nl.float32, buffer=nl.shared_hbm)
    s = nl.ndarray(({ROWS}, {COLUMNS}), nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=out, src=x)
    nisa.dma_copy(dst=s, src=x)
    kept = nl.ndarray(({ROWS}, {WIDTH}), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=kept, src=x[:, 0:{WIDTH}])
    number = nl.ndarray(({ROWS}, 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=number, src=row)
"""
TILE = f'nl.ndarray(({ROWS}, {WIDTH}), nl.float32, buffer=nl.sbuf)'


class Blocks:
    """A random loop over blocks of columns: loads of inputs and of what the loop itself stores, here, before or after;
    tiles that are changed after they were stored, or that iterations share; stores that meet."""
    def __init__(self, seed):
        self.rng, self.count, self.lines = random.Random(seed), 0, []
        trips = self.rng.choice((4, 6, 8, 12))
        self.lines.append(f'    for i in nl.sequential_range({trips}):')
        self.tiles = ['kept', self.load('x')]
        for _ in range(self.rng.randint(2, 7)): self.rng.choice((self.load, self.change, self.change, self.store))()
        self.store('out')
        self.source = HEAD + '\n'.join(self.lines).replace('LAST', str(trips - 1)) + '\n    return out\n'

    def put(self, text): self.lines.append(f'        {text}')

    def place(self):
        block = self.rng.choice(['i'] * 5 + ['LAST - i', 'i + 1', 'i + 2', '2'])
        return f'[:, nl.ds({WIDTH} * ({block}), {WIDTH})]'

    def load(self, name=None):
        self.count += 1
        name = name or self.rng.choice('xxs')
        self.put(f't{self.count} = {TILE}')
        self.put(f'nisa.dma_copy(dst=t{self.count}, src={name}{self.place()})')
        if self.count > 1: self.tiles.append(f't{self.count}')
        return f't{self.count}'

    def change(self):
        a, into = self.rng.choice(self.tiles), self.rng.choice(self.tiles)
        if self.rng.random() < .5:
            self.count += 1
            into = f't{self.count}'
            self.put(f'{into} = {TILE}')
        if self.rng.random() < .5: self.put(f'nisa.tensor_tensor(dst={into}, data1={a}, data2=kept, op=nl.add)')
        else: self.put(f'nisa.activation(dst={into}, op=nl.tanh, data={a})')
        if into not in self.tiles: self.tiles.append(into)

    def store(self, name=None):
        self.put(f'nisa.dma_copy(dst={name or ("s" if self.rng.random() < .8 else "out")}{self.place()}, '
                 f'src={self.rng.choice(self.tiles)})')


def program_of(source): return trace_source(source, None, [ArraySpec((ROWS, COLUMNS)), ArraySpec((ROWS, 1))], 'trn2')


def arrays_for(seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in ((ROWS, COLUMNS), (ROWS, 1))]


def same(want, got): return all(not (bits_of(a, False) != bits_of(b, False)).any() for a, b in zip(want, got, strict=True))


def at_once(seeds):
    taken, refused = Counter(), Counter()
    for seed in seeds:
        program, arrays = program_of(Blocks(seed).source), arrays_for(seed)
        assert not check(program)
        want = execute(program, *arrays)
        for change, after in at_once_moves(program):
            assert not check(after) and same(want, execute(after, *arrays)), (seed, change)
            taken[change.split()[0]] += 1
        for stores in (False, True):
            try: copies_at_once(program, 'i0', program.loops['i0'].trips, stores)
            except IllegalTransformation as e: refused[e.message] += 1
    return taken, refused


@pytest.mark.parametrize('count, loads', [(50, 40), pytest.param(150, 80, marks=pytest.mark.slow)])
def test_copies_at_once_keep_the_bits(count, loads):
    taken, refused = at_once(range(count))
    assert taken['loads'] > loads and taken['stores'] > 5, taken
    assert sum(refused.values()) > 10 and any('can go' in r for r in refused) and any('share' in r for r in refused), refused


@pytest.mark.slow
def test_copies_at_once_of_three_thousand_kernels(): print(at_once(range(1000, 4000)))


CARRIED = """
    for i in nl.sequential_range(4):
        t = TILE
        nisa.dma_copy(dst=t, src=s[:, nl.ds(64 * i, 64)])
        nisa.tensor_tensor(dst=t, data1=t, data2=kept, op=nl.add)
        nisa.dma_copy(dst=s[:, nl.ds(64 * i + 64, 64)], src=t)
    nisa.dma_copy(dst=out, src=s)
    return out
"""


def test_what_one_iteration_stores_for_the_next_is_refused():
    program = program_of(HEAD + CARRIED.replace('TILE', TILE))
    for stores, reason in ((False, 'no load that can go first'), (True, 'no store that can go last')):
        with pytest.raises(IllegalTransformation, match=reason): copies_at_once(program, 'i0', 4, stores)


NASTY = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, -1e-42, 3e38, -3e38], np.float32)


@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('func', ['exp', 'tanh', 'copy'])
def test_a_difference_in_a_function_keeps_the_bits(func, reverse):
    "Zeros of either sign, infinities and what is no number, on both sides of the difference."
    program = program_of(HEAD + f"""
    t = {TILE}
    nisa.tensor_scalar(dst=t, data=kept, op0=nl.subtract, operand0=number, reverse0={reverse})
    nisa.activation(dst=kept, op=nl.{func}, data=t)
    nisa.dma_copy(dst=out[:, 0:{WIDTH}], src=kept)
    return out
""")
    x, row = arrays_for(0)
    x[:, :len(NASTY)], row[:len(NASTY), 0] = NASTY, NASTY
    (pair, _, after), = [f for f in combined(program) if f[0].name == 'difference in a function']
    assert pair.is_exact and not check(after) and all(o.attrs.get('op0') != 'subtract' for o in after.instructions)
    with np.errstate(all='ignore'): assert same(execute(program, x, row), execute(after, x, row))


@pytest.mark.parametrize('line', ['nisa.activation(dst=kept, op=nl.exp, data=t, scale=2.0)',
                                  'nisa.activation(dst=kept, op=nl.exp, data=t, bias=number)'])
def test_a_function_that_has_a_scale_or_a_bias_takes_no_difference(line):
    program = program_of(HEAD + f"""
    t = {TILE}
    nisa.tensor_scalar(dst=t, data=kept, op0=nl.subtract, operand0=number)
    {line}
    nisa.dma_copy(dst=out[:, 0:{WIDTH}], src=kept)
    return out
""")
    assert not [f for f in combined(program) if f[0].name == 'difference in a function']
