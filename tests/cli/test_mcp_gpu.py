"""The lab over the Model Context Protocol for kernels of a GPU: the library's own client, no card, and calls that mean no good."""
import os
import re
from importlib.util import find_spec

import pytest

if not find_spec("mcp"): pytest.skip("mcp is not installed", allow_module_level=True)
pytest.importorskip("triton", reason="triton is not installed")
from gpu_gallery import RELU_IN_TRITON                                                              # noqa: E402
from mcp_talk import SECRET, runs_in, talk, text_of                                                 # noqa: E402

from kernel_lab.agents.engine.loop import AgentLoop, replayed                                       # noqa: E402
from kernel_lab.agents.mcp.host import HostedAgent                                                  # noqa: E402
from kernel_lab.agents.engine.recording import Recording                                            # noqa: E402
from kernel_lab.cli.agents.mcp import host_of                                                       # noqa: E402
from kernel_lab.cli.gpu_rows import CUDA_CANARY                                                     # noqa: E402
from kernel_lab.core.errors import UsageError                                                       # noqa: E402
from kernel_lab.evaluate.store.store import Store                                                   # noqa: E402

WIDE = RELU_IN_TRITON.replace("1024", "2048")
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
BY_TORCH = HEAD + "def kernel(x):\n    return torch.relu(x)\n"
HUGE_GRID = RELU_IN_TRITON.replace("triton.cdiv(n, 1024)", "2 ** 31")
OUT_OF_RANGE = RELU_IN_TRITON.replace(", mask=k < n, other=0.0", "").replace("x + k", "x + k + 1_000_000")
LEAKS = HEAD + "import os\ndef kernel(x):\n    raise ValueError(str(dict(os.environ)))\n"
INCLUDES = CUDA_CANARY.replace('extern "C"', '#include "/etc/passwd"\nextern "C"')

