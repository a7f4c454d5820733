"""What is done on a card's machine beside other work: the harness that is meant to be fooled, runs that are not timed, submissions
that run themselves, NVIDIA's sanitizer."""
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.sandbox.protocol import Limits
from kernel_lab.evaluate.self_run.run import compiled_modules, self_run, self_run_limits
from kernel_lab.gpu.launch import sanitizer
from kernel_lab.gpu.launch.launcher import launch, order_of
from kernel_lab.gpu.launch.packing import drawn, view_array
from kernel_lab.tasks.importers.module_inits import init_inputs
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import get_task

sys.path.insert(0, str(Path(__file__).parent))
from attacks_on_card import ATTACKS, HONEST, SUMS
from card_texts import BAD, KERNELS

HAS_TOOLS = all(shutil.which(t) or any((b / t).exists() for b in sanitizer.TOOLKIT_BINS) for t in ('ncu', 'compute-sanitizer'))
INLINE = '''import torch
from torch.utils.cpp_extension import load_inline
CUDA = """#include <ATen/cuda/CUDAContext.h>
__global__ void rows(const float* x, float* out, int n) {
    __shared__ float part[256];
    const float* from = x + (size_t)blockIdx.x * n;
    float most = -INFINITY, sum = 0;
    for (int k = threadIdx.x; k < n; k += 256) most = fmaxf(most, from[k]);
    part[threadIdx.x] = most;
    for (int s = 128; s; s /= 2) { __syncthreads(); if (threadIdx.x < s) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + s]); }
    __syncthreads(); most = part[0]; __syncthreads();
    for (int k = threadIdx.x; k < n; k += 256) sum += expf(from[k] - most);
    part[threadIdx.x] = sum;
    for (int s = 128; s; s /= 2) { __syncthreads(); if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s]; }
    __syncthreads();
    for (int k = threadIdx.x; k < n; k += 256) out[(size_t)blockIdx.x * n + k] = expf(from[k] - most) / part[0];
}
torch::Tensor soft(torch::Tensor x) {
    auto out = torch::empty_like(x);
    rows<<<x.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1));
    return out;
}"""
soft = load_inline(name='soft', cpp_sources='torch::Tensor soft(torch::Tensor x);', cuda_sources=CUDA, functions=['soft'], verbose=True,
                   extra_cflags=[''], extra_ldflags=[''], extra_cuda_cflags=['-O3'])
class ModelNew(torch.nn.Module):
    def forward(self, x): return soft.soft(x)
'''
INLINE_WRONG = INLINE.replace('return soft.soft(x)', 'return soft.soft(2 * x)')
SOFTMAX = '''import torch
def kernel(x): return torch.softmax(x, -1)
'''
CUDA = '''import torch
TEXT = r"""extern "C" __global__ void twice(const float* x, float* out, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = 2 * x[k];
}"""
def kernel(x):
    out, n = torch.empty_like(x), x.numel()
    torch.cuda._compile_kernel(TEXT, 'twice')(grid=((n + 255) // 256, 1, 1), block=(256, 1, 1), args=[x, out, n])
    return torch.softmax(out / 2, -1)
'''
WALLS = {           # what a submission that runs itself tries → how it ends
    "open('/dev/nvidia0', 'rb')": 'trace_error', "open('/etc/passwd').read()": 'trace_error', 'import os; os.fork()': 'trace_error',
    'import socket; socket.socket()': 'trace_error', 'import os; os.kill(os.getppid(), 9)': 'trace_error',
    'while True: torch.mm(x[:64, :64], x[:64, :64])': 'timeout', 'y = [torch.empty(1 << 40, device="cuda")]': 'trace_error'}


# The harness.

class Harness:
    "The harness in a process of its own: it examines all texts at once, and then times one after the other. `folder`: for its errors."
    def __init__(self, folder, seconds=300):
        self.errors = open(folder / 'harness', 'w+')
        self.process = subprocess.Popen([sys.executable, str(Path(__file__).with_name('attacks_on_card.py'))], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True)
        self.end = threading.Timer(seconds, self._kill)
        self.end.start()
        asked = [{'name': a.name, 'source': a.source, 'task': a.task, 'how': 'stale' if a.name.startswith('stale') else a.harness} for a in ATTACKS]
        asked += [{'name': f'honest {t}', 'source': s, 'task': t, 'how': 'events'} for t, s in (('product', HONEST), ('sums', SUMS))]
        self._say(''.join(json.dumps(a) + '\n' for a in asked) + '\n')

    def _say(self, text):
        with suppress(BrokenPipeError):
            self.process.stdin.write(text)
            self.process.stdin.flush()

    def wait(self):
        "Until all texts are examined."
        self.process.stdout.readline()

    def timed(self):
        "Name → what it says of every attack and of the honest kernels; 'errors': what it printed."
        self._say('go\n')
        found = {r['name']: r for r in map(json.loads, self.process.stdout)}
        self.errors.seek(0)
        return found | {'errors': self.errors.read()[-2000:]}

    def _kill(self):
        with suppress(ProcessLookupError, PermissionError): os.killpg(self.process.pid, signal.SIGKILL)

    def close(self):
        "End it and its forks."
        self.end.cancel()
        self._kill()
        self.process.communicate()
        self.errors.close()


