"""Execute notebooks for the documentation and keep their outputs.

Notebooks run as the tests run them: without a kernel, in their own folder, with an empty KERNEL_LAB_HOME."""
import gc
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.util import Finalize
from pathlib import Path

PACKAGE = "kernel_lab"
PLOTLY, WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
MIMES = (PLOTLY, WIDGET, "text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/plain")
DIRECTIVE = re.compile(r"#\|\s*(\w+)(.*)")
SKIPPED = {"slow", "gpu", "notest"}
NOT_EXECUTED = {"lab.ipynb"}          # a page of widgets: it lives in JupyterLab
SETTINGS = {"IN_TEST": "1", "PLOTLY_RENDERER": "plotly_mimetype", "COLUMNS": "110", "KERNEL_LAB_STORE": ""}
NOISE = [(r"\x1b\[[0-9;]*[A-Za-z]", ""), (r" at 0x[0-9a-f]{6,}", ""), (r"/tmp/(?:tmp|docs-)\w{8}", "/tmp/…")]
SECRETS = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL")


def directives(source: str) -> set[str]:
    "Names of the directives of a cell; `eval: false` counts as notest."
    found = [DIRECTIVE.match(line) for line in source.split("\n")]
    return {"notest" if m[1] == "eval" and "false" in m[2].lower() else m[1] for m in found if m}


# --- the cache ---

def digest(*parts: bytes) -> str:
    "A short name for these bytes."
    h = hashlib.sha256()
    for part in parts: h.update(len(part).to_bytes(8, "little") + part)
    return h.hexdigest()[:24]


def package_digest(root: Path) -> str:
    "A digest of all the package's files that can change an output, and of this one."
    files = sorted(p for p in (root / PACKAGE).rglob("*")
                   if p.is_file() and "__pycache__" not in p.parts and p.name != "_modidx.py")
    parts = (part for p in files for part in (p.relative_to(root).as_posix().encode(), p.read_bytes()))
    return digest(Path(__file__).read_bytes(), *parts)


class Cache:
    "Outputs of executed notebooks: a JSON file for each pair of a notebook's cells and a state of the package."
    def __init__(self, folder: Path, package: str) -> None: self.folder, self.package = folder, package

    def path(self, notebook: dict) -> Path:
        cells = [[c["cell_type"], "".join(c["source"])] for c in notebook["cells"] if c["cell_type"] == "code"]
        return self.folder / f"{digest(json.dumps(cells).encode(), self.package.encode())}.json"

    def get(self, notebook: dict) -> dict | None:
        path = self.path(notebook)
        return json.loads(path.read_text()) if path.exists() else None

    def put(self, notebook: dict, outputs: dict) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.path(notebook).with_suffix(".part")
        part.write_text(json.dumps(outputs))
        part.replace(self.path(notebook))

    def prune(self, notebooks: list[dict]) -> None:
        "Remove what no notebook of today asks for."
        for stale in set(self.folder.glob("*.json")) - {self.path(n) for n in notebooks}: stale.unlink()


# --- execution ---

def best(data: dict) -> tuple[str, object] | None:
    "The richest form of a display that the site can show."
    mime = next((m for m in MIMES if m in data), None)
    if mime == WIDGET: return mime, str(data.get("text/plain", "")).partition("(")[0]
    return (mime, data[mime]) if mime else None


def clean(mime: str, data: object, root: str) -> tuple[str, object]:
    "Without the colours of a terminal, addresses of objects and the build machine's folders."
    if not isinstance(data, str) or mime.startswith("image/"): return mime, data
    for pattern, plain in NOISE: data = re.sub(pattern, plain, data)
    return mime, data.replace(f"{root}/", "").rstrip() + "\n"


def run_cell(shell, source: str) -> list[tuple[str, object]]:
    "Execute one cell: what it printed, displayed and ended in."
    results = []
    shell.displayhook.write_format_data = lambda data, metadata: results.append(data)
    done = shell.run_cell(source)
    if done.exception: raise done.exception
    displays = [o.data for o in done.display_objects] + ([] if done.quiet else results)
    printed = [("text/plain", done.stdout)] if done.stdout.strip() else []
    return printed + [b for b in map(best, displays) if b]


def execute(nbs: str, name: str, notebook: dict, root: str) -> tuple[dict, float]:
    "Outputs by the cell's index, as text, and the seconds it took."
    from execnb.shell import CaptureShell
    start, folder = time.monotonic(), os.getcwd()
    for key in SECRETS: os.environ.pop(key, None)
    with tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True) as home:
        os.environ.update(SETTINGS, KERNEL_LAB_HOME=home)
        os.chdir((Path(nbs) / name).parent)
        shell, outputs = CaptureShell(), {}
        try:
            for i, cell in enumerate(notebook["cells"]):
                source = "".join(cell["source"])
                if cell["cell_type"] != "code" or "nbdev_export(" in source or directives(source) & SKIPPED: continue
                if found := [clean(*o, root) for o in run_cell(shell, source)]: outputs[str(i)] = found
        finally: os.chdir(folder)
    return outputs, time.monotonic() - start


def attempt(nbs: str, name: str, notebook: dict, root: str) -> tuple[dict | None, float, str]:
    "`execute`, with a failure as text."
    try: return *execute(nbs, name, notebook, root), ""
    except BaseException: return None, 0.0, f"{name} failed:\n{traceback.format_exc(limit=-6)}"  # noqa: BLE001


def begin_worker(root: str) -> None:
    "Import this checkout's package; keep what child processes print away from the build's output."
    sys.path.insert(0, root)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    Finalize(None, gc.freeze, exitpriority=-100)          # the shells collect garbage at exit, each over everything


def execute_all(nbs: Path, notebooks: list[tuple[str, dict]], cache: Cache, root: Path, jobs: int) -> list[str]:
    "Execute notebooks in `jobs` workers and fill the cache; the failures."
    if not notebooks: return []
    failures, context = [], multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=begin_worker, initargs=(str(root),)) as pool:
        waiting = {pool.submit(attempt, str(nbs), name, nb, str(root)): (name, nb) for name, nb in notebooks}
        for count, done in enumerate(as_completed(waiting), 1):
            name, notebook = waiting[done]
            outputs, seconds, failure = done.result()
            if failure: failures.append(failure)
            else: cache.put(notebook, outputs)
            print(f"docs: {count}/{len(notebooks)} {name} {'FAILED' if failure else f'{seconds:.1f} s'}", flush=True)
    return failures
