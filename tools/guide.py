"""Fill in the generated parts of nbs/guide.ipynb: rooms, pages, commands, tasks. `make export` calls it.

A markdown cell with a line `<!-- made from: NAME -->` ends with what `SECTIONS[NAME]()` returns; everything after
that line is replaced."""
import json
import re
import sys
from itertools import groupby
from pathlib import Path

import number

ROOT = Path(__file__).parent.parent
NBS, GUIDE = ROOT / "nbs", ROOT / "nbs" / "guide.ipynb"
MARK = re.compile(r"(<!-- made from: (\w+) -->).*", re.S)
ROOMS = {
    "core": "what every room needs: errors, files, durations, formatting, worker processes",
    "nki": "the NeuronCore on a laptop: `simulate`, `profile`, several devices at once",
    "nki.chip": "what a chip is: engines, clocks, memories, queues, storage types, each figure with its source",
    "nki.ir": "the `Program`: tensors, accesses, loops, the instruction table, its verifier and file format",
    "nki.record": "what a kernel's Python touches while it is traced: tiles, indexing, loops, placement",
    "nki.lang": "the two dialects, instruction by instruction, and `trace`: kernel → `Program`",
    "nki.checks": "limits of the chip, aliasing, loop-carried dependencies, races: `Program` → diagnostics",
    "nki.executor": "`Program` → numbers: the interpreter, the passes that vectorise it, the stepper",
    "nki.timing": "`Program` → `Timeline`: dependencies, allocation, engines and queues, the scheduler",
    "nki.explain": "`Timeline` → reasons: profile, traffic, critical path, efficiency, waterfall, Perfetto",
    "nki.validate": "every instruction against numpy; simulated against published latencies",
    "tasks": "what must be computed",
    "tasks.model": "`Task`, `Workload`, `Kernel`, `Tolerance`",
    "tasks.codegen": "a compiler: a torch function becomes the text of an NKI kernel",
    "tasks.suite": "250 tasks: how a family is written, the kernels written by hand, the register of all",
    "tasks.suite.level1": "100 single operations",
    "tasks.suite.level2": "100 fused operations",
    "tasks.suite.level3": "50 model components",
    "tasks.quality": "what a task must show before it may be used",
    "tasks.importers": "tasks of other suites, from your checkouts: KernelBench, NKIBench, FlashInfer-Bench, "
                       "NKIGen-Bench",
    "tasks.baselines": "eager execution, lower bounds, kept times",
    "tasks.synthesis": "15,000 candidates → 6,000 tasks to train on",
    "targets": "where a kernel can run: the simulator, a Neuron device",
    "evaluate": "`evaluate`: compile → verify → profile → plausibility",
    "evaluate.records": "what is kept: `Verification`, `Evaluation`, `Step`, `Run`, and where they come from",
    "evaluate.sandbox": "a kernel's Python in a confined child process",
    "evaluate.verification": "outputs against the reference, adversarial inputs, diagnosis of a wrong output, guards",
    "evaluate.store": "the database: rows by content key, experiences, export",
    "evaluate.survey": "all tasks put to the test; their table of times",
    "evaluate.pool": "many evaluations, on local workers or a Ray cluster",
    "agents": "who writes kernels: the turn engine, chat, tools, the ReAct agent",
    "agents.rewrite": "the built-in agent that needs no model: moves on a kernel's source",
    "figures": "records → plotly figures, and the report",
    "panels": "widgets of the page, and `Lab`",
    "cli": "the commands of `kernel-lab`",
}


def room_of(folder: Path) -> str:
    "The package that a folder of nbs/ mirrors: `2_nki/7_timing` → `nki.timing`."
    return ".".join(re.sub(r"^\d_", "", part) for part in folder.relative_to(NBS).parts)


def title_and_subtitle(page: Path) -> tuple[str, str]:
    "Title and subtitle of a notebook."
    data = number.cells(page)
    lines = "".join(number.head(data)["source"]).splitlines()
    return number.title(data), next((line[2:].strip() for line in lines[1:] if line.startswith("> ")), "")


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
        rows.append(f"| {floor} | `{room_of(folder)}` | {n} | {ROOMS[room_of(folder)]} |")
    return "\n".join(rows)


def pages() -> str:
    "A list of all pages, room by room."
    out = []
    for folder in folders():
        if not (found := number.pages(folder)): continue
        out += [f"**`{room_of(folder)}`**: {ROOMS[room_of(folder)]}", ""]
        heads = {p: title_and_subtitle(p) for p in found}
        out += [f"- [{title}]({p.relative_to(NBS).as_posix()}): {subtitle}"
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
