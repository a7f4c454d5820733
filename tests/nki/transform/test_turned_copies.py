"""Copies within HBM that turn two axes: any permutation, gap, repetition or loop around it keeps its bits."""
import random

import numpy as np
import pytest

from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.hbm_copies import transposed_copies, transposed_copy
from kernel_lab.nki.writing.writer import to_source
from kernel_lab.tasks.suite.registry import TASKS

SIZE = 2**15
HEAD = f"""import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def turn(x):
    out = nl.ndarray(({SIZE},), nl.float32, buffer=nl.shared_hbm)
    kept = nl.ndarray(({SIZE},), nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=kept, src=x)
    nisa.dma_copy(dst=out, src=x)
"""


def steps(rng, counts):
    "Steps of axes in random order, now and then with a gap, or leading to elements that another axis reaches."
    found, size = {}, 1
    for k in rng.sample(range(len(counts)), len(counts)):
        found[k] = size
        size *= counts[k] * rng.choice((1, 1, 1, 1, 2))
    if rng.random() < .2: found[rng.randrange(len(counts))] = rng.choice((0, 1, 3))
    return [found[k] for k in range(len(counts))]


def kernel(rng):
    lines = []
    for _ in range(rng.randint(1, 3)):
        counts = [rng.choice((2, 3, 5, 8, 24, 40)) for _ in range(rng.randint(2, 3))]
        while np.prod(counts) > SIZE // 8: counts[rng.randrange(len(counts))] = 2
        dst, src = rng.choice((('out', 'kept'), ('kept', 'out'), ('out', 'x'), ('out', 'out')))
        one, two = (([*map(list, zip(steps(rng, counts), counts))]) for _ in range(2))
        if rng.random() < .3:
            lines += ['    for i in nl.affine_range(2):',
                      f'        nisa.dma_copy(dst={dst}.ap({one}, offset=100 * i), src={src}.ap({two}, offset=7 * i))']
        else: lines.append(f'    nisa.dma_copy(dst={dst}.ap({one}), src={src}.ap({two}))')
    return HEAD + '\n'.join(lines) + f'\n    nisa.dma_copy(dst=out[{SIZE // 2}:{SIZE}], src=kept[0:{SIZE // 2}])\n    return out\n'


def turned(seeds):
    "(turns, refusals): every turn keeps the bits."
    turns, refused = 0, []
    for seed in seeds:
        x = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
        program = trace_source(kernel(random.Random(seed)), None, [ArraySpec((SIZE,))], 'trn2')
        if check(program): continue
        want = interpret(program, x)[0]
        for o in program.instructions:
            try: after = transposed_copy(program, o)
            except IllegalTransformation as e: refused.append(e.message); continue
            assert not check(after), (seed, check(after)[0])
            assert interpret(after, x)[0].tobytes() == want.tobytes(), (seed, o.line)
            turns += 1
    return turns, refused


def test_turned_copies_keep_the_bits():
    turns, refused = turned(range(120))
    assert turns > 25 and any('to another' in r for r in refused) and any('twice' in r for r in refused), (turns, refused)


@pytest.mark.slow
def test_turns_of_three_thousand_kernels(): print(turned(range(1000, 4000))[0])


@pytest.mark.parametrize('name, least', {'channels_first': 10.0, 'head_scores': 3.0}.items())
def test_a_turn_is_worth_its_runs(name, least):
    task = TASKS[name]
    specs = [ArraySpec(a.shape, a.dtype.name) for a in task.draw('full', 0).values()]
    program = trace_source(task.first('full').source, None, specs, 'trn2')
    us = min(float(schedule(p, 'trn2').latency_us) for _, p in transposed_copies(program))
    best = next(p for _, p in transposed_copies(program) if float(schedule(p, 'trn2').latency_us) == us)
    assert us < float(schedule(program, 'trn2').latency_us) / least and not check(best)
    again = trace_source(to_source(best), None, specs, 'trn2')
    assert float(schedule(again, 'trn2').latency_us) == pytest.approx(us)
