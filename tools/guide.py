"""Fill in the generated parts of nbs/guide.ipynb: rooms, pages, commands, tasks. `make export` calls it.

A markdown cell with a line `<!-- made from: NAME -->` ends with what `SECTIONS[NAME]()` returns; everything after
that line is replaced."""
import ast
import json
import re
import sys
from collections import Counter
from functools import cache
from itertools import groupby
from pathlib import Path

import number
from statements import statements

ROOT = Path(__file__).parent.parent
NBS, GUIDE, LIB = ROOT / "nbs", ROOT / "nbs" / "guide.ipynb", ROOT / "kernel_lab"
MOST_NAMES = 3          # shown behind a page's line
MARK = re.compile(r"(<!-- made from: (\w+) -->).*", re.S)
ROOMS = {
    "core": "what every room needs: errors, files, durations, formatting, worker processes",
    "nki": "the NeuronCore on a laptop: `simulate`, `profile`, several devices at once",
    "nki.chip": "what a chip is: engines, clocks, memories, queues, storage types, each figure with its source",
    "nki.ir": "the `Program`: tensors, accesses, loops, the instruction table, its verifier and file format",
    "nki.record": "what a kernel's Python touches while it is traced: tiles, indexing, loops, placement",
    "nki.lang": "the current dialect (`nki`) and the earlier one (`neuronxcc.nki`), instruction by instruction, and "
                "`trace`: kernel → `Program`",
    "nki.checks": "limits of the chip, aliasing, loop-carried dependencies, races: `Program` → diagnostics",
    "nki.executor": "`Program` → numbers: the interpreter, the passes that vectorise it, the stepper",
    "nki.timing": "`Program` → `Timeline`: dependencies, allocation, engines and queues, the scheduler",
    "nki.explain": "`Timeline` → reasons: profile, traffic, critical path, efficiency, waterfall, Perfetto",
    "nki.transform": "faster programs with the same results: each transformation with the proof that allows it",
    "nki.transform.overlap": "engines kept busy at once: work dealt out anew, the next iteration begun early",
    "nki.transform.lanes": "all 128 lanes at work: iterations of a loop on partitions that were idle",
    "nki.tuning": "beam and annealing over transformations, with the clock as cost; what each move is worth",
    "nki.writing": "`Program` → source of the current dialect that a person would accept; the earlier dialect lifted",
    "nki.validate": "every instruction against numpy; simulated against published latencies",
    "tasks": "what must be computed",
    "tasks.model": "`Task`, `Workload`, `Kernel`, `Tolerance`",
    "tasks.codegen": "a compiler: a torch function becomes the text of an NKI kernel",
    "tasks.codegen.loops": "reductions that walk a row once, and passes whose reductions leave rows",
    "tasks.codegen.rewrites": "what a graph becomes before it is lowered: recurrences as scans, composites in parts",
    "tasks.codegen.images": "passes over images that fill the array: taps or pixels packed, groups of channels",
    "tasks.codegen.attention": "softmax of products in one pass: where heads lie, what a pass computes, its pipeline",
    "tasks.suite": "250 tasks: how a family is written, the kernels written by hand, the register of all",
    "tasks.suite.level1": "100 single operations",
    "tasks.suite.level2": "100 fused operations",
    "tasks.suite.level3": "50 model components",
    "tasks.quality": "what a task must show before it may be used",
    "tasks.importers": "tasks of other suites, from your checkouts: KernelBench, NKIBench, FlashInfer-Bench, "
                       "NKIGen-Bench",
    "tasks.baselines": "time of the operation-by-operation reference, lower bounds, the table of known times",
    "tasks.synthesis": "made tasks, to train an agent on: 15,000 candidates → 6,000",
    "gpu": "GPU kernels without a GPU: what the package offers",
    "gpu.chip": "what a GPU is: what an SM holds, limits of a launch, bandwidth, rates, each figure sourced",
    "gpu.plan": "the `LaunchPlan`: memory, compiled kernels, launches, library calls; its text and its strict reader",
    "gpu.record": "a submission's Python on tensors without data, in a confined child: → `LaunchPlan`",
    "gpu.binary": "what the assembler made: registers, stack, shared memory, SASS by line, mix of instructions",
    "gpu.interpret": "kernels on arrays without a GPU: text vetted, each address looked up, roundings written out",
    "gpu.checks": "limits of a GPU before a launch, what follows from plan and binary: line, limit, value, way out",
    "gpu.clock": "time that holds on a card: ratios with intervals, clocks that must agree, floor, card state",
    "gpu.launch": "the launcher: guarded buffers, one graph a plan, timed races; sanitizer and counters of a card",
    "targets": "where a kernel can run: the simulator, a Neuron device",
    "evaluate": "`evaluate`: compile → verify → profile → plausibility",
    "evaluate.records": "what is kept: `Verification`, `Evaluation`, `Step`, `Run`, and where they come from",
    "evaluate.sandbox": "a kernel's Python in a confined child process",
    "evaluate.verification": "outputs against the reference, adversarial inputs, diagnosis of a wrong output, guards "
                             "against cheats",
    "evaluate.store": "the database of evaluations and runs: save, read back, export",
    "evaluate.gpu": "GPU kernels planned, assembled and interpreted in confined processes, judged against float64",
    "evaluate.self_run": "submissions that run their own Python on a card: checked, with a time that is their own word",
    "evaluate.survey": "all tasks put to the test; their table of times",
    "evaluate.pool": "many evaluations, on local workers or a Ray cluster",
    "agents": "who writes kernels: models, the engine of a run, patterns, tools, and agents made of them",
    "agents.models": "language models of any provider: what they cost, how they are asked, a budget that holds",
    "agents.engine": "a run as a tree of steps: the journal that brings it back, the session of an agent, the loop",
    "agents.rewrite": "the built-in agent that needs no model: moves on a kernel's source",
    "agents.patterns": "ways to write a kernel faster: a sign that it applies, a measured pair; kernels alike",
    "agents.tools": "what a model can call: profile, edit, look up, ask the optimiser; results as text",
    "agents.systems": "the published systems and one of our own, of the same parts; their prompts",
    "agents.suites": "agents over many tasks: classes, metrics with intervals, runs that go on after a kill, ablations",
    "agents.templates": "GPU kernels without a model, written: Triton templates for parts of a graph",
    "agents.tune": "GPU kernels without a model, chosen: candidates compiled, raced on the card against torch",
    "agents.recorded": "runs that the lab brings along, to look at and to replay without a model",
    "agents.mcp": "the tools for an agent that a person already uses, over the Model Context Protocol",
    "agents.reproduced": "what the published systems claim, beside what stands here, simulated or from a recording",
    "figures": "records → plotly figures, and the report",
    "figures.files": "figures as files: a browser that stays, exact bytes, facts inside, the theme for paper",
    "figures.suites": "figures of many runs: rates, means, engines, costs, outcomes, each step of a search",
    "figures.animation": "a kernel at work over simulated time: places in memory, sampled values, one page that plays",
    "puzzles": "lessons' puzzles: what is asked, the judge's answer, hints that are measured, a class table",
    "panels": "widgets of the page, and `Lab`",
    "panels.gpu": "a GPU kernel on the page: its source beside what became of it, verdicts, a bench to write one",
    "cli": "the commands of `kernel-lab`",
    "cli.figures": "figures and tables of a paper from one file, and where a figure's file came from",
    "cli.agents": "commands that let agents work: one kernel, one task, a suite of tasks; and go through a run again",
}


