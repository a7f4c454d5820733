"When tiles are alive: the compiled clock gives what the plain statement of it does, and no more than a range says."
import random
from dataclasses import replace

import pytest
from random_programs import TENSORS, instruction

from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.ir.liveness import lifetimes, value_lives
from kernel_lab.nki.ir.nodes import Loop, Tensor
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.timing.flat_program import flatten
from kernel_lab.nki.timing.lifetimes import lifetimes_of

CHIP = [k for k, t in enumerate(TENSORS) if t.buffer == 'sbuf']


def moved(o, mine):
    "The instruction on tensors of another number."
    side = lambda s: {k: replace(a, tensor=mine.get(a.tensor, a.tensor)) if hasattr(a, 'tensor') else a
                      for k, a in s.items()}
    return replace(o, ins=side(o.ins), outs=side(o.outs))


def scoped_program(seed, dialect):
    "A nest of loops, some tiles of which belong to one of them; some loops are long enough to be copied."
    rng, tensors = random.Random(seed), [*TENSORS]
    def body(loops, depth):
        mine, first = {}, len(tensors)
        if loops and rng.random() < 0.7:
            mine = {k: first + n for n, k in enumerate(CHIP)}
            scope = tuple(l.name for l in loops)
            tensors.extend(Tensor(f'{TENSORS[k].name}_{first}', TENSORS[k].shape, TENSORS[k].dtype, 'sbuf', scope=scope,
                                  par=TENSORS[k].par, alias=None if TENSORS[k].alias is None else mine[TENSORS[k].alias])
                           for k in CHIP)
        for _ in range(rng.randrange(2, 5)):
            if depth and rng.random() < 0.5:
                l = Loop(f'i{rng.randrange(10**9)}', rng.choice((1, 2, 3, 4, 7)), (), 'sequential')
                yield replace(l, body=tuple(body([*loops, l], depth - 1)))
            else: yield moved(instruction(rng, loops), mine)
    return Program(f'scoped {seed}', (), tuple(body([], 3)), (), dialect, 'trn2'), tensors


@pytest.mark.parametrize('dialect', ['nki', 'neuronxcc.nki'])
@pytest.mark.parametrize('seed', range(40))
def test_the_clock_gives_the_lives_of_the_plain_statement(seed, dialect):
    p, tensors = scoped_program(seed, dialect)
    p = replace(p, tensors=tuple(tensors))
    flat = flatten(p, CHIPS['trn2'], False)
    _, _, found = lifetimes_of(flat, len(p.loops))
    on_chip = flat.pool[found['tensor']] != 0
    compiled = sorted(zip(*(found[on_chip][k].tolist() for k in ('tensor', 'first', 'last'))))
    assert compiled == sorted((v.tensor, v.first, v.last) for v in value_lives(p))
    assert {v.tensor for v in value_lives(p)} <= {*lifetimes(p)}
