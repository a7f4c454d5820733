"""Templates of the tuner for GPUs: every configuration, made small, interpreted against float64; and what it leaves to the
library."""
import json
import os
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
import torch
from kernel_lab.agents.tune.candidates import compile_all, plan_problem, regions_of, with_candidates
from kernel_lab.agents.templates.columns import ColumnConfig, ScanConfig, column_region, column_source, scan_region, scan_source
from kernel_lab.agents.templates.problem import EXAMPLE_PROBLEM, read_problem
from kernel_lab.agents.templates.products import PRODUCT_CONFIGS, product_configs, product_region, product_source
from kernel_lab.agents.templates.rows import RowConfig, row_region, row_source
from kernel_lab.cli.agents.bench import bench
from kernel_lab.cli.agents.tune import written_plans
from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.evaluate.gpu.interpreting import interpret_plan


def problem(forward, *shapes, init='', more=''):
    "A problem whose `forward` is an expression of x, y, z."
    names = 'x y z'.split()[:len(shapes)]
    inputs = ', '.join(f'torch.randn{s}' if isinstance(s, tuple) else s for s in shapes)
    return f'''import torch
import torch.nn as nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init or 'pass'}
    def forward(self, {', '.join(names)}): return {forward}
def get_inputs(): return [{inputs}]
def get_init_inputs(): return []
'''


def planned(text, specs, chip):
    "A plan; its module brings torch's compiler, which a worker that collects this file need not wait for."
    from kernel_lab.gpu.record.submission import record_plan
    return record_plan(text, specs, chip)


def outcome(source, graph, region, text, seed=0):
    "(relative error of an interpreted text, that of eager torch) against the graph's own text in float64."
    from kernel_lab.agents.templates.problem import graph_text
    rng = np.random.default_rng(seed)
    arrays = {n.name: (rng.random(n.shape) > 0.5) if n.dtype == 'bool' else rng.standard_normal(n.shape).astype('float32')
              for n in graph.inputs}
    names = {'torch': torch}
    exec(graph_text(replace_outputs(graph, region.output)), names)
    wide = [torch.from_numpy(a).double() if a.dtype != bool else torch.from_numpy(a) for a in arrays.values()]
    want = names['reference'](*wide).numpy()
    specs = [{'shape': list(graph[n].shape), 'dtype': graph[n].dtype} for n in region.inputs]
    plan = planned(text, specs, 'sm_90')
    assert not plan.library_calls and plan.outputs[0].shape == graph[region.output].shape
    got, _ = interpret_plan(plan, [arrays[n] for n in region.inputs])
    assert not isinstance(got, KernelError), f'{got}\n{text}'
    norm = np.linalg.norm(want) or 1.0
    return np.linalg.norm(got.outputs[0] - want) / norm


def replace_outputs(graph, name):
    from kernel_lab.tasks.codegen.graph import Graph, live_nodes
    return Graph(graph.inputs, live_nodes(graph.nodes, (name,)), (name,))


def small(config):
    return replace(config, BM=min(config.BM, 32), BN=min(config.BN, 32), BK=min(config.BK, 32), chunk=config.chunk and 64)


