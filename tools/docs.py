"""Build the documentation: every notebook executed and shown with its outputs, API pages from the faces.

`python tools/docs.py` writes _docs/site, static files that need no network to be read (a browser opens index.html).
Executed notebooks are kept in _docs/cache under a digest of the notebook and of kernel_lab's sources.
`--changed BASE` executes only the notebooks that differ from the git revision BASE; the others keep cached outputs
where there are any, and are shown without outputs where there are none.
The build fails where a notebook fails, an internal link is broken or a page loads something from the network."""
import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import docs_api  # noqa: E402
import docs_check  # noqa: E402
import docs_instructions  # noqa: E402
import docs_run  # noqa: E402
import number  # noqa: E402

IMAGES = {".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)\s#]+)(#[^)\s]*)?\)")
LIST_AFTER_TEXT = re.compile(r"(?m)^(?!\s*(?:[-*+]|\d+\.) |\s*$| {4})(.+)\n(?=(?:[-*+]|1\.) )")
SLOT = re.compile(r'<div class="slot" id="slot-(\d+)-(\d+)"></div>')


# --- pages ---

@dataclass(frozen=True)
class Page:
    "A notebook, where it is shown, and its cells."
    source: PurePosixPath           # relative to the folder of notebooks
    target: PurePosixPath           # relative to the site, with the suffix .md
    notebook: dict

    @cached_property
    def title(self) -> str:
        "The first heading, as plain text; the file's name where the notebook has none."
        try: found = number.title(self.notebook)
        except StopIteration: found = bare(self.source.stem).replace("_", " ")
        return re.sub(r"[`*]", "", found)

    @cached_property
    def has_code(self) -> bool:
        "Whether the page has a code cell, so that outputs are missing where it was not executed."
        return any(c["cell_type"] == "code" for c in self.notebook["cells"])

    @cached_property
    def module(self) -> str | None:
        "The dotted name, below the package, of the module that the notebook exports."
        return name.removesuffix(".__init__") if (name := number.module(self.notebook)) else None


def text(cell: dict) -> str:
    "A cell's source."
    return "".join(cell["source"])


def bare(name: str) -> str:
    "A file's or folder's name without its number: `03b_dma` → `dma`."
    return re.sub(r"^\d+[a-z]*_", "", name)


def reading_order(path: PurePosixPath) -> list[tuple]:
    "Files before folders; index first, then names without number, then by number."
    def key(name):
        number = re.match(r"(\d+)([a-z]*)_", name)
        return (number is not None, int(number[1]) if number else 0, number[2] if number else "", name)
    *folders, file = path.parts
    return [(1, *key(f)) for f in folders] + [(0, file != "index.ipynb", *key(file))]


def find_pages(nbs: Path) -> list[Page]:
    "The notebooks below `nbs`, in reading order. Two that would share an address keep their numbers."
    found = (PurePosixPath(p.relative_to(nbs)) for p in nbs.rglob("*.ipynb"))
    sources = sorted((p for p in found if not any(part[0] in "._" for part in p.parts)), key=reading_order)
    short = {s: PurePosixPath(*map(bare, s.with_suffix(".md").parts)) for s in sources}
    times = Counter(short.values())
    return [Page(s, short[s] if times[short[s]] == 1 else s.with_suffix(".md"), json.loads((nbs / s).read_text()))
            for s in sources]


def navigation(pages: list[Page]) -> list:
    "mkdocs' nav: a section per folder, an entry per notebook."
    root: list = []
    sections = {(): root}
    times = Counter((page.source.parent, page.title) for page in pages)
    for page in pages:
        folders = page.source.parts[:-1]
        for depth, folder in enumerate(folders, 1):
            if folders[:depth] in sections: continue
            sections[folders[:depth]] = section = []
            sections[folders[:depth - 1]].append({bare(folder).replace("_", " "): section})
        twin = times[page.source.parent, page.title] > 1 and page.source.stem != "index"
        title = f"{page.title} ({bare(page.source.stem)})" if twin else page.title
        sections[folders].append({title: str(page.target)})
    alone = [entry for entry in root if isinstance(next(iter(entry.values())), str)]
    return [{"start": alone}, *(entry for entry in root if entry not in alone)] if len(alone) > 1 else root


# --- from notebook to markdown ---

