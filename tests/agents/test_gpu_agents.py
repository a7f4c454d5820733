"""Agents that write GPU kernels on a machine without a card: what they are offered, told and answered, and that no time is made up."""
import json
from collections import Counter
from pathlib import Path

import pytest
from gpu_gallery import RELU_IN_TRITON

from kernel_lab.agents.engine.loop import AgentLoop, replayed
from kernel_lab.agents.engine.recording import chip_of
from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.recorded.runs import recorded_outcome, recorded_run
from kernel_lab.agents.suites.bench import figures_of, kept_outcomes, run_suite
from kernel_lab.agents.suites.plan import SuitePlan, SuiteRow
from kernel_lab.agents.systems.beam import BeamAgent
from kernel_lab.agents.systems.cuda_agent import CudaAgent
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.agents.systems.registry import AGENTS, agent_class, agents_for
from kernel_lab.agents.systems.two_stage import TwoStageAgent
from kernel_lab.agents.systems.work_directory import WorkDirectory, protected_files
from kernel_lab.agents.tools.tool_sets import every_tool, tools_for
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.store.store import Store
from kernel_lab.tasks.suite.registry import get_task

NEEDS_TRITON = pytest.importorskip("triton", reason="triton is not installed")

ONE = RELU_IN_TRITON
HEAD = ONE.partition("    clip[")[0]
TWO = HEAD + ("    t = torch.empty_like(x)\n    clip[(triton.cdiv(n, 1024),)](x, t, n, BLOCK=1024)\n"
              "    clip[(triton.cdiv(n, 1024),)](t, out, n, BLOCK=1024)\n    return out\n")
WRONG = ONE.replace("0.0), mask", "1.0), mask").replace("0.0), 0.0)", "0.0), 1.0)")
NKI = "import nki\nimport nki.language as nl\n\n@nki.jit\ndef relu(x):\n    return x\n"
CUDA = '''import torch
TEXT = """extern "C" __global__ void clip(const float* x, float* out, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = fmaxf(x[k], 0.0f);
}"""
def kernel(x):
    out, n = torch.empty_like(x), x.numel()
    torch.cuda._compile_kernel(TEXT, "clip")(grid=((n + 255) // 256, 1, 1), block=(256, 1, 1), args=[x, out, n])
    return out
'''
TWO_ENTRIES = ONE.replace("def kernel(x)", "def first(x)") + "\ndef second(x):\n    return first(x)\n"


def call(name, **given): return {"type": "tool_use", "id": f"id-{name}", "name": name, "input": given}
def calls(*some): return Reply(some, "tool_use")
def prose(text): return Reply(({"type": "text", "text": text},), "end_turn")
def submit(source): return calls(call("submit", source=source, move="handed in", why="It is right.", expected="Less."))


def run(replies, agent=ReactAgent, target="triton", task="relu", **kw):
    model = ScriptedModel(replies, repeat=kw.pop("repeat", False))
    loop = AgentLoop(task, agent(model, **kw), "small", store=False, seeds=1, target=target)
    list(loop)
    return loop, model


def results(model): return [b["content"] for r in model.asked for m in r.messages[-1:] if m["role"] == "user" and isinstance(m["content"], list)
                            for b in m["content"] if b["type"] == "tool_result"]


def test_tools_of_nki_are_not_offered_for_a_gpu():
    mine = set(tools_for("nki")) - {"edit", "variants", "submit", "profile"}
    for target in ("triton", "cuda"):
        assert not mine & set(every_tool(target)) and set(tools_for(target, True)) == {"compile", "verify", "profile", "submit"}
        for text in (json.dumps([t.schema() for t in every_tool(target).values()]),):
            assert "nki" not in text.lower() and "simulat" not in text


@pytest.mark.parametrize("target", ["triton", "cuda"])
def test_what_a_model_is_told_names_no_neuron_core_and_no_time(target):
    loop, model = run([prose("no code"), prose("no code")], target=target)
    told = model.asked[0].system + json.dumps(model.asked[0].messages)
    assert "H100" in told and "NeuronCore" not in told and "simulated" not in told and "is unknown here" in told
    assert "There is no kernel yet" in told and "/work" not in told
    assert loop.chip == "sm_90" and loop.run.target == target and not loop.run.steps


