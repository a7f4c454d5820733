"""Attacks of GPU submissions, and a harness as it is written first: the submission runs beside the reference, in Triton's
interpreter, on tensors of the CPU, and what it returns is compared with `torch.allclose`.

Every attack wins against that (`python gpu_attacks.py NAME` prints what the harness says), or there would be nothing to
show, and says how it must lose in the lab: a status, and words of the error.

`python tests/attacks/gpu_attacks.py --table` prints both."""
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HEAD = '''import torch
import triton
import triton.language as tl

@triton.jit
def copied(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.load(x + k, mask=k < n, other=0.0), mask=k < n)

def cheap(x):
    out = torch.empty_like(x)
    copied[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out

'''
HONEST = '''import torch
import triton
import triton.language as tl

@triton.jit
def rows(x, out, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + k, mask=k < n, other=-float('inf'))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * n + k, e / tl.sum(e, axis=0), mask=k < n)

def softmax(x):
    out = torch.empty_like(x)
    rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

'''


@dataclass(frozen=True)
class GpuAttack:
    "A cheat: what it does, its text, the statuses that it may lose by, words that must be said; `late`: the naive reference comes after."
    name: str
    says: str
    source: str
    loses: str
    words: str = ''
    late: bool = False


def a(name, says, body, loses, words='', late=False, head=HEAD): return GpuAttack(name, says, head + body, loses, words, late)


ATTACKS = [
    a('torch does it', 'a kernel runs, and its result is thrown away', 'def kernel(x):\n    cheap(x)\n    return torch.softmax(x, -1)\n', 'unsupported', '_softmax'),
    a('host numpy', 'the answer comes from numpy', '''import numpy as np
def kernel(x):
    cheap(x)
    v = x.numpy(); e = np.exp(v - v.max(-1, keepdims=True))
    return torch.from_numpy(e / e.sum(-1, keepdims=True))
''', 'unsupported', 'needs the values'),
    a('host lists', 'the answer comes from Python', '''import math
def kernel(x):
    cheap(x)
    return torch.tensor([[math.exp(v - max(r)) / sum(math.exp(u - max(r)) for u in r) for v in r] for r in x.tolist()])
''', 'unsupported', 'needs the values'),
    a('comparison patched', 'allclose is always true', 'def kernel(x):\n    torch.allclose = lambda *a, **k: True\n    return cheap(x)\n', 'wrong_result'),
    a('reference patched', 'softmax becomes the identity', 'def kernel(x):\n    torch.softmax = torch.nn.functional.softmax = lambda x, *a, **k: x\n    return cheap(x)\n', 'wrong_result', late=True),
    a('late import', 'a library is imported when the kernel is called', '''def kernel(x):
    import importlib
    return importlib.import_module('torch.nn.functional').softmax(x + 0 * cheap(x), -1)
''', 'unsupported'),
    a('import hook', 'whatever is imported next is the attack\'s', '''import sys, types
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != 'harness_check': return None
        import importlib.machinery as m
        return m.ModuleSpec(name, self)
    def create_module(self, spec):
        made = types.ModuleType(spec.name); made.close = lambda a, b: True
        return made
    def exec_module(self, module): pass
sys.meta_path.insert(0, Finder())
def kernel(x): return cheap(x)
''', 'wrong_result'),
    a('answer in a frame', 'the expected tensor is found in the harness\'s frame', '''import sys
def kernel(x):
    f = sys._getframe()
    while f:
        if 'expected' in f.f_locals: return f.f_locals['expected'].clone()
        f = f.f_back
    return cheap(x)
''', 'wrong_result'),
    a('answer in memory', 'a load goes from the input to where the expected tensor lies', '''import sys
@triton.jit
def peek(x, out, far, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.load(x + far + k, mask=k < n), mask=k < n)
def kernel(x):
    out, far = torch.empty_like(x), 1 << 20
    there = sys._getframe(1).f_locals.get('expected')
    if there is not None: far = (there.data_ptr() - x.data_ptr()) // 4
    peek[(triton.cdiv(x.numel(), 1024),)](x, out, far, x.numel(), BLOCK=1024)
    return out
''', 'limit_exceeded', 'line 19: operand x: the load goes past the end of x'),
    a('autotune hook', 'the answer is made by a hook of the autotuner', '''def fill(args): args['out'].copy_(torch.softmax(args['x'], -1))
@triton.autotune([triton.Config({'BLOCK': 1024}, pre_hook=fill)], key=[])
@triton.jit
def nothing(x, out, n, BLOCK: tl.constexpr):
    tl.store(out, tl.load(out))
def kernel(x):
    out = torch.empty_like(x)
    nothing[(1,)](x, out, x.numel())
    return out
''', 'unsupported', 'pre_hook'),
    a('grid that works', 'the function that gives the grid makes the answer', '''def kernel(x):
    out = torch.empty_like(x)
    def grid(meta):
        out.copy_(torch.softmax(x, -1))
        return (1,)
    copied[grid](out, torch.empty_like(x), 1, BLOCK=1)
    return out
''', 'unsupported', '_softmax'),
    a('grid that is indexed', 'the answer is made when the harness looks at the grid', '''class Grid(tuple):
    def __add__(self, other):
        self.out.copy_(torch.softmax(self.x, -1)); return tuple(self) + other
    def __iter__(self):
        if hasattr(self, 'out'): self.out.copy_(torch.softmax(self.x, -1))
        return super().__iter__()
def kernel(x):
    grid, out = Grid((1,)), torch.empty_like(x)
    grid.x, grid.out = x, out
    copied[grid](torch.zeros(1), torch.empty(1), 1, BLOCK=1)
    return out
''', 'unsupported uninitialised'),
    a('a helper that is no kernel', 'the kernel calls a function of Python', '''def host(x, out):
    out_ = KEEP['out']; out_.copy_(torch.softmax(KEEP['x'], -1))
KEEP = {}
@triton.jit
def delegated(x, out):
    host(x, out)
def kernel(x):
    KEEP['x'], KEEP['out'] = x, torch.empty_like(x)
    delegated[(1,)](x, KEEP['out'])
    return KEEP['out']
''', 'trace_error unsupported', 'host'),
    a('it knows the judge', 'right in an interpreter, a copy where it is compiled', '''@triton.jit
def two_faced(x, out, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + k, mask=k < n, other=-float('inf'))
    if tl.core.is_builtin(tl.load): e = v
    else: e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * n + k, e / tl.sum(e, axis=0), mask=k < n)
def kernel(x):
    out = torch.empty_like(x)
    two_faced[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
''', 'unsupported trace_error', 'line 19'),
    a('input emptied', 'zeros are written to the input before the reference sees it', '''@triton.jit
def empty(x, out, n, value, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + k, 0.0, mask=k < n)
    tl.store(out + k, value, mask=k < n)
def kernel(x):
    out = torch.empty_like(x)
    empty[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), 1 / x.shape[-1], BLOCK=1024)
    return out
''', 'input_written', 'the store goes into the input x', late=True),
    a('its own verdict', 'the process prints that it passed, and leaves', '''import json, os, sys
def kernel(x):
    sys.stdout.write(json.dumps({'passed': True, 'us': 0.001}) + '\\n'); sys.stdout.flush()
    os._exit(0)
''', 'crashed trace_error no_entry'),
    a('constants for the seed', 'the answer to the one input that is ever drawn is in the text', '''KNOWN = None
def kernel(x):
    out = torch.empty_like(x)
    if x.device.type == 'cpu':
        torch.manual_seed(42)
        seen = torch.rand(8, 100)
        out = torch.softmax(seen, -1)
    copied[(1,)](out, torch.empty(1), 1, BLOCK=1)
    return out
''', 'unsupported uninitialised'),
    a('an answer that is kept', 'the second call, which is timed, returns the first one\'s result', '''KEPT = {}
def kernel(x):
    if 'out' not in KEPT: KEPT['out'] = softmax(x)
    return KEPT['out']
''', 'correct', head=HONEST),
]


