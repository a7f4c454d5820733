"""What no page should show of the tasks: shortcuts that must fail, tolerances that must hold, bad tasks of a person."""
import numpy as np
import pytest
import torch

from kernel_lab.core.errors import UsageError
from kernel_lab.nki import execute
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.tasks.suite.registry import BY_HAND, get_task
from kernel_lab.tasks.model.workload import DTYPES, Workload, tolerance_for
from kernel_lab.tasks.model.task import task_from

ALL = pytest.mark.parametrize('task', BY_HAND, ids=[t.name for t in BY_HAND])


def error(task, got, want):
    "Largest difference in tolerances; infinite where a result is not finite."
    tol = task.tolerance('small')
    if not np.isfinite(got).all(): return np.inf
    return float(np.max(np.abs(got - want) / (tol.atol + tol.rtol * np.abs(want))))


def tensors(task, seed=7): return [torch.from_numpy(v) for v in task.draw('small', seed).values()]


@ALL
def test_first_kernel_is_right_on_the_small_workload(task):
    for seed in (0, 1, 2):
        arrays = task.draw('small', seed)
        program = trace_source(task.first_kernel.source, None, [ArraySpec(v.shape, 'float32') for v in arrays.values()])
        for got, want in zip(execute(program, *arrays.values()), task.expected(arrays), strict=True):
            assert error(task, got, want) < 0.5


@ALL
def test_float64_agrees_within_the_tolerance(task):
    wide = task.reference(*[t.double() for t in tensors(task)]).numpy()
    assert error(task, wide, task.expected(task.draw('small', 7))[0]) < 0.5


@ALL
def test_low_precision_does_not_pass_for_float32(task):
    rounded = task.reference(*[t.bfloat16().float() for t in tensors(task)]).numpy()
    assert error(task, rounded, task.expected(task.draw('small', 7))[0]) > 5


@ALL
def test_every_input_matters(task):
    want = task.expected(task.draw('small', 7))[0]
    for k in range(len(tensors(task))):
        changed = tensors(task)
        changed[k] = changed[k].flip(0).flip(-1)
        assert error(task, task.reference(*changed).numpy(), want) > 5


@ALL
def test_cheap_impostors_fail(task):
    want = task.expected(task.draw('small', 7))[0]
    same_row = np.broadcast_to(want[..., :1, :], want.shape)
    for impostor in (np.zeros_like(want), np.full_like(want, want.mean()), same_row, np.roll(want, 1, -1)):
        assert error(task, impostor, want) > 5


@ALL
def test_inputs_are_not_degenerate(task):
    for array in task.draw('small', 3).values():
        assert np.isfinite(array).all() and array.std() > 1e-2 * np.abs(array).max() and np.unique(
            array).size > 0.5 * array.size


def shortcut_without_max(x):
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def test_softmax_without_the_maximum_fails():
    x, = tensors(get_task('softmax'))
    want = get_task('softmax').expected(get_task('softmax').draw('small', 7))[0]
    assert error(get_task('softmax'), shortcut_without_max(x).numpy(), want) == np.inf
    assert error(get_task('softmax'), shortcut_without_max(x - 20).numpy(), want) == np.inf       # nor with a constant


def test_attention_without_the_maximum_or_the_mask_fails():
    task = get_task('causal_attention')
    q, k, v = tensors(task)
    want = task.expected(task.draw('small', 7))[0]
    scores = q @ k.T / k.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    assert error(task, (shortcut_without_max(scores.masked_fill(future, -1e30)) @ v).numpy(), want) == np.inf
    assert error(task, (scores.softmax(-1) @ v).numpy(), want) > 5
    assert error(task, (scores.masked_fill(future.roll(1, 1), -1e30).softmax(-1) @ v).numpy(), want) > 5  # off by one


def test_rmsnorm_parts_cannot_be_left_out():
    task = get_task('rmsnorm')
    x, gain = tensors(task)
    want = task.expected(task.draw('small', 7))[0]
    square = x.square().mean(-1, keepdim=True)
    root = (square + 1e-6).rsqrt()
    for wrong in (x * gain, x * square.rsqrt() * gain, x * root, (x - x.mean(-1, keepdim=True)) * root * gain):
        assert error(task, wrong.numpy(), want) > 5


def test_swiglu_is_not_linear():
    task = get_task('swiglu')
    x, gate, up = tensors(task)
    want = task.expected(task.draw('small', 7))[0]
    for wrong in ((x @ gate) * (x @ up), torch.relu(x @ gate) * (x @ up),
                  torch.nn.functional.gelu(x @ gate) * (x @ up)):
        assert error(task, wrong.numpy(), want) > 5


@pytest.mark.parametrize('dtype', DTYPES)
def test_a_workload_in_another_dtype(dtype):
    work = Workload('w', {'x': (64, 64)}, dtype)
    task = task_from(lambda x: x.softmax(-1), lambda workload, rng: {'x': rng.standard_normal((64, 64))}, name='s',
                     workloads=(work,))
    assert task.draw()['x'].dtype == DTYPES[dtype]
    assert task.expected(task.draw())[0].dtype == np.float32
    assert work.output_dtype == ("bfloat16" if dtype == "float8_e4m3" else dtype)
    assert task.tolerance().rtol == tolerance_for(work.output_dtype, 64).rtol
    assert task.min_bytes() == 64 * 64 * (DTYPES[dtype].itemsize + DTYPES[work.output_dtype].itemsize)


def test_outputs_may_be_several_and_whole_numbers():
    def draw(rng): return {'x': rng.standard_normal((4, 9)), 'n': rng.integers(0, 9, (4,))}
    task = task_from(lambda x, n: (x.sort(-1).values, x.argmax(-1) + n), draw, name='two')
    out = task.expected(task.draw())
    assert [o.shape for o in out] == [(4, 9), (4,)] and out[1].dtype.kind == 'i'


def test_a_reference_may_change_its_inputs_without_harm():
    task = task_from(lambda x: x.mul_(2), lambda rng: {'x': rng.standard_normal((4, 4))}, name='in place')
    arrays = task.draw()
    before = arrays['x'].copy()
    np.testing.assert_array_equal(task.expected(arrays)[0], 2 * before)
    np.testing.assert_array_equal(arrays['x'], before)


@pytest.mark.parametrize('reference, inputs, says', [
    (lambda x: x @ x, lambda rng: {'x': rng.standard_normal((3, 4))}, 'called with x [3, 4]'),
    (lambda x: None, lambda rng: {'x': rng.standard_normal((3, 4))}, 'returned NoneType'),
    (lambda x: (), lambda rng: {'x': rng.standard_normal((3, 4))}, 'returned nothing'),
    (lambda x: x + torch.rand(3, 4), lambda rng: {'x': rng.standard_normal((3, 4))}, 'is random'),
    (lambda x, y: x, lambda rng: {'x': rng.standard_normal((3, 4))}, 'raised TypeError'),
    (lambda x: x, lambda rng: 1 / 0, 'input function of task'),
    (lambda x: x, lambda rng: rng.standard_normal((3, 4)), 'returned ndarray'),
    (lambda x: x, lambda workload, rng: {}, 'there must be one'),
    (lambda x: x, lambda rng: {'x': rng.standard_normal((0, 64))}, "has no elements: its shape is (0, 64)"),
])
def test_a_bad_task_of_a_person_says_what_is_wrong(reference, inputs, says):
    with pytest.raises(UsageError, match='task') as refused: task_from(reference, inputs, name='mine')
    assert says in str(refused.value)
