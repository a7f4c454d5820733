"""Write kernel_lab/tasks/baselines/eager.csv: the simulated eager time of every task, workload and chip, in µs.

python tools/eager_times.py [--jobs 2]      (about a minute; again whenever the clock or a reference changes)"""
import argparse
import csv

from kernel_lab.core.workers import call_in_workers
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.tasks.baselines.eager import EAGER_FILE, eager_row
from kernel_lab.tasks.suite.registry import TASKS


def write_eager_times(jobs=2, path=EAGER_FILE):
    "Work out all rows in `jobs` processes and write them."
    asked = [(task.name, w.name) for task in TASKS.values() for w in task.workloads]
    rows = dict(call_in_workers(eager_row, asked, jobs))
    with open(path, "w", newline="") as file:
        out = csv.DictWriter(file, ["task", "workload", "clock", *CHIPS], lineterminator="\n")
        out.writeheader()
        out.writerows(rows[k] for k in range(len(asked)))
    print(f"{len(asked)} rows to {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    write_eager_times(parser.parse_args().jobs)