def test_a_run_says_its_time_is_unknown_and_never_a_number():
    loop, model = run([calls(call("judge", source=TWO)), submit(ONE)])
    best, e = loop.run.leader, loop.run.leader.evaluation
    assert (best.index, e.kernel.source, e.status.value) == (1, ONE, "correct")
    assert (loop.run.best, loop.run.best_speedup, loop.run.first_us, e.latency_us, e.speedup, e.over_eager) == (None,) * 6
    assert all("speed: unknown" in text for text in results(model)) and "1.00×" not in str(loop.run)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source, status, says", [
    (NKI, "unsupported", "written in NKI, not in Triton"), (CUDA, "unsupported", "written in CUDA C++, not in Triton"),
    (TWO_ENTRIES, "no_entry", "more than one entry"), (WRONG, "wrong_result", ""),
    ("import torch\nimport triton\ndef kernel(x):\n    return torch.relu(x)\n", "no_entry", "torch did all of it"),
    (ONE.replace("import torch\n", "from torch._inductor.runtime.triton_heuristics import grid\nimport torch\n", 1), "trace_error", "cannot import name 'grid'")])
def test_a_kernel_that_cannot_be_accepted_gets_a_status_and_a_sentence(source, status, says):
    loop, model = run([calls(call("judge", source=source)), submit(ONE)])
    e = loop.run.steps[0].evaluation
    assert e.status.value == status and says in str(e) and says.partition(",")[0] in results(model)[0]
    assert "site-packages" not in results(model)[0] and loop.run.leader.index == 1


def test_kernels_of_another_language_in_prose_are_answered():
    loop, model = run([prose(f"```python\n{CUDA}```"), prose(f"```python\n{ONE}```")])
    assert [s.evaluation.status.value for s in loop.run.steps] == ["unsupported", "correct"]
    assert "write the kernel in it, not in CUDA C++" in str(model.asked[1].messages[-1])


def test_only_another_comment_is_noticed():
    loop, model = run([calls(call("judge", source=ONE)), calls(call("judge", source=ONE + "# faster\n")), submit("last")])
    assert len(loop.run.steps) == 1 and "same code but for comments" in results(model)[1]


def test_arguments_that_do_not_fit_and_unknown_tools_become_sentences():
    loop, model = run([calls(call("optimise", source=ONE), call("judge", source=7), call("judge", source=ONE, stages="profile"),
                             call("read_chip", topics=["isa"]), call("edit", kernel="step 9", old="a", new="b")), submit(ONE)])
    texts = results(model)
    assert [t.split(".")[0] for t in texts[:3]] == ["Not run"] * 3
    assert "There is no topic" in texts[3] and "There is no kernel" in texts[4] and loop.run.leader


def test_what_the_tuner_would_write_is_offered_read_and_taken():
    asked = [calls(call("tune")), calls(call("tune", show=1)), calls(call("tune", take=1)), submit("last")]
    loop, model = run(asked, task="softmax")
    listed, read, taken = results(model)
    assert "rows, all of the task: kernel(x)" in listed and "at least" in listed and "Not raced" in listed
    assert "@triton.jit" in read and "def kernel(x)" in read
    assert "status: correct" in taken and "This is kernel" in taken and "speed: unknown" in taken
    assert [s.evaluation.status.value for s in loop.run.steps] == ["correct"]
    assert "tune" not in tools_for("cuda") and "tune" not in tools_for("triton", True)
    assert "tune" not in ReactAgent(ScriptedModel([]), proposals=False).tools_in("triton")


def test_two_stages_first_right_then_fast():
    loop, model = run([calls(call("verify", source=WRONG)), submit(TWO), calls(call("variants", sources=[ONE, WRONG])), submit(ONE)], TwoStageAgent)
    assert [s.evaluation.status.value for s in loop.run.steps] == ["wrong_result", "correct", "correct"]
    first, second = model.asked[0], model.asked[2]
    assert "PyTorch → Triton" in first.system and "Triton → faster Triton" in second.system
    assert {t["name"] for t in first.tools} == {"compile", "verify", "read_chip", "submit"} and "judge" in {t["name"] for t in second.tools}
    assert TWO.strip() in second.messages[0]["content"]
    assert [s.to_dict() for s in replayed(loop.recording, TwoStageAgent(ScriptedModel([])))] == [s.to_dict() for s in loop.run.steps]


def test_two_stages_end_where_nothing_is_right():
    loop, model = run([prose("no"), prose("no")], TwoStageAgent)
    assert loop.recording.entries[-1].body["text"] == "No kernel is right, so there is nothing to make fast." and len(model.asked) == 2


@pytest.mark.slow
def test_a_beam_begins_with_a_kernel_of_the_model_and_orders_by_estimates():
    def answer(request):
        asked = request.messages[-1]["content"]
        if "The plan for one step" in asked: return "One launch\nWrite out at once."
        return f"```python\n{ONE if 'Carry out this plan' in asked else WRONG if 'Mend' not in asked else TWO}```"
    loop, model = run([answer], BeamAgent, repeat=True, rounds=2, beam=1, plans=1, samples=1)
    assert [s.evaluation.status.value for s in loop.run.steps[:3]] == ["wrong_result", "correct", "correct"]
    assert loop.run.leader.evaluation.kernel.source == ONE
    assert ONE.strip() in [r for r in model.asked if "You plan one step" in r.system][-1].messages[0]["content"]
    assert any("ordered by estimates" in e.body["text"] for e in loop.recording.entries if e.kind == "note")


