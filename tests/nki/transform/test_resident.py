"""What an outer loop repeats is kept in SBUF: loads, work of several instructions, tiles that are filled piece by piece;
on random nests, to the last bit; and what forbids it."""
import random
from collections import Counter

import numpy as np
import pytest

from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, check, execute
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.loops import keep_resident, residable_loads, residable_work
from kernel_lab.nki.transform.moves import FAMILIES

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, y):
    out = nl.ndarray((512, 512), nl.float32, buffer=nl.shared_hbm)
    kept = nl.ndarray((128, 512), nl.float32, buffer=nl.private_hbm)
    held = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=held, src=y)
    nisa.dma_copy(dst=kept, src=x[0:128, :])
"""


def traced(lines):
    source = HEAD + '\n'.join(f'    {x}' for x in lines) + '\n    return out\n'
    return trace_source(source, None, [ArraySpec((512, 512), 'float32'), ArraySpec((128, 128), 'float32')], 'trn2')


class Nest:
    """Two or three loops around work on a block of `x` which some of them move: loaded, turned, changed, filled piece by
    piece in a loop of its own; with what forbids keeping it, at times."""
    def __init__(self, seed):
        self.rng, self.lines = random.Random(seed), []
        rng, deep = self.rng, self.rng.random() < .5
        loops = ['i', 'j', 'k'] if deep else ['i', 'j']
        rng.shuffle(loops)
        for depth, v in enumerate(loops):
            kind = rng.choice(('affine', 'sequential'))
            self.put(depth, f'for {v} in nl.{kind}_range({4 if v != "k" else 2}):')
            if depth == 0 and rng.random() < .3: self.tile(1, 'piece', (128, 256))
        self.depth, declared = len(loops), len(loops) > 0 and any('piece' in x for x in self.lines)
        row, column = (rng.choice([v for v in loops if v != 'k'] + ['0']) for _ in range(2))
        if row == column: column = '0'
        self.work(row, column, declared)
        rows, columns = 'i', 'j'
        self.put(self.depth, f'nisa.dma_copy(dst=out[128 * {rows}:128 * {rows} + 128, 128 * {columns}:128 * {columns} + 128], '
                             'src=sum)')
        if rng.random() < .15: self.put(self.depth, 'nisa.dma_copy(dst=kept[:, 0:128], src=sum)')
        if rng.random() < .15: self.put(self.depth, 'nisa.tensor_copy(dst=held, src=sum)')

    def put(self, depth, text): self.lines.append('    ' * depth + text)

    def tile(self, depth, name, shape, buffer='sbuf'):
        self.put(depth, f'{name} = nl.ndarray({shape}, nl.float32, buffer=nl.{buffer})')

    def work(self, row, column, declared):
        rng, d, put = self.rng, self.depth, self.put
        source = rng.choice(('x', 'x', 'kept'))
        rows = f'128 * {row}:128 * {row} + 128' if source == 'x' else '0:128'
        block = f'{source}[{rows}, 128 * {column}:128 * {column} + 128]'
        for name in ('a', 'b', 'sum'): self.tile(d, name, (128, 128))
        put(d, f'nisa.dma_copy(dst=a, src={block})')
        if rng.random() < .5:
            self.tile(d, 'flip', (128, 128), 'psum')
            put(d, f'nisa.nc_transpose(dst=flip, data={rng.choice(("a", "a", "held"))})')
            put(d, 'nisa.tensor_copy(dst=b, src=flip)')
        else: put(d, 'nisa.activation(dst=b, op=nl.square, data=a)')
        if rng.random() < .3: put(d, 'nisa.tensor_tensor(dst=b, data1=b, data2=held, op=nl.add)')
        if rng.random() < .2: put(d, 'nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)')
        if rng.random() < .5 or declared:
            if not declared: self.tile(d, 'piece', (128, 256))
            put(d, 'for p in nl.affine_range(2):')
            what = f'x[{rows}, 256 + 128 * p:384 + 128 * p]' if source == 'x' else 'kept[0:128, 128 * p:128 * p + 128]'
            put(d + 1, f'nisa.dma_copy(dst=piece[:, 128 * p:128 * p + 128], src={what})')
            put(d, 'nisa.tensor_tensor(dst=b, data1=b, data2=piece[:, 64:192], op=nl.add)')
        put(d, 'nisa.tensor_tensor(dst=sum, data1=a, data2=b, op=nl.add)')
        if rng.random() < .5: put(d, 'nisa.tensor_tensor(dst=sum, data1=sum, data2=held, op=nl.add)')
        if rng.random() < .15: put(d, 'nisa.tensor_scalar(dst=b, data=b, op0=nl.add, operand0=1.0)')


def same(one, other): return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def kept_everywhere(seeds):
    "How many random nests there were, and how many tiles were kept in them; each result is held against the kernel's."
    counted = Counter()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((512, 512), np.float32), rng.standard_normal((128, 128), np.float32)]
    for seed in seeds:
        nest = Nest(seed)
        try: program = traced(nest.lines)
        except KernelError: counted['refused'] += 1; continue
        if check(program): counted['refused'] += 1; continue
        counted['nests'] += 1
        want, found = execute(program, *arrays), [*FAMILIES['keep a tile resident'].moves(program)]
        loads = len([*residable_loads(program)])
        for n, move in enumerate(found):
            again = [move, *FAMILIES['keep a tile resident'].moves(move.program)][:2]
            for after in again:
                if check(after.program): counted['too large'] += 1; continue
                assert same(execute(after.program, *arrays), want), f'{seed}: {move} → {after}\n{program}\n{after.program}'
            counted['load' if n < loads else 'work'] += 1
    return counted


def test_random_nests_keep_their_numbers():
    counted = kept_everywhere(range(60))
    assert counted['nests'] >= 30 and counted['work'] >= 10 and counted['load'] >= 3, counted


@pytest.mark.slow
def test_many_random_nests_keep_their_numbers():
    counted = kept_everywhere(range(1000, 2500))
    assert counted['nests'] >= 800 and counted['work'] >= 300, counted


def test_the_interpreter_finds_the_same():
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((512, 512), np.float32), rng.standard_normal((128, 128), np.float32)]
    program = traced(FILLED)
    for some in residable_work(program):
        assert same(interpret(keep_resident(program, *some), *arrays), interpret(program, *arrays))


FILLED = ['for i in nl.affine_range(4):',
          '    for j in nl.affine_range(2):',
          '        wide = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)',
          '        for p in nl.affine_range(2):',
          '            nisa.dma_copy(dst=wide[:, 128 * p:128 * p + 128], src=x[128 * j:128 * j + 128, 128 * p:128 * p + 128])',
          '        nisa.dma_copy(dst=out[128 * i:128 * i + 128, 256 * j:256 * j + 256], src=wide)']


def test_a_tile_that_is_filled_piece_by_piece_is_kept():
    program = traced(FILLED)
    some, = residable_work(program)
    after = keep_resident(program, *some)
    assert [t.shape for t in after.tensors if t.name == 'wide'] == [(128, 2, 256)]
    assert (program.count, after.count) == (2 + 4 * 2 * 3, 2 * 2 + 4 * 2)       # the first two loads were for nobody


@pytest.mark.parametrize('line, text', [
    (5, '        nisa.tensor_scalar(dst=wide, data=wide, op0=nl.add, operand0=1.0)'),                # it changes
    (5, '            nisa.dma_copy(dst=out[0:128, 0:128], src=wide[:, 0:128])'),                     # read half filled
    (6, '        nisa.dma_copy(dst=kept[:, 0:256], src=wide)')])                                     # what is loaded
def test_a_tile_is_not_kept_where(line, text):
    lines = [*FILLED[:line], text, *FILLED[line:]]
    lines[4] = lines[4].replace('x[128 * j:128 * j + 128, 128 * p', 'kept[:, 256 * j + 128 * p').replace(
        ':128 * p + 128])', ':256 * j + 128 * p + 128])')
    program = traced([x.replace('affine', 'sequential') for x in lines])
    fill = next(o for o in program.instructions if any(program.tensors[a.tensor].name == 'wide' for a in o.outs.values()))
    assert [*residable_work(program)] == []
    with pytest.raises(IllegalTransformation, match=f'no loop repeats line {fill.line}'): keep_resident(program, fill)


def test_instructions_of_several_bodies_are_not_kept_together():
    program = traced(FILLED)
    fill, store = program.instructions[2:]
    with pytest.raises(IllegalTransformation, match='no loop repeats'): keep_resident(program, fill, store)
