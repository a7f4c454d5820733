"""The outputs of the pages that carry them in git: lessons, stories, and the README's notebook. `make outputs` writes
them.

`python tools/outputs.py` executes these notebooks, each in a fresh process with an empty KERNEL_LAB_HOME, and writes
their outputs into them; `--check` writes nothing and names the cells whose outputs are out of date. Names of
notebooks, relative to nbs/, choose some. A page that carries outputs must give the same ones every time: no addresses,
no seconds, no random numbers."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import docs_run  # noqa: E402

ROOT = HERE.parent
NBS = ROOT / "nbs"
MIMES = (docs_run.PLOTLY, "text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain")


def kept() -> list[str]:
    "The notebooks, relative to nbs/, that carry their outputs."
    return ["index.ipynb", *(p.relative_to(NBS).as_posix() for folder in ("lessons", "stories")
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


def fresh(name: str) -> list[list[dict]]:
    "The same, in a process of its own."
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--one", name, "--to", file.name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode: sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
        return json.loads(Path(file.name).read_text(encoding="utf-8"))


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
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--to", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one: Path(args.to).write_text(json.dumps(executed(args.one)), encoding="utf-8"); return
    wrong = []
    for name in args.names or kept():
        outputs = fresh(name)
        wrong += stale(name, outputs)
        if not args.check: write(name, outputs)
    if wrong and args.check: sys.exit("\n".join([*wrong, "`make outputs` puts it right"]))
    print("\n".join(wrong) or "outputs are up to date")


if __name__ == "__main__": main()
