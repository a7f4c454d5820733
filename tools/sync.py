"""Make or refresh the percent views: nbs/X.ipynb ↔ src_nbs/X.py. The newer of a pair wins, so run this before
editing, and after.

Only this script pairs: it tells jupytext to look for its configuration here (tools/jupytext.toml), where JupyterLab
does not look."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def pairs():
    "Every notebook with the path of its view, and every view that has no notebook yet."
    for nb in sorted((ROOT / "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" not in nb.parts:
            yield nb, ROOT / "src_nbs" / nb.relative_to(ROOT / "nbs").with_suffix(".py")
    for view in sorted((ROOT / "src_nbs").rglob("*.py")):
        nb = ROOT / "nbs" / view.relative_to(ROOT / "src_nbs").with_suffix(".ipynb")
        if not nb.exists(): yield nb, view


if __name__ == "__main__":
    run = [sys.executable, "-m", "jupytext", "-q"]
    old = [str(nb) for nb, _ in pairs() if nb.exists()]
    new = [str(view) for nb, view in pairs() if not nb.exists()]
    how = dict(cwd=ROOT, check=True, env={**os.environ, "XDG_CONFIG_HOME": str(ROOT / "tools")})
    if old: subprocess.run([*run, "--sync", *old], **how)
    if new: subprocess.run([*run, "--set-kernel", "python3", "--sync", *new], **how)
    print(f"{len(old) + len(new)} notebooks in step with src_nbs/")