PRODUCTS = {
    'linear': problem('torch.relu(self.l(x)) / 2', (40, 64), init='self.l = nn.Linear(64, 48)'),
    'square': problem('torch.matmul(x, y)', (48, 64), (64, 40)),
    'both transposed': problem('torch.matmul(x.T, y.T)', (64, 48), (40, 64)),
    'odd sizes': problem('torch.matmul(x, y)', (37, 53), (53, 41)),
    'batched': problem('torch.bmm(x, y)', (3, 40, 32), (3, 32, 48)),
    'four axes': problem("torch.einsum('bijl,lk->bijk', x, y)", (2, 3, 20, 32), (32, 48)),
    'upper triangle': problem('torch.triu(torch.matmul(x, y))', (64, 64), (64, 64)),
    'lower triangle': problem('torch.tril(torch.matmul(x, y))', (64, 64), (64, 64)),
    'residual and gelu': problem('F.gelu(self.l(x) + y) * 0.5', (40, 64), (40, 48), init='self.l = nn.Linear(64, 48)'),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize('name', PRODUCTS)
def test_products_in_every_way_are_as_exact_as_float32(name):
    graph = read_problem(PRODUCTS[name], name).graph
    region = next(r for n in graph.nodes if (r := product_region(graph, n)))
    for config in dict.fromkeys(map(small, product_configs(region))):
        error = outcome(name, graph, region, product_source(region, config))
        assert error < 6e-7, f'{name}, {config}: {error:.1e}'


@pytest.mark.parametrize('precision, low, high', [('tf32', 1e-5, 1e-3), ('bf16', 5e-4, 1e-2)])
def test_narrow_products_are_as_loose_as_their_class(precision, low, high):
    graph = read_problem(PRODUCTS['square'], 'square').graph
    region = product_region(graph, graph.nodes[0])
    config = small(product_configs(region, precision)[-len(product_configs(region)) - 1])
    assert config.kind == precision
    assert low < outcome('square', graph, region, product_source(region, config)) < high


ROWS = {
    'softmax': problem('torch.softmax(x, dim=1)', (5, 300)),
    'log softmax': problem('torch.log_softmax(x, dim=-1)', (5, 256)),
    'layer norm': problem('self.n(x)', (4, 6, 50), init='self.n = nn.LayerNorm((6, 50))'),
    'group norm': problem('self.n(x)', (3, 8, 5, 6), init='self.n = nn.GroupNorm(4, 8)'),
    'instance norm': problem('self.n(x)', (3, 4, 5, 7), init='self.n = nn.InstanceNorm2d(4)'),
    'l1': problem('x / torch.mean(torch.abs(x), dim=1, keepdim=True)', (6, 100)),
    'l2': problem('x / torch.norm(x, p=2, dim=1, keepdim=True)', (6, 100)),
    'rms over channels': problem('x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)', (2, 12, 5, 20)),
    'rms with gain': problem('x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-5) * y', (6, 100), (100,)),
}


@pytest.mark.parametrize('name', ROWS)
def test_rows_in_one_pass(name):
    graph = read_problem(ROWS[name], name).graph
    region = row_region(graph)
    length = region.known['length']
    wide = 1 << (length - 1).bit_length()
    config = RowConfig(16, 1, 4, 32) if region.known['stride'] > 1 else RowConfig(wide, 1, 4)
    assert outcome(name, graph, region, row_source(region, config)) < 5e-7


def test_a_long_row_is_shared_and_its_meeting_is_in_the_text():
    graph = read_problem(problem('torch.softmax(x, dim=1)', (8, 20000)), 'long').graph
    text = row_source(row_region(graph), RowConfig(4096, 5, 4))
    plan = planned(text, [{'shape': [8, 20000], 'dtype': 'float32'}], 'sm_90')
    assert plan.launches[0].alternatives[0].grid == (40, 1, 1) and 'shared(r0, r0_' in text
    assert [s.value for s in plan.steps if hasattr(s, 'value')] == [0.0]


COLUMNS = {'sum': 'torch.sum(x, dim=1, keepdim=True)', 'mean': 'torch.mean(x, dim=1)', 'max': 'torch.max(x, dim=1)[0]',
           'min': 'torch.min(x, dim=1)[0]', 'argmax': 'torch.argmax(x, dim=1)', 'argmin': 'torch.argmin(x, dim=1)'}


@pytest.mark.parametrize('name', COLUMNS)
def test_columns(name):
    graph = read_problem(problem(COLUMNS[name], (3, 70, 50)), name).graph
    region = column_region(graph)
    assert outcome(name, graph, region, column_source(region, ColumnConfig(16, 32, 4))) < 3e-7


SCANS = {'cumsum': 'torch.cumsum(x, dim=1)', 'cumprod': 'torch.cumprod(x * 0.5, dim=1)', 'masked': 'torch.cumsum(x * y, dim=1)',
         'reverse': 'torch.cumsum(x.flip(1), dim=1).flip(1)',
         'exclusive': 'torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), torch.cumsum(x.narrow(1, 0, 99), dim=1)), dim=1)'}


@pytest.mark.parametrize('name', SCANS)
@pytest.mark.parametrize('block', [32, 128])
def test_scans_carry_from_block_to_block(name, block):
    shapes = [(4, 100), 'torch.randint(0, 2, (4, 100)).bool()'][:1 + (name == 'masked')]
    graph = read_problem(problem(SCANS[name], *shapes), name).graph
    region = scan_region(graph)
    assert outcome(name, graph, region, scan_source(region, ScanConfig(block, 4))) < 5e-7


@pytest.mark.parametrize('forward, shapes', [
    ('torch.relu(x)', [(4096, 4096)]), ('torch.sort(x, dim=1)[0]', [(64, 1000)]), ('torch.cumsum(x, dim=0)', [(64, 1000)]),
    ('torch.matmul(x, y)', [(32, 32), (32, 32)]), ('torch.matmul(x, y)', [(4096, 1 << 18), (1 << 18, 1)])])
def test_what_no_template_writes_stays_with_the_library(forward, shapes):
    made = read_problem(problem(forward, *shapes), 'kept')
    plans, jobs = plan_problem(made)
    assert regions_of(made.graph) == [] and jobs == [] and 'no template' in plans.note


def test_what_is_behind_a_product_and_wanted_elsewhere_is_not_taken():
    graph = read_problem(problem('self.l(x) + torch.relu(self.l(x)).sum()', (40, 64), init='self.l = nn.Linear(64, 48)'), 'two').graph
    regions = [r for n in graph.nodes if (r := product_region(graph, n))]
    assert [r.nodes for r in regions][1] == ('linear_1', 'relu')
    graph = read_problem(problem('(lambda h: h + torch.relu(h))(self.l(x))', (40, 64), init='self.l = nn.Linear(64, 48)'), 'one').graph
    assert product_region(graph, graph.nodes[0]).nodes == ('linear',)


def test_the_whole_with_regions_in_it_does_what_the_problem_does():
    source = EXAMPLE_PROBLEM.replace('1024, 512', '4096, 1024').replace('512, 256', '1024, 1024').replace('/ 2.0', '.softmax(1)')
    plans, _ = plan_problem(read_problem(source, 'whole'))
    names = {'torch': torch, 'region_0': lambda x, w, b: torch.relu(torch.nn.functional.linear(x, w, b))}
    exec(plans.whole, names)
    x, w, b = torch.randn(8, 1024), torch.randn(1024, 1024), torch.randn(1024)
    assert torch.allclose(names['whole'](x, w, b), torch.relu(torch.nn.functional.linear(x, w, b)).softmax(1))


def test_running_statistics_are_written_as_the_module_does():
    source = problem('self.n(self.l(x))', (64, 128), init='self.l = nn.Linear(128, 96); self.n = nn.BatchNorm1d(96)')
    from kernel_lab.agents.templates.problem import graph_text, model_and_inputs, problem_module, state_of
    made = read_problem(source, 'norm')
    model, inputs = model_and_inputs(problem_module(source, 'norm'), 'cpu')
    mine = {k: t.detach().clone() for k, t in state_of(model).items()}
    names = {'torch': torch}
    exec(graph_text(made.graph, writes=made.writes), names)
    out = names['reference'](*inputs, *mine.values())
    assert torch.allclose(out, model(*inputs), atol=1e-6)
    assert all(torch.allclose(t, mine[k]) for k, t in state_of(model).items()) and mine['n_running_mean'].abs().sum() > 0


@pytest.mark.slow
def test_candidates_are_compiled_and_bad_ones_say_why():
    graph = read_problem(PRODUCTS['linear'], 'linear').graph
    region = product_region(graph, graph.nodes[0])
    specs = [{'shape': list(graph[n].shape), 'dtype': 'float32'} for n in region.inputs]
    job = lambda config: (str(config), product_source(region, config), specs, 'sm_90')
    huge = replace(PRODUCT_CONFIGS[0], BM=256, BK=64, stages=4)
    found = compile_all([job(small(PRODUCT_CONFIGS[3])), job(huge), ('broken', 'def kernel(x): return x +', specs, 'sm_90')], 1)
    assert found[0].cubins and not found[0].fails and json.loads(found[0].plan)['kernels']
    assert 'shared memory' in found[1].fails and found[2].fails and not found[2].cubins
    plans, jobs = plan_problem(read_problem(PRODUCTS['linear'], 'linear'))
    assert with_candidates(plans, []) == plans


@pytest.mark.slow
def test_a_compiler_that_hangs_or_dies_costs_its_own_candidate_only():
    specs = [{'shape': [64], 'dtype': 'float32'}]
    texts = ['while True: pass', 'import os\nos.kill(os.getpid(), 9)', 'def kernel(x): return x +']
    found = compile_all([(f'{k}', text, specs, 'sm_90') for k, text in enumerate(texts)], 2, seconds=8)
    assert [c.label for c in found] == ['0', '1', '2'] and not any(c.cubins for c in found)
    assert 'longer than 8 s' in found[0].fails and 'signal 9' in found[1].fails and 'syntax' in found[2].fails


def test_a_plan_with_scratch_and_several_launches_runs_on_its_own_memory():
    "The stub's kernels: x → t → out, twice, so that kept memory and packed arguments are used again."
    from kernel_lab.agents.tune.plan_runner import RegionRunner
    from kernel_lab.gpu.launch.cuda_driver import CudaDriver
    from kernel_lab.gpu.launch.stub_driver import example_plan, stub_cuda
    from kernel_lab.gpu.plan.nodes import Alternative, Buffer, BufferView, KernelLaunch, Pointer
    driver, base = CudaDriver(stub_cuda()), example_plan('copy', 256)
    buffers = (*base.buffers[:1], Buffer('t', (256,), 'float32', 1024), Buffer('y', (256,), 'float32', 1024))
    step = lambda a, b: KernelLaunch((Alternative(0, (8, 1, 1), (Pointer(a), Pointer(b), 256)),), 9)
    plan = replace(base, buffers=buffers, steps=(step(0, 1), step(1, 2)), outputs=(BufferView(2, 0, (256,), (1,), 'float32'),))

    class Memory:
        def __init__(self, size, poison): self.address = int(driver.call('cuMemAlloc', size))
    runner = RegionRunner(driver, plan, [b'copy'], Memory)
    first, second = Memory(1024, None), Memory(1024, None)
    for k, x in enumerate((first, second, first)):
        driver.api.array(x.address, 256)[:] = np.arange(256) + k
        out, taken = runner.run([x.address], driver.stream)
        assert driver.api.array(out.address, 256).tolist() == (np.arange(256) + k).tolist()
    assert len(runner.kept) == 1


def test_a_model_that_keeps_an_output_is_raced_without_graphs(monkeypatch):
    "CUDA graphs overwrite what the last call gave: torch refuses the second call, and the other modes are timed."
    from contextlib import nullcontext
    from kernel_lab.agents.tune.candidates import TunePlans
    from kernel_lab.agents.tune.problem_race import ProblemRace
    text = 'import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x + 1\n'
    text += 'def get_inputs(): return [torch.rand(8)]\ndef get_init_inputs(): return []\n'

    def compiled(model, backend):
        mode = 'graphs' if backend.keywords else 'compile'
        calls = []

        def call(*inputs):
            calls.append(1)
            if mode == 'graphs' and len(calls) > 1: raise RuntimeError('accessing tensor output of CUDAGraphs that has been overwritten')
            return model(*inputs)
        return call
    from functools import partial
    monkeypatch.setattr('kernel_lab.agents.tune.problem_race.waiting_backend', lambda turn, **patches: partial(print, **patches))
    monkeypatch.setattr(torch, 'compile', compiled)
    race = ProblemRace(None, text, TunePlans('keeps', 'default', ''), nullcontext, ('eager', 'compile', 'graphs'), '', 'cpu')
    race.prepare()
    assert [*race.calls] == ['eager', 'compile'] and 'overwritten' in race.row.dropped['graphs']


def test_max_autotune_compiles_with_the_card_alone_and_all_processors(monkeypatch):
    from contextlib import contextmanager
    from kernel_lab.agents.tune.candidates import TunePlans
    from kernel_lab.agents.tune.problem_race import ProblemRace
    text = 'import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x + 1\n'
    text += 'def get_inputs(): return [torch.rand(8)]\ndef get_init_inputs(): return []\n'
    name, held, seen = 'TORCHINDUCTOR_COMPILE_THREADS', [], {}

    @contextmanager
    def turn():
        held.append(True)
        try: yield
        finally: held.pop()

    def compiled(model, backend):
        def call(*inputs):
            seen[frozenset(backend)] = bool(held), os.environ[name]
            return model(*inputs)
        return call
    monkeypatch.setenv(name, '1')
    monkeypatch.setattr('kernel_lab.agents.tune.problem_race.waiting_backend', lambda turn, **patches: patches)
    monkeypatch.setattr(torch, 'compile', compiled)
    race = ProblemRace(None, text, TunePlans('alone', 'default', ''), turn, ('eager', 'compile', 'autotune'), '', 'cpu')
    race.prepare()
    most = {'max_autotune', 'triton.cudagraphs', 'coordinate_descent_tuning'}
    assert seen == {frozenset(): (False, '1'), frozenset(most): (True, str(min(16, os.cpu_count())))}
    assert os.environ[name] == '1' and not held and [*race.calls] == ['eager', 'compile', 'autotune'] and 'autotune' in race.row.compile_s


def test_a_problem_that_ends_its_process_costs_itself_only(tmp_path):
    texts = {'ends': 'import sys\nsys.exit(3)\n', 'none': 'x = 1\n'}
    made = [*written_plans(texts, tmp_path / 'plans', 'sm_90', 'default', 1)]
    assert [p.name for p in made] == ['ends', 'none'] and 'SystemExit: 3' in made[0].note, made


def test_kernelbench_without_its_checkout_is_told_so():
    with pytest.raises(UsageError, match='Where KernelBench is') as told: bench(suite=['kernelbench'])
    assert '--checkout' in told.value.hint
