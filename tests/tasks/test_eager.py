"""Eager times: once per kind of launch, and unknown where they would take too long."""
import pytest

from kernel_lab.core.errors import KernelError
from kernel_lab.tasks.baselines import eager as page
from kernel_lab.tasks.codegen import graph
from kernel_lab.tasks.suite.family import Family, torch

STEPS = 40
long = Family('long', 2, full=dict(n=16, s=STEPS), small=dict(n=8, s=4))


@long(x='n s', w='n n')
def recurrence(x, w):
    "A state that goes through all columns."
    h = torch.zeros(x.shape[0])
    for t in range(x.shape[1]): h = torch.tanh(w @ h + x[:, t])
    return h


def test_each_kind_of_launch_is_worked_out_once(monkeypatch):
    written, lower = [], page.lower_unfused
    monkeypatch.setattr(page, 'lower_unfused', lambda *a: written.append(a[0]) or lower(*a))
    found = page.eager(recurrence, 'full')
    assert len(found.launches) >= 3 * STEPS and len(written) <= 6
    assert len({launch.node for launch in found.launches}) == len(found.launches)
    monkeypatch.setattr(page, '_kind_of', id)                           # one by one
    graphs = []
    monkeypatch.setattr(page, 'node_graph', lambda *a: graphs.append(graph.node_graph(*a)) or graphs[-1])
    assert page.eager(recurrence, 'full') == found and len(written) >= 3 * STEPS


def test_launches_that_differ_in_a_number_or_a_dtype_are_of_two_kinds():
    node = lambda name, args, dtype='float32': graph.Node(name, 'mul', args, {}, (4,), dtype)
    kind = lambda n: page._kind_of(graph.Graph((graph.Node('x', 'input', (), {}, (4,), 'float32'),), (n,), (n.name,)))
    x = graph.Ref('x')
    assert kind(node('a', (x, 2.0))) == kind(node('b', (x, 2.0)))
    assert len({kind(node('a', (x, v))) for v in (2.0, 2, 3.0, True)} | {kind(node('a', (x, 2.0), 'bfloat16'))}) == 5


def test_what_takes_too_long_is_unknown(monkeypatch):
    graph.capture.cache_clear()
    with pytest.raises(KernelError, match='eager baseline of recurrence took too long') as error:
        page.eager(recurrence, 'full', seconds=1e-4)
    assert error.value.kind == 'timeout'
    monkeypatch.setattr(page, 'EAGER_SECONDS', 1e-4)
    page.eager_us.cache_clear()
    assert page.eager_us(recurrence, recurrence.workload('full'), 'trn2') is None
    page.eager_us.cache_clear()


def test_users_of_a_node_are_those_that_read_it():
    found = graph.capture(recurrence, 'small')
    for n in (*found.inputs, *found.nodes):
        assert found.users(n.name) == tuple(m for m in found.nodes if n.name in m.refs())
