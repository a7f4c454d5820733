"""The lab over the Model Context Protocol: a real process, the library's own client, and calls that mean no good."""
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

if not find_spec("mcp"): pytest.skip("mcp is not installed", allow_module_level=True)
from mcp_talk import SECRET, START, environment, runs_in, talk, text_of                             # noqa: E402

from kernel_lab.agents.engine.loop import AgentLoop                                                 # noqa: E402
from kernel_lab.evaluate.store.store import Store                                                   # noqa: E402
from kernel_lab.tasks.suite.registry import get_task                                                # noqa: E402

SOFTMAX = get_task("softmax").first("small").source
STATIC = SOFTMAX.replace("affine_range", "static_range")
HEAD = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    "One conversation with everything in it: what was answered, by name, and the store that it left."
    tmp_path = tmp_path_factory.mktemp("mcp")
    async def ask(client):
        found = {"tools": (await client.list_tools()).tools, "prompts": (await client.list_prompts()).prompts,
                 "resources": (await client.list_resources()).resources,
                 "templates": (await client.list_resource_templates()).resource_templates}
        found["too early"] = await client.call_tool("profile", {"source": "best"})
        found["start"] = await client.call_tool("start", {"task": "softmax", "workload": "small"})
        found["prints"] = await client.call_tool("profile", {
            "source": 'print("{}")\nimport os\nos.write(1, b"noise")\n' + SOFTMAX})
        found["plain"] = await client.call_tool("profile", {"source": STATIC})
        found["live"] = [len(r.steps) for r in runs_in(tmp_path)]
        found["step"] = (await client.read_resource("kernel-lab://steps/0")).contents[0].text
        found["run"] = (await client.read_resource("kernel-lab://run")).contents[0].text
        found["system"] = (await client.get_prompt("system")).messages[0].content.text
        found["task"] = (await client.get_prompt("task", {"task": "rmsnorm"})).messages[0].content.text
        found["hostile"] = [(name, await client.call_tool(name, given)) for name, given in HOSTILE]
        found["submit"] = await client.call_tool("submit", {"source": STATIC, "move": "static", "why": "a", "expected": "b"})
        return found
    found = talk(tmp_path, ask)
    return {**found, "store": tmp_path, "stderr": (tmp_path / "stderr.txt").read_text()}


