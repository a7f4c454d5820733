"""The lessons: what a student gets, that it suffices, and that it holds no solution."""
import json
import os
import re
from pathlib import Path

import pytest

from kernel_lab.nki.chip.chips import get_chip
from kernel_lab.puzzles.grade import grade, handed_in, notebook_answers
from kernel_lab.puzzles.kernel_text import kernel_of, own_text
from kernel_lab.puzzles.ladder import PUZZLES
from kernel_lab.puzzles.puzzle import Puzzle
from kernel_lab.puzzles.student_copy import SOLUTION_TAG, lesson_files
from kernel_lab.puzzles.tile_puzzles import normal

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "nbs" / "lessons").glob("[0-9]*.ipynb"))


def cells(path): return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell): return "".join(cell["source"])


def puzzles_of(path):
    "The puzzles that a lesson opens, by name."
    return re.findall(r"get_puzzle\('([^']+)'\)", "\n".join(source(c) for c in cells(path) if c["cell_type"] == "code"))


@pytest.fixture(params=LESSONS, ids=lambda p: p.stem)
def lesson(request): return request.param


def test_a_lesson_has_a_picture_first_and_a_puzzle_with_a_solution(lesson):
    code = [c for c in cells(lesson) if c["cell_type"] == "code"]
    first = next(c for c in code if c["outputs"])
    assert any("application/vnd.plotly.v1+json" in o.get("data", {}) for o in first["outputs"]), "no picture first"
    assert puzzles_of(lesson) and any(SOLUTION_TAG in c["metadata"].get("tags", []) for c in code)
    number = int(lesson.stem[:2])
    assert {PUZZLES[name].lesson for name in puzzles_of(lesson)} == {f"Lesson {number}"}
    says = re.search(rf"^> Lesson {number}: .*About (\d+) minutes", source(cells(lesson)[0]), re.M)
    assert int(says[1]) <= 30


def test_a_bound_in_the_text_is_that_of_a_puzzle_of_the_lesson(lesson):
    "Lesson 12 went on saying 35.1 µs after the rate of DMA had become another."
    text = "\n".join(source(c) for c in cells(lesson) if c["cell_type"] == "markdown")
    bounds = {f"{PUZZLES[name].bound.us:.1f}" for name in puzzles_of(lesson)}
    assert set(re.findall(r"[Nn]o kernel can do it in less than ([\d.]+) µs", text)) <= bounds


def test_the_start_in_a_lesson_is_that_of_its_puzzle(lesson):
    "The body of a start stands in a cell, so that a student can change it."
    body = lambda text: text.split("\n", 1)[1].strip()
    code = [source(c) for c in cells(lesson) if c["cell_type"] == "code"]
    for name in puzzles_of(lesson):
        start = own_text(kernel_of(PUZZLES[name].start))
        assert any(body(start) in text for text in code), name


def test_a_lesson_that_is_handed_in_is_read(lesson, tmp_path):
    "All its puzzles are found; a start that nobody changed is nobody's work, a changed one is."
    text = lesson.read_text(encoding="utf-8")
    found = notebook_answers(text)
    assert set(found) == set(puzzles_of(lesson))
    (tmp_path / "anna.ipynb").write_text(text, encoding="utf-8")
    assert [h.wrong for h in handed_in(tmp_path)] == [
        "anna.ipynb: It checks no kernel of its own. A cell ends with puzzle.check(kernel)."]
    (tmp_path / "anna.ipynb").write_text(text.replace("return out", "return  out + 0"), encoding="utf-8")
    assert [(h.student, h.puzzle, "out + 0" in h.source) for h in handed_in(tmp_path)] == [
        ("anna", name, True) for name in found]


def test_what_is_no_file_is_left_out_of_a_class(tmp_path):
    "A link to itself, and a pipe, which nobody could read to its end."
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "ben.json").write_text("no json")
    marks = grade(tmp_path)
    assert marks.students == ["ben"] and [line.split(",")[0] for line in marks.csv().splitlines()] == ["student", "ben"]
    for name in ("loop.json", "pipe.json"):
        assert f"{name} is left out: it is no file and no folder." in marks.remarks()


SOLVED = {"01_one_tile": "one tile", "06_engines_in_parallel": "three squares", "12_from_three_to_sixty": "alone"}


@pytest.mark.parametrize("stem", SOLVED)
def test_a_solved_lesson_is_graded_as_it_was_answered(stem, tmp_path):
    "Whatever names of the lab its cells import: they stay behind, as they do in the lesson."
    name, lesson = SOLVED[stem], ROOT / "nbs" / "lessons" / f"{stem}.ipynb"
    nb = json.loads(lesson.read_text(encoding="utf-8"))
    start, answer = (own_text(kernel_of(k)).replace("def kernel", "def mine") for k in (PUZZLES[name].start, PUZZLES[name].answer))
    assert start != answer
    nb["cells"].append({"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None,
                        "source": f"{answer}\nmine_is_right = get_puzzle('{name}').check(mine)"})
    (tmp_path / "anna.ipynb").write_text(json.dumps(nb), encoding="utf-8")
    table = grade(tmp_path)
    assert [(m.student, m.puzzle, m.right, m.met) for m in table.marks] == [("anna", name, True, True)], str(table)


