"""The clock's name changes with its times: dozens of latencies are held against it."""
from hashlib import sha256

import pytest
from test_dma_bytes import TURNED
from test_kept_loads import repeated

from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.timeline import CLOCK, schedule
from kernel_lab.tasks.suite.registry import TASKS

DIGESTS = {'lab-8': '02c46266a6246d06'}                 # of all times below, to a nanosecond
SAMPLE = [*list(TASKS)[::16], 'embedding']       # and one whose rows a tile of indices finds


def earlier_programs(chip):
    "Programs of the earlier dialect, whose compiler has rules of its own: kept loads, transposes on Tensor."
    turned = TURNED.format(near='bfloat16', engine='tensor_engine', n=128)
    yield 'repeated', repeated(3, 36, 512, 3, 512)
    yield 'turned', trace_source(turned, None, [ArraySpec((128, 512))], chip)


def latencies():
    for chip in CHIPS:
        for name, program in earlier_programs(chip):
            yield f'{name} {chip} {schedule(program, chip).latency_us:.3f}'
    for name in SAMPLE:
        task = TASKS[name]
        w = task.workload('small')
        specs = [ArraySpec(tuple(v.shape), v.dtype.name) for v in task.draw(w).values()]
        for chip in CHIPS:
            program = trace_source(task.first(w).source, None, specs, chip)
            yield f'{name} {chip} {schedule(program, chip).latency_us:.3f}'


def test_a_clock_with_other_times_has_another_name():
    found = sha256('\n'.join(latencies()).encode()).hexdigest()[:16]
    if found != DIGESTS.get(CLOCK):
        pytest.fail(f'The clock {CLOCK!r} gives other times than it did ({found}, and not {DIGESTS.get(CLOCK)}). If that '
                    'is meant, give it a new name (nki/timing/timeline), add the name and the digest here, and make the '
                    'kept tables anew (CONTRIBUTING.md).')
