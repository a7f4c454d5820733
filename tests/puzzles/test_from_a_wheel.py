"""Lessons and stories as somebody gets them who has the wheel and no checkout: every copy that `kernel-lab learn` writes
runs from top to bottom, in a folder of one's own."""
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from kernel_lab.nki.validate.score import kept_predictions
from kernel_lab.puzzles.student_copy import lesson_files, story_files

ROOT = Path(__file__).parents[2]

RUN = r"""
import json, os, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
path = Path(sys.argv[1])
os.chdir(path.parent)
shell = InteractiveShell.instance()
for n, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
    if cell["cell_type"] != "code": continue
    done = shell.run_cell("".join(cell["source"]))
    if not done.success: sys.exit(f"{path.name}, cell {n}: {done.error_before_exec or done.error_in_exec!r}")
import kernel_lab
print("\n" + kernel_lab.__file__)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of an environment with the wheel of this tree in it. What the lab depends on is that of the environment
    of the tests, whose own kernel_lab is not found there: it is a link, which only that environment follows."""
    room = tmp_path_factory.mktemp("wheel")
    source, made = room / "source", room / "venv"
    source.mkdir()
    for part in ("kernel_lab", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        subprocess.run(["cp", "-r", ROOT / part, source], check=True)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", room, source],
                   check=True, capture_output=True)
    venv.create(made, with_pip=False)
    python = made / "bin" / "python"
    own = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                              capture_output=True, text=True).stdout.strip())
    wheel, = room.glob("*.whl")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", own, wheel],
                   check=True, capture_output=True)
    (own / "dependencies.pth").write_text("\n".join(dict.fromkeys(sysconfig.get_path(n) for n in ("purelib", "platlib"))))
    return made


def told(installed, folder, *words):
    "What a Python of the environment prints, in a folder, without what the tests' environment sets."
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KERNEL_LAB", "PYTHON", "NUMBA", "JUPYTER"))}
    done = subprocess.run([installed / "bin" / "python", *words], cwd=folder, capture_output=True, text=True,
                          env={**kept, "KERNEL_LAB_HOME": str(folder / "home"), "KERNEL_LAB_STORE": ""}, timeout=600)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def opened(installed, tmp_path_factory):
    "The folder in which `kernel-lab learn` was called."
    folder = tmp_path_factory.mktemp("student")
    told(installed, folder, "-c", "from kernel_lab.cli.entry import start; start()", "learn")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f.name for f in lesson_files()), *(f"stories/{f.name}" for f in story_files())])
def test_every_copy_runs_outside_a_checkout(installed, opened, name):
    where = told(installed, opened, "-c", RUN, str(opened / "lessons" / name)).splitlines()[-1]
    assert Path(where).is_relative_to(installed.resolve()), where


def test_no_copy_reads_a_file_of_the_checkout():
    "What a copy opens by a relative path would have to lie beside it."
    for f in [*lesson_files(), *story_files()]:
        code = "\n".join("".join(c["source"]) for c in json.loads(f.read_text(encoding="utf-8"))["cells"]
                         if c["cell_type"] == "code")
        assert not re.findall(r"""["']\.\./[^"']*["']""", code), f.name


def test_the_predictions_of_the_paper_are_those_that_the_package_brings():
    kept = ROOT / "kernel_lab" / "nki" / "validate" / "predictions.csv"
    assert kept.read_bytes() == (ROOT / "paper" / "data" / "predictions.csv").read_bytes(), "copy the newer one"
    assert len(kept_predictions()) == len(kept.read_text().splitlines()) - 1
