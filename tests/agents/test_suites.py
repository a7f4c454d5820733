"""Suites of agents: the metrics against sums by hand, budgets, and the table after a kill."""
import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from statistics import mean
from time import sleep

import pytest
from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.prices import Usage
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.suites.ablate import ablation_rows
from kernel_lab.agents.suites import bench
from kernel_lab.agents.suites.bench import Purse, kept_outcomes, run_suite
from kernel_lab.agents.suites.metrics import (METRICS, best_of, by_task, classes, estimate, fast_p, paid_to_reach,
                                              pass_at_k)
from kernel_lab.agents.suites.outcomes import Ending, TaskOutcome
from kernel_lab.agents.suites.plan import SuitePlan, SuiteRow, plan_of
from kernel_lab.evaluate.store.store import Store

BROKEN = 'def kernel(x:\n'


@pytest.mark.parametrize('n', [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_all_choices(n):
    for c in range(n + 1):
        runs = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            assert math.isclose(pass_at_k(n, c, k), mean(any(some) for some in combinations(runs, k)))


def test_best_of_is_the_mean_of_all_choices():
    draw = random.Random(0)
    for _ in range(20):
        values = [draw.uniform(0, 3) for _ in range(draw.randint(1, 7))]
        for n in range(1, len(values) + 1):
            assert math.isclose(best_of(values, n), mean(map(max, combinations(values, n))))


def outcomes(seed):
    "Random outcomes of thirty tasks, of every class."
    draw = random.Random(seed)
    for n in range(30):
        ending = draw.choice([*Ending, Ending.CORRECT, Ending.CORRECT])
        gain = draw.choice([0.5, 1.0, 1.2, 3.0]) if ending == Ending.CORRECT else None
        yield TaskOutcome('me', f't{n}', 0, ending, speedup=gain, peak_pct=10.0, dollars=draw.random(), score=50.0)


@pytest.mark.parametrize('seed', range(5))
def test_every_task_is_in_every_denominator(seed):
    found = list(outcomes(seed))
    assert sum(classes(found).values()) == len(by_task(found)) == 30
    for p in (1, 1.5):
        by_hand = sum(o.ending == 'correct' and o.speedup > p for o in found) / 30
        assert math.isclose(estimate(fast_p(p), found).value, by_hand)
    values = {m.name: estimate(m, found).value for m in METRICS}
    gains = [o.speedup or 1 for o in found]
    assert math.isclose(values['× of all'], math.prod(gains)**(1 / 30))
    right = [o.speedup for o in found if o.ending == 'correct']
    assert math.isclose(values['× of correct'], math.prod(right)**(1 / len(right)))
    assert math.isclose(values['$ a task'], mean(o.dollars for o in found))


def test_intervals_are_seeded_and_hold_their_figure():
    found = list(outcomes(1))
    for m in METRICS:
        e = estimate(m, found, seed=7)
        assert e == estimate(m, found, seed=7)
        if e.value is not None: assert e.low <= e.value <= e.high, m.name


def test_cost_to_reach_counts_failures_and_unknown_prices():
    there = TaskOutcome('me', 'a', 0, Ending.CORRECT, speedup=3.0, dollars=5.0, course=((1.0, 1.5), (4.0, 3.0)))
    assert paid_to_reach(there, 1.5) == (1.0, True) and paid_to_reach(there, 2) == (4.0, True)
    assert paid_to_reach(there, 9) == (5.0, False)
    dollars, reached = paid_to_reach(replace(there, dollars=None, course=((None, 1.5),)), 1.5)
    assert math.isnan(dollars) and reached


@pytest.mark.parametrize('seed', range(20))
def test_a_purse_is_never_over(seed):
    draw = random.Random(seed)
    purse, spent, busy = Purse(1.0, places=3), 0.0, []
    for _ in range(200):
        may, part = purse.take(draw.choice([0.0, 0.001]))
        if may and len(busy) < 3: busy.append(part)
        elif may: purse.give_back(part, 0.0)
        assert spent + sum(busy) <= 1.0 + 1e-9
        if busy and draw.random() < 0.7:
            part = busy.pop(draw.randrange(len(busy)))
            cost = draw.choice([0.0, part, part * draw.random()])
            purse.give_back(part, cost)
            spent += cost


def test_a_purse_is_divided_by_the_runs_that_may_still_take_a_part():
    purse = Purse(0.9, places=3, runs=2)
    assert purse.take()[1] == pytest.approx(0.45) and purse.take()[1] == pytest.approx(0.45)


# --- a whole suite ---

def plan(**kw):
    rows = (SuiteRow('me', 'react', dict(turns=3)), SuiteRow('plain', 'react', dict(turns=3, profiling=False)))
    return SuitePlan(rows, ('softmax', 'relu'), 'small', **{**dict(steps=2, seeds=1, id='suite'), **kw})


def answer(request):
    "Writes a kernel that does not parse, then gives up."
    if len(request.messages) > 2: return Reply(({'type': 'text', 'text': 'I give up.'},), usage=Usage(2000, 10))
    name = request.tools[0]['name']
    given = dict(source=f'{BROKEN}# {len(str(request.messages))}')
    return Reply(({'type': 'tool_use', 'id': 'c', 'name': name, 'input': given},), 'tool_use', Usage(1000, 100))


def table(found): return [(o.run, o.row, o.task, str(o.ending), o.gain, o.why, o.dollars, o.kernels) for o in found]


def test_a_suite_counts_what_it_did_not_begin(tmp_path):
    store, model = Store(tmp_path / 'lab.sqlite3'), ScriptedModel([answer], 'claude-opus-5', repeat=True)
    whole = list(run_suite(plan(), store, model=model))
    assert [str(o.ending) for o in whole] == ['failed'] * 4 and all(o.dollars > 0 for o in whole)
    budget = 1.5 * whole[0].dollars + 0.2                              # not enough for all, by the upper bounds
    poor = list(run_suite(plan(id='poor', max_dollars=budget), store, model=model))
    assert sum(o.dollars + o.open_dollars for o in poor) <= budget and len(poor) == 4
    none = list(run_suite(plan(id='none', max_dollars=0.001), store, model=model))
    assert [str(o.ending) for o in none] == ['not run'] * 4 and sum(o.dollars for o in none) == 0


CHILD = '''
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_suites import *
n = int(sys.argv[3])
def dies(request):
    if len(model.asked) == n: os.kill(os.getpid(), signal.SIGKILL)
    return answer(request)
model = ScriptedModel([dies], 'claude-opus-5', repeat=True)
for _ in run_suite(plan(), Store(sys.argv[2]), model=model): pass
'''


@pytest.mark.slow
@pytest.mark.parametrize('moment', [2, 5, 7])
def test_after_a_kill_the_table_is_the_same(tmp_path, moment):
    model = ScriptedModel([answer], 'claude-opus-5', repeat=True)
    wanted = table(run_suite(plan(), Store(tmp_path / 'whole.sqlite3'), model=model))
    place = tmp_path / 'killed.sqlite3'
    done = subprocess.run([sys.executable, '-c', CHILD, os.path.dirname(__file__), place, str(moment)], timeout=300,
                          capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    store, again = Store(place), ScriptedModel([answer], 'claude-opus-5', repeat=True)
    assert any(o.ending == 'not run' for o in kept_outcomes(store, plan_of(store, 'suite')))
    for _ in run_suite(plan_of(store, 'suite'), store, model=again): pass
    found = kept_outcomes(store, plan_of(store, 'suite'))
    assert table(found) == wanted
    assert len(again.asked) == len(model.asked) - (moment - 1)          # none but the one in flight is asked again
    assert sum(o.open_dollars for o in found) > 0                       # whose cost nobody saw


@pytest.mark.slow
def test_threads_and_processes_come_to_the_same(tmp_path):
    """A model's runs in threads and the built-in agent's in processes; the model says nothing, which costs a little."""
    rows = SuiteRow('me', 'react', {'turns': 1}), SuiteRow('built in', 'rewrite', {'seconds': 1.0})
    plan = SuitePlan(rows, ('softmax', 'relu'), 'small', steps=1, seeds=1, max_dollars=1.0)
    model = ScriptedModel([Reply(({'type': 'text', 'text': 'No.'},), 'end_turn', Usage(1000, 10))], 'claude-opus-5',
                          repeat=True)
    seen = {}
    for jobs in (1, 3):
        store = Store(tmp_path/f'{jobs}.sqlite3')
        made = run_suite(replace(plan, id=f"suite{jobs}"), store, jobs=jobs, model=model)
        found = sorted(made, key=lambda o: (o.row, o.task))
        seen[jobs] = [(o.row, o.task, str(o.ending), o.gain) for o in found]
        store.close()
    assert seen[1] == seen[3] and len(seen[1]) == 4


def test_without_proposals_a_model_is_offered_none_and_told_of_none(tmp_path):
    "The row without them: no tool, no word of it in the prompts, and a call all the same is refused."
    rows = ablation_rows('react', ['proposals'], {'turns': 2})
    assert [r.label for r in rows] == ['whole', 'no proposals']
    def ask_for_them(request):
        if len(request.messages) > 1: return 'I give up.'
        call = {'type': 'tool_use', 'id': 'c', 'name': 'optimise', 'input': {'source': 'best'}}
        return Reply((call,), 'tool_use', Usage(1000, 10))
    plan = SuitePlan(rows, ('softmax',), 'small', steps=2, seeds=1)
    model = ScriptedModel([ask_for_them], 'claude-opus-5', repeat=True)
    found = list(run_suite(plan, Store(tmp_path / 'lab.sqlite3'), model=model))
    assert [o.row for o in found] == [r.label for r in rows]
    first, after, without, refused = model.asked
    assert 'optimise' in {t['name'] for t in first.tools} and 'Ask optimise' in first.system
    said = str([without.system, without.messages, without.tools])
    assert 'optimise' not in {t['name'] for t in without.tools} and 'optimise' not in said and 'profile' in said
    answers = [r.messages[-1]['content'][0] for r in (after, refused)]
    assert '1. ' in answers[0]['content'] and not answers[0]['is_error']
    assert 'Not run' in answers[1]['content'] and answers[1]['is_error']


def test_processes_do_their_runs_of_a_plan_whose_other_tasks_only_this_one_finds(tmp_path, monkeypatch):
    "Imported tasks are found by the process that imported them: the workers get the lab's own."
    from kernel_lab.tasks.suite import registry
    mine = replace(registry.TASKS['relu'], name='mine/relu')
    monkeypatch.setattr(registry, 'TASK_FINDERS', [*registry.TASK_FINDERS, lambda name: mine if name == mine.name else None])
    plan = SuitePlan((SuiteRow('rewrite', 'rewrite'),), ('mine/relu', 'softmax'), 'small', steps=2, seeds=1)
    found = {o.task: o.ending for o in run_suite(plan, Store(tmp_path / 'lab.sqlite3'), jobs=2)}
    assert found == {'mine/relu': Ending.CORRECT, 'softmax': Ending.CORRECT}


def test_large_tasks_are_never_judged_two_at_a_time(tmp_path, monkeypatch):
    from kernel_lab.agents.suites import bench
    from kernel_lab.tasks.suite import registry
    mine = {f'mine/{n}': replace(registry.TASKS[n], name=f'mine/{n}') for n in ('relu', 'softmax', 'tanh', 'exp')}
    monkeypatch.setattr(registry, 'TASK_FINDERS', [*registry.TASK_FINDERS, mine.get])
    plan = SuitePlan((SuiteRow('rewrite', 'rewrite'),), tuple(mine), 'small', steps=1, seeds=1)
    large, there, together = ('mine/relu', 'mine/softmax', 'mine/exp'), set(), []

    def work_on(plan, planned, store, *rest):
        there.add(planned.task)
        sleep(0.2)
        together.append(sorted(there))
        there.discard(planned.task)
        return bench.kept_outcome(store, planned)

    monkeypatch.setattr(bench, 'work_on', work_on)
    monkeypatch.setattr(bench, 'is_large', lambda plan, planned: planned.task in large)
    assert len(list(run_suite(plan, Store(tmp_path / 'lab.sqlite3'), jobs=2))) == 4
    assert all(sum(n in large for n in names) <= 1 for names in together) and max(map(len, together)) == 2


def test_a_row_that_asks_no_model_takes_no_dollars(tmp_path, monkeypatch):
    parts = {}
    def work(plan, planned, store, dollars, *rest):
        parts[planned.row.label] = dollars
        return TaskOutcome(planned.row.label, planned.task)
    monkeypatch.setattr(bench, 'work_on', work)
    monkeypatch.setattr(bench, '_in_processes', lambda *given: ())
    one = SuitePlan((SuiteRow('me', 'react'), SuiteRow('rewrite', 'rewrite')), ('softmax',), 'small', max_dollars=0.9, id='suite')
    model = ScriptedModel(['x'], 'claude-opus-5')
    list(run_suite(one, Store(tmp_path / 'many.sqlite3'), jobs=3, model=model))
    assert parts == {'me': pytest.approx(0.9)}
    list(run_suite(one, Store(tmp_path / 'one.sqlite3'), model=model))
    assert parts == {'me': pytest.approx(0.9), 'rewrite': None}


def test_tasks_travel_to_processes_by_functions_of_modules_only():
    from kernel_lab.cli.tasks import imported_task
    from kernel_lab.tasks.suite.registry import TASK_FINDERS
    def local(name): return None
    assert [bench._can_travel(f) for f in (imported_task, *TASK_FINDERS[:1], local, lambda name: None, {}.get)] == [True, True, False, False, False]
