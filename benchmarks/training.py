"""Tasks to train on: what a run of `kernel-lab synthesize DIR --for training` made, and what a rollout on them costs.

`python benchmarks/training.py DIR [--tasks 12] [--rollouts 3]`: candidates tried and kept, processor seconds a
candidate, the share on which the search leads the constant rules, and the cost of a first rollout over a later one of
the same task, in processor seconds of this process. One task is evaluated before, so that the process is warm."""
import argparse
import time
from dataclasses import replace
from statistics import geometric_mean, median

from kernel_lab.cli.tasks import training_lines
from kernel_lab.evaluate import evaluate
from kernel_lab.tasks.synthesis.training_records import training_records, training_results, training_summary


def rollout(task, number):
    "Processor seconds of one evaluation of a text that was not evaluated before."
    kernel = replace(task.first(), source=f'{task.first().source}\n# rollout {number}\n')
    since = time.process_time()
    found = evaluate(kernel, task, chip='trn2', seeds=1)
    assert found.status.value == 'correct', found.log
    return time.process_time() - since


def rollouts(records, count):
    "Yield (name, seconds of the first rollout, median seconds of later ones) of each record."
    for record in records:
        task = record.task()
        seconds = [rollout(task, k) for k in range(count + 1)]
        yield task.name, seconds[0], median(seconds[1:])


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
