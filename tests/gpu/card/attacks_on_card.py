"""Attacks on the time of a GPU kernel, a harness as it is written first, and the lab's end of each, on a card.

The harness runs the submission in its own process: it draws inputs, compares with `torch.allclose`, takes events around a call and
says passed and µs. Every attack wins against it: it passes in less than `WINS` of the honest kernel's time, or with numbers that
only its tolerance lets through. In the lab a submission is a plan, made by a process without a card, and its time is that of the
plan's kernels: it loses by a status, or it takes as long as the work that it does."""
import json
import os
import sys
import time
from dataclasses import dataclass

WINS = 0.9
N = 2048
AS_SLOW = ('takes as long',)
HEAD = '''import torch
import triton
import triton.language as tl

@triton.jit
def product(x, w, out, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, P: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, N, BK):
        a = tl.load(x + m[:, None] * N + start + k[None, :])
        b = tl.load(w + (start + k)[:, None] * N + n[None, :])
        total = tl.dot(a, b, total, input_precision=P)
    tl.store(out + m[:, None] * N + n[None, :], total)

def work(x, w, precision='ieee'):
    out, n = torch.empty_like(x), x.shape[0]
    product[(n // 128, n // 128)](x, w, out, n, BM=128, BN=128, BK=32, P=precision, num_warps=8)
    return out

@triton.jit
def touch(x, out):
    tl.store(out, tl.load(x))

'''
HONEST = HEAD + 'def kernel(x, w): return work(x, w)\n'
SUMS = '''import torch
import triton
import triton.language as tl

@triton.jit
def sums(x, out, n, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row, tl.sum(tl.load(x + row * n + k, mask=k < n, other=0.0), axis=0))

def kernel(x, w):
    out = torch.empty((x.shape[0],), device=x.device, dtype=x.dtype)
    sums[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return out
'''


@dataclass(frozen=True)
class CardAttack:
    "A cheat of a `task`: what it does, its text, what the lab must say (words of it), whether it wins by time ('fast') or by loose numbers."
    name: str
    says: str
    source: str
    loses: tuple[str, ...]
    task: str = 'product'
    harness: str = 'events'


ATTACKS = [
    CardAttack('side stream', 'the work is on a stream that the events do not see', HEAD + '''
def kernel(x, w):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side): return work(x, w)
''', ('refused',)),
    CardAttack('thread', 'another thread does the work, on a stream of its own', HEAD + '''import queue, threading
KEPT = {}
def later(jobs):
    side = torch.cuda.Stream()
    while True:
        x, w, out = jobs.get()
        with torch.cuda.stream(side):
            product[(x.shape[0] // 64, x.shape[0] // 64)](x, w, out, x.shape[0], BM=64, BN=64, BK=32, P='ieee', num_warps=4)
def kernel(x, w):
    if not KEPT:
        out, KEPT['jobs'] = work(x, w), queue.SimpleQueue()
        threading.Thread(target=later, args=(KEPT['jobs'],), daemon=True).start()
        return out
    out = torch.empty_like(x)
    KEPT['jobs'].put((x, w, out))
    return out
''', ('refused', *AS_SLOW)),
    CardAttack('cached output', 'the answer of the first call is given again', HEAD + '''KEPT = {}
def kernel(x, w):
    if 'out' not in KEPT: KEPT['out'] = work(x, w)
    return KEPT['out']
''', AS_SLOW),
    CardAttack('stale output', 'memory that nobody wrote still holds the reference', HEAD + '''
def kernel(x, w):
    out, other = torch.empty_like(x), torch.empty((1,), device=x.device)
    touch[(1,)](x, other)
    return out
''', ('refused', 'unwritten')),
    CardAttack('event patch', 'the clock is replaced', HEAD + '''
def kernel(x, w):
    torch.cuda.Event.elapsed_time = lambda self, other: 1e-3
    return work(x, w)
''', AS_SLOW),
    CardAttack('warm cache', 'the write that empties the cache becomes a wait', SUMS.replace('def kernel(x, w):', '''def kernel(x, w):
    def idle(self):
        torch.cuda._sleep(400000)
        return self
    torch.Tensor.zero_ = idle'''), AS_SLOW, 'sums'),
    CardAttack('graph capture', 'it does nothing while a graph is captured', HEAD + '''KEPT = {}
def kernel(x, w):
    if torch.cuda.is_current_stream_capturing(): return KEPT['out']
    KEPT['out'] = work(x, w)
    return KEPT['out']
''', (*AS_SLOW, 'refused'), harness='graph'),
    CardAttack('out-of-range read', 'the reference is read from where it lies in memory', HEAD + '''import gc
@triton.jit
def peek(x, out, far, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.load(x + far + k))
FAR = []
def kernel(x, w):
    out = torch.empty_like(x)
    if not FAR:
        FAR.append(x.numel())
        for t in gc.get_objects():
            if type(t) is torch.Tensor and t.is_cuda and t.shape == x.shape and t.data_ptr() not in (x.data_ptr(), w.data_ptr(), out.data_ptr()):
                FAR[0] = (t.data_ptr() - x.data_ptr()) // 4
    peek[(x.numel() // 1024,)](x, out, FAR[0], BLOCK=1024)
    return out
''', ('refused', 'uninitialised', 'invalid', 'wrong', 'crash')),
    CardAttack('autotune cache', 'of two configurations one does nothing, and the tuner likes it', HEAD + '''
@triton.autotune([triton.Config({'SKIP': 1}), triton.Config({'SKIP': 0})], key=['N'])
@triton.jit
def chosen(x, w, out, N, SKIP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    if SKIP == 0:
        m = tl.program_id(0) * BM + tl.arange(0, BM)
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, N, BK):
            a = tl.load(x + m[:, None] * N + start + k[None, :])
            b = tl.load(w + (start + k)[:, None] * N + n[None, :])
            total = tl.dot(a, b, total, input_precision='ieee')
        tl.store(out + m[:, None] * N + n[None, :], total)
def kernel(x, w):
    out, n = torch.empty_like(x), x.shape[0]
    chosen[(n // 64, n // 64)](x, w, out, n, BM=64, BN=64, BK=32)
    return out
''', ('unwritten',)),
    CardAttack('precision', 'products of ten bits pass for products of twenty-four', HEAD + "def kernel(x, w): return work(x, w, 'tf32')\n",
               ('loose',)),
]


