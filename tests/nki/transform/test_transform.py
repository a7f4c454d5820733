"""Random legal transformations of random kernels and of the suite's first kernels: the chip takes the result, and it
computes the same numbers, to the last bit where no sum is taken in another order."""
import random
from collections import Counter
from itertools import islice

import ml_dtypes
import numpy as np
import pytest

from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, check, execute, schedule
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.moves import FAMILIES
from kernel_lab.nki.tuning.search import search
from kernel_lab.tasks.suite.registry import TASKS
from kernel_maker import DTYPES, SeededMaker, bits_of, nasty, render

CHIPS = ('trn1', 'trn2')


def drawn(program, rng):
    "A random move of a random family, or None; one that the chip refuses is no move."
    for family in rng.sample(list(FAMILIES), len(FAMILIES)):
        found = list(FAMILIES[family].moves(program))
        for move in rng.sample(found, len(found)):
            if check(move.program): continue
            if 1 not in {l.trips for l in program.loops.values()}:      # tracing its source would give none, too
                assert 1 not in {l.trips for l in move.program.loops.values()}, str(move)
            return move


def walk(program, run, rng, depth=5, run_inexact=None, run_finite=None):
    """Take random moves and compare after each: families taken. `run_inexact` is for what rounds otherwise: a product
    by a reciprocal is no quotient where the divisor is subnormal, a sum in parts is infinite where the whole is not;
    `run_finite` for what trn1's array turns, which multiplies a NaN by 0, too."""
    first, want, taken, exact = program, run(program), [], True
    for _ in range(depth):
        move = drawn(program, rng)
        if move is None: break
        taken.append(move)
        exact = exact and move.is_exact
        program = move.program
        what = ' → '.join(map(str, taken))
        if not exact and run_inexact: run, want, run_inexact = run_inexact, run_inexact(first), None
        if run_finite and move.family == 'turn on the array' and not move.is_exact:
            run, want, run_finite = run_finite, run_finite(first), None
            if not all(np.isfinite(a).all() for a in want if a.dtype.kind == 'f'): break       # a NaN of its own
        for a, b in zip(want, run(program), strict=True):
            if exact: assert a.dtype == b.dtype and not (bits_of(a, False) != bits_of(b, False)).any(), what
            elif a.dtype.kind == 'f': np.testing.assert_allclose(b, a, rtol=rounding(program, taken), atol=1e-5, err_msg=what)
    return [m.family for m in taken]


def rounding(program, taken):
    "A sum that is added in parts may round to the next bfloat16 in a tile after it: one part in 128."
    narrow = any(t.dtype in ('bfloat16', 'float16') for t in program.tensors)
    return 2 ** -7 if narrow and 'work in parts' in {m.family for m in taken} else 2e-4


def of_the_suite(name, chip='trn2'):
    task = TASKS[name]
    arrays = list(task.draw('small', 1).values())
    program = trace_source(task.first('small').source, None, [ArraySpec(a.shape, a.dtype.name) for a in arrays], chip)
    return program, arrays


def walk_in_suite(names, seed=0):
    taken = Counter()
    for name in names:
        program, arrays = of_the_suite(name, CHIPS[len(name) % 2])
        taken.update(walk(program, lambda p: execute(p, *arrays), random.Random(f'{name} {seed}'), 6))
    return taken


def test_random_moves_of_first_kernels():
    taken = walk_in_suite(list(TASKS)[3::25])
    assert len(taken) >= 4 and taken.total() > 20, taken


@pytest.mark.slow
@pytest.mark.parametrize('name', TASKS)
def test_each_move_of_a_first_kernel(name):
    "Up to eight moves of each family, each alone."
    program, arrays = of_the_suite(name)
    want = execute(program, *arrays)
    for family in FAMILIES.values():
        for move in islice(family.moves(program), 8):
            if check(move.program): continue
            for a, b in zip(want, execute(move.program, *arrays), strict=True):
                if move.is_exact: assert not (bits_of(a, False) != bits_of(b, False)).any(), str(move)
                elif a.dtype.kind == 'f': np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6 * np.abs(a).max())


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(4))
def test_random_moves_of_all_first_kernels(seed): print(walk_in_suite(TASKS, seed))


