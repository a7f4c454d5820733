"""C++ that a submission brings through torch's load_inline: compiled behind walls, loaded behind walls, and told with the line
of the submission where it is wrong. Plain C here, which compiles in a second; torch's headers in the slow run and on a card."""
import os
import shutil
import threading
import time

import pytest

pytest.importorskip('torch', reason='torch is not installed: the extra gpu')
from kernel_lab.core.errors import KernelError, stoppable
from kernel_lab.evaluate.gpu.nvcc import require_file_walls
from kernel_lab.evaluate.sandbox.protocol import Limits
from kernel_lab.evaluate.sandbox.run import sandbox_status
from kernel_lab.evaluate.self_run.extensions import build_extension, python_headers
from kernel_lab.evaluate.self_run.inline_calls import InlineCall
from kernel_lab.evaluate.self_run.run import self_run
from kernel_lab.gpu.chip.gpu_chips import get_gpu
from kernel_lab.tasks.model.workload import Kernel


def can_compile():
    from kernel_lab.core.errors import UsageError
    try: python_headers()
    except UsageError: return False
    return shutil.which('g++') is not None and 'landlock' in ' '.join(sandbox_status().layers)


pytestmark = [pytest.mark.skipif(not sandbox_status().safe, reason='this machine confines no kernels'),
              pytest.mark.skipif(not can_compile(), reason='this machine has no g++, or no Python.h that every user may read')]
PLAIN = r'''import torch
from torch.utils.cpp_extension import load_inline
TEXT = """#include <Python.h>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
static PyObject* one(PyObject*, PyObject*) {
    return PyFloat_FromDouble(1.0);
}
static PyMethodDef offered[] = {{"one", one, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef made = {PyModuleDef_HEAD_INIT, "plain", nullptr, -1, offered};
PyMODINIT_FUNC PyInit_plain() { return PyModule_Create(&made); }
"""
plain = load_inline(name='plain', cpp_sources=TEXT, no_implicit_headers=True, extra_cflags=['-O1', ''])
def kernel(x):
    return torch.softmax(x, -1) * plain.one()
'''


def ran(text, **more):
    return self_run(Kernel(text), 'softmax', 'small', device='cpu', seeds=2, samples=4, seconds=2, limits=Limits(seconds=60), **more)


def test_torch_finds_headers_beside_the_loader():
    "torch's call of NVRTC asks that module for them, with a text that says load_inline and with one that does not."
    asks = 'from torch.utils import cpp_extension; assert len(cpp_extension.include_paths("cuda")) > 1'
    for text in (PLAIN, 'import torch\ndef kernel(x):\n    return torch.softmax(x, -1)\n'):
        assert ran(text.replace('    return torch.softmax', f'    {asks}\n    return torch.softmax')).status == 'self_run'


def test_its_own_c_runs_behind_the_walls():
    e = ran(PLAIN)
    assert (e.status, e.asked['modules']) == ('self_run', 1), str(e)
    assert len(e.samples_us) == 4 and 'own word' in str(e)
    assert ran(PLAIN.replace('FromDouble(1.0)', 'FromDouble(2.0)')).status == 'wrong_result'


MODULE = PLAIN.replace("plain = load_inline(name='plain', cpp_sources=TEXT, no_implicit_headers=True, extra_cflags=['-O1', ''])\ndef kernel(x):\n", '''class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = load_inline('plain', [TEXT], no_implicit_headers=True)
    def forward(self, x):
''').replace('    return torch.softmax(x, -1) * plain', '        return torch.softmax(x, -1) * self.plain')


@pytest.mark.parametrize('text, status, says', [
    (MODULE, 'self_run', ''), (PLAIN.replace('return PyFloat', 'return PyFlat'), 'trace_error', 'line 10: cpp_sources, line 8: '),
    (PLAIN.replace('PyInit_plain', 'PyInit_other'), 'trace_error', 'PyInit_plain'), (PLAIN.replace("'-O1'", "'-fplugin=a.so'"), 'unsupported', 'not admitted'),
    (PLAIN.replace("'-O1'", "'-I/etc'"), 'unsupported', 'not admitted'), (PLAIN.replace("'plain', cpp", "'../plain', cpp"), 'unsupported', 'a name that is one of Python'),
    (PLAIN.replace('name=', 'sycl_sources="int x;", name='), 'unsupported', 'SYCL'), (PLAIN.replace('def kernel', 'plain.one()\ndef kernel'), 'unsupported', 'while the file is loaded'),
    (PLAIN.replace('def kernel(x):', 'def kernel(x):\n    load_inline("plain", TEXT + "//")'), 'unsupported', 'another text than before'),
    (PLAIN.replace('plain = ', 'plain = [load_inline("plain", str(k)) for k in range(8)] and '), 'limit_exceeded', 'compiles too much'),
    (PLAIN.replace('cpp_sources=TEXT', 'cuda_sources=TEXT, cpp_sources=TEXT'), 'unsupported', 'needs a card'),
    (PLAIN.replace('load_inline(name', 'torch.utils.cpp_extension.load(name'), 'unsupported', 'compiles files'),
    (PLAIN.replace('TEXT = ', 'TEXT = "x" * (1 << 20) + '), 'limit_exceeded', 'too long'),
    (PLAIN.replace('load_inline(name', 'load_inline(3, name'), 'trace_error', 'line'), (PLAIN.replace('plain = ', 'raise SystemExit\nplain = '), 'trace_error', ''),
    (PLAIN.replace('plain = ', 'while True: pass\nplain = '), 'timeout', 'too long')])
