"""Make or refresh the percent views: nbs/X.ipynb ↔ src_nbs/X.py. The newer of a pair wins, so run this before
editing, and after.

Only this script pairs: it tells jupytext to look for its configuration here (tools/jupytext.toml), where JupyterLab
does not look."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KNOWN = ROOT / "src_nbs" / ".views"     # the views that had a notebook when they were last in step


def pairs():
    "Every notebook with the path of its view, and every view that has no notebook yet."
    for nb in sorted((ROOT / "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" not in nb.parts:
            yield nb, ROOT / "src_nbs" / nb.relative_to(ROOT / "nbs").with_suffix(".py")
    for view in sorted((ROOT / "src_nbs").rglob("*.py")):
        nb = ROOT / "nbs" / view.relative_to(ROOT / "src_nbs").with_suffix(".ipynb")
        if not nb.exists(): yield nb, view


def drop_stale() -> None:
    """Remove the views of notebooks that were renamed or removed since, by `make number` or by git: they would come
    back as notebooks. One that was edited after that stays, and is named."""
    for name in KNOWN.read_text(encoding="utf-8").split("\n") if KNOWN.exists() else ():
        view = ROOT / "src_nbs" / name
        if not name or not view.exists() or (ROOT / "nbs" / name).with_suffix(".ipynb").exists(): continue
        if view.stat().st_mtime <= KNOWN.stat().st_mtime: view.unlink()
        else: sys.exit(f"src_nbs/{name} was edited and its notebook is gone: move the edit to the notebook's new view, "
                       "and remove this one")


if __name__ == "__main__":
    drop_stale()
    run = [sys.executable, "-m", "jupytext", "-q"]
    old = [str(nb) for nb, _ in pairs() if nb.exists()]
    new = [str(view) for nb, view in pairs() if not nb.exists()]
    how = dict(cwd=ROOT, check=True, env={**os.environ, "XDG_CONFIG_HOME": str(ROOT / "tools")})
    if old: subprocess.run([*run, "--sync", *old], **how)
    if new: subprocess.run([*run, "--set-kernel", "python3", "--sync", *new], **how)
    known = [view.relative_to(ROOT / "src_nbs").as_posix() for _, view in pairs()]
    KNOWN.write_text("\n".join(known), encoding="utf-8")
    print(f"{len(old) + len(new)} notebooks in step with src_nbs/")
