"""assets/timeline.png: the picture under the README's first kernel, drawn from the cell itself, and its title as assets/timeline.txt.

Drawing needs kaleido and a chromium; a test compares the title with the one the cell gives now."""
import json
import re
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

from kernel_lab.figures.theme import save_figure

ROOT = Path(__file__).parent.parent
WIDTH, HEIGHT = 900, 340


def first_figure():
    "The value of the first code cell of nbs/index.ipynb."
    cells = json.loads((ROOT / "nbs" / "index.ipynb").read_text())["cells"]
    source = "".join(next(c["source"] for c in cells if c["cell_type"] == "code"))
    result = InteractiveShell.instance().run_cell(source.rstrip() + ";")        # the semicolon keeps it from being displayed
    result.raise_error()
    return result.result


def title(figure):
    "What the figure says of itself, as plain text: the part that shows whether the stored picture is still true."
    return re.sub(r"<[^>]+>", " ", figure.layout.title.text.replace("<br>", "\n")).strip() + "\n"


if __name__ == "__main__":
    path = ROOT / "assets" / "timeline.png"
    figure = first_figure()
    save_figure(figure, path, theme="light", width=WIDTH, height=HEIGHT)
    path.with_suffix(".txt").write_text(title(figure))
    print(path.relative_to(ROOT), path.stat().st_size // 1024, "KiB")
