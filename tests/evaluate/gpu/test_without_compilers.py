"""A machine without Triton, and one with Triton but without NVRTC, for real: an environment of links to all packages but
these, with a Python of its own, so that processes that the lab starts lack them too."""
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("nvidia", reason="NVRTC is not installed")

ROOT = Path(__file__).parents[3]
HINT = "pip install 'kernel-lab[gpu]'"
TRITON_KERNEL = '''import torch
import triton
import triton.language as tl

@triton.jit
def clip(x, out, n, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + k, tl.maximum(tl.load(x + k, mask=k < n, other=0.0), 0.0), mask=k < n)

def kernel(x):
    out = torch.empty_like(x)
    clip[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out
'''
CUDA_KERNEL = '''import torch
TEXT = r"""extern "C" __global__ void clip(const float* x, float* out, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = fmaxf(x[k], 0.0f);
}"""
def kernel(x):
    out = torch.empty_like(x)
    torch.cuda._compile_kernel(TEXT, 'clip')(grid=((x.numel() + 255) // 256, 1, 1), block=(256, 1, 1), args=[x, out, x.numel()])
    return out
'''
HIDDEN = CUDA_KERNEL.replace("torch.cuda._compile_kernel(", "getattr(torch.cuda, '_compile' + '_kernel')(").replace(
    "__global__", "__glo' 'bal__").replace('r"""', '("""').replace('}"""', '}""").replace("\' \'", "")')

ASK = """
import contextlib, io, json, os, sys
from pathlib import Path
from kernel_lab.cli.app import run
os.chdir(sys.argv[1])
found = {}
def cli(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try: code = run([*words])
        except SystemExit as e: code = e.code
    found[' '.join(words)] = [code, out.getvalue()]
model = '--model', 'openai:x', '--base-url', 'http://127.0.0.1:9'
for name in 'triton', 'cuda':
    cli('compile', f'in_{name}.py', '-i', 'float32[4096]', '--target', name)
    cli('evaluate', 'relu', f'in_{name}.py', '-w', 'small', '--target', name)
    cli('doctor', '--target', name)
    cli('optimize', 'relu', '--agent', 'react', '--target', name, '-w', 'small', *model)
    cli('bench', '--task', 'relu', '--agent', 'react', '--target', name, *model)
    if name in sys.argv[2:]: cli('mcp', '--target', name, '--task', 'relu')       # elsewhere it would serve
cli('compile', 'hidden.py', '-i', 'float32[4096]')
cli('doctor')
cli('tune', 'relu')
from kernel_lab.core.errors import LabError
def told(name, f):
    try: found[name] = [0, str(f())]
    except LabError as e: found[name] = [2, str(e)]
from kernel_lab.agents.engine.loop import AgentLoop
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.panels import GpuBench, show_gpu
for name in 'triton', 'cuda':
    model = ScriptedModel([])
    told(f'agent {name}', lambda: AgentLoop('relu', ReactAgent(model), 'small', store=False, target=name).step())
    found[f'asked {name}'] = [len(model.asked), '']
    bench = GpuBench('relu', 'small', name)
    bench.begin()
    found[f'bench {name}'] = [int(bench.busy), bench.message]
    told(f'show {name}', lambda: show_gpu(Path(f'in_{name}.py'), 'relu', 'small'))
bench.show_recorded('softmax of tiles')
found['recorded'] = [0, bench.panel.head.value]
from kernel_lab.evaluate.store.store import Store
found['kept'] = [len(Store().tried('relu', 'triton')), '']
found['kept cuda'] = [len(Store().tried('relu', 'cuda')), '']
print('FOUND' + json.dumps(found))
"""


def python_without(folder, *left_out):
    "An environment with links to every package but some → its Python. A package's distribution begins with its name."
    site = Path(sysconfig.get_path("purelib"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    mine = next((folder / "lib").glob("python*")) / "site-packages"
    for package in site.iterdir():
        if package.suffix == ".pth" or package.name.startswith((*left_out, "kernel_lab")): continue
        (mine / package.name).symlink_to(package)
    return folder / "bin" / "python"


def what_is_said(left_out, *missing):
    with tempfile.TemporaryDirectory(prefix="without-") as place:
        folder = Path(place)
        folder.chmod(0o755)                                # the user that a confined child becomes reads it
        for name, text in (("in_triton", TRITON_KERNEL), ("in_cuda", CUDA_KERNEL), ("hidden", HIDDEN)): (folder / f"{name}.py").write_text(text)
        python = python_without(folder / "env", left_out)
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
        kept |= {"CUDA_HOME": str(folder / "no toolkit"),     # whose nvcc would take NVRTC's place
                 "PATH": os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "nvcc").exists())}
        done = subprocess.run([python, "-c", ASK, place, *missing], capture_output=True, text=True, timeout=400, cwd=ROOT,
                              env={**kept, "PYTHONPATH": str(ROOT), "KERNEL_LAB_HOME": str(folder / "home"), "KERNEL_LAB_STORE": ""})
        assert "FOUND" in done.stdout, done.stdout + done.stderr
        return json.loads(done.stdout.partition("FOUND")[2])


def missing_everywhere(found, language, what):
    "Every way to compile a kernel in a language says what is missing and how to install it, once, in one sentence."
    for name, (code, said) in found.items():
        if language not in name or name.startswith(("asked", "kept")): continue
        assert HINT in said and said.count(HINT) == 1 and what in said, (name, said)
        assert "Traceback" not in said and "Error:" not in said and ".." not in said, (name, said)
        assert code in ((0, 1) if name.startswith(("bench " + language, "doctor")) else (2,)), (name, code)
    assert found[f"asked {language}"][0] == 0                       # no model was asked for a kernel that nothing compiles


@pytest.fixture(scope="module")
def no_triton(): return what_is_said("triton", "triton", "cuda")


@pytest.fixture(scope="module")
def no_nvrtc(): return what_is_said("nvidia", "cuda")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_without_triton_everything_says_so(no_triton, language): missing_everywhere(no_triton, language, "package triton")


def test_without_triton_tables_and_recorded_kernels_are_there(no_triton):
    code, said = no_triton["doctor"]
    assert code in (0, None) and "triton    missing: package triton" in said and "cuda      missing: package triton" in said
    assert "wrong result" in no_triton["recorded"][1] and HINT in no_triton["tune relu"][1]
    assert no_triton["kept"][0] == no_triton["kept cuda"][0] == 0                    # what was not asked is no result


@pytest.mark.slow
def test_without_nvrtc_cuda_says_so_and_triton_works(no_nvrtc):
    missing_everywhere({k: v for k, v in no_nvrtc.items() if "triton" not in k}, "cuda", "NVRTC")
    assert no_nvrtc["evaluate relu in_triton.py -w small --target triton"][0] == 0
    assert no_nvrtc["kept"][0] == 1 and no_nvrtc["kept cuda"][0] == 0                # a missing package is no verdict on a kernel
    code, said = no_nvrtc["compile hidden.py -i float32[4096]"]                      # found out in the child only
    assert code == 2 and HINT in said and "line" not in said, said
