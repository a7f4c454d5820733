"""Columns of an instruction for another engine: the bits stay, or the split is refused; and families on programs that
other passes have changed."""
import random
from dataclasses import replace

import numpy as np
import pytest

from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.cleanup import with_instructions
from kernel_lab.nki.transform.engines import moved_work, other_forms, shared_columns, waits_us
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.tuning.search import search
from kernel_lab.tasks.suite.registry import TASKS

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def columns(x, y):
    out = nl.ndarray((64, 96), nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((64, 96), nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((64, 96), nl.float32, buffer=nl.sbuf)
    r = nl.ndarray((64, 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=y)
    nisa.dma_copy(dst=r, src=y[:, 7:8])
"""


def kernel(rng):
    "A random kernel whose instructions read and overwrite columns of two tiles, shifted, reversed or in place."
    lines = []
    for _ in range(rng.randint(1, 4)):
        n = rng.choice((16, 48, 80))
        at = lambda t: f'{t}[:, nl.ds({rng.randint(0, 96 - n)}, {n})]'
        dst, one, other = (at(rng.choice('ab')) for _ in range(3))
        if rng.random() < .3: one = dst
        lines.append(rng.choice((
            f'nisa.tensor_tensor(dst={dst}, data1={one}, data2={other}, op=nl.add)',
            f'nisa.tensor_scalar(dst={dst}, data={one}, op0=nl.multiply, operand0=r)',
            f'nisa.tensor_scalar(dst={dst}, data={one}, op0=nl.multiply, operand0={other[0]}[:, 3:4])',
            f'nisa.activation(dst={dst}, op=nl.square, data={one}, bias=r)',
            f'nisa.tensor_reduce(dst=r, op=nl.add, data={one}, axis=1)',
            f'nisa.tensor_tensor_scan(dst={dst}, data0={one}, data1={other}, initial=0.5, op0=nl.multiply, op1=nl.add)')))
    return HEAD + ''.join(f'    {line}\n' for line in lines) + '    nisa.dma_copy(dst=out, src=a)\n    return out\n'


def split_at_random(seeds):
    "(splits, refusals): whatever is split computes the same bits."
    split = refused = 0
    for seed in seeds:
        rng, data = random.Random(seed), np.random.default_rng(seed)
        x, y = (data.standard_normal((64, 96)).astype(np.float32) for _ in range(2))
        program = trace_source(kernel(rng), None, [ArraySpec((64, 96))] * 2, 'trn2')
        want = interpret(program, x, y)[0]
        for o in program.instructions:
            if o.op == 'dma_copy': continue
            form = rng.choice([*other_forms(o)])
            try: two = shared_columns(o, form, rng.randint(0, 60))
            except IllegalTransformation: refused += 1; continue
            split += 1
            got = interpret(with_instructions(program, {id(o): two}), x, y)[0]
            assert got.tobytes() == want.tobytes(), (seed, o.op, o.line)
    return split, refused


def test_shared_columns_keep_the_bits():
    split, refused = split_at_random(range(75))
    assert split > 20 and refused > 20, (split, refused)


@pytest.mark.slow
def test_shared_columns_of_three_thousand_kernels(): print(split_at_random(range(1000, 4000)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', ('int8_weight_linear', 'adagrad_step'))
def test_a_search_can_go_on_from_what_others_made(name):
    "Loops of one line with different bodies; a schedule whose program has copies that the kernel does not have."
    task = TASKS[name]
    specs = [ArraySpec(a.shape, a.dtype.name) for a in task.draw('full', 0).values()]
    found = search(trace_source(task.first('full').source, None, specs, 'trn2'), 'climb', candidates=600)
    assert found.latency_us < found.first_us


def test_who_waits_is_not_active():
    program = trace_source(kernel(random.Random(5)), None, [ArraySpec((64, 96))] * 2, 'trn2')
    timeline = schedule(program, 'trn2')
    waited = waits_us(timeline)
    assert waited.keys() <= {id(o) for o in timeline.program.instructions}
    assert 0 <= sum(waited.values()) <= 4 * timeline.latency_us
    assert not waits_us(schedule(replace(program, body=program.body[:3] + program.body[-1:]), 'trn2'))


@pytest.mark.parametrize('chip, dtype, form', [('trn1', 'float32', 'activation'), ('trn1', 'bfloat16', 'activation'),
                                               ('trn1', 'int32', None), ('trn2', 'float32', 'tensor_copy')])
def test_a_copy_moves_to_scalar(chip, dtype, form):
    "As a function where Scalar has no copies, which keeps floats as they are; integers would be rounded to float32."
    source = HEAD.replace('float32', dtype) + ''.join(f'    {line}\n' for line in (
        f't = nl.ndarray((64, 96), dtype=nl.{dtype}, buffer=nl.sbuf)', 'nisa.tensor_copy(dst=t, src=a)',
        'nisa.dma_copy(dst=out, src=t)', 'return out'))
    program = trace_source(source, None, [ArraySpec((64, 96), dtype)] * 2, chip)
    found = [(f, after) for o, f, after in moved_work(program) if o.op == 'tensor_copy' and f.engine == 'Scalar']
    assert [f.op for f, _ in found] == ([form] if form else [])
    if dtype != 'float32': return
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(dtype)
    for _, after in found:
        assert not check(after) and interpret(after, x, x)[0].tobytes() == interpret(program, x, x)[0].tobytes()
