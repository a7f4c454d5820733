"""Make the recorded runs of kernel_lab/agents/recorded again.

`python tools/record_runs.py rewrite scripted` plays the built-in agent and the scripted conversations;
`python tools/record_runs.py model --from FOLDER` converts conversations of a language model, a JSON file a task with
`task`, `workload`, `chip` and `calls` (turn, name, source, ok, result): each source is evaluated anew by today's clock,
the answers that the model saw are kept as they were."""
import argparse
import json
import re
import sys
from dataclasses import replace
from functools import wraps
from itertools import groupby
from pathlib import Path
from unittest.mock import patch

from kernel_lab.agents.engine.loop import AgentLoop
from kernel_lab.agents.engine.recording import from_file, to_file
from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.recorded.runs import RECORDED, described, place_of
from kernel_lab.agents.rewrite.agent import RewriteAgent
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.agents.tools.calls import Tool
from kernel_lab.agents.tools.tool_sets import PUBLISHED_TOOLS
from kernel_lab.core.files import write_whole

sys.path.insert(0, str(Path(__file__).parent))
import recorded_scripts                                                                             # noqa: E402

BUILT_IN = ("rmsnorm_matmul", "swiglu", "linear_bias_gelu", "masked_softmax", "cross_entropy", "rope_halves")
LABELS = dict(rewrite="recorded with the built-in agent", scripted="scripted",
              model="recorded with a language model, tokens not counted")


def record(name, label, task, agent, workload, chip="trn2", target="nki"):
    "Play a run to its end and write its recording."
    loop = AgentLoop(task, agent, workload, chip, store=False, target=target)
    for step in loop: print(" ", step, flush=True)
    recording = loop.recording
    recording.run = replace(recording.run, config={**recording.run.config, "label": label})
    to_file(recording, place_of(name))
    print(name, loop.run.state, len(loop.steps), loop.run.best_speedup, place_of(name).stat().st_size, flush=True)


def write_index():
    "Describe all recordings in the index."
    names = sorted(p.name.removesuffix(".json.xz") for p in RECORDED.parent.glob("*.json.xz"))
    rows = [described(name, from_file(place_of(name)).run) for name in names]
    write_whole(RECORDED, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def gpu_scripts():
    "The scripted conversations about GPU kernels."
    import recorded_gpu_scripts
    return recorded_gpu_scripts.GPU_SCRIPTS


class Replays(ReactAgent):
    "The react agent, whose tools evaluate and then answer as they answered when the conversation was recorded."
    def tools_in(self, target):
        "The four published tools."
        return {name: Tool(name, self._as_then(tool.run)) for name, tool in PUBLISHED_TOOLS.items()}

    def _as_then(self, run):
        @wraps(run)
        def answer(bench, **given):
            run(bench, **given)
            call = self.calls.pop(0)
            if call["source"] != given["source"]: raise SystemExit("the calls are out of step")
            return call["result"], call["ok"]
        return answer


def replies_of(calls):
    "The replies of a model, a turn each."
    def block(n, c):
        given = {k: c[k] for k in ("source", "move", "why", "expected") if k in c}
        return {"type": "tool_use", "id": f"call_{c['turn']}_{n}", "name": c["name"], "input": given}
    for _, turn in groupby(calls, key=lambda c: c["turn"]):
        yield Reply(tuple(block(n, c) for n, c in enumerate(turn)), "tool_use")


def convert(path):
    "Convert one conversation of a language model."
    d = json.loads(path.read_text())
    model = ScriptedModel([*replies_of(d["calls"])], name="a language model")
    agent = Replays(model, exact=True, max_tokens=None)
    agent.calls = [*d["calls"]]
    lost = "The {} of this conversation, {:,} characters, was not kept."
    with patch("kernel_lab.agents.systems.react.system_for",
               lambda *a: lost.format("system prompt", d["system_chars"])), \
         patch("kernel_lab.agents.systems.react.ask_for", lambda *a: lost.format("first message", d["ask_chars"])):
        record(f"model-{d['task']}", LABELS["model"], d["task"], agent, d["workload"], d["chip"])


def main():
    "The command line."
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="+", choices=[*LABELS])
    parser.add_argument("--from", dest="folder", type=Path, help="conversations of a language model")
    parser.add_argument("--only", default="", help="names that match this expression")
    asked = parser.parse_args()
    wanted = re.compile(asked.only).search
    if "model" in asked.what and asked.folder is None: parser.error("model needs --from FOLDER")
    for task in BUILT_IN if "rewrite" in asked.what else ():
        if wanted(f"rewrite-{task}"): record(f"rewrite-{task}", LABELS["rewrite"], task, RewriteAgent(), "small")
    for name, (task, workload, agent) in recorded_scripts.SCRIPTS.items() if "scripted" in asked.what else ():
        if wanted(name): record(name, LABELS["scripted"], task, agent(), workload)
    for name, (task, workload, agent, target) in gpu_scripts().items() if "scripted" in asked.what else ():
        if wanted(name): record(name, LABELS["scripted"], task, agent(), workload, target=target)
    for path in sorted(asked.folder.glob("*.json")) if "model" in asked.what else ():
        if wanted(f"model-{path.stem}"): convert(path)
    write_index()


if __name__ == "__main__": main()
