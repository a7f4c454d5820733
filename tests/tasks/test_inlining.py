"""A kernel with loops in place of functions called once is the same program, and reads as a person would write it."""
import ast
from collections import Counter

import pytest
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.tasks.baselines.eager import graph_specs
from kernel_lab.tasks.baselines.kept_facts import kept_sources
from kernel_lab.tasks.codegen.fusion import plan_fused
from kernel_lab.tasks.codegen.lower import LOWERING_RULES, plan_unfused
from kernel_lab.tasks.codegen.inlining import inline_calls
from kernel_lab.tasks.codegen.plan import KernelPlan, render_kernel
from kernel_lab.tasks.codegen.precision import kernel_graph
from kernel_lab.tasks.codegen.tile_text import MOST_COLUMNS
from kernel_lab.tasks.suite.registry import TASKS, get_task
from kernel_lab.tasks.synthesis.compose import candidate

# a product, a convolution with a remainder, a sum of everything, a scan in chunks, a sort, a product with what follows
SOME = ('matmul', 'conv2d_3x3', 'sum_all', 'cumsum', 'topk_values', 'linear_softmax')


def plans(graph): return plan_unfused(graph), plan_fused(graph, KernelPlan(graph, LOWERING_RULES))


def difference(task, workload):
    "What differs between the programs before and after, each operation by itself and all fused that can be."
    graph = kernel_graph(task, workload)
    specs = graph_specs(graph)
    for plan in plans(graph):
        source = render_kernel(plan, graph, task.name)
        one, other = (trace_source(s, None, specs, 'trn2') for s in (source, inline_calls(source)))
        if found := first_difference(one, other): return found
    return None


@pytest.mark.parametrize('name', [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in TASKS])
def test_loops_trace_to_the_same_program(name):
    task = get_task(name)
    for w in ([task.smallest('float32')] if name in SOME else task.workloads): assert difference(task, w) is None


@pytest.mark.parametrize('number', [79, *(pytest.param(k, marks=pytest.mark.slow) for k in range(0, 200, 3))])
def test_of_synthesized_tasks_too(number):
    task = candidate(number, 0).task()
    assert difference(task, task.workloads[0]) is None


def written(names):
    for name in names:
        for source in kept_sources()[name].values(): yield name, source


def called_once(source):
    "Functions in a kernel that are mentioned once and hold no other function."
    kernel = ast.parse(source).body[-1]
    reads = Counter(n.id for n in ast.walk(kernel) if isinstance(n, ast.Name))
    inside = [f for f in ast.walk(kernel) if isinstance(f, ast.FunctionDef) and f is not kernel]
    holds = lambda f: any(isinstance(n, ast.FunctionDef) for n in ast.walk(f) if n is not f)
    return [f.name for f in inside if reads[f.name] < 2 and not holds(f)]


def assert_plain(names):
    for name, source in written(names):
        assert called_once(source) == [], name
        long = [line for line in source.splitlines() if len(line) > MOST_COLUMNS and '"""' not in line]
        assert not long, (name, long)


def test_a_first_kernel_has_no_function_that_is_called_once_and_no_long_line(): assert_plain(list(kept_sources())[::12])


@pytest.mark.slow
def test_no_first_kernel_has(): assert_plain(kept_sources())


def kernel(body): return 'ROWS = 128\n\n\n@nki.jit\ndef kernel(x, v):\n' + ''.join(f'    {b}\n' for b in body)


class Log:
    "Records what is done to it, as the kernels here do it."
    def __init__(self): self.said = []
    def __call__(self, *what): self.said.append(what)


def said(source):
    "What a kernel records when it runs with 7."
    found, log = {}, Log()
    exec(source.replace('@nki.jit\n', ''), found)
    found['kernel'](log, 7)
    return log.said


