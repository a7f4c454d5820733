"""Let the built-in agent look for faster kernels of tasks of the suite, from the fastest known one; what is found
goes to kernel_lab/tasks/baselines/best.jsonl.

python tools/best.py TASK… [--chip trn2] [--steps 12]"""
import argparse
import json

from kernel_lab.agents.loop import AgentLoop
from kernel_lab.agents.rewrite.agent import RewriteAgent
from kernel_lab.evaluate.records.evaluation import headline
from kernel_lab.evaluate.survey.time_table import ranked_kernels
from kernel_lab.tasks.baselines.known_times import BEST_KERNELS_FILE
from kernel_lab.tasks.suite.registry import get_task

WORTH = 0.98        # what is kept takes at most this share of the time that was known


def improved(name, chip, steps):
    "The line of a faster kernel of a task on its first workload, or None."
    task = get_task(name)
    workload = task.workload()
    us, maker, source = ranked_kernels(task, workload, chip)[0]
    loop = AgentLoop(task, RewriteAgent(), workload, chip, store=False, max_steps=steps, seeds=1)
    loop.edit(source)
    for step in loop: print(f"  {step.index} {step.move}: {headline(step.evaluation)}", flush=True)
    best = loop.best and loop.best.evaluation
    if best is None or best.latency_us > WORTH * us: return None
    whence = "" if maker == "first kernel" else f", from the one {maker}"
    return dict(task=name, workload=workload.name, chip=chip, us=round(best.latency_us, 2), was_us=round(us, 2),
                maker=f"the rewrite agent{whence}", source=best.kernel.source)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--chip", default="trn2")
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    for name in asked.tasks:
        line = improved(name, asked.chip, asked.steps)
        print(name, f"{line['was_us']} -> {line['us']} us" if line else "nothing faster", flush=True)
        if not line: continue
        rest = [
            old for old in (BEST_KERNELS_FILE.read_text().splitlines() if BEST_KERNELS_FILE.exists() else [])
            if json.loads(old)["task"] != name]
        BEST_KERNELS_FILE.write_text("\n".join(sorted([*rest, json.dumps(line)])) + "\n")
