"""A kernel with fused passes has the numbers of its reference, is no slower than the first kernel, and is plain text."""
import numpy as np
import pytest
from kernel_lab.evaluate.verification.verify import verify
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.record.python_subset import read_outside
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.tasks.baselines.eager import graph_specs
from kernel_lab.tasks.codegen.fusion import fusion_groups
from kernel_lab.tasks.codegen.graph import capture
from kernel_lab.tasks.codegen.lower import lower_fused, lower_unfused
from kernel_lab.tasks.codegen.precision import kernel_graph
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.suite.registry import TASKS, get_task
from kernel_lab.tasks.synthesis.compose import candidate

# elementwise, reductions of rows, of columns and of everything, products with what follows, several outputs, casts
SOME = ('adamw_step', 'adafactor_step', 'swiglu', 'sandwich_norm', 'mse', 'masked_mean_pool', 'lamb_step')


def all_fused(graph):
    "The text with every group fused that can be, whatever the clock says."
    return lower_fused(graph, chip=None)


def disagreement(task, workload):
    "What `verify` says of the kernel with every group fused; None where it agrees with the reference."
    source = all_fused(kernel_graph(task, workload))
    assert read_outside(source) == []
    found = verify(trace_source(source, None, graph_specs(capture(task, workload))), task, workload, [0])
    return None if found.passed else str(found)


@pytest.mark.parametrize('name', [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in TASKS])
def test_every_group_fused_agrees_with_the_reference_in_every_dtype(name):
    task = get_task(name)
    for dtype in dict.fromkeys(w.dtype for w in task.workloads):
        assert disagreement(task, task.smallest(dtype)) is None


@pytest.mark.parametrize('number', [79, *(pytest.param(k, marks=pytest.mark.slow) for k in range(200) if k != 79)])
def test_synthesized_tasks_too(number):
    task = candidate(number, 0).task()
    assert disagreement(task, task.workloads[0]) is None


def slowdown(graph, specs):
    "Latency of the fused kernel over that of the first one."
    us = [schedule(trace_source(make(graph), None, specs)).latency_us for make in (lower_fused, lower_unfused)]
    return us[0] / us[1]


@pytest.mark.slow
@pytest.mark.parametrize('name', TASKS)
def test_no_fused_kernel_is_slower_than_the_first(name):
    task = get_task(name)
    workload = task.workload('full')
    assert slowdown(kernel_graph(task, workload), graph_specs(capture(task, workload))) <= 1


@pytest.mark.parametrize('number', [79, 50, 230, 208])      # 1.3 to 16 times slower where every group is fused
def test_what_does_not_pay_is_not_fused(number):
    task = candidate(number, 0).task()
    graph, specs = kernel_graph(task, task.workloads[0]), graph_specs(capture(task, task.workloads[0]))
    assert slowdown(graph, specs) <= 1


def task_of(reference, **shapes):
    return task_from(reference, lambda rng: {k: rng.standard_normal(s, np.float32) for k, s in shapes.items()},
                     name='mine')


@pytest.mark.parametrize('count', [1 << 16, 3 * 1000, 131071])
def test_a_group_on_tensors_of_one_size_has_no_column_of_one(count):
    graph = capture(task_of(lambda x, y: (x * y + y).tanh() * x, x=(count,), y=(count,)))
    source = all_fused(graph)
    assert '(n, 1)' not in source
    specs = graph_specs(graph)
    one, several = (schedule(trace_source(s, None, specs)).latency_us for s in (source, lower_unfused(graph)))
    assert one < several


def test_a_running_sum_in_chunks_starts_afresh_in_every_loop():
    def f(x):
        y = x.cumsum(-1)
        return y / (y.square().sum(-1, keepdim=True) + 1), y
    task = task_of(f, x=(3, 60_000))
    arrays, graph = task.draw(), capture(task)
    source = all_fused(graph)
    assert len(fusion_groups(graph)) == 1 and source.count('range(0, 60000') > 1
    for got, want in zip(execute(trace_source(source, None, graph_specs(graph)), *arrays.values()),
                         task.expected(arrays)):
        assert np.max(abs(got - want) / (1 + abs(want))) < 1e-3


def test_a_column_that_is_read_as_a_row_is_not_fused():
    graph = capture(task_of(lambda x: (x - x.sum(-1)).exp(), x=(64, 64)))
    assert [[n.op for n in g] for g in fusion_groups(graph)] == [['sum'], ['sub', 'exp']]