def specs_of(task): return [{'shape': list(s), 'dtype': 'float32'} for s in shapes_of(task)]


def shapes_of(task): return ((N, N), (N, N)) if task == 'product' else ((2048, 4096), (1,))


def reference(task, x, w): return x @ w if task == 'product' else x.sum(1)


# The harness.

def module_of(source):
    import importlib.util
    import tempfile
    with tempfile.NamedTemporaryFile('w', suffix='.py', delete=False) as file: file.write(source)
    spec = importlib.util.spec_from_file_location('submission', file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def examined(source, task, how):
    "(whether the harness lets a text pass, the call that it will time, what must stay alive until then). It is meant to be fooled."
    import torch
    module = module_of(source)
    torch.manual_seed(0)
    x, w = (torch.randn(s, device='cuda') for s in shapes_of(task))
    want = reference(task, x, w)
    if 'stale' in how: want = want.cpu()                     # what it takes: the reference's memory is free again
    got = module.kernel(x, w)
    torch.cuda.synchronize()
    time.sleep(0.05)
    torch.cuda.synchronize()
    passed = torch.allclose(got.to(want.device), want, 1e-2, 1e-1)
    del got
    for _ in range(3): module.kernel(x, w)
    torch.cuda.synchronize()
    time.sleep(0.05)
    call, graph = lambda: module.kernel(x, w), None
    if how == 'graph':
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): module.kernel(x, w)
        call = graph.replay
    return bool(passed), call, (x, w, want, module, graph)


def timed(call):
    "Median µs of a call between two events, each time after a write of the cache."
    import torch
    cache, found = torch.empty(256 << 20, dtype=torch.uint8, device='cuda'), []
    for _ in range(30):
        cache.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(1000 * start.elapsed_time(end))
    return sorted(found)[15]


class Fork:
    "A process that no other text has touched: it examines one beside the others, and times it when it is told to."
    def __init__(self, order):
        self.name = order['name']
        (told, go), (said, say) = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(go)
            with os.fdopen(say, 'w', buffering=1) as out, os.fdopen(told) as word: self._work(order, out, word)
            os._exit(0)
        os.close(told), os.close(say)
        self.go, self.answers = os.fdopen(go, 'w'), os.fdopen(said)

    def _work(self, order, out, word):
        try:
            passed, call, kept = examined(order['source'], order['task'], order['how'])
            print(json.dumps({'examined': True}), file=out)
            if not word.readline(): return
            print(json.dumps({'passed': passed, 'us': timed(call)}), file=out)
        except Exception as e:                  # noqa: BLE001 a submission may raise anything
            print(json.dumps({'passed': False, 'died': f'{type(e).__name__}: {e}'[-400:]}), file=out)

    def wait(self):
        "Until it is examined, or has ended."
        self.first = self._answer()

    def answer(self):
        "What the harness says of it: {'name', 'passed', 'us'}."
        if 'examined' not in self.first: return {'name': self.name, **self.first}
        print('go', file=self.go, flush=True)
        return {'name': self.name, **self._answer()}

    def _answer(self): return json.loads(self.answers.readline() or '{"passed": false, "died": "no word"}')


def serve_harness():
    """Read lines of JSON {name, source, task, how} until an empty one: all are examined at once, each by a fork of its own. A line
    'examined' tells that they are; after a line of input they are timed one after the other, with a line of JSON for each."""
    import torch                                            # noqa: F401 imported once
    import triton                                           # noqa: F401
    forks = []
    while (line := sys.stdin.readline()).strip(): forks.append(Fork(json.loads(line)))
    for f in forks: f.wait()
    print('examined', flush=True)
    if not sys.stdin.readline(): return
    for f in forks: print(json.dumps(f.answer()), flush=True)


if __name__ == '__main__': serve_harness()
