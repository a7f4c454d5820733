"""The built-in agent on every task: first and best simulated latency, speedup, accepted moves, geometric mean.

    python benchmarks/rewrite_table.py [--workload full] [--chip trn1] [--steps 10] [--seeds 3] [TASK …]

Every step is verified against the torch reference on all seeds before its time counts.
"""
import argparse
import math
import time

from kernel_lab.agents.loop import AgentLoop
from kernel_lab.agents.rewrite.agent import RewriteAgent
from kernel_lab.tasks.suite.registry import BY_HAND


def accepted(run):
    "Names of the moves that made the best kernel faster, in order."
    best, names = math.inf, []
    for step in run.steps:
        profile = step.evaluation.profile
        if profile and profile.latency_us < best:
            best = profile.latency_us
            names.append(step.move)
    return names[1:]


def optimise(task, args):
    "One run → a row of the table."
    since = time.perf_counter()
    loop = AgentLoop(task, RewriteAgent(), workload=args.workload, chip=args.chip, store=False, max_steps=args.steps,
                     seeds=args.seeds)
    for step in loop:
        evaluation = step.evaluation
        us = f'{evaluation.profile.latency_us:10.1f} µs' if evaluation.profile else ' ' * 13
        print(f'    {step.index:2}  {evaluation.status:16}{us}  {step.move}', flush=True)
        if step.index and not evaluation.profile: print(f'        {str(evaluation.error)[:200]}')
    best = loop.best.evaluation.profile
    return dict(task=task, first=loop.run.first_us, best=best.latency_us, speedup=loop.run.first_us / best.latency_us,
                peak=best.peak_pct, moves=accepted(loop.run), turns=len(loop.steps) - 1,
                seconds=time.perf_counter() - since)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('tasks', nargs='*', default=[t.name for t in BY_HAND])
    parser.add_argument('--workload', default='full')
    parser.add_argument('--chip', default='trn1')
    parser.add_argument('--steps', type=int, default=10)
    parser.add_argument('--seeds', type=int, default=3)
    args = parser.parse_args()
    rows = []
    for task in args.tasks:
        print(task, flush=True)
        rows.append(optimise(task, args))
    print(f'\nsimulated on {args.chip}, workload {args.workload}, {args.seeds} seeds a step\n')
    print('| task | first µs | best µs | speedup | % of peak | turns | s | moves that helped '
          '|\n|---|---|---|---|---|---|---|---|')
    for r in rows:
        numbers = (
            f'{r["first"]:.1f} | {r["best"]:.1f} | {r["speedup"]:.2f} | {r["peak"]:.0f} | {r["turns"]} |'
            f' {r["seconds"]:.0f}'
        )
        print(f'| {r["task"]} | {numbers} | {"; ".join(r["moves"])} |')
    mean = math.exp(sum(math.log(r['speedup']) for r in rows) / len(rows))
    print(f'\ngeometric mean of {len(rows)}: {mean:.2f}')


if __name__ == '__main__': main()
