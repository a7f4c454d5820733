"""The recorded runs: each replays, says how it came about, and its kernels are right."""
import json
from collections import Counter

import pytest

from kernel_lab.agents.engine.recording import from_file
from kernel_lab.agents.recorded.runs import (FOLDER, described, place_of, recorded_run, recorded_runs,
                                             replay_recorded)
from kernel_lab.agents.systems.registry import replaying_agent
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.verification import Status
from kernel_lab.tasks.suite.registry import get_task

NAMES = [r.name for r in recorded_runs()]
LABELS = {"rewrite": "recorded with the built-in agent", "model": "recorded with a language model, tokens not counted",
          "scripted": "scripted"}


def test_all_are_there_and_small():
    kinds = Counter(r.label for r in recorded_runs())
    assert kinds == {LABELS["rewrite"]: 6, LABELS["model"]: 12, LABELS["scripted"]: 6}
    assert {r.agent for r in recorded_runs() if r.label == "scripted"} == {"react", "beam", "two_stage", "guided", "cuda_agent"}
    assert sum(f.stat().st_size for f in FOLDER.glob("*.json*")) < 1_500_000
    assert {f.name.removesuffix(".json.xz") for f in FOLDER.glob("*.json.xz")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_one_replays_and_is_what_the_index_says(name):
    recording, row = recorded_run(name), next(r for r in recorded_runs() if r.name == name)
    assert described(name, recording.run) == vars(row)
    assert recording.run.state == "finished" and (row.best_us is None if row.target != "nki" else row.best_us < row.first_us)
    once, again = [[s.to_dict() for s in replay_recorded(name)] for _ in range(2)]
    assert once == again == [s.to_dict() for s in recording.run.steps]
    assert recording.spent.dollars is None or row.agent == "rewrite"


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("rewrite")])
def test_a_replay_asks_for_every_reply_that_was_kept(name):
    "The agent of today goes the whole way, and not only as far as the journal happens to fit."
    recording = recorded_run(name)
    kept, heard = [e for e in recording.entries if e.kind == "reply"], []
    from kernel_lab.agents.engine.loop import replayed
    list(replayed(recording, replaying_agent(recording.run), on_event=lambda e: heard.append(e.kind)))
    assert kept and heard.count("reply") == len(kept)


def test_nothing_of_the_machine_is_in_them():
    for name in NAMES:
        recording = from_file(place_of(name))
        text = json.dumps([recording.run.to_dict(), [e.to_dict() for e in recording.entries]])
        for folder in ("tmp", "work", "root", "home"): assert f"/{folder}/" not in text, name


def test_another_agent_is_told_that_it_goes_another_way():
    from kernel_lab.agents.engine.loop import replayed
    from kernel_lab.agents.models.scripted import ScriptedModel
    from kernel_lab.agents.systems.beam import BeamAgent
    recording = recorded_run("beam-masked_softmax")
    other = BeamAgent(ScriptedModel(()), rounds=2, beam=2, plans=2, samples=1, seed=7)
    with pytest.raises(UsageError, match="made with other prompts"): list(replayed(recording, other))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_are_right(name):
    run = recorded_run(name).run
    task = get_task(run.task)
    if run.target != "nki":
        pytest.importorskip("triton", reason="triton is not installed")
        assert evaluate(run.leader.evaluation.kernel, task, run.workload, run.chip, store=None).status == run.leader.evaluation.status
        return
    found = evaluate(run.best.evaluation.kernel, task, task.workload(run.workload), run.chip, store=None)
    assert found.status == Status.CORRECT
    if found.profile.clock == run.best.evaluation.profile.clock:
        assert found.latency_us == pytest.approx(run.best.evaluation.latency_us)
