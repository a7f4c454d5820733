"""How much faster the built-in optimiser makes kernels: one table a command, kept row by row, so that the same command
goes on after Ctrl-C. All latencies are simulated.

    python benchmarks/bars.py suite [FILE.jsonl]       best kernels of the 250 tasks: those that are kept, or a file
                                                       of `kernel-lab best --search`
    python benchmarks/bars.py nkibench NKIBENCH        NKIBench's kernels at full shape, optimised without their task
    python benchmarks/bars.py made                     candidates of `kernel-lab synthesize`, drawn at random

Options: --rows FILE (where rows are kept), --chip, --seconds (of a search), --count (made tasks), --seed."""
import argparse
import ast
import json
import random
import time
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from execution import load
from kernel_lab.agents.rewrite.best_search import SEARCHER
from kernel_lab.agents.rewrite.without_task import optimised, traced
from kernel_lab.core.errors import LabError, UsageError
from kernel_lab.evaluate.sandbox.run import Limits
from kernel_lab.nki import installed, trace
from kernel_lab.nki.chip.chips import get_chip
from kernel_lab.nki.explain.profile import profile_of
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.timing.timeline import CLOCK, schedule
from kernel_lab.nki.tuning.search import search
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.baselines.best_kernels import BEST_FILE, read_best, worth_keeping
from kernel_lab.tasks.baselines.known_times import TIMES_FILE, read_times
from kernel_lab.tasks.importers.benchmarks import adapt_kernel, find_nkibench, read_nkibench
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import TASKS
from kernel_lab.tasks.synthesis.compose import candidate

FAR, WORTH = 1.3, 1.1           # a first kernel this far from its bound should gain this much
CANDIDATES = 15_000             # of a whole run of `kernel-lab synthesize`


def kept_rows(path):
    "{name: row} of a file of rows by today's clock."
    if not path or not path.exists(): return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith('}')]
    return {r['name']: r for r in rows if r['clock'] == CLOCK}


def each_row(names, make, path):
    "Yield the row of each name, made where it is not kept; a row is kept as soon as it is there."
    kept = kept_rows(path)
    for name in names:
        if name not in kept:
            since = time.process_time()
            try: row = make(name)
            except LabError as e: row = dict(refused=str(e).splitlines()[0])
            kept[name] = dict(name=name, clock=CLOCK, cpu_s=round(time.process_time() - since, 1)) | row
            if path:
                with path.open('a') as file: file.write(json.dumps(kept[name]) + '\n')
        yield kept[name]


def mean(values): return f'{geometric_mean(values):.2f}×' if values else '–'


# ---- the suite


def best_of(rows, maker):
    "{task: the kernel of a maker, of its first workload on trn2, that is not stale}."
    return {b.task: b for b in worth_keeping(rows) if (b.chip, b.maker) == ('trn2', maker) and not b.why_stale()
            and b.workload == TASKS[b.task].workload().name}


def suite(asked):
    times = {t.task: t for t in read_times(TIMES_FILE)}
    rows = read_best(asked.place) if asked.place else read_best(BEST_FILE)
    found, model = best_of(rows, SEARCHER), best_of(read_best(BEST_FILE), 'a language model')
    gain = {n: b.gain for n, b in found.items()}
    print(f'{len(found)} of {len(TASKS)} tasks searched, trn2, full shape, clock {CLOCK}\n')
    print(f'over first: {mean(gain.values())}; by level ' + ', '.join(
        mean([g for n, g in gain.items() if TASKS[n].level == level]) for level in (1, 2, 3)))
    print('over eager:', mean([times[n].eager_us / b.us for n, b in found.items() if times[n].eager_us]))
    launch = get_chip('trn2').launch_us         # start and end of a program: part of every latency, of no task's bound
    bounded = [(b, times[n].bound_us) for n, b in found.items() if times[n].bound_us]
    for what, more in (('the bound', 0.0), (f'the bound and the {launch:.1f} µs of every launch', launch)):
        print(f'from {what}:', mean([b.us / (us + more) for b, us in bounded]),
              'first kernels', mean([b.first_us / (us + more) for b, us in bounded]))
    far = [n for n, b in found.items() if times[n].bound_us and b.first_us > FAR * times[n].bound_us]
    print(f'first > {FAR} × bound: {len(far)} tasks, {sum(gain[n] >= WORTH for n in far)} gain ≥ {WORTH}×')
    print(f'slower than first: {sum(g < 1 for g in gain.values())}, as fast: {sum(g == 1 for g in gain.values())}')
    if not (both := [n for n in model if n in found]): return
    print(f'\n{"task":28} {"first":>9} {"search":>9} {"model":>9} {"bound":>9}  µs')
    for n in both:
        print(f'{n:28} {found[n].first_us:9,.1f} {found[n].us:9,.1f} {model[n].us:9,.1f} {times[n].bound_us:9,.1f}')
    near = sum(found[n].us <= 1.1 * model[n].us for n in both)
    print(f'over first: search {mean([gain[n] for n in both])}, model {mean([model[n].gain for n in both])}; '
          f'{near} of {len(both)} within 10 % of the model or better')


# ---- NKIBench


