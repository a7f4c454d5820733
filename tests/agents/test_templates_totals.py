"""Losses, other totals, and rows that many blocks share: every kind interpreted against float64 at small and odd shapes,
and what no template takes."""
import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
import torch
from kernel_lab.agents.templates.long_rows import LongConfig, long_configs, long_source
from kernel_lab.agents.templates.problem import read_problem
from kernel_lab.agents.templates.rows import RowConfig, row_region, row_source
from kernel_lab.agents.templates.totals import TotalConfig, TotalProgram, total_region, total_source
from kernel_lab.agents.tune.candidates import plan_problem, regions_of, sources_of
from template_runs import outcome, problem


def graph_of(forward, *inputs, init='pass'):
    "The graph of a problem whose `forward` is an expression of x, y, z; inputs are shapes or texts."
    return read_problem(problem(forward, *inputs, init=init, draw='rand'), 'made').graph


def values(graph, seed, classes, positive):
    "Arrays for a graph's inputs: normal or positive numbers, targets below `classes`."
    rng = np.random.default_rng(seed)
    draw = lambda shape: rng.random(shape) + 1e-3 if positive else rng.standard_normal(shape)
    return {n.name: rng.integers(0, classes, n.shape) if n.dtype == 'int64' else draw(n.shape).astype('float32')
            for n in graph.inputs}


def judged(graph, region, text, classes=2, positive=False, seed=0, change=None):
    "(what the text gives, what torch gives in float64) for a whole graph."
    arrays = values(graph, seed, classes, positive)
    if change: change(arrays)
    return outcome(graph, region, text, arrays)


def off(got, want): return float(np.linalg.norm(got - want) / (np.linalg.norm(want) or 1.0))


