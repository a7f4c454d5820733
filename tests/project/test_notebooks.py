"""Every library notebook runs from top to bottom, in this process (no Jupyter kernel); cells marked slow, gpu or
notest are left out."""
import re
import sys
import tempfile
from pathlib import Path

import pytest
from execnb.nbio import dict2nb
from execnb.shell import CaptureShell
from nbdev.config import get_config
from nbdev.doclinks import nbglob

from notebooks import as_test

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import outputs  # noqa: E402

CONFIG = get_config()


def name(nb): return nb.relative_to(CONFIG.nbs_path).as_posix()


# the page: run in a kernel and in a browser by its own test; pages that carry their outputs: by the test that compares these
ELSEWHERE = {"lab.ipynb", *outputs.kept()}
NOTEBOOKS = [nb for nb in nbglob(CONFIG.nbs_path, as_path=True) if name(nb) not in ELSEWHERE]
FLAGS = CONFIG.tst_flags.split()
LEFT_OUT = re.compile(rf"^#\|\s*({'|'.join(FLAGS)}|eval:\s*false)\s*$", re.M)
NEVER = re.compile(rf"^#\|\s*({'|'.join({*FLAGS} - {'slow'})}|eval:\s*false)\s*$", re.M)
NEEDS = re.compile(r"^#\|\s*needs:\s*(\w+)\s*$", re.M)          # a package of an extra


def run_cells(nb, monkeypatch, home, left_out):
    "Run a notebook's cells in this process but those that `left_out` matches."
    monkeypatch.setenv("KERNEL_LAB_HOME", str(home))
    monkeypatch.setenv("IN_TEST", "1")         # as nbdev sets it: a cell may ask whether it is tested
    for key in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"): monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(home))     # what a cell leaves behind goes with the test's folder
    monkeypatch.chdir(nb.parent)
    monkeypatch.syspath_prepend(CONFIG.config_path)
    for package in NEEDS.findall("\n".join(cell.source for cell in dict2nb(as_test(nb)).cells)):
        pytest.importorskip(package, reason=f"{package} is not installed")
    shell = CaptureShell(nb)
    for cell in dict2nb(as_test(nb)).cells:
        if cell.cell_type != "code" or left_out.search(cell.source): continue
        shell.cell(cell)
        if shell.exc: pytest.fail(f"{name(nb)}\n{shell.prettytb(fname=nb)}", pytrace=False)


@pytest.mark.parametrize("nb", sorted(NOTEBOOKS, key=name), ids=name)
def test_notebook(nb, monkeypatch, tmp_path): run_cells(nb, monkeypatch, tmp_path, LEFT_OUT)


@pytest.mark.slow
@pytest.mark.parametrize("nb", [nb for nb in sorted(NOTEBOOKS, key=name) if "#| slow" in nb.read_text(encoding="utf-8")], ids=name)
def test_notebook_with_its_slow_cells(nb, monkeypatch, tmp_path): run_cells(nb, monkeypatch, tmp_path, NEVER)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) > 3
