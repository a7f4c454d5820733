"""What does a sandboxed evaluation cost beside the bare work, and how many does a machine do?

    python benchmarks/evaluation.py [--seconds 30] [--workers 2] [task …]

Small workloads, medians of nine, milliseconds of wall time. `bare` traces, executes and schedules the task's first kernel in this process, on one draw; `child` is what a
fresh child with all its walls adds to tracing; `evaluation` is everything: child, three draws with their references, profile. The last lines say how many evaluations a
second the local pool keeps up, and what was warm when it began."""
import argparse
import statistics
import time

from kernel_lab.evaluate.evaluation import baseline, evaluate
from kernel_lab.evaluate.pool import LocalPool, evaluate_many
from kernel_lab.evaluate.sandbox import house, traced
from kernel_lab.nki.batch import execute
from kernel_lab.nki.profile import profile_of
from kernel_lab.nki.schedule import schedule
from kernel_lab.targets.nki_sim import specs_of, trace_here
from kernel_lab.tasks.suite import TASKS

NAMES = ["softmax", "relu", "rmsnorm", "matmul", "layer_norm", "swiglu", "llama_layer"]


def median_ms(f, times=9):
    f()
    taken = []
    for _ in range(times):
        since = time.perf_counter()
        f()
        taken.append((time.perf_counter() - since) * 1e3)
    return statistics.median(taken)


def row(name, chip="trn2"):
    "Milliseconds of one task: bare work, what a child adds to tracing, a whole evaluation."
    task = TASKS[name]
    workload = task.workload("small")
    kernel, specs, inputs = task.first(workload), specs_of(task, workload), task.draw(workload)
    baseline(task, workload, chip)

    def bare():
        program = trace_here(kernel, specs, chip)
        execute(program, *inputs.values())
        return profile_of(schedule(program, chip))

    here, there = median_ms(lambda: trace_here(kernel, specs, chip)), median_ms(lambda: traced(kernel, specs, chip))
    return median_ms(bare), there - here, median_ms(lambda: evaluate(kernel, task, workload, chip))


def sustained(workers, seconds):
    "Evaluations a second of the local pool, once its workers are warm."
    count, since, pool = 0, None, LocalPool(workers)
    kernels = (TASKS[NAMES[k % 5]].first("small") for k in range(10 ** 6))
    tasks = [NAMES[k % 5] for k in range(10 ** 6)]
    for number, found in evaluate_many(kernels, tasks, "small", pool=pool):
        assert found.status == "correct", found
        if number < 10 * workers: since = time.perf_counter(); continue
        count += 1
        if time.perf_counter() - since > seconds: break
    return count / (time.perf_counter() - since)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=NAMES)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    since = time.perf_counter()
    print(house())
    print(f"ready in {time.perf_counter() - since:.2f} s\n\n{'task':<16}{'bare':>9}{'child':>9}{'evaluation':>12}   ms")
    rows = []
    for name in asked.tasks:
        rows.append(row(name))
        print(f"{name:<16}" + "".join(f"{v:>{w}.1f}" for v, w in zip(rows[-1], (9, 9, 12))), flush=True)
    print(f"{'median':<16}" + "".join(f"{statistics.median(c):>{w}.1f}" for c, w in zip(zip(*rows), (9, 9, 12))))
    print(f"\n{sustained(asked.workers, asked.seconds):.1f} evaluations a second on {asked.workers} workers")
