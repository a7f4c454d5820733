"""A search over transformations on the first kernels of the suite: simulated latency before and after, what it took,
and how many candidates a second it judged. No kernel is evaluated;
`python benchmarks/climb.py [--search beam] [--chip trn2] [--seconds 60] [--memory FILE] [TASK …]`.

With `--rate`, a table of candidates a second of CPU time instead: all that a search does counts, moves and proofs too.
Five tasks, and with NKIBENCH=checkout/of/NKIBench its kernels, lifted as the agent lifts them, on trn1."""
import argparse
import os
import time
from statistics import geometric_mean, median

import numpy as np
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import installed, trace
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.tuning.moves_taken import MoveMemory
from kernel_lab.nki.tuning.search import METHODS, search
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.writing.lift import lift
from kernel_lab.tasks.suite.registry import TASKS


def program_of(task, chip):
    "The first kernel of a task at full size, traced."
    specs = [ArraySpec(a.shape, a.dtype.name) for a in task.draw('full', 0).values()]
    return trace_source(task.first('full').source, None, specs, chip)


RATED = ('softmax', 'matmul', 'swiglu', 'rmsnorm_matmul', 'causal_attention')

def nkibench():
    "Yield (name, program) of each kernel of NKIBench."
    from execution import ROOT, load
    for path in sorted((ROOT / 'kernels').glob('*.py')):
        with installed(): kernel = load(path).kernel
        reference = load(next((ROOT / 'reference').glob(f'{path.stem[:-2]}_numpy*.py')))
        arrays = [ArraySpec(x.shape, x.dtype.name) if isinstance(x, np.ndarray) else x
                  for x in reference.transform_to_nki_inputs(reference.get_inputs())]
        yield path.stem[:-2], trace(kernel, *arrays, chip="trn1")


def rates(asked):
    "Print the table of candidates a second."
    programs = [(name, lambda name=name: program_of(TASKS[name], asked.chip)) for name in asked.tasks or RATED]
    if 'NKIBENCH' in os.environ and not asked.tasks: programs += [(n, lambda p=p: lift(p)) for n, p in nkibench()]
    print(f'{"program":44} {"written":>8} {"issued":>8} {"cand.":>6} {"timed":>6} {"CPU s":>6} {"a second":>8} '
          f'{"gain":>7}')
    for name, program in programs:
        program = program()
        schedule(program)                                                   # compile the scheduler
        since = time.process_time()
        found = search(program, asked.search, asked.seconds, asked.candidates, asked.seed)
        took = time.process_time() - since
        print(f'{name:44} {len(program.instructions):8,} {program.count:8,} {found.candidates:6,} {found.scheduled:6,} '
              f'{took:6.1f} {found.candidates / took:8.0f} {found.first_us / found.latency_us:6.3f}×', flush=True)


def questions():
    "What is asked on the command line."
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument('tasks', nargs='*')
    ask.add_argument('--search', choices=METHODS, default='climb')
    ask.add_argument('--chip', default='trn2')
    ask.add_argument('--seconds', type=float, default=60)
    ask.add_argument('--candidates', type=int)
    ask.add_argument('--seed', type=int, default=0)
    ask.add_argument('--rate', action='store_true', help='candidates a second of five tasks and of NKIBench')
    ask.add_argument('--memory', help='the table of what helped: read, added to and written')
    return ask.parse_args()


def main():
    asked = questions()
    if asked.rate: return rates(asked)
    memory = MoveMemory.load(asked.memory) if asked.memory else MoveMemory()
    gains, tried, seconds = {}, 0, []
    print(f'{"task":32} {"first µs":>10} {"after µs":>10} {"gain":>6} {"moves":>6} {"CPU s":>6} {"cand.":>6} '
          f'{"timed":>6} {"a second":>8}')
    print(f'latencies are simulated, on {asked.chip}; search: {asked.search}, seed {asked.seed}')
    for name in asked.tasks or TASKS:
        program = program_of(TASKS[name], asked.chip)
        try: schedule(program, asked.chip)                                  # compile the scheduler, refuse early
        except KernelError as e: print(f'{name:32} {e.message}'); continue
        since = time.process_time()
        found = search(program, asked.search, asked.seconds, asked.candidates, asked.seed, memory=memory)
        took, gain = time.process_time() - since, found.first_us / found.latency_us
        gains.setdefault(TASKS[name].level, []).append(gain)
        tried += found.candidates
        seconds.append(took)
        print(f'{name:32} {found.first_us:10,.1f} {found.latency_us:10,.1f} {gain:5.2f}× {len(found.steps):6} '
              f'{took:6.1f} {found.candidates:6} {found.scheduled:6} {found.candidates / took:8.0f}', flush=True)
        if asked.memory: memory.save(asked.memory)
    every = [g for some in gains.values() for g in some]
    for level, some in sorted(gains.items()):
        print(f'level {level}: {geometric_mean(some):.2f}× over {len(some)} tasks')
    many = sum(g >= 1.1 for g in every)
    print(f'all: {geometric_mean(every):.2f}× over {len(every)} tasks, {many} of them by ≥ 1.1×; {tried} candidates in '
          f'{sum(seconds):.0f} CPU s, {tried / sum(seconds):.0f} a second; CPU s a task: median {median(seconds):.1f}, '
          f'most {max(seconds):.1f}')


if __name__ == '__main__': main()