def accelopt_peaks(root):
    """{name: AccelOpt's peak latency in µs} by the function of the user's checkout, where it is there: its file reads
    tables when it is imported, so the function and its constants are taken out of it."""
    script = next(iter(sorted(root.parent.rglob('calculate_percentage_of_peak.py'))), None)
    if script is None: return {}
    name_of = lambda n: getattr(n, 'name', '') or getattr(getattr(n, 'targets', [n])[0], 'id', '')
    wanted = [n for n in ast.parse(script.read_text()).body
              if name_of(n) == 'calc_theoretical_peak' or name_of(n).startswith('PEAK_')]
    space = {}
    exec(compile(ast.Module(wanted, []), str(script), 'exec'), space)
    found = {}
    for problem, op in json.loads((root / 'summary.json').read_text()).items():
        for case in op['cases'].values():
            peak = space['calc_theoretical_peak'](problem, case['values'])['theoretical_peak_latency'] * 1e3
            for impl in case['impls']: found[Path(impl['kernel']).stem.rsplit('_', 1)[0]] = peak
    return found


def on_own_shapes(root, name, text):
    """(one of NKIBench's kernels as a `Kernel` of arrays alone, the shapes of these) with the inputs that its reference
    draws; its numbers become part of the text, as for an imported task."""
    with installed(): kernel = load(root / 'kernels' / f'{name}_0.py').kernel
    reference = load(next((root / 'reference').glob(f'{name}_numpy*.py')))
    given = {f'x{k}': x for k, x in enumerate(reference.transform_to_nki_inputs(reference.get_inputs()))}
    arrays = {k: x for k, x in given.items() if isinstance(x, np.ndarray)}
    views = [(k, x.shape) if k in arrays else x for k, x in given.items()]
    seen = dict(workloads=[dict(shapes={k: x.shape for k, x in arrays.items()})], views=views,
                outputs=[t.shape for t in trace(kernel, *given.values()).outputs])
    adapted, why = adapt_kernel(text, name, seen)
    if adapted is None: raise UsageError(why)
    return adapted, [ArraySpec(x.shape, x.dtype.name) for x in arrays.values()]


def nkibench(asked):
    root = find_nkibench(asked.place)
    if root is None: raise UsageError(f'There is no NKIBench in {asked.place}.')
    sources = {s.name.split('/')[1]: s.extra['kernel'] for s in read_nkibench(asked.place)[0]}
    peaks, limits = accelopt_peaks(root), Limits(work_seconds=1200, memory_mb=12_000)

    def make(name):
        kernel, specs = on_own_shapes(root, name, sources[name])
        first = traced(kernel, specs, asked.chip, limits)
        found = optimised(kernel, specs, asked.chip, asked.seconds, asked.seed, limits=limits)
        after = traced(Kernel(found.source), specs, asked.chip, limits) if found.source else first
        one, other = (profile_of(schedule(p, asked.chip)) for p in (first, after))
        return dict(first=one.latency_us, after=other.latency_us, pct=[one.peak_pct, other.peak_pct],
                    moves=[str(m) for m in found.moves], says=list(found.reasons))

    shares = []
    print(f'{"kernel":44} {"first µs":>10} {"after µs":>10} {"gain":>6} {"% of peak":>15} {"CPU s":>6}')
    for r in each_row(sorted(sources), make, asked.rows):
        if 'refused' in r: print(f'{r["name"]:44} {r["refused"]}'); continue
        share = [100 * peaks[r['name']] / us for us in (r['first'], r['after'])] if asked.chip == 'trn1' and peaks \
            else r['pct']
        shares.append(share)
        print(f'{r["name"]:44} {r["first"]:10,.1f} {r["after"]:10,.1f} {r["first"] / r["after"]:5.2f}× '
              f'{share[0]:6.1f} → {share[1]:6.1f} {r["cpu_s"]:6.0f}', flush=True)
    before, after = np.mean(shares, axis=0)
    unit = "AccelOpt's % of peak" if asked.chip == 'trn1' and peaks else "% of the lab's own peak"
    print(f'mean {unit}: {before:.1f} → {after:.1f}, {after - before:+.1f} points over {len(shares)} kernels; '
          f'simulated on {asked.chip}; numbers equal to the kernel\'s own on three draws')


# ---- made tasks


def made(asked):
    numbers = random.Random(asked.seed).sample(range(CANDIDATES), asked.count)

    def make(name):
        task = candidate(int(name)).task()
        w = task.workload()
        if (first := task.first(w)) is None: return dict(refused='no first kernel')
        found = search(traced(first, specs_of(task, w), asked.chip), 'climb', asked.seconds, seed=asked.seed)
        return dict(first=found.first_us, after=found.latency_us, moves=len(found.steps), tried=found.candidates)

    rows = [*each_row([f'{n:05}' for n in numbers], make, asked.rows)]
    timed = [r for r in rows if 'refused' not in r]
    gains = [r['first'] / r['after'] for r in timed]
    print(f'{len(rows)} made tasks drawn, {len(timed)} with a first kernel; of these a move: '
          f'{sum(r["moves"] > 0 for r in timed) / len(timed):.0%}, worth ≥ 2 %: '
          f'{sum(g >= 1.02 for g in gains) / len(timed):.0%}; {mean(gains)} over first, climb of {asked.seconds:g} s, '
          f'simulated on {asked.chip}')


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument('table', choices=('suite', 'nkibench', 'made'))
    ask.add_argument('place', nargs='?', type=Path)
    ask.add_argument('--rows', type=Path)
    ask.add_argument('--chip')
    ask.add_argument('--seconds', type=float, default=60)
    ask.add_argument('--count', type=int, default=500)
    ask.add_argument('--seed', type=int, default=0)
    asked = ask.parse_args()
    asked.chip = asked.chip or ('trn1' if asked.table == 'nkibench' else 'trn2')
    if asked.table == 'nkibench' and asked.place is None: ask.error('nkibench needs the folder of a checkout')
    try: {'suite': suite, 'nkibench': nkibench, 'made': made}[asked.table](asked)
    except LabError as e: ask.error(str(e))


if __name__ == '__main__': main()
