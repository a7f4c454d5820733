"""The store under stress, in a file and on a server: writers at once, killed writers, damaged, locked, full and
foreign databases, and keys that must not get in."""
import json
import multiprocessing
import multiprocessing.forkserver
import os
import re
import resource
import signal
import sqlite3
import sys
import time
import traceback
from dataclasses import replace

import pytest
import servers

from kernel_lab.agents.engine.loop import AgentLoop, Proposal
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.store import store as module
from kernel_lab.evaluate.store import database as tables
from kernel_lab.evaluate.store.database import Database, put
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.evaluation import Evaluation
from kernel_lab.evaluate.records.run import Run, Step
from kernel_lab.evaluate.records.verification import SeedReport, Verification, now
from kernel_lab.evaluate.store.store import Store
from kernel_lab.evaluate.records.provenance import task_key, versions
from kernel_lab.nki.explain.profile import Profile
from kernel_lab.tasks.suite.registry import get_task
from kernel_lab.tasks.model.workload import Kernel, Tolerance

SOFTMAX = get_task('softmax')
ABOUT = dict(task='softmax', workload='small', chip='trn2', target='nki_sim')
ASKED = dict(**versions('trn2'), task=task_key(SOFTMAX), asked=task_key(SOFTMAX, SOFTMAX.workload('small')))


def a_run(id='r1', **kw):
    return Run(**{**dict(id=id, task='softmax', workload='small', chip='trn2', agent='rewrite', created=now()), **kw})


def an_evaluation(id='e1', source='def kernel(x): return x', us=None):
    "A wrong one, or a correct one that takes `us`."
    report = SeedReport(1, 0, 3.0, 1.0, 0.5, (0, 1), float('nan'), float('inf'), 1, None if us else (0, 1))
    grid = {'shape': (1, 2), 'tile': (128, 512), 'cell': (1, 1), 'first_bad': (0, 1), 'error': [[0.0, None]]}
    profile = us and Profile('trn2', us, {'DMA': 0.9}, 'DMA', 0, 0, 0, 0, 1.0, 100 / us, 1, 1, 1, 0, {})
    return Evaluation(id, kernel=Kernel(source, name=f'kernel of {id}'), status='correct' if us else 'not_finite',
                      profile=profile, created=now(), log='a log', versions=ASKED,
                      verification=Verification(bool(us), Tolerance(1e-5, 1e-5, 'a test'), (report,), grid), **ABOUT)


def a_step(run='r1', index=0, source='def kernel(x): return x', us=None, **kw):
    e = an_evaluation(f'{run}-{index}', source, us)
    return Step(run, index, f'move {index}', 'why', 'more', e, tool_calls=({'name': 'compile', 'n': 1},), tokens_in=5,
                cost_usd=0.25, created=now(), **kw)


@pytest.fixture(scope='session')
def server():
    if reason := servers.why_not(): pytest.skip(reason)
    s = servers.Server()
    yield s
    s.close()


@pytest.fixture(params=['sqlite', 'postgresql'])
def place(request, tmp_path):
    "A path, or the URL of an empty database."
    return tmp_path / 'lab.sqlite3' if request.param == 'sqlite' else request.getfixturevalue('server').database()


@pytest.fixture
def store(place):
    s = Store(place)
    yield s
    s.close()


@pytest.fixture
def file(tmp_path):
    s = Store(tmp_path / 'lab.sqlite3')
    yield s
    s.close()


def count(store, table):
    with store._read() as c: return c.exec_driver_sql(f'select count(*) from {table}').scalar()


# --- what goes in comes out, on both ---

def test_round_trip(store):
    run = a_run(steps=(a_step(), a_step(index=1, us=5.0)), config={'turns': 3}, state='interrupted')
    store.save_run(run)
    assert store.load_run('r1').to_dict() == run.to_dict()
    assert [r.id for r in store.runs()] == ['r1']


