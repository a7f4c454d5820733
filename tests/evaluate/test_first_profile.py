"""The first profile of an installation compiles the clock, and says so: as a stage of the evaluation, which the shell and
the page show, and in a terminal or a notebook otherwise."""
import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from numba.core import event

from kernel_lab.core.format import note_stage
from kernel_lab.evaluate import evaluate
from kernel_lab.nki.timing import jit, scheduler
from kernel_lab.targets.nki_sim import NkiSim
from kernel_lab.tasks import TASKS

ROOT = Path(__file__).parents[2]
WORD = "compiling the clock that times kernels, once, about 30 s"


def compiling(f=scheduler.place_in_order):
    "The event with which numba tells that it compiles a function."
    return event.trigger_event("numba:compile", data={"dispatcher": f})


@pytest.fixture
def cold(monkeypatch):
    "A target whose profile compiles the clock first: it tells so once, whatever is on disk."
    scheduler.warm()
    original = NkiSim.profile
    def profile(self, *given):
        with compiling(): pass
        return original(self, *given)
    monkeypatch.setattr(NkiSim, "profile", profile)


def lines_of(**more):
    "What a progress line shows while a kernel is evaluated."
    stages, shown = {}, []
    evaluate(TASKS["softmax"].first(), "softmax", "small", eager=False,
             on_stage=lambda name, seconds: shown.append(note_stage(stages, name, seconds)), **more)
    return shown


def test_a_progress_line_says_that_the_clock_is_compiled_and_forgets_it(cold):
    shown = lines_of()
    said = [line for line in shown if "compiling" in line]
    assert len(said) == 1 and said[0].endswith(f"profile … · {WORD} …")
    assert "compiling" not in shown[shown.index(said[0]) + 1]


def test_a_progress_line_of_a_warm_clock_says_nothing_of_it():
    lines_of()                                     # whatever was not compiled yet is now
    assert not [line for line in lines_of() if "compiling" in line]


def test_the_page_says_it_in_its_status_line(cold, monkeypatch):
    from kernel_lab.agents import AgentLoop
    from kernel_lab.panels.step_control import StepControl
    control, seen = StepControl(AgentLoop("softmax", workload="small", store=False)), []
    control.status.observe(lambda change: seen.append(change["new"]), "value")
    evaluate(TASKS["softmax"].first(), "softmax", "small", eager=False, on_stage=control.stage)
    assert [line for line in seen if WORD in line] and WORD not in seen[-1]


class Terminal(StringIO):
    def isatty(self): return True


@pytest.mark.parametrize("stream, said", [(Terminal, f"{WORD} …\n"), (StringIO, "")])
def test_standard_error_says_it_once_where_a_person_looks_on(monkeypatch, stream, said):
    monkeypatch.setattr(jit, "_SAID", set())
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    for _ in range(2):
        with compiling(): pass
    with compiling(scheduler.ready_time): pass                # compiled into another
    assert sys.stderr.getvalue() == said


def test_a_folder_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.setattr(jit, "_cache_folder", lambda: None)
    heard = []
    with jit.compiling_heard(lambda text, seconds: heard.append(text)), compiling(): pass
    assert "in each process" in heard[0] and "once" not in heard[0]


@pytest.mark.slow
def test_numba_tells_it_of_a_cold_clock_and_of_a_warm_one_nothing(tmp_path):
    text = """
import json
from kernel_lab.evaluate import evaluate
from kernel_lab.tasks import TASKS
told = []
evaluate(TASKS["softmax"].first(), "softmax", "small", eager=False, on_stage=lambda *said: told.append(said))
print(json.dumps(told))
"""
    def told():
        done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True, env={
            **os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "numba"), "KERNEL_LAB_STORE": ""})
        return [(name, seconds) for name, seconds in json.loads(done.stdout) if "compiling" in name]
    first = told()
    assert {name for name, _ in first} == {WORD} and sum(s or 0 for _, s in first) > 1
    assert told() == []
