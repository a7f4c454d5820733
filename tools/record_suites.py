"""The suites of paper/data, from which the example paper is drawn: `python tools/record_suites.py [NAME …]`.

`ablation`: the built-in agent with and without its search, on twelve tasks of all levels; no model is asked.
`fixer`: a scripted beam on one task with and without its fixer, to show the figure; it says nothing of a model.
`funnel`: what becomes of some hundred candidates of the synthesis of
tasks."""
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import recorded_scripts as scripts

from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.suites.ablate import ablation_rows
from kernel_lab.agents.suites.bench import kept_outcomes, run_suite
from kernel_lab.agents.suites.plan import SuitePlan
from kernel_lab.evaluate.records.verification import to_json_data
from kernel_lab.evaluate.store.store import Store
from kernel_lab.nki.chip.chips import DEFAULT_CHIP

FOLDER = Path(__file__).parent.parent / "paper" / "data"
TASKS = ("softmax", "layer_norm", "cumsum", "cross_entropy", "rmsnorm_matmul", "swiglu", "masked_softmax",
         "rope_halves", "gelu_mlp", "multi_query_decode", "causal_attention", "mamba_block")
HEAD = "def masked_softmax(x, mask):"
BROKEN = scripts.SOFTMAX.replace(HEAD, f"{HEAD}\n    y = no_such_name", 1)


def answers():
    "A beam whose executor leaves an unknown name in its best kernel; its fixer takes it out."
    whole = scripts.beam_answers()[0]

    def answer(request):
        text = str(request.messages[0]["content"])
        if "no_such_name" in text: return f"```python\n{scripts.SOFTMAX}```"
        return whole(request).replace(scripts.SOFTMAX, BROKEN)
    return [answer]


def plans():
    "Name → (plan of a suite, the model that plays in it or None, where its runs come from)."
    ablation = SuitePlan(ablation_rows("rewrite"), TASKS, "small", DEFAULT_CHIP, steps=4, seeds=2, id="ablation")
    settings = dict(model="scripted", rounds=2, beam=2, plans=2, samples=1)
    rows = tuple(replace(r, label={"whole": "with fixer", "no fixer": "without fixer"}[r.label])
                 for r in ablation_rows("beam", ["fixer"], settings))
    fixer = SuitePlan(rows, ("masked_softmax",), "small", DEFAULT_CHIP, seeds=2, id="fixer")
    return {"ablation": (ablation, None, "recorded with the built-in agent"),
            "fixer": (fixer, lambda: ScriptedModel(answers(), repeat=True), "scripted")}


def recorded(name):
    "Work through a plan and write what became of it, with the clock and the chip that timed it."
    plan, model, label = plans()[name]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"{folder}/lab.sqlite3")
        for done in run_suite(plan, store, model=model and model()): print(done.row, done.task, done.speedup)
        outcomes = kept_outcomes(store, plan)
        steps = [s.evaluation for o in outcomes for s in store.load_run(o.run).steps]
    timed = [e for e in steps if e.profile]
    how = dict(label=label, clocks=sorted({e.profile.clock for e in timed}),
               chips={e.chip: e.versions["chip_record"] for e in timed}, lab=timed[0].versions["kernel_lab"])
    whole = dict(plan=plan.to_dict(), outcomes=[asdict(o) for o in outcomes], how=how)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(to_json_data(whole), indent=1) + "\n", encoding="utf-8")


def funnelled(count=400, seed=0):
    "Draw candidates and write how many each filter turned down."
    from kernel_lab.tasks.synthesis.synthesize import STAGES, funnel, synthesize
    with tempfile.TemporaryDirectory() as folder:
        fates = list(synthesize(folder, count, seed, DEFAULT_CHIP, 1))
    whole = dict(rows=funnel(fates), words=STAGES, label=f"synthesis of tasks, seed {seed}, the lab's own filters")
    (FOLDER / "funnel.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or (*plans(), "funnel"): funnelled() if name == "funnel" else recorded(name)
