"""CUDA C++ compiled by nvcc: the way of a text from the confined child to the compiler and back, with a stand-in for
nvcc that answers as it does; and by nvcc itself, where a CUDA toolkit is installed."""
import json
import re
import time
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("nvidia", reason="NVRTC is not installed")

from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.evaluate.gpu import nvcc, planning
from kernel_lab.evaluate.gpu.compiling import compile_submission
from kernel_lab.evaluate.gpu.nvcc import compile_by_nvcc, nvcc_path
from kernel_lab.evaluate.gpu.planning import GPU_LIMITS, plan_submission
from kernel_lab.evaluate.gpu.toolchain import ToolRun
from kernel_lab.gpu.chip.gpu_chips import GPUS
from kernel_lab.gpu.record.nvrtc import compile_cuda

SUM = '''import torch
TEXT = r"""
template <class T> __device__ T half_of(T x) { return x * T(0.5); }
template <class T> __global__ void halves(const T* x, T* out, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = half_of(half_of(x[k])) + half_of(x[k]);
}
"""
def kernel(x):
    out = torch.empty_like(x)
    made = torch.cuda._compile_kernel(TEXT, "halves<float>")
    made(grid=((x.numel() + 255) // 256, 1, 1), block=(256, 1, 1), args=[x, out, x.numel()])
    return out
'''
SPECS = [{'shape': [4096], 'dtype': 'float32'}]
needs_nvcc = pytest.mark.skipif(nvcc_path() is None, reason="no CUDA toolkit is installed")


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """What nvcc would answer: PTX of NVRTC with the address of the kernel that was asked for, or an error; a list of
    the texts that it was given."""
    asked = []

    def run(name, words, inputs, outputs, seconds, folder, reach):
        whole = inputs['kernel.cu'].decode()
        text, _, line = whole.partition('\n#line 1 "<entry>"\n')
        wanted = re.search(r'\(const void\*\)\((.*)\); }', line)[1]
        asked.append(text)
        ptx, entry, log = compile_cuda(text, wanted, GPUS['sm_90'])
        if ptx is None: return ToolRun(2, '', log, {'kernel.ptx': b''}, ())
        head, cut, rest = ptx.partition('.address_size 64\n')
        told = (f'// Cuda compilation tools, release 13.0, V13.0.88\n{head}{cut}.visible .entry {entry}\n(\n\t.param .u64 a\n)\n;\n'
                f'.global .align 8 .u64 kernel_lab_entry = {entry};\n{rest}')
        return ToolRun(0, '', '', {'kernel.ptx': told.encode()}, ())
    monkeypatch.setattr(nvcc, 'run_tool', run)
    for module in nvcc, planning: monkeypatch.setattr(module, 'nvcc_path', lambda: tmp_path / 'bin' / 'nvcc')
    return asked


def test_functions_that_become_part_of_a_kernel_assemble_and_keep_their_lines():
    found = compile_submission(SUM, SPECS)
    assert found.status == 'compiled', found
    assert {3, 6} <= set(found.binaries[0].lines())


def test_a_text_goes_to_nvcc_and_comes_back(stand_in):
    plan, _ = plan_submission(SUM, SPECS, compiler='nvcc')
    by_nvrtc, _ = plan_submission(SUM, SPECS)
    assert plan.versions['nvcc'] == '13.0.88' and 'nvrtc' not in plan.versions and 'nvrtc' in by_nvrtc.versions
    assert len(stand_in) == 1 and 'kernel_lab_entry' not in plan.kernels[0].ptx
    one, other = plan.kernels[0], by_nvrtc.kernels[0]
    assert (one.name, one.entry, one.block, one.params, one.line) == (other.name, other.entry, other.block, other.params, other.line)
    assert [step for step in plan.steps] == [step for step in by_nvrtc.steps]


def test_nvcc_is_taken_where_it_is_asked_for_or_alone(stand_in, monkeypatch):
    assert planning.cuda_compiler() == 'nvrtc' and planning.cuda_compiler('nvcc') == 'nvcc'
    monkeypatch.setenv('KERNEL_LAB_CUDA_COMPILER', 'nvcc')
    assert planning.cuda_compiler() == 'nvcc' and planning.cuda_compiler('nvrtc') == 'nvrtc'
    assert plan_submission(SUM, SPECS)[0].versions['nvcc']
    monkeypatch.delenv('KERNEL_LAB_CUDA_COMPILER')
    monkeypatch.setattr(planning, 'nvrtc_path', lambda: None)
    assert planning.cuda_compiler() == 'nvcc' and plan_submission(SUM, SPECS)[0].versions['nvcc']
    with pytest.raises(UsageError, match='nvrtc, nvcc'): plan_submission(SUM, SPECS, compiler='clang')


