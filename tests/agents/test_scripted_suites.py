"""The scripted conversations of the lab's recordings as suites: `bench` gives their results again, and after a kill, too."""
import os
import signal
import subprocess
import sys

import pytest
from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.prices import Usage
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.recorded.runs import recorded_run, recorded_runs
from kernel_lab.agents.suites.bench import kept_outcomes, run_suite
from kernel_lab.agents.suites.plan import SuitePlan, SuiteRow, plan_of
from kernel_lab.evaluate.store.store import Store

SCRIPTED = [r.name for r in recorded_runs() if r.label == 'scripted']
NOT_SETTINGS = ('model', 'base_url', 'max_dollars', 'max_tokens', 'executor', 'fast_model', 'target_stage', 'name', 'label', 'target')
PRICED = 'claude-opus-5'                                  # so that the table has dollars to compare
pytestmark = pytest.mark.slow


def replies(name):
    "What the script said, in order, as if it had cost something."
    said = [e.body for e in recorded_run(name).entries if e.kind == 'reply']
    return [Reply(tuple(b['content']), b['stop'], Usage(1000 + n, 100)) for n, b in enumerate(said)]


def plan(name):
    run = recorded_run(name).run
    settings = {k: v for k, v in run.config.items() if k not in NOT_SETTINGS}
    return SuitePlan((SuiteRow('scripted', run.agent, settings),), (run.task,), run.workload, run.chip, seeds=1, target=run.target, id='suite')


def table(found): return [(o.run, o.row, o.task, str(o.ending), o.speedup, o.why, o.dollars, o.kernels) for o in found]


CHILD = '''
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_scripted_suites import *
name, moment = sys.argv[3], int(sys.argv[4])
script = replies(name)
script[moment] = lambda request: os.kill(os.getpid(), signal.SIGKILL)
for _ in run_suite(plan(name), Store(sys.argv[2]), model=ScriptedModel(script, PRICED)): pass
'''


@pytest.mark.parametrize('name', SCRIPTED)
def test_the_table_of_a_recording_comes_again_and_after_a_kill_too(tmp_path, name):
    if recorded_run(name).run.target != 'nki': pytest.importorskip('triton', reason='triton is not installed')
    script = replies(name)
    whole = list(run_suite(plan(name), Store(tmp_path / 'whole.sqlite3'), model=ScriptedModel(script, PRICED)))
    run = recorded_run(name).run
    assert [o.kernels for o in whole] == [len(run.steps) - (run.target == 'nki')] and whole[0].dollars > 0
    if run.target != 'nki': assert whole[0].is_timeless and whole[0].speedup is None
    else:
        best = min(e.latency_us for e in (s.evaluation for s in run.steps) if e.profile)
        assert whole[0].gain == pytest.approx(run.first_us / best, rel=1e-9)
    for moment in range(len(script)):
        place = tmp_path / f'killed{moment}.sqlite3'
        done = subprocess.run([sys.executable, '-c', CHILD, os.path.dirname(__file__), place, name, str(moment)],
                              timeout=300, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        store, rest = Store(place), ScriptedModel(script[moment:], PRICED)
        for _ in run_suite(plan_of(store, 'suite'), store, model=rest): pass
        assert len(rest.asked) == len(script) - moment      # none but the one in flight is asked again
        assert table(kept_outcomes(store, plan_of(store, 'suite'))) == table(whole)
        store.close()
