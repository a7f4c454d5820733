"A person's own torch.py, triton.py or numpy.py in the current folder does not take the place of the package."
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernel_lab

ROOT = Path(kernel_lab.__file__).parents[1]
WRONG = "raise RuntimeError('the file in the current folder was imported')\n"
JUDGE = """
from kernel_lab.cli.gpu_rows import GPU_CANARY
from kernel_lab.evaluate import evaluate
from kernel_lab.tasks import get_task
from kernel_lab.tasks.model.workload import Kernel
task = get_task('relu')
small = task.smallest('float32')
for kernel in (task.first(small), *([Kernel(GPU_CANARY, target='triton')] if TRITON else [])):
    print(evaluate(kernel, task, small, seeds=1).status.value)
"""


def python(folder, text):
    "Python in a folder, which is the first place of its search path, as in a notebook."
    env = os.environ | {"PYTHONPATH": str(ROOT), "KERNEL_LAB_HOME": str(folder / "home"), "KERNEL_LAB_STORE": ""}
    return subprocess.run([sys.executable, "-c", text], cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton", "torch", "numpy"])
def test_a_file_in_the_current_folder_is_passed_over(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(WRONG)
    has_triton = importlib.util.find_spec("triton") is not None
    done = python(tmp_path, JUDGE.replace("TRITON", str(has_triton)))
    assert done.stdout.split() == ["correct"] * (1 + has_triton), done.stderr
    if importlib.util.find_spec(name): assert f"{tmp_path}/{name}.py has the name of the package {name}" in done.stderr


def test_a_file_that_was_imported_before_is_named(tmp_path):
    (tmp_path / "torch.py").write_text("mine = True\n")
    done = python(tmp_path, "import torch\nimport kernel_lab")
    assert done.returncode and f"{tmp_path}/torch.py was imported in place of the package torch" in done.stderr
    assert "rename the file" in done.stderr


def test_a_package_of_ones_own_stays(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("mine = True\n")
    assert python(tmp_path, "import kernel_lab, torch\nprint(torch.mine)").stdout.strip() == "True"