def test_every_kernel_is_compiled_once_and_too_many_are_refused(stand_in, monkeypatch):
    twice = SUM.replace('    made(', '    again = torch.cuda._compile_kernel(TEXT.replace("0.5", "2"), "halves<double>")\n    made(')
    assert plan_submission(twice, SPECS, compiler='nvcc')[0].versions and len(stand_in) == 2
    monkeypatch.setattr(planning, 'MAX_NVCC_KERNELS', 3)
    changing = SUM.replace('compile_kernel(TEXT,', 'compile_kernel(TEXT + f"// {__import__(\'time\').time_ns()}",')
    found, _ = plan_submission(changing, SPECS, compiler='nvcc')
    assert isinstance(found, KernelError) and found.kind == 'limit' and 'the same each time' in str(found)
    monkeypatch.setattr(planning, 'MAX_NVCC_BYTES', 10)
    assert plan_submission(twice, SPECS, compiler='nvcc')[0].kind == 'limit'


def test_a_submission_that_catches_everything_is_compiled_all_the_same(stand_in):
    caught = SUM.replace('    made = torch', '    try: torch.cuda._compile_kernel(TEXT, "halves<double>")\n    except: pass\n    made = torch')
    plan, _ = plan_submission(caught, SPECS, compiler='nvcc')
    assert len(stand_in) == 2 and plan.versions['nvcc'], plan


def test_nvcc_is_not_started_where_nothing_closes_files_to_it(stand_in, monkeypatch):
    class Server: walls = ('seccomp',)
    monkeypatch.setattr(nvcc, 'sandbox', lambda modules: (Server, None))
    with pytest.raises(UsageError, match='no Landlock'): plan_submission(SUM, SPECS, compiler='nvcc')
    assert not stand_in


@pytest.mark.parametrize('log', ['nvcc fatal   : Unsupported gpu architecture', 'sh: 1: gcc: not found'])
def test_a_toolkit_that_cannot_work_is_not_the_kernels_fault(stand_in, monkeypatch, log):
    monkeypatch.setattr(nvcc, 'run_tool', lambda *a: ToolRun(1, '', log, {'kernel.ptx': b''}, ()))
    with pytest.raises(UsageError, match='nvcc cannot work here'): plan_submission(SUM, SPECS, compiler='nvcc')


def test_ptx_without_end_is_refused_at_once(stand_in, monkeypatch):
    many = b'.section .debug_a {\n' * 500_000
    monkeypatch.setattr(nvcc, 'run_tool', lambda *a: ToolRun(0, '', '', {'kernel.ptx': many + b'.global .u64 kernel_lab_entry = f;\n'}, ()))
    began = time.monotonic()
    assert isinstance(plan_submission(SUM, SPECS, compiler='nvcc')[0], KernelError) and time.monotonic() - began < 10
    monkeypatch.setattr(nvcc, 'MAX_PTX_BYTES', 1000)
    assert 'too much PTX' in str(plan_submission(SUM, SPECS, compiler='nvcc')[0])


@pytest.mark.parametrize('old, new, line, says', [
    ('int n) {', 'int n) {{', None, 'nvcc does not compile this'),
    ('return x * T', 'return z * T', 3, 'identifier "z" is undefined'),
    ('"halves<float>"', '"thirds<float>"', 11, 'nvcc does not compile this'),
    ('"halves<float>")', '"halves<float>", nvcc_options=["-I/etc"])', 11, "the option '-I/etc' is not admitted"),
])
def test_an_error_of_nvcc_has_its_line(stand_in, old, new, line, says):
    found, _ = plan_submission(SUM.replace(old, new), SPECS, compiler='nvcc')
    assert isinstance(found, KernelError) and says in str(found), found
    assert line is None or found.line == line


def test_what_nvcc_prints_is_read_as_well():
    from kernel_lab.gpu.record.cuda_kernels import _error
    text, source = 'int a;\n#include <no_such>\nint b;', 'x\nint a;\n#include <no_such>\nint b;'
    told = _error('nvcc', '<kernel>:3:10: fatal error: no_such: No such file or directory\n    3 | #include', text, source, 2)
    assert told.line == 3 and 'A kernel reads no files' in str(told)
    asked = _error('nvcc', '<entry>(1): error: identifier "f" is undefined', text, source, 2)
    assert 'the text has no such kernel' in str(asked)
    elsewhere = _error('nvcc', '/usr/include/c++/12/vector(30): error: bad', text, source, 2)
    assert 'in line 30 of vector' in str(elsewhere) and '/usr' not in str(elsewhere)


