"""Composite operations as their parts: an operation made of itself, as a repeat of repeats, ends."""
import pytest
from kernel_lab.tasks.codegen.graph import capture
from kernel_lab.tasks.codegen.rewrites.parts import _Parts
from kernel_lab.tasks.suite.registry import TASKS


@pytest.mark.parametrize('name', ['rwkv_time_mix', 'repeat_heads', 'roll_columns', 'flip_columns'])
def test_an_operation_made_of_itself_ends(name):
    "It was taken apart until the stack was full, which was caught where the last call was torch's."
    graph = capture(TASKS[name], 'small')
    plan = _Parts(graph)
    for node in graph.nodes: plan.lower(node)
    assert plan.steps < 4 * len(graph.nodes) + 10 and plan.noted
