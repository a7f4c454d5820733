"""Kernels that record without end: refused where they pass a limit, not when their program is complete."""
import json

import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.pipeline import instructions_by_line
from kernel_lab.evaluate.sandbox.run import Limits, trace_kernel
from kernel_lab.nki import trace_source
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.ir.serialize import least_parts
from kernel_lab.nki.record.builder import recorded_at_most
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import TASKS

KERNEL = '''import nki.language as nl
import nki.isa as nisa
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.load(x)
{}
    nl.store(out, t)
    return out
'''
X = [ArraySpec((128, 64), 'float32')]
LOOPS = {        # a body that records too much, in ways that do not end by themselves within seconds
    'a Python loop': '    for _ in range(10 ** 9): t = nl.add(t, 1.0)',
    'a while loop': '    while True: nisa.tensor_scalar(t, t, op0=nl.add, operand0=1.0)',
    'a loop that is unrolled': '    t2 = [t]\n    for i in nl.sequential_range(10 ** 9): t2[0] = nl.add(t2[0], 1.0)',
    'a loop in a loop': '    for i in nl.affine_range(10 ** 6):\n        for _ in range(10 ** 9): t[...] = nl.add(t, 1.0)',
    'large tiles': '    while True: big = nl.ndarray((128, 8192), nl.float32, buffer=nl.sbuf); big[...] = nl.add(big, 1.0)',
    'copies of nothing': '    while True: nisa.dma_copy(out[0:1, 0:1], x[0:1, 0:1])'}


@pytest.mark.parametrize('limits', [Limits(seconds=120, answer_mb=2), Limits(seconds=120, instructions=2_000)])
@pytest.mark.parametrize('body', LOOPS.values(), ids=LOOPS)
def test_a_trace_ends_where_it_passes_a_limit(body, limits):
    refused, reply = trace_kernel(Kernel(KERNEL.format(body)), X, 'trn2', limits)
    assert isinstance(refused, KernelError) and refused.kind == 'limit', refused
    assert refused.line in (6, 7) and reply.used['cpu_seconds'] < 15, (refused, reply.used)


def programs():
    "A few first kernels, small."
    for task in list(TASKS.values())[::12]:
        w = task.smallest('float32')
        if not (first := task.first(w)): continue
        specs = [ArraySpec(tuple(s), 'float32') for s in w.shapes.values()]
        try: yield trace_source(first.source, first.entry, specs, 'trn2'), first, specs
        except KernelError: continue


def test_what_is_counted_while_tracing_is_what_the_program_has():
    seen = 0
    for program, kernel, specs in programs():
        data, drafts = json.loads(program.to_json()), [o for _, o in program.walk()]
        text = json.dumps(data['body'], separators=(',', ':'))
        parts, least = sum(map(text.count, '[{,:')), sum(map(least_parts, drafts))
        assert 0.6 * parts <= least <= parts, (program.name, least, parts)
        total = instructions_by_line(program).total()
        again = lambda: trace_source(kernel.source, kernel.entry, specs, 'trn2')
        with recorded_at_most(instructions=total): again()
        with recorded_at_most(parts=parts): again()
        with recorded_at_most(instructions=total - 1), pytest.raises(KernelError, match='too long'): again()
        with recorded_at_most(parts=least - 1), pytest.raises(KernelError, match='too many parts'): again()
        seen += 1
    assert seen >= 10
