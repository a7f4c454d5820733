"""How many CPU seconds does a verdict take?  Every evaluation is the first one of a fresh process.

    python benchmarks/verdict.py [--chip trn2] [--workload full] [--every 1] [--csv FILE] [task …]

Each task's first kernel, and the same with one operation exchanged (a wrong kernel; a task that only moves data has
none). CPU seconds of the process and its children, user and system, with their parts: `import` (Python and this
library; torch counts as reference), `compile` (tracing in the sandbox and parsing),
`inputs`, `reference`, `execute`, `compare` (with diagnosis), `profile`, `guards`, `other`. `sandbox` counts the
sandbox's processes. The last lines: medians, the ten dearest, and the dearest ratios of wrong to right."""
import argparse
import csv
import json
import re
import resource
import subprocess
import sys
import time
from contextlib import suppress
from statistics import median

STAGES = ("import", "compile", "inputs", "reference", "execute", "compare", "profile", "guards", "baseline", "other",
          "sandbox")
EXCHANGED = (("nl.add", "nl.subtract"), ("nl.multiply", "nl.add"), ("nl.subtract", "nl.add"), ("nl.maximum", "nl.add"),
             ("nl.exp", "nl.square"), ("nl.rsqrt", "nl.sqrt"), ("nl.relu", "nl.tanh"), ("nl.tanh", "nl.relu"),
             ("nl.square", "nl.relu"), ("nl.sqrt", "nl.square"), ("nl.sigmoid", "nl.relu"), ("nl.divide", "nl.add"),
             ("nl.minimum", "nl.maximum"), ("nl.gelu", "nl.tanh"), ("nl.silu", "nl.tanh"), ("nl.log", "nl.square"),
             ("nl.erf", "nl.relu"), ("nl.sin", "nl.relu"), ("nl.greater", "nl.less"), ("nl.equal", "nl.less"),
             ("nl.reciprocal", "nl.square"), ("nl.softplus", "nl.relu"), ("nl.abs", "nl.square"))


def wrong(source):
    "A source with its last exchangeable operation exchanged; None where it has none."
    last = max(((m.start(), old, new) for old, new in EXCHANGED for m in re.finditer(re.escape(old) + r"\b", source)),
               default=None)
    return last and source[:last[0]] + last[2] + source[last[0] + len(last[1]):]


class Stages:
    "CPU seconds by stage; a stage inside another counts for itself only."
    def __init__(self):
        self.seconds, self.running, self.since = dict.fromkeys(STAGES, 0.0), ["import"], 0.0

    def turn(self):
        now = time.process_time()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def count(self, owner, name, stage):
        "Count calls of `owner.name` under a stage."
        raw = getattr(owner, name)
        def counted(*args, **given):
            self.turn()
            self.running.append(stage)
            try: return raw(*args, **given)
            finally:
                self.turn()
                self.running.pop()
        setattr(owner, name, counted)


def one(name, workload, chip, is_wrong):
    "Evaluate in this process → a row."
    from kernel_lab.evaluate import pipeline
    from kernel_lab.evaluate.sandbox import run
    from kernel_lab.evaluate.verification import adversarial_inputs, verify
    from kernel_lab.nki.executor import vectorized
    from kernel_lab.tasks.model.task import Task
    from kernel_lab.tasks.model.workload import Kernel
    from kernel_lab.tasks.suite.registry import TASKS
    stages = Stages()
    for owner, function, stage in (
            (pipeline, "compile_stage", "compile"), (pipeline, "profile_stage", "profile"),
            (pipeline, "guard_stage", "guards"), (pipeline, "_baseline_stage", "baseline"), (Task, "draw", "inputs"),
            (Task, "expected", "reference"), (adversarial_inputs, "_in_float64", "reference"),
            (adversarial_inputs.Draw, "of", "inputs"), (adversarial_inputs.Patchwork, "of", "inputs"),
            (verify, "compare", "compare"), (verify, "_examined", "compare"), (vectorized, "execute", "execute")):
        with suppress(AttributeError): stages.count(owner, function, stage)
    task = TASKS[name]
    kernel = task.first(task.workload(workload))
    if is_wrong: kernel = Kernel(wrong(kernel.source), kernel.entry, kernel.target)
    stages.turn()
    stages.running[:] = ["other"]
    since = time.perf_counter()
    found = pipeline.evaluate(kernel, task, workload, chip)
    wall = time.perf_counter() - since
    stages.turn()
    run._closed()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    stages.seconds["sandbox"] = children.ru_utime + children.ru_stime
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return dict(task=name, kernel="wrong" if is_wrong else "right", status=found.status.value,
                cpu=time.process_time() + stages.seconds["sandbox"], wall=wall, mb=peak, **stages.seconds)


def fresh(name, workload, chip, is_wrong):
    "The row of an evaluation in a process of its own."
    asked = [sys.executable, __file__, "--one", json.dumps([name, workload, chip, is_wrong])]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode: raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def survey(names, workload, chip, path):
    "Print and keep the rows of tasks, right and wrong."
    from kernel_lab.tasks.suite.registry import TASKS
    rows = []
    print(f"{'task':<30}{'kernel':<7}{'status':<14}" + "".join(f"{s:>10}" for s in ("cpu", "wall", "mb", *STAGES)))
    for name in names:
        task = TASKS[name]
        if workload not in [w.name for w in task.workloads]: continue
        ways = [False, True] if wrong(task.first(task.workload(workload)).source) else [False]
        for r in (fresh(name, workload, chip, w) for w in ways):
            rows.append(r)
            print(f"{name:<30}{r['kernel']:<7}{r['status']:<14}" +
                  "".join(f"{r[s]:>10.2f}" for s in ("cpu", "wall", "mb", *STAGES)), flush=True)
        if path:
            with open(path, "w", newline="") as file:
                out = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                out.writeheader()
                out.writerows(rows)
    summary(rows)


def summary(rows):
    "Medians, the ten dearest, and the largest ratios of wrong to right."
    right, bad = ({r["task"]: r for r in rows if r["kernel"] == k} for k in ("right", "wrong"))
    for word, found in (("right", right), ("wrong", bad)):
        if not found: continue
        dear = sorted(found.values(), key=lambda r: -r["cpu"])[:10]
        print(f"{word}: median {median(r['cpu'] for r in found.values()):.2f} s of {len(found)}; dearest: " +
              ", ".join(f"{r['task']} {r['cpu']:.2f}" for r in dear))
    ratios = sorted(((bad[n]["cpu"] / right[n]["cpu"], n) for n in bad), reverse=True)
    if ratios: print(f"wrong / right: median {median(r for r, _ in ratios):.2f}; largest: " +
                     ", ".join(f"{n} {r:.2f}" for r, n in ratios[:10]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--chip", default="trn2")
    parser.add_argument("--workload", default="full")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--csv")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one: print(json.dumps(one(*asked.one)))
    else:
        from kernel_lab.tasks.suite.registry import TASKS
        survey((asked.tasks or list(TASKS))[::asked.every], asked.workload, asked.chip, asked.csv)
