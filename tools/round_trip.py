"""Write every first kernel of the suite as source, trace that, and print what came back.

    python tools/round_trip.py [TASK …] [--chips trn1 trn2 trn3]

A line a task: statements, patterns (`.ap`), whether the outputs on the small workload are the same bits, latency of
the full workload after and before. Exits 1 where numbers differ, a latency is off by more than 1 %, or a kernel is
refused."""
import argparse
import math
import sys

from kernel_lab.core.errors import KernelError
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.writing.writer import to_source, trace_again
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.suite.registry import TASKS, get_task


def round_trip(task, size):
    "(program of the first kernel, source written for it, program of that)."
    kernel = task.first(size)
    program = trace_source(kernel.source, kernel.entry, list(specs_of(task, task.workload(size))), "trn2")
    source = to_source(program)
    return program, source, trace_again(source, program)


def same_bits(task, one, other):
    "Whether two programs give the same bits on the small workload."
    inputs = [*task.draw("small", 1).values()]
    return all(a.tobytes() == b.tobytes() for a, b in zip(execute(one, *inputs), execute(other, *inputs)))


def latency(program, chip):
    "Simulated µs; NaN where the chip has no room for the program."
    try: return schedule(program, chip).latency_us
    except KernelError: return math.nan


def row(name, chips):
    "(line of the table, whether all is well) of one task."
    task = get_task(name)
    try:
        small, _, again = round_trip(task, "small")
        bits = same_bits(task, small, again)
        full, source, again = round_trip(task, "full")
    except KernelError as e: return f"{name:32} refused: {e}", False
    times = [(latency(again, c), latency(full, c)) for c in chips]
    good = [math.isnan(a) and math.isnan(b) or abs(a / b - 1) <= 0.01 for a, b in times]
    text = "  ".join(f"{c} {a:.1f}/{b:.1f}" for c, (a, b) in zip(chips, times))
    return f"{name:32} {source.count('nisa.'):5} {source.count('.ap('):3} {'same' if bits else 'DIFFER':6} {text}", \
        bits and all(good)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="*")
    parser.add_argument("--chips", nargs="+", default=["trn2"])
    given = parser.parse_args()
    print(f"{'task':32} {'calls':>5} {'.ap':>3} bits   µs after/before")
    well = []
    for name in given.task or TASKS:
        line, good = row(name, given.chips)
        well.append(good)
        print(line, flush=True)
    print(f"{sum(well)} of {len(well)} come back: the same bits, the same time within 1 %")
    sys.exit(not all(well))


if __name__ == "__main__": main()
