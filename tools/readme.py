"""README.md from nbs/index.ipynb: prose as it stands, code cells fenced, generated sections filled in from the package itself.

A line `<!-- made from: NAME -->` in a markdown cell is followed, in README.md, by what `SECTIONS[NAME]()` returns.
`python tools/readme.py` writes the file; `--check` only compares."""
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTE = "<!-- Made from nbs/index.ipynb by `make export`; edit the notebook. -->\n\n"


def commands():
    "A table of the commands with the first line of their help."
    from kernel_lab.cli.app import command_table
    cell = lambda text: text.replace("|", "\\|")                         # a bar ends a cell, even in code
    rows = [f"| `{cell(usage)}` | {cell(what)} |" for usage, what in command_table()]
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def tasks():
    "A table of the families of tasks: how many, and some of them."
    from itertools import groupby
    from kernel_lab.tasks.suite.registry import LEVELS, TASKS
    kind = lambda t: (t.level, t.family)
    rows = []
    for (level, family), found in groupby(sorted(TASKS.values(), key=kind), key=kind):
        names = [t.name for t in found]
        rows.append(f"| {level}, {LEVELS[level]} | {family} | {len(names)} | {', '.join(f'`{n}`' for n in names[:4])}{' …' if len(names) > 4 else ''} |")
    return "\n".join(["| level | family | tasks | such as |", "|---|---|--:|---|", *rows])


SECTIONS = {"commands": commands, "tasks": tasks}


def filled(text):
    "Markdown with its generated sections."
    return re.sub(r"<!-- made from: (\w+) -->", lambda m: f"{m[0]}\n{SECTIONS[m[1]]()}", text)


def relinked(text):
    "Markdown whose links, relative to nbs/, are made relative to the top."
    def link(m): return m[0] if re.match(r"\w+:|#", m[1]) else f"]({os.path.normpath(os.path.join('nbs', m[1]))})"
    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def cell_text(cell):
    "One cell as markdown, or None where the README leaves it out."
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown": return filled(relinked(source))
    if cell["cell_type"] != "code" or re.search(r"^#\|\s*(hide|default_exp)", source, re.M): return None
    code = re.sub(r"^#[|].*\n", "", source, flags=re.M).strip()
    return f"```python\n{code}\n```"


def readme():
    "The whole text."
    cells = json.loads((ROOT / "nbs" / "index.ipynb").read_text())["cells"]
    return NOTE + "\n\n".join(t for t in map(cell_text, cells) if t) + "\n"


if __name__ == "__main__":
    path = ROOT / "README.md"
    if "--check" not in sys.argv: path.write_text(readme())
    elif path.read_text() != readme(): sys.exit("README.md is not what nbs/index.ipynb makes (`make export` puts it right)")
