"""The documentation: pages from notebooks, figures and links that need no network, and what makes a build fail."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chromium import CHROMIUM, launched

pytest.importorskip("material", reason="mkdocs-material is not installed")
ROOT = Path(__file__).parents[2]
CDN = "from IPython.display import HTML\nHTML('<script src=\"https://cdn.example/x.js\"></script>')"
FIGURE = "import plotly.graph_objects as go\ngo.Figure(go.Bar(x=['Tensor'], y=[3]), layout=dict(height=240))"
TREE = {
    "index.ipynb": ["# The lab\n> A few words.\n\n"
                    "Read [about chips](1_chip/00_memory.ipynb) and [the licence](../LICENSE).\n- one\n- two"],
    "1_chip/00_memory.ipynb": ["# On-chip memory", "#| default_exp chip.memory",
                               "#| export\ndef size(): return 24\nsize()", "#| hide\nsecret = 'not on the page'",
                               "Back to [the start](../index.ipynb)."],
    "1_chip/2_engines/03b_bars.ipynb": ["# Bars of `engines`", FIGURE, "See [memory](../00_memory.ipynb)."],
}


def notebook(cells):
    "A notebook of these cells; those that begin with a capital letter or `# ` are markdown."
    def cell(source):
        if re.match(r"# |[A-Z]", source): return dict(cell_type="markdown", metadata={}, source=source)
        return dict(cell_type="code", metadata={}, source=source, outputs=[], execution_count=None)
    return json.dumps(dict(cells=list(map(cell, cells)), metadata={}, nbformat=4, nbformat_minor=5))


def write(root, tree):
    "A repository with these notebooks."
    (root / "LICENSE").write_text("free\n")
    for name, cells in tree.items():
        (root / "nbs" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "nbs" / name).write_text(notebook(cells))


def build(root, *flags):
    "Run tools/docs.py on a repository."
    command = [sys.executable, ROOT / "tools" / "docs.py", "--root", root, "--jobs", "1", *flags]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    "The site of three notebooks in nested folders."
    root = tmp_path_factory.mktemp("docs")
    write(root, TREE)
    done = build(root, "--no-api")
    assert done.returncode == 0 and done.stdout.count("ipynb ") == 3, done.stdout + done.stderr
    return root / "_docs" / "site"


@pytest.mark.slow
def test_pages_follow_the_folders_and_lose_their_numbers(site):
    assert (site / "chip" / "memory.html").exists()
    bars = (site / "chip" / "engines" / "bars.html").read_text()
    assert "Bars of engines" in re.search(r"<title>(.*?)</title>", bars, re.S)[1]
    assert 'href="../memory.html"' in bars


def test_a_page_shows_code_and_outputs_without_directives(site):
    page = (site / "chip" / "memory.html").read_text()
    assert "#|" not in page and "not on the page" not in page
    assert re.search(r'<div class="outputs"><pre>24\s*</pre></div>', page)
    assert "kernel_lab.chip.memory" in page and "nbs/1_chip/00_memory.ipynb" in page


def test_links_arrive_or_are_text(site):
    page = (site / "index.html").read_text()
    assert 'href="chip/memory.html"' in page and "the licence" in page and "LICENSE" not in page
    assert re.search(r"<li>\s*one", page)


def test_a_figure_is_on_its_page_and_plotly_beside_it(site):
    page = (site / "chip" / "engines" / "bars.html").read_text()
    box = r'<div class="plotly" style="height:240px"><script type="application/json">(.*?)</script>'
    assert json.loads(re.search(box, page, re.S)[1])["data"][0]["type"] == "bar"
    assert (site / "assets" / "plotly.min.js").stat().st_size > 1_000_000


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("playwright.sync_api")
    with launched() as chromium: yield chromium


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_and_searches_without_the_network(site, browser, scheme):
    page = browser.new_page(color_scheme=scheme)
    asked = []
    page.on("request", lambda r: asked.append(r.url))
    page.goto((site / "chip" / "engines" / "bars.html").as_uri())
    page.wait_for_selector(".plotly.drawn .main-svg")
    shown = page.locator("body").get_attribute("data-md-color-scheme")
    assert shown == {"light": "default", "dark": "slate"}[scheme]
    paper = page.evaluate("getComputedStyle(document.querySelector('.plotly .main-svg')).backgroundColor")
    assert paper == "rgba(0, 0, 0, 0)"                  # plotly's own would be a white slab on a dark page
    page.locator(".md-search__input").click()
    page.keyboard.type("words")
    page.wait_for_selector(".md-search-result__item")
    page.close()
    assert asked and not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


def test_outputs_are_kept_until_a_cell_changes(site, tmp_path):
    root = shutil.copytree(site.parents[1], tmp_path / "again")                  # built once: three notebooks ran
    write(root, {"index.ipynb": ["# The lab", "1 + 1"]})
    assert re.findall(r"(\S+ipynb) ", build(root, "--no-api").stdout) == ["index.ipynb"]


@pytest.mark.parametrize("cells, messages", [
    (["See [nothing](2_absent.ipynb).", CDN],
     ["index.html links to 2_absent.ipynb", "index.html loads https://cdn.example/x.js"]),
    (["1 / 0"], ["ZeroDivisionError"]),
], ids=["links", "error"])
def test_a_build_fails_and_says_why(tmp_path, cells, messages):
    write(tmp_path, {"index.ipynb": ["# The lab", *cells]})
    done = build(tmp_path, "--no-api")
    assert done.returncode == 1 and all(m in done.stderr for m in messages), done.stderr


def test_only_changed_notebooks_run(tmp_path):
    write(tmp_path, TREE | {"1_chip/01_clock.ipynb": ["# Clock", "2.8 * 1000"]})
    clock = tmp_path / "nbs" / "1_chip" / "01_clock.ipynb"
    carries = json.loads(clock.read_text())
    carries["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["in\n", "<git>"]},
                                      {"output_type": "display_data", "data": {"text/html": ["<b>rich</b>"], "text/plain": ["plain"]}}]
    clock.write_text(json.dumps(carries))
    for command in (["init", "-b", "main"], ["add", "nbs"], ["commit", "-m", "begin"]):
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command]
        subprocess.run(git, cwd=tmp_path, check=True, capture_output=True)
    write(tmp_path, {"1_chip/00_memory.ipynb": ["# Memory", "6 * 7"]})
    done = build(tmp_path, "--no-api", "--changed")
    assert re.findall(r"(\S+ipynb) ", done.stdout) == ["1_chip/00_memory.ipynb"], done.stderr
    other = tmp_path / "_docs" / "site" / "chip" / "engines" / "bars.html"
    assert "outputs of this page are made when" in other.read_text()
    shown = (tmp_path / "_docs" / "site" / "chip" / "clock.html").read_text()
    assert "outputs of this page are made when" not in shown and "<pre>plain" not in shown
    assert "in\n&lt;git&gt;" in shown and '<div class="rich"><b>rich</b></div>' in shown


def test_the_reference_has_every_instruction_of_both_dialects(monkeypatch):
    "Engines, chips, calls, meaning, cost, limits, an example and a refusal of each, and every limit once at least."
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import docs_instructions
    from kernel_lab.nki.checks.limits import LIMITS
    from kernel_lab.nki.ir.instructions import INSTRUCTIONS
    text = docs_instructions.page(ROOT / "nbs")
    general, *parts = re.split(r"(?m)^## (?=\w+ \{ #\w+ \}$)", text)
    assert [p.split()[0] for p in parts] == [*INSTRUCTIONS]
    for part in parts:
        for what in ("**Engines**", "**Chips**", "**Cost**", "**Example**", "**Refused**", "```python"):
            assert what in part, (part.split()[0], what)
    assert sum("`neuronxcc.nki.isa`" in p for p in parts) > 20 and sum("**Meaning**" in p for p in parts) > 50
    assert "`nki.isa`" in parts[0] and "stationary tile is at most 128 by 128" in parts[0] and "**Limits**" in parts[0]
    assert not [l.id for l in LIMITS if f"({l.id}; " not in text]
    named = {row for rows in docs_instructions.LIMITED.values() for row in rows.split()}
    assert named <= set(INSTRUCTIONS) and set(docs_instructions.LIMITED) <= {l.id for l in LIMITS}


@pytest.mark.slow
def test_the_whole_site(tmp_path):
    done = build(ROOT, "--out", tmp_path, "--jobs", "2")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert (tmp_path / "site" / "api" / "kernel_lab.nki.html").exists()
    assert 'id="nc_matmul"' in (tmp_path / "site" / "api" / "instructions.html").read_text()
