"""The loop under bad luck: interrupts at every moment, agents that fail or go in circles, runs that are resumed."""
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from kernel_lab.agents.engine import session as loops
from kernel_lab.agents.engine.loop import EDITED_BY_HAND, FIRST_KERNEL, AgentLoop, Proposal, base_step
from kernel_lab.core.errors import LabError, SimulatorError, UsageError
from kernel_lab.core.interrupts import hearing
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.evaluation import Evaluation
from kernel_lab.evaluate.records.verification import Status, new_id
from kernel_lab.evaluate.store.store import Store
from kernel_lab.tasks.suite.registry import get_task
from kernel_lab.tasks.model.workload import Kernel

SOFTMAX = get_task('softmax')
BASE = SOFTMAX.first_kernel.source


def version(n): return Kernel(f'{BASE}\n# version {n}\n')
def propose(n, **kw):
    return Proposal(n if isinstance(n, Kernel) else version(n), f'move {n}', 'because', 'better', **kw)


class Scripted:
    "Proposes from a list; an exception in the list is raised, a function is called."
    name, config = 'scripted', {'seed': 7}

    def __init__(self, *acts): self.acts, self.seen = list(acts), []

    def propose(self, run, task, workload):
        self.seen.append(run)
        act = self.acts.pop(0) if self.acts else None
        if callable(act): act = act()
        if isinstance(act, BaseException): raise act
        return act


@pytest.fixture(scope='session')
def measured():
    "One real evaluation, which the quick ones are copies of."
    found = evaluate(SOFTMAX.first_kernel, SOFTMAX, 'small', seeds=1)
    assert found.status == Status.CORRECT, found.log
    return found


@pytest.fixture
def quick(monkeypatch, measured):
    "Evaluations in no time: version n takes 100/(n+1) us, `def (` does not parse. → the list of kernels evaluated."
    made = []

    def fake(kernel, task, workload=None, chip='trn1', *, baseline_us=None, **options):
        made.append(kernel)
        if 'def (' in kernel.source:
            return Evaluation(new_id(), task.name, workload.name, chip, 'nki', kernel, Status.PARSE_ERROR,
                              baseline_us=baseline_us)
        n = int(kernel.source.rsplit('# version', 1)[1]) if '# version' in kernel.source else 0
        profile = replace(measured.profile, latency_us=100/(n + 1))
        return replace(measured, id=new_id(), kernel=kernel, baseline_us=baseline_us or profile.latency_us,
                       profile=profile)

    monkeypatch.setattr(loops, 'evaluate_kernel', fake)
    return made


@pytest.fixture
def store(tmp_path): return Store(tmp_path/'runs.db')


def test_a_whole_run_for_real(store):
    loop = AgentLoop('softmax', Scripted(propose(1), propose(Kernel('def ('))), 'small', store=store, seeds=1)
    steps = list(loop)
    assert [s.evaluation.status
            for s in steps] == [Status.CORRECT, Status.CORRECT, Status.PARSE_ERROR] and loop.run.state == 'finished'
    assert steps[1].evaluation.speedup == pytest.approx(1) and loop.best.index in (0, 1)
    kept = store.load_run(loop.run.id)
    assert [s.evaluation.kernel.hash for s in kept.steps] == [s.evaluation.kernel.hash
                                                              for s in steps] and kept.config['seed'] == 7


def test_the_best_is_kept_and_turns_are_bounded(quick, store):
    agent = Scripted(propose(1), propose(5), propose(2), propose(9))
    loop = AgentLoop('softmax', agent, 'small', store=store, max_steps=3)
    assert [s.index for s in loop] == [0, 1, 2, 3]
    assert loop.best.index == 2 and loop.run.best_speedup == pytest.approx(6) and len(agent.acts) == 1
    assert loop.done and loop.step() is None and store.load_run(loop.run.id).state == 'finished'


def test_a_step_is_stored_before_anybody_sees_it(quick, store):
    def look():
        stored.append(len(store.load_run(loop.run.id).steps))
        return propose(len(stored))
    stored, loop = [], None
    loop = AgentLoop('softmax', Scripted(look, look), 'small', store=store)
    for step in loop: assert len(store.load_run(loop.run.id).steps) == step.index + 1
    assert stored == [1, 2]


def test_no_turns_means_only_the_first_kernel(quick, store):
    loop = AgentLoop('softmax', Scripted(propose(1)), 'small', store=store, max_steps=0)
    assert [s.move for s in loop] == [FIRST_KERNEL] and store.load_run(loop.run.id).state == 'finished'


def test_a_repeat_is_told_and_two_end_the_run(quick, store):
    agent = Scripted(propose(1), propose(1), propose(2), propose(1), propose(SOFTMAX.first_kernel), propose(3))
    loop = AgentLoop('softmax', agent, 'small', store=store)
    steps = list(loop)
    assert len(quick) == 3 and len(steps) == 6 and len(agent.acts) == 1
    assert 'Already tried in step 1' in steps[2].why and steps[2].evaluation.id == steps[1].evaluation.id
    assert 'Already tried in step 0' in steps[5].why and agent.seen[2].steps[2].why == steps[2].why


