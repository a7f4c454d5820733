"""Number the notebooks of every room 00, 01, … without gaps, and link each page to its neighbours. `make number`
calls it.

A page keeps its place: pages are sorted by the number they have now, then by name; to insert one, give it any free
name such as
`03z_new.ipynb` (or the number of the page it follows). The file name is `NN_module`, after `#| default_exp`. Links
between notebooks, and paths `nbs/…` in tests and tools, follow the files. The first cell of each page gets a line
"Before this: … · After this: …"."""
import json
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
NBS = ROOT / "nbs"
LINK = re.compile(r"\]\(([^)\s#]+\.ipynb)((?:#[^)]*)?)\)")
NEIGHBOURS = re.compile(r"\n*^(?:Before this: |After this: ).*$", re.M)


def pages(folder: Path) -> list[Path]:
    "The notebooks of one folder that carry a number, in order."
    return sorted(p for p in folder.glob("*.ipynb") if p.name[0].isdigit())


def reading_order(folder: Path = NBS) -> list[Path]:
    "All numbered notebooks: rooms in the order of their digits, then the pages that stand in the folder itself."
    rooms = sorted(d for d in folder.iterdir() if d.is_dir() and d.name[0].isdigit())
    return [p for room in rooms for p in reading_order(room)] + pages(folder)


def cells(nb: Path) -> dict:
    "A notebook as JSON."
    return json.loads(nb.read_text(encoding="utf-8"))


def module(data: dict) -> str | None:
    "The module that a notebook exports, below the package: `nki.timing.scheduler`; None for a page without module."
    for cell in data["cells"]:
        if m := re.search(r"^#\|\s*default_exp\s+(\S+)", "".join(cell["source"]), re.M): return m[1]
    return None


def last_part(data: dict) -> str | None:
    "The last part of the module that a notebook exports, `init` for a package's face; None for a page without module."
    return name.split(".")[-1].strip("_") if (name := module(data)) else None


def head(data: dict) -> dict:
    "The cell with the page's heading."
    found = (c for c in data["cells"] if c["cell_type"] == "markdown" and "".join(c["source"]).startswith("# "))
    return next(found)


def title(data: dict) -> str:
    "The heading of a page."
    return "".join(head(data)["source"]).splitlines()[0].removeprefix("# ").strip()


def new_names(folder: Path) -> dict[Path, Path]:
    "Old path → new path of the notebooks of one folder."
    def name(p: Path) -> str: return last_part(cells(p)) or p.stem.split("_", 1)[1]
    return {p: folder / f"{i:02d}_{name(p)}.ipynb" for i, p in enumerate(pages(folder))}


def plan() -> dict[Path, Path]:
    "Old path → new path of every numbered notebook."
    folders = sorted({p.parent for p in reading_order()})
    return {old: new for folder in folders for old, new in new_names(folder).items()}


def relinked(text: str, old: Path, moves: dict[Path, Path]) -> str:
    "Markdown of the notebook at `old` with links that follow the moves."
    def link(m: re.Match) -> str:
        if "://" in m[1]: return m[0]
        target = (old.parent / m[1]).resolve()
        return f"]({os.path.relpath(moves.get(target, target), moves.get(old, old).parent)}{m[2]})"
    return LINK.sub(link, text)


def neighbours(at: int, order: list[Path], titles: dict[Path, str]) -> str:
    "The line that links a page to the one before and the one after it; `order` and `titles` speak of new paths."
    here = order[at].parent
    def link(p: Path) -> str: return f"[{titles[p]}]({os.path.relpath(p, here)})"
    parts = [f"Before this: {link(order[at - 1])}"] if at else []
    parts += [f"After this: {link(order[at + 1])}"] if at + 1 < len(order) else []
    return " · ".join(parts)


def write(path: Path, data: dict) -> None:
    "Write a notebook as nbdev does."
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    if path.read_text(encoding="utf-8") != text: path.write_text(text, encoding="utf-8")


def rewrite_text(moves: dict[Path, Path]) -> None:
    "Paths `nbs/…` in tests, tools, benchmarks and settings follow the moves."
    names = {
        old.relative_to(ROOT).as_posix(): new.relative_to(ROOT).as_posix() for old, new in moves.items() if old != new}
    files = [p for part in ("tests", "tools", "benchmarks")
             for p in (ROOT / part).rglob("*.py")] + [ROOT / "pyproject.toml"]
    for file in files:
        text = file.read_text(encoding="utf-8")
        new = re.sub(r"nbs/[\w/]+\.ipynb", lambda m: names.get(m[0], m[0]), text)
        if new != text: file.write_text(new, encoding="utf-8")


def rename(moves: dict[Path, Path]) -> None:
    "Rename the files, in two steps so that names may be exchanged."
    changed = {old: new for old, new in moves.items() if old != new}
    for old in changed: old.rename(old.with_name(old.name + ".moving"))
    for old, new in changed.items(): old.with_name(old.name + ".moving").rename(new)
    if changed: print("\n".join(f"{old.relative_to(NBS)} → {new.relative_to(NBS)}" for old, new in changed.items()))


def number() -> None:
    "Do all of it."
    moves = plan()
    order = [moves[p] for p in reading_order()]
    everything = [p for p in NBS.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]
    data = {p: cells(p) for p in everything}
    titles = {moves[p]: title(data[p]) for p in moves}
    for old, d in data.items():
        new = moves.get(old, old)
        for cell in d["cells"]:
            if cell["cell_type"] != "markdown": continue
            text = relinked("".join(cell["source"]), old, moves)
            if new in titles and cell is head(d):
                text = f"{NEIGHBOURS.sub('', text).rstrip()}\n\n{neighbours(order.index(new), order, titles)}"
            cell["source"] = text.splitlines(keepends=True)
        write(old, d)
    rewrite_text(moves)
    rename(moves)


if __name__ == "__main__":
    number()
    subprocess.run(["git", "add", "-A", "nbs"], cwd=ROOT, check=False)
