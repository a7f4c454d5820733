"""Graphs rewritten before they are fused: one-hot rows, sums of attention weights, triangles, few long rows. Which
graphs have them, and that the numbers stay those of the reference."""
import math
import numpy as np
import pytest
import torch
from torch.nn import functional as F
from kernel_lab.evaluate.verification.verify import verify
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.record.python_subset import read_outside
from kernel_lab.tasks.baselines.eager import graph_specs
from kernel_lab.tasks.codegen.attention.triangles import with_triangles
from kernel_lab.tasks.codegen.graph import capture
from kernel_lab.tasks.codegen.lower import lower_fused
from kernel_lab.tasks.codegen.precision import kernel_graph
from kernel_lab.tasks.codegen.rewrites.few_rows import row_parts, with_rows_in_parts
from kernel_lab.tasks.codegen.rewrites.hot_rows import with_hot_rows
from kernel_lab.tasks.codegen.rewrites.weights_apart import with_weights_apart
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.suite.registry import get_task


def drawn(rng, **shapes):
    return {k: rng.integers(0, 30, s).astype(np.int32) if k == 'index' else rng.standard_normal(s).astype(np.float32)
            for k, s in shapes.items()}


def found(reference, rewrite, **shapes):
    "(operations after a rewrite, the largest error of the kernel of the rewritten graph)."
    task = task_from(reference, lambda rng: drawn(rng, **shapes), name='mine')
    graph, arrays = rewrite(capture(task)), task.draw()
    source = lower_fused(graph, chip=None)
    assert read_outside(source) == []
    got = execute(trace_source(source, None, graph_specs(graph)), *arrays.values())
    return [n.op for n in graph.nodes], max(float(np.max(abs(g - w) / (1 + abs(w))))
                                            for g, w in zip(got, task.expected(arrays)))


def hot(index, classes=30): return F.one_hot(index.long(), classes).float()


@pytest.mark.parametrize('classes, width', [(30, 7), (130, 512), (30, 1000)])
def test_sums_of_segments(classes, width):
    ops, error = found(lambda index, x: hot(index, classes).T @ x, with_hot_rows, index=(384,), x=(384, width))
    assert 'hot_sums' in ops and 'one_hot' not in ops and error < 1e-5


def test_sums_and_counts_of_segments():
    f = lambda index, x: (hot(index).T @ x, hot(index).sum(0))
    together = lambda index, x: (lambda h: h.T @ x / (h.sum(0, keepdim=True).T + 1))(hot(index))
    assert found(f, with_hot_rows, index=(256,), x=(256, 512))[1] < 1e-5
    ops, error = found(together, with_hot_rows, index=(256,), x=(256, 511))
    assert ops.count('hot_sums') == 1 and 'one_hot' not in ops and error < 1e-5


def test_additions_by_index():
    f = lambda base, index, x: base.index_add(0, index.long(), x)
    ops, error = found(f, with_hot_rows, base=(150, 3, 8), index=(256,), x=(256, 3, 8))
    assert ops == ['hot_sums'] and error < 1e-5


@pytest.mark.parametrize('f, shapes', [
    (lambda index, w: hot(index) * w, dict(index=(200,), w=(200, 1))),                  # no whole blocks of rows
    (lambda index, w: hot(index) * w, dict(index=(256,), w=(256, 30))),                 # a weight for each column
    (lambda index, w: hot(index) + w, dict(index=(256,), w=(256, 1))),
    (lambda index, w: w.index_add(0, index.long(), w, alpha=2), dict(index=(256,), w=(256, 8))),
    (lambda index, w: w.index_add(1, index.long(), w), dict(index=(256,), w=(128, 256)))])
def test_what_is_no_one_hot_product_stays(f, shapes):
    task = task_from(f, lambda rng: drawn(rng, **shapes), name='mine')
    graph = capture(task)
    assert with_hot_rows(graph) is graph


def causal(s): return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
def weights(q, k): return causal(q @ k.transpose(-2, -1) / 4).softmax(-1)


@pytest.mark.parametrize('combined', [lambda p, q, c: p - c * q, lambda p, q, c: p + q * 0.5, lambda p, q, c: c * p - q])
def test_sums_of_attention_weights(combined):
    def f(q, k, v, share):
        p, other = weights(q, k).chunk(2, 0)
        return combined(p, other, share) @ v
    ops, error = found(f, with_weights_apart, q=(4, 100, 16), k=(4, 100, 16), v=(2, 100, 8), share=(2, 100, 1))
    assert ops.count('matmul') == 2 and ops[-1] in ('add', 'sub') and error < 1e-5


def test_triangles():
    def f(q, k, v):
        w = (q @ k.transpose(-2, -1)).tril()
        return w @ v
    ops, error = found(f, with_triangles, q=(2, 640, 16), k=(2, 640, 16), v=(2, 640, 100))
    assert ops == ['triangle'] and error < 1e-4


@pytest.mark.parametrize('name', ['linear_attention', 'weighted_one_hot', 'segment_mean', 'index_add'])
def test_kernels_in_sixteen_bits(name):
    "The weights of a triangle have 32 bits where the reference gives them these."
    task = get_task(name)
    workload = task.workload('bf16')
    source = lower_fused(kernel_graph(task, workload), name)
    program = trace_source(source, None, graph_specs(capture(task, workload)))
    assert verify(program, task, workload, [0]).passed


def test_rows_with_a_part_of_minus_infinity():
    def draw(rng):
        x = rng.standard_normal((16, 8192)).astype(np.float32)
        x[:, 1024:4096] = -np.inf
        return {'x': x}
    for f in (lambda x: x.softmax(-1), lambda x: x.log_softmax(-1).exp() * 2, lambda x: x.logsumexp(-1)):
        task = task_from(f, draw, name='mine')
        graph, arrays = capture(task), task.draw()
        assert row_parts(graph).parts == 8
        got, = execute(trace_source(lower_fused(with_rows_in_parts(graph), chip=None), None, graph_specs(graph)),
                       *arrays.values())
        assert np.max(abs(got - task.expected(arrays)[0])) < 1e-5


def test_sums_and_extremes_of_few_long_rows():
    f = lambda x, y: (x * y).sum(-1, keepdim=True) + x.amax(-1, keepdim=True) * y
    ops, error = found(f, with_rows_in_parts, x=(32, 8192), y=(8192,))
    assert ops.count('sum') == 2 and ops.count('amax') == 2 and error < 1e-4