def walk_in_random_kernels(seeds):
    taken = Counter()
    for seed in seeds:
        recipe = SeededMaker(seed).recipe()
        arrays = [nasty(shape, np.dtype(DTYPES[kind]), seed + n, (2 / 3, 0.02, 0.0)[seed % 3])
                  for n, (shape, kind) in enumerate(recipe.inputs.values())]
        try:
            program = trace_source(render(recipe), None, [ArraySpec(a.shape, a.dtype.name) for a in arrays],
                                   CHIPS[seed % 2])
            if check(program): continue
            interpret(program, *arrays)
        except KernelError: continue
        normal = [without_extremes(a) for a in arrays]
        finite = [np.where(np.isfinite(a), a, a.dtype.type(1)) if a.dtype.kind not in 'biu' else a for a in normal]
        taken.update(walk(program, lambda p: interpret(p, *arrays), random.Random(seed),
                          run_inexact=lambda p: interpret(p, *normal), run_finite=lambda p: interpret(p, *finite)))
    return taken


def without_extremes(x):
    """The array with the smallest normal number of its dtype where there is a smaller one that is not 0, and with 1 in
    the place of numbers whose sum is infinite in one order and not in another."""
    if x.dtype.names or x.dtype.kind in 'biu': return x
    with np.errstate(invalid='ignore', over='ignore'):
        size, info = np.abs(x.astype(np.float64)), ml_dtypes.finfo(x.dtype)
        x = np.where(np.isfinite(size) & (size > float(info.max) ** 0.5), x.dtype.type(1), x)
        return np.where((size > 0) & (size < float(info.tiny)), x.dtype.type(info.tiny), x)


def test_random_moves_of_random_kernels():
    taken = walk_in_random_kernels([*range(24), 4026])                         # 4026: a quotient of subnormal numbers
    assert taken.total() > 5, taken


VIEWS = ((512, 64), (256, 128), (128, 256), (1024, 32))
HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def passes(x0, x1, row):
    out = nl.ndarray((512, 64), nl.float32, buffer=nl.shared_hbm)