def test_a_step_is_there_for_others_at_once(store, place):
    store.save_run(a_run())
    store.save_step(a_step())
    other = Store(place)
    assert len(other.load_run('r1').steps) == 1
    other.close()


def test_a_kernel_is_kept_once(store):
    store.save_run(a_run(steps=tuple(a_step(index=k, source='same') for k in range(5))))
    with store._read() as c:
        assert c.exec_driver_sql('select count(*), max(length(source)) from kernels').one() == (1, 4)
    assert [s.evaluation.kernel.name for s in store.load_run('r1').steps] == [f'kernel of r1-{k}' for k in range(5)]


def test_the_same_evaluation_in_two_steps(store):
    "A kernel that was tried before is not evaluated again: both steps hold the same evaluation."
    first = a_step()
    store.save_run(a_run(steps=(first, replace(first, index=1, why='Already tried.'))))
    a, b = store.load_run('r1').steps
    assert a.evaluation.to_dict() == b.evaluation.to_dict() and b.why == 'Already tried.'


def test_two_go_on_with_the_same_run(store):
    "The second hears of it, nothing of the first is lost, and after a look the second goes on."
    start = AgentLoop(SOFTMAX, None, 'small', store=store, seeds=1)
    start.step()
    one, two = (AgentLoop(SOFTMAX, run=start.run.id, store=store, seeds=1) for _ in range(2))
    one.edit('def one(x: return')
    with pytest.raises(UsageError, match='somebody else went on'): two.edit('def two(x: return')
    assert [s.evaluation.kernel.source for s in store.load_run(start.run.id).steps][1:] == ['def one(x: return']
    AgentLoop(SOFTMAX, run=start.run.id, store=store, seeds=1).edit('def two(x: return')
    assert len(store.load_run(start.run.id).steps) == 3


def test_interrupted_in_the_middle(store, monkeypatch):
    "Ctrl-C between two tables: nothing of the step is there, and everything before it is."
    store.save_run(a_run(steps=(a_step(),)))
    def stop(connection, table, row, replace=False):
        if table is module.STEPS: raise KeyboardInterrupt
        return put(connection, table, row, replace)
    monkeypatch.setattr(module, 'put', stop)
    with pytest.raises(KeyboardInterrupt): store.save_step(a_step(index=1, source='half'))
    monkeypatch.undo()
    assert len(store.load_run('r1').steps) == 1
    with store._read() as c:
        assert c.exec_driver_sql("select count(*) from kernels where source = 'half'").scalar() == 0
    store.save_step(a_step(index=1))
    assert len(store.load_run('r1').steps) == 2


def test_every_row_says_who_wrote_it(store):
    e = evaluate(SOFTMAX.first_kernel, SOFTMAX, 'small', seeds=1, store=store)
    store.save_run(a_run(steps=(a_step(us=9.0), a_step(index=1, source='b', us=5.0))))
    mine = versions('trn2')
    for table in ('tasks', 'kernels', 'programs', 'evaluations', 'runs', 'steps', 'experiences'):
        columns = 'lab, machine' + (', chip_record' if table not in ('tasks', 'kernels') else '')
        with store._read() as c: rows = c.exec_driver_sql(f'select {columns} from {table}').all()
        assert rows and all(tuple(r) == tuple(mine[k] for k in columns.split(', ')) for r in rows), table
    assert store.program(e).hash == e.profile.timeline.program.hash


def test_kernels_have_parents_and_makers(store):
    first, second = a_step(us=9.0), a_step(index=1, source='b', us=5.0)
    store.save_run(a_run(steps=(first, replace(second, parent=first.evaluation.kernel.hash))))
    with store._read() as c: rows = c.exec_driver_sql('select hash, parent, maker from kernels order by maker').all()
    assert [tuple(r)
            for r in rows] == [(first.evaluation.kernel.hash, None, 'rewrite: move 0'),
                               (second.evaluation.kernel.hash, first.evaluation.kernel.hash, 'rewrite: move 1')]


