"""FIGURES.toml from end to end: what is built, what is refused and how, and where a file came from. Without a browser: html and
tables; what needs one is in test_figure_files.py."""
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lab.agents.recorded.runs import recorded_run
from kernel_lab.cli.app import run
from kernel_lab.cli.figures.build import FIGURE_FORMATS, MANIFEST, read_set
from kernel_lab.cli.figures.command import build_lines
from kernel_lab.cli.figures.explain import explain
from kernel_lab.cli.figures.material import material
from kernel_lab.cli.figures.recipes import RECIPES, TABLES, figure_of, table_of
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.store.store import Store
from kernel_lab.figures.files.facts import facts_in
from kernel_lab.figures.theme import figure_texts

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "paper" / "FIGURES.toml"


def a_set(folder, text, formats='["html"]'):
    "A FIGURES.toml in a folder."
    path = folder / "FIGURES.toml"
    path.write_text(f"formats = {formats}\n{text}", encoding="utf-8")
    return path


def entry(name, **given):
    "A figure of a set as TOML."
    return "[[figure]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in {"name": name, **given}.items())


def built(path, *words):
    "The exit code of a build."
    return run(["figures", "build", str(path), *words])


# --- every recipe, from data that is in the repository ---

SOURCE = {"fast_rate": {"recorded": ["model-*", "rewrite-*"]}, "ablation": {"file": "data/ablation.json"},
          "fixer": {"file": "data/fixer.json"}, "predicted": {"file": "data/predictions.csv"}, "residuals": {"file": "data/predictions.csv"},
          "funnel": {"file": "data/funnel.json"}, "peak": {"tasks": "level3"}}
OF_RUNS = ("cost", "iterations", "outcomes", "geomean", "engine_use")
GIVEN = {"cost": {"cost": "kernels"}, "fixer": {"cost": "kernels"}}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("theme", ["light", "paper"])
@pytest.mark.parametrize("name", RECIPES)
def test_every_figure_is_drawn_with_a_finding_as_its_title(name, theme):
    source = SOURCE.get(name) or ({"recorded": "model-*"} if name in OF_RUNS else {"kernel": "model-rmsnorm_matmul"})
    fig = figure_of(name, material(source, PAPER.parent), theme, GIVEN.get(name))
    title, note = figure_texts(fig)
    assert title and len(fig.data) and fig.layout.height and (re.search(r"\d", title) or name == "fixer")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_rows(name):
    m = material({"tasks": "level2"} if name == "tasks" else {"recorded": "model-*"})
    assert len(table_of(name, m)) > 5


def test_the_figures_of_the_four_sources_are_listed_with_a_line_each(capsys):
    assert run(["figures", "list"]) == 0
    said = capsys.readouterr().out
    for name in ("fast_rate", "geomean", "engine_use", "ablation", "peak", "cost", "iterations", "fixer", "outcomes", "predicted",
                 "timeline", "utilisation", "speedup", "error_map", "funnel", "residuals"):
        assert len(re.findall(rf"^  {name} +\S.{{20,}}$", said, re.M)) == 1, name


def test_numbers_of_figures_are_those_of_the_runs():
    runs = material({"recorded": "model-*"})
    rate = figure_of("fast_rate", runs, parameters={"than": 4.0})
    gains = [o.speedup for o in runs.outcomes]
    assert rate.data[0].y[0] == pytest.approx(sum(g > 4 for g in gains) / len(gains))
    mean = figure_of("geomean", runs)
    product = 1.0
    for g in gains: product *= g
    assert mean.data[0].y[0] == pytest.approx(product ** (1 / len(gains)))
    lines = figure_of("iterations", material({"recorded": "rewrite-cross_entropy"}))
    assert max(lines.data[-1].y) == pytest.approx(material({"recorded": "rewrite-cross_entropy"}).outcomes[0].speedup)
    counted = figure_of("outcomes", runs)
    assert sum(sum(int(n) for n in re.findall(r"\((\d+)\)", label)) for label in set(counted.data[0].y)) == sum(
        o.kernels for o in runs.outcomes)


# --- what is wrong is a sentence, and does not stop the others ---

