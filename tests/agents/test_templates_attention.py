"""Attention without the matrix of scores, interpreted against float64: views, masks, both ways; what stays with the library."""
import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
import torch
from kernel_lab.agents.templates.attention import (AttentionConfig, attention_configs, attention_region, attention_source)
from kernel_lab.agents.templates.problem import graph_text, read_problem
from kernel_lab.agents.tune.candidates import region_floor, regions_of, sources_of
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.gpu.interpreting import interpret_plan
from kernel_lab.gpu.record.submission import record_plan
from kernel_lab.tasks.codegen.graph import Graph, live_nodes

HEAD = 'import torch, math\nimport torch.nn as nn\nimport torch.nn.functional as F\n'


def plain(more='', B=1, H=2, T=40, D=48, forward=None):
    return HEAD + f'''class Model(nn.Module):
    def forward(self, q, k, v): return {forward or f'F.scaled_dot_product_attention(q, k, v{more})'}
def get_inputs(): return [torch.randn({B}, {H}, {T}, {D}) for _ in range(3)]
def get_init_inputs(): return []
'''


def masked(act, B=2, T=48, H=2, C=64):
    scores = f"a.masked_fill(self.bias[:, :, :{T}, :{T}] == 0, float('-inf'))"
    return HEAD + f'''class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('bias', torch.tril(torch.ones({T + 8}, {T + 8})).view(1, 1, {T + 8}, {T + 8}))
    def forward(self, x):
        q, k, v = (t.view({B}, {T}, {H}, {C // H}).transpose(1, 2) for t in x.split({C}, dim=2))
        a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        a = F.{act.format(scores)}
        return (a @ v).transpose(1, 2).contiguous().view({B}, {T}, {C})
def get_inputs(): return [torch.randn({B}, {T}, {3 * C})]
def get_init_inputs(): return []
'''


HEADS = HEAD + '''class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(64, 2)
    def forward(self, x): return self.a(x, x, x)[0]
def get_inputs(): return [torch.randn(40, 2, 64)]
def get_init_inputs(): return []
'''


def region_in(source):
    graph = read_problem(source, 'attention').graph
    return graph, next((r for n in graph.nodes if (r := attention_region(graph, n))), None)


def interpreted(source, config, lower=True):
    "(relative error of an interpreted text, that of eager torch, what was seen)."
    graph, region = region_in(source)
    rng = np.random.default_rng(0)
    arrays = {n.name: rng.standard_normal(n.shape).astype('float32') for n in graph.inputs}
    if 'bias' in arrays: arrays['bias'] = np.tril(np.ones_like(arrays['bias']))
    if not lower: arrays['bias'] = (rng.random(arrays['bias'].shape) > 0.7).astype('float32')
    if not lower: arrays['bias'][..., 0] = 1

    def values(names, double):
        names, done = tuple(names), {'torch': torch}
        exec(graph_text(Graph(graph.inputs, live_nodes(graph.nodes, names), names)), done)
        tensors = [torch.from_numpy(a).double() if double else torch.from_numpy(a) for a in arrays.values()]
        out = done['reference'](*tensors)
        return out if isinstance(out, tuple) else (out,)
    want, eager = (values([region.output], double)[0].numpy() for double in (True, False))
    given = [t.numpy() for t in values(region.inputs, False)]
    specs = [{'shape': list(graph[n].shape), 'dtype': graph[n].dtype} for n in region.inputs]
    plan = record_plan(attention_source(region, config), specs, 'sm_90')
    assert not plan.library_calls and plan.outputs[0].shape == graph[region.output].shape
    got, _ = interpret_plan(plan, given)
    assert not isinstance(got, KernelError), got
    far = lambda x: np.linalg.norm(x - want) / np.linalg.norm(want)
    return far(got.outputs[0]), far(eager), got


CASES = {'plain': plain(), 'causal': plain(', is_causal=True', D=32), 'scaled': plain(', scale=0.5', D=32),
         'masked': masked('softmax({}, dim=-1)', C=96), 'relu': masked('relu({})', T=40), 'heads of a module': HEADS,
         'of three axes': plain(forward='torch.softmax(torch.bmm(q[0], k[0].transpose(1, 2)) / 4, dim=-1).bmm(v[0])')}


@pytest.mark.sampled(7)
@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('config', [AttentionConfig(32, 16, 4, 2), AttentionConfig(16, 32, 4, 2, 16)], ids=str)
def test_attention_is_as_exact_as_float32(name, config):
    error, eager, seen = interpreted(CASES[name], config)
    assert error < max(2 * eager, 3e-7) and not seen.races and not seen.bare_lines, f'{error:.1e}, eager {eager:.1e}'


def test_a_mask_that_is_no_triangle_is_right_too():
    error, eager, _ = interpreted(masked('softmax({}, dim=-1)'), AttentionConfig(16, 16, 4, 2), lower=False)
    assert error < max(2 * eager, 3e-7)


def test_views_are_made_in_the_kernel_and_the_turn_of_heads_is_written_in_place():
    graph, region = region_in(masked('softmax({}, dim=-1)'))
    assert region.inputs[0] == 'x0' and region.output == graph.outputs[0]
    assert region.known['views'][1] == 'e0.narrow(2, 64, 64).view((2, 48, 2, 32)).transpose(1, 2)'
    assert region.nodes[0] == 'matmul' and '.transpose(1, 2)' in region.known['target']


@pytest.mark.parametrize('forward', [
    'F.scaled_dot_product_attention(q, k, v, attn_mask=q @ k.transpose(-1, -2))', '(q @ k.transpose(-1, -2)) @ v',
    'torch.softmax(q @ k.transpose(-1, -2), dim=-2) @ v', 'torch.softmax(q @ k.transpose(-1, -2) + 1.0, dim=-1) @ v',
    '(lambda p: p @ v + p.sum())(torch.softmax(q @ k.transpose(-1, -2), dim=-1))',
    'F.scaled_dot_product_attention(q.half(), k.half(), v.half())'])
def test_what_stays_with_the_library(forward):
    assert region_in(plain(forward=forward))[1] is None


def test_regions_of_a_problem_hold_attention_and_its_products():
    source = masked('softmax({}, dim=-1)', B=8, T=512, H=8, C=768)
    graph, region = region_in(source)
    assert [r.family for r in regions_of(graph)] == ['attention'] and region.flops == 2.0 * 8 * 512 * 512 * 768
    assert len(sources_of(region)) == len(attention_configs(region)) and 'TF32' in region_floor(graph, region).rate
    assert all(c.BK for c in attention_configs(region_in(plain(T=512, D=1024))[1]))