def test_a_gain_becomes_an_experience(store):
    store.save_run(
        a_run(steps=tuple(a_step(index=k, source=f'# {k}', us=us) for k, us in enumerate((9.0, None, 5.0, 7.0, 4.0)))))
    assert [(x.step, x.slow.source, x.fast.source) for x in store.experiences('softmax')] == [(2, '# 0', '# 2'),
                                                                                              (4, '# 2', '# 4')]
    assert 'DMA busy 90 %' in store.experiences()[0].lesson


def test_unknown_run_lists_runs(store):
    store.save_run(a_run('abcdef'))
    with pytest.raises(UsageError, match="Did you mean 'abcdef'"): store.load_run('abcdeg')
    with pytest.raises(UsageError, match='There is no run'): store.save_step(a_step('nope'))


def test_odd_letters(store):
    odd = 'a\0b \ud83d é 漢 \U0001f600 \u2028'
    step = a_step(prompt=odd, thought=odd)
    step = replace(
        step, evaluation=replace(step.evaluation, log=odd, error={'message': odd, 'kind': 'trace'},
                                 kernel=Kernel('x = "a\0é漢"')))
    store.save_run(a_run(steps=(step,), config={odd: odd}))
    back = store.load_run('r1').steps[0]
    assert back.prompt.endswith('é 漢 \U0001f600 \u2028') and back.evaluation.kernel.source == 'x = "a␀é漢"'


@pytest.mark.sampled(2)
def test_rows_and_traces_of_all(store, tmp_path):
    "What is exported from a server is what is exported from a file."
    import pandas
    from kernel_lab.evaluate.store.export import COLUMNS, kept_evaluations, rows, write_parquet, write_traces
    store.save_run(a_run(steps=tuple(a_step(index=k, source=f'# {k}', us=us) for k, us in enumerate((9.0, None, 5.0)))))
    store.save_run(a_run('r2', steps=(a_step('r2', us=3.0),)))
    store.save_evaluation(replace(an_evaluation('alone', us=2.0), baseline_us=9.0), SOFTMAX)
    assert write_parquet(rows(store), tmp_path / 'x.parquet', batch=2) == 5
    frame = pandas.read_parquet(tmp_path / 'x.parquet').sort_values(['run', 'step'])
    assert frame.evaluation.tolist() == ['r1-0', 'r1-1', 'r1-2', 'r2-0', 'alone'] and list(frame) == list(COLUMNS)
    assert frame.latency_us.dropna().tolist() == [9.0, 5.0, 3.0, 2.0
                                                  ] and frame.lab.nunique() == 1 and frame.max_rel.isna().sum() == 0
    assert [r['step'] for r in rows(store, ['r1'])] == [0, 1, 2]
    files, left = write_traces(kept_evaluations(store), tmp_path / 'traces', get_task)
    assert {name for name, why in left if 'not compared' in why} == {'r1-0', 'r1-2', 'r2-0'} == {
        name for name, _ in left}
    assert sum(len(p.read_text().splitlines()) for p in (tmp_path / 'traces' / 'traces').rglob('*.jsonl')) == 2


# --- known again ---

def test_a_known_evaluation_is_not_made_again(store):
    one = evaluate(SOFTMAX.first_kernel, SOFTMAX, 'small', seeds=1, store=store)
    two = evaluate(SOFTMAX.first_kernel, SOFTMAX, 'small', seeds=1, store=store)
    assert (one.cached, two.cached, two.id) == (False, True, one.id) and two.log.startswith('known since') and count(
        store, 'evaluations') == 1
    assert two.profile == one.profile and two.verification == one.verification


