"""Every library notebook runs from top to bottom, in this process (no Jupyter kernel); cells marked slow, gpu or
notest are left out, and so are the 38 longest pages, which take longer than the other 430: `make slow` runs these,
`make check` and `make docs ARGS=--changed` run them where they changed, and tests/ holds what their modules do."""
import os
import re
import subprocess
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
import check  # noqa: E402
import outputs  # noqa: E402

CONFIG = get_config()


def name(nb): return nb.relative_to(CONFIG.nbs_path).as_posix()


# the page: run in a kernel and in a browser by its own test; pages that carry their outputs: by the test that compares these
ELSEWHERE = {"lab.ipynb", *outputs.kept()}
NOTEBOOKS = [nb for nb in nbglob(CONFIG.nbs_path, as_path=True) if name(nb) not in ELSEWHERE]
# three seconds of a processor or more
LONG = {
    "hack_lab.ipynb", "2_nki/2_ir/01_nodes.ipynb", "2_nki/9_validate/03_nothing_is_free.ipynb",
    "3_gpu/3_record/05_submission.ipynb", "3_gpu/7_launch/07_launcher.ipynb", "3_gpu/7_launch/08_sanitizer.ipynb",
    "3_gpu/7_launch/09_counters.ipynb", "3_tasks/2_codegen/08_lowering_rules.ipynb",
    "3_tasks/2_codegen/11_topk_and_gather.ipynb", "3_tasks/2_codegen/14_lower.ipynb",
    "3_tasks/5_importers/03_isolate.ipynb", "3_tasks/5_importers/06_import_suite.ipynb",
    "3_tasks/7_synthesis/03_synthesize.ipynb", "3_tasks/7_synthesis/04_headroom.ipynb",
    "3_tasks/7_synthesis/06_gpu_tasks.ipynb", "4_targets/05_neuron.ipynb", "5_evaluate/1_records/04_provenance.ipynb",
    "5_evaluate/2_verification/04_verify.ipynb", "5_evaluate/3_gpu/02_nvcc.ipynb",
    "5_evaluate/3_gpu/04_compiling.ipynb", "5_evaluate/3_gpu/12_gpu_stages.ipynb",
    "5_evaluate/3_survey/00_quality_survey.ipynb", "5_evaluate/3_survey/01_time_table.ipynb",
    "5_evaluate/4_pool/01_ray_backend.ipynb", "5_evaluate/4_pool/02_dispatch.ipynb",
    "6_agents/0_models/04_bedrock.ipynb", "6_agents/2_rewrite/07_best_search.ipynb",
    "6_agents/3_patterns/09_library.ipynb", "6_agents/4_tools/05_gpu_kernels.ipynb",
    "6_puzzles/07_engine_puzzles.ipynb", "6_puzzles/08_reduction_puzzles.ipynb",
    "6_puzzles/09_attention_puzzles.ipynb", "7_cli/01_tasks.ipynb", "7_cli/02_runs.ipynb", "7_cli/04_evaluate.ipynb",
    "7_cli/1_agents/00_optimize.ipynb", "7_cli/1_agents/01_best.ipynb", "7_panels/13_lab.ipynb"}
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


def daily(nb): return pytest.param(nb, marks=pytest.mark.slow if name(nb) in LONG - outputs.CHANGED else ())


@pytest.mark.parametrize("nb", [daily(nb) for nb in sorted(NOTEBOOKS, key=name)], ids=name)
def test_notebook(nb, monkeypatch, tmp_path): run_cells(nb, monkeypatch, tmp_path, LEFT_OUT)


@pytest.mark.slow
@pytest.mark.parametrize("nb", [nb for nb in sorted(NOTEBOOKS, key=name) if "#| slow" in nb.read_text(encoding="utf-8")], ids=name)
def test_notebook_with_its_slow_cells(nb, monkeypatch, tmp_path): run_cells(nb, monkeypatch, tmp_path, NEVER)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) > 3 and LONG <= {name(nb) for nb in NOTEBOOKS}


def test_make_check_runs_a_changed_page_of_any_kind():
    "A short one, a long one, one that carries its outputs; the page itself has its own test."
    pages = ["1_core/00_errors.ipynb", "hack_lab.ipynb", "lessons/02_128_partitions.ipynb", "lab.ipynb"]
    found = [test for test in check.selected(pages) if "[" in test]
    env = {**os.environ, "CHANGED_PAGES": os.pathsep.join(pages)}
    said = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-qq", *found], cwd=CONFIG.config_path,
                          capture_output=True, text=True, env=env)
    assert said.returncode == 0 and sum(int(line.split(": ")[1]) for line in said.stdout.split("\n") if ": " in line) == 3, said
