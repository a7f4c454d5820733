"""What is written in doubling steps becomes one scan where that is the same, whatever the length, the axis and the
operands; and nothing else does."""
import numpy as np
import pytest
import torch
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.tasks.codegen.graph import capture
from kernel_lab.tasks.codegen.lower import lower_fused, lower_unfused
from kernel_lab.tasks.codegen.rewrites.recurrences import with_backwards_scans, with_recurrences
from kernel_lab.tasks.codegen.rewrites.time_last import turned_axes, with_time_last
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.suite.registry import get_task
from kernel_lab.tasks.codegen.precision import kernel_graph


def mine(reference, **shapes):
    return task_from(reference, lambda rng: {k: rng.uniform(-1, 1, s).astype(np.float32) for k, s in shapes.items()},
                     name='mine')


GRAPHS = []            # (task, graph) of the last one: torch traces it once for all that a test asks


def graph_of(task):
    if not any(known is task for known, _ in GRAPHS): GRAPHS[:] = [(task, capture(task))]
    return GRAPHS[0][1]


def steps(a, b, axis=-1, shift=0, times=1, swapped=False, value=0.0, end=None):
    "Doubling steps with zeros in front along an axis, and faults: a wrong shift, factor, order, filling or end."
    a, b, reach = a.movedim(axis, -1), b.movedim(axis, -1), 1
    n = b.shape[-1]
    while reach < (end or n):
        by = reach + shift
        before = lambda x: torch.nn.functional.pad(x, (by, 0), value=value)[..., :n]
        one = before(a) * b if swapped else a * before(b)
        a, b, reach = a * before(a), b + (one if times == 1 else one * times), 2 * reach
    return b.movedim(-1, axis)


def along(x, axis, k): return x[(slice(None),) * (axis % x.ndim) + (k,)]


def joined(a, b, axis=-1, gap=0):
    "Doubling steps that join what is done with what is new along an axis."
    n, reach = b.shape[axis], 1
    a = along(a, axis, slice(1, None))
    while reach < n:
        done, new = along(b, axis, slice(0, reach)), along(b, axis, slice(reach, None))
        moved = along(b, axis, slice(0, n - reach))
        b = torch.cat([done, new + a * moved], axis)
        if 2 * reach < n: a = along(a, axis, slice(reach, None)) * along(a, axis, slice(0, a.shape[axis] - reach))
        reach *= 2
    return b


def scans(graph):
    return [n.op for n in graph.nodes if 'recurrence' in n.op or n.op.startswith('backwards')]


def error(task, source=None):
    arrays = task.draw()
    got = execute(trace_source(source or lower_fused(graph_of(task)), specs=tuple(arrays.values())), *arrays.values())
    return max(float(np.max(abs(g - w))) for g, w in zip(got, task.expected(arrays)))


SLOW = pytest.mark.slow


@pytest.mark.parametrize('n', [9, 64, *(pytest.param(n, marks=SLOW) for n in (8, 31, 200))])
@pytest.mark.parametrize('write', [steps, joined])
def test_both_ways_of_writing_are_one_scan(write, n):
    task = mine(write, a=(5, n), b=(5, n))
    assert scans(with_recurrences(graph_of(task))) == ['recurrence']
    assert not any(n.op in ('mul', 'add') for n in with_recurrences(graph_of(task)).nodes)
    assert error(task) < 1e-5


@pytest.mark.parametrize('fault', [dict(shift=1), dict(times=2), dict(swapped=True), dict(value=1.0), dict(end=16)])
def test_a_faulty_step_is_no_recurrence(fault):
    task = mine(lambda a, b: steps(a, b, **fault), a=(5, 32), b=(5, 32))
    assert scans(with_recurrences(graph_of(task))) == []
    assert error(task) < 1e-5