def test_the_moments_fault_is_not_kept_for_an_answer(store, monkeypatch):
    from kernel_lab.evaluate import pipeline
    monkeypatch.setattr(pipeline, 'verify_stage', lambda *a: 1 / 0)
    bad = evaluate(SOFTMAX.first_kernel, SOFTMAX, 'small', seeds=1, store=store)
    monkeypatch.undo()
    good = evaluate(SOFTMAX.first_kernel, SOFTMAX, 'small', seeds=1, store=store)
    assert (bad.status, good.status, good.cached, count(store, 'evaluations')) == ('lab_error', 'correct', False, 2)


def test_another_lab_does_not_know(store, monkeypatch):
    from kernel_lab.evaluate.store import rows as kept
    store.save_evaluation(an_evaluation(us=5.0))
    ask = lambda: store.known(Kernel('def kernel(x): return x'), SOFTMAX, 'small')
    assert ask().cached
    monkeypatch.setattr(kept, 'lab_key_for', lambda *a: 'another')
    assert ask() is None
    monkeypatch.undo()
    monkeypatch.setattr(kept, 'chip_key', lambda *a: 'another')
    assert ask() is None


def test_limits_of_the_person(store):
    from kernel_lab.evaluate.sandbox.run import Limits
    tight, loose = Limits(instructions=1), Limits()
    status = lambda limits: [
        (e.status, e.cached)
        for e in [evaluate(SOFTMAX.first_kernel, SOFTMAX, 'small', seeds=1, limits=limits, store=store)]][0]
    assert [status(x) for x in (tight, tight, loose, loose)] == [('limit_exceeded', False), ('limit_exceeded', True),
                                                                 ('correct', False), ('correct', True)]


def test_a_loop_asks_the_store(store):
    class Remark:
        name = 'remark'
        def propose(self, run, task, workload):
            return Proposal(replace(task.first_kernel, source=task.first_kernel.source +
                                    '\n# one\n'), 'one', '', '') if len(run.steps) == 1 else None
    first, second = (list(AgentLoop(SOFTMAX, Remark(), 'small', store=store, seeds=1)) for _ in range(2))
    assert [s.evaluation.cached for s in first + second] == [False, False, True, True]
    assert [s.evaluation.id for s in second] == [s.evaluation.id for s in first]
    assert first[1].parent == first[0].evaluation.kernel.hash and count(store, 'runs') == 2


# --- processes of their own: forked from one that has imported this file, so each costs little ---

MP = multiprocessing.get_context('forkserver')


def nursery():
    "Start the process that the others are forked from, once, where it finds this file."
    MP.set_forkserver_preload(['test_store'])
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    try: multiprocessing.forkserver.ensure_running()
    finally: os.environ.pop('PYTHONPATH') if before is None else os.environ.update(PYTHONPATH=before)


def child(f, *args):
    "A process that runs `f(say, *args)`, and the pipe on which it says things."
    nursery()
    hear, say = MP.Pipe(duplex=False)
    process = MP.Process(target=f, args=(say, *args), daemon=True)
    process.start()
    say.close()
    return process, hear


def told(hear):
    "All that a process that ended has said."
    found = []
    while True:
        try: found.append(hear.recv())
        except (EOFError, OSError): return found


def hold(say, place):
    Store(place).save_run(a_run())
    say.send('saved')
    time.sleep(600)


def test_a_run_whose_process_is_gone_was_interrupted(store, place):
    process, hear = child(hold, place)
    assert hear.recv() == 'saved'
    assert [store.load_run('r1').state, store.overview()[0]['state'], store.runs()[0].state] == ['running'] * 3
    process.kill(); process.join()
    assert [store.load_run('r1').state, store.overview()[0]['state'], store.latest().state] == ['interrupted'] * 3
    store.save_run(a_run())
    assert store.load_run('r1').state == 'running'


def write(say, place, name, n, first=0):
    store = Store(place)
    if not first: store.save_run(a_run(name))
    for k in range(first, n):
        store.save_step(a_step(name, k, source=f'{name} {k} ' + 'x' * 3000))
        say.send(k)


