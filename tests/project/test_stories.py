"""Stories: small enough for git, reachable, and no figure in a text that the page does not compute or assert."""
import importlib
import json
import re
from pathlib import Path

import pytest

from kernel_lab.puzzles.student_copy import lesson_files, reader_copy, story_files

ROOT = Path(__file__).parents[2]
STORIES = sorted((ROOT / "nbs" / "stories").glob("[0-9]*.ipynb"))
MOST_BYTES = 170_000
FIGURE = re.compile(r"(\d[\d.,]*\d|\d)\s?(?:µs|ms|%|MiB|KiB|MB)(?!\w)")


@pytest.fixture(params=STORIES, ids=lambda p: p.stem)
def story(request): return json.loads(request.param.read_text(encoding="utf-8"))["cells"]


def source(cell): return "".join(cell["source"])


def unfounded(cells):
    "Figures with a unit in the texts of a page that stand neither in its code nor in an output."
    code = [c for c in cells if c["cell_type"] == "code"]
    known = "\n".join([*map(source, code), *(json.dumps(c["outputs"], ensure_ascii=False) for c in code)])
    said = [m[1] for c in cells if c["cell_type"] == "markdown" for m in FIGURE.finditer(source(c))]
    return [n for n in said if not re.search(rf"(?<![\d.]){re.escape(n)}(?![\d]|\.\d)", known)]


def test_there_are_stories(): assert len(STORIES) >= 8


def test_the_package_brings_each_story_with_its_outputs_and_without_links_that_lead_nowhere():
    brought = {f.name: json.loads(f.read_text(encoding="utf-8")) for f in story_files()}
    assert [*brought] == [p.name for p in STORIES]
    for path in STORIES:
        page = json.loads(path.read_text(encoding="utf-8"))
        assert brought[path.name] == reader_copy(page), f"{path.name}: `make export` puts it right"
        assert any(c.get("outputs") for c in brought[path.name]["cells"])
        text = "\n".join(source(c) for c in brought[path.name]["cells"] if c["cell_type"] == "markdown")
        lessons = {f"../{f.name}" for f in lesson_files()}
        assert set(re.findall(r"\]\(([^)#]*)\)", text)) <= lessons | set(brought), path.name


def test_the_gallery_of_attacks_is_as_long_as_the_story_says(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "attacks"))
    page = next(p for p in STORIES if "cheat" in p.name)
    said = re.search(r"`tests/attacks/gallery.py`\) stand (\d+)", page.read_text(encoding="utf-8"))[1]
    assert int(said) == len(importlib.import_module("gallery").ATTACKS)


def test_every_figure_in_a_text_is_computed_or_asserted(story): assert not unfounded(story)


def test_a_figure_from_nowhere_is_found():
    cell = lambda kind, text: dict(cell_type=kind, source=text, outputs=[])
    page = [cell("markdown", "It takes 12.5 µs, not 99 µs."), cell("code", "assert us == 12.5")]
    assert unfounded(page) == ["99"]


def test_a_story_says_that_its_times_are_simulated_or_that_it_has_none(story):
    text = "\n".join(source(c) for c in story if c["cell_type"] == "markdown")
    if "There is no card here, so there is none" in text: assert not re.search(r"\d\s?(µs|ms)\b", text)
    else: assert "**simulated**" in text
    assert not re.search(r"we measured|was measured (?:here|by us)|measured on this", text)


def test_a_story_begins_with_a_line_and_shows_pictures(story):
    assert re.search(r"^> A story to read", source(story[0]), re.M)
    rich = {"application/vnd.plotly.v1+json", "text/html"}
    assert sum(bool(rich & set(o.get("data", {}))) for c in story for o in c.get("outputs", [])) >= 2


def test_stories_are_small_and_linked():
    guide = (ROOT / "nbs" / "guide.ipynb").read_text(encoding="utf-8")
    for path in STORIES:
        assert path.stat().st_size <= MOST_BYTES, (path.name, path.stat().st_size)
        assert f"stories/{path.name}" in guide, path.name
