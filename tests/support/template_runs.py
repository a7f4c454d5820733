"""What tests of the tuner's templates share: problems of one expression, and a template's text interpreted against the
problem's graph in float64. Needs torch and Triton."""
import torch
from kernel_lab.agents.templates.problem import graph_text, read_problem
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.gpu.interpreting import interpret_plan
from kernel_lab.gpu.record.submission import record_plan
from kernel_lab.tasks.codegen.graph import Graph, live_nodes


def problem(forward, *inputs, init='pass', draw='randn'):
    "The source of a problem whose `forward` is an expression of x, y, z; inputs are shapes or texts."
    made = ', '.join(f'torch.{draw}({s})' if isinstance(s, tuple) else s for s in inputs)
    return f'''import torch
import torch.nn as nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {', '.join('xyz'[:len(inputs)])}): return {forward}
def get_inputs(): return [{made}]
def get_init_inputs(): return []
'''


def region_of(source, find, name='problem'):
    "(graph of a problem, the first region that `find` sees in it or None)."
    graph = read_problem(source, name).graph
    return graph, next((r for n in graph.nodes if (r := find(graph, n))), None)


def reference(graph, outputs):
    "A function of the graph's inputs that gives these outputs."
    names = {'torch': torch}
    exec(graph_text(Graph(graph.inputs, live_nodes(graph.nodes, outputs), outputs)), names)
    return names['reference']


def double(array): return torch.from_numpy(array).double() if array.dtype == 'float32' else torch.from_numpy(array)


def outcome(graph, region, text, arrays):
    "(what the text gives for a region, what torch gives in float64), from arrays of the graph's inputs."
    want = reference(graph, (region.output,))(*map(double, arrays.values())).numpy()
    given = reference(graph, region.inputs)(*map(torch.from_numpy, arrays.values()))
    given = given if isinstance(given, tuple) else (given,)
    plan = record_plan(text, [{'shape': list(graph[n].shape), 'dtype': graph[n].dtype} for n in region.inputs], 'sm_90')
    assert not plan.library_calls and plan.outputs[0].shape == graph[region.output].shape
    got, _ = interpret_plan(plan, [t.numpy() for t in given])
    assert not isinstance(got, KernelError), f'{got}\n{text}'
    return got.outputs[0], want