def test_a_toolkit_that_is_none_is_not_opened(monkeypatch, tmp_path):
    "Only a folder with the settings of nvcc is: a program of that name in somebody's home opens nothing."
    (tmp_path / 'bin').mkdir()
    program = tmp_path / 'bin' / 'nvcc'
    program.write_bytes(b'\x7fELF')
    program.chmod(0o755)
    monkeypatch.setattr(nvcc, 'find_tools', lambda name: [program])
    assert nvcc_path() is None
    with pytest.raises(UsageError, match='not on the PATH'): compile_by_nvcc('int a;', 'f', GPUS['sm_90'])
    (tmp_path / 'bin' / 'nvcc.profile').write_text('')
    assert nvcc_path() == program.resolve()


def test_a_child_cannot_order_what_is_no_text(monkeypatch):
    from kernel_lab.evaluate.sandbox.protocol import ChildReply
    for answer in ('{"compile"', '{"compile": []}', '{"compile": {"text": 1, "name": "f", "options": []}}', '{"compile": ' + '[' * 100_000,
                   json.dumps({'compile': {'text': 'a' * (1 << 21), 'name': 'f', 'options': []}})):
        monkeypatch.setattr(planning, 'run_job', lambda *a, **k: ChildReply(answer, None))
        monkeypatch.setattr(planning, 'require_cuda_compiler', lambda c: None)
        found, _ = plan_submission(SUM, SPECS, compiler='nvcc')
        assert isinstance(found, KernelError) and found.kind == 'invalid', found
        found, _ = plan_submission(SUM, SPECS, compiler='nvrtc')               # nobody asked for orders
        assert isinstance(found, KernelError) and found.kind == 'invalid', found


# --- nvcc itself ---

CUB = SUM.replace('TEXT = r"""', 'TEXT = r"""#include <cstdint>\n#include <cmath>').replace('half_of(half_of(x[k]))', 'std::exp(half_of(x[k]))')


@needs_nvcc
def test_nvcc_compiles_what_nvrtc_cannot_include():
    # the C++ library's cmath is one that NVRTC does not have: its own header of that name has constants only
    found = compile_submission(CUB.replace('cmath', 'limits'), SPECS)
    assert isinstance(found, KernelError) and 'NVRTC' in str(found)
    found = compile_submission(CUB, SPECS, compiler='nvcc')
    assert found.status == 'compiled' and re.fullmatch(r'\d+\.\d+\.\d+', found.plan.versions['nvcc']), found
    assert {4, 7} <= set(found.binaries[0].lines()) and found.binaries[0].spills == 0


@needs_nvcc
@pytest.mark.parametrize('line, says', [
    ('#include "/etc/passwd"', 'line 2'), ('#include "/proc/self/environ"', 'line 2'), ('#include <no/such.h>', 'line 2'),
    ('#include "/srv/ada/.bashrc"', 'line 2'), ('#error stop', 'stop'),
    ('__device__ void f() { asm(".incbin \\"/etc/passwd\\";"); }', 'incbin'),
])
def test_nvcc_reads_no_file_of_a_person(line, says):
    found, _ = plan_submission(SUM.replace('TEXT = r"""', f'TEXT = r"""{line}\n').replace('int k =', 'f(); int k =' if 'void f' in line else 'int k ='),
                               SPECS, compiler='nvcc')
    assert isinstance(found, KernelError) and says in str(found), found
    assert 'root:' not in str(found)


@needs_nvcc
def test_nvcc_has_the_headers_of_its_toolkit():
    text = SUM.replace('TEXT = r"""', 'TEXT = r"""#include <cub/block/block_reduce.cuh>').replace(
        'half_of(half_of(x[k])) +', 'cub::BlockReduce<T, 256>().Sum(x[k]) +')
    found = compile_submission(text, SPECS, compiler='nvcc')
    assert found.status == 'compiled' and found.binaries[0].mix.get('shuffle'), found


@needs_nvcc
def test_a_text_that_nvcc_never_ends_is_stopped():
    endless = ('template <class A, class B> struct P {};\ntemplate <int N, class T> struct D { typedef typename D<N - 1, P<T, T>>::type type; };\n'
               'template <class T> struct D<0, T> { typedef T type; };\ntemplate <class T> __device__ int size_of(T) { return sizeof(T); }\n')
    text = SUM.replace('TEXT = r"""', f'TEXT = r"""{endless}').replace('int k =', 'int z = size_of(D<26, int>::type()); int k =')
    found, _ = plan_submission(text, SPECS, limits=replace(GPU_LIMITS, seconds=3), compiler='nvcc')
    assert isinstance(found, KernelError) and found.kind == 'timeout' and 'templates that make more' in str(found), found