def room_of(folder: Path) -> str:
    "The package that a folder of nbs/ mirrors: `2_nki/7_timing` → `nki.timing`."
    return ".".join(re.sub(r"^\d_", "", part) for part in folder.relative_to(NBS).parts)


def anchor(room: str) -> str:
    "Where a room's list of pages begins, for links."
    return f"room-{room.replace('.', '-')}"


def title_and_subtitle(page: Path) -> tuple[str, str]:
    "Title and subtitle of a notebook."
    data = number.cells(page)
    lines = "".join(number.head(data)["source"]).splitlines()
    return number.title(data), next((line[2:].strip() for line in lines[1:] if line.startswith("> ")), "")


def imports(module: Path) -> list[tuple[str, str]]:
    "(module file below the package, name) of what a module imports from the package."
    package = module.relative_to(LIB).parts[:-1]
    found = []
    for node in statements(ast.parse(module.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.ImportFrom) and node.level and node.module): continue
        home = "/".join([*package[:len(package) - node.level + 1], *node.module.split(".")]) + ".py"
        found += [(home, a.name) for a in node.names]
    return found


@cache
def importers() -> dict[str, Counter]:
    "Module file → its functions and classes, each with how many modules import it."
    found: dict[str, Counter] = {}
    for module in LIB.rglob("*.py"):
        for home, name in imports(module): found.setdefault(home, Counter())[name] += 1
    return found


