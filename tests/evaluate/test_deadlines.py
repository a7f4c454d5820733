"""Work that takes too long ends close to its limit, wherever in an evaluation it is; what waits for the processor does not."""
import time

import numpy as np
import pytest
import torch
from dataclasses import replace
from kernel_lab.core.errors import KernelError, in_time, within
from kernel_lab.evaluate import pipeline
from kernel_lab.evaluate.sandbox.run import Limits
from kernel_lab.evaluate.verification.stability import _in_float64
from kernel_lab.tasks.suite.registry import TASKS

TASK = TASKS['rmsnorm']
SECONDS, LATE = 0.25, 1.5        # the limit; a second more than that is no longer close to it


def endless_lines(*arrays):
    k = 0
    while True: k += 1

def endless_torch(x, *rest):
    while True: x = torch.exp(-x * x) + 1

def endless_module(x, *rest):
    return torch.nn.Sequential(*[torch.nn.Identity()] * 10 ** 7)(x)

def endless_numpy(x, *rest):
    y = x.numpy()
    while True: y = np.tanh(y @ y.T @ y)

def endless_inputs(workload, rng):
    while True: rng.standard_normal(1 << 10)

def ended(work):
    "Processor seconds until a deadline ended this."
    began = time.process_time()
    with within(SECONDS, 'it'), pytest.raises(KernelError) as e: work()
    assert e.value.kind == 'timeout', e.value
    return time.process_time() - began

ENDLESS = [endless_lines, endless_torch, endless_module, endless_numpy]

SLOW = pytest.mark.slow

@pytest.mark.parametrize('reference', ENDLESS)
@pytest.mark.parametrize('way', ['float32', pytest.param('float64', marks=SLOW), 'moved'])
def test_a_reference_without_end(reference, way):
    torch.manual_seed(0)
    arrays, task = TASK.draw('small'), replace(TASK, reference=reference)
    run = {'float32': lambda: task.expected(arrays), 'float64': lambda: _in_float64(task, arrays),
           'moved': lambda: _in_float64(task, arrays, 1e-6)}[way]
    assert ended(run) < LATE + SECONDS * torch.get_num_threads()

def test_inputs_without_end():
    assert ended(lambda: replace(TASK, inputs=endless_inputs).draw('small')) < LATE

@pytest.mark.parametrize('reference', [endless_lines, endless_torch, *(pytest.param(f, marks=SLOW) for f in ENDLESS[2:])])
def test_an_evaluation_says_timeout(reference):
    task = replace(TASK, name='endless', reference=reference)
    began = time.process_time()
    found = pipeline.evaluate(TASK.first('small'), task, 'small', seeds=1, baseline_us=1.0,
                              limits=Limits(work_seconds=1))
    assert found.status.value == 'timeout', found.error
    assert time.process_time() - began < 10

def test_a_guard_without_time_is_no_finding(monkeypatch):
    def slow(facts):
        raise KernelError('it took too long', kind='timeout')
    monkeypatch.setattr(pipeline, 'run_guards', slow)
    found = pipeline.evaluate(TASK.first('small'), TASK, 'small', seeds=1, baseline_us=1.0)
    assert found.status.value == 'timeout' and not found.guards

def test_what_waits_has_more_wall_time_than_what_computes():
    with within(0.2, 'it'):
        time.sleep(0.3)
        in_time()
        time.sleep(0.4)
        with pytest.raises(KernelError, match='took too long'): in_time()

def test_a_deadline_of_the_processor_ends_threads_before_the_wall_clock(monkeypatch):
    "Several threads use up its time sooner than it passes; a deadline of both clocks leaves them that long."
    began, used = time.process_time(), [0.0]
    monkeypatch.setattr(time, 'process_time', lambda: began + used[0])
    with within(60, 'both'), within(60, 'it', by_processor=True):
        in_time()
        used[0] = 61
        with pytest.raises(KernelError, match='it took too long .*limit 60 s, got 61'): in_time()
    with within(60, 'both'):
        used[0] = 200
        in_time()
