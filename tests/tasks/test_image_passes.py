"""Convolutions and group norms that fill the array: right on every workload, in fewer cycles, and left alone otherwise."""
import numpy as np
import pytest
import torch.nn.functional as F
from kernel_lab.agents.rewrite.agent import RewriteAgent, fused_anew
from kernel_lab.agents.rewrite.best_search import ANEW, FIRST, PACKED, search_starts, start_named
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.verification.verify import verify
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.record.python_subset import read_outside
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.codegen.graph import capture
from kernel_lab.tasks.codegen.lower import lower_fused
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.suite.registry import TASKS

FILLED = ('conv2d_3x3', 'depthwise_conv2d', 'group_norm', 'conv_relu_max_pool', 'resnet_bottleneck',
          'group_norm_silu_conv1x1', 'unet_block', 'convnext_block', 'inverted_residual', 'conformer_convolution')
DAILY = FILLED[:3]


def packed(task, workload):
    kernel = fused_anew(task, workload, 'trn2', True)
    return kernel and trace_source(kernel.source, kernel.entry, specs_of(task, workload), 'trn2')


@pytest.mark.parametrize('name', [n if n in DAILY else pytest.param(n, marks=pytest.mark.slow) for n in FILLED])
def test_it_is_right_on_every_workload_and_faster_at_full_size(name):
    task = TASKS[name]
    for workload in task.workloads:
        program = packed(task, workload)
        if program is None: continue        # the first kernel is the faster one
        assert verify(program, task, workload, [0]).passed, workload.name
        assert read_outside(fused_anew(task, workload, 'trn2', True).source) == []
    plain = start_named(FIRST, task, task.workload('full'), 'trn2')
    assert schedule(packed(task, task.workload('full')), 'trn2').latency_us < 0.75 * plain.us


@pytest.mark.parametrize('name, most_us', [('conv2d_3x3', 115), ('depthwise_conv2d', 215), ('group_norm', 56)])
def test_a_search_begins_there_too(name, most_us):
    task = TASKS[name]
    starts = search_starts(task, task.workload('full'), 'trn2')
    assert starts[0].name == FIRST and starts[-1].name == PACKED and starts[-1].us < most_us


def test_the_agent_begins_at_the_faster_of_both():
    task = TASKS['group_norm']
    workload = task.workload('small')
    first = evaluate(task.first(workload), task, workload, seeds=1)
    plain, filled = (fused_anew(task, workload, 'trn2', packed) for packed in (False, True))
    found = RewriteAgent(seconds=1).planned(first, task, workload)
    assert found[0].name == 'fuse anew' and found[0].source == filled.source != plain.source


def test_nothing_of_it_is_in_first_kernels_or_where_no_image_is():
    assert 'w_turned_0' not in TASKS['conv2d_3x3'].first('full').source
    with pytest.raises(UsageError, match='no kernel of the kind "packed"'):
        start_named(PACKED, TASKS['softmax'], TASKS['softmax'].workload('small'), 'trn2')
    anew = [s.name for s in search_starts(TASKS['swiglu'], TASKS['swiglu'].workload('small'), 'trn2')]
    assert set(anew) <= {FIRST, ANEW}


CASES = {
    'wide window': (lambda x, w: F.conv2d(x, w, padding=3), dict(x=(1, 64, 20, 24), w=(32, 64, 7, 7))),
    'several bands': (lambda x, w: F.conv2d(x, w, padding=1), dict(x=(1, 64, 90, 120), w=(16, 64, 3, 3))),
    'many results': (lambda x, w: F.conv2d(x, w, padding=1), dict(x=(1, 32, 10, 10), w=(200, 32, 3, 3))),
    'long sequence': (lambda x, w: F.conv1d(x, w, padding=15, groups=32), dict(x=(1, 32, 3000), w=(32, 1, 31))),
    'two blocks': (lambda x, w: F.conv2d(x, w, padding=2, groups=224), dict(x=(2, 224, 16, 16), w=(224, 1, 5, 5))),
    'shifted groups': (lambda x: F.group_norm(100 + x, 4), dict(x=(2, 64, 12, 12))),
}


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('chip', ['trn1', 'trn2'])
def test_other_shapes_are_right(case, chip):
    reference, shapes = CASES[case]
    task = task_from(reference, lambda rng: {k: rng.standard_normal(s, np.float32) for k, s in shapes.items()},
                     name='mine')
    arrays = task.draw()
    source = lower_fused(capture(task), chip=chip, packed=True)
    (got,) = execute(trace_source(source, specs=tuple(arrays.values()), chip=chip), *arrays.values())
    (want,) = task.expected(arrays)
    assert np.max(abs(got - want) / (1 + abs(want))) < 2e-4
