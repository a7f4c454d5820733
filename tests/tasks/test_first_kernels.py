"""Every kernel that the lab writes stays within the Python that the vendor's compiler takes."""
import warnings

import pytest
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.record.python_subset import read_outside
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.codegen.graph import capture, launched_nodes, node_graph
from kernel_lab.tasks.codegen.lower import lower_unfused
from kernel_lab.tasks.suite.registry import TASKS, get_task

# products, convolutions of each kind and sums of a whole tensor: what is written with lists
SOME = ('matmul', 'rmsnorm_matmul', 'conv2d_3x3', 'conv1d', 'sum_all', 'z_loss_cross_entropy', 'attention_backward')


@pytest.mark.parametrize('name', [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in TASKS])
def test_first_kernel_is_traced_without_a_warning(name):
    task = get_task(name)
    for workload in task.workloads:
        kernel = task.first(workload)
        assert read_outside(kernel.source) == []
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            trace_source(kernel.source, kernel.entry, list(specs_of(task, workload)), 'trn2')


@pytest.mark.parametrize('name', list(TASKS)[::20])
def test_kernels_of_single_operations_too(name):
    graph = capture(get_task(name), get_task(name).workload(None))
    for node in launched_nodes(graph): assert read_outside(lower_unfused(node_graph(graph, node), 'alone')) == []