def test_a_fault_in_one_step_of_five_is_seen():
    def late(a, b):
        half = steps(a, b, end=16)
        decay = a
        for reach in (1, 2, 4, 8): decay = decay * torch.nn.functional.pad(decay, (reach, 0))[..., :32]
        return half + decay * torch.nn.functional.pad(half, (15, 0))[..., :32]
    task = mine(late, a=(5, 32), b=(5, 32))
    assert scans(with_recurrences(graph_of(task))) == []
    assert error(task) < 1e-5


@pytest.mark.parametrize('axis, shape', [pytest.param(0, (40, 6), marks=SLOW), (1, (3, 40, 5)), (0, (40, 3, 130)),
                                         pytest.param(2, (3, 5, 40), marks=SLOW)])
@pytest.mark.parametrize('write', [steps, joined])
def test_any_axis(write, axis, shape):
    task = mine(lambda a, b: write(a, b, axis), a=shape, b=shape)
    assert error(task) < 1e-5
    if write is joined: assert scans(with_recurrences(graph_of(task))) == ['recurrence']


def test_a_decay_that_is_the_same_at_all_times():
    task = mine(lambda a, b: joined(a.expand(40, 6), b, 0), a=(6,), b=(40, 6))
    (node,) = with_recurrences(graph_of(task)).nodes
    assert node.op == 'recurrence' and [r for r in node.refs()] == ['a', 'b']
    assert error(task) < 1e-5


def test_the_middle_of_a_sequence_is_a_sequence():
    assert error(mine(lambda a, b: joined(a[:, 7:], b[:, :-7]), a=(5, 40), b=(5, 40))) < 1e-5
    assert error(mine(lambda a, b: joined(a[:, 7:], b[:, 7:]) + b[:, 7:], a=(5, 40), b=(5, 40))) < 1e-5


@pytest.mark.parametrize('n', [40, *(pytest.param(n, marks=SLOW) for n in (12, 300))])
@pytest.mark.parametrize('f, found', [
    (lambda x: x.flip(-1).cumsum(-1).flip(-1) + x, ['backwards_cumsum']),
    (lambda x: x.flip(-1).cumprod(-1).flip(-1), ['backwards_cumprod']),
    (lambda x: joined(x.sigmoid().flip(-1), x.flip(-1)).flip(-1), ['backwards_recurrence']),
    (lambda x: joined(x.sigmoid().flip(-1), x).flip(-1), ['recurrence']),           # only one of the two is turned
    (lambda x: x.flip(0).cumsum(-1).flip(0), []), (lambda x: x.flip(-1).cumsum(-1), [])])
def test_scans_between_flips(f, found, n):
    task = mine(f, x=(5, n))
    assert scans(with_backwards_scans(with_recurrences(graph_of(task)))) == found
    assert error(task) < 1e-4


def test_a_scan_of_flips_that_is_also_used_as_it_is_stays():
    def f(x):
        y = x.flip(-1).cumsum(-1)
        return y, y.flip(-1)
    task = mine(f, x=(5, 40))
    assert scans(with_backwards_scans(graph_of(task))) == []
    assert error(task) < 1e-4


def test_rows_too_long_to_be_scanned_backwards_stay():
    graph = capture(mine(lambda x: x.flip(-1).cumsum(-1).flip(-1), x=(2, 9000)))
    assert scans(with_backwards_scans(graph)) == []


def test_a_backwards_group_that_exceeds_sbuf_is_cut():
    def f(x):
        for k in range(9): x = (x * 0.5).tanh() + x.flip(-1).cumsum(-1).flip(-1) * 1e-3
        return x
    assert error(mine(f, x=(4, 8000))) < 1e-4


def space(step, rate, x, out):
    a, b = (step.sigmoid()[..., None] * -rate.exp()).exp(), x[..., None] * out[:, None]
    return (joined(a, b, 0) * out[:, None]).sum(-1)


SPACE = dict(step=(40, 130), rate=(130, 32), x=(40, 130), out=(40, 32))