HOSTILE = [
    ("profile", {"source": RELU_IN_TRITON}), ("fly", {}), ("judge", {}), ("judge", {"source": 7}), ("judge", {"source": None}),
    ("judge", {"source": ["x"]}), ("judge", {"source": "x" * 3_000_000}), ("judge", {"source": "best", "stages": "profile"}),
    ("judge", {"source": "best", "more": 1}), ("variants", {"sources": ["best"] * 500}), ("variants", {"sources": []}),
    ("read_chip", {"topics": []}), ("read_chip", {"topics": ["isa"]}), ("edit", {"kernel": "best", "old": "", "new": "x"}),
    ("start", {"task": "sofmax"}), ("start", {"task": "relu", "chip": "trn2"}), ("start", {"task": "relu", "chip": "../../x"}),
    ("submit", {"source": RELU_IN_TRITON}), ("judge", {"source": BY_TORCH}), ("judge", {"source": HUGE_GRID}),
    ("judge", {"source": OUT_OF_RANGE}), ("judge", {"source": LEAKS}), ("judge", {"source": "raise SystemExit"}),
    ("judge", {"source": "import os\nos._exit(0)"}), ("judge", {"source": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"}),
    ("judge", {"source": "\0"}), ("judge", {"source": INCLUDES}), ("tune", {"show": 99}), ("tune", {"take": "all"}),
    ("tune", {"show": -1})]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    "One conversation with everything in it: what was answered, by name, and the store that it left."
    tmp_path = tmp_path_factory.mktemp("mcp")
    async def ask(client):
        found = {"tools": (await client.list_tools()).tools, "resources": (await client.list_resources()).resources,
                 "templates": (await client.list_resource_templates()).resource_templates}
        found["too early"] = await client.call_tool("judge", {"source": "best"})
        found["start"] = await client.call_tool("start", {"task": "relu", "workload": "small"})
        found["compile"] = await client.call_tool("judge", {"source": RELU_IN_TRITON, "stages": "compile"})
        found["looked"] = len(runs_in(tmp_path))
        found["prints"] = await client.call_tool("judge", {
            "source": 'print("{}")\nimport os\nos.write(1, b"noise")\n' + RELU_IN_TRITON})
        found["edit"] = await client.call_tool("edit", {"kernel": "last", "old": "BLOCK=1024", "new": "BLOCK=2048"})
        found["live"] = [len(r.steps) for r in runs_in(tmp_path)]
        async def read(path): return (await client.read_resource("kernel-lab://" + path)).contents[0].text
        for path in ("tables", "tables/chip", "sample", "tasks/softmax", "run", "steps/0", "kernel"): found[path] = await read(path)
        found["system"] = (await client.get_prompt("system")).messages[0].content.text
        found["hostile"] = [(name, await client.call_tool(name, given)) for name, given in HOSTILE]
        found["submit"] = await client.call_tool("submit", {"source": WIDE, "move": "wider", "why": "a", "expected": "b"})
        return found
    found = talk(tmp_path, ask, "--target", "triton")
    return {**found, "store": tmp_path, "stderr": (tmp_path / "stderr.txt").read_text()}


@pytest.mark.slow
def test_the_tools_and_tables_of_a_gpu_are_on_offer_and_none_of_a_neuron_core(seen):
    assert [t.name for t in seen["tools"]] == ["start", "judge", "edit", "variants", "read_chip", "tune", "submit"]
    assert {r.uri for r in seen["resources"]} == {f"kernel-lab://{p}" for p in ("tasks", "task", "run", "kernel", "tables", "sample")}
    assert {t.uri_template for t in seen["templates"]} == {f"kernel-lab://{p}" for p in ("tasks/{task}", "steps/{step}", "tables/{topic}")}
    said = " ".join([*(t.description for t in seen["tools"]), seen["system"], seen["tables"], seen["sample"], seen["tasks/softmax"]])
    assert "H100" in said and ("232,448" in said or "227 KiB" in said)
    for word in ("NeuronCore", "nki", "trn2", "simulate"): assert word not in said


def test_a_conversation_is_a_run_of_triton_kernels_without_a_time(seen):
    assert seen["too early"].is_error and "Call start" in text_of(seen["too early"])
    assert "no card" in text_of(seen["start"]) and "not run" in text_of(seen["compile"]) and "registers" in text_of(seen["compile"])
    assert seen["looked"] == 1 and seen["live"] == [2]                # the call is kept, the kernel that was compiled only is no step
    assert not seen["edit"].is_error and "speed: unknown" in text_of(seen["edit"])
    assert seen["kernel"].count("2048") and "time unknown" in seen["run"] and "registers" in seen["steps/0"]
    assert not seen["submit"].is_error, text_of(seen["submit"])
    run = next(r for r in runs_in(seen["store"]) if r.steps)
    assert (run.agent, run.target, run.chip, run.task, run.state) == ("mcp", "triton", "sm_90", "relu", "finished")
    assert run.leader and run.best is None and all(s.evaluation.profile is None for s in run.steps)


def test_the_run_is_played_again_from_its_journal(seen):
    store = Store(seen["store"] / "runs.db")
    try:
        recording = Recording.load(next(r for r in map(store.load_run, store.run_ids()) if r.steps), store)
        assert [s.to_dict() for s in replayed(recording, HostedAgent())] == [s.to_dict() for s in recording.run.steps]
    finally: store.close()


@pytest.mark.parametrize("n", range(len(HOSTILE)))
def test_hostile_arguments_are_answered_with_a_sentence(seen, n):
    name, answer = seen["hostile"][n]
    assert answer.is_error and 10 < len(text_of(answer)) < 6_000, text_of(answer)
    for word in ("Traceback", "site-packages", SECRET, "KERNEL_LAB_HOME", "root:"): assert word not in text_of(answer)


def test_no_key_is_seen_or_kept(seen):
    for file in seen["store"].iterdir():
        if file.is_file(): assert SECRET.encode() not in file.read_bytes()
    assert SECRET not in seen["stderr"] and "Traceback" not in seen["stderr"]


@pytest.mark.slow
def test_cuda_is_compiled_and_said_to_be_not_verified_and_a_run_keeps_its_language(tmp_path):
    async def first(client): return await client.call_tool("judge", {"source": CUDA_CANARY}), (await client.list_tools()).tools
    async def second(client): return await client.call_tool("submit", {"source": "last", "move": "m", "why": "w", "expected": "e"})
    judged, tools = talk(tmp_path, first, "--target", "cuda", "--task", "relu", "-w", "small", "--chip", "sm_80")
    assert not judged.is_error and "compiled" in text_of(judged) and "start" not in [t.name for t in tools]
    assert not talk(tmp_path, second, "--resume", "latest").is_error
    [run] = runs_in(tmp_path)
    assert (run.target, run.chip, run.state, len(run.steps)) == ("cuda", "sm_80", "finished", 1)
    assert run.steps[0].evaluation.status.value == "compiled"


@pytest.mark.slow
def test_what_a_person_writes_in_the_page_is_heard(tmp_path):
    async def ask(client):
        await client.call_tool("start", {"task": "relu", "workload": "small"})
        await client.call_tool("judge", {"source": RELU_IN_TRITON})
        store = Store(tmp_path / "runs.db")
        try: step = AgentLoop(run=store.latest(), store=store, seeds=1).edit(WIDE + "# by hand\n")
        finally: store.close()
        return step.index, text_of(await client.call_tool("judge", {"source": "last"}))
    index, said = talk(tmp_path, ask, "--target", "triton")
    assert f"step {index}" in said and "by hand" in said


@pytest.mark.slow
def test_a_kernel_whose_planning_never_ends_is_stopped_and_the_server_lives(tmp_path):
    endless = HEAD + "def kernel(x):\n    while True: pass\n"
    async def ask(client):
        return await client.call_tool("judge", {"source": endless}), await client.call_tool("judge", {"source": RELU_IN_TRITON})
    slow, after = talk(tmp_path, ask, "--target", "triton", "--task", "relu", "-w", "small", "--work-seconds", "5")
    assert slow.is_error and "too long" in text_of(slow) and not after.is_error, (text_of(slow), text_of(after))


def test_addresses_of_another_language_are_errors_of_the_protocol_and_leave_no_run(tmp_path):
    from mcp.shared.exceptions import MCPError                      # here: every worker collects this file
    async def ask(client):
        found = []
        for make in (lambda: client.read_resource("kernel-lab://instructions"), lambda: client.read_resource("kernel-lab://kernel"),
                     lambda: client.read_resource("kernel-lab://tables/..%2f"), lambda: client.read_resource("file:///etc/passwd"),
                     lambda: client.get_prompt("task", {"task": "relu", "chip": "trn2"})):
            with pytest.raises(MCPError) as e: await make()
            found.append(e.value.message)
        return found
    for text in talk(tmp_path, ask, "--target", "triton"): assert "Traceback" not in text and len(text) > 20
    assert not (os.path.exists(tmp_path / "runs.db") and runs_in(tmp_path))


def test_a_host_is_refused_before_it_serves():
    for words, says in (({"target": "rust"}, "rust"), ({"target": "triton", "chip": "trn2x"}, "sm_90"),
                        ({"chip": "sm_90"}, "trn2"), ({"target": "cuda", "task": "relu", "workload": "huge"}, "huge"),
                        ({"target": "triton", "resume": "latest"}, "keeps its language")):
        with pytest.raises(UsageError) as e: host_of(False, **words)
        assert says in str(e.value)


@pytest.mark.parametrize("target, chip", [("nki", "trn2"), ("triton", "sm_90"), ("cuda", "sm_90")])
def test_the_instructions_name_every_tool_that_makes_a_kernel_and_no_other(target, chip):
    from kernel_lab.agents.mcp.server import instructions_of
    from kernel_lab.agents.tools.tool_sets import tools_for
    looks = {"read_api", "read_chip", "search_patterns"}
    named = set(re.findall(r"\w+", instructions_of(target, chip))) & {n for t in ("nki", "triton", "cuda") for n in tools_for(t)}
    assert named == set(tools_for(target)) - looks
