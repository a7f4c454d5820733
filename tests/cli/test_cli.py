"""The commands as a person meets them: in a process of their own, with what they print, write and answer."""
import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
from gpu_gallery import RELU_IN_TRITON
from loopback import Say, Server
from kernel_lab.cli.app import COMMANDS, GROUPS, command_table, run
from kernel_lab.tasks.suite.registry import get_task

KERNEL_LAB = str(Path(sys.executable).with_name("kernel-lab"))
FAKE_KEY = "sk-" + "ant-0000-not-a-key"


def environment(folder):
    return {**os.environ, "KERNEL_LAB_HOME": str(folder / "home"), "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture
def env(tmp_path): return environment(tmp_path)


@pytest.fixture
def lab(tmp_path, env):
    "`lab('tasks', 'softmax')` → the finished process, run in an empty folder with a store of its own."
    def call(*words, input=None):
        command = [KERNEL_LAB, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, input=input, timeout=300)
    return call


@pytest.fixture
def here(tmp_path, env, monkeypatch, capsys):
    "As `lab`, but in this process, which has imported everything already."
    monkeypatch.chdir(tmp_path)
    for name in ("KERNEL_LAB_HOME", "COLUMNS", "NO_COLOR", "TERM"): monkeypatch.setenv(name, env[name])
    def call(*words):
        capsys.readouterr()
        code = run(list(map(str, words)))
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)
    return call


@pytest.fixture(scope="module")
def softmax():
    "The text of softmax's first kernel."
    return get_task("softmax").first(None).source


def refused(done, code, *said):
    "The command ended with `code`, said these things, and showed nothing of ours."
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert "Traceback" not in text and "site-packages" not in text, text
    for word in said: assert re.search(word, text), f"{word!r} is not in: {text}"


# --- help ---

@pytest.fixture(scope="module")
def helps(tmp_path_factory):
    "[(the finished `kernel-lab --help`, seconds of the processor that it took)], three times."
    folder, made = tmp_path_factory.mktemp("help"), []
    for _ in range(3):
        before = work()
        done = subprocess.run([KERNEL_LAB, "--help"], capture_output=True, text=True, cwd=folder, env=environment(folder))
        made.append((done, work() - before))
    return made


def test_help_names_every_command_and_says_simulated(helps):
    done, _ = helps[0]
    assert done.returncode == 0 and "simulated" in done.stdout
    for name in (*COMMANDS, *GROUPS): assert re.search(rf"\b{name}\b", done.stdout)


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_help_of_a_command(name, capsys):
    assert run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage" in text and len(text) > 300


def test_command_table_covers_every_command():
    assert list(dict.fromkeys(usage.split()[1] for usage, _ in command_table())) == [*COMMANDS, *GROUPS]


def work():
    """Seconds that processors spent on the processes this one has waited for: unlike the clock, hardly more on a busy
    machine."""
    t = os.times()
    return t.children_user + t.children_system


def test_help_is_quick(helps):
    assert {done.returncode for done, _ in helps} == {0} and 0.05 < min(seconds for _, seconds in helps) < 2


# --- wrong commands: exit code 2, one paragraph, the valid names ---

@pytest.mark.parametrize("words, said", [
    (("evaluate", "sofmax", "k.py"), ["no task 'sofmax'", "softmax", "250 in all"]),
    (("evaluate", "softmax", "none.py"), ["Cannot read", "No such file"]),
    (("evaluate", "softmax", "k.py", "--chip", "h100"), ["no chip 'h100'", "trn1", "trn2"]),
    (("evaluate", "softmax", "k.py", "-w", "huge"), ["workload", "full", "small"]),
    (("evaluate", "softmax", "k.py", "--bogus"), ["No such option"]),
    (("evaluate", "softmax"), ["KERNEL.py"]),
    (("profile", "k.py"), ["--shape"]),
    (("profile", "k.py", "--shape", "128,512"), ["128x512:float32"]),
    (("profile", "k.py", "--shape", "128x512:float31"), ["float32"]),
    (("optimize",), ["TASK", "--resume", "--shape"]),
    (("optimize", "softmax", "--agent", "oracle"), ["no agent 'oracle'", "rewrite", "react"]),
    (("optimize", "softmax", "--steps", "0"), ["--steps"]),
    (("optimize", "--resume", "nothing"), ["no run 'nothing'"]),
    (("report", "nothing"), ["no run 'nothing'"]),
    (("export", "rows.xlsx"), [r"\.parquet, \.csv or \.jsonl"]),
    (("export", "rows.csv", "--run", "nothing"), ["no run 'nothing'"]),
    (("tasks", "--kernel"), ["kernel-lab tasks lists them"]),
    (("demo", "-w", "small", "--out", "no/such/folder/report.html"), ["Cannot write"]),
    (("frobnicate",), ["No such command"]),
], ids=lambda x: " ".join(x) if isinstance(x, tuple) else "")
def test_wrong_command(here, tmp_path, words, said):
    (tmp_path / "k.py").write_text("def k(x): return x\n")
    refused(here(*words), 2, *said)


def test_a_wrong_command_in_a_process(lab): refused(lab("evaluate", "sofmax", "k.py"), 2, "no task 'sofmax'")


# --- wrong kernels: exit code 1, the status, the line ---