def test_a_person_edits_and_the_agent_goes_on_from_there(tmp_path):
    store, model = Store(tmp_path / "lab.sqlite3"), ScriptedModel([submit(ONE)])
    loop = AgentLoop("relu", ReactAgent(model), "small", store=store, seeds=1, target="triton")
    step = loop.edit(TWO)
    assert (step.evaluation.kernel.target, step.evaluation.status.value, step.move) == ("triton", "correct", "first kernel")
    again = AgentLoop(run=loop.run.id, agent=ReactAgent(model), store=store, seeds=1)
    assert (again.target, again.chip) == ("triton", "sm_90")
    list(again)
    assert TWO.strip() in model.asked[0].messages[0]["content"] and again.run.leader.index == 1
    assert store.load_run(loop.run.id).target == "triton"


def test_agents_write_what_they_write():
    assert agents_for("triton") == ["react", "beam", "two_stage"] and "cuda_agent" in agents_for("cuda")
    for name in AGENTS:
        for target in ("nki", "triton", "cuda"): assert (target in agent_class(name).targets) == (name in agents_for(target))
    with pytest.raises(UsageError, match="rewrite writes nki, not triton"): AgentLoop("relu", agent_class("rewrite")(), target="triton")
    with pytest.raises(UsageError, match="no GPU 'trn9'"): AgentLoop("relu", None, chip="trn9", target="cuda")
    with pytest.raises(UsageError, match="language of kernels"): AgentLoop("relu", None, target="hip")
    assert (chip_of("triton"), chip_of("cuda", "sm_80"), chip_of("nki")) == ("sm_90", "sm_80", "trn2")


def test_a_suite_counts_what_is_right_and_says_that_speed_is_unknown(tmp_path, monkeypatch):
    store = Store(tmp_path / "lab.sqlite3")
    monkeypatch.setattr("kernel_lab.agents.suites.bench.agent_of_row", lambda row, most, model: ReactAgent(model, turns=3))
    plan = SuitePlan((SuiteRow("react", "react", {}),), ("relu", "sigmoid"), "small", "sm_90", seeds=1, target="triton", id="suite")
    found = list(run_suite(plan, store, model=ScriptedModel([submit(ONE), prose("none"), prose("none")])))
    assert Counter(str(o.ending) for o in found) == {"correct": 1, "failed": 1}
    assert (found[0].speedup, found[0].is_timeless, found[1].is_timeless) == (None, True, False)
    figures = {m.name: m.text(each[0]) for m, each in figures_of(plan, kept_outcomes(store, plan))}
    assert figures["correct"].startswith("50%")
    assert {figures[k] for k in ("fast rate", "× of correct", "× of all", "fast vs eager", "× of eager", "% of peak")} == {"unknown"}
    with pytest.raises(UsageError, match="rewrite writes nki"): SuitePlan((SuiteRow("rewrite", "rewrite", {}),), ("relu",), chip="sm_90", target="triton")


def test_the_scripts_of_a_work_directory_cannot_be_changed_by_the_agent():
    kernel, model_new = CUDA.split('"""')[1] + "\n", "import torch\n" + CUDA.split('"""')[2].strip().replace("TEXT", "KERNELS['clip.cu']") + "\n"
    write = lambda path, text: call("write_file", path=path, text=text)
    loop, model = run([
        calls(*(write(p, "x") for p in ("verify.py", "kernels/../verify.py", "/tmp/verify.py", "SKILL.md"))),
        calls(call("edit_file", path="verify.py", old="verify", new="nothing"), call("run_script", script="rm")),
        calls(write("kernels/clip.cu", kernel), write("model_new.py", model_new), call("run_script", script="verify")),
        calls(call("submit", move="plain", why="It compiles.", expected="Unknown."))], CudaAgent, "cuda", turns=150)
    texts = results(model)
    assert all(t.startswith("Not written") for t in texts[:4]) and texts[4].startswith("Not changed") and texts[5].startswith("Not run")
    assert [s.evaluation.status.value for s in loop.run.steps] == ["compiled"] and "not verified" in texts[-1]
    assert "150 turns" in model.asked[0].messages[0]["content"] and "at least 5 % faster" in model.asked[0].messages[0]["content"]
    assert len(list(replayed(loop.recording, CudaAgent(ScriptedModel([]), turns=150)))) == 1


