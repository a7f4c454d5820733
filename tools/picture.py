"""assets/timeline.png: the picture under the README's first kernel, drawn from the cell itself, and its title as
assets/timeline.txt.

Drawing needs kaleido and a chromium; a test compares the title with the one the cell gives now."""
import ast
import json
import linecache
import re
from pathlib import Path

from kernel_lab.figures.theme import save_figure

ROOT = Path(__file__).parent.parent
FIRST = "<the first cell of nbs/index.ipynb>"
WIDTH, HEIGHT = 900, 340


def first_figure():
    "The value of the first code cell of nbs/index.ipynb."
    cells = json.loads((ROOT / "nbs" / "index.ipynb").read_text())["cells"]
    source = "".join(next(c["source"] for c in cells if c["cell_type"] == "code"))
    # where the tracer reads the kernel's source
    linecache.cache[FIRST] = len(source), None, source.splitlines(True), FIRST
    *body, last = ast.parse(source).body
    names = {"__name__": FIRST}
    exec(compile(ast.Module(body, []), FIRST, "exec"), names)
    return eval(compile(ast.Expression(last.value), FIRST, "eval"), names)


def title(figure):
    "What the figure says of itself, as plain text: the part that shows whether the stored picture is still true."
    return re.sub(r"<[^>]+>", " ", figure.layout.title.text.replace("<br>", "\n")).strip() + "\n"


if __name__ == "__main__":
    path = ROOT / "assets" / "timeline.png"
    figure = first_figure()
    save_figure(figure, path, theme="light", width=WIDTH, height=HEIGHT)
    path.with_suffix(".txt").write_text(title(figure))
    print(path.relative_to(ROOT), path.stat().st_size // 1024, "KiB")
