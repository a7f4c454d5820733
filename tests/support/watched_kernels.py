"""Kernels for the sanitizer and the counters of a card: a line that a check is to name ends in `#!` and the check."""
SOFTMAX = '''import torch, triton, triton.language as tl
@triton.jit
def softmax_rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=-float('inf'))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + at, v / tl.sum(v, 0), mask=at < n)

def kernel(x):
    y = torch.empty_like(x)
    softmax_rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
'''
MATMUL = '''import torch, triton, triton.language as tl
@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * N + n[None, :])
        acc += tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16))

def kernel(a, b):
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    product[(a.shape[0] // 128, b.shape[1] // 128)](a, b, c, a.shape[0], b.shape[1], a.shape[1], BM=128, BN=128, BK=64, num_warps=8)
    return c
'''
UNMASKED = '''import torch, triton, triton.language as tl
@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + k)    #! memcheck
    tl.store(y + k, v * 2, mask=k < n)

def kernel(x):
    y = torch.empty_like(x)
    doubled[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
'''
CUDA = '''import torch
SOURCE = r"""
extern "C" __global__ void outside(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n + 3) y[i] = x[i < n ? i : 0] + 1.0f;    //#! memcheck
}
extern "C" __global__ void races(const float* x, float* y) {
    __shared__ float s[256];
    int t = threadIdx.x;
    s[t] = x[t];
    y[t] = s[255 - t];    //#! racecheck
}
extern "C" __global__ void unset(const float* u, float* y) {
    int t = threadIdx.x;
    y[t + 256] = u[t] * 2.0f;    //#! initcheck
}
"""
outside, races, unset = (torch.cuda._compile_kernel(SOURCE, name) for name in ('outside', 'races', 'unset'))

def kernel(x):
    y, u, z = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    races(grid=(1, 1, 1), block=(256, 1, 1), args=(x, y))
    unset(grid=(1, 1, 1), block=(256, 1, 1), args=(u, y))
    outside(grid=(4, 1, 1), block=(256, 1, 1), args=(x, z, x.numel()))
    return y
'''
KERNELS = {'softmax': SOFTMAX, 'matmul': MATMUL, 'unmasked': UNMASKED, 'cuda': CUDA}
_spec = lambda dtype, *shape: {'shape': [*shape], 'dtype': dtype}
SPECS = {'softmax': [_spec('float32', 4096, 4096)], 'matmul': [_spec('float16', 2048, 2048)] * 2, 'unmasked': [_spec('float32', 1000)],
         'cuda': [_spec('float32', 1000)]}
