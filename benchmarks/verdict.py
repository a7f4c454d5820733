"""How many CPU seconds does a verdict take?  Of a fresh process, or of a worker that has evaluated before (`--warm`).

    python benchmarks/verdict.py [--warm] [--right] [--chip trn2] [--workload full] [--every 1] [--csv FILE] [task …]

Each task's first kernel, and the same with one operation exchanged (a wrong kernel; a task that only moves data has
none). CPU seconds of the process and its children, user and system, with their parts: `import` (Python and this
library; torch counts as reference), `compile` (tracing in the sandbox and parsing),
`inputs`, `reference`, `execute`, `compare` (with diagnosis), `profile`, `guards`, `other`. `sandbox` counts the
sandbox's processes. With `--csv` every row is kept when it is there, and the same command goes on where the last one
ended. The last lines: medians, 90 %, the ten dearest, and the dearest ratios of wrong to right."""
import argparse
import csv
import json
import os
import re
import resource
import subprocess
import sys
import time
from statistics import median

import numpy

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


def counted_stages():
    "The stages of the evaluations of this process, counted from now on."
    from kernel_lab.evaluate import pipeline
    from kernel_lab.evaluate.sandbox.server import Server
    from kernel_lab.evaluate.verification import adversarial_inputs, stability, verify
    from kernel_lab.nki.executor import vectorized
    from kernel_lab.tasks.model.task import Task
    stages = Stages()
    for owner, function, stage in (
            (pipeline, "compile_stage", "compile"), (pipeline, "profile_stage", "profile"),
            (pipeline, "guard_stage", "guards"), (pipeline, "_baseline_stage", "baseline"), (Task, "draw", "inputs"),
            (Task, "expected", "reference"), (stability, "_in_float64", "reference"),
            (adversarial_inputs.Draw, "of", "inputs"), (adversarial_inputs.Patchwork, "of", "inputs"),
            (verify, "report_on", "compare"), (verify, "_examined", "compare"), (vectorized, "execute", "execute")):
        stages.count(owner, function, stage)
    raw = Server.run
    def run(*args, **given):                                    # the system reaps these children, so nobody else counts
        reply = raw(*args, **given)
        stages.seconds["sandbox"] += reply.used.get("cpu_seconds", 0)
        return reply
    Server.run = run
    return stages


def kernels(name, workload):
    "The texts of a task's first kernel and of a wrong one, None where there is none; and its entry."
    from kernel_lab.tasks.suite.registry import TASKS
    first = TASKS[name].first(workload)
    return first.source, wrong(first.source), first.entry


def one(name, workload, chip, is_wrong, stages, text, entry):
    "Evaluate a kernel in this process → a row; what was counted before belongs to it."
    from kernel_lab.evaluate import pipeline
    from kernel_lab.tasks.model.workload import Kernel
    from kernel_lab.tasks.suite.registry import TASKS
    task, kernel = TASKS[name], Kernel(text, entry)
    stages.turn()
    stages.running[:] = ["other"]
    since = time.perf_counter()
    found = pipeline.evaluate(kernel, task, workload, chip)
    wall = time.perf_counter() - since
    stages.turn()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return dict(task=name, kernel="wrong" if is_wrong else "right", status=found.status.value,
                cpu=sum(stages.seconds.values()), wall=wall, mb=peak, **stages.seconds)


def alone(name, workload, chip, is_wrong, text, entry):
    "The row of the first evaluation of this process, with the sandbox's own process."
    from kernel_lab.evaluate.sandbox import run
    row = one(name, workload, chip, is_wrong, counted_stages(), text, entry)
    run._closed()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    more = children.ru_utime + children.ru_stime
    return row | dict(sandbox=row["sandbox"] + more, cpu=row["cpu"] + more)


def fresh(*question):
    "The row of an evaluation in a process of its own."
    asked = [sys.executable, __file__, "--one", json.dumps(question)]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode: raise SystemExit(f"{question[0]}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def warm_worker():
    "A function like `fresh`, of evaluations in this process, which has made others before."
    stages = counted_stages()
    right, bad, entry = kernels("rmsnorm", "small")
    for is_wrong, text in enumerate((right, bad)): one("rmsnorm", "small", "trn2", is_wrong, stages, text, entry)
    def evaluated(name, workload, chip, is_wrong, text, entry):
        stages.turn()
        stages.seconds = dict.fromkeys(STAGES, 0.0)
        return one(name, workload, chip, is_wrong, stages, text, entry)
    return evaluated


def kept_rows(path):
    "The rows of a file, with numbers; none where there is no file."
    if not path or not os.path.exists(path): return []
    with open(path, newline="") as file: rows = list(csv.DictReader(file))
    return [{k: v if k in ("task", "kernel", "status") else float(v) for k, v in r.items()} for r in rows]


def keep(path, row):
    "Append a row to a file."
    is_new = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        out = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new: out.writeheader()
        out.writerow(row)


def line(r):
    "A row as text."
    return f"{r['task']:<30}{r['kernel']:<7}{r['status']:<14}" + "".join(
        f"{r[s]:>10.2f}" for s in ("cpu", "wall", "mb", *STAGES))


def survey(names, workload, chip, path, evaluated, right_only=False):
    "Print and keep the rows of tasks, right and wrong."
    from kernel_lab.tasks.suite.registry import TASKS
    rows = kept_rows(path)
    done = {(r["task"], r["kernel"]) for r in rows}
    print(f"{'task':<30}{'kernel':<7}{'status':<14}" + "".join(f"{s:>10}" for s in ("cpu", "wall", "mb", *STAGES)))
    for r in rows: print(line(r))
    for name in names:
        if workload not in [w.name for w in TASKS[name].workloads]: continue
        *texts, entry = kernels(name, workload)
        for is_wrong, text in enumerate(texts):
            if text is None or is_wrong and right_only or (name, "wrong" if is_wrong else "right") in done: continue
            rows.append(evaluated(name, workload, chip, is_wrong, text, entry))
            print(line(rows[-1]), flush=True)
            if path: keep(path, rows[-1])
    summary(rows)


def within(seconds, share):
    "The least of some seconds that at least this share of them does not exceed."
    return float(numpy.quantile(seconds, share, method="higher"))


def summary(rows):
    "Medians, the ten dearest, and the largest ratios of wrong to right."
    right, bad = ({r["task"]: r for r in rows if r["kernel"] == k} for k in ("right", "wrong"))
    for word, found in (("right", right), ("wrong", bad)):
        if not found: continue
        dear = sorted(found.values(), key=lambda r: -r["cpu"])[:10]
        cpu = sorted(r["cpu"] for r in found.values())
        print(f"{word}: median {median(cpu):.2f} s, 90 % within {within(cpu, 0.9):.2f} s, of {len(cpu)}; "
              f"{sum(c <= 1 for c in cpu)} within 1 s, {sum(c <= 6 for c in cpu)} within 6 s; dearest: " +
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
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--right", action="store_true", help="no wrong kernels")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one: print(json.dumps(alone(*asked.one)))
    else:
        from kernel_lab.tasks.suite.registry import TASKS
        survey((asked.tasks or list(TASKS))[::asked.every], asked.workload, asked.chip, asked.csv,
               warm_worker() if asked.warm else fresh, asked.right)
