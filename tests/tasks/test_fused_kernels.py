"""A kernel with fused passes has the numbers of its reference, is no slower than the first kernel, and is plain text."""
import numpy as np
import pytest
import torch
from kernel_lab.evaluate.verification.verify import verify
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.record.python_subset import read_outside
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.nki.writing.writer import to_source
from kernel_lab.tasks.baselines.eager import graph_specs
from kernel_lab.tasks.codegen.fusion import fusion_groups
from kernel_lab.tasks.codegen.graph import capture
from kernel_lab.tasks.codegen.lower import lower_fused, lower_unfused
from kernel_lab.tasks.codegen.rewrites.parts import with_parts
from kernel_lab.tasks.codegen.precision import kernel_graph
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.suite.registry import TASKS, get_task
from kernel_lab.tasks.synthesis.compose import candidate

# elementwise, reductions of rows, of columns and of everything, products with what follows, several outputs, casts,
# a recurrence down the columns
SOME = ('adamw_step', 'adafactor_step', 'swiglu', 'sandwich_norm', 'mse', 'masked_mean_pool', 'lamb_step',
        'rg_lru_block')


def all_fused(graph):
    "The text with every group fused that can be, whatever the clock says."
    return lower_fused(graph, chip=None)


def disagreement(task, workload):
    "What `verify` says of the kernel with every group fused; None where it agrees with the reference."
    source = all_fused(kernel_graph(task, workload))
    assert read_outside(source) == []
    found = verify(trace_source(source, None, graph_specs(capture(task, workload))), task, workload, [0])
    return None if found.passed else str(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in TASKS])
def test_every_group_fused_agrees_with_the_reference_in_every_dtype(name):
    task = get_task(name)
    for dtype in dict.fromkeys(w.dtype for w in task.workloads):
        assert disagreement(task, task.smallest(dtype)) is None


@pytest.mark.parametrize('number', [79, 137, *(pytest.param(k, marks=pytest.mark.slow) for k in range(200) if k not in (79, 137))])
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


def numbers(reference, tolerance=1e-4, **arrays):
    "The text with every group fused, after its numbers were held against the reference's."
    task = task_from(reference, lambda rng: arrays, name='mine')
    graph = capture(task)
    source = all_fused(graph)
    for got, want in zip(execute(trace_source(source, None, graph_specs(graph)), *arrays.values()),
                         task.expected(arrays)):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return source


def drawn(*shape): return np.random.default_rng(0).standard_normal(shape, np.float32)


@pytest.mark.parametrize('shape, dim', [((256, 300), 0), ((3, 200, 130), 1), ((2, 2, 129, 65), 2), ((4096, 513), 0)])
@pytest.mark.parametrize('f', [lambda x, d: x.softmax(d), lambda x, d: x.mean(d), lambda x, d: x.amax(d) + 1,
                               lambda x, d: (x - x.mean(d, keepdim=True)) / (x.var(d, keepdim=True) + 1).sqrt()])
def test_rows_are_reduced_in_blocks(shape, dim, f):
    source = numbers(lambda x: f(x, dim), x=drawn(*shape))
    assert 'dma_copy(dst=square' not in source              # no block of 128 by 128 is loaded to be transposed


def test_rows_in_blocks_with_rows_columns_and_numbers_beside_them():
    def f(x, gain, weight, one):
        return (x * weight * one).sum(0) * gain, x - (x * weight).amin(0)
    numbers(f, 1e-3, x=drawn(300, 70), gain=drawn(70), weight=drawn(300, 1), one=drawn(1))


@pytest.mark.parametrize('f', [lambda x: x.cumsum(0).sum(0), lambda x: x.cumsum(0) * 2])
def test_a_running_sum_is_no_reduction_of_rows(f):
    assert 'dst=square' in numbers(f, 1e-3, x=drawn(200, 60))