HOSTILE = [
    ("fly", {}), ("profile", {}), ("profile", {"source": 7}), ("profile", {"source": None}), ("profile", {"source": ["x"]}),
    ("profile", {"source": "x" * 3_000_000}), ("profile", {"source": "best", "stages": "all"}),
    ("profile", {"source": "best", "more": 1}), ("variants", {"sources": ["best"] * 500}), ("variants", {"sources": "best"}),
    ("optimise", {"source": "best", "take": "2"}), ("optimise", {"source": "best", "take": -1}),
    ("edit", {"kernel": "best", "old": "", "new": "x"}), ("read_api", {"names": []}), ("start", {"task": "sofmax"}),
    ("start", {"task": "softmax", "chip": "h100"}), ("start", {"task": "../../etc"}), ("submit", {"source": "best"}),
    ("profile", {"source": HEAD + "import os\n@nki.jit\ndef softmax(x):\n    raise ValueError(str(dict(os.environ)))\n"}),
    ("profile", {"source": "raise SystemExit"}), ("profile", {"source": "import os\nos._exit(0)"}),
    ("profile", {"source": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"}), ("profile", {"source": "\0"})]


def test_everything_is_on_offer(seen):
    assert [t.name for t in seen["tools"]] == ["start", "profile", "edit", "variants", "search_patterns", "read_api", "optimise", "submit"]
    assert all(t.description and t.input_schema["type"] == "object" for t in seen["tools"])
    assert [p.name for p in seen["prompts"]] == ["system", "task"]
    assert {r.uri for r in seen["resources"]} >= {"kernel-lab://tasks", "kernel-lab://instructions", "kernel-lab://patterns"}
    assert "kernel-lab://steps/{step}" in {t.uri_template for t in seen["templates"]}


def test_a_conversation_is_a_run_that_is_seen_while_it_grows(seen):
    assert seen["too early"].is_error and "Call start" in text_of(seen["too early"])
    assert "Known times" in text_of(seen["start"]) and "latency" in text_of(seen["plain"])
    assert "latency" in seen["step"] and "step 0" in seen["run"] and "How to work" in seen["system"] and "rmsnorm" in seen["task"]
    assert not seen["submit"].is_error, text_of(seen["submit"])
    [run] = runs_in(seen["store"])
    assert (run.agent, run.state, run.task) == ("mcp", "finished", "softmax")
    assert seen["live"] == [2] and len(run.steps) > 2


def test_a_kernel_that_prints_does_not_break_the_protocol(seen):
    assert "The same Program as" in text_of(seen["prints"])       # it ran, and everything after it was understood


@pytest.mark.parametrize("n", range(len(HOSTILE)))
def test_hostile_arguments_are_answered_with_a_sentence(seen, n):
    name, answer = seen["hostile"][n]
    assert answer.is_error and 10 < len(text_of(answer)) < 6_000
    for word in ("Traceback", "site-packages", SECRET, "KERNEL_LAB_HOME"): assert word not in text_of(answer)


def test_a_client_is_greeted_before_the_lab_is_loaded(tmp_path):
    "Its hello waits for the library and the command line; what the tools need is imported when somebody asks for them."
    says = """import sys
import kernel_lab.cli.app
from kernel_lab.agents.mcp.server import server_of
from kernel_lab.cli.agents.mcp import require_sense
require_sense("masked_softmax", "small")
made = []
server = server_of(lambda: made.append(1))
assert "Trainium" in server.instructions and not made
print([n for n in ("numba", "libcst", "torch", "kernel_lab.agents.mcp.host", "kernel_lab.evaluate.pipeline") if n in sys.modules])
import kernel_lab.agents.mcp.resources
print([n for n in ("libcst", "torch") if n in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, env=environment(tmp_path), check=False)
    assert done.stdout == "[]\n[]\n", done.stdout + done.stderr


def test_no_key_is_seen_or_kept(seen):
    for file in seen["store"].iterdir():
        if file.is_file(): assert SECRET.encode() not in file.read_bytes()
    assert SECRET not in seen["stderr"] and "Traceback" not in seen["stderr"]


@pytest.mark.slow
def test_a_kernel_that_never_ends_is_stopped_and_the_server_lives(tmp_path):
    async def ask(client):
        endless = HEAD + "@nki.jit\ndef softmax(x):\n    n = 0\n    while n < 10**18: n += 1\n    return x\n"
        slow, listed = await asyncio.gather(client.call_tool("profile", {"source": endless}), client.list_tools())
        return slow, listed, await client.call_tool("read_api", {"names": ["tensor_copy"]})
    slow, listed, after = talk(tmp_path, ask, "--task", "softmax", "-w", "small", "--work-seconds", "5")
    assert slow.is_error and "tim" in text_of(slow) and not after.is_error
    assert "start" not in [t.name for t in listed.tools]


def test_what_is_asked_for_and_not_there_is_an_error_of_the_protocol(tmp_path):
    from mcp.shared.exceptions import MCPError                      # here: every worker collects this file
    async def ask(client):
        found = []
        for make in (lambda: client.read_resource("kernel-lab://nothing"), lambda: client.read_resource("file:///etc/passwd"),
                     lambda: client.read_resource("kernel-lab://steps/0"), lambda: client.get_prompt("nothing"),
                     lambda: client.get_prompt("task", {"task": "sofmax"})):
            with pytest.raises(MCPError) as e: await make()
            found.append(e.value.message)
        return found
    for text in talk(tmp_path, ask): assert "Traceback" not in text and len(text) > 20
    assert not runs_in(tmp_path)                          # whoever only looks leaves no run behind


@pytest.mark.slow
def test_standard_output_holds_nothing_but_the_protocol(tmp_path):
    hello = dict(jsonrpc="2.0", id=1, method="initialize", params=dict(
        protocolVersion="2025-06-18", capabilities={}, clientInfo=dict(name="raw", version="0")))
    call = dict(jsonrpc="2.0", id=2, method="tools/call", params=dict(name="profile", arguments=dict(
        source="import os\nos.write(1, b'noise\\n')\nprint('noise')\n" + SOFTMAX)))
    odd = dict(call, id=3, params=dict(name="profile", arguments=[1]))
    lines = [json.dumps(hello), json.dumps(dict(jsonrpc="2.0", method="notifications/initialized")), "no json", json.dumps(call),
             json.dumps(odd)]
    words = ["-c", START, "mcp", "--store", str(tmp_path / "runs.db"), "--task", "softmax", "--workload", "small"]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=environment(tmp_path)) as process:
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.flush()
        answers = []
        while not {2, 3} <= {a.get("id") for a in answers}: answers.append(json.loads(process.stdout.readline()))
        process.stdin.close()
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert all(json.loads(line) for line in rest.splitlines())
    assert all(a["jsonrpc"] == "2.0" for a in answers) and "error" in next(a for a in answers if a.get("id") == 3)
    assert [r.state for r in runs_in(tmp_path)] == ["interrupted"]


def test_a_line_that_cannot_be_read_is_answered_with_its_id(tmp_path):
    hello = dict(jsonrpc="2.0", id=1, method="initialize", params=dict(
        protocolVersion="2025-06-18", capabilities={}, clientInfo=dict(name="raw", version="0")))
    call = '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"profile","arguments":{"source":%s}}}'
    lines = [json.dumps(hello), json.dumps(dict(jsonrpc="2.0", method="notifications/initialized")), call % (2, '"\\ud800"'), "no json",
             call % (3, "[" * 5000 + "]" * 5000), call % (4, "9" * 5000), json.dumps(dict(jsonrpc="2.0", id=5, method="tools/list"))]
    words = ["-c", START, "mcp", "--store", str(tmp_path / "runs.db"), "--task", "softmax", "--workload", "small"]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=environment(tmp_path)) as process:
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.flush()
        answers = {}
        while not {1, 2, None, 3, 4, 5} <= answers.keys():
            answer = json.loads(process.stdout.readline())
            answers[answer.get("id")] = answer
        process.stdin.close()
        assert process.wait(60) == 0
    assert {n for n in (2, None, 3) if "no message" in answers[n]["error"]["message"]} == {2, None, 3}
    assert "error" in answers[4] or answers[4]["result"]["isError"]
    assert answers[5]["result"]["tools"]


@pytest.mark.slow
def test_a_run_is_resumed(tmp_path):
    async def first(client): return await client.call_tool("profile", {"source": STATIC})
    async def second(client): return await client.call_tool("submit", {"source": "last", "move": "m", "why": "w", "expected": "e"})
    assert not talk(tmp_path, first, "--task", "softmax", "-w", "small").is_error
    before = len(runs_in(tmp_path)[0].steps)
    assert not talk(tmp_path, second, "--resume", "latest").is_error
    [run] = runs_in(tmp_path)
    assert (run.state, len(run.steps)) == ("finished", before)


def holder_of(place):
    "The process that works at the only run of a store."
    with sqlite3.connect(place) as c: return int(c.execute("select holder from runs").fetchone()[0].split()[3])


@pytest.mark.slow
def test_an_edit_in_the_page_is_heard_and_a_killed_server_leaves_no_run_running(tmp_path):
    "Also where the edit is the last thing that was written, and while nobody has asked for the server's exit code."
    mine, place = SOFTMAX + "# by hand\n", tmp_path / "runs.db"

    async def ask(client):
        await client.call_tool("start", {"task": "softmax", "workload": "small"})
        server, store = holder_of(place), Store(place)
        def write(source): return AgentLoop(run=store.latest(), store=store, seeds=1).edit(source)
        step = write(mine)
        answers = [text_of(await client.call_tool("profile", {"source": "last"})) for _ in range(2)]
        shown = (await client.read_resource(f"kernel-lab://steps/{step.index}")).contents[0].text
        write(mine + "# again\n")
        before, holder = store.latest().state, holder_of(place)
        os.kill(server, signal.SIGKILL)
        until = time.monotonic() + 20
        while store.latest().state == "running" and time.monotonic() < until: time.sleep(0.05)
        after, found = store.latest().state, store.latest()
        store.close()
        return step, answers, shown, before, holder == server, after, found
    step, (first, second), shown, before, is_held, after, run = talk_and_die(tmp_path, ask)
    assert "changed the kernel by hand" in first and f"step {step.index}" in first and "by hand (step" not in second
    assert "# by hand" in shown and (before, is_held, after) == ("running", True, "interrupted")
    assert [s.move for s in run.steps if "by hand" in s.move] == ["edited by hand"] * 2

    async def go_on(client): return text_of(await client.call_tool("profile", {"source": "last"}))
    assert "changed the kernel by hand" in talk(tmp_path, go_on, "--resume", run.id)


def talk_and_die(tmp_path, ask):
    "As `talk`, where the server does not live to the end."
    found = []
    async def kept(client): found.append(await ask(client))
    try: talk(tmp_path, kept)
    except Exception:
        if not found: raise
    return found[0]