def test_every_end_is_a_status(text, status, says):
    limits = Limits(seconds=4 if status == 'timeout' else 60)
    e = self_run(Kernel(text), 'softmax', 'small', device='cpu', seeds=1, samples=2, seconds=1, limits=limits)
    assert e.status == status and says in str(e), str(e)
    assert bool(e.samples_us) == (status == 'self_run')


def beginning(test):
    "The submission whose module ends its process, before any of its functions is called, where a test holds."
    text = PLAIN.replace('static PyObject* one', f'__attribute__((constructor)) static void begin() {{ if ({test}) _exit(3); }}\nstatic PyObject* one')
    return text.replace('#include <fcntl.h>', '#include <fcntl.h>\n#include <csignal>')


@pytest.mark.parametrize('attack', [
    'fopen("/etc/passwd", "r")', 'fopen("/tmp/kernel-lab-was-here", "w")', 'socket(AF_INET, SOCK_STREAM, 0) >= 0', 'system("true") == 0', 'kill(getppid(), 0) == 0',
    *(pytest.param(a, marks=pytest.mark.slow) for a in ('fork() >= 0', 'popen("true", "r")', 'getenv("USER")', 'open("/proc/self/mem", O_RDWR) >= 0'))])
def test_native_code_reaches_nothing_as_it_is_loaded(attack):
    "One that gets through ends the process; one that is stopped goes on and is right."
    e = ran(beginning(attack))
    assert e.status == 'self_run', f'{attack}: {e}'
    assert not os.path.exists('/tmp/kernel-lab-was-here')


def test_what_gets_through_would_be_seen():
    assert ran(beginning('getenv("HOME")')).status == 'crashed'


@pytest.mark.parametrize('reads', ['#include "{}"', 'asm(".incbin \\"{}\\"");', '#if __has_include("{}")\n#error it is there\n#endif\n#error it is not'])
def test_the_compiler_reads_no_file_of_a_person(reads, tmp_path):
    "Neither its words nor the module hold what a file outside says."
    path = tmp_path / 'secret.h'
    path.write_text('int s3cr3t = ;\n')
    for p in (tmp_path, *tmp_path.parents):
        if p.stat().st_uid == os.getuid() and str(p).startswith('/tmp/'): p.chmod(0o755)
    call = InlineCall.of('plain', reads.format(path), no_implicit_headers=True)
    with pytest.raises(KernelError) as e: build_extension(call, '')
    assert 's3cr3t' not in str(e.value) and 'it is there' not in str(e.value), e.value


CUDA = '''__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
extern "C" void run(float* x) { twice<<<1, 32>>>(x); }
'''


@pytest.mark.skipif(shutil.which('nvcc') is None, reason='this machine has no CUDA toolkit')
def test_cuda_is_compiled_without_a_card_too():
    text = PLAIN.partition('TEXT = """')[2].partition('"""')[0]
    call = InlineCall.of('plain', text, CUDA, no_implicit_headers=True, extra_cuda_cflags=['--use_fast_math'])
    data = build_extension(call, '', get_gpu('sm_90'))
    assert data[:4] == b'\x7fELF' and b'sm_90' in data
    with pytest.raises(KernelError, match='cuda_sources, line 1'): build_extension(InlineCall.of('plain', text, CUDA.replace('*= 2', '*= y'), no_implicit_headers=True), '', get_gpu('sm_90'))


TORCH = '''import torch
from torch.utils.cpp_extension import load_inline
TEXT = """torch::Tensor soft(torch::Tensor x) {
    TORCH_CHECK(x.dim() == 2, "two axes are wanted");
    return torch::softmax(x, -1);
}"""
soft = load_inline('soft', TEXT, functions=['soft'], extra_cflags=['-O3'], verbose=True)
class ModelNew(torch.nn.Module):
    def forward(self, x): return soft.soft(x)
'''


def test_work_that_is_stopped_ends_its_compilers():
    "Half a minute of torch's headers, of which a moment passes."
    require_file_walls('g++', '')               # the sandbox has started
    stop, began = threading.Event(), time.monotonic()
    timer = threading.Timer(1.5, stop.set)
    timer.start()
    with pytest.raises(KeyboardInterrupt), stoppable(stop): build_extension(InlineCall.of('soft', 'torch::Tensor f(torch::Tensor x) { return x; }', functions='f'), '')
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_torch_is_called_from_its_c():
    e = ran(TORCH)
    assert (e.status, e.asked['modules']) == ('self_run', 1), str(e)
    e = ran(TORCH.replace('soft.soft(x)', 'soft.soft(x[None])'))
    assert e.status == 'trace_error' and 'two axes are wanted' in str(e)
    e = ran(TORCH.replace('softmax(x', 'softmaxx(x'))
    assert e.status == 'trace_error' and 'line 5: cpp_sources, line 3' in str(e)
