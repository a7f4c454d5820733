"""Tasks to train on: what a run of `kernel-lab synthesize DIR --for training` made, and what a rollout on them costs.

`python benchmarks/training.py DIR [--tasks 12] [--rollouts 3]`: candidates tried and kept, processor seconds a
candidate, the share on which the search leads the constant rules, and the cost of a first rollout over a later one of
the same task, in processor seconds of this process and of those below it, which trace the kernels (Linux). One task is
evaluated before, so that the process is warm."""
import argparse
import os
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median

from kernel_lab.cli.tasks import training_lines
from kernel_lab.evaluate import evaluate
from kernel_lab.tasks.synthesis.training_records import training_records, training_results, training_summary


def processor_seconds():
    "Of this process and of all below it, ended ones too."
    rows, ticks = {}, os.sysconf('SC_CLK_TCK')
    for path in Path('/proc').glob('[0-9]*/stat'):
        try: fields = path.read_text().rpartition(')')[2].split()
        except OSError: continue                                        # it ended meanwhile
        rows[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in rows.items() if parent in family} - family: family |= more
    return sum(rows[pid][1] for pid in family) / ticks

def rollout(task, number, times=1):
    "Processor seconds of an evaluation of a text that was not evaluated before, the mean of so many."
    since = processor_seconds()
    for k in range(times):
        kernel = replace(task.first(), source=f'{task.first().source}\n# rollout {number + k}\n')
        found = evaluate(kernel, task, chip='trn2', seeds=1)
        assert found.status.value == 'correct', found.log
    return (processor_seconds() - since) / times


def rollouts(records, count):
    "Yield (name, seconds of the first rollout, mean seconds of later ones) of each record."
    for record in records:
        task = record.task()
        yield task.name, rollout(task, 0), rollout(task, 1, count)


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument('folder')
    ask.add_argument('--tasks', type=int, default=12, help='tasks that are evaluated, evenly from the run')
    ask.add_argument('--rollouts', type=int, default=3, help='later rollouts of each')
    asked = ask.parse_args()
    results = training_results(asked.folder)
    print(*training_lines(training_summary(results), results), sep='\n')
    records = training_records(asked.folder)
    warm, *chosen = records[::max(1, len(records) // (asked.tasks + 1))][:asked.tasks + 1]
    rollout(warm.task(), 0)
    print(f'\n{"task":16} {"first":>8} {"later":>8} {"ratio":>6}   processor seconds of a rollout, one seed')
    ratios, totals = [], [0.0, 0.0]
    for name, first, later in rollouts(chosen, asked.rollouts):
        ratios.append(first / later)
        totals = [totals[0] + first, totals[1] + later]
        print(f'{name:16} {first:8.3f} {later:8.3f} {ratios[-1]:6.2f}', flush=True)
    print(f'{"all":16} {totals[0]:8.3f} {totals[1]:8.3f} {totals[0] / totals[1]:6.2f}   '
          f'median {median(ratios):.2f}, geometric mean {geometric_mean(ratios):.2f}')


if __name__ == '__main__': main()