WRONG = [
    (entry("x", draw="fast_rates", recorded="model-*"), "Did you mean 'fast_rate'?"),
    (entry("x", draw="cost", recorded="model-swigul", cost="kernels"), "Did you mean 'model-swiglu'?"),
    (entry("x", draw="speedup", runs="gone"), "There are no runs yet"),
    (entry("x", draw="cost", recorded="model-*"), "Nobody counted the dollars"),
    (entry("x", draw="cost", recorded="model-*", cost="dolars"), "Did you mean 'dollars'?"),
    (entry("x", draw="cost"), "names no data"),
    (entry("x", draw="cost", recorded="model-*", tasks="all"), "names recorded and tasks"),
    (entry("x", draw="peak", tasks="levle3"), "Did you mean 'level3'?"),
    (entry("x", draw="cost", file="data/nothing.json"), "There is no file of data"),
    (entry("x", draw="cost", file="../../etc/passwd"), "leads out of the folder"),
    (entry("x", draw="cost", file="/etc/passwd"), "leads out of the folder"),
    (entry("../../x", draw="cost", recorded="model-*"), "has the name '../../x'"),
    (entry("/tmp/x", draw="cost", recorded="model-*"), "has the name"),
    (entry("", draw="cost", recorded="model-*"), "has no name"),
    (entry("x", draw="cost", recorded="model-*", width=900), "from 1 to 20"),
    (entry("x", draw="cost", recorded="model-*", theme="papre"), "Did you mean 'paper'?"),
    (entry("x", draw="cost", recorded="model-*", formats=["gif"]), "There are: pdf, png, svg, html"),
    (entry("x", draw="cost", recorded="model-*", caption=3), "is no text"),
    (entry("x", draw="error_map", kernel="model-swiglu", step=40), "and no step 40"),
    (entry("x", draw="timeline", recorded="model-*"), "of one run; the data has 12"),
    (entry("x", draw="cost", file="broken.json"), "is no data of a figure"),
    (entry("x", draw="cost", file="other.json"), "is no data of a figure"),
    (entry("x", draw="predicted", file="no.csv"), "lacks"),
    (entry("x", draw="fast_rate", file="mixed.json"), "mixes clocks or chips (lab-7, lab-8, trn2)"),
    (entry("x", draw="fast_rate", recorded="model-*", than="fast"), "than = 'fast' of x is no number"),
    (entry("x", draw="fast_rate", file="empty.json"), "is no data of a figure: it lacks 'chip'"),
    (entry("x", draw="fast_rate", file="rows.json"), "is no data of a figure: a value in it is of another kind"),
    (entry("x", draw="fast_rate", file="deep.json"), "is no data of a figure: its lists are too deep"),
    (entry("x", draw="predicted", file="bytes.csv"), "is no data of a figure: it is no text"),
    (entry("x", draw="predicted", file="heads.csv"), "heads.csv has no rows"),
    (entry("x", draw="predicted", file="chips.csv"), "There is no chip in chips.csv 'h100'"),
    (entry("x", draw="fast_rate", file="chips.json"), "mixes clocks or chips (lab-8, trn1, trn2)"),
    (entry("x", draw="predicted", file="mixed.csv"), "mixes the clocks lab-7 and lab-8")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrong, says", WRONG, ids=[s for _, s in WRONG])
def test_one_bad_figure_is_a_sentence_and_the_others_are_built(tmp_path, capsys, monkeypatch, wrong, says):
    monkeypatch.setenv("KERNEL_LAB_STORE", str(tmp_path / "empty.sqlite3"))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('{"outcomes": [{"row": 3}], "plan": {}}')
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    (tmp_path / "mixed.csv").write_text("id,group,chip,bound,measured_us,predicted_us,clock\na,g,trn2,PE,1,1,lab-8\n"
                                        "b,g,trn2,PE,1,1,lab-7\n")
    suite = json.loads((PAPER.parent / "data" / "ablation.json").read_text())
    suite["how"]["clocks"] = ["lab-7", "lab-8"]
    (tmp_path / "mixed.json").write_text(json.dumps(suite))
    suite["how"] |= {"clocks": ["lab-8"], "chips": ["trn1", "trn2"]}
    (tmp_path / "chips.json").write_text(json.dumps(suite))
    (tmp_path / "rows.json").write_text(json.dumps({**suite, "outcomes": [[1]]}))
    (tmp_path / "empty.json").write_text('{"outcomes": [], "how": {}, "plan": {}}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "bytes.csv").write_bytes(b"\x00\xff")
    head = "id,group,chip,bound,measured_us,predicted_us,clock\n"
    (tmp_path / "heads.csv").write_text(head)
    (tmp_path / "chips.csv").write_text(f"{head}a,g,h100,PE,1,1,lab-8\n")
    path = a_set(tmp_path, wrong + entry("good", draw="outcomes", recorded="rewrite-*"))
    assert built(path) == 2
    out, err = capsys.readouterr()
    assert says in err and "Traceback" not in out + err
    assert (tmp_path / "figures" / "good.html").exists()
    assert set(json.loads((tmp_path / "figures" / MANIFEST).read_text())) == {"good"}
    assert not [*tmp_path.rglob("x.*"), *tmp_path.parent.glob("x.*")]


DAMAGE = [(key, value) for key in ("speedup", "engines", "dollars", "task", "row")
          for value in (-1.0, "fast", None, [], {}, 0, float("nan"), float("inf"), 1e308)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("key, value", [pytest.param(*d, marks=[pytest.mark.slow] if n % 4 else []) for n, d in enumerate(DAMAGE)])
def test_damaged_numbers_in_a_suite_are_a_sentence_or_a_figure(tmp_path, capsys, key, value):
    suite = json.loads((PAPER.parent / "data" / "ablation.json").read_text())
    for o in suite["outcomes"][:3]: o[key] = value
    (tmp_path / "it.json").write_text(json.dumps(suite))
    text = "".join(entry(n, file="it.json") for n in ("fast_rate", "geomean", "engine_use", "ablation", "cost", "outcomes"))
    code = built(a_set(tmp_path, text + '[[table]]\nname = "suite"\nfile = "it.json"\n'))
    out, err = capsys.readouterr()
    assert code in (0, 2) and "Traceback" not in out + err and (code == 0) == ("not built" not in err)


@pytest.mark.parametrize("text, says", [
    ("[[figure]\n", "is no TOML"), ("figure = 3\n", "is no list of tables"), ("", "has no figure"),
    ('folder = "../up"\n' + entry("cost"), "leads out"), ('folder = "/tmp"\n' + entry("cost"), "leads out"),
    ("a" * 1_100_000, "larger than a megabyte"), ("figurs = 3\n", "Did you mean 'figure'?"),
    ("x = " + "[" * 50_000, "is no TOML"), ("\0", "is no TOML")])
def test_a_bad_file_is_one_sentence(tmp_path, capsys, text, says):
    path = tmp_path / "FIGURES.toml"
    path.write_text(text)
    assert built(path) == 2
    out, err = capsys.readouterr()
    assert says in err and "Traceback" not in err and err.count("\n") <= 3


def test_bytes_that_are_no_text(tmp_path, capsys):
    (tmp_path / "FIGURES.toml").write_bytes(b"\xff\xfe\x00")
    assert built(tmp_path / "FIGURES.toml") == 2 and "is no TOML" in capsys.readouterr().err
    assert built(tmp_path) == 2 and "cannot be read" in capsys.readouterr().err


def test_two_entries_of_one_name_and_a_clash_in_capitals(tmp_path):
    found = read_set(a_set(tmp_path, entry("a", draw="cost", recorded="*") + entry("A", draw="cost", recorded="*")))
    assert "two entries of the name" in str(found.entries[1][1])


def test_only_builds_what_is_named(tmp_path, capsys):
    path = a_set(tmp_path, entry("one", draw="outcomes", recorded="rewrite-*") + entry("two", draw="outcomes", recorded="beam-*"))
    assert built(path, "--only", "two") == 0
    assert {p.name for p in (tmp_path / "figures").glob("*.html")} == {"two.html"}
    assert built(path, "--only", "tow") == 2 and "Did you mean 'two'?" in capsys.readouterr().err


# --- the store ---

def with_clock(step, clock):
    "A step that another clock timed."
    e = step.evaluation
    return replace(step, evaluation=replace(e, id=f"{e.id}{clock}", profile=replace(e.profile, clock=clock)))


@pytest.fixture
def store(tmp_path):
    "A store with a run of today's clock and one of another."
    kept, made = Store(tmp_path / "lab.sqlite3"), recorded_run("rewrite-swiglu").run
    kept.save_run(made)
    older = replace(made, id="older000", steps=tuple(replace(with_clock(s, "lab-1"), run="older000") for s in made.steps))
    kept.save_run(older)
    return kept, made


def test_stored_runs_and_a_mixture_of_clocks(store, tmp_path):
    kept, made = store
    path = a_set(tmp_path, entry("fine", draw="speedup", runs=made.id) + entry("mixed", draw="geomean", runs=[made.id, "older"]))
    lines = dict(zip(("fine", "mixed"), build_lines(path, str(kept.path))))
    assert lines["fine"][1] and not lines["mixed"][1]
    assert "clock lab-1: older000" in lines["mixed"][0] and "kernel-lab renew" in lines["mixed"][0]
    facts = facts_in(tmp_path / "figures" / "fine.html")
    assert facts["runs"] == [made.id] and facts["clocks"] == ["lab-8"] and facts["chips"].keys() == {"trn2"}
    assert explain(tmp_path / "figures" / "fine.html", place=str(kept.path))[1]


def test_a_caption_speaks_of_a_memory_only_where_one_is_drawn(tmp_path):
    "It said *beside the size of the memory* of runs that have none."
    path = a_set(tmp_path, entry("with", draw="iterations", recorded="beam-masked_softmax") +
                 entry("without", draw="iterations", recorded="model-s*"))
    assert built(path) == 0
    says = {n: facts_in(tmp_path / "figures" / f"{n}.html")["caption"] for n in ("with", "without")}
    assert "grey: lessons remembered" in says["with"] and "grey" not in says["without"], says
    assert "beside the size" not in says["without"] and "where a run has a memory" in says["without"]


def test_a_caption_that_is_asked_names_its_figure(tmp_path, capsys):
    path = a_set(tmp_path, entry("it", draw="outcomes", recorded="rewrite-*") + '[[table]]\nname = "runs"\nrecorded = "rewrite-*"\n')
    assert built(path) == 0
    for name, beside in (("it.tex", "it.html"), ("it.txt", "it.html"), ("runs.txt", "runs.csv")):
        assert run(["figures", "explain", str(tmp_path / "figures" / name)]) == 2
        err = capsys.readouterr().err
        assert f"{name} is a caption" in err and beside in err, err
    assert run(["figures", "explain", str(tmp_path / "figures" / "runs.tex")]) == 0


def test_a_run_that_is_gone_is_said_by_explain(store, tmp_path):
    kept, made = store
    path = a_set(tmp_path, entry("fine", draw="speedup", runs=made.id))
    assert list(build_lines(path, str(kept.path)))[0][1]
    lines, same = explain(tmp_path / "figures" / "fine.html", place=str(tmp_path / "another.sqlite3"))
    assert not same and "cannot be drawn" in lines[-1] and "no run" in lines[-1]


# --- captions and explanations ---

@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    "The set of the example paper, its figures as html."
    folder = tmp_path_factory.mktemp("paper")
    (folder / "data").symlink_to(PAPER.parent / "data")
    text = re.sub(r"^formats = .*$", 'formats = ["html"]', PAPER.read_text(), count=1, flags=re.M)
    (folder / "FIGURES.toml").write_text(text)
    return folder


@pytest.mark.slow
def test_the_paper_is_built_from_what_is_in_the_repository(paper, tmp_path):
    home = tmp_path / "paper"
    shutil.copytree(PAPER.parent / "data", home / "data")
    shutil.copy(paper / "FIGURES.toml", home)
    bad = [line for line, good in build_lines(home / "FIGURES.toml") if not good]
    assert not bad
    rows = json.loads((home / "figures" / MANIFEST).read_text())
    assert len(rows) >= 20
    for name, row in rows.items():
        caption = (home / "figures" / f"{name}.txt").read_text()
        assert caption.strip() == row["caption"] and not caption[0].islower()
        if row["draw"] != "funnel": assert "Simulated on trn" in caption and "clock lab-" in caption, caption
        assert "measured" not in caption.lower() or row["draw"] in ("predicted", "residuals"), caption       # others' times, as published
    assert "scripted" in rows["fixer"]["caption"] and "scripted" in rows["memory_of_a_search"]["caption"]
    again = {name: row["files"] for name, row in rows.items()}
    for _ in build_lines(home / "FIGURES.toml"): pass
    assert {n: r["files"] for n, r in json.loads((home / "figures" / MANIFEST).read_text()).items()} == again
    for name in ("ablation.html", "peak.html", "suite.tex", "runs.csv", "runs.md"):
        lines, same = explain(home / "figures" / name)
        assert same, lines


@pytest.mark.skipif(not (shutil.which("chromium") or shutil.which("google-chrome")), reason="no chromium")
def test_all_formats_are_explained_and_drawn_the_same(tmp_path, capsys):
    path = a_set(tmp_path, entry("fast", draw="fast_rate", recorded="model-*", than=2.0, width="page", height=300,
                                 caption="Own words"), '["pdf", "png", "svg", "html"]')
    assert built(path) == 0
    for kind in FIGURE_FORMATS:
        file = tmp_path / "figures" / f"fast.{kind}"
        assert run(["figures", "explain", str(file)]) == 0
        said = capsys.readouterr().out
        assert "the same, byte by byte" in said and "than = 2.0" in said and "caption     Own words." in said
    file.write_bytes(file.read_bytes().replace(b"Own words.", b"No words."))
    assert run(["figures", "explain", str(file)]) == 2 and "it differs" in capsys.readouterr().out


def test_explain_says_what_changed_in_the_data(tmp_path):
    (tmp_path / "data").mkdir()
    data = json.loads((PAPER.parent / "data" / "ablation.json").read_text())
    (tmp_path / "data" / "a.json").write_text(json.dumps(data))
    path = a_set(tmp_path, entry("fast", draw="fast_rate", file="data/a.json"))
    assert built(path) == 0 and explain(tmp_path / "figures" / "fast.html")[1]
    data["outcomes"][0]["speedup"] = 9.0
    (tmp_path / "data" / "a.json").write_text(json.dumps(data))
    lines, same = explain(tmp_path / "figures" / "fast.html")
    assert not same and any(line.startswith("changed") and "data (digest)" in line for line in lines)
    (tmp_path / "data" / "a.json").unlink()
    assert "There is no file of data" in explain(tmp_path / "figures" / "fast.html")[0][-1]


@pytest.mark.parametrize("facts", [
    {"figure": "cost"}, {"figure": "cost", "looks": 3, "parameters": {}, "data": {}},
    {"figure": "cost", "looks": {"name": "../x"}, "parameters": {}, "data": {"recorded": "*"}},
    {"figure": "cost", "looks": {"name": "x"}, "parameters": {}, "data": {"file": "/etc/passwd"}},
    {"figure": "no such", "looks": {"name": "x"}, "parameters": {}, "data": {"recorded": "*"}},
    {"figure": "cost", "looks": {"name": "x"}, "parameters": {"cost": ["x"]}, "data": {"recorded": "*"}},
    {"figure": "cost", "looks": {"name": "x"}, "parameters": {}, "data": {"tasks": {"a": 1}}},
    {"figure": "cost\x1b[2J", "caption": ["x"], "data": "x", "chips": [1], "runs": 7, "clocks": 3, "drawn_with": "x"}])
def test_facts_of_anybodys_making_are_explained_in_words(tmp_path, capsys, facts):
    from kernel_lab.figures.files.facts import html_meta
    path = tmp_path / "it.html"
    path.write_text(f"<html>{html_meta(facts)}</html>")
    assert run(["figures", "explain", str(path)]) == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err and "\x1b" not in out and "again       cannot be drawn" in out


def test_explain_refuses_what_is_no_figure(tmp_path, capsys):
    (tmp_path / "it.png").write_bytes(b"hello")
    assert run(["figures", "explain", str(tmp_path / "it.png")]) == 2
    assert "does not say where it came from" in capsys.readouterr().err
    assert run(["figures", "explain", str(tmp_path / "gone.png")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_tables_in_three_spellings_hold_the_same_cells(tmp_path):
    path = a_set(tmp_path, '[[table]]\nname = "main"\ndraw = "tasks"\ntasks = ["softmax", "rope_halves"]\n'
                           'formats = ["tex", "csv", "md"]\n')
    assert built(path) == 0
    tex, csv, md = ((tmp_path / "figures" / f"main.{k}").read_text() for k in ("tex", "csv", "md"))
    assert r"rope\_halves" in tex and "rope_halves," in csv and r"rope\_halves" in md
    assert all(rule in tex for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{", r"\label{tab:main}"))
    assert tex.count(r"\\") == 3 and len(csv.splitlines()) == 4 and tex.count("{") == tex.count("}")


@pytest.mark.slow
@pytest.mark.skipif(not PAPER.exists(), reason="no example paper")
def test_the_paper_is_two_pages(tmp_path):
    typst = pytest.importorskip("typst")
    if not (shutil.which("chromium") or shutil.which("google-chrome")): pytest.skip("no chromium")
    home = tmp_path / "paper"
    shutil.copytree(PAPER.parent / "data", home / "data")
    shutil.copy(PAPER.parent / "paper.typ", home)
    (home / "FIGURES.toml").write_text(PAPER.read_text().replace('["pdf", "png", "svg", "html"]', '["pdf"]'))
    assert all(good for _, good in build_lines(home / "FIGURES.toml"))
    pages = [typst.compile(str(home / "paper.typ"), root=str(home), ignore_system_fonts=True) for _ in range(2)]
    assert pages[0] == pages[1] and len(re.findall(rb"/Type\s*/Page\b", pages[0])) == 2


def test_formats_are_the_documented_ones():
    assert FIGURE_FORMATS == ("pdf", "png", "svg", "html")
    with pytest.raises(UsageError): material({"file": "data/ablation.json"}, ROOT / "nbs")