HEAD = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n@nki.jit\ndef kernel(x):\n"
BAD = {
    "parse_error": ("def kernel(x):\n    return x +\n", "line 2"), "no_entry": ("x = 1\n", "entry|function"),
    "trace_error": (HEAD + "    return x.no_such_thing\n", "line 7"),
    "wrong_shape": (HEAD + "    return nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.shared_hbm)\n",
                    "shape|uninitialised|written"),
    "limit_exceeded": (HEAD + "    t = nl.ndarray((130, 8), dtype=x.dtype, buffer=nl.sbuf)\n    nisa.dma_copy(dst=t, "
                       "src=x[0:130, 0:8])\n"
                       "    return x\n", "line [78].*130|130.*128|128.*130"),}


@pytest.mark.parametrize("status", BAD)
def test_wrong_kernel(here, tmp_path, status):
    source, said = BAD[status]
    (tmp_path / "bad.py").write_text(source)
    done = here("evaluate", "softmax", "bad.py", "-w", "small")
    refused(done, 1, said)
    assert re.match(rf"{status}|uninitialised",
                    done.stdout) if status == "wrong_shape" else done.stdout.startswith(status), done.stdout


def test_wrong_kernel_has_no_time_in_json(here, tmp_path):
    (tmp_path / "bad.py").write_text(BAD["parse_error"][0])
    done = here("evaluate", "softmax", "bad.py", "-w", "small", "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["status"], record["profile"]) == (1, "parse_error", None)


def test_profile_of_a_wrong_kernel(here, tmp_path):
    (tmp_path / "bad.py").write_text(BAD["limit_exceeded"][0])
    refused(here("profile", "bad.py", "--shape", "256x64"), 1, "128")
    refused(here("profile", "softmax", "bad.py", "-w", "small"), 1, "128")


# --- good ones ---

def test_evaluate_round_trip(lab, here):
    source = here("tasks", "softmax", "--kernel").stdout
    done = lab("evaluate", "softmax", "-", "-w", "small", "--json", input=source)
    record = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (record["status"], record["profile"]["kind"]) == ("correct", "simulated")
    assert len({r["seed"] for r in record["verification"]["seeds"]}) >= 3


def test_profile_by_shape_says_that_nobody_checked(here, tmp_path, softmax):
    (tmp_path / "k.py").write_text(softmax)
    done = here("profile", "k.py", "--shape", "256x256:float32", "--timeline", "t.html")
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout and "Not verified" in done.stdout and "line" in done.stdout
    assert "plotly" in (tmp_path / "t.html").read_text().lower()


def test_python_outside_the_language_is_said_and_strict_refuses_it(here, tmp_path, softmax):
    listed = softmax.replace("    rows, cols = x.shape\n", "    rows, cols = [n for n in x.shape]\n")
    assert listed != softmax
    (tmp_path / "k.py").write_text(listed)
    (tmp_path / "good.py").write_text(softmax)
    outside = r"Line \d+: a list comprehension is outside the Python"
    calls = (("evaluate", "softmax", "k.py", "-w", "small"), ("evaluate", "softmax", "k.py", "good.py", "-w", "small"),
             ("profile", "softmax", "k.py", "-w", "small"), ("profile", "k.py", "--shape", "256x256"))
    for words in calls:
        done = here(*words)
        assert done.returncode == 0 and re.search(outside, done.stdout + done.stderr), (words, done)
        refused(here(*words, "--strict"), 1, "a list comprehension is outside the Python")
    assert here("evaluate", "softmax", "good.py", "-w", "small", "--strict").returncode == 0


@pytest.mark.parametrize("option, name", [("--animation", "k.py"), ("--perfetto", "k.py"), ("--timeline", "k.py"),
                                          ("--animation", "./x.py"), ("--perfetto", "k.py.gz"), ("--perfetto", "h.json")])
def test_profile_never_writes_over_its_kernel(here, tmp_path, softmax, option, name):
    "Refused before any work: an ending that the help does not promise, and the kernel under any name."
    kept = "h.json" if name == "h.json" else "k.py"
    (tmp_path / kept).write_text(softmax)
    refused(here("profile", kept, "--shape", "256x256", option, name), 2, "would replace|the name ends in")
    assert {p.name: p.read_text() for p in tmp_path.glob("*.*")} == {kept: softmax}


@pytest.mark.parametrize("damage", ["update kernel_lab set value = 'abc'",
                                    "update runs set config = cast(x'7bff7d' as text)"])
def test_a_damaged_store_is_called_damaged(here, tmp_path, damage):
    assert here("optimize", "relu", "-w", "small", "--steps", "1").returncode == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "home" / "lab.sqlite3")) as c, c: c.execute(damage)
    refused(here("report", "latest"), 2, "The store .*lab.sqlite3 is damaged", "Move it away")