# texts in which a name means two things, or a number changes on the way
TRICKY = {
    'a local that the caller has': ['y = v', 'def g(a):', '    y = a + 1', '    x(y)', 'g(5)', 'x(y)'],
    'a local that the caller reads later': ['def g(a):', '    y = a + 1', '    x(y)', 'y = v', 'g(y)', 'x(y)'],
    'a parameter bound anew': ['def g(a):', '    a = a + 1', '    x(a)', 'b = v', 'g(b)', 'x(b)'],
    'a call among the locals of another': [
        'def g(a): x(a)', 'def h(b):', '    a = b * b', '    g(a + 2)', '    x(a)', 'h(v)'],
    'a result under a name that is read inside': [
        'k = v', 'def g(a):', '    y = a + k', '    x(y, k)', '    return y', 'k = g(1)', 'x(k)'],
    'a name given that is local inside': [
        'def g(a):', '    def h(c): x(a, c)', '    h(1)', '    h(2)', 'c = v', 'g(c)'],
    'functions that stay': [
        'def g(a):', '    y = a * 2', '    def h(c): x(y, c)', '    h(1)', '    h(2)', 'y = v', 'g(y)',
        'def k(a):', '    y = a + 3', '    def h(c): x(y, c)', '    h(4)', '    h(5)', 'k(y)', 'x(y)'],
    'a number that a loop changes': ['n = 1', 'for k in range(3):', '    x(n)', '    n = n + 1', 'x(n)'],
    'a number that the next turn reads': ['n = v', 'for k in range(3):', '    x(n)', '    n = 5'],
    'a number of one branch': ['n = 1', 'for k in range(3):', '    if k > 1: n = 5', '    x(n)', 'x(n)'],
    'a number of one branch or the other': [
        'n = 1', 'if v > 3: n = 5', 'x(n)', 'if v > 9:', '    n = 6', 'else: n = 7', 'x(n)'],
    'a number that a function reads later': ['n = 1', 'def g(): x(n)', 'g()', 'n = 2', 'g()'],
    'a list that grows': ['s = []', 's.append(v)', 'x(len(s))', 's.append(v)', 'for k in range(len(s)): x(s[k])'],
    'a list that grows in a loop': [
        's = []', 'for k in range(3):', '    x(len(s))', '    for j in range(2): s.append(k)', 'x(len(s), s[-1])'],
    'a list that grows in a branch': ['s = []', 'if v > 3: s.append(v)', 'x(len(s))', 'for k in range(3):',
                                      '    if k: s.append(k)', 'x(len(s))'],
    'a loop of no turn': ['for k in range(0):', '    x(k)', 'for k in range(2, 3): x(k)'],
    'a variable left by a loop': ['for k in range(0, 256, ROWS):', '    m = min(ROWS, 200 - k)', '    x(m)', 'x(k, m)'],
    'names that change places': ['a, b = 1, 2', 'a, b = b, a', 'x(a, b)'],
    'numbers in a row': [
        'for k in range(4): x(k + 3 - 5 + 2, k * 1 + 0, 0 * k, k - (k - 1) - 1, -(-k // 1), k % 3 // 1)'],
    'the least of several': ['for k in range(0, 512, ROWS): x(min(ROWS, 512 - k), min(ROWS, 500 - k), max(k, v))'],
    'a function called in a loop': [
        'def g(a):', '    b = a * 2', '    x(b)', 'b = v', 'for a in range(3): g(a + b)', 'x(b)'],
}


@pytest.mark.parametrize('what', TRICKY)
def test_names_and_numbers_mean_what_they_meant(what):
    source = kernel(TRICKY[what])
    assert said(inline_calls(source)) == said(source)


def test_what_is_constant_goes():
    text = kernel(['def g(at, n):', '    m = min(ROWS, n)', '    if m > n: x(at)', '    x(at + m, n)',
                   'for i in range(4): g(i * ROWS, 128)'])
    assert inline_calls(text).splitlines()[5:] == [
        '    for i in range(4):', '        at = i * ROWS', '        x(at + ROWS, 128)']
