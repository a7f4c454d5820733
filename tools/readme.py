"""README.md from nbs/index.ipynb: prose as it stands, code cells fenced, links made relative to the top.

`python tools/readme.py` writes the file; `--check` only compares."""
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTE = "<!-- Made from nbs/index.ipynb by `make export`; edit the notebook. -->\n\n"


def relinked(text):
    "Markdown whose links, relative to nbs/, are made relative to the top."
    def link(m): return m[0] if re.match(r"\w+:|#", m[1]) else f"]({os.path.normpath(os.path.join('nbs', m[1]))})"
    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def cell_text(cell):
    "One cell as markdown, or None where the README leaves it out."
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown": return relinked(source)
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
    elif path.read_text() != readme():
        sys.exit("README.md is not what nbs/index.ipynb makes (`make export` puts it right)")