@pytest.mark.slow
def test_demo_at_full_size(lab, tmp_path):
    before = work()
    done = lab("demo")
    seconds = work() - before
    assert done.returncode == 0, done.stdout + done.stderr
    assert 5 < seconds < 60, f"the demo took {seconds:.0f} s of processor time"
    rows = [line for line in done.stdout.splitlines() if re.match(r" *\d+  ", line)]
    assert 2 <= len(rows) <= 11 and "first kernel" in rows[0] and "simulated" in done.stdout
    page = (tmp_path / "report.html").read_text()
    assert "simulated" in page and not re.search(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?(?:https?:)?//', page)
    for place in ("report.html", "best_rmsnorm_matmul.py"): assert str(tmp_path / place) in done.stdout
    best = re.search(r"best: .* (\d+\.\d+)×", done.stdout)
    assert float(best[1]) > 1
    again = lab("evaluate", "rmsnorm_matmul", "best_rmsnorm_matmul.py", "--json")
    assert json.loads(again.stdout)["status"] == "correct"


@pytest.mark.parametrize("cut", [False, True])
def test_demo_and_report_leave_what_is_there(here, tmp_path, monkeypatch, cut):
    "A page and a kernel of the user stay, also where Ctrl-C ends the demo; only `--out` replaces."
    from kernel_lab.cli.agents import optimize
    theirs = {"report.html": "my page", "best_relu.py": "my kernel"}
    for name, text in theirs.items(): (tmp_path / name).write_text(text)
    if cut:
        real = optimize.step_until_done
        monkeypatch.setattr(optimize, "step_until_done", lambda loop: real(loop) or KeyboardInterrupt())
    done = here("demo", "--task", "relu", "-w", "small", "--steps", "1")
    assert done.returncode == (130 if cut else 0), done.stdout + done.stderr
    for name in ("report_2.html", "best_relu_2.py"): assert str(tmp_path / name) in done.stdout, done.stdout
    assert here("report").stdout.split()[-1] == str(tmp_path / "report_3.html")
    assert {name: (tmp_path / name).read_text() for name in theirs} == theirs
    assert here("report", "--out", "report.html").returncode == 0
    assert (tmp_path / "report.html").stat().st_size > 100_000
    refused(here("report", "--out", "best_relu.py"), 2, "--out best_relu.py: the name ends in .html")
    assert (tmp_path / "best_relu.py").read_text() == "my kernel"


def test_demo_without_a_step_writes_and_promises_nothing(here, tmp_path, monkeypatch):
    from kernel_lab.cli.agents import optimize
    monkeypatch.setattr(optimize, "step_until_done", lambda loop: KeyboardInterrupt())
    done = here("demo", "--task", "relu", "-w", "small")
    assert done.returncode == 130 and "nothing is stored" in done.stderr
    assert not re.search("report |store |run ", done.stdout) and [p.name for p in tmp_path.iterdir()] == ["home"]


def test_interrupt_keeps_the_run_and_resume_goes_on(here, tmp_path, env):
    started = subprocess.Popen([KERNEL_LAB, "optimize", "relu", "-w", "small"], cwd=tmp_path,
                               env={**env, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in started.stdout:
        if "first kernel" in line: break
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130 and "Traceback" not in err, out + err
    said = re.search(r"kernel-lab optimize --resume (\w+)", err)
    assert said, out + err
    assert "interrupted" in here("runs").stdout
    done = here("optimize", "--resume", said[1], "--steps", "1", "--out", "best.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first kernel" in done.stdout and (tmp_path / "best.py").exists()
    assert "finished" in here("runs").stdout


START = [sys.executable, "-c", "from kernel_lab.cli.entry import start; start()"]


@pytest.mark.parametrize("seconds", [pytest.param(s, marks=pytest.mark.slow) if s in (0.15, 0.6, 2.4, 4.8) else s
                                     for s in (0.15, 0.3, 0.6, 1.2, 2.4, 4.8)])
def test_interrupt_at_any_moment(tmp_path, env, seconds):
    "While it imports, starts the sandbox, captures, traces: 130 and nothing of ours."
    python, option, ours = START
    started = subprocess.Popen([python, option, f"open('begun', 'w').close(); {ours}", "optimize", "rmsnorm_matmul"],
                               cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "begun").exists(): time.sleep(0.001)      # before that Python answers, not the lab
    with contextlib.suppress(subprocess.TimeoutExpired): started.wait(seconds)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=120)
    assert started.returncode == 130 and "Traceback" not in err, out + err


def test_bench_says_how_to_go_on_after_a_second_interrupt(here, monkeypatch):
    from kernel_lab.cli.agents import bench
    monkeypatch.setattr(bench, "with_progress", lambda *a: signal.raise_signal(signal.SIGINT))
    done = here("bench", "--task", "relu", "-w", "small", "--jobs", "2")
    suite = re.match(r"suite (\w+):", done.stdout)[1]
    assert done.returncode == 130 and f"Go on with: kernel-lab bench --resume {suite}" in done.stderr


def test_bench_says_how_to_go_on_after_a_third_interrupt(here, monkeypatch):
    from kernel_lab.cli.agents import bench
    real, left = bench.say, [1]
    def say(*lines, **kw):
        if kw.get("err") and left: left.pop(), signal.raise_signal(signal.SIGINT)
        real(*lines, **kw)
    monkeypatch.setattr(bench, "say", say)
    monkeypatch.setattr(bench, "with_progress", lambda *a: signal.raise_signal(signal.SIGINT))
    done = here("bench", "--task", "relu", "-w", "small")
    assert done.returncode == 130 and not left and "Go on with: kernel-lab bench --resume" in done.stderr


@pytest.mark.parametrize("words", [("tasks",), ("tasks", "softmax", "--kernel"), ("profile", "k.py", "--shape", "256x256"),
                                   ("profile", "k.py", "--shape", "256x256", "--json")])
def test_a_closed_output_is_no_wrong_kernel(tmp_path, env, softmax, words):
    "Who reads has ended, as `head` does: the code of a program that SIGPIPE ends."
    (tmp_path / "k.py").write_text(softmax)
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as closed:
        done = subprocess.run([*START, *words], stdout=closed, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=env,
                              timeout=300)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_file_of_another_kind_is_called_what_it_is(here, tmp_path, softmax):
    (tmp_path / "nb.ipynb").write_text('{"cells": [], "x": null}')
    (tmp_path / "k.py").write_text(softmax)
    refused(here("profile", "nb.ipynb", "--shape", "1x1"), 2, "nb.ipynb is a notebook", "%%writefile")
    refused(here("compile", "k.py"), 2, "is written in NKI", "kernel-lab profile k.py")
    refused(here("profile", "k.py", "--shape", "128X64:FLOAT32"), 2, "Did you mean 'float32'")


@pytest.mark.slow
def test_interrupt_keeps_what_came_of_many(here, tmp_path, env, softmax):
    """A folder with a kernel that never ends: Ctrl-C after the first row. The row is there, nothing is left running,
    and the same command knows it."""
    (tmp_path / "some").mkdir()
    for name, text in {"a": softmax,
                       "b": "def kernel(x):\n    while True: pass\n"}.items():
        (tmp_path / "some" / f"{name}.py").write_text(text)
    command = [KERNEL_LAB, "evaluate", "softmax", "some", "-w", "small", "--workers", "1", "--seconds", "30"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                               env={**env, "PYTHONUNBUFFERED": "1"})
    rows = [process.stdout.readline() for _ in range(2)]
    assert rows[0].startswith("status") and re.match(r"correct +[\d.,]+ +1.00× +[\d.]+ +some/a.py$", rows[1])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (
        process.returncode == 130
        and "1 kernel: 1 correct" in out
        and "Interrupted after 1 of 2 kernels; what came is kept" in err
        and "Traceback" not in err
    )
    done = here("evaluate", "softmax", "some", "-w", "small", "--workers", "1", "--seconds", "1", "--json")
    found = {r["file"]: r for r in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1 and [(r["status"], r["cached"]) for _, r in sorted(found.items())] == [
        ("correct", True), ("timeout", False)] and done.stderr == ""


def test_a_folder_goes_on_after_a_file_that_is_no_text(here, tmp_path, softmax):
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "good.py").write_text(softmax)
    words = "evaluate", "softmax", "-w", "small", "--workers", "1"
    one = here(*words, "some", "--json")
    assert one.returncode == 0 and [json.loads(line)["file"] for line in one.stdout.splitlines()] == ["some/good.py"]
    (tmp_path / "some" / "binary.py").write_bytes(b"\xff\xfe\x00")
    done = here(*words, "some", "some/../some", "./some/good.py")
    assert (
        done.returncode == 1
        and "2 kernels: " in done.stdout
        and "1 correct" in done.stdout
        and "1 unreadable" in done.stdout
    ), (done.stdout + done.stderr)
    assert re.search(r"unreadable .*some/binary.py  \(Cannot read.*not UTF-8 text", done.stdout)
    found = [json.loads(line) for line in here(*words, "some", "--json").stdout.splitlines()]
    assert {r["file"]: r["status"] for r in found} == {"some/good.py": "correct", "some/binary.py": "unreadable"}
    refused(here("evaluate", "softmax", "some/binary.py"), 2, "not UTF-8 text")


def test_a_broken_row_costs_itself_only(here, tmp_path, softmax):
    for n in range(2): (tmp_path / f"k{n}.py").write_text(softmax + f"# {n}\n")
    words = "evaluate", "softmax", "-w", "small"
    ids = [json.loads(here(*words, f"k{n}.py", "--json").stdout)["id"] for n in range(2)]
    with contextlib.closing(sqlite3.connect(tmp_path / "home" / "lab.sqlite3")) as c, c:
        c.execute("update evaluations set body = substr(body, 1, 99) where id = ?", ids[:1])
    done = here("export", "rows.jsonl")
    found = {json.loads(line)["evaluation"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()}
    assert done.returncode == 0 and ids[1] in found and ids[0] not in found
    assert re.search(f"left out    evaluation {ids[0]}: it cannot be read: JSONDecodeError",
                     done.stdout) and "Traceback" not in done.stderr
    again = [json.loads(here(*words, f"k{n}.py", "--json").stdout) for n in range(2)]
    assert [r["status"]
            for r in again] == ["correct"] * 2 and [r["cached"]
                                                    for r in again] == [False, True] and again[0]["id"] not in ids


@pytest.mark.parametrize("more", [[], ["--json"], ["--fresh"], ["--workers", "1"], ["--workers", "1", "--json"]])
def test_a_full_disk_costs_no_verdict(here, tmp_path, softmax, monkeypatch, more):
    from kernel_lab.core.errors import UsageError
    from kernel_lab.evaluate.store.store import Store
    def full(*made, **more): raise UsageError("The store x cannot grow: the disk is full.")
    monkeypatch.setattr(Store, "save_evaluation", full)
    (tmp_path / "k.py").write_text(softmax)
    done = here("evaluate", "softmax", "k.py", "-w", "small", *more)
    refused(done, 2, "not stored. The store x cannot grow: the disk is full")
    if "--json" in more: assert json.loads(done.stdout)["status"] == "correct"
    else: assert re.search("^correct ", done.stdout, re.M), done.stdout


def test_a_home_that_cannot_be_made_costs_no_verdict(here, tmp_path, softmax):
    "Where your own store cannot be; one that is named is refused."
    (tmp_path / "k.py").write_text(softmax)
    (tmp_path / "home").write_text("no folder")
    words = "evaluate", "softmax", "k.py", "-w", "small", "--json"
    done = here(*words)
    refused(done, 2, "shown, not stored. The store .* cannot be made")
    assert json.loads(done.stdout)["status"] == "correct"
    done = here(*words, "--store", tmp_path / "home" / "lab.sqlite3")
    refused(done, 2, "cannot be made")
    assert done.stdout == ""


def test_optimize_prints_a_kernel_that_it_cannot_write(here, tmp_path, monkeypatch):
    from kernel_lab.cli.agents import optimize as optimize_file
    def full(*a): raise OSError(28, "No space left on device")
    (tmp_path / "k.py").write_text(TWO_PASSES)
    monkeypatch.setattr(optimize_file, "write_whole", full)
    done = here("optimize", "k.py", "--shape", "512x512", "--seconds", "2", "--out", "best.py")
    refused(done, 2, "Cannot write best.py: No space left on device. The kernel is printed instead")
    assert "@nki.jit\ndef passes(x):" in done.stdout and not (tmp_path / "best.py").exists()


def test_a_run_with_a_broken_row(here, tmp_path):
    store = tmp_path / "other.sqlite3"
    assert here("optimize", "softmax", "-w", "small", "--steps", "1", "--store", store).returncode == 0
    with contextlib.closing(sqlite3.connect(store)) as c, c:
        id, = c.execute("update evaluations set body = '[]' where id = (select evaluation from steps where number = "
                        "0) returning id").fetchone()
    for words in (("report",), ("optimize", "--resume", "latest")):
        refused(here(*words, "--store", store), 2, f"holds evaluation {id}, but cannot read it", "export PATH")
    assert json.loads(here("runs", "--json", "--store", store).stdout)[0]["state"] == "finished"
    assert "No runs yet" in here("runs").stdout


def test_a_failing_report_leaves_what_was_there(tmp_path, monkeypatch):
    from kernel_lab.figures import report
    (tmp_path / "r.html").write_text("yesterday")
    for name, made in {"report_figures": lambda *a: {}, "report_page": lambda *a: "half \ud800"}.items():
        monkeypatch.setattr(report, name, made)
    with pytest.raises(UnicodeEncodeError): report.report_html(SimpleNamespace(task="softmax"), tmp_path / "r.html")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("r.html", "yesterday")]


def test_a_failing_export_leaves_what_was_there(here, tmp_path, softmax):
    (tmp_path / "good.py").write_text(softmax)
    refused(here("export", "x.csv", "--task", "softmax"), 2, "is empty")
    assert here("evaluate", "softmax", "-w", "small", "good.py").returncode == 0
    assert re.search("No runs yet.*\n1 evaluation without a run", here("runs").stdout)
    assert here("export", "x.csv", "--task", "softmax").stdout.startswith("rows        1 in")
    before = (tmp_path / "x.csv").read_text()
    refused(here("export", "x.csv", "--task", "softmx"), 2, "store has no task 'softmx'", "Did you mean 'softmax'")
    assert (tmp_path / "x.csv").read_text() == before and not list(tmp_path.glob("*.part"))


def test_optimize_starts_from_a_file(here, lab, tmp_path, softmax):
    (tmp_path / "mine.py").write_text(softmax + "\n# mine\n")
    done = here("optimize", "softmax", "mine.py", "-w", "small", "--steps", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split()[0] for line in done.stdout.splitlines() if re.match(r" *\d+  ", line)]
    assert rows[:2] == ["0", "1"]
    assert lab("report", "latest", "--out", "r.html").returncode == 0 and (tmp_path / "r.html").stat().st_size > 100_000
    run = json.loads(here("runs", "--json").stdout)[0]
    assert (run["task"], run["state"]) == ("softmax",
                                           "finished") and run["steps"] == len(rows) and run["over_eager"] > 0
    assert here("export", "rows.parquet", "--run", "latest").returncode == 0
    frame = pandas.read_parquet(tmp_path / "rows.parquet")
    assert list(frame.step) == list(range(len(rows))) and frame.latency_us.min() == run["best_us"] and set(
        frame.latency_kind.dropna()) == {"simulated"}
    assert here("export", "traces", "--format", "flashinfer").returncode == 0 and list(
        (tmp_path / "traces" / "traces").rglob("*.jsonl"))


TWO_PASSES = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def passes(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    half = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
    for i in nl.affine_range(4):
        t = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        u = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        nisa.tensor_scalar(dst=u, data=t, op0=nl.multiply, operand0=0.5)
        nisa.dma_copy(dst=half[128 * i:128 * (i + 1), :], src=u)
    for j in nl.affine_range(4):
        v = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        w = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=v, src=half[128 * j:128 * (j + 1), :])
        nisa.activation(dst=w, op=nl.exp, data=v)
        nisa.dma_copy(dst=out[128 * j:128 * (j + 1), :], src=w)
    return out
"""


def test_optimize_takes_a_kernel_by_its_shapes(here, tmp_path):
    "A line a move, the source beside the kernel and never over it; what is optimised already says why it stays."
    (tmp_path / "mine.py").write_text(TWO_PASSES)
    done = here("optimize", "mine.py", "--shape", "512x512", "--chip", "trn2", "--seconds", "20", "--figure", "f.html")
    assert done.returncode == 0, done.stdout + done.stderr
    moves = re.findall(r"([\d.]+) µs → +([\d.]+) µs  (.+): ", done.stdout)
    assert moves and all(float(a) >= float(b) for a, b, _ in moves) and "simulated on trn2" in done.stdout
    assert (tmp_path / "mine.py").read_text() == TWO_PASSES and (tmp_path / "f.html").stat().st_size > 100_000
    again = here("optimize", "mine_optimised.py", "--shape", "512x512", "--chip", "trn2", "--seconds", "20")
    assert again.returncode == 0 and "of the time" in again.stdout and "nothing was written" in again.stdout
    over = here("optimize", "mine.py", "--shape", "512x512", "--chip", "trn2", "--seconds", "20", "--out", "mine.py")
    assert over.returncode == 0 and (tmp_path / "mine.py").read_text() != TWO_PASSES
    assert sorted(p.name for p in tmp_path.glob("*.py")) == ["mine.py", "mine_optimised.py"]


@pytest.mark.parametrize("words, code, said", [
    (("mine.py", "--shape", "512x512", "--chip", "h100"), 2, "no chip"),
    (("mine.py", "--shape", "512x512", "--search", "luck"), 2, "^kernel-lab: There is no search"),
    (("mine.py", "--shape", "512x"), 2, "whole numbers"),
    (("none.py", "--shape", "512x512"), 2, "Cannot read"),
    (("mine.py", "--shape", "512x512", "--out", "nowhere/x.py"), 2, "no folder"),
    (("softmax", "mine.py", "--shape", "512x512"), 2, "no task"),
    (("mine.py", "--shape", "128x512"), 1, "x"),
    (("mine.py", "--shape", "512x512", "--shape", "512x512"), 1, "argument|input")])
def test_optimize_refuses_a_file_in_a_line(here, tmp_path, words, code, said):
    (tmp_path / "mine.py").write_text(TWO_PASSES)
    refused(here("optimize", *words), code, said)
    assert [p.name for p in tmp_path.glob("*.py")] == ["mine.py"]


def test_optimize_says_that_a_grid_of_a_decorator_is_not_launched(here, tmp_path):
    assert TWO_PASSES.count("@nki.jit") == 1
    (tmp_path / "mine.py").write_text(TWO_PASSES.replace("@nki.jit", "@nki.jit(grid=2)"))
    for words in (("optimize", "--seconds", "1"), ("profile",)):
        done = here(words[0], "mine.py", "--shape", "512x512", "--chip", "trn2", *words[1:])
        assert done.returncode == 0 and "grid=… of a decorator has no effect in the lab" in done.stderr, done


@pytest.mark.slow
def test_ctrl_c_keeps_what_the_search_found(tmp_path, env):
    "A search that is cut off writes the kernel that it has; the exit code says that it was."
    task = get_task("causal_attention")
    (tmp_path / "mine.py").write_text(task.first(None).source)
    shapes = [f"--shape={'x'.join(map(str, s))}" for s in task.workload(None).shapes.values()]
    started = subprocess.Popen([KERNEL_LAB, "optimize", "mine.py", *shapes, "--chip", "trn2", "--seconds", "500"],
                               cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "searching" in started.stderr.readline()
    time.sleep(4)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=200)
    assert started.returncode == 130 and "interrupted" in out, out + err
    assert "mine_optimised.py" in out and (tmp_path / "mine_optimised.py").exists()


def test_react_without_a_key_says_so_and_makes_no_run(here, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    refused(here("optimize", "softmax", "-w", "small", "--agent", "react"), 2, "ANTHROPIC_API_KEY", "built-in agent")
    assert "No runs yet" in here("runs").stdout


@pytest.mark.slow
def test_an_agent_writes_a_gpu_kernel_without_a_card(here, monkeypatch, tmp_path):
    pytest.importorskip("triton", reason="triton is not installed")
    given = dict(source=RELU_IN_TRITON, move="one pass", why="One read.", expected="Unknown.")
    with Server([Say(calls=(("submit", given),))]) as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("OPENAI_API_KEY", FAKE_KEY)
        model = ("--model", "openai:mine", "--base-url", server.url + "/v1", "--turns", "2")
        best = tmp_path / "best.py"
        done = here("optimize", "relu", "-w", "small", "--agent", "react", "--target", "triton", "--out", str(best), *model)
        assert done.returncode == 0 and best.read_text() == RELU_IN_TRITON, done.stdout + done.stderr
        assert "time on sm_90 is unknown" in done.stdout and "0.00" not in done.stdout and "×" not in done.stdout
        assert "H100" in json.dumps(server.asked[0]) and "NeuronCore" not in json.dumps(server.asked[0])
        asked = len(server.asked)
        same = here("replay", "latest")
        assert same.returncode == 0 and "the same: 1 steps" in same.stdout and len(server.asked) == asked
        assert "sm_90" in here("runs").stdout and here("report", "latest", "--out", str(tmp_path / "r.html")).returncode == 0
        suite = here("bench", "--agent", "react", "--target", "triton", "--task", "kernelbench/19_relu", "-w", "small", *model)
        assert suite.returncode == 0 and "1 run: 1 correct" in suite.stdout and "without times" in suite.stdout, suite.stdout + suite.stderr
        assert re.search(r"fast rate +unknown", suite.stdout) and "rewrite" not in suite.stdout
    refused(here("optimize", "relu", "--target", "triton"), 2, "rewrite writes nki, not triton", "two_stage")
    refused(here("optimize", "relu", "--agent", "react", "--target", "hip"), 2, "language of kernels")
    refused(here("bench", "--agent", "guided", "--target", "cuda", "--task", "relu", *model), 2, "guided writes nki, not cuda")


@pytest.mark.slow
def test_react_with_a_server_of_ones_own(lab, here, env, monkeypatch):
    say = Say("Nothing to gain.", usage={"input_tokens": 70})
    react = ("optimize", "softmax", "-w", "small", "--agent", "react", "--model", "openai:mine")
    with Server([say]) as server:
        for name, value in {"NO_PROXY": "127.0.0.1", "OPENAI_API_KEY": FAKE_KEY}.items():
            env[name] = value
            monkeypatch.setenv(name, value)
        url = ("--base-url", server.url + "/v1")
        done = lab(*react, *url, "--steps", "1", "--turns", "1", "--max-tokens", "200000")
        assert done.returncode == 0 and len(server.asked) == 1, done.stderr
        assert "Nothing leaves this machine" in done.stdout and server.url.split("//")[1] in done.stdout
        assert server.asked[0]["model"] == "mine" and server.asked[0]["max_tokens"] == 16_000
        again = here("optimize", "--resume", "latest", "--steps", "2")
        assert again.returncode == 0 and "openai:mine" in again.stdout, again.stdout + again.stderr
        assert FAKE_KEY not in done.stdout + done.stderr + again.stdout + json.dumps(server.asked)
        refused(here(*react, *url, "--max-dollars", "1"), 2, "price of openai:mine is unknown", "max_tokens")
    refused(here(*react, *url), 2, "Nothing answers at 127.0.0.1")
    refused(here(*react, "--base-url", "https://me:pass@host/v1"), 2, "no password")
    refused(here(*react[:-1], "gpt"), 2, "openai:NAME")
    refused(here("optimize", "softmax", "--turns", "3"), 2, "rewrite asks no model", "--agent react")


def test_doctor(lab, here, env, monkeypatch):
    env["ANTHROPIC_API_KEY"] = FAKE_KEY
    monkeypatch.setenv("ANTHROPIC_API_KEY", FAKE_KEY)
    done = lab("doctor")
    assert done.returncode == 0 and "nki_sim" in done.stdout and "present" in done.stdout
    assert FAKE_KEY not in done.stdout + done.stderr
    found = json.loads(here("doctor", "--json").stdout)
    assert found["models"]["anthropic"] is None and "OPENAI_API_KEY" in found["models"]["openai"]
    assert found["targets"]["nki_sim"] is None and all(found["targets"][t] for t in ("neuron", "triton", "cuda"))
    assert FAKE_KEY not in json.dumps(found)


def test_a_closed_pipe_is_no_error(env, tmp_path):
    done = subprocess.run(["bash", "-c", f"'{KERNEL_LAB}' tasks | head -1"], capture_output=True, text=True, env=env,
                          cwd=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr


# --- files and terminals that are not as a program expects ---

@pytest.mark.sampled(2)
@pytest.mark.parametrize("command, said", [
    ("evaluate softmax /dev/zero", "longer than 16 MiB"), ("evaluate softmax - </dev/zero", "longer than 16 MiB"),
    pytest.param("profile /dev/zero --shape 4x4", "longer than 16 MiB", marks=pytest.mark.slow),
    pytest.param("optimize /dev/urandom --shape 4x4", "longer than 16 MiB", marks=pytest.mark.slow),
    ("evaluate softmax - <&-", "Bad file descriptor|is closed"), (r"evaluate softmax - < latin.py", "not UTF-8"),
    ("tasks >/dev/full", "cannot be written: No space left")])
def test_input_without_an_end_and_output_without_room(env, tmp_path, command, said):
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    done = subprocess.run(["bash", "-c", f"ulimit -v 4000000; '{KERNEL_LAB}' {command}"], capture_output=True, text=True,
                          env=env, cwd=tmp_path, timeout=120)
    refused(done, 2, said)


def test_a_mark_of_an_editor_is_no_part_of_the_kernel(here, tmp_path, softmax):
    (tmp_path / "k.py").write_bytes("\ufeff".encode() + softmax.replace("\n", "\r\n").encode())
    done = here("evaluate", "softmax", "k.py", "-w", "small", "--seeds", 1)
    assert done.returncode == 0 and "correct" in done.stdout, done.stdout


@pytest.mark.parametrize("more", [{"COLUMNS": "0"}, {"PYTHONIOENCODING": "ascii"}], ids=str)
def test_an_odd_terminal_gets_the_answer(env, tmp_path, more):
    done = subprocess.run([KERNEL_LAB, "tasks", "softmax"], capture_output=True, env=env | more, cwd=tmp_path, timeout=120)
    assert done.returncode == 0 and b"softmax" in done.stdout and b"Traceback" not in done.stderr, done
    if "PYTHONIOENCODING" in more: done.stdout.decode("ascii")


def test_a_kernel_that_loops_for_ever(here, tmp_path):
    (tmp_path / "bad.py").write_text(HEAD + "    while True: pass\n")
    done = here("evaluate", "softmax", "bad.py", "-w", "small", "--seconds", "1")
    refused(done, 1, "timeout")


# --- the time of later stages ---

def test_every_command_that_evaluates_takes_work_seconds():
    import typer
    from kernel_lab.cli.app import app
    from kernel_lab.evaluate.sandbox.protocol import Limits
    commands = typer.main.get_command(app).commands
    asked = {name: [p.default for p in commands[name].params if "--work-seconds" in p.opts]
             for name in ("evaluate", "profile", "optimize", "renew")}
    assert asked == dict.fromkeys(asked, [Limits().work_seconds])


def test_work_seconds_end_a_program_that_takes_too_long(here, tmp_path, softmax):
    (tmp_path / "long.py").write_text(softmax.replace("    return out", """    t = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=t, value=0.0)
    for k in nl.sequential_range(1_900_000): nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
    return out"""))
    words = "softmax", "long.py", "-w", "small", "--work-seconds", "1"
    done = here("evaluate", *words)
    refused(done, 1, "timeout", "limit 1 s")
    refused(here("profile", *words), 1, "timeout")
    refused(here("evaluate", "softmax", "long.py", "-w", "small", "--work-seconds", "0"), 2)


def test_bench_and_ablate(here, tmp_path):
    done = here("bench", "--task", "relu", "--task", "softmax", "-w", "small", "--steps", "1", "--define", "--out", "f.json")
    assert done.returncode == 0 and "fast rate" in done.stdout and "share of all tasks" in done.stdout, done.stderr
    suite = re.search(r"^suite (\w+): 2 runs", done.stdout, re.M)[1]
    again = here("bench", "--resume", suite[:6], "--define")
    assert [line for line in again.stdout.splitlines() if "f.json" not in line] == done.stdout.splitlines()[:-1]
    assert len(json.loads((tmp_path / "f.json").read_text())["outcomes"]) == 2
    assert suite in here("runs").stdout
    off = here("ablate", "--agent", "rewrite", "--task", "relu", "-w", "small", "--steps", "1")
    assert off.returncode == 0 and "no search" in off.stdout and "whole" in off.stdout


@pytest.mark.parametrize("words, said", [
    ("bench", "--suite level1"), ("bench --suite level9", "no suite 'level9'"), ("bench --task sofmax", "Did you mean 'softmax'"),
    ("bench --task relu --agent oracle", "no agent 'oracle'"), ("bench --task relu -w huge", "small"),
    ("bench --task relu --agent beam --model gpt", "openai:NAME"), ("bench --resume nothing", "no suite 'nothing'"),
    ("bench --task relu --samples 0", "--samples"), ("bench --task relu --chip h100", "no chip 'h100'"),
    ("bench --task relu --out no/such/f.json", "no folder"), ("ablate --agent guided --switch memory --task relu", "fixer"),
    ("ablate --agent react --switch hope --task relu", "profiling"), ("replay nothing", "no run"),
    ("optimize relu --agent two_stage --model gpt", "openai:NAME"), ("bench --resume x --task relu --steps 2", "--task, --steps"),
    ("ablate --resume x --switch search --max-tokens 9", "--switch, --max-tokens"),
    ("bench --task relu --model claude-haiku-4-5", "rewrite asks no model"), ("ablate --task relu --turns 3", "rewrite asks no model"),
    ("optimize relu --fixes 2", "rewrite asks no model: --fixes"), ("optimize --resume x --fixes 2", "keeps its fixer"), ("bench --resume x --fixes 2", "--fixes"),
    ("bench --task relu --set name=x", "has no name"), ("bench --task relu --set seconds=soon", "seconds='soon': rewrite takes a number"),
    ("bench --task relu --set families=[\"luck\"]", "no family of moves 'luck'"), ("bench --task relu --out suite.py", "ends in .json"),
    ("calibrate --rows r.csv --checkouts . --out r.csv", "would replace what"), ("calibrate --rows r.csv --checkouts . --table t.csv", "in .md"),
    ("calibrate --rows r.csv --checkouts . --figure f.xyz", "ends in"), ("grade . --csv anna.json", "ends in .csv"),
    ("optimize relu --search climb --figure f.html", "--search, --figure"), ("optimize k.py --shape 8x8 --agent react", "no agent: --agent")])
def test_suites_refuse_in_a_line(here, tmp_path, words, said):
    for name in ("r.csv", "anna.json"): (tmp_path / name).write_text("mine")
    refused(here(*words.split()), 2, re.escape(said))
    assert (tmp_path / "r.csv").read_text() == (tmp_path / "anna.json").read_text() == "mine"


def test_a_model_in_bench_optimize_and_replay(here, monkeypatch):
    prose = Say("Nothing to gain.", usage={"input_tokens": 70})
    with Server([prose]) as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("OPENAI_API_KEY", FAKE_KEY)
        model = ("--model", "openai:mine", "--base-url", server.url + "/v1")
        done = here("bench", "--agent", "react", "--alone", "--task", "relu", "-w", "small", *model, "--turns", "1")
        assert done.returncode == 0 and "unknown price" in done.stdout and "Nothing leaves" in done.stdout, done.stderr
        assert "1 run: 1 failed" in done.stdout and FAKE_KEY not in done.stdout
        stepped = here("optimize", "relu", "-w", "small", "--agent", "guided", *model, "--turns", "1")
        assert "paid so far" in stepped.stdout and "unknown price" in stepped.stdout
        asked = len(server.asked)
        same = here("replay", "latest")
        assert same.returncode == 0 and "the same: 1 steps" in same.stdout and len(server.asked) == asked
