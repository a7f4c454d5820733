"""How many public kernels the built-in optimiser makes faster, by their shapes alone: one row a kernel, kept, so that
the same command goes on after Ctrl-C. All latencies are simulated.

    python benchmarks/public.py CORPUS [--count 60] [--seed 0] [--seconds 20] [--rows FILE.jsonl] [--most-seconds 300]

CORPUS is a folder with `runner.py` and `harness.py`: `runner.registry()` gives {id: case}, a case knows its `family`
(the kernel, whatever its shapes), `size` and `dialect`, and `harness.run_case(case)` calls `harness.S.sim(kernel,
*arguments)`. Kernels are drawn at random, and of each one of its cases that is not of full size, where it has one. A
case runs in a process of its own until its first kernel is called; that kernel is traced, searched, written, traced
again, and held against its own numbers on three draws. A kernel of the earlier dialect counts as faster where it beats
its time under that dialect's own compiler."""
import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bars import each_row, mean
from kernel_lab.agents.rewrite.without_task import optimised_program
from kernel_lab.core.errors import LabError, UsageError
from kernel_lab.evaluate.sandbox.run import Limits
from kernel_lab.nki import assert_ok, trace
from kernel_lab.nki.lang import trace as tracing

FASTER = 1.05                   # what counts as a gain


LENT = ExitStack()              # of imports that the corpus makes, until the process ends


class Caught(BaseException):
    "The first kernel that a case calls, traced."


def corpus(folder):
    "(harness, {id: case}) of a corpus, whose kernels import this lab's packages."
    sys.path[:0] = [str(folder), str(folder / 'shims')]
    LENT.enter_context(tracing.installed())
    import harness, runner
    return harness, runner.registry()


def program_of(harness, case, chip):
    "The program of the first kernel that a case calls."
    def caught(kernel, *args, **kwargs): raise Caught(assert_ok(trace(kernel, *args, chip=chip, **kwargs)))
    harness.S.sim = caught
    try: said = case.body()
    except Caught as e: return e.args[0]
    raise UsageError(f'{case.id} calls no kernel: {said}')


def row(folder, name, asked):
    "What becomes of the kernel of one case."
    harness, cases = corpus(folder)
    case = cases[name]
    program = program_of(harness, case, asked.chip)
    limits = Limits(work_seconds=asked.most_seconds, memory_mb=8_000)
    found = optimised_program(program, asked.seconds, asked.seed, limits=limits)
    return dict(dialect=case.dialect, first=found.first_us, after=found.latency_us, moves=[str(m) for m in found.moves],
                says=list(found.reasons))


def in_own_process(name, asked):
    "The row of a case from a process of its own; `UsageError` with the last line of one that fails or takes too long."
    own = [sys.executable, __file__, asked.corpus, '--one', name, '--chip', asked.chip, '--seed', str(asked.seed),
           '--seconds', str(asked.seconds), '--most-seconds', str(asked.most_seconds)]
    try: done = subprocess.run(own, capture_output=True, text=True, timeout=10 * asked.most_seconds)
    except subprocess.TimeoutExpired: raise UsageError(f'more than {10 * asked.most_seconds} s') from None
    if done.returncode: raise UsageError((done.stderr.strip().splitlines() or ['it ended without a word'])[-1][:200])
    return json.loads(done.stdout.strip().splitlines()[-1])


def drawn(cases, count, seed):
    "Ids of cases of so many kernels, drawn at random: a case of each that is not of full size, where there is one."
    rng, families = random.Random(seed), {}
    for case in cases.values(): families.setdefault(case.family, []).append(case)
    for family in rng.sample(sorted(families), min(count, len(families))):
        some = [c for c in families[family] if c.size != 'full'] or families[family]
        yield rng.choice(sorted(some, key=lambda c: c.id)).id


def table(asked):
    names, rows = [*drawn(corpus(Path(asked.corpus))[1], asked.count, asked.seed)], []
    for r in each_row(names, lambda name: in_own_process(name, asked), asked.rows):
        rows.append(r)
        if 'refused' in r: print(f'{r["name"]:60} {r["refused"]}', flush=True); continue
        why = '' if r['moves'] else ' '.join(r['says'])[:100]
        gain = r['first'] / r['after']
        print(f'{r["name"]:60} {r["first"]:10,.1f} → {r["after"]:10,.1f} µs {gain:5.2f}× {why}', flush=True)
    timed = [r for r in rows if 'refused' not in r]
    gains = [g for r in timed if (g := r['first'] / r['after']) == g]          # no number where it has no latency
    if not timed: return
    alone = sum(r['says'][:1] != [] and r['says'][0].startswith('Left alone') for r in timed)
    kinds = dict(Counter(r['dialect'] for r in timed))
    print(f'{len(rows)} kernels drawn, {len(timed)} traced ({kinds}), {alone} left alone; faster by 5 %: '
          f'{sum(g >= FASTER for g in gains)}, slower: {sum(g < 1 for g in gains)}; {mean(gains)} over all traced; '
          f'simulated on {asked.chip}')


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument('corpus')
    ask.add_argument('--rows', type=Path)
    ask.add_argument('--chip', default='trn2')
    ask.add_argument('--seconds', type=float, default=20)
    ask.add_argument('--most-seconds', type=int, default=120)
    ask.add_argument('--count', type=int, default=60)
    ask.add_argument('--seed', type=int, default=0)
    ask.add_argument('--one', help=argparse.SUPPRESS)
    asked = ask.parse_args()
    try:
        if asked.one: print(json.dumps(row(Path(asked.corpus).resolve(), asked.one, asked)))
        else: table(asked)
    except LabError as e: sys.exit(str(e))


if __name__ == '__main__': main()
