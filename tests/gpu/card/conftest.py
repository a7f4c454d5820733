"""What takes longest on a card's machine and needs the card for a moment: begun with the first test, and over before one is timed."""
from concurrent.futures import ThreadPoolExecutor

import pytest
from kernel_lab.evaluate.self_run.run import self_run
from kernel_lab.tasks.model.workload import Kernel

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


def inline_runs():
    return (self_run(Kernel(INLINE), 'softmax', seeds=2, samples=20),
            self_run(Kernel(INLINE.replace('return soft.soft(x)', 'return soft.soft(2 * x)')), 'softmax', seeds=1, samples=3))


@pytest.fixture(scope='session')
def inline():
    "A future of (record of host code compiled by `load_inline`, record of the same that gives another answer)."
    with ThreadPoolExecutor(1) as pool: yield pool.submit(inline_runs)
