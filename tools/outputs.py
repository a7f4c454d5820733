"""The outputs of the pages that carry them in git: lessons, stories, the README's notebook, and the pages that hold a
recording of a card beside what was published. `make outputs` writes them.

`python tools/outputs.py` executes these notebooks, each in a fresh process with an empty KERNEL_LAB_HOME, and writes
their outputs into them; `--check` writes nothing and names the cells whose outputs are out of date. Names of
notebooks, relative to nbs/, choose some. A page that carries outputs must give the same ones every time: no addresses,
no seconds, no random numbers."""
import argparse
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import docs_run  # noqa: E402

ROOT = HERE.parent
NBS = ROOT / "nbs"
MIMES = (docs_run.PLOTLY, "text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain")

# what `make check` found to differ: of these pages every test runs, however long
CHANGED = frozenset(filter(None, os.environ.get("CHANGED_PAGES", "").split(os.pathsep)))
OF_RECORDINGS = [f"6_agents/9_reproduced/{name}.ipynb" for name in ("03_cuda_agent", "04_two_stage")]


def kept() -> list[str]:
    "The notebooks, relative to nbs/, that carry their outputs."
    return ["index.ipynb", *OF_RECORDINGS, *(p.relative_to(NBS).as_posix() for folder in ("lessons", "stories")
                             for p in sorted((NBS / folder).glob("[0-9]*.ipynb")))]


def lines(text: str) -> list[str]:
    "Text as a notebook file holds it."
    return text.splitlines(keepends=True)


def bundle(data: dict, root: str) -> dict:
    "A display's data without what changes from machine to machine; plain text only where there is nothing better."
    found = {mime: docs_run.clean(mime, data[mime], root)[1] for mime in MIMES if mime in data}
    rich = [mime for mime in found if mime != "text/plain"]
    if docs_run.PLOTLY in found: found = {docs_run.PLOTLY: {k: found[docs_run.PLOTLY][k] for k in ("data", "layout")}}
    elif rich: found[rich[0]] = found[rich[0]].rstrip("\n")
    return {k: lines(v.rstrip("\n")) if isinstance(v, str) else v for k, v in found.items()}


def outputs_of_cell(shell, source: str, root: str) -> list[dict]:
    "Execute a cell; its outputs as notebook JSON."
    results = []
    shell.displayhook.write_format_data = lambda data, metadata: results.append(data)
    done = shell.run_cell(source)
    if done.exception: raise done.exception
    out = []
    if done.stdout.strip():
        text = docs_run.clean("text/plain", done.stdout, root)[1]
        out.append({"name": "stdout", "output_type": "stream", "text": lines(text)})
    for o in done.display_objects:
        out.append({"data": bundle(o.data, root), "metadata": {}, "output_type": "display_data"})
    for data in [] if done.quiet else results:
        out.append({"data": bundle(data, root), "execution_count": None, "metadata": {},
                    "output_type": "execute_result"})
    return out


def executed(name: str) -> list[list[dict]]:
    "The outputs of all cells of a notebook, executed here and now."
    from execnb.shell import CaptureShell
    cells = json.loads((NBS / name).read_text(encoding="utf-8"))["cells"]
    for key in docs_run.SECRETS: os.environ.pop(key, None)
    with tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True) as home:
        os.environ.update(docs_run.SETTINGS, KERNEL_LAB_HOME=home)
        os.chdir((NBS / name).parent)
        shell, found = CaptureShell(), []
        for cell in cells:
            source = "".join(cell["source"])
            is_run = cell["cell_type"] == "code" and not docs_run.directives(source) & docs_run.SKIPPED
            found.append(outputs_of_cell(shell, source, str(ROOT)) if is_run else [])
        os.chdir(ROOT)
    return found


def warm() -> None:
    """Import what the pages import. A grammar of internet addresses, which is compiled on import for seconds, is left
    out: no page checks one."""
    sys.modules.setdefault("rfc3987_syntax", None)
    for name in ("execnb.shell", "nbformat", "pandas", "plotly.io", "torch.export._trace",
                 "kernel_lab.figures.timeline", "kernel_lab.puzzles.ladder"): importlib.import_module(name)


def execute_into(name: str, file: str) -> None:
    "Write the outputs of a page, or what went wrong, as JSON."
    try: found = executed(name)
    except BaseException: found = traceback.format_exc()            # noqa: BLE001
    Path(file).write_text(json.dumps(found), encoding="utf-8")


def fresh(names: Iterable[str]) -> Iterator[tuple[str, list[list[dict]] | str]]:
    """(name of a page, the outputs of its cells or what went wrong) of each page. It is executed in a process of its
    own, forked from this one, which has imported what pages need and run none."""
    warm()
    for name in names:
        with tempfile.NamedTemporaryFile("w+", suffix=".json", encoding="utf-8") as file:
            page = multiprocessing.get_context("fork").Process(target=execute_into, args=(name, file.name))
            page.start()
            page.join()
            yield name, json.loads(file.read() or f'"it ended with code {page.exitcode}"')


def stale(name: str, outputs: list[list[dict]]) -> list[str]:
    "The cells whose outputs in the file are not these, as a line each."
    cells = json.loads((NBS / name).read_text(encoding="utf-8"))["cells"]
    return [f"{name}: cell {k}: {''.join(c['source']).strip().splitlines()[0][:70]}"
            for k, (c, out) in enumerate(zip(cells, outputs)) if c.get("outputs", []) != out]


def write(name: str, outputs: list[list[dict]]) -> None:
    "Put outputs into a notebook file."
    path = NBS / name
    data = json.loads(path.read_text(encoding="utf-8"))
    for cell, out in zip(data["cells"], outputs):
        if cell["cell_type"] == "code": cell["outputs"] = json.loads(json.dumps(out, sort_keys=True))    # as nbdev
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks, relative to nbs/ (all that carry outputs)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where outputs are out of date")
    parser.add_argument("--to", metavar="FILE", help="write all outputs to this file as JSON, and nothing else")
    args = parser.parse_args()
    found = fresh(args.names or kept())
    if args.to: Path(args.to).write_text(json.dumps(dict(found)), encoding="utf-8"); return
    wrong = []
    for name, outputs in found:
        if isinstance(outputs, str): sys.exit(f"{name} failed:\n{outputs[-3000:]}")
        wrong += stale(name, outputs)
        if not args.check: write(name, outputs)
    if wrong and args.check: sys.exit("\n".join([*wrong, "`make outputs` puts it right"]))
    print("\n".join(wrong) or "outputs are up to date")


if __name__ == "__main__": main()
