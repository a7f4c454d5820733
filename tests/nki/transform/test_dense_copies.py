"""Copies in the order of memory: whatever axes a copy repeats, turns, skips or names twice, the bits stay."""
import math
import random

import numpy as np
import pytest

from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.hbm_copies import dense_copies, dense_copy, load_without_gaps
from kernel_lab.nki.writing.writer import to_source
from kernel_lab.tasks.suite.registry import TASKS

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def copies(x, y):
    out = nl.ndarray((32, 4096), nl.float32, buffer=nl.shared_hbm)
    kept = nl.ndarray((32, 4096), nl.float32, buffer=nl.private_hbm)
    zero = nl.ndarray((32, 4096), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    nisa.dma_copy(dst=out, src=zero)
    nisa.dma_copy(dst=kept, src=y)
"""


def pattern(rng, counts):
    "Axes (step, count) of a row of 4,096: turned, with gaps, repeated or overlapping."
    order, steps, size = rng.sample(range(len(counts)), len(counts)), {}, 1
    for k in order:
        steps[k] = size * rng.choice((1, 1, 1, 2))
        size = steps[k] * counts[k]
    if rng.random() < .4: steps[rng.randrange(len(counts))] = rng.choice((0, 1, 2))
    return [[steps[k], n] for k, n in enumerate(counts)]


def kernel(rng):
    "Loads and stores of tiles in random order, and element-wise instructions in between that walk in one axis or more."
    lines = []
    for j in range(rng.randint(1, 3)):
        counts = [rng.choice((2, 3, 4, 8)) for _ in range(rng.randint(2, 3))]
        size = int(np.prod(counts))
        tile = lambda name: lines.append(f'    {name}{j} = nl.ndarray((32, {size}), nl.float32, buffer=nl.sbuf)')
        shape = (32, *counts)
        tile('t'); tile('u')
        src, dst = rng.choice(('x', 'kept', 'out')), rng.choice(('kept', 'out'))
        lines.append(f'    nisa.dma_copy(dst=t{j}.reshape({shape}), src={src}.ap([[4096, 32], *{pattern(rng, counts)}]))')
        operand = rng.choice((f't{j}', f't{j}[:, 0:1]', '0.5'))
        view = f'.reshape({shape})' if rng.random() < .3 else ''
        lines.append(f'    nisa.tensor_scalar(dst=u{j}{view}, data=t{j}{view}, op0=nl.multiply, operand0=-1.5)')
        if operand == f't{j}': lines.append(f'    nisa.tensor_tensor(dst=u{j}, data1=u{j}, data2=t{j}, op=nl.add)')
        else: lines.append(f'    nisa.tensor_scalar(dst=u{j}, data=u{j}, op0=nl.add, operand0={operand})')
        lines.append(f'    nisa.dma_copy(dst={dst}.ap([[4096, 32], *{pattern(rng, counts)}]), src=u{j}.reshape({shape}))')
    return HEAD + '\n'.join(lines) + '\n    last = nl.ndarray((32, 4096), nl.float32, buffer=nl.sbuf)\n' \
        '    nisa.dma_copy(dst=last, src=kept)\n    nisa.dma_copy(dst=out[:, 2048:4096], src=last[:, 0:2048])\n    return out\n'


def changed(seeds):
    "How many copies were brought in order, each with the same bits as before."
    count = 0
    for seed in seeds:
        rng, data = random.Random(seed), np.random.default_rng(seed)
        x, y = (data.standard_normal((32, 4096)).astype(np.float32) for _ in range(2))
        program = trace_source(kernel(rng), None, [ArraySpec((32, 4096))] * 2, 'trn2')
        want = interpret(program, x, y)[0]
        for n, (o, after) in enumerate(dense_copies(program)):
            assert interpret(after, x, y)[0].tobytes() == want.tobytes(), (seed, n, o.line)
            if not n % 3: program = after
            count += 1
    return count


@pytest.mark.parametrize('count', (40, pytest.param(100, marks=pytest.mark.slow)))
def test_copies_in_order_keep_the_bits(count): assert changed(range(count)) > 100


@pytest.mark.slow
def test_copies_of_two_thousand_kernels(): print(changed(range(1000, 3000)))


@pytest.mark.parametrize('name, least', {'ssm_step': 6.0, 'delta_rule_step': 2.5}.items())
def test_a_repeating_load_is_worth_its_runs(name, least):
    task = TASKS[name]
    specs = [ArraySpec(a.shape, a.dtype.name) for a in task.draw('full', 0).values()]
    program = trace_source(task.first('full').source, None, specs, 'trn2')
    before = us = float(schedule(program, 'trn2').latency_us)
    for _ in range(12):
        found = [(float(schedule(p, 'trn2').latency_us), n, p) for n, (_, p) in enumerate(dense_copies(program)) if not check(p)]
        if not found or min(found)[0] >= us: break
        us, _, program = min(found)
    assert us < before / least
    again = trace_source(to_source(program), None, specs, 'trn2')
    assert float(schedule(again, 'trn2').latency_us) == pytest.approx(us)


@pytest.mark.parametrize('axes', ([[1, 4], [2, 8]], [[0, 4], [1, 32]], [[3, 8], [1, 16]]))
def test_a_store_that_names_elements_twice_is_left_alone(axes):
    shape = tuple(n for _, n in axes)
    size = math.prod(shape)
    source = HEAD + f'    t = nl.ndarray((32, {size}), nl.float32, buffer=nl.sbuf)\n    nisa.dma_copy(dst=t, src=x[:, 0:{size}])\n' \
        f'    nisa.dma_copy(dst=out.ap([[4096, 32], *{axes}]), src=t.reshape((32, *{shape})))\n    return out\n'
    program = trace_source(source, None, [ArraySpec((32, 4096))] * 2, 'trn2')
    with pytest.raises(IllegalTransformation, match='stores an element twice'):
        dense_copy(program, program.instructions[-1])


LAST_LINE = HEAD.count('\n')


def gaps(step, first, many, source='x', stride=4096):
    """A kernel that takes `many` elements of each row, `step` apart, from `first` on, in two blocks of rows."""
    return HEAD + f"""    for i in nl.affine_range(2):
        t = nl.ndarray((16, {many}), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src={source}.ap([[{stride}, 16], [{step}, {many}]], offset={first} + i * 65536))
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out[i * 16:(i + 1) * 16, 0:{many}], src=t)
    return out