@dataclass
class Writer:
    "Writes pages as markdown below `folder`; knows where links between them go."
    root: Path                      # of the repository
    nbs: Path
    folder: Path
    pages: list[Page]

    @cached_property
    def targets(self) -> dict[PurePosixPath, PurePosixPath]:
        return {page.source: page.target for page in self.pages}

    def relinked(self, page: Page, source: str) -> str:
        "Markdown whose links between notebooks, and to pictures, hold on the site; links to other files become text."
        def link(m):
            bang, label, href, anchor = m[1], m[2], m[3], (m[4] or "").lower()
            path = Path(os.path.normpath(self.nbs / page.source.parent / href))
            inside = PurePosixPath(os.path.relpath(path, self.nbs))
            if inside in self.targets: return f"[{label}]({up(page.target, self.targets[inside])}{anchor})"
            if not path.exists(): return m[0]
            if path.suffix in IMAGES: return f"{bang}[{label}]({up(page.target, self.picture(path))})"
            return label
        return LINK.sub(link, source)

    def picture(self, path: Path) -> PurePosixPath:
        "Copy a picture beside the pages; its place there."
        place = PurePosixPath("files", os.path.relpath(path, self.root).replace("../", ""))
        (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, self.folder / place)
        return place

    def origin(self, page: Page) -> str:
        "Which module and notebook a page shows."
        notebook = os.path.relpath(self.nbs / page.source, self.root)
        parts = [f"`{'.'.join([docs_run.PACKAGE, page.module])}`"] if page.module else []
        return " · ".join([*parts, f"`{notebook}`"]) + "\n{ .origin }\n"

    def markdown(self, at: int, executed: bool) -> str:
        "A page's markdown, with a slot for each cell's outputs: they are put into the finished page."
        page, out, opened = self.pages[at], [], False
        for i, cell in enumerate(page.notebook["cells"]):
            source = text(cell).rstrip()
            if cell["cell_type"] == "markdown":
                source = LIST_AFTER_TEXT.sub(r"\g<0>\n", self.relinked(page, source))
                if not opened and source.lstrip().startswith("# "):
                    source, opened = self.opening(page, source, executed), True
                out.append(source)
            elif cell["cell_type"] == "code": out += code_cell(source, at, i)
        head = "" if opened else self.opening(page, f"# {page.title}", executed)
        return "\n\n".join([head, *out]) + "\n"

    def opening(self, page: Page, source: str, executed: bool) -> str:
        "The cell with the page's title; the page's origin stands between the title and the text."
        lines = source.lstrip().split("\n")
        end = next((i for i, line in enumerate(lines) if not line.startswith(("# ", ">"))), len(lines))
        missing = ["The outputs of this page are made when the notebook runs.\n{ .unexecuted }\n"]
        note = missing if page.has_code and not executed else []
        title, *rest = lines[:end]
        return "\n".join([title, "", *rest, "", self.origin(page), *note, *lines[end:]])

    def write(self, executed: list[bool]) -> None:
        for i, page in enumerate(self.pages):
            path = self.folder / page.target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.markdown(i, executed[i]))


def up(start: PurePosixPath, end: PurePosixPath) -> str:
    "The relative link from one page to another."
    return PurePosixPath(os.path.relpath(end, start.parent)).as_posix()


def code_cell(source: str, page: int, i: int) -> Iterator[str]:
    "A code cell as a fenced block and a slot for its outputs; nothing for one that is hidden or has only directives."
    found = docs_run.directives(source)
    if "hide" in found: return
    body = "\n".join(line for line in source.split("\n") if not docs_run.DIRECTIVE.match(line)).strip("\n")
    if not body.strip(): return
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", body)), default=0))
    style = ".python .exported" if found & {"export", "exporti", "exports"} else ".python"
    if "hide_input" not in found: yield f"{fence}{{ {style} }}\n{body}\n{fence}"
    yield f'<div class="slot" id="slot-{page}-{i}"></div>'


# --- outputs ---

def shown(mime: str, data) -> str:
    "One output as HTML."
    if mime == docs_run.PLOTLY:
        height = data.get("layout", {}).get("height", 450)
        figure = json.dumps({k: data.get(k) for k in ("data", "layout")}, separators=(",", ":")).replace("</", "<\\/")
        return f'<div class="plotly" style="height:{height}px"><script type="application/json">{figure}</script></div>'
    if mime == docs_run.WIDGET:
        return f'<p class="unexecuted">A widget, {html.escape(data)}: it lives in the notebook.</p>'
    if mime == "text/html": return f'<div class="rich">{data}</div>'
    if mime == "image/svg+xml": return data
    if mime.startswith("image/"): return f'<img alt="" src="data:{mime};base64,{data.strip()}">'
    return f"<pre>{html.escape(data)}</pre>"


def fill(site: Path, pages: list[Page], outputs: list[dict | None]) -> None:
    "Put the outputs into the slots of the finished pages."
    def slot(m):
        cell = (outputs[int(m[1])] or {}).get(m[2], [])
        return f'<div class="outputs">{"".join(shown(*o) for o in cell)}</div>' if cell else ""
    for page in pages:
        path = site / page.target.with_suffix(".html")
        path.write_text(SLOT.sub(slot, path.read_text()))