def test_processes_write_at_once(place):
    "From the very first moment, when neither file nor tables exist."
    writers = [child(write, place, f'w{k}', 40) for k in range(3)]
    assert [len(told(hear)) for _, hear in writers] == [40] * 3
    for process, _ in writers: process.join()
    store = Store(place)
    for k in range(3): assert [s.index for s in store.load_run(f'w{k}').steps] == list(range(40))
    assert count(store, 'evaluations') == 120
    store.close()


def test_killed_while_writing(place):
    "Several times: what the writer reported as saved is saved, all is whole, and the next writer goes on."
    Store(place).save_run(a_run('w'))
    store, saved = Store(place), 0
    for turn in range(8):
        process, hear = child(write, place, 'w', 10_000, saved or 0)
        heard = [hear.recv() for _ in range(4)]
        time.sleep(0.0007 * turn)                                     # at another point of a write each time
        process.kill()
        heard += told(hear)
        process.join()
        steps = [s.index for s in store.load_run('w').steps]
        assert process.exitcode == -signal.SIGKILL and steps == list(range(len(steps)))
        assert heard[-1] + 1 <= len(steps) <= heard[-1] + 2, 'more was lost than the one in flight'
        saved = len(steps)
        if store.engine.dialect.name == 'sqlite':
            with store._read() as c: assert c.exec_driver_sql('pragma integrity_check').scalar() == 'ok'
    assert count(store, 'steps') == count(store, 'evaluations') == count(store, 'kernels') == saved
    store.close()


# --- no secret gets out ---

def test_no_key_gets_in(file, monkeypatch, tmp_path):
    key = 'sk-ant-0123456789-abcdef'
    monkeypatch.setenv('ANTHROPIC_API_KEY', key)
    step = a_step(source=f'key = "{key}"', prompt=f'my key is {key}', thought=key)
    step = replace(step, evaluation=replace(step.evaluation, log=key, error={'message': key, 'kind': 'trace'}),
                   tool_calls=({'input': key},))
    file.save_run(a_run(steps=(step,), config={'key': key}, agent=f'agent {key}'))
    assert not any(key.encode() in p.read_bytes() for p in tmp_path.iterdir())
    file.close()
    assert not any(key.encode() in p.read_bytes() for p in tmp_path.iterdir())
    assert '[ANTHROPIC_API_KEY]' in file.load_run('r1').steps[0].prompt


LOGIN = 'ses' + 'ame%40house'


def test_no_password_gets_out(server):
    """Of the URL of a store: not into rows, not into messages, not into what Python prints of an error, also of a
    server that is not there."""
    url = server.database().replace('lab@', f'lab:{LOGIN}@')
    for spelling in (url, url.replace(f':{LOGIN}', '') + f'&password={LOGIN}'):
        store = Store(spelling)
        store.save_run(a_run(steps=(a_step(prompt=f'I see {url}', thought=url),), config={'store': url}))
        with store._read() as c: rows = [str(r) for t in tables._meta.sorted_tables for r in c.execute(t.select())]
        said = [repr(store), str(store.path), str(store.engine.url), *rows]
        with pytest.raises(UsageError) as e: store.load_run('nope')
        said.append(''.join(traceback.format_exception(e.value)))
        with pytest.raises(UsageError) as e:
            with store._write() as c: c.exec_driver_sql('select * from nothing')
        said.append(''.join(traceback.format_exception(e.value)))
        store.close()
        assert rows and not [s for s in said if 'ses' + 'ame' in s]
    for bad in (f'postgresql://lab:{LOGIN}@/nowhere?host={server.folder}', f'postgresql://lab:{LOGIN}@127.0.0.1:9/lab',
                f'postgresql://lab:{LOGIN}@h:port/lab', f'mysql://lab:{LOGIN}@h/x'):
        with pytest.raises(UsageError) as e: Store(bad, wait=1)
        assert e.value.hint and 'ses' + 'ame' not in ''.join(traceback.format_exception(e.value)), bad