# Runs that are not timed.

def order(*compiled, **more):
    return order_of([c.plan for c in compiled], [[c.binaries[k].cubin for k in range(len(c.plan.kernels))] for c in compiled], **more)


def given(plan, seed):
    "The inputs that a launcher drew."
    rng = np.random.default_rng(seed)
    data = {k: drawn(b, rng) for k, b in enumerate(plan.buffers) if b.role != 'scratch' and b.bytes}
    return [view_array(v, data[v.buffer][v.offset:]) for v in plan.inputs]


def answers(plan, report, draw=0):
    return [np.frombuffer(raw, v.dtype).reshape(v.shape) for raw, v in zip(report.outputs[0][draw], plan.outputs)]


def distance(got, want): return float(np.linalg.norm(got.astype('float64') - want) / np.linalg.norm(want))


def refused(name, c):
    "Why a text is not launched, '' where it is: there is no plan, or the plan of an attack leaves something to torch."
    if isinstance(c, KernelError): return f'refused: {c}'
    return f'refused: {c.status}: {c.notes()[:2]}' if c.status != 'compiled' and name in {a.name for a in ATTACKS} else ''


def launch_once(name, c):
    "(order, report) of a text; (None, None) where it is refused."
    if refused(name, c): return None, None
    asked = order(c, timed=False)
    return asked, launch(asked, 15 if BAD.get(name, ('', ''))[1] == 'timeout' else 90)


# Submissions that run themselves.

def compile_inline():
    "Let the module of `INLINE` be compiled; runs of it find it then."
    task = get_task('softmax')
    workload = task.workload(None)
    return compiled_modules(Kernel(INLINE), init_inputs(task, workload), [*task.draw(workload, 0)], 'cuda', self_run_limits(None, 'cuda'))


def inline_runs():
    "(record of host code by `load_inline`, record of the same that gives another answer)."
    return self_run(Kernel(INLINE), 'softmax', seeds=2, samples=20), self_run(Kernel(INLINE_WRONG), 'softmax', seeds=1, samples=3)


def attack_walls(code):
    text = SOFTMAX.replace('return', f'{code}\n    return').replace('def kernel(x): ', 'def kernel(x):\n    ')
    return self_run(Kernel(text), 'softmax', seeds=1, limits=Limits(seconds=12))


def run_beside():
    """(text or attack → its record, bytes of the device that are gone, record of a run after that): attacks four at a time, and
    beside them what runs itself; never beside a test of a clock, which finds that the card is not its own."""
    import torch
    free = lambda: torch.cuda.mem_get_info()[0]
    torch.zeros(1, device='cuda')
    before = free()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(4) as four:
        own = one.submit(lambda: {t: self_run(Kernel(t), 'softmax', seeds=2, samples=20) for t in (SOFTMAX, CUDA)})
        found = dict(zip(WALLS, four.map(attack_walls, WALLS))) | own.result()
    gone = before - free()
    return found, gone, self_run(Kernel(SOFTMAX), 'softmax', seeds=1, samples=3)


# NVIDIA's tools.

def noting(texts):
    "A `launch` that keeps what the tools print, in the list that `texts` gives."
    def kept(*args, **kw):
        report = launch(*args, **kw)
        texts().append((report.status, report.data.get('seen', ''), report.data.get('places', [])))
        return report
    return kept


def plan_and_binaries(c):
    assert not isinstance(c, KernelError), c
    return c.plan, [b for _, b in sorted(c.binaries.items())]


def sanitize_all(compiled):
    "Name of a watched kernel → (binaries, report, what the tools print), each in a thread: its processes are their own."
    texts, real = {}, sanitizer.launch
    def one(name):
        plan, binaries = plan_and_binaries(compiled[f'watched: {name}'])
        texts[threading.get_ident()] = mine = []
        return binaries, sanitizer.sanitize(plan, binaries), mine
    sanitizer.launch = noting(lambda: texts[threading.get_ident()])
    try:
        with ThreadPoolExecutor(len(KERNELS)) as pool: return dict(zip(KERNELS, pool.map(one, KERNELS)))
    finally: sanitizer.launch = real