def main_names(page: Path) -> str:
    "The functions and classes of a page that most modules import, as code; nothing for a page that none imports."
    module = number.module(number.cells(page))
    if not module or module.endswith("__init__"): return ""
    home = f"{module.replace('.', '/')}.py"
    nodes = ast.parse((LIB / home).read_text(encoding="utf-8")).body
    own = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    often = sorted((-n, name) for name, n in importers().get(home, {}).items() if name in own)
    return "".join(f" `{name}`" for _, name in often[:MOST_NAMES])


def folders(at: Path = NBS) -> list[Path]:
    "Folders with pages, in reading order."
    inner = sorted(d for d in at.iterdir() if d.is_dir() and d.name[0].isdigit())
    return [f for d in inner for f in [d, *folders(d)]]


def rooms() -> str:
    "A table of floors, rooms and what they hold."
    rows = ["| floor | room | pages | what |", "|--:|---|--:|---|"]
    for folder in folders():
        if not (n := len(number.pages(folder))): continue
        floor = folder.relative_to(NBS).parts[0][0]
        room = room_of(folder)
        rows.append(f"| {floor} | [`{room}`](#{anchor(room)}) | {n} | {ROOMS[room]} |")
    return "\n".join(rows)


def pages() -> str:
    "A list of all pages, room by room."
    out = []
    for folder in folders():
        if not (found := number.pages(folder)): continue
        room = room_of(folder)
        out += [f'<a id="{anchor(room)}"></a>', "", f"### {room}", f"{ROOMS[room][0].upper()}{ROOMS[room][1:]}.", ""]
        heads = {p: title_and_subtitle(p) for p in found}
        out += [f"- [{title}]({p.relative_to(NBS).as_posix()}): {subtitle.rstrip('.')}.{main_names(p)}"
                for p, (title, subtitle) in heads.items()] + [""]
    return "\n".join(out).rstrip()


def commands() -> str:
    "A table of the commands with the first line of their help."
    from kernel_lab.cli.app import command_table
    cell = lambda text: text.replace("|", "\\|")                         # a bar ends a cell, even in code
    rows = [f"| `{cell(usage)}` | {cell(what)} |" for usage, what in command_table()]
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def tasks() -> str:
    "A table of the families of tasks: how many, and some of them."
    from kernel_lab.tasks.suite.registry import LEVELS, TASKS
    kind = lambda t: (t.level, t.family)
    rows = []
    for (level, family), found in groupby(sorted(TASKS.values(), key=kind), key=kind):
        names = [t.name for t in found]
        shown = ", ".join(f"`{n}`" for n in names[:4]) + (" …" if len(names) > 4 else "")
        rows.append(f"| {level}, {LEVELS[level]} | {family} | {len(names)} | {shown} |")
    return "\n".join(["| level | family | tasks | such as |", "|---|---|--:|---|", *rows])


SECTIONS = {"rooms": rooms, "pages": pages, "commands": commands, "tasks": tasks}


def filled(text: str) -> str:
    "A cell with its generated part made anew."
    return MARK.sub(lambda m: f"{m[1]}\n{SECTIONS[m[2]]()}", text)


def guide() -> str:
    "The notebook's JSON with its generated parts."
    data = json.loads(GUIDE.read_text(encoding="utf-8"))
    for cell in data["cells"]: cell["source"] = filled("".join(cell["source"])).splitlines(keepends=True)
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    text = guide()
    if "--check" not in sys.argv: GUIDE.write_text(text, encoding="utf-8")
    elif GUIDE.read_text(encoding="utf-8") != text:
        sys.exit("nbs/guide.ipynb is not up to date (`make export` puts it right)")
