"""Seconds from a GPU kernel's text to its SASS, without a GPU: the plan, CUDA C++ to PTX and the assembler, median of
five with warm imports."""
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tests' / 'support'))
from watched_kernels import KERNELS, SPECS

from kernel_lab.evaluate.gpu.compiling import compile_submission
from kernel_lab.gpu.chip.gpu_chips import get_gpu
from kernel_lab.gpu.record.nvrtc import compile_cuda

TWO = KERNELS['softmax'].replace('@triton.jit\n', '''@triton.jit
def halved(x, y, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + k, tl.load(x + k, mask=k < n) * 0.5, mask=k < n)

@triton.jit
''', 1).replace('def kernel(x):\n', '''def kernel(x):
    z = torch.empty_like(x)
    halved[(x.numel() // 1024,)](x, z, x.numel(), BLOCK=1024)
    x = z
''')
CASES = {'softmax': ('softmax', KERNELS['softmax']), 'matmul 128 × 128 × 64': ('matmul', KERNELS['matmul']),
         'two kernels': ('softmax', TWO), 'three in CUDA C++': ('cuda', KERNELS['cuda'])}


def main(times=5):
    print(f'{"kernel":24}{"kernels":>8}{"plan (s)":>10}{"to SASS (s)":>13}')
    for name, (spec, source) in CASES.items():
        compile_submission(source, SPECS[spec])
        runs = [compile_submission(source, SPECS[spec]) for _ in range(times)]
        plan, rest = (median(r.seconds[k] for r in runs) for k in ('plan', 'assemble'))
        print(f'{name:24}{len(runs[0].binaries):>8}{plan:>10.2f}{rest:>13.2f}')
    text, took = KERNELS['cuda'].split('r"""')[1].split('"""')[0], []
    for _ in range(times):
        began = time.perf_counter()
        compile_cuda(text, 'kernel.cu', get_gpu('sm_90'))
        took.append(time.perf_counter() - began)
    print(f'NVRTC, CUDA C++ to PTX: {median(took):.2f} s')


if __name__ == '__main__': main()
