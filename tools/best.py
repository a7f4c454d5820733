"""Put best kernels into kernel_lab/tasks/baselines/best_kernels.jsonl.xz, the file in the wheel.

python tools/best.py FILE.jsonl…                 files that `kernel-lab best --search` or `--again` wrote
python tools/best.py --maker NAME FOLDER…        kernels from elsewhere, TASK.py each, which are verified first

Of each task, workload, chip and maker one kernel stays: the fastest by today's clock, else the last."""
import argparse
from pathlib import Path

from kernel_lab.agents.rewrite.best_search import given_best
from kernel_lab.core.errors import LabError
from kernel_lab.tasks.baselines.best_kernels import BEST_FILE, read_best, worth_keeping, write_best
from kernel_lab.tasks.suite.registry import get_task


def given(folder, maker, chip):
    "Yield the kernels of a folder that are right; say which are not."
    for path in sorted(Path(folder).glob("*.py")):
        task = get_task(path.stem)
        try: best = given_best(path.read_text(encoding="utf-8"), maker, task, task.workload(), chip)
        except LabError as e: print(path.stem, e, flush=True)
        else:
            print(f"{best.task}: {best.first_us:.1f} -> {best.us:.1f} us, {best.gain:.2f} x", flush=True)
            yield best


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("places", nargs="+", metavar="FILE_OR_FOLDER")
    ask.add_argument("--maker", help="who made the kernels of the folders")
    ask.add_argument("--chip", default="trn2")
    asked = ask.parse_args()
    found = [b for p in asked.places for b in (given(p, asked.maker, asked.chip) if asked.maker else read_best(p))]
    rows = worth_keeping([*read_best(BEST_FILE), *found])
    write_best(rows, BEST_FILE)
    many = len({b.task for b in rows})
    print(f"{many} tasks, {len(rows)} kernels, {BEST_FILE.stat().st_size:,} bytes to {BEST_FILE}")


if __name__ == "__main__": main()
