"""A kit from the lab to a machine without it, and its answers back. No device is here: the vendor's package and
profiler are imitations, and every answer is made up."""
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from kernel_lab.cli.app import run
from kernel_lab.targets.trainium_kit import KitCase, read_answers, write_kit
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import TASKS
from vendor_tools import add_profiler

NKI = """
import os, pathlib, sys, time
import numpy as np
def jit(f):
    def call(x):
        mode = pathlib.Path(__file__).parent.parent.joinpath("mode").read_text()
        print("compiler: hello")
        if mode == "hang" and f.__name__ == "slow": time.sleep(600)
        if mode == "refuse" and f.__name__ == "slow": raise ValueError("[NCC_X] tile has 130 partitions")
        if mode == "die" and f.__name__ == "slow": os._exit(9)
        pathlib.Path("graph.neff").write_bytes(b"NEFF")
        return np.maximum(x, 0) + (mode == "wrong" and f.__name__ == "slow")
    call.__name__ = f.__name__
    return call
"""
SLOW = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n@nki.jit\ndef slow(x): return x\n"


@pytest.fixture(params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def kit(tmp_path, request):
    """`kit('mode')` → (the folder, `run.py` with more words → the finished process), on an imitated machine where
    kernel_lab cannot be imported."""
    site = tmp_path / "site"
    (site / "nki").mkdir(parents=True)
    (site / "nki" / "__init__.py").write_text(NKI)
    for part in ("isa", "language"): (site / "nki" / f"{part}.py").write_text("float32 = bfloat16 = None\n")
    (site / "kernel_lab").mkdir()
    (site / "kernel_lab" / "__init__.py").write_text("raise ImportError('a kit must not need the lab')\n")
    (tmp_path / "neuron0").touch()
    add_profiler(site)
    relu = TASKS["relu"]
    w = next(w for w in relu.workloads if w.dtype == request.param)
    w = relu.smallest(w.dtype)
    first = relu.first(w)
    write_kit(tmp_path / "kit", [KitCase(relu, w, "first", first, 7.0), KitCase(relu, w, "best", Kernel(SLOW), 5.0)])

    def ready(mode=""):
        (site / "mode").write_text(mode)
        env = {"PATH": f"{site}:{os.environ['PATH']}", "PYTHONPATH": str(site)}
        command = [sys.executable, str(tmp_path / "kit" / "run.py"), "--devices", str(tmp_path / "neuron[0-9]*"),
                   "--note", "made up"]
        def go(*words): return subprocess.run([*command, *words], env=env, capture_output=True, text=True, timeout=120)
        go.command, go.env = command, env
        return tmp_path / "kit", go
    return ready


def answers(folder): return {a["role"]: a for a in json.loads((folder / "answers.json").read_text())["answers"]}


def test_there_and_back(kit, capsys):
    folder, go = kit()
    done = go()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "52.0 µs measured, 7.0 simulated" in done.stdout
    found = answers(folder)
    assert found["first"]["latencies_us"] == [52.0] * 7 and found["first"]["clock"] == "the profiler's total_time"
    came = read_answers(folder / "answers.json")
    assert came.note == "made up" and [a.measured.kind for a in came.answers] == ["measured"] * 2
    assert run(["calibrate", "--measured", str(folder / "answers.json")]) == 0
    text = capsys.readouterr().out
    assert "made up" in text and "2 kernels measured (the profiler's total_time)" in text and "52.0" in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode, status, said", [("wrong", "wrong", ""), ("refuse", "failed", "130 partitions"),
                                                ("die", "failed", "ended with 9"), ("hang", "failed", "within 4 s")])
def test_a_bad_kernel_costs_its_own_answer_only(kit, mode, status, said):
    folder, go = kit(mode)
    done = go("--seconds", "4")
    found = answers(folder)
    assert done.returncode == 1 and found["first"]["status"] == "timed"
    assert found["best"]["status"] == status and said in found["best"].get("error", "")
    last = read_answers(folder / "answers.json").answers[-1]
    assert last.measured is None and last.reason


@pytest.mark.slow
def test_it_goes_on_and_asks_again_only_when_told(kit):
    folder, go = kit("refuse")
    assert go("--only", "first").returncode == 0 and set(answers(folder)) == {"first"}
    assert go().returncode == 1 and answers(folder)["best"]["status"] == "failed"
    _, go = kit()
    assert go().returncode == 1 and answers(folder)["best"]["status"] == "failed"
    assert go("--again").returncode == 0 and answers(folder)["best"]["status"] == "timed"


def test_ctrl_c_keeps_what_came_and_leaves_no_process(kit):
    folder, go = kit("hang")
    process = subprocess.Popen(go.command, env=go.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    until = time.monotonic() + 60
    while not (folder / "answers.json").exists() and time.monotonic() < until: time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert set(answers(folder)) == {"first"}
    left = subprocess.run(["pgrep", "-f", f"{folder}/run.py"], capture_output=True, text=True).stdout
    assert not left


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["capture fails", "no ntff", "no summary", "simulated", "zero time"])
def test_a_time_that_no_device_gave_is_no_latency(kit, mode):
    folder, go = kit(mode)
    assert go().returncode == 1
    for a in answers(folder).values(): assert a["status"] == "ran" and not a["latencies_us"] and "no time" in a["error"]
    assert all(a.measured is None and "nothing timed it" in a.reason for a in read_answers(folder / "answers.json").answers)


def test_without_a_device_nothing_runs(kit):
    folder, go = kit()
    done = go("--devices", "/dev/no-neuron*")
    assert done.returncode == 2 and "no Neuron device" in done.stderr and not (folder / "answers.json").exists()