PAIR = [(37, 53), (37, 53)]
FLAT = {
    'squares': ('torch.mean((x - y) ** 2)', PAIR),
    'mse_loss': ('F.mse_loss(x, y)', PAIR),
    'sum of squares': ("F.mse_loss(x, y, reduction='sum')", PAIR),
    'l1_loss': ('F.l1_loss(x, y)', PAIR),
    'smooth_l1_loss': ('F.smooth_l1_loss(x, y)', PAIR),
    'smooth_l1_loss of beta': ('F.smooth_l1_loss(x, y, beta=0.3)', PAIR),
    'huber_loss': ('F.huber_loss(x, y, delta=0.4)', PAIR),
    'soft_margin_loss': ('F.soft_margin_loss(x, y)', PAIR),
    'kl_div of targets': ("F.kl_div(x, y, reduction='batchmean', log_target=True)", PAIR),
    'hinge': ('torch.mean(torch.clamp(1 - x * y, min=0))', [(37, 53), (53,)]),
    'hinge of whole blocks': ('torch.mean(torch.clamp(1 - x * y, min=0))', [(9, 2048), (2048,)]),
    'a number a row': ('torch.mean(torch.clamp(1 - x * y, min=0))', [(7, 5, 53), (7, 1, 1)]),
    'no reduction, then a mean': ("(F.mse_loss(x, y, reduction='none') * 2).mean()", PAIR),
    'one of one element': ('torch.sum(x * y)', [(37, 53), (1,)]),
    'two totals': ('torch.sum(x * y) / torch.sqrt(torch.sum(y * y) + 1)', PAIR),
    'a norm': ('torch.norm(x - y)', PAIR),
    'kept axes': ('torch.sum(x, dim=(0, 1), keepdim=True) * 2', [(37, 53)]),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize('name', FLAT)
def test_flat_totals(name):
    forward, inputs = FLAT[name]
    graph = graph_of(forward, *inputs)
    region = total_region(graph, least=1)
    assert not region.known['has_rows']
    for config in (TotalConfig(128, 4, 4), TotalConfig(1024, 1, 4)):
        assert off(*judged(graph, region, total_source(region, config))) < 3e-7, config


ROWS = {
    'cross entropy': ('F.cross_entropy(x, y)', [(37, 53), 'torch.randint(0, 53, (37,))']),
    'its sum': ("F.cross_entropy(x, y, reduction='sum')", [(37, 64), 'torch.randint(0, 64, (37,))']),
    'without a class': ('F.cross_entropy(x, y, ignore_index=3)', [(36, 7), 'torch.randint(0, 7, (36,))']),
    'nll': ('F.nll_loss(F.log_softmax(x, 1), y)', [(37, 53), 'torch.randint(0, 53, (37,))']),
    'triplet': ('F.triplet_margin_loss(x, y, z, margin=1.0)', [(37, 53)] * 3),
    'triplet, swapped': ('F.triplet_margin_loss(x, y, z, margin=0.5, swap=True)', [(37, 53)] * 3),
    'triplet of absolute values': ('F.triplet_margin_loss(x, y, z, margin=5.0, p=1)', [(37, 53)] * 3),
    'cosine': ('torch.mean(1 - F.cosine_similarity(x, y, dim=1))', PAIR),
    'distance': ('F.pairwise_distance(x, y).mean()', PAIR),
    'squares of sums': ('torch.sum(torch.sum(x * y, dim=1) ** 2)', PAIR),
    'entropy': ('-torch.mean(torch.sum(torch.softmax(x, 1) * torch.log_softmax(x, 1), dim=1))', [(37, 53)]),
    'centred': ('torch.mean((x - x.mean(dim=-1, keepdim=True)) ** 2)', [(5, 7, 53)]),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize('name', ROWS)
def test_totals_of_rows(name):
    forward, inputs = ROWS[name]
    graph = graph_of(forward, *inputs)
    region, classes = total_region(graph, least=1), graph.inputs[0].shape[-1]
    assert region.known['has_rows']
    wide = 1 << (classes - 1).bit_length()
    for config in (TotalConfig(wide, 2, 4, 4), TotalConfig(wide, 1, 4, 1)):
        assert off(*judged(graph, region, total_source(region, config), classes)) < 3e-7, config


def test_a_divergence_of_a_logarithm_takes_one_and_does_what_torch_does_at_zero():
    graph = graph_of("F.kl_div(torch.log(x), y, reduction='batchmean')", *PAIR)
    region = total_region(graph, least=1)
    text = total_source(region, TotalConfig(256, 2, 4))
    assert region.known['totals'][0][1].count('tl.log') == 1
    assert off(*judged(graph, region, text, positive=True)) < 3e-7
    def zero(arrays): arrays['x1'][::2] = 0.0
    assert off(*judged(graph, region, text, positive=True, change=zero)) < 3e-7
    def nothing(arrays): arrays['x0'][0] = arrays['x1'][0] = 0.0
    got, want = judged(graph, region, text, positive=True, change=nothing)
    assert np.isnan(got) and np.isnan(want)


def test_targets_outside_of_the_classes_read_nothing_outside():
    graph = graph_of('F.cross_entropy(x, y)', (5, 7), 'torch.randint(0, 7, (5,))')
    region = total_region(graph, least=1)
    def outside(arrays): arrays['x1'][:] = [0, 6, -100, -100, 2]
    assert off(*judged(graph, region, total_source(region, TotalConfig(8, 1, 1, 2)), 7, change=outside)) < 3e-7


def test_a_sum_of_many_is_as_exact_as_pairs_and_the_same_in_either_order():
    graph = graph_of('torch.mean(x)', (1 << 20,))
    region = total_region(graph)
    assert regions_of(graph)[0].family == 'totals'
    text = total_source(region, TotalConfig(16384, 4, 8))
    def offset(arrays): arrays['x0'] += 1000
    got, want = judged(graph, region, text, positive=True, change=offset)
    assert off(got, want) < 6e-8
    assert judged(graph, region, text, positive=True, change=offset)[0].tobytes() == got.tobytes()


@pytest.mark.parametrize('forward, inputs, says', [
    ('torch.mean(x - x.mean())', [(37, 53)], 'a total is used by elements'),
    ('torch.mean(x * y)', [(37, 1), (1, 53)], 'a shape or type of its own'),
    ('torch.mean(y) + torch.sum(x)', [(37, 53), (53,)], 'a sum of a part'),
    ('F.cross_entropy(x, y, label_smoothing=0.1)', [(37, 53), 'torch.randint(0, 53, (37,))'], 'weights of classes'),
    ('torch.sum(torch.sum(x, dim=0) ** 2)', [(37, 53)], 'over other axes'),
    ('torch.sum(x * torch.sum(y, dim=1))', [(53, 53), (53, 53)], 'lies along another axis'),
    ('torch.sum(x, dtype=torch.float64)', [(37, 53)], 'another type'),
    ('torch.sum(torch.sort(x)[0])', [(37, 53)], 'not written'),
    ('torch.linalg.vector_norm(x, 3)', [(37, 53)], 'another order')])
def test_what_is_no_total_says_why(forward, inputs, says):
    graph = graph_of(forward, *inputs)
    assert says in TotalProgram(graph).fails and total_region(graph, least=1) is None


def test_small_graphs_and_long_rows_are_not_taken():
    assert total_region(graph_of('torch.mean((x - y) ** 2)', *PAIR)) is None
    assert total_region(graph_of('F.cross_entropy(x, y)', (64, 65536), 'torch.randint(0, 65536, (64,))')) is None
    assert total_region(graph_of('torch.relu(x)', (4096, 4096))) is None


LONG = {
    'layer norm': ('self.n(x)', [(6, 4, 50)], 'self.n = nn.LayerNorm((4, 50))'),
    'group norm': ('self.n(x)', [(3, 8, 5, 6)], 'self.n = nn.GroupNorm(4, 8)'),
    'instance norm': ('self.n(x)', [(3, 4, 5, 7)], 'self.n = nn.InstanceNorm2d(4)'),
    'softmax': ('torch.softmax(x * 3, dim=1)', [(6, 333)], 'pass'),
    'norm of everything': ('x / torch.norm(x)', [(7, 5, 11)], 'pass'),
    'l1': ('(x + y) / torch.mean(torch.abs(x + y), dim=1, keepdim=True)', [(6, 100), (6, 100)], 'pass'),
    'maximum': ('x - torch.amax(x, dim=1, keepdim=True)', [(6, 100)], 'pass'),
    'gain': ('x / torch.norm(x, dim=1, keepdim=True) * y', [(6, 100), (100,)], 'pass'),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize('name', LONG)
def test_rows_that_many_blocks_share(name):
    forward, inputs, init = LONG[name]
    graph = graph_of(forward, *inputs, init=init)
    region = row_region(graph)
    how = next(l[1] for l in region.known['lines'] if not isinstance(l, str))
    rows = next(r for r in (3, 2, 1) if region.known['rows'] % r == 0)
    for steps in (1,) if how in ('moments', 'softmax') else (1, 3):
        config = LongConfig(16, steps, 1, 32, rows, 1)
        assert off(*judged(graph, region, long_source(region, config))) < 3e-7, config


@pytest.mark.parametrize('shape, groups, config', [
    ((3, 8, 8, 8), 8, RowConfig(64, 1, 4)), ((3, 8, 8, 8), 2, LongConfig(64, 1, 1, 32, 3, 1)),
    ((3, 8, 8, 8), 2, LongConfig(64, 1, 1, 128, 3, 1))])
def test_a_channels_gain_is_one_number_where_no_block_lies_in_two(shape, groups, config):
    def drawn(arrays): arrays.update(x0=arrays['x0'] + 1, n_weight=arrays['n_weight'] * 2)
    graph = graph_of('self.n(x)', shape, init=f'self.n = nn.GroupNorm({groups}, {shape[1]})')
    region = row_region(graph)
    text = (row_source if isinstance(config, RowConfig) else long_source)(region, config)
    assert ('// 64)' in text) == (getattr(config, 'piece', config.block) <= 64), text
    assert off(*judged(graph, region, text, change=drawn)) < 5e-7


def test_an_output_without_axes_is_checked(monkeypatch):
    from kernel_lab.agents.tune import plan_runner
    outs = iter([torch.ones(()), torch.ones(()), torch.zeros(())] * 2)
    monkeypatch.setattr(plan_runner, 'on_tensors', lambda *given: (next(outs), []))
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: None)
    assert plan_runner.checked_output(None, [])[1] == 'its outputs differ from run to run'


def test_the_whole_problem_is_one_call():
    source = '''import torch
class Model(torch.nn.Module):
    def forward(self, x, y): return torch.nn.functional.cross_entropy(x, y)
def get_inputs(): return [torch.rand(2048, 1024), torch.randint(0, 1024, (2048,))]
def get_init_inputs(): return []
'''
    plans, jobs = plan_problem(read_problem(source, 'entropy'))
    assert [r.family for r in plans.regions] == ['totals'] and len(jobs[0]) >= 5
    names = {'torch': torch, 'region_0': torch.nn.functional.cross_entropy}
    exec(plans.whole, names)
    x, y = torch.rand(8, 4), torch.randint(0, 4, (8,))
    assert torch.equal(names['whole'](x, y), torch.nn.functional.cross_entropy(x, y))
    names = {'torch': torch}
    exec(plans.regions[0].reference, names)
    assert torch.equal(names['reference'](x, y), torch.nn.functional.cross_entropy(x, y))


def test_long_rows_are_offered_beside_rows_in_one_launch():
    graph = graph_of('self.n(x)', (16, 64, 256, 256), init='self.n = nn.LayerNorm((64, 256, 256))')
    region, = regions_of(graph)
    labels = [label for label, _ in sources_of(region)]
    assert region.family == 'rows' and sum(l.startswith('three launches') for l in labels) == len(long_configs(region))
    assert any('blocks a row' in l for l in labels)
    whole, = regions_of(graph_of('x / torch.norm(x)', (112, 64, 512, 512)))
    assert all(l.startswith('three launches') for l, _ in sources_of(whole)) and len(sources_of(whole)) >= 2


SHAPES = {
    'mse': ('torch.mean((x - y) ** 2)', [(32768, 32768), (32768, 32768)]),
    'huber': ('F.smooth_l1_loss(x, y)', [(32768, 32768), (32768, 32768)]),
    'hinge': ('torch.mean(torch.clamp(1 - x * y, min=0))', [(32768, 32768), (32768,)]),
    'kl': ("F.kl_div(torch.log(x), y, reduction='batchmean')", [(16384, 16384), (16384, 16384)]),
    'triplet': ('F.triplet_margin_loss(x, y, z)', [(32768, 8192)] * 3),
    'cross entropy': ('F.cross_entropy(x, y)', [(32768, 4096), 'torch.randint(0, 4096, (32768,))']),
    'layer norm': ('self.n(x)', [(16, 64, 256, 256)]),
    'frobenius': ('x / torch.norm(x, p="fro")', [(112, 64, 512, 512)]),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', SHAPES)
def test_every_configuration_compiles_without_spilling(name):
    from kernel_lab.agents.tune.candidates import compile_all
    forward, inputs = SHAPES[name]
    graph = graph_of(forward, *inputs, init='self.n = nn.LayerNorm((64, 256, 256))' if 'self' in forward else 'pass')
    region, = regions_of(graph)
    specs = [{'shape': list(graph[n].shape), 'dtype': graph[n].dtype} for n in region.inputs]
    made = [(l, t) for l, t in sources_of(region) if 'blocks a row' not in l]
    found = compile_all([(label, text, specs, 'sm_90') for label, text in made], 1)
    assert [c.fails for c in found] == [''] * len(made) and all(len(c.cubins) in (2, 3) for c in found)
