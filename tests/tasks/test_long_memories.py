"""The inputs of every recurrence make it remember: what came in the first half of time is felt in the last of the
outputs, far beyond the tolerance. Otherwise a kernel that drops it is judged correct."""
import numpy as np
import pytest

from kernel_lab.tasks import TASKS
from kernel_lab.tasks.model.workload import error_ratio

# the input that is written into the state, and its axis of time
WRITTEN = {"cumsum": ("x", 1), "weighted_running_mean": ("x", 1), "min_gru": ("candidate", 1), "rg_lru": ("x", 1),
           "mamba_block": ("x", 0), "rg_lru_block": ("x", 0), "rwkv_time_mix": ("x", 0), "retention_layer": ("x", 0),
           "linear_attention": ("v", 1), "ssd_chunks": ("x", 1)}
# without an axis of time, or of a decay that the task itself fixes
ELSEWHERE = {"ssm_step", "delta_rule_step", "lstm_pointwise", "lstm_steps", "gated_delta_steps",
             "generalized_advantages"}


def test_every_recurrence_is_here():
    found = {t.name for t in TASKS.values() if t.reference.__module__.endswith(("recurrent_steps", "recurrent_layers"))}
    assert found and found <= set(WRITTEN) | ELSEWHERE


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRITTEN)
def test_the_first_half_is_felt_at_the_end(name):
    task, (written, axis) = TASKS[name], WRITTEN[name]
    inputs, others = task.draw("full", 0), task.draw("full", 1)
    steps = inputs[written].shape[axis]
    first = np.arange(steps).reshape([-1 if k == axis else 1 for k in range(inputs[written].ndim)]) < steps // 2
    changed = inputs | {written: np.where(first, others[written], inputs[written])}
    want, got = task.expected(inputs)[0], task.expected(changed)[0]
    assert want.shape[axis] == steps
    ratio = error_ratio(got, want, task.tolerance("full"))
    assert ratio.take(-1, axis).max() > 50
