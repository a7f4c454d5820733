"""The store under stress: two writers, a killed writer, damaged, locked and foreign files, and keys that must not get in."""
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from kernel_lab.errors import UsageError
from kernel_lab.evaluate import store as module
from kernel_lab.evaluate.records import Evaluation, Run, SeedReport, Step, Verification, now
from kernel_lab.evaluate.store import Store
from kernel_lab.tasks.task import Kernel, Tolerance

ABOUT = dict(task='softmax', workload='small', chip='trn1', target='nki_sim')


def a_run(id='r1', **kw): return Run(**{**dict(id=id, task='softmax', workload='small', chip='trn1', agent='rewrite', created=now()), **kw})


def a_step(run='r1', index=0, source='def kernel(x): return x', **kw):
    report = SeedReport(1, 0, 3.0, 1.0, 0.5, (0, 1), float('nan'), float('inf'), 1, (0, 1))
    grid = {'shape': (1, 2), 'tile': (128, 512), 'cell': (1, 1), 'first_bad': (0, 1), 'error': [[0.0, None]]}
    wrong = Verification(False, Tolerance(1e-5, 1e-5, 'a test'), (report,), grid)
    e = Evaluation(f'{run}-{index}', kernel=Kernel(source, name=f'step {index}'), status='not_finite', verification=wrong, created=now(), log='a log', **ABOUT)
    return Step(run, index, f'move {index}', 'why', 'more', e, tool_calls=({'name': 'compile', 'n': 1},), tokens_in=5, cost_usd=0.25, created=now(), **kw)


@pytest.fixture
def store(tmp_path):
    s = Store(tmp_path / 'lab.sqlite3')
    yield s
    s.close()


def test_round_trip(store):
    run = a_run(steps=(a_step(), a_step(index=1)), config={'turns': 3}, state='interrupted')
    store.save_run(run)
    assert store.load_run('r1').to_dict() == run.to_dict()
    assert [r.id for r in store.runs()] == ['r1']


def test_a_step_is_there_for_others_at_once(store):
    store.save_run(a_run())
    store.save_step(a_step())
    assert len(Store(store.path).load_run('r1').steps) == 1


def test_a_kernel_is_kept_once(store):
    store.save_run(a_run(steps=tuple(a_step(index=k, source='same') for k in range(5))))
    with store._read() as c: assert c.exec_driver_sql('select count(*), max(length(source)) from kernels').one() == (1, 4)
    assert [s.evaluation.kernel.name for s in store.load_run('r1').steps] == [f'step {k}' for k in range(5)]


def test_the_same_evaluation_in_two_steps(store):
    "A kernel that was tried before is not evaluated again: both steps hold the same evaluation."
    first = a_step()
    store.save_run(a_run(steps=(first, replace(first, index=1, why='Already tried.'))))
    a, b = store.load_run('r1').steps
    assert a.evaluation.to_dict() == b.evaluation.to_dict() and b.why == 'Already tried.'


def test_interrupted_in_the_middle(store, monkeypatch):
    "Ctrl-C between two tables: nothing of the step is there, and everything before it is."
    store.save_run(a_run(steps=(a_step(),)))
    put = module._put
    def stop(connection, table, row, replace=False):
        if table is module.STEPS: raise KeyboardInterrupt
        put(connection, table, row, replace)
    monkeypatch.setattr(module, '_put', stop)
    with pytest.raises(KeyboardInterrupt): store.save_step(a_step(index=1, source='half'))
    monkeypatch.undo()
    assert len(store.load_run('r1').steps) == 1
    with store._read() as c: assert c.exec_driver_sql("select count(*) from kernels where source = 'half'").scalar() == 0
    store.save_step(a_step(index=1))
    assert len(store.load_run('r1').steps) == 2


WRITER = f'''
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_store import Store, a_run, a_step
name, n = sys.argv[2], int(sys.argv[3])
store = Store(sys.argv[1])
store.save_run(a_run(name))
for k in range(n):
    store.save_step(a_step(name, k, source=f'{{name}} {{k}}'))
    print(k, flush=True)
'''


def writer(path, name, n): return subprocess.Popen([sys.executable, '-c', WRITER, str(path), name, str(n)], stdout=subprocess.PIPE, text=True)


def test_two_processes_write_at_once(tmp_path):
    "From the very first moment, when neither file nor tables exist."
    path = tmp_path / 'lab.sqlite3'
    writers = [writer(path, f'w{k}', 25) for k in range(2)]
    assert [w.communicate(timeout=120) and w.returncode for w in writers] == [0, 0]
    for k in range(2): assert [s.index for s in Store(path).load_run(f'w{k}').steps] == list(range(25))


