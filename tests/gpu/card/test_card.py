"""What only a card can say: kernels are right there, what leaves its memory is found, an endless one ends, no attack on the clock
wins, and a kernel against itself is alike. `make gpu-test` runs it; the samples of A/A and the table of attacks are printed, and
written to the file that KERNEL_LAB_GPU_REPORT names."""
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
sys.path.insert(0, str(Path(__file__).parent))
from attacks_on_card import ATTACKS, HONEST, SUMS, WINS, reference, specs_of
from gpu_gallery import HEAD, rowwise, text_of
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.gpu.compiling import compile_submission
from kernel_lab.gpu.clock.card_state import card_state
from kernel_lab.gpu.launch.cuda_driver import CudaDriver, why_no_gpu
from kernel_lab.gpu.launch.launcher import launch, order_of
from kernel_lab.gpu.launch.packing import drawn, view_array

pytestmark = [pytest.mark.card, pytest.mark.skipif(why_no_gpu() is not None, reason=f'{why_no_gpu()}: make gpu-test needs a card')]
CHIP = 'sm_90'
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
BAD = {
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


def task_of(name):
    task, workload, text = text_of(name)[:3]
    return task, workload, [{'shape': list(a.shape), 'dtype': str(a.dtype)} for a in task.draw(workload).values()], text


@pytest.fixture(scope='module')
def compiled(inline):
    "Name → what the compiler made of every text of this file, all at once, without the card."
    chip = f'sm_{CudaDriver().capability}'
    texts = {n: (task_of(n)[3], task_of(n)[2]) for n in PARITY}
    texts |= {n: (t, EVEN if 'each time' in n else FLAT) for n, (t, _, _) in BAD.items()}
    texts |= {a.name: (a.source, specs_of(a.task)) for a in ATTACKS}
    texts |= {'honest product': (HONEST, specs_of('product')), 'honest sums': (SUMS, specs_of('sums')), 'one row': (ROW, ROWS), 'eight rows': (EIGHT, ROWS),
              'twice': (ELEMENTWISE.format(value='v * 2', wide='', grid='triton.cdiv(n, 1024)'), BIG)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(texts, pool.map(lambda t: compile_submission(*t, chip=chip), texts.values())))


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


REPORT = {}


@pytest.fixture(scope='module', autouse=True)
def kept():
    "Samples and the table, printed and written."
    began = time.time()
    yield REPORT
    if place := os.environ.get('KERNEL_LAB_GPU_REPORT'):
        state = card_state()
        Path(place).write_text(json.dumps({'kind': 'measured', 'card': state.name if state else '', 'state': str(state), 'seconds': time.time() - began, **REPORT}))


@pytest.fixture(scope='module')
def launched(compiled, inline):
    "Name → (order, report) of everything that is not timed, several at once. What is timed comes later, alone."
    def one(name):
        if isinstance(compiled[name], KernelError): return None, compiled[name]
        asked = order(compiled[name], timed=False)
        return asked, launch(asked, 15 if BAD.get(name, ('', ''))[1] == 'timeout' else 60)
    names = [*PARITY, *BAD]
    with ThreadPoolExecutor(6) as pool: found = dict(zip(names, pool.map(one, names)))
    inline.result()
    return found


@pytest.mark.parametrize('name', PARITY)
def test_parity_with_eager_torch(name, compiled, launched):
    "Against float64, at most twice as far away as eager torch on the same card and inputs."
    import torch
    task, c, (asked, found) = task_of(name)[0], compiled[name], launched[name]
    assert asked and found.status == 'ran', str(found)
    arrays = [torch.from_numpy(x.copy()).cuda() for x in given(c.plan, asked.seeds[0][0])]
    with torch.no_grad():
        eager = task.reference(*arrays)
        want = task.reference(*[a.double() if a.is_floating_point() else a for a in arrays])
    eager, want = ([t.cpu().numpy() for t in (x if isinstance(x, (tuple, list)) else (x,))] for x in (eager, want))
    for got, theirs, exact in zip(answers(c.plan, found), eager, want):
        mine, limit = distance(got.reshape(exact.shape), exact), max(2 * distance(theirs, exact), 3e-7)
        REPORT.setdefault('parity', {})[name] = [mine, limit]
        assert mine <= limit, f'{name}: {mine:.1e}, and {limit:.1e} is allowed'


@pytest.mark.parametrize('name', BAD)
def test_what_is_wrong_is_a_status_and_the_next_order_runs(name, compiled, launched):
    _, status, says = BAD[name]
    asked, found = launched[name]
    assert asked, str(found)
    REPORT.setdefault('bad', {})[name] = [found.status, found.says]
    assert found.status == status and says in found.says, str(found)
    if status == 'timeout':
        again = launch(order(compiled['softmax, one pass'], timed=False), 60)
        assert again.status == 'ran', f'after {name}: {again}'


def test_eight_rows_a_program_spill_and_lose(compiled):
    one, eight = compiled['one row'], compiled['eight rows']
    assert eight.binaries[0].spills > 0 == one.binaries[0].spills
    found = launch(order(one, eight, seconds=2, most=40, profile=False), 100)
    REPORT['spills'] = [str(found.ratio), eight.binaries[0].spills, found.data.get('race')]
    assert found.status == 'ran' and found.ratio.verdict == 'faster', str(found)


def test_a_kernel_against_itself(compiled):
    found = launch(order(compiled['twice'], again=12, most=100, seconds=10), 100)
    REPORT['self'] = {'samples': found.data.get('self'), 'says': str(found.itself), 'floor_us': found.data['plans'][0].get('floor_us'),
                      'clocks': found.data['plans'][0].get('clocks'), 'host_us': found.data.get('host_us'), 'gbps': found.data.get('gbps')}
    print(found.itself)
    assert found.status == 'ran', str(found)
    assert found.itself.worst <= 0.003 and found.itself.covered >= 11, str(found.itself)
    assert np.median(found.data['self'][0][0]) >= 100


@pytest.fixture(scope='module')
def naive():
    "Name → what the harness says of every attack and of the honest kernels, one after the other."
    asked = [{'name': a.name, 'source': a.source, 'task': a.task, 'how': 'stale' if a.name.startswith('stale') else a.harness} for a in ATTACKS]
    asked += [{'name': f'honest {t}', 'source': s, 'task': t, 'how': 'events'} for t, s in (('product', HONEST), ('sums', SUMS))]
    done = subprocess.run([sys.executable, str(Path(__file__).with_name('attacks_on_card.py'))], input='\n'.join(map(json.dumps, asked)),
                          capture_output=True, text=True, timeout=150)
    return {r['name']: r for r in map(json.loads, done.stdout.splitlines())} | {'errors': done.stderr[-2000:]}


@pytest.fixture(scope='module')
def honest(compiled):
    "Task → µs of the honest kernel by the launcher."
    found = {t: launch(order(compiled[f'honest {t}'], seconds=3, most=60, profile=False), 60) for t in ('product', 'sums')}
    return {t: r.duration.us for t, r in found.items()}


def ended(attack, c, us):
    "How the lab ends an attack: words, '' where it won."
    if isinstance(c, KernelError): return f'refused: {c}'
    if c.status != 'compiled': return f'refused: {c.status}: {c.notes()[:2]}'
    asked = order(c, seconds=3, most=60, profile=False)
    found = launch(asked, 60)
    if found.status != 'ran': return f'{found.status}: {found.says}'
    import torch
    arrays = [torch.from_numpy(x.copy()).cuda() for x in given(c.plan, asked.seeds[0][0])]
    exact = reference(attack.task, *[a.double() for a in arrays]).cpu().numpy()
    theirs = distance(reference(attack.task, *arrays).cpu().numpy(), exact)
    mine = distance(answers(c.plan, found)[0], exact)
    if mine > 0.1: return f'wrong: {mine:.1e} away'
    if mine > max(2 * theirs, 3e-7): return f'loose: {mine:.1e} away, eager torch {theirs:.1e}'
    return f'takes as long: {found.duration.us:.1f} µs, the honest kernel {us:.1f}' if found.duration.us >= WINS * us else ''


@pytest.mark.parametrize('a', ATTACKS, ids=lambda a: a.name)
def test_attack_wins_naively_and_loses_here(a, compiled, naive, honest):
    seen, fair = naive.get(a.name, {}), naive[f'honest {a.task}']
    assert fair['passed'], naive['errors']
    says = ended(a, compiled[a.name], honest[a.task])
    REPORT.setdefault('attacks', {})[a.name] = {'naive': seen, 'fair_us': fair['us'], 'lab': says}
    print(f'{a.name}: naive {seen}, honest {fair["us"]:.1f} µs; lab: {says}')
    assert seen.get('passed'), f'the naive harness was not fooled: {seen} {naive["errors"]}'
    assert seen['us'] < WINS * fair['us'], f'the naive harness was not fooled: {seen}, honest {fair}'
    assert says.startswith(a.loses), says or 'it won'


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


@pytest.mark.parametrize('compiler, header', [('nvrtc', '<stdint.h>'), ('nvcc', '<cstdint>')])
def test_cuda_is_right_and_its_clocks_agree(compiler, header):
    "Its functions are made part of the kernels; a profiler prints the names of these as those of C++."
    from kernel_lab.evaluate.gpu.nvcc import nvcc_path
    if compiler == 'nvcc' and nvcc_path() is None: pytest.skip('this machine has no CUDA toolkit')
    found = compile_submission(CUDA.replace('HEADER', header), EVEN, f'sm_{CudaDriver().capability}', compiler=compiler)
    asked = order(found)
    report = launch(asked)
    assert report.status == 'ran', report
    x, = given(found.plan, asked.seeds[0][0])
    assert distance(answers(found.plan, report)[0], x.astype('float64') * 0.375) < 1e-7