def test_a_resumed_work_directory_has_its_files(tmp_path):
    kernel, model_new = CUDA.split('"""')[1] + "\n", "import torch\n" + CUDA.split('"""')[2].strip().replace("TEXT", "KERNELS['clip.cu']") + "\n"
    store = Store(tmp_path / "lab.sqlite3")
    def stopped(request): raise KeyboardInterrupt
    first = ScriptedModel([calls(call("write_file", path="kernels/clip.cu", text=kernel), call("write_file", path="model_new.py", text=model_new)), stopped])
    loop = AgentLoop("relu", CudaAgent(first, turns=5), "small", store=store, target="cuda")
    with pytest.raises(KeyboardInterrupt): list(loop)
    again = AgentLoop(run=loop.run.id, agent=CudaAgent(ScriptedModel([calls(call("submit", move="plain", why="It compiles.", expected="Unknown."))]), turns=5), store=store)
    list(again)
    assert again.run.leader.evaluation.status.value == "compiled" and "clip.cu" in again.run.leader.evaluation.kernel.source


def test_a_changed_script_stops_every_run():
    task = get_task("relu")
    directory = WorkDirectory(protected_files(task, task.workload("small"), "sm_90"))
    directory.files["compile.py"] += "\n"
    assert directory.changed() == ["compile.py"]


@pytest.mark.parametrize("name, target, status", [("two_stage-softmax-triton", "triton", "correct"), ("cuda_agent-rmsnorm", "cuda", "compiled, not verified")])
def test_recorded_runs_of_gpu_kernels_have_no_time(name, target, status):
    r, outcome = recorded_run(name), recorded_outcome(name)
    assert (r.run.target, r.run.chip, r.run.best, r.run.config["label"]) == (target, "sm_90", None, "scripted")
    assert (str(outcome.ending), outcome.speedup, outcome.is_timeless) == (status, None, True)
    assert str(Path(__file__).parents[2]) not in json.dumps(r.run.to_dict())


def test_a_work_directory_holds_what_its_fixer_mended(tmp_path):
    kernel, model_new = CUDA.split('"""')[1] + "\n", "import torch\n" + CUDA.split('"""')[2].strip().replace("TEXT", "KERNELS['clip.cu']") + "\n"
    broken = kernel.replace("fmaxf(", "fmaxi(")
    files = [call("write_file", path="kernels/clip.cu", text=broken), call("write_file", path="kernels/spare.cu", text="// nothing\n"),
             call("write_file", path="model_new.py", text=model_new)]
    whole = f"KERNELS = {{}}\nKERNELS['clip.cu'] = r'''{kernel}'''\n{model_new}"
    handed = calls(call("submit", move="plain", why="It compiles.", expected="Unknown."))
    replies = [calls(*files, call("run_script", script="verify")), prose(f"```python\n{model_new}```"), prose(f"```python\n{whole}```"),
               calls(call("list_files"), call("read_file", path="kernels/clip.cu")), handed]
    loop, model = run(replies, CudaAgent, "cuda", fixes=2)
    assert [s.evaluation.is_accepted for s in loop.run.steps] == [False, True] and len(model.asked) == 5
    assert "as it stands above" in model.asked[1].messages[0]["content"] and "fmaxi" in model.asked[1].messages[0]["content"]
    told = [b["text"] for b in model.asked[3].messages[-1]["content"] if b["type"] == "text"]
    assert "go on from kernel" in told[0] and "-    if (k < n) out[k] = fmaxi" in told[0] and "status: compiled" in told[0]
    listed, read = results(model)[-2:]
    assert "spare.cu" not in listed and read == kernel
    assert loop.run.leader.index == 1 and "spare" not in loop.run.leader.evaluation.kernel.source
    assert len(list(replayed(loop.recording, CudaAgent(ScriptedModel([]), fixes=2)))) == 2


def test_only_a_submission_fills_a_work_directory():
    directory = WorkDirectory({"model.py": "x"})
    directory.write("model_new.py", "a = 1\n")
    directory.write("kernels/one.cu", "// one\n")
    again = WorkDirectory({"model.py": "x"}).holding(directory.submission())
    assert again.files == directory.files and again.hashes == directory.hashes and again.submission() == directory.submission()
    with pytest.raises(UsageError, match="no submission"): directory.holding("a = 1\n")


@pytest.mark.parametrize("stages", [0, 1])
def test_a_triton_kernel_is_mended_and_its_verdict_has_no_time(stages):
    agent, tool = (TwoStageAgent, "verify") if stages else (ReactAgent, "judge")
    loop, model = run([calls(call(tool, source=WRONG)), prose(f"```python\n{ONE}```"), submit("last"), prose("no"), prose("no")], agent, fixes=1)
    assert [s.evaluation.status.value for s in loop.run.steps[:2]] == ["wrong_result", "correct"]
    asked = model.asked[1].messages[0]["content"]
    assert "one function `kernel` of the inputs" in asked and "for another task" not in asked and "simulated" not in asked
    told = str(model.asked[2].messages[-1])
    assert "go on from kernel" in told and ("speed: unknown" in told) != bool(stages)