def test_chance_results_are_not_reused(quick, measured, monkeypatch):
    loop = AgentLoop('softmax', Scripted(propose(1), propose(1)), 'small', store=False)
    fake, tries = loops.evaluate_kernel, []

    def slow(kernel, *args, **kw):
        tries.append(kernel)
        e = fake(kernel, *args, **kw)
        return e if len(tries) != 2 else replace(e, status=Status.TIMEOUT, profile=None, verification=None)

    monkeypatch.setattr(loops, 'evaluate_kernel', slow)
    assert [s.evaluation.status for s in loop] == [Status.CORRECT, Status.TIMEOUT, Status.CORRECT]


def test_editing(quick, store):
    agent = Scripted(propose(4), propose(5))
    loop = AgentLoop('softmax', agent, 'small', store=store, max_steps=2)
    edited = loop.step(version(1).source)
    assert [s.move for s in loop.steps] == [FIRST_KERNEL, EDITED_BY_HAND] and edited.index == 1 and loop.turns == 0
    loop.step()
    assert base_step(agent.seen[0]).index == 1 and base_step(loop.run).index == 2
    loop.edit('def (')
    assert base_step(loop.run).index == 3 and loop.best.index == 2
    loop.step()
    assert loop.done and loop.run.state == 'finished'
    assert loop.step(version(9)).index == 5 and loop.best.index == 5 and len(store.load_run(loop.run.id).steps) == 6


@pytest.mark.parametrize(
    'error, state',
    [
        (KeyboardInterrupt(), 'interrupted'),
        (LabError('the server sleeps'), 'interrupted'),
        (ZeroDivisionError('a bug'), 'failed'),
    ],
)
def test_an_agent_that_fails_loses_nothing(quick, store, error, state):
    loop = AgentLoop('softmax', Scripted(propose(1), error, propose(2)), 'small', store=store)
    with pytest.raises(type(error)): list(loop)
    kept = store.load_run(loop.run.id)
    assert (kept.state, len(kept.steps)) == (state, 2)
    assert loop.step().index == 2 and store.load_run(loop.run.id).state == 'running'


@pytest.mark.parametrize('error', [KeyboardInterrupt(), SimulatorError('ours')])
def test_an_evaluation_that_is_cut_off(quick, store, monkeypatch, error):
    loop, fake = AgentLoop('softmax', Scripted(propose(1), propose(2)), 'small', store=store), loops.evaluate_kernel
    loop.step()

    def cut(*args, **kw): raise error
    monkeypatch.setattr(loops, 'evaluate_kernel', cut)
    with pytest.raises(type(error)): loop.step()
    monkeypatch.setattr(loops, 'evaluate_kernel', fake)
    assert len(store.load_run(loop.run.id).steps) == 1 and loop.step().index == 1


def test_ctrl_c_while_saving_saves_again(quick, store, monkeypatch):
    loop, real, calls = AgentLoop('softmax', Scripted(propose(1)), 'small', store=store), store.append_entry, []

    def save(*entry):
        calls.append(entry)
        if len(calls) == 2: raise KeyboardInterrupt
        return real(*entry)
    monkeypatch.setattr(store, 'append_entry', save)
    with pytest.raises(KeyboardInterrupt): list(loop)
    assert len(store.load_run(loop.run.id).steps) == 2 and [s.index for s in loop.branch.steps] == [0, 1]


def swallowed():
    "Ctrl-C, and a library that makes nothing of it: the agent has no proposal."
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        for _ in range(1000): pass


def test_a_ctrl_c_that_the_agent_caught_does_not_finish_the_run(quick, store):
    loop = AgentLoop('softmax', Scripted(propose(1), swallowed, propose(2)), 'small', store=store)
    with pytest.raises(KeyboardInterrupt), hearing(): list(loop)
    assert store.load_run(loop.run.id).state == 'interrupted' and len(loop.run.steps) == 2
    assert [s.index for s in loop] == [2] and store.load_run(loop.run.id).state == 'finished'


def test_leaving_a_for_loop(quick, store):
    loop = AgentLoop('softmax', Scripted(propose(1), propose(2)), 'small', store=store)
    for step in loop:
        if step.index == 1: break
    assert store.load_run(loop.run.id).state == 'interrupted'
    assert [s.index for s in loop] == [2] and store.load_run(loop.run.id).state == 'finished'


def test_walking_away_from_a_finished_run(quick, store):
    loop = AgentLoop('softmax', Scripted(propose(1)), 'small', store=store, max_steps=1)
    for step in loop:
        if loop.done: break
    assert step.index == 1 and store.load_run(loop.run.id).state == 'finished'