def test_every_instruction_of_a_solution_is_explained_before_it_is_needed(lesson):
    "What a solution calls stands in the lesson before its solution, or in a lesson before it."
    known = "".join(source(c) for earlier in LESSONS if earlier.stem < lesson.stem for c in cells(earlier))
    known += "".join(source(c) for c in cells(lesson) if SOLUTION_TAG not in c["metadata"].get("tags", []))
    for name in puzzles_of(lesson):
        for word in set(re.findall(r"\b(?:nisa|nl)\.\w+", own_text(kernel_of(PUZZLES[name].answer)))):
            assert word in known or word.split(".")[1] in known, (name, word)


FUSED = """def kernel(x_t, w, gain):
    K, M = x_t.shape
    K, N = w.shape
    out = nl.ndarray((M, N), dtype=x_t.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, K // 128, M), dtype=x_t.dtype, buffer=nl.sbuf)
    b = nl.ndarray((128, K // 128, N), dtype=w.dtype, buffer=nl.sbuf)
    g = nl.ndarray((128, N), dtype=gain.dtype, buffer=nl.sbuf)
    for k in nl.affine_range(K // 128):
        nisa.dma_copy(dst=a[:, k, :], src=x_t[k * 128:(k + 1) * 128, :])
        nisa.dma_copy(dst=b[:, k, :], src=w[k * 128:(k + 1) * 128, :])
    nisa.dma_copy(dst=g, src=gain.broadcast(dim=0, size=128))
    for m in nl.affine_range(M // 128):
        for n in nl.affine_range(N // 512):
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(K // 128):
                nisa.nc_matmul(dst=acc, stationary=a[:, k, m * 128:(m + 1) * 128],
                               moving=b[:, k, n * 512:(n + 1) * 512])
            bent = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=bent, op=nl.tanh, data=acc)
            result = nl.ndarray((128, 512), dtype=x_t.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=result, data1=bent, data2=g[:, n * 512:(n + 1) * 512], op=nl.multiply)
            nisa.dma_copy(dst=out[m * 128:(m + 1) * 128, n * 512:(n + 1) * 512], src=result)
    return out
"""


@pytest.mark.parametrize("k, m, n", [(512, 512, 1024), (1024, 1024, 2048)])
def test_seven_lessons_are_enough_for_a_fused_kernel(k, m, n, tmp_path, monkeypatch):
    "A product, a function and a row of gains at once, above 60 % of its bound, with what lessons 1-5, 7 and 9 teach."
    monkeypatch.setenv("KERNEL_LAB_HOME", str(tmp_path))
    taught = "".join(source(c) for p in LESSONS if int(p.stem[:2]) in (1, 2, 3, 4, 5, 7, 9) for c in cells(p))
    for word in set(re.findall(r"\b(?:nisa|nl)\.\w+|\.broadcast", FUSED)): assert word in taught, word
    fused = Puzzle("fused", lambda x_t, w, gain: (x_t.T @ w).tanh() * gain,
                   normal(x_t=(k, m), w=(k, n), gain=(1, n)), goal=0.6, dtype="bfloat16")
    answer = fused.check(FUSED, seconds=10)
    assert answer.met, str(answer)


def test_all_pages_say_one_size_of_sbuf(lesson):
    "208 KiB of a partition are a kernel's; lesson 2 says why the chip has 16 more."
    chip = get_chip("trn2")
    assert chip.sbuf_bytes - chip.sbuf_reserved == 208 * 2**10
    text = "\n".join(source(c) for c in cells(lesson))
    others = {f"{n} KiB" for n in (192, 224, 256)} | {"57,344", ".sbuf_bytes //"}
    assert {w for w in others if w in text} == ({"224 KiB"} if lesson.stem.startswith("02") else set())


def test_a_student_gets_no_solution_and_no_output():
    assert [f.name for f in lesson_files()] == [p.name for p in LESSONS]
    for f in lesson_files():
        made = json.loads(f.read_text(encoding="utf-8"))["cells"]
        assert not [c for c in made if c.get("outputs") or SOLUTION_TAG in c["metadata"].get("tags", [])]
        text = "\n".join(source(c) for c in made)
        for name in puzzles_of(ROOT / "nbs" / "lessons" / f.name):
            answer = own_text(kernel_of(PUZZLES[name].answer)).split("\n", 1)[1].strip()
            assert answer not in text.replace("# one tile for all turns", ""), (f.name, name)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("lesson", [p if p.stem[:2] in ("01", "05", "09", "12") else pytest.param(p, marks=pytest.mark.slow)
                                    for p in LESSONS], ids=lambda p: p.stem, indirect=True)
def test_a_students_copy_runs_from_top_to_bottom_and_out_of_order(lesson, tmp_path, monkeypatch):
    from execnb.shell import CaptureShell
    monkeypatch.setenv("KERNEL_LAB_HOME", str(tmp_path))
    made = json.loads((ROOT / "kernel_lab" / "puzzles" / "lessons" / lesson.name).read_text(encoding="utf-8"))["cells"]
    code = [source(c) for c in made if c["cell_type"] == "code"]
    shell = CaptureShell()
    for text in [*code, *[t for t in code if "check(" in t or "hint()" in t][::-1]]:
        done = shell.run_cell(text)
        assert not done.exception, (text, done.exception)