def test_killed_while_writing(tmp_path):
    "What the writer reported as saved is saved; the file is whole; the next writer goes on."
    path = tmp_path / 'lab.sqlite3'
    w = writer(path, 'w', 10_000)
    told = [int(w.stdout.readline()) for _ in range(20)]
    w.send_signal(signal.SIGKILL)
    told += [int(line) for line in w.stdout.read().split()]
    w.wait(); w.stdout.close()
    store = Store(path)
    steps = store.load_run('w').steps
    assert len(told) <= len(steps) <= len(told) + 1 and [s.index for s in steps] == list(range(len(steps)))
    with store._read() as c: assert c.exec_driver_sql('pragma integrity_check').scalar() == 'ok'
    store.save_step(a_step('w', len(steps)))


def test_no_key_gets_in(store, monkeypatch, tmp_path):
    key = 'sk-ant-0123456789-abcdef'
    monkeypatch.setenv('ANTHROPIC_API_KEY', key)
    step = a_step(source=f'key = "{key}"', prompt=f'my key is {key}', thought=key)
    step = replace(step, evaluation=replace(step.evaluation, log=key, error={'message': key, 'kind': 'trace'}), tool_calls=({'input': key},))
    store.save_run(a_run(steps=(step,), config={'key': key}, agent=f'agent {key}'))
    assert not any(key.encode() in p.read_bytes() for p in tmp_path.iterdir())
    store.close()
    assert not any(key.encode() in p.read_bytes() for p in tmp_path.iterdir())
    assert '[ANTHROPIC_API_KEY]' in store.load_run('r1').steps[0].prompt


def refused(*args, **kw):
    with pytest.raises(UsageError) as e: Store(*args, **kw).save_run(a_run())
    assert e.value.hint, 'it does not say what to do'
    return str(e.value)


def test_a_file_of_something_else(tmp_path):
    (tmp_path / 'x').write_bytes(b'not a database at all' * 100)
    assert 'is not a store' in refused(tmp_path / 'x')
    assert (tmp_path / 'x').read_bytes().startswith(b'not a database')


def test_a_database_of_something_else(tmp_path):
    with sqlite3.connect(tmp_path / 'x') as c: c.execute('create table runs (colour text)')
    c.close()
    assert 'another program' in refused(tmp_path / 'x')
    with sqlite3.connect(tmp_path / 'x') as c: assert len(c.execute('select * from sqlite_master').fetchall()) == 1
    c.close()


def test_a_damaged_file(store, tmp_path):
    store.save_run(a_run(steps=tuple(a_step(index=k, source=f'{k}' * 2000) for k in range(50))))
    with store.engine.begin() as c: c.exec_driver_sql('pragma user_version = 1')
    store.close()
    data = bytearray(store.path.read_bytes())
    data[4096:] = b'\xff' * (len(data) - 4096)
    store.path.write_bytes(data)
    for extra in tmp_path.glob('*-wal'): extra.unlink()
    with pytest.raises(UsageError, match='damaged') as e: Store(store.path).runs()
    assert 'Move it away' in str(e.value)


def test_a_locked_file(store):
    other = sqlite3.connect(store.path)
    other.execute('begin exclusive')
    since = time.monotonic()
    assert 'in use by another program' in refused(store.path, wait=0.2)
    assert time.monotonic() - since < 10
    other.rollback(); other.close()
    store.save_run(a_run())


def test_a_readonly_file(store):
    store.close()
    assert 'may not be written' in refused(f'sqlite:///file:{store.path}?mode=ro&uri=true')


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / 'file').write_text('')
    assert 'cannot be made' in refused(tmp_path / 'file' / 'lab.sqlite3')
    assert 'cannot be opened' in refused(tmp_path)


def test_a_full_disk(store):
    store.save_run(a_run())
    with pytest.raises(UsageError, match='disk is full') as e:
        with store._write() as c:
            c.exec_driver_sql('pragma max_page_count = 1')
            for k in range(100): module._save_step(c, a_step(index=k, source=os.urandom(4000).hex()))
    assert 'safe' in str(e.value)
    assert store.load_run('r1').steps == ()


def test_a_newer_store(store):
    with store._write() as c: module._put(c, module.META, {'key': 'schema', 'value': '2'}, replace=True)
    assert 'newer lab (schema 2' in refused(store.path)


def test_an_older_store_is_brought_up(store, monkeypatch):
    store.save_run(a_run())
    monkeypatch.setattr(module, 'SCHEMA', 2)
    monkeypatch.setattr(module, 'MIGRATIONS', {1: ['alter table runs add column note text', "update runs set note = 'old'"]})
    new = Store(store.path)
    with new._read() as c: assert c.exec_driver_sql("select note, (select value from kernel_lab where key = 'schema') from runs").one() == ('old', '2')
    assert Store(store.path).load_run('r1').id == 'r1'


def test_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv('KERNEL_LAB_HOME', str(tmp_path / 'a' / 'b'))
    assert Store().path == tmp_path / 'a' / 'b' / 'lab.sqlite3'


def test_unknown_run_lists_runs(store):
    store.save_run(a_run('abcdef'))
    with pytest.raises(UsageError, match="Did you mean 'abcdef'"): store.load_run('abcdeg')
    with pytest.raises(UsageError, match='There is no run'): store.save_step(a_step('nope'))
