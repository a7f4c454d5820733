"""Write kernel_lab/tasks/baselines/facts.jsonl: what an evaluation asks of a task whatever the kernel, a line a task.

python tools/task_facts.py [--jobs 2] [task …]   (some twenty minutes; again whenever a reference, an input function, a
first kernel or the changes of inputs change; with names, the other lines stay as they are)"""
import argparse
import json

from kernel_lab.core.workers import call_in_workers
from kernel_lab.evaluate.verification.adversarial_inputs import work_out_facts
from kernel_lab.tasks.baselines.kept_facts import FACTS_FILE
from kernel_lab.tasks.suite.registry import TASKS


def write_facts(names, jobs=2, path=FACTS_FILE):
    "Work out the rows of tasks in `jobs` processes; write them, and those of other tasks as they were."
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = {json.loads(line)["task"]: line for line in lines}
    for k, row in call_in_workers(work_out_facts, [(n,) for n in names], jobs):
        kept[names[k]] = json.dumps(row, ensure_ascii=False)
        path.write_text("".join(kept[n] + "\n" for n in TASKS if n in kept), encoding="utf-8")
    print(f"{len(names)} tasks to {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    write_facts(asked.tasks or list(TASKS), asked.jobs)
