"""Windows of the tuner for GPUs: every configuration, made small, interpreted against float64; and what it leaves to the
library."""
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from kernel_lab.agents.templates.windows import WindowConfig, window_configs, window_region, window_source
from template_runs import outcome, problem, region_of


def made(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {n.name: rng.standard_normal(n.shape).astype('float32') for n in graph.inputs}


CASES = {
    'max 1d, dilated': problem('F.max_pool1d(x, 8, 1, 4, 3)', (2, 3, 64)),
    'max 1d, no batch, odd length': problem('F.max_pool1d(x, 3, 2, 1)', (3, 37)),
    'max 2d': problem('F.max_pool2d(x, 4, 1, 1)', (2, 2, 12, 20)),
    'max 2d, dilated and padded': problem('F.max_pool2d(x, (3, 2), (2, 1), (1, 1), (2, 3))', (1, 2, 15, 18)),
    'max 2d, indices, relu': problem('torch.relu(F.max_pool2d(x, 2, return_indices=True)[0])', (2, 2, 9, 8)),
    'max 3d, dilated': problem('F.max_pool3d(x, 3, 2, 1, 3)', (1, 2, 12, 13, 16)),
    'mean 1d': problem('F.avg_pool1d(x, 8, 1, 4)', (2, 3, 60)),
    'mean 2d, large window': problem('F.avg_pool2d(x, 11)', (1, 2, 40, 40)),
    'mean 2d, valid only': problem('F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)', (1, 2, 11, 20)),
    'mean 2d, own divisor': problem('F.avg_pool2d(x, (2, 3), 2, (1, 0), divisor_override=5)', (1, 2, 9, 16)),
    'mean 3d': problem('F.avg_pool3d(x, 3, 2, 1)', (1, 2, 9, 10, 16)),
    'depthwise 1d': problem('self.c(x)', (2, 5, 33), init='self.c = nn.Conv1d(5, 5, 4, 2, 3, 2, groups=5)'),
    'depthwise 2d': problem('self.c(x)', (2, 3, 10, 16), init='self.c = nn.Conv2d(3, 3, 3, 1, 1, groups=3, bias=False)'),
    'depthwise 2d, 3 × 1': problem('self.c(x)', (1, 3, 14, 12), init='self.c = nn.Conv2d(3, 3, (3, 1), groups=3)'),
    'depthwise 2d, 3 × 7, behind it': problem(
        'F.hardtanh(self.c(x) * y + z, 0., 6.)', (2, 3, 9, 16), (3, 1, 1), (2, 3, 7, 10),
        init='self.c = nn.Conv2d(3, 3, (3, 7), groups=3)'),
    'depthwise 2d, steps and gaps': problem(
        'self.c(x)', (1, 3, 17, 24), init='self.c = nn.Conv2d(3, 3, (2, 3), (3, 2), (1, 2), (2, 3), groups=3)'),
    'depthwise 3d': problem('self.c(x)', (1, 2, 6, 7, 8), init='self.c = nn.Conv3d(2, 2, 3, 1, 1, groups=2)'),
}


def small(config):
    return replace(config, warps=1)


@pytest.mark.sampled(30)
@pytest.mark.parametrize('number', range(8))
@pytest.mark.parametrize('name', CASES)
def test_windows_in_every_configuration(name, number):
    graph, region = region_of(CASES[name], window_region, name)
    configs = [*dict.fromkeys(map(small, window_configs(region)))]
    if number >= len(configs): pytest.skip('it has fewer configurations')
    got, want = outcome(graph, region, window_source(region, configs[number]), made(graph))
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < 5e-7, f'{name}, {configs[number]}: {error:.1e}'


def test_a_maximum_of_what_is_no_number_is_none():
    graph, region = region_of(problem('F.max_pool1d(x, 3, 1, 1)', (1, 2, 16)), window_region)
    arrays = made(graph)
    next(iter(arrays.values()))[0, 1, [0, 9]] = np.nan, -np.inf
    got, want = outcome(graph, region, window_source(region, WindowConfig(4, 4, 1, 1, 1)), arrays)
    assert np.isnan(want).sum() == 2 and np.allclose(got, want, equal_nan=True)


def test_side_by_side_maximum_keeps_what_is_no_number():
    graph, region = region_of(problem('F.max_pool1d(x, 5)', (1, 2, 31)), window_region)
    arrays = made(graph)
    next(iter(arrays.values()))[0, 1, 7] = np.nan
    got, want = outcome(graph, region, window_source(region, WindowConfig(0, 1, 1, 1, 1, 4)), arrays)
    assert np.isnan(want).sum() == 1 and np.allclose(got, want, equal_nan=True)


@pytest.mark.parametrize('source', [
    problem('F.max_pool2d(x, 3, 2, ceil_mode=True)', (1, 2, 12, 12)),
    problem('F.max_pool2d(x, 2, return_indices=True)[1]', (1, 2, 12, 12)),
    problem('F.avg_pool2d(x, 41, 1)', (1, 1, 60, 60)),
    problem('self.c(x)', (1, 4, 9, 9), init='self.c = nn.Conv2d(4, 8, 3, groups=4)'),
    problem('self.c(x)', (1, 4, 9, 9), init="self.c = nn.Conv2d(4, 4, 3, padding='same', groups=4)"),
    problem('self.c(x)', (1, 1, 9, 9), init='self.c = nn.Conv2d(1, 1, 3)'),
    problem('torch.relu(x)', (4, 9))])
def test_what_is_left_to_the_library(source):
    assert region_of(source, window_region)[1] is None
