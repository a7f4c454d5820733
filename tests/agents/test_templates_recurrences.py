"""Recurrences in one launch: programs that wait for each other, interpreted against float64; what stays with the library."""
import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
import torch
from kernel_lab.agents.templates.problem import graph_text, read_problem
from kernel_lab.agents.templates.recurrences import (MOST_PROGRAMS, RecurrenceConfig, recurrence_configs, recurrence_region,
                                                     recurrence_source)
from kernel_lab.agents.tune.candidates import region_floor, regions_of, sources_of
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.gpu.interpreting import interpret_plan
from kernel_lab.gpu.record.submission import record_plan


def problem(op, hidden=16, layers=2, pick='[0]', batch=3, times=5, wide=8, **words):
    "A problem of one recurrence, whose results are picked by a text."
    count, ways = 2 if op == 'LSTM' else 1, 1 + words.get('bidirectional', False)
    x = (batch, times, wide) if words.get('batch_first') else (times, batch, wide)
    return f'''import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.r = nn.{op}({wide}, {hidden}, {layers}, **{words})
    def forward(self, x, *h):
        y = self.r(x, h if len(h) > 1 else h[0])
        return y{pick}
def get_inputs(): return [torch.randn({x}), *[torch.randn({layers * ways, batch, hidden}) for _ in range({count})]]
def get_init_inputs(): return []
'''


def region_in(source):
    graph = read_problem(source, 'recurrence').graph
    return graph, next((r for n in graph.nodes if (r := recurrence_region(graph, n))), None)


def interpreted(source, config, change=lambda text: text, **choice):
    "(relative error against float64, or a KernelError; what was seen)."
    graph, region = region_in(source)
    rng = np.random.default_rng(0)
    arrays = {n.name: rng.standard_normal(n.shape).astype('float32') / 2 for n in graph.inputs}
    names = {'torch': torch}
    exec(graph_text(graph), names)
    want = names['reference'](*[torch.from_numpy(a).double() for a in arrays.values()]).numpy()
    specs = [{'shape': list(graph[n].shape), 'dtype': graph[n].dtype} for n in region.inputs]
    plan = record_plan(change(recurrence_source(region, config)), specs, 'sm_90')
    assert not plan.library_calls and len(plan.launches) == 1
    got, _ = interpret_plan(plan, [arrays[n] for n in region.inputs], **choice)
    if isinstance(got, KernelError): return got, None
    return np.linalg.norm(got.outputs[0] - want) / np.linalg.norm(want), got


CASES = {
    'lstm, sequence': (problem('LSTM', layers=3), RecurrenceConfig(8, 2, 'three'), 3e-7),
    'lstm, cells, no biases': (problem('LSTM', pick='[1][1]', batch_first=True, bias=False), RecurrenceConfig(4, 2, 'wide'), 2e-6),
    'lstm, both ways': (problem('LSTM', bidirectional=True), RecurrenceConfig(8, 2, 'three'), 3e-7),
    'gru, last states': (problem('GRU', pick='[1]', batch_first=True), RecurrenceConfig(8, 2, 'three'), 3e-7),
    'gru, both ways, states': (problem('GRU', pick='[1]', bidirectional=True), RecurrenceConfig(8, 2, 'three'), 3e-7),
    'tanh': (problem('RNN', hidden=32), RecurrenceConfig(16, 2, 'three'), 6e-7),
    'relu, one layer': (problem('RNN', hidden=20, layers=1, nonlinearity='relu'), RecurrenceConfig(16, 2, 'three'), 6e-7),
    'wider than its states': (problem('GRU', hidden=16, wide=40, layers=1), RecurrenceConfig(8, 2, 'three'), 3e-7)}


@pytest.mark.sampled(8)
@pytest.mark.parametrize('name', CASES)
def test_recurrences_in_one_launch(name):
    source, config, most = CASES[name]
    error, seen = interpreted(source, config)
    assert seen is not None, error
    assert error < most and not seen.races and seen.atomic


def test_the_last_program_may_be_first():
    error, seen = interpreted(problem('LSTM', times=3), RecurrenceConfig(8, 2, 'tf32'), order='backward')
    assert seen is not None, error
    assert 1e-6 < error < 2e-3 and seen.programs == 4


def test_a_state_that_nobody_writes_is_an_error_and_no_endless_wait():
    late = lambda text: text.replace('mask=inside)\n                if layer', 'mask=inside & (t < 1))\n                if layer')
    error, seen = interpreted(problem('LSTM', times=3), RecurrenceConfig(8, 2, 'tf32'), late)
    assert seen is None and 'programs wait' in str(error)


def test_states_of_zero_arrive():
    "All weights zero: a tanh of zero is +0.0, whose bits would be waited for."
    graph, region = region_in(problem('RNN', hidden=16, times=3))
    specs = [{'shape': list(graph[n].shape), 'dtype': graph[n].dtype} for n in region.inputs]
    plan = record_plan(recurrence_source(region, RecurrenceConfig(16, 2, 'tf32')), specs, 'sm_90')
    got, _ = interpret_plan(plan, [np.zeros(s['shape'], 'float32') for s in specs])
    assert not isinstance(got, KernelError), got
    assert (got.outputs[0] == 0).all()


@pytest.mark.parametrize('source', [
    problem('LSTM', pick='[0] + y[1][0].sum()'), problem('GRU', batch=80), problem('LSTM', layers=2, dropout=0.5),
    problem('RNN', hidden=600)])
def test_what_stays_with_the_library(source): assert region_in(source)[1] is None


def test_the_shapes_of_a_benchmark_have_configurations_that_fit_on_a_card():
    "Two times instead of 512: what a configuration needs does not depend on them."
    for words in ({}, {'bidirectional': True}):
        graph, region = region_in(problem('LSTM', hidden=256, layers=6, batch=10, times=2, wide=128, **words))
        assert region.flops < 1e9 and regions_of(graph) == []
        configs = recurrence_configs(region)
        assert {'tf32', 'wide'} <= {c.kind for c in configs} and len(sources_of(region)) == len(configs)
        for c in configs:
            programs = 256 // c.units * (2 if words else 6)
            assert programs <= MOST_PROGRAMS and f'recurrence[({programs},)]' in recurrence_source(region, c)
        assert 'TF32' in region_floor(graph, region).rate