# --- the site ---

def build(folder: Path, site: Path, nav: list, name: str) -> None:
    "Run mkdocs on the pages in `folder`."
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    from mkdocs.commands.build import build as run
    from mkdocs.config import load_config
    template = str(HERE / "docs" / "mkdocs.yml")
    config = load_config(template, docs_dir=str(folder), site_dir=str(site), nav=nav, site_name=name)
    config.plugins.on_startup(command="build", dirty=False)
    run(config)


def copy_assets(folder: Path) -> None:
    "The site's own style sheet and scripts, and plotly's from its Python package."
    import plotly
    shutil.copytree(HERE / "docs" / "assets", folder / "assets", dirs_exist_ok=True)
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    shutil.copyfile(script, folder / "assets" / script.name)


def changed_since(base: str, nbs: Path) -> set[PurePosixPath]:
    "Notebooks, relative to `nbs`, that differ from the git revision `base` or are not tracked."
    def git(*args): return subprocess.run(["git", *args], cwd=nbs, capture_output=True, text=True, check=True).stdout
    start = git("merge-base", base, "HEAD").strip()
    names = git("diff", "--name-only", "--relative", "-z", start)
    names += git("ls-files", "--others", "--exclude-standard", "-z")
    return {PurePosixPath(n) for n in names.split("\0") if n.endswith(".ipynb")}


def outputs_in_git(notebook: dict) -> dict | None:
    "The outputs that a page carries, by the cell's index, as text; None for a page that carries none."
    found = {}
    for i, cell in enumerate(notebook["cells"]):
        bundles = [o["data"] if "data" in o else {"text/plain": o["text"]} for o in cell.get("outputs", [])]
        whole = [{m: "".join(d) if isinstance(d, list) else d for m, d in bundle.items()} for bundle in bundles]
        if shown := [b for b in map(docs_run.best, whole) if b]: found[str(i)] = shown
    return found or None


def outputs_of(pages: list[Page], args: argparse.Namespace) -> tuple[list[dict | None], list[str]]:
    """Each page's outputs, of today or, where it was not executed, as it carries them; None where it does not, and the
    failures."""
    cache = docs_run.Cache(args.out / "cache", docs_run.package_digest(args.root))
    wanted = None if args.changed is None else changed_since(args.changed, args.nbs)
    run = [p for p in pages if p.source.name not in docs_run.NOT_EXECUTED and cache.get(p.notebook) is None
           and (wanted is None or p.source in wanted)]
    work = [(str(p.source), p.notebook) for p in run]
    failures = docs_run.execute_all(args.nbs, work, cache, args.root, args.jobs)
    if args.changed is None: cache.prune([p.notebook for p in pages])
    return [cache.get(p.notebook) or outputs_in_git(p.notebook) for p in pages], failures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--changed", nargs="?", const="main", metavar="BASE",
                        help="execute only what differs from BASE (main)")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="the repository")
    parser.add_argument("--nbs", type=Path, help="the folder of notebooks (ROOT/nbs)")
    parser.add_argument("--out", type=Path, help="the output folder (ROOT/_docs)")
    parser.add_argument("--no-api", action="store_true", help="leave the API pages out")
    args = parser.parse_args()
    args.root = args.root.resolve()
    args.nbs, args.out = (args.nbs or args.root / "nbs").resolve(), (args.out or args.root / "_docs").resolve()
    return args


def main() -> int:
    args, start = arguments(), time.monotonic()
    pages = find_pages(args.nbs)
    outputs, failures = outputs_of(pages, args)
    have = sum(o is not None for o in outputs)
    print(f"docs: outputs of {have} of {len(pages)} notebooks after {time.monotonic() - start:.0f} s")
    if failures: print("\n".join(failures), file=sys.stderr); return 1
    folder, site = args.out / "pages", args.out / "site"
    shutil.rmtree(folder, ignore_errors=True)
    Writer(args.root, args.nbs, folder, pages).write([o is not None for o in outputs])
    nav = navigation(pages)
    if not args.no_api:
        nav += docs_instructions.write(folder, args.nbs)
        nav += docs_api.write(folder, {p.module: p.target for p in pages if p.module})
    copy_assets(folder)
    build(folder, site, nav, pages[0].title)
    fill(site, pages, outputs)
    wrong = docs_check.problems(site)
    print(f"docs: {site / 'index.html'} after {time.monotonic() - start:.0f} s, {len(wrong)} broken links")
    if wrong: print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__": sys.exit(main())