# --- databases in trouble ---

def refused(*args, **kw):
    with pytest.raises(UsageError) as e: Store(*args, **kw).save_run(a_run())
    assert e.value.hint, 'it does not say what to do'
    return str(e.value)


def test_a_newer_store(store, place):
    with store._write() as c:
        put(c, tables.META, {'key': 'schema', 'value': str(tables.SCHEMA_VERSION + 1)}, replace=True)
    assert f'newer lab (schema {tables.SCHEMA_VERSION + 1}' in refused(place)
    assert count(store, 'runs') == 0


def test_a_database_of_something_else(place):
    other = Database(place)
    with other._write() as c: c.exec_driver_sql('create table runs (colour text)')
    assert 'another program' in refused(place)
    with other._read() as c: assert module.sa.inspect(c).get_table_names() == ['runs']
    other.close()


def test_a_server_that_ends_and_comes_back(server):
    "What was saved is there, what could not be saved is said in words, and the same store goes on."
    store = Store(server.database())
    store.save_run(a_run())
    store.save_step(a_step())
    server.end(signal.SIGQUIT)
    with pytest.raises(UsageError, match='cannot be reached') as e: store.save_step(a_step(index=1))
    assert 'server runs' in str(e.value)
    server.start()
    store.save_step(a_step(index=1))
    assert len(store.load_run('r1').steps) == 2
    store.close()


def test_a_driver_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, 'psycopg', None)
    with pytest.raises(UsageError, match='needs the package psycopg') as e: Store('postgresql://lab@127.0.0.1/lab')
    assert 'kernel-lab[postgres]' in str(e.value)


def test_a_file_of_something_else(tmp_path):
    (tmp_path / 'x').write_bytes(b'not a database at all' * 100)
    assert 'is not a store' in refused(tmp_path / 'x')
    assert (tmp_path / 'x').read_bytes().startswith(b'not a database')


def test_a_damaged_file(file, tmp_path):
    file.save_run(a_run(steps=tuple(a_step(index=k, source=f'{k}' * 2000) for k in range(50))))
    with file.engine.begin() as c: c.exec_driver_sql('pragma user_version = 1')
    file.close()
    data = bytearray(file.path.read_bytes())
    data[4096:] = b'\xff' * (len(data) - 4096)
    file.path.write_bytes(data)
    for extra in tmp_path.glob('*-wal'): extra.unlink()
    with pytest.raises(UsageError, match='damaged') as e: Store(file.path).runs()
    assert 'Move it away' in str(e.value)
    assert file.path.read_bytes() == data


def test_a_locked_file(file):
    other = sqlite3.connect(file.path)
    other.execute('begin exclusive')
    since = time.monotonic()
    assert 'in use by another program' in refused(file.path, wait=0.2)
    assert time.monotonic() - since < 10
    other.rollback(); other.close()
    file.save_run(a_run())


def test_a_readonly_file(file):
    file.close()
    assert 'may not be written' in refused(f'sqlite:///file:{file.path}?mode=ro&uri=true')


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / 'file').write_text('')
    assert 'cannot be made' in refused(tmp_path / 'file' / 'lab.sqlite3')
    assert 'is a folder; a store is a file' in refused(tmp_path)


def test_a_full_disk_and_a_run_that_goes_on(file):
    "A loop whose store cannot grow says so; with space again it goes on, and no step is lost."
    class Remarks:
        name = 'remarks'
        def propose(self, run, task, workload):
            source = f'{task.first_kernel.source}\n# {len(run.steps)} {os.urandom(20_000).hex()}\n'
            return Proposal(replace(task.first_kernel, source=source), 'a long remark', '', '')
    loop = AgentLoop(SOFTMAX, Remarks(), 'small', store=file, max_steps=3, seeds=1)
    loop.step()
    safe = file.load_run(loop.run.id).to_dict()
    with file._read() as c: pages = c.exec_driver_sql('pragma page_count').scalar()
    limit = lambda n: [
        file.engine.dispose(),
        module.sa.event.listen(file.engine, 'connect', lambda c, r: c.execute(f'pragma max_page_count = {n}'))]
    limit(pages + 2)
    with pytest.raises(UsageError, match='disk is full') as e: loop.step()
    assert 'safe' in str(e.value) and file.load_run(loop.run.id).to_dict() == {**safe, 'state': loop.run.state}
    limit(1 << 30)
    rest = list(loop)
    assert loop.run.state == 'finished' and len(rest) == 3
    assert [s.index for s in file.load_run(loop.run.id).steps] == [0, 1, 2, 3]


