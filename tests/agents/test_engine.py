"""The engine under bad luck: kills at random moments, walks over the tree, two at work on one run, damaged journals, and
budgets that hold whatever happens."""
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import mortal
import pytest
from mortal import BASE, ByRequest, agent_for, call, react_reply, version

from kernel_lab.agents.engine import session as sessions
from kernel_lab.agents.engine.loop import EDITED_BY_HAND, AgentLoop, replayed
from kernel_lab.agents.engine.recording import Recording, from_file, to_file
from kernel_lab.agents.engine.session import Session
from kernel_lab.agents.models import prices
from kernel_lab.agents.models.budget import Budget, BudgetOver
from kernel_lab.agents.models.messages import ChatError, Reply, Request
from kernel_lab.agents.models.prices import PICO, PRICES, Usage, picodollars, price
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.systems.beam import BeamAgent
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.core.errors import SimulatorError, UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.run import Run
from kernel_lab.evaluate.records.verification import Status, now
from kernel_lab.evaluate.store.store import Store
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import get_task

SOFTMAX = get_task('softmax')


def loop_of(agent, store=False, **kw): return AgentLoop('softmax', agent, 'small', store=store, **kw)


def finished(loop):
    "The loop, at its end."
    while loop.step(): pass
    return loop


# ---- kill -9
# ------------------------------------------------------------------------------------------------------------------

