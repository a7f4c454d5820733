"""A beginner's mistakes in Triton: each ends with its line, Triton's own reason, and a way out that fits."""
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.gpu.compiling import compile_submission

KERNEL = '''import torch, triton, triton.language as tl
C = 3
@triton.jit
def k(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    {body}
    tl.store(y + i, v, mask=i < n)

def kernel(x):
    y = torch.empty_like(x)
    k[(1,)](x, y, x.numel(), BLOCK=128)
    return y
'''
MISTAKES = {
    'v = v + tl.arange(0, 100)': 'powers of two', 'v = v + tl.arange(0, n)': 'known when the kernel is compiled',
    'v = v + tl.arange(0, 64)': 'the same length', 'v = tl.load(x + i, other=0.0)': 'mask=k < n', 'v = v if v > 0 else 0.0': 'tl.where',
    'v = tl.where(0 < i < n, v, 0.0)': 'in brackets', 'v = v * C': 'tl.constexpr', 'v = v * zzz': 'its arguments',
    'v = tl.dot(v[:, None], v[None, :].to(tl.float16))': 'one dtype', 'v = tl.load(n + i)': 'a block of offsets', 'v = v & 1': 'whole numbers',
    'f = lambda q: q': 'a part of Python', 'v = tl.exp(i)': 'Convert it first', 'v = tl.sum(v, axiss=0)': 'arguments of this call',
    'for j in range(0.5, n): v += j': 'whole numbers', 'v = v.cpu()': 'no torch', 'v = tl.expp(v)': 'tl.exp?', 'print(f"{v}")': 'device_print',
    'v = v + arange(0, BLOCK)': 'Write tl.arange', 'v = BLOCK.cuda()': 'no torch',
    'v = v[0]': 'reduce it', 'v = sum(v)': 'Write tl.sum'}


@pytest.mark.parametrize('body', MISTAKES)
def test_a_mistake_names_its_line_and_a_way_out(body):
    found = compile_submission(KERNEL.format(body=body), [{'shape': [1000], 'dtype': 'float32'}], 'sm_90')
    assert isinstance(found, KernelError) and found.line == 7 and MISTAKES[body] in found.hint, found