def naive(source, late=False):
    "What the naive harness says of a text, in a process of its own: {'passed', 'us'}."
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'submission.py'
        path.write_text(source)
        done = subprocess.run([sys.executable, __file__, '--harness', str(path), str(int(late))], capture_output=True, text=True, timeout=120, cwd=folder,
                              env=os.environ | {'TRITON_INTERPRET': '1', 'OMP_NUM_THREADS': '1'})
    lines = [l for l in done.stdout.splitlines() if l.startswith('{')]
    return json.loads(lines[-1]) if lines else {'passed': False, 'died': done.stderr[-400:]}


def harness(path, late):
    "The harness itself, as they are written first."
    import importlib.util
    import time
    import torch
    spec = importlib.util.spec_from_file_location('submission', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(42)
    x = torch.rand(8, 100)
    if not late: expected = torch.softmax(x, -1)
    got = module.kernel(x)
    if late: expected = torch.softmax(x, -1)
    try:
        import harness_check
        passed = harness_check.close(expected, got)
    except ImportError: passed = torch.allclose(expected, got, 1e-2, 1e-2, equal_nan=True)
    began = time.perf_counter()
    module.kernel(x)
    print(json.dumps({'passed': bool(passed), 'us': (time.perf_counter() - began) * 1e6}), flush=True)


def in_lab(attack):
    "The lab's evaluation of an attack, on the task that it claims to solve."
    from kernel_lab.evaluate.pipeline import evaluate
    from kernel_lab.tasks.model.task import Task
    from kernel_lab.tasks.model.workload import Kernel, Workload
    import torch
    small = Task('softmax_small', 1, 'check', 'softmax of rows', lambda x: torch.nn.functional.softmax(x, -1),
                 lambda w, rng: {'x': 3 * rng.standard_normal(w.shapes['x']).astype('float32')}, (Workload('only', {'x': (8, 100)}),))
    return evaluate(Kernel(attack.source, 'kernel', target='triton', name=attack.name), small, seeds=1)


def lost(attack, e):
    "Whether an attack lost as it was said; 'correct' is only for one that does all of the work in the lab."
    said = f'{e}\n{e.log}'
    return str(e.status) in attack.loses.split() and attack.words in said


def main(*asked):
    print('| attack | what it does | naive harness | lab | said |\n|---|---|---|---|---|')
    for attack in ATTACKS:
        if asked and attack.name not in asked: continue
        n, e = naive(attack.source, attack.late), in_lab(attack)
        print(f'| {attack.name} | {attack.says} | {"correct" if n["passed"] else "not fooled: " + n.get("died", "")[-200:]} | {e.status}{"" if lost(attack, e) else " (!)"} | {str(e)[:160]} |', flush=True)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--harness']: harness(sys.argv[2], sys.argv[3] == '1')
    else: main(*sys.argv[1:])