class Nursery:
    "The process that forks children to be killed."
    def __init__(self):
        env = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen([sys.executable, mortal.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env)
        assert self.process.stdout.readline() == 'ready\n'

    def run(self, job, kill_after=None):
        "Run a job → whether it was killed, after so many seconds."
        self.process.stdin.write(json.dumps(job) + '\n')
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            try: os.kill(pid, signal.SIGKILL)
            except ProcessLookupError: pass
        status = int(self.process.stdout.readline())
        assert status in (0, signal.SIGKILL), 'the child failed: see its traceback'
        return status == signal.SIGKILL

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


@pytest.fixture(scope='module')
def nursery():
    made = Nursery()
    yield made
    made.end()


TIMES = {'seconds', 'created', 'evaluation', 'run'}


def account(path):
    "All that must be the same after a kill: (steps, what the journal holds but for times, what it cost)."
    shelf = Store(path)
    run = shelf.latest()
    recording = Recording.load(run, shelf)
    shelf.close()
    steps = [({k: v for k, v in vars(s).items() if k not in TIMES}, s.evaluation.kernel.hash, s.evaluation.status,
              s.evaluation.latency_us, s.follows) for s in run.steps]
    entries = [(e.kind, e.key, {k: v for k, v in e.body.items() if k not in ('seconds', 'sent')})
               for e in recording.branch(recording.head) if e.kind not in ('sent', 'failed')]
    return (run.state, steps, entries, recording.spent.dollars, recording.spent.requests), recording.spent


def charged(path):
    "(requests that the model got, what it charged) in picodollars."
    lines = Path(path).read_text().split() if Path(path).exists() else []
    return len(lines), sum(map(int, lines))


@pytest.fixture(scope='module')
def whole(nursery, tmp_path_factory):
    "A function agent → (account of a run without a kill, its requests, its seconds)."
    found = {}

    def of(agent):
        if agent not in found:
            folder = tmp_path_factory.mktemp(agent)
            job, since = dict(agent=agent, store=str(folder/'runs.db'), asked=str(folder/'asked')), time.monotonic()
            assert not nursery.run(job)
            found[agent] = account(job['store'])[0], charged(job['asked'])[0], time.monotonic() - since
        return found[agent]
    return of


def quick_first(numbers, quick):
    "The numbers as parameters, all but the first `quick` of them slow."
    return [n if k < quick else pytest.param(n, marks=pytest.mark.slow) for k, n in enumerate(numbers)]


def killed_runs():
    "An agent and a seed: of a beam forty, of which each is killed at one moment or two, of react twenty, with a fixer and without."
    for agent, count in (('beam', 40), ('react', 20), ('mending', 20)):
        for n in range(count): yield pytest.param(agent, n, marks=[pytest.mark.slow] if n >= 2 else [])


@pytest.mark.sampled(4)
@pytest.mark.parametrize('agent, seed', killed_runs())
def test_kill_9_at_any_moment(nursery, whole, tmp_path, agent, seed):
    (expected, needed, seconds), draw = whole(agent), random.Random(f'{agent} {seed}')
    job, kills = dict(agent=agent, store=str(tmp_path/'runs.db'), asked=str(tmp_path/'asked')), 0
    while nursery.run(job, draw.uniform(0, seconds) if kills < 2 else None): kills += 1
    found, spent = account(job['store'])
    assert found == expected
    asked, pico = charged(job['asked'])
    assert needed <= asked <= needed + kills and spent.open_requests <= kills
    assert (Fraction(spent.dollars) + Fraction(spent.open_dollars))*PICO >= pico - 1


def test_the_whole_runs_are_worth_killing(whole):
    beam, react, mending = (whole(name)[0] for name in ('beam', 'react', 'mending'))
    assert len(beam[1]) > 8 and beam[4] > 15 and {s[2] for s in beam[1]} == {Status.CORRECT, Status.PARSE_ERROR}
    assert [s[0]['move'] for s in react[1]][-1] == 'try 7' and react[4] == 6 and beam[0] == react[0] == 'finished'
    keys = [k for kind, k, _ in mending[2] if kind == 'reply']
    assert len(mending[1]) > 10 and sum('/fix 1' in k for k in keys) > 3 and mending[0] == 'finished'
    assert [k for kind, k, _ in mending[2] if kind == 'tool' and k.endswith('/fixer')] == [f'turn {n}/fixer' for n in (0, 1, 2, 4)]


class Killed(BaseException): "What a kill does: nothing is written any more."


@pytest.mark.sampled(2)
@pytest.mark.parametrize('agent', ['beam', 'react', 'mending'])
@pytest.mark.parametrize('is_written', [True, False])
@pytest.mark.parametrize('first', quick_first(range(7), 1))
def test_a_cut_at_every_entry(quick, monkeypatch, tmp_path, agent, is_written, first):
    "Of every seventh entry, from the first one named; of a quick beam, and of a quick run with a fixer, a third of those."
    real, dead = Store.append_entry, []
    left = [10**9]

    def append(self, *args):
        left[0] -= 1
        if dead or left[0] < 0:
            if is_written and not dead: real(self, *args)
            dead.append(1)
            raise Killed
        return real(self, *args)
    monkeypatch.setattr(Store, 'append_entry', append)
    mortal.go_on(agent, tmp_path/'whole.db')
    expected = account(tmp_path/'whole.db')[0]
    number = 10**9 - left[0]
    for n in range(1 + first, number, 21 if agent != 'react' and not first else 7):
        left[0], path = n, tmp_path/f'{n}.db'
        with pytest.raises(Killed): mortal.go_on(agent, path)
        dead.clear()
        left[0] = 10**9
        mortal.go_on(agent, path)
        assert account(path)[0] == expected, n


def test_words_of_a_known_evaluation_do_not_change_its_prompts(store, measured):
    wrong = BASE.replace('nl.exp', 'nl.square')
    assert wrong != BASE
    evaluate(Kernel(wrong), SOFTMAX, 'small', seeds=1, store=store)
    fenced = f'```python\n{wrong}```'
    model = ScriptedModel(['A plan.', fenced, ChatError('overloaded'), 'I cannot.'], name='claude-haiku-4-5')
    agent = BeamAgent(model, rounds=1, beam=1, plans=1, samples=1, fixes=1)
    loop = loop_of(agent, store, seeds=1)
    with pytest.raises(ChatError): finished(loop)
    again = AgentLoop(agent=agent, run=loop.run.id, store=store, seeds=1)
    finished(again)
    assert again.run.state == 'finished' and model.asked[2] == model.asked[3] and again.steps[1].evaluation.status != Status.CORRECT


# ---- a person takes part
# ------------------------------------------------------------------------------------------------------------------

def own_course(request):
    "Like the react script, but a person's words change what follows."
    said = sum(m['role'] == 'user' for m in request.messages) + len(json.dumps(request.messages)) % 40
    n = sum(m['role'] == 'assistant' for m in request.messages)
    return [call('profile', source=version(said + 50 * n + k)) for k in range(1 + n % 2)]


def broken_course(request):
    "The same with kernels that fail every other turn; a fixer's answers fail first."
    if not request.tools: return mortal.mending_reply(request)
    last = own_course(request)[-1]
    n = sum(m['role'] == 'assistant' for m in request.messages)
    return [last if n % 2 else call('profile', source=f'def ( # {len(json.dumps(request.messages)) % 40}')]


def walker(name):
    "An agent for walks."
    if name == 'react': return ReactAgent(ByRequest(own_course), turns=30)
    if name == 'mending': return ReactAgent(ByRequest(broken_course), turns=30, fixes=2)
    return replace(agent_for('beam'), rounds=6)


def same_as_replayed(loop, name):
    "The branch where the loop stands gives the same steps once more, without a question."
    branch = loop.recording.branch(loop.head)
    mute = walker(name)
    mute.model = mute.executor = ScriptedModel([], name='claude-haiku-4-5')
    again = list(replayed(Recording(loop.run, None, branch), mute))
    assert [s.index for s in again] == [s.index for s in loop.branch.steps]
    assert not mute.model.asked


def some_step(draw, loop):
    "The number of a step of the run, on any branch."
    return draw.choice(loop.steps).index


MOVES = {
    'step': lambda draw, loop: loop.step(), 'again': lambda draw, loop: loop.step(),
    'source': lambda draw, loop: loop.edit(draw.choice([version(draw.randrange(900)), 'def (', BASE])),
    'message': lambda draw, loop: loop.edit(message=f'Try {draw.randrange(99)}.'),
    'plan': lambda draw, loop: loop.edit(plan=f'Plan {draw.randrange(99)}.'),
    'rewind': lambda draw, loop: loop.rewind(some_step(draw, loop)) and None}


@pytest.mark.sampled(3)
@pytest.mark.parametrize('seed', quick_first(range(30), 3))
@pytest.mark.parametrize('name', ['react', 'mending', 'beam'])
def test_walks_over_the_tree(quick, tmp_path, name, seed):
    draw, shelf = random.Random(f'{name} {seed}'), Store(tmp_path/'runs.db')
    loops = [loop_of(walker(name), shelf)]
    loops[0].step()
    for _ in range(12):
        move, n = draw.choice([*MOVES, 'branch', 'reload']), draw.randrange(len(loops))
        if move == 'branch': loops.append(loops[n].branch_at(some_step(draw, loops[n])))
        elif move == 'reload': loops = [AgentLoop(agent=walker(name), run=loops[0].run.id, store=shelf)]
        else: MOVES[move](draw, loops[n])
        for loop in loops: same_as_replayed(loop, name)
    kept = Recording.load(shelf.load_run(loops[0].run.id), shelf)
    assert [(e.seq, e.prev, e.kind, e.body) for e in kept.entries] == [
        (e.seq, e.prev, e.kind, e.body) for e in loops[0].recording.entries]
    assert [s.index for s in kept.run.steps] == list(range(len(kept.run.steps)))
    shelf.close()


def test_two_branches_at_work_in_turn(quick, store):
    one = loop_of(walker('react'), store)
    one.step(), one.step()
    two = one.branch_at(0)
    for _ in range(3): one.step(), two.step()
    mine, other = ([s.index for s in loop.branch.steps] for loop in (one, two))
    assert set(mine) & set(other) == {0} and sorted({*mine, *other}) == list(range(len(one.steps)))
    assert one.run.steps == two.run.steps == tuple(one.steps) and len(store.load_run(one.run.id).steps) == len(one.steps)
    for loop in (one, two): same_as_replayed(loop, 'react')


def test_two_branches_share_one_budget(quick, store):
    agent = walker('react')
    agent.max_tokens = 140_000
    one = loop_of(agent, store)
    one.step(), one.step()
    both = [one, one.branch_at(0)]
    while any([loop.step() for loop in both]): assert one.spent.tokens <= 140_000
    assert one.spent.tokens <= 140_000 and one.spent.requests > 3 and all('budget' in loop.ended for loop in both)


def test_a_branch_that_is_left_leaves_the_other(quick, store):
    one = loop_of(walker('react'), store)
    one.step(), one.step()
    one.branch_at(0).leave()
    one.step()
    assert len(store.load_run(one.run.id).steps) == len(one.steps)


def test_an_edited_kernel_is_heard_after_a_step_back_to_it(quick, store):
    loop = loop_of(walker('react'), store)
    loop.step(), loop.step()
    edited = loop.edit(version(77))
    loop.step(), loop.step()
    loop.rewind(edited.index)
    loop.step()
    said = [e for e in loop.recording.branch(loop.head) if e.kind == 'heard']
    assert edited.move == EDITED_BY_HAND and len(said) == 1
    assert edited.index in [s.index for s in loop.branch.steps]
    same_as_replayed(loop, 'react')


def test_a_kernel_by_hand_is_heard_though_the_process_died(quick, store):
    loop, model = loop_of(walker('react'), store), []
    loop.step(), loop.step()
    loop._said = lambda said: (_ for _ in ()).throw(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt): loop.edit(version(77))
    agent = ReactAgent(ByRequest(lambda request: model.append(request) or own_course(request)), turns=30)
    AgentLoop(agent=agent, run=loop.run.id, store=store).step()
    assert 'I have changed the kernel by hand' in json.dumps(model[0].messages)


def test_a_key_in_a_kernel_by_hand_is_in_no_request(quick, store, monkeypatch):
    monkeypatch.setenv('HOUSE_API_KEY', 'sk-house-123456789')
    asked, agent = [], walker('react')
    agent.model = ByRequest(lambda request: asked.append(request) or own_course(request))
    loop = loop_of(agent, store)
    loop.step()
    loop.edit(f'# sk-house-123456789\n{version(3)}')
    loop.edit(message='The key is sk-house-123456789.')
    loop.step()
    again = AgentLoop(agent=agent, run=loop.run.id, store=store)
    again.step()
    assert 'sk-house' not in json.dumps([r.messages for r in asked]) and 'The key is' in json.dumps(asked[0].messages)
    assert len(asked) == 2 and 'sk-house' not in repr(loop.recording)


def test_two_at_work_on_one_run(quick, store, tmp_path):
    first = loop_of(walker('react'), store)
    first.step()
    asked, agent = [], walker('react')
    agent.model = ByRequest(lambda request: asked.append(request) or own_course(request))
    second = AgentLoop(agent=agent, run=first.run.id, store=Store(tmp_path/'runs.db'))
    first.step()
    before = [(e.seq, e.kind, e.body) for e in store.journal(first.run.id)]
    for _ in range(2):
        with pytest.raises(UsageError, match='somebody else went on'): second.step()
    assert not asked and [(e.seq, e.kind, e.body) for e in store.journal(first.run.id)] == before
    assert first.step() and AgentLoop(agent=agent, run=first.run.id, store=store).step()


def test_a_full_disk_is_no_answer_to_a_model(quick, store, monkeypatch):
    real, full = Store.append_entry, []

    def append(self, run, entry, step=None):
        if entry.kind == 'step' and entry.body['step'] == 1 and not full:
            full.append(1)
            raise UsageError('The store cannot grow: the disk is full.')
        return real(self, run, entry, step)
    monkeypatch.setattr(Store, 'append_entry', append)
    loop = loop_of(agent_for('react'), store)
    loop.step()
    with pytest.raises(UsageError, match='disk is full'): loop.step()
    finished(loop)
    told = [e.body['text'] for e in loop.recording.entries if e.kind == 'tool']
    assert full and not any('disk is full' in t for t in told)
    assert [s.index for s in loop.branch.steps] == [s.index for s in loop.steps]


class Hanging:
    "A gate at which a turn stands until it is opened."
    def __init__(self): self.is_there, self.gate = threading.Event(), threading.Event()

    def wait(self):
        self.is_there.set()
        assert self.gate.wait(30)


@pytest.mark.parametrize('where', ['request', 'evaluation'])
def test_a_turn_that_was_left_reaches_nothing(quick, store, monkeypatch, where):
    hanging, heard, agent, armed = Hanging(), [], walker('react'), []
    agent.model = ByRequest(lambda request: (armed == ['request'] and hanging.wait()) or own_course(request))
    loop = loop_of(agent, store, on_event=heard.append)
    loop.step(), loop.step()
    fake = sessions.evaluate_kernel

    def slow_evaluate(kernel, *args, store=None, **kw):
        hanging.wait()
        e = fake(kernel, *args, **kw)
        if store: store.save_evaluation(e)             # none behind a turn that was left
        return e
    armed.append(where)
    if where == 'evaluation': monkeypatch.setattr(sessions, 'evaluate_kernel', slow_evaluate)
    thread = threading.Thread(target=loop.step)
    thread.start()
    assert hanging.is_there.wait(30)
    on = loop.leave()
    before, told, loose = store.journal(loop.run.id), len(heard), store.alone()
    hanging.gate.set()
    thread.join(30)
    assert not thread.is_alive() and store.journal(loop.run.id) == before and len(heard) == told and store.alone() == loose
    assert on.spent.open_requests == (where == 'request') and len(on.steps) == 2
    assert on.step().index >= 2 and len(store.load_run(on.run.id).steps) == len(on.steps) and len(heard) > told


def test_leaving_after_a_step_back_stays_there(quick, store):
    loop = loop_of(walker('react'), store)
    loop.step(), loop.step(), loop.step()
    on = loop.rewind(0).leave()
    assert [s.index for s in on.branch.steps] == [0]


# ---- older and damaged stores
# ------------------------------------------------------------------------------------------------------------------

def without_journal(path):
    "Make a store what schema 2 wrote."
    with sqlite3.connect(path) as c:
        c.execute('drop table journal')
        c.execute("update kernel_lab set value = '2' where key = 'schema'")
    c.close()


@pytest.mark.parametrize('name', ['react', 'beam'])
def test_a_run_of_an_older_lab_goes_on(quick, tmp_path, name):
    path = tmp_path/'runs.db'
    old = loop_of(walker(name), Store(path))
    for _ in range(3): old.step()
    old.edit(version(500))
    old.store.close()
    without_journal(path)
    shelf, asked, agent = Store(path), [], walker(name)
    agent.model = ByRequest(lambda r: asked.append(r) or (own_course if name == 'react' else mortal.beam_reply)(r))
    kept = shelf.load_run(old.run.id)
    assert len(kept.steps) == len(old.steps) and shelf.journal(kept.id) == []
    loop = AgentLoop(agent=agent, run=kept.id, store=shelf)
    if name == 'react': loop.edit(message='Mind the banks.')
    made = loop.step()
    assert made.index >= len(kept.steps) and [s.index for s in shelf.load_run(kept.id).steps] == list(range(len(loop.steps)))
    if name == 'react': assert 'Mind the banks.' in json.dumps(asked[0].messages)
    again, stood = AgentLoop(agent=agent, run=kept.id, store=shelf), len(loop.steps)
    assert again.step().index >= stood and len(again.rewind(1).branch.steps) == 2
    shelf.close()


DAMAGE = {'no JSON': '{', 'a list': '[]', 'nothing': '{}', 'null': 'null', 'another step': '{"step": 99, "steps": [99]}',
          'other types': json.dumps(dict(step='1', steps=3, text=7, ok='no', content='x', usage=[], value=1, request=1,
                                         edits='all', sent='x', tokens_in='1', tokens_out=None, cost_usd='1',
                                         most_usd='a lot', most_tokens=-1, model=1, stop=2))}


@pytest.fixture(scope='module')
def a_run(measured, tmp_path_factory):
    "The path of a store with a run that has every kind of entry, and its id."
    with pytest.MonkeyPatch.context() as patch:
        mortal.make_quick(measured, patch.setattr)
        path = tmp_path_factory.mktemp('damage')/'runs.db'
        shelf, broken = Store(path), [ChatError('overloaded')]
        agent = agent_for('react')
        agent.model = ByRequest(lambda r: react_reply(r) if not broken else (_ for _ in ()).throw(broken.pop()))
        loop = loop_of(agent, shelf)
        loop.step()
        with pytest.raises(ChatError): loop.step()
        loop.edit(message='Go on.')
        loop.step()
        loop.edit(version(66))
        loop.step()
        loop.rewind(2)
        loop.recording.append('note', '', {'text': 'A word.'}, loop.head)
        shelf.close()
    return path, loop.run.id


def damaged_copies(a_run, folder, part):
    "(path of a copy, what is damaged) for each kind of entry and each damage, and for rows that are gone: a sixth of them."
    path, run = a_run
    with sqlite3.connect(path) as c: rows = c.execute('select seq, kind from journal order by seq').fetchall()
    latest = {kind: seq for seq, kind in rows}
    assert set(latest) == {'kept', 'sent', 'reply', 'failed', 'tool', 'step', 'edit', 'heard', 'rewind', 'note'}
    changes = [(f'{kind}: {name}', 'update journal set body = ? where seq = ?', (body, seq))
               for kind, seq in latest.items() for name, body in DAMAGE.items()]
    changes += [(f'{kind}: {what}', f'update journal set {what} where seq = ?', (seq,)) for kind, seq in latest.items()
                for what in ("kind = 'nonsense'", 'prev = 999', 'prev = seq', 'prev = null', "key = ''", 'kind = null')]
    changes += [(f'{kind}: gone', 'delete from journal where seq = ?', (seq,)) for kind, seq in latest.items()]
    with sqlite3.connect(path) as c: whole = '\n'.join(c.iterdump())
    for n, (name, sql, values) in enumerate(changes[part::6]):
        with sqlite3.connect(folder/f'{n}.db') as c:
            c.executescript(whole)
            c.execute(sql, values)
        c.close()
        yield folder/f'{n}.db', name


@pytest.mark.parametrize('part', quick_first(range(6), 1))
def test_a_damaged_journal_ends_in_a_sentence(quick, a_run, tmp_path, part):
    told = []
    for path, name in damaged_copies(a_run, tmp_path, part):
        shelf = Store(path)
        try: finished(AgentLoop(agent=agent_for('react'), run=a_run[1], store=shelf))
        except SimulatorError as e: pytest.fail(f'{name}: {e}')
        except UsageError as e: told.append((name, str(e)))
        except Exception as e:                              # noqa: BLE001 (any other is a fault)
            pytest.fail(f'{name}: {type(e).__name__}: {e}')
        assert len(shelf.load_run(a_run[1]).steps) > 4
        shelf.close()
    assert len(told) > 6 and all('journal of run' in says or 'other prompts' in says for _, says in told)


@pytest.mark.parametrize('seed', quick_first(range(5), 1))
def test_a_damaged_file_ends_in_a_sentence(quick, a_run, tmp_path, seed):
    shelf = Store(a_run[0])
    to_file(Recording.load(shelf.load_run(a_run[1]), shelf), tmp_path/'run.json')
    whole = json.loads((tmp_path/'run.json').read_text())
    assert [e.kind for e in from_file(tmp_path/'run.json').entries] == [e['kind'] for e in whole['journal']]
    draw = random.Random(seed)
    for _ in range(40):
        parts = json.loads(json.dumps(whole))
        entry = draw.choice(parts['journal'])
        field = draw.choice([*entry, *(f'body.{k}' for k in entry['body'])])
        held = entry['body'] if field.startswith('body.') else entry
        held[field.removeprefix('body.')] = draw.choice([None, -1, 99, 'x', [], {}, [None], {'x': 1}, True, 1e300])
        (tmp_path/'bad.json').write_text(json.dumps(parts))
        try: list(replayed(from_file(tmp_path/'bad.json'), agent_for('react')))
        except UsageError: pass
        except Exception as e:                              # noqa: BLE001 (any other is a fault)
            pytest.fail(f'{entry["kind"]}.{field}: {type(e).__name__}: {e}')
    shelf.close()


# ---- money
# ------------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def odd_prices():
    "Prices of the table, and some whose sums are no floats → their names, ensembles among them."
    odd = {'odd': price(0.1, 0.3), 'thirds': price(0.333333, 1.111111), 'free': price(0, 0.000001),
           'long': price(0.1, 0.7, long_from=3_000, long=price(9.9, 33.3)), 'dear read': price(1, 2, read=3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prices, 'PRICES', PRICES | odd)
        yield [*PRICES, *odd, 'odd+long', 'thirds+claude-haiku-4-5']


class Market:
    "A model whose server charges what it likes within the request, ends as it likes, and keeps the exact bill."
    host = ''

    def __init__(self, draw, name):
        self.draw, self.name, self.bill = draw, name, []
        self.members = {n: (draw.choice([1, 2, 5]), draw.randrange(900)) for n in name.split('+')}

    def send(self, request, on_event=None):
        who = self.draw.choice(list(self.members))
        each, spare = self.members[who]
        prompt, used = request.size//each + spare, Usage()
        ended = self.draw.choice(['reply', 'reply', 'reply', 'failed', 'cut', 'failed for nothing'])
        for _ in range(self.draw.randint(1, request.attempts) if ended != 'failed for nothing' else 0):
            read = self.draw.randrange(prompt + 1)
            used += Usage(prompt - read, self.draw.choice([request.max_tokens, self.draw.randrange(request.max_tokens + 1)]),
                          *self.draw.choice([(read, 0), (0, read)]))
        self.bill.append((used, who))
        if ended == 'cut': raise KeyboardInterrupt
        if ended != 'reply': raise ChatError('overloaded', usage=used)
        return Reply(({'type': 'text', 'text': self.draw.choice('aé€')*self.draw.randrange(2_000)},), usage=used, model=who)


def conversation(draw, session, model, turns, name):
    "Requests that go on with each other, or not, whatever their end."
    messages = [{'role': 'user', 'content': 'Go.'}]
    for n in range(turns):
        request = Request('s', tuple(messages), (), draw.choice([900, 4_000, 16_000]), None, draw.randint(1, 3))
        try: reply = session.ask(model, request, f'{name}/{n}')
        except (ChatError, BudgetOver, KeyboardInterrupt): continue
        messages += [{'role': 'assistant', 'content': list(reply.content)}, {'role': 'user', 'content': 'x'*draw.randrange(900)}]
        if draw.random() < 0.2: messages = messages[:1]


@pytest.mark.sampled(40)
@pytest.mark.parametrize('part', range(40))
def test_never_over_through_sessions(odd_prices, part):
    sent = refused = 0
    for seed in range(25*part, 25*part + 25):
        draw = random.Random(seed)
        most, tokens = draw.choice([None, 10**draw.uniform(-4, 1)]), draw.choice([None, draw.randrange(1, 400_000)])
        limits, model = Budget(most, tokens), Market(draw, draw.choice(odd_prices))
        recording = Recording(Run('r', 'softmax', 'small', 'trn1', 'me', created=now()))
        for turn in range(3):                                                   # branches, and what a resume does
            s = Session(recording, SOFTMAX, SOFTMAX.workload('small'), draw.choice([None, recording.head]), budget=limits)
            conversation(draw, s, model, 4, f'turn {turn}')
        costs = [picodollars(u, who) for u, who in model.bill]
        paid = recording.spent
        if most is not None: assert sum(costs) <= Fraction(str(most))*PICO, seed
        if tokens is not None: assert sum(u.total for u, _ in model.bill) <= tokens, seed
        assert paid.tokens >= sum(u.total for u, _ in model.bill)
        assert (Fraction(paid.dollars) + Fraction(paid.open_dollars))*PICO >= sum(costs) - 1, seed
        sent, refused = sent + len(costs), refused + (12 - len(costs))
    assert sent > 50 and refused > 25