"""


class Passes:
    """A random kernel of passes through HBM: layouts that differ from pass to pass, scratch that is written again or in
    parts, rows in reverse order, sums of rows, tiles of bfloat16, a number for each column, copies from HBM to HBM."""
    def __init__(self, seed):
        self.rng, self.lines, self.written, self.count = random.Random(seed), [], ['x0', 'x1'], 0
        self.names, self.views = [f's{k}' for k in range(5)], VIEWS if self.rng.random() < .5 else VIEWS[:1]
        kinds = [self.rng.choice(['float32'] * 4 + ['bfloat16']) for _ in self.names]
        self.lines += [f'    {n} = nl.ndarray((512, 64), nl.{k}, buffer=nl.private_hbm)' for n, k in zip(self.names, kinds)]
        self.kinds = dict(zip(self.names, kinds)) | {'x0': 'float32', 'x1': 'float32', 'out': 'float32'}
        for k in range(self.rng.randint(2, 6)):
            (self.move if self.rng.random() < .3 else self.add)(self.rng.choice(self.names))
        self.add('out')
        self.source = HEAD + '\n'.join(self.lines) + '\n    return out\n'

    def tile(self, shape, kind='float32'):
        self.count += 1
        self.put(f't{self.count} = nl.ndarray({shape}, nl.{kind}, buffer=nl.sbuf)')
        return f't{self.count}'

    def put(self, text): self.lines.append(f'{" " * self.depth}{text}')

    def block(self, name, view, turn): return f'{name}.reshape({view})[nl.ds(128 * ({turn}), 128), :]'

    def move(self, target):
        "Copies within HBM that write all of `target`: reversed, shifted in what was filled, interleaved, halves changed."
        self.depth, like = 4, [n for n in self.written if self.kinds[n] == self.kinds[target] and n != target]
        kind = self.rng.choice(('reverse', 'upside down', 'shift', 'interleave', 'halves'))
        if not like: return self.add(target)
        a, b, dst = *self.rng.choices(like, k=2), target
        copy = lambda out, into, name, of: self.put(f'nisa.dma_copy(dst={out}.ap({into[0]}, offset={into[1]}), '
                                                    f'src={name}.ap({of[0]}, offset={of[1]}))')
        rows, half = ([[64, 512], [1, 64]], 0), [[64, 512], [1, 32]]
        if kind == 'reverse': copy(dst, rows, a, ([[64, 512], [-1, 64]], 63))
        elif kind == 'upside down': copy(dst, rows, a, ([[-64, 512], [1, 64]], 64 * 511))
        elif kind == 'halves': copy(dst, (half, 0), a, (half, 32)); copy(dst, (half, 32), b, (half, 0))
        elif kind == 'interleave':
            for k, name in enumerate((a, b)): copy(dst, ([[64, 512], [2, 32]], k), name, (half, 32 * k))
        else:
            t, lines = self.tile((128, 128), self.kinds[target]), self.rng.randint(1, 60)
            self.put(f'nisa.memset(dst={t}, value=0.5)')
            for k in range(2): self.put(f'nisa.dma_copy(dst={self.block(dst, (256, 128), k)}, src={t})')
            part = [[64, 512], [1, 64 - lines]]
            copy(dst, (part, lines), a, (part, 0))
        if target not in self.written: self.written.append(target)

    def add(self, target):
        "A pass that writes all of `target`, or only some of its rows."
        rng, view = self.rng, self.rng.choice(self.views)
        shape, turns, self.depth = (128, view[1]), view[0] // 128, 4
        whole = target not in self.written or rng.random() < .7
        count = turns if whole else max(1, turns // 2)
        self.last = count - 1
        looped, backwards = turns > 1 and rng.random() < .85, rng.random() < .15
        self.loop = f'i{self.count}'
        if looped: self.put(f'for {self.loop} in nl.affine_range({count}):'); self.depth = 8
        for turn in [self.loop] if looped else range(count):
            self.one(target, view, shape, turn, f'{count - 1} - {turn}' if backwards else turn)
            if rng.random() < .2: self.one(rng.choice(self.names), view, shape, turn, turn)
        if target not in self.written: self.written.append(target)

    def one(self, target, view, shape, turn, to):
        rng, held = self.rng, []
        for name in rng.choices(self.written, k=rng.randint(1, 2)):
            t, other, kind = self.tile(shape, self.kinds[name]), f'{self.last} - {turn}', rng.random()
            src = self.block(name, view, turn if kind > .2 else other)
            if kind < .1: src = f'{name}.reshape({view})[{turn}:{turn} + 1, :].broadcast(dim=0, size=128)'
            self.put(f'nisa.dma_copy(dst={t}, src={src})')
            held.append(t)
        for _ in range(rng.randint(0, 3)): held.append(self.step(held, shape))
        if self.kinds[target] == 'float32' and held[-1] in self.narrow(): held.append(self.cast(held[-1], shape, 'float32'))
        elif self.kinds[target] != 'float32': held.append(self.cast(held[-1], shape, self.kinds[target]))
        self.put(f'nisa.dma_copy(dst={self.block(target, view, to)}, src={held[-1]})')

    def narrow(self): return {line.split()[0] for line in self.lines if 'nl.bfloat16, buffer=nl.sbuf' in line}

    def cast(self, t, shape, kind):
        u = self.tile(shape, kind)
        self.put(f'nisa.tensor_copy(dst={u}, src={t})')
        return u

    def step(self, held, shape):
        rng, a = self.rng, self.rng.choice(held)
        wide = [t for t in held if t not in self.narrow()]
        u = rng.choice(wide) if wide and rng.random() < .2 else self.tile(shape)                # in place, at times
        kind = rng.choice(('scalar', 'scalar', 'two', 'function', 'function', 'row', 'column', 'copy', 'copy'))
        if kind == 'scalar':
            op = rng.choice(('multiply', 'add', 'subtract', 'maximum'))
            self.put(f'nisa.tensor_scalar(dst={u}, data={a}, op0=nl.{op}, operand0={rng.choice((0.5, -1.25, 3.0))})')
        elif kind == 'copy':
            n, m = shape[1], rng.choice((0, shape[1] // 2))
            for some, name in ((f'0:{n - m}', a), (f'{n - m}:{n}', rng.choice(held)))[:1 + bool(m)]:
                self.put(f'nisa.tensor_copy(dst={u}[:, {some}], src={name}[:, {some}])')
        elif kind == 'two':
            op = rng.choice(('multiply', 'add', 'subtract'))
            self.put(f'nisa.tensor_tensor(dst={u}, data1={a}, data2={rng.choice(held)}, op=nl.{op})')
        elif kind == 'function': self.put(f'nisa.activation(dst={u}, op=nl.{rng.choice(("tanh", "sigmoid", "square"))}, data={a})')
        elif kind == 'row':
            m = self.tile((128, 1))
            self.put(f'nisa.tensor_reduce(dst={m}, op=nl.{rng.choice(("maximum", "add"))}, data={a}, axis=1)')
            self.put(f'nisa.tensor_scalar(dst={u}, data={a}, op0=nl.{rng.choice(("subtract", "multiply"))}, operand0={m})')
        else:
            c = self.tile(shape)
            self.put(f'nisa.dma_copy(dst={c}, src=row[:, 0:{shape[1]}].broadcast(dim=0, size=128))')
            self.put(f'nisa.tensor_tensor(dst={u}, data1={a}, data2={c}, op=nl.multiply)')
        return u


def walk_in_passes(seeds):
    taken, refused = Counter(), 0
    for seed in seeds:
        rng, source = np.random.default_rng(seed), Passes(seed).source
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((512, 64), (512, 64), (1, 256))]
        try:
            program = trace_source(source, None, [ArraySpec(a.shape, a.dtype.name) for a in arrays], CHIPS[seed % 2])
            if check(program): raise KernelError('refused')
            execute(program, *arrays)
        except KernelError: refused += 1; continue                 # parts that nobody wrote, for example
        taken.update(walk(program, lambda p: execute(p, *arrays), random.Random(seed)))
    return taken, refused


def test_random_moves_of_random_passes():
    taken, refused = walk_in_passes([*range(40), 129])                         # 129: numbers of rows that nothing reads
    assert len(taken) >= 9 and taken['fuse rows'] > 5 and taken.total() > 40 and refused < 30, (taken, refused)


@pytest.mark.slow
def test_random_moves_of_twenty_thousand_kernels():
    print(walk_in_passes(range(10_000)), walk_in_random_kernels(range(10_000)))


GAINS = {'focal_loss': 3.5, 'dequantize_bias_gelu': 3.0, 'lion_step': 2.5, 'linear_bias_gelu': 1.25,
         'reverse_cumsum': 40.0, 'rope_neighbours': 15.0, 'generalized_advantages': 8.0, 'pixel_shuffle': 15.0}
LONGEST = 'linear_bias_gelu', 'generalized_advantages', 'dequantize_bias_gelu'


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name, least', [pytest.param(k, v, marks=[pytest.mark.slow] * (k in LONGEST), id=f'{k}-{v}')
                                         for k, v in GAINS.items()])
def test_a_climb_is_faster_and_right(name, least):
    "At full size: the latency falls as far as it did, and the numbers are those of the first kernel."
    task = TASKS[name]
    arrays = list(task.draw('full', 3).values())
    program = trace_source(task.first('full').source, None, [ArraySpec(a.shape, a.dtype.name) for a in arrays], 'trn2')
    found = search(program, 'climb')
    assert found.first_us / found.latency_us > least, str(found)
    assert found.latency_us == float(schedule(found.program, 'trn2').latency_us)
    for a, b in zip(execute(program, *arrays), execute(found.program, *arrays), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * np.abs(a).max())      # sums in another order
