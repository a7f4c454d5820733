"""What does a sandboxed evaluation cost beside the bare work, and how many does a machine do?

    python benchmarks/evaluation.py [--seconds 30] [--workers 2] [task …]

Small workloads, milliseconds of wall time: medians of fifteen, with the interval of 95 % (from the 4th to the 12th).
`bare` traces, executes and schedules the task's first kernel in this process, on one draw; `child` is what a fresh
child with all its walls adds to tracing; `evaluation` is
everything: child, three draws with their references, changed draws, profile. The last lines say how many evaluations
a second the local pool keeps up, and what was warm when it began."""
import argparse
import time
from statistics import median

from kernel_lab.core.durations import Duration
from kernel_lab.evaluate.pipeline import first_kernel_us, evaluate
from kernel_lab.evaluate.pool.dispatch import LocalPool, evaluate_many
from kernel_lab.evaluate.sandbox.run import sandbox_status, trace_kernel
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.explain.profile import profile_of
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.targets.nki_sim import specs_of, trace_here
from kernel_lab.tasks.suite.registry import TASKS

NAMES = ["softmax", "relu", "rmsnorm", "matmul", "layer_norm", "swiglu", "llama_layer"]


def timed(f, times=15):
    "The wall time of a call, as a `Duration`."
    def once():
        since = time.perf_counter()
        f()
        return (time.perf_counter() - since) * 1e6
    f()
    return Duration.of([once() for _ in range(times)], "wall")


def ms(d): return f"{d.us / 1e3:.1f} ({d.low_us / 1e3:.1f} to {d.high_us / 1e3:.1f})"


def row(name, chip="trn2"):
    "Wall times of one task: bare work, what a child adds to tracing, a whole evaluation."
    task = TASKS[name]
    workload = task.workload("small")
    kernel, specs, inputs = task.first(workload), specs_of(task, workload), task.draw(workload)
    first_kernel_us(task, workload, chip)

    def bare():
        program = trace_here(kernel, specs, chip)
        execute(program, *inputs.values())
        return profile_of(schedule(program, chip))

    here, there = timed(lambda: trace_here(kernel, specs, chip)), timed(lambda: trace_kernel(kernel, specs, chip))
    child = Duration(there.us - here.us, "wall", max(0, there.low_us - here.high_us), there.high_us - here.low_us,
                     here.count)
    return timed(bare), child, timed(lambda: evaluate(kernel, task, workload, chip))


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
    print(sandbox_status())
    print(f"ready in {time.perf_counter() - since:.2f} s\n\n{'task':<16}{'bare':>26}{'child':>26}{'evaluation':>26}   "
          "ms, wall")
    rows = []
    for name in asked.tasks:
        rows.append(row(name))
        print(f"{name:<16}" + "".join(f"{ms(d):>26}" for d in rows[-1]), flush=True)
    print(f"{'median':<16}" + "".join(f"{median(d.us for d in c) / 1e3:>26.1f}" for c in zip(*rows)))
    print(f"\n{sustained(asked.workers, asked.seconds):.1f} evaluations a second on {asked.workers} workers")
