"""The texts that are compiled on a card's machine, and what is asked of them: `TEXTS`, name → (source, inputs, more)."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from attacks_on_card import ATTACKS, HONEST, SUMS, specs_of
from gpu_gallery import HEAD, rowwise, text_of
from watched_kernels import KERNELS, SPECS

PARITY = ('softmax, one pass', 'softmax, online', 'softmax, split', 'gelu', 'silu', 'rms norm', 'layer norm', 'matmul', 'matmul, three TF32',
          'matmul, batched', 'attention', 'cumsum', 'transpose', 'cross entropy')
ELEMENTWISE = HEAD + '''@triton.jit
def each(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + k, mask=k < n)
    tl.store(out + k, {value}, mask=k < n{wide})

def kernel(x):
    out, n = torch.empty_like(x), x.numel()
    each[({grid},)](x, out, n, BLOCK=1024)
    return out
'''
BAD = {                                     # name → (text, status, words)
    'a write behind the end': (ELEMENTWISE.format(value='v * 2', wide=' + 64', grid='triton.cdiv(n, 1024) + 1'), 'invalid', 'outside of the buffers'),
    'elements left out': (ELEMENTWISE.format(value='v * 2', wide='', grid='n // 1024 - 1'), 'unwritten', 'never written'),
    'a read behind the end': (ELEMENTWISE.format(value='v * 2 + tl.load(x + n + k)', wide='', grid='triton.cdiv(n, 1024)'), 'uninitialised', 'depend on memory'),
    'another answer each time': (HEAD + '''@triton.jit
def parts(x, out, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + k), axis=0))

def kernel(x):
    out = torch.zeros((1,), device=x.device)
    parts[(x.numel() // 128,)](x, out, BLOCK=128)
    return out
''', 'unstable', 'differ from run to run'),
    'a loop without end': (HEAD + '''@triton.jit
def endless(x, out):
    v = tl.load(x, volatile=True)
    while v > -1e30:
        v = tl.load(x, volatile=True)
    tl.store(out, v)

def kernel(x):
    out = torch.zeros((1,), device=x.device)
    endless[(1,)](x, out)
    return out
''', 'timeout', 'endless'),
}
FLAT = [{'shape': [(1 << 20) + 500], 'dtype': 'float32'}]
EVEN = [{'shape': [1 << 20], 'dtype': 'float32'}]
BIG = [{'shape': [16384, 4096], 'dtype': 'float32'}]
ROWS = [{'shape': [4096, 4096], 'dtype': 'float32'}]
SQUARES = [{'shape': [1024, 1024], 'dtype': 'float32'}] * 2
ROW = rowwise('''    e = tl.exp(v - tl.max(v, axis=0))
    y = e / tl.sum(e, axis=0)''')
EIGHT = HEAD + '''@triton.jit
def rows(x, out, n, BLOCK: tl.constexpr):
    row, k = 8 * tl.program_id(0) + tl.arange(0, 8), tl.arange(0, BLOCK)
    at = row[:, None] * n + k[None, :]
    v = tl.load(x + at)
    e = tl.exp(v - tl.max(v, axis=1)[:, None])
    tl.store(out + at, e / tl.sum(e, axis=1)[:, None])

def kernel(x):
    out = torch.empty_like(x)
    rows[(x.shape[0] // 8,)](x, out, x.shape[1], BLOCK=x.shape[1])
    return out
'''
CUDA = '''import torch
TEXT = r"""#include HEADER
template <class T> __device__ T half_of(T x) { return x * T(0.5); }
template <class T> __global__ void quarter(const T* x, T* out, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = half_of(half_of(x[k]));
}
extern "C" __global__ void f(const float* x, float* out, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = half_of(x[k]) + x[k];
}
"""
def kernel(x):
    n, one, out = x.numel(), torch.empty_like(x), torch.empty_like(x)
    for name, given, to in ("quarter<float>", x, one), ("f", one, out):
        torch.cuda._compile_kernel(TEXT, name)(grid=((n + 255) // 256, 1, 1), block=(256, 1, 1), args=[given, to, n])
    return out
'''
COMPILERS = {'nvrtc': '<stdint.h>', 'nvcc': '<cstdint>'}        # of CUDA C++, with a header that each has
MIXED = '''import torch
import torch.nn.functional as F
import triton
import triton.language as tl

@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.load(x + k, mask=k < n) * 2, mask=k < n)

def double(x):
    out = torch.empty_like(x)
    twice[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out

def kernel(x, w):
    return {work}
'''
WORK = {                                    # of torch and of a kernel, in one graph
    'a product': 'double(x @ w)', 'softmax between kernels': 'double(torch.softmax(double(x) @ w + 1, -1))',
    'sums and copies': 'double((x.T.contiguous().sum(0, keepdim=True) + w).half().float())',
    'a convolution': 'double(F.conv2d(x.reshape(1, 16, 256, 256), w[:32, :144].reshape(32, 16, 3, 3), padding=1))'}


def task_of(name):
    task, workload, text = text_of(name)[:3]
    return task, workload, [{'shape': list(a.shape), 'dtype': str(a.dtype)} for a in task.draw(workload).values()], text


def texts(compilers=('nvrtc', 'nvcc')):
    "Name → (source, inputs, more arguments of the compiler), those that take longest first."
    found = {'eight rows': (EIGHT, ROWS, {}), 'honest product': (HONEST, specs_of('product'), {}), 'honest sums': (SUMS, specs_of('sums'), {})}
    found |= {a.name: (a.source, specs_of(a.task), {}) for a in ATTACKS}
    found |= {f'CUDA by {c}': (CUDA.replace('HEADER', COMPILERS[c]), EVEN, {'compiler': c}) for c in compilers}
    found |= {n: (task_of(n)[3], task_of(n)[2], {}) for n in PARITY}
    found |= {n: (t, EVEN if 'each time' in n else FLAT, {}) for n, (t, _, _) in BAD.items()}
    found |= {f'torch: {n}': (MIXED.format(work=w), SQUARES, {}) for n, w in WORK.items()}
    found |= {f'watched: {n}': (KERNELS[n], SPECS[n], {}) for n in KERNELS}
    return found | {'one row': (ROW, ROWS, {}), 'twice': (ELEMENTWISE.format(value='v * 2', wide='', grid='triton.cdiv(n, 1024)'), BIG, {})}
