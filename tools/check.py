"""What can be known in two minutes: lint, the house, unit tests, and the notebooks that differ from main. `make
check` calls it.

`python tools/check.py [BASE]` compares with a branch, tag or commit (main by default; what is not committed counts
as changed)."""
import os
import subprocess
import sys
from pathlib import Path

import outputs

ROOT = Path(__file__).parent.parent
UNIT = [
    "tests/project/test_house.py", "tests/project/test_project.py", "tests/nki/ir", "tests/nki/record",
    "tests/nki/lang", "tests/nki/checks", "tests/nki/timing", "tests/figures/test_figures.py",
    "tests/tasks/test_known_times.py"]
WORKERS = os.environ.get("JOBS", "2")


def changed_notebooks(base: str) -> list[str]:
    "Notebooks that differ from `base`, relative to nbs/; none where git or the base is missing."
    commands = (["git", "diff", "--name-only", "-z", base, "--",
                 "nbs"], ["git", "ls-files", "-z", "--others", "--exclude-standard", "nbs"])
    found = (subprocess.run(c, cwd=ROOT, capture_output=True, text=True).stdout.split("\0") for c in commands)
    return sorted({
        f.removeprefix("nbs/") for files in found for f in files if f.endswith(".ipynb") and (ROOT / f).exists()})


def selected(notebooks: list[str]) -> list[str]:
    "Arguments for pytest: the unit tests and a test for each changed notebook, of its outputs where it carries them."
    ran, kept = "test_notebooks.py::test_notebook", "test_outputs.py::test_outputs_in_git_are_those_of_today"
    carry = outputs.kept()
    return [*UNIT, *(f"tests/project/{kept if nb in carry else ran}[{nb}]" for nb in notebooks if nb != "lab.ipynb")]


if __name__ == "__main__":
    style = subprocess.run([sys.executable, "-m", "ruff", "check", "nbs", "kernel_lab", "tests", "tools", "benchmarks"],
                           cwd=ROOT)
    notebooks = changed_notebooks(*sys.argv[1:2] or ["main"])
    print(f"{len(notebooks)} notebooks changed", *notebooks, sep="\n  ")
    command = [sys.executable, "-m", "pytest", "-n", WORKERS, "--turn", "commit", *selected(notebooks)]
    env = {**os.environ, "CHANGED_PAGES": os.pathsep.join(notebooks)}
    sys.exit(style.returncode or subprocess.run(command, cwd=ROOT, env=env).returncode)
