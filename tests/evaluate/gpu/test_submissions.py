"""GPU submissions that are wrong, or hostile: each ends in a status and a sentence with a line and a way out, and none
gets anything out of the child but a plan."""
import importlib.util
from dataclasses import replace

import pytest
pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.evaluate.gpu import toolchain
from kernel_lab.evaluate.gpu.compiling import GpuCompiled, compile_plan, compile_submission
from kernel_lab.evaluate.gpu.planning import GPU_LIMITS, plan_submission
from kernel_lab.gpu.plan.launch_plan import LaunchPlan
from kernel_lab.gpu.record.nvrtc import nvrtc_path

HEAD = '''import torch
import triton
import triton.language as tl

@triton.jit
def add(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.load(x + k, mask=k < n) + 1, mask=k < n)

'''
GOOD = HEAD + '''def kernel(x):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out
'''
SPECS = [{'shape': [1 << 16], 'dtype': 'float32'}]


def wrapped(*lines, before=''):
    "A submission whose wrapper has these lines."
    return HEAD + before + 'def kernel(x):\n    out = torch.empty_like(x)\n' + ''.join(f'    {l}\n' for l in lines)


LAUNCH = 'add[(64,)](x, out, x.numel(), BLOCK=1024)'
WRONG = {
    'no text': ('', 'entry', 'no entry'),
    'not Python': ('def kernel(x:', 'parse', 'does not parse'),
    'no kernel': ('def kernel(x): return x * 2', 'entry', 'torch did all of it: aten.mul'),
    'two entries': (GOOD + 'class ModelNew(torch.nn.Module):\n    def forward(self, x): return kernel(x)\n', 'entry', 'more than one entry'),
    'a million launches': (wrapped(f'for _ in range(10**6): {LAUNCH}', 'return out'), 'limit', 'line 12: the submission has too many steps'),
    'a million tensors': (wrapped('a = [torch.empty(3) for _ in range(10**6)]', LAUNCH, 'return out'), 'limit', 'line 12: the submission has too many tensors'),
    'an empty grid': (wrapped('add[(0,)](x, out, 3, BLOCK=1024)', 'return out'), 'limit', 'line 12: the grid has 0 blocks'),
    'a huge grid': (wrapped('add[(2**31,)](x, out, 3, BLOCK=1024)', 'return out'), 'limit', 'line 12: the grid has 2,147,483,648 blocks'),
    'a grid of no numbers': (wrapped('add["ab"](x, out, 3, BLOCK=1024)', 'return out'), 'limit', 'line 12: a size of the grid'),
    'a value': (wrapped(LAUNCH, 'return out if out[0] > 0 else x'), 'unsupported', 'line 13: torch.Tensor.__bool__ needs the values'),
    'a length by values': (wrapped(LAUNCH, 'return out[out > 0]'), 'unsupported', 'line 13'),
    'an address': (wrapped('print(x.data_ptr())', LAUNCH, 'return out'), 'unsupported', 'line 12: torch.Tensor.data_ptr'),
    'from the host': (wrapped('y = torch.tensor([1., 2.])', LAUNCH, 'return out'), 'unsupported', 'line 12: torch.tensor brings values'),
    'a stream': (wrapped('s = torch.cuda.Stream()', LAUNCH, 'return out'), 'unsupported', 'line 12: a plan is one stream'),
    'a clock': (wrapped('t = triton.testing.do_bench(lambda: None)', LAUNCH, 'return out'), 'trace', 'line 12'),
    'C++ for the host': ('from torch.utils.cpp_extension import load_inline\n' + GOOD, 'unsupported', 'line 1: the submission compiles C++'),
    'a block of 1000': (GOOD.replace('BLOCK=1024', 'BLOCK=1000'), 'trace', "line 7: "),
    'a name that is none': (GOOD.replace('tl.load', 'tl.lode'), 'trace', 'line 8'),
    'no tensor returned': (wrapped(LAUNCH, 'return None'), 'entry', 'returns NoneType'),
    'too few inputs': (GOOD.replace('def kernel(x)', 'def kernel(x, y)'), 'entry', 'the entry takes (x, y), and got 1 input'),
    'a NUL byte': (GOOD.replace('+ 1, mask', '+ \0 1, mask'), 'parse', 'line 8: the kernel does not parse: it has a NUL byte'),
    'a text of a megabyte': (GOOD + '#' * (1 << 20), 'limit', 'are inputs of a kernel'),
    'a bare file of CUDA': ('extern "C" __global__ void add(float* x) { x[0] = 1; }', 'parse', 'A submission is a Python file with CUDA C++'),
    'an assertion of its own': (GOOD.replace('    k = tl', '    tl.static_assert(BLOCK == 7)\n    k = tl', 1), 'trace', 'with tl.static_assert'),
    'a file in inline assembly': (GOOD.replace('tl.load(x + k, mask=k < n) + 1', "tl.inline_asm_elementwise('.incbin \"/etc/passwd\"; mov.b32 $0, $1;', "
        "'=r,r', [tl.load(x + k, mask=k < n)], dtype=tl.float32, is_pure=True, pack=1)"), 'unsupported', "line 8: inline assembly has a directive that reads a file"),
    'an endless loop': (wrapped('while True: pass'), 'timeout', 'line 12: planning and compiling'),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', WRONG)
def test_bad_input_is_answered(name):
    source, kind, says = WRONG[name]
    found, _ = plan_submission(source, SPECS, limits=replace(GPU_LIMITS, seconds=4 if kind == 'timeout' else 60))
    assert isinstance(found, KernelError) and found.kind == kind and says in str(found), str(found)


def test_an_endless_compile_has_a_deadline_and_a_line():
    source = HEAD + '''@triton.jit
def product(a, c, K, M: tl.constexpr, W: tl.constexpr):
    m, acc = tl.arange(0, M), tl.zeros((M, M), tl.float32)
    for k0 in range(0, K, W):
        t = tl.load(a + m[:, None] * K + k0 + tl.arange(0, W)[None, :])
        acc += tl.dot(t, tl.trans(t), input_precision='ieee')
    tl.store(c + m[:, None] * M + m[None, :], acc)

def kernel(x):
    out = torch.empty(256, 256)
    product[(1,)](x, out, 256, M=256, W=64)
    return out
'''
    found, _ = plan_submission(source, SPECS, limits=replace(GPU_LIMITS, seconds=3))
    assert isinstance(found, KernelError) and found.kind == 'timeout' and found.line == 20 and 'smaller tiles' in found.hint, str(found)


def test_buffers_larger_than_the_card():
    found = compile_submission(wrapped('out = torch.empty(50 << 30)', LAUNCH, 'return out'), SPECS)
    assert found.status == 'limit' and found.errors[0].line == 12 and found.errors[0].value == '200 GiB', str(found)


def test_torch_that_does_part_of_the_work_is_named():
    found = compile_submission(wrapped(LAUNCH, 'return torch.softmax(out, 0)'), SPECS)
    assert (found.status, [c.line for c in found.plan.library_calls]) == ('fallback', [13])


def test_without_the_extra_or_the_assembler(monkeypatch):
    plan, _ = plan_submission(GOOD, SPECS)
    with monkeypatch.context() as m:
        m.setattr(importlib.util, 'find_spec', lambda name: None)
        with pytest.raises(UsageError, match=r"kernel-lab\[gpu\]"): plan_submission(GOOD, SPECS)
        m.setattr(toolchain.shutil, 'which', lambda name, path=None: None)
        with pytest.raises(UsageError, match='ptxas is not installed'): compile_plan(plan)


# --- attacks: each would win against a harness that runs the submission where time is taken ---

HIDE = '''import torch.utils._python_dispatch as d
def hidden(f):
    with d._disable_current_modes(): return f()
'''
ATTACKS = {
    'torch patched': wrapped('torch.empty_like = lambda t: t', LAUNCH, 'return out'),
    'a cached answer': wrapped(LAUNCH, 'return out', before='memo = {}\n'),
    'a thread': wrapped('import threading', 'threading.Thread(target=lambda: x + 1).start()', LAUNCH, 'return out'),
    'recorder replaced': wrapped('import kernel_lab.gpu.record.recording as r', 'r.Recording.step = lambda self, s: None', LAUNCH, 'return out'),
    'a tuned hook': wrapped('add[(64,)](x, out, 3, BLOCK=1024)', 'return out').replace(
        '@triton.jit', "@triton.autotune([triton.Config({}, pre_hook=lambda a: a['out'].fill_(1))], key=[])\n@triton.jit", 1),
}


@pytest.mark.parametrize('name', ATTACKS)
def test_an_attack_ends_as_an_error_or_as_an_ordinary_plan(name):
    found, _ = plan_submission(ATTACKS[name], SPECS)
    if isinstance(found, KernelError): return
    assert {s.kernel for l in found.launches for s in l.alternatives} == {0} and found.inputs == found.inputs


def test_what_is_hidden_from_the_recorder_did_not_happen():
    "The operation leaves no step, so what it returns was written by nobody: the launcher would find poison there."
    found, _ = plan_submission(wrapped(LAUNCH, 'return hidden(lambda: out * 2)', before=HIDE), SPECS)
    assert isinstance(found, KernelError) or compile_plan(found).errors[0].kind == 'uninitialised', str(found)


FORGED = '''import json, os
def kernel(x):
    os.write(3, ('P' + {text!r}).encode())
    os._exit(0)
'''


@pytest.mark.parametrize('change, says', [
    (lambda t: t, None), (lambda t: t.replace('.visible .entry', '#include \\"/etc/passwd\\"\\n.visible .entry'), 'preprocessor'),
    (lambda t: t.replace('.visible .entry', '.file 9 \\"/etc/shadow\\"\\n.visible .entry'), 'a file with a folder'),
    (lambda t: t.replace('"grid":[64,1,1]', '"grid":[2147483648,1,1]'), 'whole number'),
    (lambda t: t.replace('"bytes":262144', '"bytes":4'), 'ends outside'), (lambda t: t[:-1], 'not valid'), (lambda t: '', 'not valid')])
def test_a_forged_plan_is_a_plan_or_refused(change, says):
    "A child may answer what it likes. A valid plan is what it submits; it is launched as it stands, by others."
    text = plan_submission(GOOD, SPECS)[0].to_json()
    found, _ = plan_submission(FORGED.format(text=change(text)), SPECS)
    if says is None: assert isinstance(found, LaunchPlan) and found.source.startswith('import json')
    else: assert isinstance(found, KernelError) and found.kind == 'invalid' and says in str(found), str(found)


@pytest.mark.parametrize('line', [
    "open('/etc/passwd').read()", "open('/tmp/x', 'w')", "__import__('socket').create_connection(('127.0.0.1', 9))",
    "__import__('os').kill(__import__('os').getppid(), 9)", "__import__('subprocess').run(['true'])",
    "__import__('os').fork()"])
def test_the_walls_hold_with_torch_and_triton_inside(line):
    found, reply = plan_submission(wrapped(line, LAUNCH, 'return out'), SPECS)
    if reply.tier < 'S2': pytest.xfail(f'the sandbox is {reply.tier} here')
    assert isinstance(found, KernelError) and 'line 12' in str(found), str(found)


# --- what comes out ---

def test_the_same_submission_gives_the_same_plan_and_binary():
    one, two = (compile_submission(GOOD, SPECS) for _ in range(2))
    assert isinstance(one, GpuCompiled) and one.plan.hash == two.plan.hash
    assert one.binaries[0].hash == two.binaries[0].hash


@pytest.mark.parametrize('chip', ['sm_80', 'sm_90', 'sm_100'])
def test_every_chip_has_a_binary(chip):
    found = compile_submission(GOOD, SPECS, chip)
    assert found.status == 'compiled' and found.plan.chip == chip
    binary = found.binaries[0]
    assert 0 < binary.registers <= 255 and binary.mix['global load'] and binary.mix['global store'] and 8 in binary.lines()


def test_a_server_of_its_own_does_not_replace_that_of_other_kernels():
    from kernel_lab.evaluate.gpu.toolchain import GPU_MODULES
    from kernel_lab.evaluate.sandbox.run import sandbox
    assert sandbox(GPU_MODULES)[0] is not sandbox()[0] and sandbox()[0].modules == ()


# --- CUDA C++ ---

CUDA = '''import torch
TEXT = r"""
extern "C" __global__ void add(const float* x, float* y, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) y[k] = x[k] + 1;
}
"""
def kernel(x):
    y = torch.empty_like(x)
    torch.cuda._compile_kernel(TEXT, 'add')(grid=(256, 1, 1), block=(256, 1, 1), args=[x, y, x.numel()])
    return y
'''
needs_nvrtc = pytest.mark.skipif(nvrtc_path() is None, reason='NVRTC is not installed: the extra gpu')


@needs_nvrtc
def test_cuda_has_a_plan_and_a_binary_with_lines():
    found = compile_submission(CUDA, SPECS)
    assert isinstance(found, GpuCompiled) and (found.status, found.plan.target) == ('compiled', 'cuda'), str(found)
    assert {4, 5} <= {*found.binaries[0].lines()} and found.plan.versions['nvrtc'] == '12.8'
    assert LaunchPlan.from_json(found.plan.to_json()) == found.plan


@needs_nvrtc
@pytest.mark.parametrize('change, says', [
    (('extern "C"', '#include "/etc/passwd"\nextern "C"'), 'line 3'), (('extern "C"', '#include </proc/self/environ>\nextern "C"'), 'line 3'),
    (('y[k] = x[k] + 1;', 'asm(".incbin \\"/etc/passwd\\";");'), "line 5: inline assembly has a directive that reads a file"), (('y[k] = x[k] + 1;', 'asm("#include \\"/etc/passwd\\"");'), 'line 5: inline assembly has a line for the preprocessor'),
    (('y[k] = x[k] + 1;', 'asm(".inc" "bin \\"/etc/passwd\\";");'), 'line 5: inline assembly'), (('extern "C"', '#include <vector>\nextern "C"'), "CUDA's own headers are there"),
    (('r"""', '"""\\0'), 'has a NUL byte on its line 1'), (("TEXT, 'add')", "TEXT.encode(), 'add')"), 'the text of a CUDA kernel is of type bytes'),
    (('extern "C"', '#include <cuda_fp8.h>\nextern "C"'), None), (("int n) {", "int n) {\n#error stop\n"), '#error directive: stop'),
    (('y[k] = x[k] + 1;', 'y[k] = z[k];'), 'line 5'), (("'add')", "'sub')"), 'NVRTC does not compile'), (('block=(256', 'block=(4096'), 'the block is'),
    (("TEXT, 'add')", "TEXT, 'add', nvcc_options=['-I/etc'])"), 'not admitted'), (('float* y', 'float* y, int m'), 'takes other arguments'),
    (('{\n    int k', '{\n#pragma message "x"\n    while (true) {}\n    int k'), None)])
def test_bad_cuda_is_answered_and_reads_nothing(change, says):
    found = compile_submission(CUDA.replace(*change), SPECS, limits=replace(GPU_LIMITS, seconds=20))
    assert 'root:' not in str(found) and 'SECRET' not in str(found)
    if says: assert isinstance(found, KernelError) and says in str(found), str(found)
    else: assert isinstance(found, GpuCompiled | KernelError)
    if isinstance(found, KernelError): assert found.kind not in ('crash', 'invalid') and found.line, str(found)


@needs_nvrtc
def test_cuda_may_include_the_headers_of_its_toolkit():
    found = compile_submission(CUDA.replace('extern "C"', '#include <cuda_fp16.h>\n#include <mma.h>\n#include <stdint.h>\nextern "C"').replace(
        'y[k] = x[k] + 1;', 'y[k] = __half2float(__hadd(__float2half(x[k]), __half(1.0f)));').replace('int n)', 'int32_t n)'), SPECS)
    assert isinstance(found, GpuCompiled) and found.binaries[0].kernel.line == 6 and 8 in found.binaries[0].lines(), found


@needs_nvrtc
def test_two_kernels_of_one_text_have_a_binary_each():
    both = CUDA.replace('"""\ndef', 'extern "C" __global__ void twice(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] *= 2; }\n"""\ndef')
    both = both.replace('    return y', "    torch.cuda._compile_kernel(TEXT, 'twice')(args=[y, 3], block=(32, 1, 1))\n    return y")
    found = compile_submission(both, SPECS)
    assert isinstance(found, GpuCompiled), found
    assert [b.kernel.name for b in found.binaries.values()] == ['add', 'twice'] and len({len(b.sass) for b in found.binaries.values()}) == 2


# --- modules ---

NORM = '''import torch
import triton
import triton.language as tl
@triton.jit
def scale(x, mean, out, n, c, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.load(x + k, mask=k < n) - tl.load(mean + k % c, mask=k < n), mask=k < n)
class ModelNew(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bn = torch.nn.BatchNorm1d(c)
        self.ones = torch.ones(c)
    def forward(self, x):
        out = torch.empty_like(x)
        scale[(triton.cdiv(x.numel(), 1024),)](x, self.bn.running_mean, out, x.numel(), x.shape[1], BLOCK=1024)
        return out
'''


def test_a_module_may_hold_a_layer_that_counts_its_batches():
    found, _ = plan_submission(NORM, [{'shape': [64, 32], 'dtype': 'float32'}], init=[32])
    assert isinstance(found, LaunchPlan), found
    roles = {b.name: b.role for b in found.buffers}
    assert roles['bn.running_mean'] == roles['bn.num_batches_tracked'] == 'parameter'


@pytest.mark.parametrize('made', ['torch.ones(c)', 'torch.tensor([1.0] * c)', 'torch.full((c,), 2.0)'])
def test_a_tensor_of_the_constructor_that_is_not_registered_has_no_value(made):
    source = NORM.replace('torch.ones(c)', made).replace('self.bn.running_mean', 'self.ones')
    found, _ = plan_submission(source, [{'shape': [64, 32], 'dtype': 'float32'}], init=[32])
    assert isinstance(found, KernelError) and 'self.ones was made in the constructor' in str(found), found
    kept = source.replace(f'self.ones = {made}', f"self.register_buffer('ones', {made})")
    assert isinstance(plan_submission(kept, [{'shape': [64, 32], 'dtype': 'float32'}], init=[32])[0], LaunchPlan)


@pytest.mark.parametrize('made', ['torch.tensor([1.0] * 32)', 'torch.as_tensor([1.0] * 32)', 'torch.Tensor([1.0] * 32)', 'x.new_tensor([1.0] * 32)',
                                  'torch.frombuffer(bytearray(128), dtype=torch.float32)', '__import__("numpy").ones(32, "float32")'])
def test_numbers_of_the_host_have_no_way_into_a_plan(made):
    source = NORM.replace('self.bn.running_mean', made if 'numpy' not in made else f'torch.from_numpy({made})')
    found, _ = plan_submission(source, [{'shape': [64, 32], 'dtype': 'float32'}], init=[32])
    assert isinstance(found, KernelError) and 'brings values from the host' in str(found) and found.line == 15, found


@pytest.mark.parametrize('made, used', [
    ('[torch.ones(c)]', 'self.ones[0]'), ('type("Box", (), {})(); self.ones.t = torch.tensor([1.0] * c)', 'self.ones.t'),
    ('(lambda t: lambda: t)(torch.full((c,), 2.0))', 'self.ones()')])
def test_a_tensor_of_the_constructor_cannot_hide_in_an_object(made, used):
    source = NORM.replace('torch.ones(c)', made).replace('self.bn.running_mean', used)
    found, _ = plan_submission(source, [{'shape': [64, 32], 'dtype': 'float32'}], init=[32])
    assert isinstance(found, KernelError) and 'was made in the constructor' in str(found), found


@pytest.mark.parametrize('made', ['torch.Tensor([1.0] * c)', 'torch.from_numpy(__import__("numpy").ones(c, "float32"))',
                                  'torch.as_tensor(__import__("numpy").ones(c, "float32"))'])
def test_a_buffer_of_a_module_may_be_made_of_numbers_of_the_host(made):
    source = NORM.replace('self.ones = torch.ones(c)', f"self.register_buffer('ones', {made})").replace('self.bn.running_mean', 'self.ones')
    found, _ = plan_submission(source, [{'shape': [64, 32], 'dtype': 'float32'}], init=[32])
    assert isinstance(found, LaunchPlan) and {b.name: b.role for b in found.buffers}['ones'] == 'parameter', found


def test_what_a_compiler_warns_of_is_told_with_its_line():
    found = compile_submission(CUDA.replace('int k =', 'int unused; int k ='), [{'shape': [1000], 'dtype': 'float32'}])
    assert found.status == 'compiled' and found.notes()[0] == 'line 4: NVRTC warns: variable "unused" was declared but never referenced', found.notes()
    read = LaunchPlan.from_json(found.plan.to_json())
    assert read.warnings == found.plan.warnings and read.hash == found.plan.hash
    assert 'warnings' not in compile_submission(CUDA, [{'shape': [1000], 'dtype': 'float32'}]).plan.to_json()
    with pytest.raises(KernelError): LaunchPlan.from_json(found.plan.to_json().replace('"warnings":["line', '"warnings":[7,"line'))