def fill(say, place, quota):
    store = Store(place)
    resource.setrlimit(resource.RLIMIT_FSIZE, (quota, quota))
    try:
        for k in range(1, 10_000):
            store.save_step(a_step(index=k, source=f'{k} ' + 'x' * 20_000))
            say.send(k)
    except UsageError as e: say.send(str(e))


def test_a_quota_that_is_used_up(file):
    """The system refuses to write more, in a process of its own: all that was reported is there, and another process
    goes on."""
    file.save_run(a_run(steps=(a_step(),)))
    *kept, last = told(child(fill, file.path, 1 << 20)[1])
    assert re.search('cannot be read or written|disk is full', last) and 'safe' in last and len(kept) > 3
    steps = [s.index for s in file.load_run('r1').steps]
    assert steps[:len(kept) + 1] == list(range(len(kept) + 1)) and len(steps) <= len(kept) + 2
    with file._read() as c: assert c.exec_driver_sql('pragma integrity_check').scalar() == 'ok'
    file.save_step(a_step(index=len(steps)))


# --- an older store ---

# What the first lab executed, as it stood then; never to be edited.
FIRST = ['CREATE TABLE kernel_lab (key TEXT NOT NULL, value TEXT, PRIMARY KEY (key))',
    'CREATE TABLE kernels (hash TEXT NOT NULL, source TEXT, entry TEXT, target TEXT, created TEXT, PRIMARY KEY (hash))',
    'CREATE TABLE runs (id TEXT NOT NULL, task TEXT, workload TEXT, chip TEXT, agent TEXT, state TEXT, config TEXT, '
    'created TEXT, saved FLOAT, PRIMARY KEY (id))',
    'CREATE TABLE evaluations (id TEXT NOT NULL, kernel TEXT NOT NULL, task TEXT, workload TEXT, chip TEXT, target '
    'TEXT, status TEXT, latency_us FLOAT, body TEXT, '
    'tile_map TEXT, created TEXT, PRIMARY KEY (id), FOREIGN KEY(kernel) REFERENCES kernels (hash))',
    'CREATE TABLE steps (run TEXT NOT NULL, number INTEGER NOT NULL, evaluation TEXT NOT NULL, body TEXT, created '
    'TEXT, PRIMARY KEY (run, number), '
    'FOREIGN KEY(run) REFERENCES runs (id), FOREIGN KEY(evaluation) REFERENCES evaluations (id))']


def first_store(place, run):
    "A run in a store of the first version, its rows as that lab wrote them."
    old = Database(place)
    with old._write() as c:
        for statement in FIRST: c.exec_driver_sql(statement)
        add = lambda table, **row: c.execute(
            module.sa.text(f'insert into {table} ({", ".join(row)}) values ({", ".join(":" + k for k in row)})'), row)
        add('kernel_lab', key='schema', value='1')
        add('runs', saved=time.time(), config=json.dumps(run.config),
            **{k: getattr(run, k) for k in ('id', 'task', 'workload', 'chip', 'agent', 'state', 'created')})
        for s in run.steps:
            e, body = s.evaluation, s.evaluation.to_dict()
            grid = body['verification'].pop('tile_map')
            del body['cached']
            add('kernels', hash=e.kernel.hash, source=e.kernel.source, entry=None, target='nki', created=e.created)
            add('evaluations', id=e.id, kernel=e.kernel.hash, status=str(e.status), latency_us=e.latency_us,
                body=json.dumps({**body, 'kernel': {'name': e.kernel.name}
                                 }), tile_map=json.dumps(grid), created=e.created, **ABOUT)
            step = {k: v for k, v in s.to_dict().items() if k not in ('run', 'index', 'evaluation', 'parent')}
            add('steps', run=s.run, number=s.index, evaluation=e.id, body=json.dumps(step), created=s.created)
    old.close()