def test_reductions_along_two_axes_are_two_groups():
    graph = capture(task_of(lambda x: x.softmax(0) * x.softmax(1), x=(200, 300)))
    assert all(len({n.op == 'softmax' and n.args[1] for n in g} - {False}) < 2 for g in fusion_groups(graph))
    numbers(lambda x: x.softmax(0) * x.softmax(1), x=drawn(200, 300))


@pytest.mark.parametrize('f', [lambda x: x.softmax(-1), lambda x: x.logsumexp(-1), lambda x: x.log_softmax(-1),
                               lambda x: x.softmax(-1) * x.log_softmax(-1) + x.logsumexp(-1, keepdim=True)])
def test_a_long_softmax_finds_maximum_and_sum_in_one_loop(f):
    x = drawn(5, 40_000) * 9
    x[1, :39_000], x[2, 100:], x[3] = -np.inf, -np.inf, 3e4         # chunks of nothing, and of one number
    source = numbers(f, x=x)
    assert source.count('nisa.activation_reduce(') == 1 and 'row_max' not in source


def test_the_logits_of_classes_are_fetched_where_they_lie():
    def f(x, target): return torch.nn.functional.cross_entropy(x, target.long(), reduction='none')
    x, target = drawn(300, 1000), np.random.default_rng(1).integers(0, 1000, 300, np.int32)
    target[[0, 7]] = -100                                           # which torch ignores
    source = numbers(f, x=x, target=target)
    assert source.count('vector_offset=') and '(300, 1000)' not in source.split('def ')[1].split('# ')[0]
    def g(x, target): return x.log_softmax(1).gather(1, target.long())
    assert 'vector_offset=' in numbers(g, x=x, target=abs(target[:, None]) % 1000 * np.ones((1, 3), np.int32))


def test_a_kernel_that_fetches_elements_is_written_again_as_it_is():
    x, target = drawn(256, 1000), np.random.default_rng(1).integers(0, 1000, 256, np.int32)
    source = numbers(lambda x, t: x.gather(1, t.long()[:, None]), x=x, t=target)
    program = trace_source(source, None, (x, target))
    assert first_difference(trace_source(to_source(program), None, (x, target)), program) is None


@pytest.mark.parametrize('f', [
    lambda x, t: x.gather(0, t.long()[:, None].expand(-1, 64)), lambda x, t: (x * 2).gather(1, t.long()[:, None]),
    lambda x, t: (x - x.amax(0)).gather(1, t.long()[:, None]), lambda x, t: x.gather(1, (x * 0).long()),
    lambda x, t: x[:100].gather(1, t[:100].long()[:, None])])
def test_what_is_not_fetched_where_it_lies(f):
    target = np.random.default_rng(1).integers(0, 64, 200, np.int32)
    assert 'vector_offset=' not in numbers(f, x=drawn(200, 64), target=target)


def test_parts_of_composites_are_fused_and_nothing_is_computed_twice():
    def f(x, gain, bias): return torch.nn.functional.batch_norm(x, None, None, gain, bias, True).relu()
    graph = capture(task_of(f, x=(256, 96), gain=(96,), bias=(96,)))
    assert all_fused(graph).count('\n    # ') == 1 and len(graph.nodes) == 2
    def twice(x): return x.log_softmax(-1).exp() * x.log_softmax(-1)
    assert [n.op for n in with_parts(capture(task_of(twice, x=(9, 9)))).nodes] == ['logsumexp', 'sub', 'exp', 'mul']


def test_a_graph_without_composites_stays_as_it_is():
    graph = capture(task_of(lambda x, y: (x @ y).tanh(), x=(9, 8), y=(8, 7)))
    assert with_parts(graph) is graph
    fewer = capture(task_from(lambda x, t: x.gather(1, t.long()), lambda rng: {
        'x': rng.standard_normal((9, 8), np.float32), 't': rng.integers(0, 8, (7, 1), np.int32)}, name='mine'))
    assert with_parts(fewer) is fewer                               # places in the first seven of nine rows
    flipped = capture(task_of(lambda x: x.flip(0, 1).roll(3, 1), x=(9, 8)))
    assert with_parts(flipped) is flipped                           # parts that move data
