"""The climb over transformations on the first kernels of the suite: simulated latency before and after, and how long it
took. No kernel is evaluated; `python benchmarks/climb.py [--chip trn2] [--seconds 60] [TASK …]`."""
import argparse
import time
from statistics import geometric_mean

from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.moves import climb
from kernel_lab.tasks.suite.registry import TASKS


def program_of(task, chip):
    "The first kernel of a task at full size, traced."
    specs = [ArraySpec(a.shape, a.dtype.name) for a in task.draw('full', 0).values()]
    return trace_source(task.first('full').source, None, specs, chip)


def main():
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument('tasks', nargs='*')
    ask.add_argument('--chip', default='trn2')
    ask.add_argument('--seconds', type=float, default=60)
    asked = ask.parse_args()
    gains, tried, took = {}, 0, 0.0
    print(f'{"task":32} {"first µs":>10} {"after µs":>10} {"gain":>6} {"moves":>6} {"CPU s":>6}')
    print(f'latencies are simulated, on {asked.chip}')
    for name in asked.tasks or TASKS:
        program, since = program_of(TASKS[name], asked.chip), time.process_time()
        found = climb(program, asked.seconds)
        seconds, gain = time.process_time() - since, found.first_us / found.latency_us
        gains.setdefault(TASKS[name].level, []).append(gain)
        tried, took = tried + found.candidates, took + seconds
        print(f'{name:32} {found.first_us:10,.1f} {found.latency_us:10,.1f} {gain:5.2f}× {len(found.steps):6} '
              f'{seconds:6.1f}', flush=True)
    every = [g for some in gains.values() for g in some]
    for level, some in sorted(gains.items()):
        print(f'level {level}: {geometric_mean(some):.2f}× over {len(some)} tasks')
    many = sum(g >= 1.1 for g in every)
    print(f'all: {geometric_mean(every):.2f}× over {len(every)} tasks, {many} of them by ≥ 1.1×; {tried} candidates in '
          f'{took:.0f} CPU s')


if __name__ == '__main__': main()
