"""What only a card can say of calls of torch in a plan and of submissions that run themselves: torch works on the plan's memory in
a graph with the kernels, a CUDA context works behind walls, and nothing is left on the device."""
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
sys.path.insert(0, str(Path(__file__).parent))
import torch
from attacks_on_card import specs_of  # noqa: F401 (the folder is found)
from kernel_lab.evaluate.gpu.compiling import compile_submission
from kernel_lab.evaluate.sandbox.protocol import Limits
from kernel_lab.evaluate.self_run.run import self_run
from kernel_lab.gpu.launch.cuda_driver import CudaDriver, why_no_gpu
from kernel_lab.gpu.launch.launcher import launch, order_of
from kernel_lab.gpu.launch.packing import drawn, view_array
from kernel_lab.tasks.model.workload import Kernel

pytestmark = [pytest.mark.card, pytest.mark.skipif(why_no_gpu() is not None, reason=f'{why_no_gpu()}: make gpu-test needs a card')]
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
WORK = {
    'a product': ('double(x @ w)', lambda x, w: 2 * (x @ w)),
    'softmax between kernels': ('double(torch.softmax(double(x) @ w + 1, -1))', lambda x, w: 2 * torch.softmax(2 * x @ w + 1, -1)),
    'sums and copies': ('double((x.T.contiguous().sum(0, keepdim=True) + w).half().float())', lambda x, w: 2 * (x.T.sum(0, keepdim=True) + w).half().to(x.dtype)),
    'a convolution': ('double(F.conv2d(x.reshape(1, 16, 256, 256), w[:32, :144].reshape(32, 16, 3, 3), padding=1))',
                      lambda x, w: 2 * torch.nn.functional.conv2d(x.reshape(1, 16, 256, 256), w[:32, :144].reshape(32, 16, 3, 3), padding=1)),
}
SPECS = [{'shape': [1024, 1024], 'dtype': 'float32'}] * 2


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
ATTACKS = {
    "open('/dev/nvidia0', 'rb')": 'trace_error', "open('/etc/passwd').read()": 'trace_error', 'import os; os.fork()': 'trace_error',
    'import socket; socket.socket()': 'trace_error', 'import os; os.kill(os.getppid(), 9)': 'trace_error',
    'while True: torch.mm(x[:64, :64], x[:64, :64])': 'timeout', 'y = [torch.empty(1 << 40, device="cuda")]': 'trace_error'}


def free_bytes(): return torch.cuda.mem_get_info()[0]


@pytest.fixture(scope='module')
def beside():
    """(run → its record, bytes of the device that are gone): attacks four at a time, and beside them what runs itself; never
    beside a test of a clock, which finds that the card is not its own."""
    torch.zeros(1, device='cuda')
    before = free_bytes()
    def one(attack):
        text = SOFTMAX.replace('return', f'{attack}\n    return').replace('def kernel(x): ', 'def kernel(x):\n    ')
        return self_run(Kernel(text), 'softmax', seeds=1, limits=Limits(seconds=12))
    def texts(): return {text: self_run(Kernel(text), 'softmax', seeds=2, samples=20) for text in (SOFTMAX, CUDA)}
    with ThreadPoolExecutor(5) as pool:
        ran = pool.submit(texts)
        return dict(zip(ATTACKS, pool.map(one, ATTACKS))) | ran.result(), before - free_bytes()


@pytest.mark.parametrize('name', WORK)
def test_torch_does_its_part_in_the_graph(name):
    text, reference = WORK[name]
    c = compile_submission(MIXED.format(work=text), SPECS, chip=f'sm_{CudaDriver().capability}')
    asked = order_of([c.plan], [[c.binaries[k].cubin for k in range(len(c.plan.kernels))]], seconds=1, most=20)
    found = launch(asked, 120)
    print(name, found)
    assert found.status == 'ran', str(found)
    told = found.data['plans'][0]['library']
    assert told['graph'] and 0 < told['share'] < 1, told
    rng = np.random.default_rng(asked.seeds[0][0])
    data = {k: drawn(b, rng) for k, b in enumerate(c.plan.buffers) if b.role != 'scratch'}
    x, w = (torch.from_numpy(view_array(v, data[v.buffer][v.offset:]).copy()).double() for v in c.plan.inputs)
    want = reference(x, w).numpy()
    got = np.frombuffer(found.outputs[0][0][0], 'float32').reshape(want.shape)
    # TF32 by torch's default; float16; exponentials of sums of a thousand terms
    allowed = {'a convolution': 3e-3, 'sums and copies': 3e-3, 'softmax between kernels': 5e-5}.get(name, 1e-5)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < allowed


@pytest.mark.parametrize('text', [SOFTMAX, CUDA], ids=['torch', 'NVRTC'])
def test_a_submission_runs_itself_behind_walls(text, beside):
    e = beside[0][text]
    print(e)
    assert e.status == 'self_run' and e.device == 'cuda' and len(e.samples_us) == 20, str(e)
    assert 'seccomp' in e.layers and any(layer.startswith('landlock') for layer in e.layers)


@pytest.mark.parametrize('attack', ATTACKS)
def test_an_attack_ends(attack, beside):
    e = beside[0][attack]
    assert e.status == ATTACKS[attack] and not e.samples_us, str(e)


def test_attacks_leave_nothing_on_the_device(beside):
    assert beside[1] < 64 << 20
    assert self_run(Kernel(SOFTMAX), 'softmax', seeds=1, samples=3).status == 'self_run'


def test_host_code_by_load_inline_runs_behind_walls(inline):
    "Compiled once; the second run, which is wrong, loads what stands."
    e, wrong = inline.result()
    print(e)
    assert (e.status, e.device, len(e.samples_us), e.asked['modules']) == ('self_run', 'cuda', 20, 1), str(e)
    assert 'seccomp' in e.layers and any(layer.startswith('landlock') for layer in e.layers)
    assert wrong.status == 'wrong_result', str(wrong)