def test_resuming(quick, store):
    first = AgentLoop('softmax', Scripted(propose(1), KeyboardInterrupt()), 'small', store=store)
    with pytest.raises(KeyboardInterrupt): list(first)
    evaluated = len(quick)
    again = AgentLoop(run=first.run.id, agent=Scripted(propose(1), propose(2), propose(3)), store=store, max_steps=3)
    assert [s.index for s in again] == [2, 3] and len(quick) == evaluated + 1 and again.run.state == 'finished'
    more = AgentLoop(run=store.load_run(first.run.id), agent=Scripted(propose(7)), store=store, max_steps=4)
    assert [s.index for s in more] == [4] and more.best.index == 4
    with pytest.raises(UsageError, match='not about'): AgentLoop('rmsnorm', run=first.run.id, store=store)
    for other in ({'workload': 'full'}, {'chip': 'trn1'}, {'target': 'triton'}):
        with pytest.raises(UsageError, match=f'not {next(iter(other.values()))}: all its steps'):
            AgentLoop(run=first.run.id, store=store, **other)
    with pytest.raises(LabError): AgentLoop(run='no such run', store=store)


class Another(Scripted): name = 'another'


def test_no_other_agent_goes_on_under_the_name_of_the_first(quick, store):
    begun = AgentLoop('softmax', Scripted(propose(1)), 'small', store=store)
    begun.step()
    with pytest.raises(UsageError, match='has the agent scripted, not another'):
        AgentLoop(run=begun.run.id, agent=Another(propose(2)), store=store)
    AgentLoop(run=begun.run.id, store=store).edit(propose(3).kernel)             # a person may always go on by hand
    assert [s.index for s in AgentLoop(run=begun.run.id, agent=Scripted(propose(4)), store=store, max_steps=1)] == [2]
    kept = store.load_run(begun.run.id)
    assert kept.agent == 'scripted' and [s.move for s in kept.steps].count(EDITED_BY_HAND) == 1


def test_a_run_that_was_begun_by_hand_bears_the_name_of_the_agent_that_goes_on(quick, store):
    begun = AgentLoop('softmax', None, 'small', store=store)
    begun.edit(propose(1).kernel)
    assert store.load_run(begun.run.id).agent == EDITED_BY_HAND
    loop = AgentLoop(run=begun.run.id, agent=Another(propose(2)), store=store, max_steps=1)
    assert store.load_run(begun.run.id).agent == EDITED_BY_HAND                   # until it takes a turn
    loop.step()
    kept = store.load_run(begun.run.id)
    assert (kept.agent, kept.config['seed'], len(kept.steps)) == ('another', 7, 3)
    with pytest.raises(UsageError, match='has the agent another'): AgentLoop(run=kept.id, agent=Scripted(), store=store)


KILLED = textwrap.dedent('''
    import os, signal, sys
    from dataclasses import replace
    from kernel_lab.agents.engine.loop import AgentLoop, Proposal
    from kernel_lab.evaluate.store.store import Store
    from kernel_lab.tasks.suite.registry import get_task

    class Mortal:
        name = 'scripted'
        def propose(self, run, task, workload):
            print(run.id, flush=True)
            if len(run.steps) == 2: os.kill(os.getpid(), signal.SIGKILL)
            return Proposal(replace(task.first_kernel, source=task.first_kernel.source + '# one'), 'one', '', '')

    list(AgentLoop('softmax', Mortal(), 'small', store=Store(sys.argv[1]), seeds=1))
''')


@pytest.mark.slow
def test_a_killed_process_leaves_a_run_to_resume(quick, tmp_path):
    path = tmp_path/'runs.db'
    done = subprocess.run([sys.executable, '-c', KILLED, str(path)], capture_output=True, text=True, timeout=180,
                          env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))})
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = Store(path)
    kept = store.load_run(done.stdout.split()[0])
    assert (kept.state, len(kept.steps)) == ('interrupted', 2)
    resumed = AgentLoop(run=kept.id, agent=Scripted(propose(3)), store=store)
    assert [s.index for s in resumed] == [2] and store.load_run(kept.id).state == 'finished'


def test_a_task_without_a_first_kernel(quick):
    bare = replace(SOFTMAX, first_kernel=None)
    loop = AgentLoop(bare, Scripted(propose(1)), 'small', store=False)
    with pytest.raises(UsageError, match='no first kernel'): loop.step()
    assert loop.step(BASE).move == FIRST_KERNEL and [s.index for s in loop] == [1]


def test_refusals(quick):
    with pytest.raises(UsageError, match='needs a task'): AgentLoop()
    with pytest.raises(UsageError, match='softmax'): AgentLoop('sofmax', store=False)
    with pytest.raises(UsageError): AgentLoop('softmax', workload='huge', store=False)
    with pytest.raises(UsageError, match='trn1'): AgentLoop('softmax', chip='trn9', store=False)
    alone = AgentLoop('softmax', workload='small', store=False)
    alone.step()
    with pytest.raises(UsageError, match='no agent'): alone.step()
    assert 'softmax' in repr(alone) and alone._repr_html_()