def old_step(index, source, us, **kw):
    step = a_step(index=index, source=source, us=us)
    return replace(
        step, evaluation=replace(step.evaluation, versions={'kernel_lab': '0.1.0', 'machine': 'Linux x86_64'}, **kw))


OLD = a_run(state='finished', steps=(old_step(0, 'a', 8.0, baseline_us=16.0, eager_us=12.0), old_step(1, 'b', None)))


def schema(database):
    with database._read() as c:
        look = module.sa.inspect(c)
        return {
            t: ({k['name']: (k['type'].python_type, k['nullable'])
                 for k in look.get_columns(t)}, sorted(k['constrained_columns']
                                                       for k in look.get_foreign_keys(t)),
                sorted(k['name']
                       for k in look.get_indexes(t)))
            for t in look.get_table_names()}


def test_an_older_store_is_brought_up(place, tmp_path):
    first_store(place, OLD)
    store, fresh = Store(place), Store(tmp_path / 'fresh.sqlite3')
    assert store.load_run('r1').to_dict() == OLD.to_dict() and schema(store) == schema(fresh)
    assert [store.overview()[0][k] for k in ('steps', 'best_us', 'over_first', 'over_eager')] == [2, 8.0, 2.0, 1.5]
    assert store.known(OLD.steps[0].evaluation.kernel, SOFTMAX, 'small') is None, 'nobody knows by which lab'
    store.save_step(a_step(index=2, source='c', us=4.0))
    assert [len(Store(place).load_run('r1').steps), len(store.experiences())] == [3, 0]
    store.close(); fresh.close()


def test_an_interrupted_upgrade_changes_nothing(place, monkeypatch):
    first_store(place, OLD)
    old, last = Database(place), len(tables.MIGRATIONS[1]) - 1
    before = schema(old)
    def stop(connection): raise KeyboardInterrupt
    for cut in (1, last // 2, last):
        monkeypatch.setattr(tables, 'MIGRATIONS', {1: [*tables.MIGRATIONS[1][:cut], stop]})
        with pytest.raises(KeyboardInterrupt): Store(place)
        monkeypatch.undo()
        assert schema(old) == before and count(old, 'steps') == 2
    assert Store(place).load_run('r1').to_dict() == OLD.to_dict()
    old.close()


def die(connection): os.kill(os.getpid(), signal.SIGKILL)


def upgrade_and_die(say, place):
    tables.MIGRATIONS[1].append(die)
    Store(place)


def test_a_killed_upgrade_changes_nothing(place):
    first_store(place, OLD)
    old = Database(place)
    before = schema(old)
    process, _ = child(upgrade_and_die, place)
    process.join()
    assert process.exitcode == -signal.SIGKILL and schema(old) == before
    assert Store(place).load_run('r1').to_dict() == OLD.to_dict()
    old.close()


def test_the_home(monkeypatch, tmp_path):
    monkeypatch.delenv('KERNEL_LAB_STORE', raising=False)
    monkeypatch.setenv('KERNEL_LAB_HOME', str(tmp_path / 'a' / 'b'))
    assert Store().path == tmp_path / 'a' / 'b' / 'lab.sqlite3'
    monkeypatch.setenv('KERNEL_LAB_STORE', str(tmp_path / 'c.sqlite3'))
    assert Store().path == tmp_path / 'c.sqlite3'
