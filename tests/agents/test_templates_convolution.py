"""Convolutions of the tuner for GPUs: every configuration, made small, interpreted against float64; and what it leaves to
the library."""
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from kernel_lab.agents.templates.convolution import convolution_axis, convolution_configs, convolution_region, convolution_source
from kernel_lab.agents.templates.problem import read_problem
from kernel_lab.agents.tune.candidates import plan_problem, region_floor, regions_of
from template_runs import outcome, problem, region_of


def convolved(module, *inputs, forward='self.c(x)'):
    "A problem whose module `c` is `module`, and whose `forward` is an expression of x, y, z."
    return problem(forward, *inputs, init=f'self.c = {module}')


def region_in(source, name='c'): return region_of(source, convolution_region, name)


def made(graph, seed=0):
    "Inputs of eight bits, which TF32 holds, so that a result is as exact as float32."
    rng = np.random.default_rng(seed)
    return {n.name: (rng.integers(-128, 128, n.shape) / 64).astype('float32') for n in graph.inputs}


def small(config):
    return replace(config, channels=min(config.channels, 16), positions=32, deep=16, warps=1)


CASES = {
    '1d': convolved('nn.Conv1d(16, 12, 3)', (2, 16, 50)),
    '1d, steps and gaps': convolved('nn.Conv1d(16, 24, 3, 3, 2, 4, bias=False)', (2, 16, 61)),
    '2d': convolved('nn.Conv2d(3, 20, 3)', (2, 3, 11, 13)),
    '2d, padded': convolved('nn.Conv2d(16, 16, 3, padding=1)', (1, 16, 8, 8)),
    '2d, all of it': convolved('nn.Conv2d(8, 9, (3, 5), (2, 3), (2, 1), (3, 2))', (2, 8, 17, 19)),
    '2d, groups': convolved('nn.Conv2d(12, 27, 3, 1, 1, groups=3)', (2, 12, 7, 9)),
    '2d, the same size': convolved("nn.Conv2d(5, 8, (4, 3), padding='same', dilation=(1, 2))", (1, 5, 9, 10)),
    '2d, valid': convolved("nn.Conv2d(5, 8, 3, padding='valid')", (1, 5, 9, 10)),
    '2d, large steps': convolved('nn.Conv2d(3, 16, 11, 4, 2)', (1, 3, 35, 31)),
    'pointwise': convolved('nn.Conv2d(32, 18, 1)', (2, 32, 8, 8)),
    'pointwise, in steps': convolved('nn.Conv2d(16, 8, 1, 2)', (1, 16, 9, 11)),
    '3d': convolved('nn.Conv3d(3, 8, 3)', (1, 3, 5, 6, 7)),
    '3d, all of it': convolved('nn.Conv3d(4, 16, (3, 2, 2), (1, 2, 1), (1, 0, 2), (1, 2, 1), groups=2)', (2, 4, 5, 8, 6)),
    'transposed 1d': convolved('nn.ConvTranspose1d(16, 12, 3)', (2, 16, 21)),
    'transposed 1d, steps and gaps': convolved('nn.ConvTranspose1d(16, 8, 3, 2, 1, 0, dilation=2)', (1, 16, 20)),
    'transposed 1d, gaps': convolved('nn.ConvTranspose1d(8, 16, 5, 1, 0, 0, dilation=3)', (2, 8, 20)),
    'transposed 2d': convolved('nn.ConvTranspose2d(16, 8, (3, 5), bias=False)', (1, 16, 6, 7)),
    'transposed 2d, padded out': convolved('nn.ConvTranspose2d(8, 20, 3, 2, 1, 1)', (2, 8, 6, 9)),
    'transposed 2d, phases without offsets': convolved('nn.ConvTranspose2d(8, 8, 3, 5, 1, 0, dilation=2)', (1, 8, 4, 5)),
    'transposed 2d, groups': convolved('nn.ConvTranspose2d(8, 16, (3, 5), (2, 3), (1, 2), 0, 2, dilation=(2, 1))', (1, 8, 5, 4)),
    'transposed 2d, even kernel': convolved('nn.ConvTranspose2d(16, 8, 4, 2, 1)', (1, 16, 5, 6)),
    'transposed 2d, more padding than kernel': convolved('nn.ConvTranspose2d(8, 8, 2, 1, 3)', (1, 8, 12, 12)),
    'transposed 3d': convolved('nn.ConvTranspose3d(3, 16, 3, 2, 1)', (1, 3, 3, 4, 5)),
    'transposed 3d, all of it': convolved(
        'nn.ConvTranspose3d(8, 16, (3, 5, 3), 2, (1, 2, 1), 1, groups=2)', (1, 8, 3, 2, 4)),
    'behind it': convolved('nn.Conv2d(8, 12, 3)', (2, 8, 9, 9), (12, 1, 1), (2, 12, 7, 7),
                         forward='F.hardtanh(torch.tanh(self.c(x)) * y + z, -1.5, 1.5) / 2'),
    'behind a transposed one': convolved('nn.ConvTranspose2d(8, 12, 3, 2, 1, 1)', (2, 8, 5, 5), (12, 1, 1), (2, 12, 10, 10),
                                       forward='F.gelu(F.mish(self.c(x)) - y) * 0.5 + z'),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize('number', range(6))
@pytest.mark.parametrize('name', CASES)
def test_convolutions_in_every_configuration(name, number):
    graph, region = region_in(CASES[name], name)
    configs = [*dict.fromkeys(map(small, convolution_configs(region)))]
    if number >= len(configs): pytest.skip('it has fewer configurations')
    got, want = outcome(graph, region, convolution_source(region, configs[number]), made(graph))
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error < 5e-7, f'{name}, {configs[number]}: {error:.1e}'


def test_an_even_axis_splits_its_kernel_among_phases():
    axis = convolution_axis(3, 10, 20, 2, 1, 1, True)
    assert (axis.sees, axis.first, axis.apart, axis.before) == (((1,), (0, 2)), (0, 1), -1, (0, 1))
    assert axis.owners == [[1, 0], [0, 0], [1, 1]] and axis.positions == 10 and axis.reach == (0, 10)


@pytest.mark.parametrize('stride, padding, dilation, kernel', [(1, 0, 1, 3), (2, 1, 1, 4), (3, 2, 2, 5), (4, 0, 6, 3), (5, 1, 2, 3)])
def test_a_transposed_axis_looks_where_a_scatter_comes_from(stride, padding, dilation, kernel):
    given, made = 9, (9 - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
    axis = convolution_axis(kernel, given, made, stride, padding, dilation, True)
    wanted = {(i * stride - padding + k * dilation, i, k) for i in range(given) for k in range(kernel)}
    found = {(q * stride + r, q + axis.first[r] + j * axis.apart, k)
             for r in range(stride) for q in range(axis.positions) for j, k in enumerate(axis.sees[r])}
    assert {w for w in wanted if 0 <= w[0] < made} == {f for f in found if 0 <= f[1] < given and f[0] < made}
    assert sum(axis.counts) == kernel and len(axis.owners) == kernel


@pytest.mark.parametrize('init, shape, forward', [
    ('nn.Conv2d(8, 8, 3, groups=8)', (1, 8, 9, 9), 'self.c(x)'),
    ('nn.Conv2d(16, 4, 3)', (1, 16, 9, 9), 'self.c(x)'),
    ('nn.Conv2d(8, 16, 1)', (1, 8, 9, 9), 'self.c(x)'),
    ('nn.Conv2d(8, 16, 3)', (8, 9, 9), 'self.c(x)'),
    ('nn.Conv2d(16, 16, 3).double()', (1, 16, 9, 9), 'self.c(x.double())'),
    ('nn.Conv2d(16, 16, 3).half()', (1, 16, 9, 9), 'self.c(x.half())'),
    ('nn.Identity()', (1, 16, 9, 9), 'torch.relu(x)')])
def test_what_is_left_to_the_library(init, shape, forward):
    assert region_in(convolved(init, shape, forward=forward))[1] is None


def test_a_border_that_mirrors_the_input_is_made_by_torch():
    graph, region = region_in(convolved("nn.Conv2d(8, 16, 3, padding=1, padding_mode='reflect')", (1, 8, 9, 9)))
    assert region.inputs[0] not in {n.name for n in graph.inputs} and region.known['axes'][1].first == (0,)
    got, want = outcome(graph, region, convolution_source(region, small(convolution_configs(region)[0])), made(graph))
    assert np.abs(got - want).max() < 1e-5


def test_what_follows_ends_where_rows_are_combined():
    graph, region = region_in(convolved('nn.Conv2d(8, 16, 3)', (1, 8, 9, 9), forward='torch.softmax(torch.relu(self.c(x)), 1)'))
    assert graph[region.output].op == 'relu' and graph[region.nodes[0]].op == 'conv2d' and len(region.nodes) == 2


def test_without_fusing_only_the_bias_is_taken():
    graph = read_problem(convolved('nn.Conv2d(8, 16, 3)', (1, 8, 9, 9), forward='torch.relu(self.c(x))'), 'c').graph
    region = convolution_region(graph, graph.nodes[0], fuse=False)
    assert graph[region.output].op == 'conv2d' and region.known['lines'] == (
        'e0_ = tl.load(e0 + channel).to(tl.float32)', 'v = v + e0_')


def test_an_infinite_input_stays_where_it_is():
    graph, region = region_in(convolved('nn.Conv2d(3, 16, 3, padding=1, bias=False)', (1, 3, 9, 9)))
    arrays = made(graph)
    next(a for n, a in arrays.items() if n.startswith('x'))[0, 1, 4, 4] = np.inf
    for config in {c.staged: c for c in convolution_configs(region)}.values():
        got, want = outcome(graph, region, convolution_source(region, small(config)), arrays)
        assert (np.isfinite(got) == np.isfinite(want)).all() and not np.isfinite(want).all()


def test_weights_and_a_staged_input_are_rounded_to_the_nearest_tf32():
    graph, region = region_in(convolved('nn.Conv2d(16, 16, 3, padding=1)', (1, 16, 9, 9)))
    rng = np.random.default_rng(0)
    arrays = {n.name: rng.standard_normal(n.shape).astype('float32') for n in graph.inputs}
    for config in {c.staged: c for c in convolution_configs(region)}.values():
        got, want = outcome(graph, region, convolution_source(region, small(config)), arrays)
        assert 5e-5 < np.linalg.norm(got - want) / np.linalg.norm(want) < 4e-4


def test_the_tuner_offers_convolutions_that_are_worth_it():
    graph = read_problem(convolved('nn.Conv2d(16, 32, 3)', (8, 16, 130, 130), forward='torch.relu(self.c(x))'), 'c').graph
    region, = regions_of(graph)
    assert region.family == 'convolution' and 'in TF32' in region_floor(graph, region).rate
    little = read_problem(convolved('nn.Conv2d(16, 32, 3)', (4, 16, 12, 12)), 'c').graph
    assert regions_of(little) == []


def test_a_convolution_between_depthwise_and_library_is_planned_alone():
    source = convolved('nn.Sequential(nn.Conv2d(64, 64, 3, groups=64), nn.Conv2d(64, 64, 1))', (8, 64, 130, 130))
    plans, jobs = plan_problem(read_problem(source, 'c'))
    assert [r.family for r in plans.regions] == ['windows', 'convolution'] and all(len(j) <= 12 for j in jobs)