"""


def moved(source):
    "(programs with loads without gaps, how many have other bits) of a kernel."
    program = trace_source(source, None, [ArraySpec((32, 4096))] * 2, 'trn2')
    x, y = (np.random.default_rng(k).standard_normal((32, 4096)).astype(np.float32) for k in range(2))
    want, found = interpret(program, x, y)[0].tobytes(), [p for _, p in dense_copies(program)]
    return program, found, sum(interpret(p, x, y)[0].tobytes() != want for p in found)


@pytest.mark.parametrize('step, first, many', ((2, 0, 2048), (2, 1, 2048), (3, 2, 64), (8, 7, 512), (4, 3, 1024), (2, 4094, 1)))
def test_a_load_with_gaps_takes_the_row(step, first, many):
    program, found, wrong = moved(gaps(step, first, many))
    assert not wrong
    if 4096 % step == 0 and many > 1:
        assert found and all(not check(p) for p in found)
        assert min(float(schedule(p, 'trn2').latency_us) for p in found) < float(schedule(program, 'trn2').latency_us)
    else: assert not found


@pytest.mark.parametrize('source, says', (
    (gaps(2, 1, 2048, 'kept'), 'no load of an input'), (gaps(9, 0, 64), 'lie evenly'), (gaps(2, 0, 64, stride=4095), 'lie evenly'),
    (gaps(2, 1, 512).replace('i * 65536', 'i * 65535'), 'lie evenly')))
def test_a_load_with_gaps_that_stays(source, says):
    program, found, _ = moved(source)
    load = next(o for o in program.instructions if o.op == 'dma_copy' and o.line > LAST_LINE)
    with pytest.raises(IllegalTransformation, match=says): load_without_gaps(program, load)
    assert not found


def test_the_row_of_a_load_with_gaps_stays_in_the_tensor():
    """Of four elements the last that are there are the first and the second: the row would end beyond the tensor."""
    source = HEAD + """    t = nl.ndarray((1, 1024), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=y.ap([[4096, 1], [4, 1024]], offset=0))
    nisa.dma_copy(dst=out[0:1, 0:1024], src=t)
    return out
"""
    whole, ends = (trace_source(source.replace('offset=0', f'offset={at}'), None,
                                [ArraySpec((32, 4096)), ArraySpec((1, 4098))], 'trn2') for at in (0, 4))
    load = lambda program: next(o for o in program.instructions if o.line == LAST_LINE + 2)
    assert load_without_gaps(whole, load(whole))
    with pytest.raises(IllegalTransformation, match='may leave its tensor'): load_without_gaps(ends, load(ends))
