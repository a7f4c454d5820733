"""Write kernel_lab/tasks/baselines/first_kernels.json.xz: the first kernels that the lab writes for its suite.

python tools/first_kernels.py   (a minute; again whenever a module of tasks/model, codegen or suite changes)"""
import json
import lzma

from kernel_lab.tasks.baselines.kept_facts import KERNELS_FILE, writers_digest
from kernel_lab.tasks.suite.registry import TASKS


def written():
    "{task: {workload: source}} as the compiler writes them now."
    return {t.name: {w.name: t.writes(t, w).source for w in t.workloads} for t in TASKS.values() if t.writes}


def main(path=KERNELS_FILE):
    sources = written()
    text = json.dumps({"writers": writers_digest(), "sources": sources})
    path.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{len(sources)} tasks, {path.stat().st_size:,} bytes to {path}")


if __name__ == "__main__": main()