def test_time_moves_to_the_end_where_little_has_to_move():
    graph = with_time_last(with_recurrences(capture(mine(space, **SPACE))))
    (scan,) = [n for n in graph.nodes if n.op == 'recurrence']
    assert scan.shape == (130, 32, 40)
    assert error(mine(space, **SPACE)) < 1e-4


def test_a_sum_that_is_read_inside_of_its_region_is_not_moved():
    def f(step, rate, x, out):
        h = joined((step.sigmoid()[..., None] * -rate.exp()).exp(), x[..., None] * out[:, None], 0)
        return (h * h.sum(1)[:, None]).sum(-1)
    assert error(mine(f, step=(32, 32), rate=(32, 32), x=(32, 32), out=(32, 32))) < 1e-3
    assert error(mine(lambda step, rate, x, out: joined((step.sigmoid()[..., None] * -rate.exp()).exp(),
                                                        x[..., None] * out[:, None], 0).sum(1) + step,
                      step=(32, 32), rate=(32, 32), x=(32, 32), out=(32, 32))) < 1e-4


def test_two_spaces_in_one_graph():
    f = lambda step, rate, x, out: space(step, rate, x, out) + space(step + 1, rate, x, out)
    assert error(mine(f, **SPACE)) < 1e-4


@pytest.mark.parametrize('shape, order', [((3, 40, 50), (0, 2, 1)), ((40, 1, 50), (2, 1, 0)), ((4, 5, 60), (2, 0, 1)),
                                          ((30, 4, 5), (1, 2, 0)), ((6, 7, 8), (2, 1, 0)), ((1, 40, 1), (1, 0, 2))])
def test_transpositions_are_right(shape, order):
    task = mine(lambda x: x.permute(order) + 1, x=shape)
    assert error(task) < 1e-6
    sizes = turned_axes(shape, order)
    if sizes:
        x = np.arange(np.prod(shape)).reshape(shape)
        assert np.array_equal(x.reshape(sizes).transpose(0, 2, 1).ravel(), x.transpose(order).ravel())


@pytest.mark.parametrize('f, shapes', [
    (lambda x, g: (x * g).sum(0), dict(x=(8, 130, 128), g=(8, 130, 1))),
    (lambda x, g: (x * g).relu().sum(1), dict(x=(130, 6, 96), g=(130, 6, 1))),
    (lambda x, g: ((x * g).sum(1), x * g), dict(x=(130, 6, 96), g=(1, 6, 96))),
    (lambda x, g: ((x * g).sum(1), (x + g).sum(1)), dict(x=(20, 6, 96), g=(20, 6, 96))),
    (lambda x, g: (x.softmax(-1) * g).sum(1), dict(x=(20, 6, 96), g=(20, 6, 1))),
    (lambda x, g: ((x - x.amax(-1, keepdim=True)).sum(1), x.amax(-1), g.sum(0)), dict(x=(20, 6, 96), g=(4, 6, 96))),
    (lambda x, g: (x.cumsum(-1) * g).sum((0, 1)), dict(x=(3, 4, 150, 96), g=(3, 4, 150, 1))),
    (lambda x, g: (x + g).sum(0), dict(x=(7, 3000), g=(7, 3000))),
    (lambda x, g: (x * g).sum(0, keepdim=True) + x[:1], dict(x=(8, 130, 128), g=(8, 130, 1)))])
@pytest.mark.parametrize('chip', ['trn2', None])
def test_sums_of_tiles(f, shapes, chip):
    task = mine(f, **shapes)
    assert error(task, lower_fused(graph_of(task), chip=chip)) < 1e-4


def test_first_kernels_know_nothing_of_it():
    for name in ('min_gru', 'reverse_cumsum'):
        graph = kernel_graph(get_task(name), 'small')
        assert 'tensor_tensor_scan' not in lower_unfused(graph) and '.ap([[32' not in lower_unfused(graph).split('flip')[0]
        assert lower_fused(graph) != lower_unfused(graph)
