"""What a machine with a card measures, and every bar of it in one table; each command goes on where it was ended.

    python benchmarks/gpu.py kernelbench CHECKOUT          all 250 problems of KernelBench, eager and compiled
    python benchmarks/gpu.py tune CHECKOUT [PROBLEM ...]   the tuner on all, or on 3_5, 1_36 …: compiled, then raced
    python benchmarks/gpu.py record ROWS.jsonl FILE.json   the rows of a session as a recording, one small file
    python benchmarks/gpu.py bars [FILE ...]               the table, of the recordings in tests/gpu if no file is named

Options: --rows DIR (where rows and candidates are kept), --workers (processes that prepare problems), --jobs (that
compile), --seconds (of a race). `make gpu-test OUT=FILE.json` writes the file of launcher, A/A and attacks."""
import argparse
import json
import sys
import time
from pathlib import Path

from kernel_lab.agents.tune.tune_table import read_rows
from kernel_lab.cli.agents.bench import time_kernelbench
from kernel_lab.cli.agents.kernelbench import kernelbench_files, say_table
from kernel_lab.cli.agents.tune import plans_lines, race_plans, written_plans
from kernel_lab.core.errors import LabError
from kernel_lab.gpu.chip.gpu_chips import DEFAULT_GPU, get_gpu
from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
from kernel_lab.tasks.importers.load_module import file_text

KEPT = Path(__file__).parents[1] / 'tests' / 'gpu'
LEFT_OUT = ('trial', 'orders', 'wall_us', 'floors')        # of a row of a baseline: no figure is made of them


def kernelbench(asked):
    return time_kernelbench(asked.place, asked.rows or 'kernelbench', ['eager', 'compile'], asked.workers, ())


def chosen(name, wanted): return not wanted or any(name == w or name.startswith(f'{w}_') for w in wanted)


def tune(asked):
    folder = Path(asked.rows or 'tune')
    texts = {n: file_text(p) for n, p in kernelbench_files(asked.place).items() if chosen(n, asked.more)}
    made = []
    for plans in written_plans(texts, folder, get_gpu(DEFAULT_GPU).name, 'default', asked.jobs):
        made.append(plans)
        print(*plans_lines(plans), sep='\n', flush=True)
    if why := why_no_gpu():
        print(f'{why}: candidates of {len(made)} problems are compiled in {folder}; the same command races them on '
              'a card')
        return 0
    return race_plans(folder, made, asked.workers, asked.seconds)


def recording(rows, day):
    "Rows of sessions as a recording: samples to a hundredth of a µs."
    cards = [r for r in rows if r.get('status') == 'card']
    if not cards: sys.exit('no row of a card is among the rows: a session measures it first')
    is_baseline = not any('tuned' in (r.get('samples') or {}) for r in rows)
    def small(r):
        kept = {k: v for k, v in r.items() if v not in ('', [], {}) and not (is_baseline and k in LEFT_OUT)}
        if 'samples' not in kept: return kept
        return kept | {'samples': {m: [round(us, 2) for us in found] for m, found in r['samples'].items()}}
    return {'kind': 'measured', 'card': cards[-1]['card'], 'recorded': day, 'torch': cards[-1].get('torch', ''),
            'suite': 'KernelBench', 'what': 'samples in µs, fresh, cold, interleaved, by events; each row with its '
            'session and the second of it', 'rows': [small(r) for r in rows]}


def record(asked):
    if len(asked.more) != 1: sys.exit('record ROWS.jsonl FILE.json: name both files')
    file = Path(asked.more[0])
    made = recording(read_rows(asked.place), time.strftime('%Y-%m-%d'))
    file.write_text(json.dumps(made, separators=(',', ':')) + '\n')
    print(f'written     {file}, {file.stat().st_size:,} bytes')
    return 0


def bars(asked):
    say_table([asked.place, *asked.more] if asked.place else sorted(KEPT.glob('*_h200.json')))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=('kernelbench', 'tune', 'record', 'bars'))
    parser.add_argument('place', nargs='?')
    parser.add_argument('more', nargs='*')
    parser.add_argument('--rows')
    parser.add_argument('--workers', type=int, default=12)
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--seconds', type=float, default=12)
    asked = parser.parse_args()
    if asked.what != 'bars' and not asked.place: parser.error('name a checkout of KernelBench, or a file')
    work = {'kernelbench': kernelbench, 'tune': tune, 'record': record, 'bars': bars}[asked.what]
    try: return work(asked)
    except LabError as e: sys.exit(f'{type(e).__name__}: {e}')


if __name__ == '__main__': sys.exit(main())
