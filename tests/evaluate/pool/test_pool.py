"""Many evaluations at once: workers that die, kernels that crash, hang and eat memory, parents that are killed; each
accounted for, none twice; the same through Ray.

    python -m pytest tests/evaluate/pool/test_pool.py -m slow          the soak: 2,000 evaluations, one in twenty
    hostile, workers killed all the while; and all that needs a Ray cluster"""
import importlib.util
import itertools
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import rich.console
import sqlalchemy as sa

from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pool import ray_backend as cluster
from kernel_lab.evaluate.pool import jobs as travel
from kernel_lab.evaluate.pool.ray_backend import RayPool
from kernel_lab.evaluate.pool.jobs import job_to_text, answer_job, jobs_of
from kernel_lab.evaluate.pool.dispatch import LocalPool, evaluate_many
from kernel_lab.evaluate.sandbox.protocol import Limits
from kernel_lab.evaluate.store.store import Store
from kernel_lab.evaluate.store.database import EVALUATIONS
from kernel_lab.tasks.suite.registry import TASKS
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.model.task import task_from

QUICK = Limits(seconds=1, memory_mb=640)
PATIENT = replace(QUICK, seconds=3)  # where workers start all the while, an honest kernel may need more than one
HONEST = ('softmax', 'relu', 'rmsnorm', 'matmul')
HOSTILE = {
    'crashes': ('import os, ctypes\ndef kernel(x):\n    ctypes.string_at(8)',
                'crashed'), 'leaves': ('import os\ndef kernel(x):\n    os._exit(0)',
                                       'crashed'), 'hangs': ('def kernel(x):\n    while True: pass', 'timeout'),
    'eats memory': ('def kernel(x):\n    kept = []\n    while True: kept.append(bytearray(1 << 26))', 'out_of_memory'),
    'fills its answer': ('import os\ndef kernel(x):\n    while True: os.write(3, bytes(1 << 20))',
                         ('limit_exceeded', 'crashed', 'trace_error'))}


@cache
def honest(name):
    "Written when a test asks: torch's compiler is slow to import, and every worker collects this file."
    return TASKS[name].first('small')


def workload(count, share, seed=0):
    "Kernels, their tasks, and the status each must end in: `share` of them hostile."
    dice, rows = random.Random(seed), []
    for _ in range(count):
        if dice.random() < share:
            source, status = HOSTILE[dice.choice(sorted(HOSTILE))]
            rows.append((source, 'relu', status))
        else:
            name = dice.choice(sorted(HONEST))
            rows.append((honest(name), name, 'correct'))
    return map(list, zip(*rows))


def ledger(found, wanted):
    "How many came, how many twice or never, how many with another status than they must have."
    came = Counter(n for n, _ in found)
    other = [(n, str(e.status), e.log[-200:])
             for n, e in found
             if str(e.status) not in (wanted[n] if isinstance(wanted[n], tuple) else (wanted[n],))]
    return {
        'asked': len(wanted), 'came': len(came), 'twice': [n for n, k in came.items() if k > 1],
        'never': sorted(set(range(len(wanted))) - set(came)), 'other': other}


def soaked(count, share, every):
    "The ledger of so many evaluations while a worker is killed every so many seconds, and how many were."
    kernels, tasks, wanted = workload(count, share)
    pool, over, killed, dice = LocalPool(2), threading.Event(), [], random.Random(1)
    def kill():
        while not over.wait(every * dice.uniform(0.5, 1.5)):
            alive = [h for h in list(pool.processes) if h.is_ready]
            if not alive: continue
            os.kill(dice.choice(alive).process.pid, signal.SIGKILL)
            killed.append(time.monotonic())
    killer = threading.Thread(target=kill)
    killer.start()
    try: found = list(evaluate_many(kernels, tasks, 'small', pool=pool, seeds=1, limits=PATIENT))
    finally: over.set(); killer.join()
    return ledger(found, wanted), len(killed)


@pytest.mark.slow
def test_a_small_soak():
    """Two dozen evaluations, a fifth of them hostile, and two workers that are killed: all accounted for, none twice;
    only a job that lost two workers is the lab's fault."""
    kernels, tasks, wanted = workload(24, 0.2)
    pool, found, killed = LocalPool(2), [], []
    for row in evaluate_many(kernels, tasks, 'small', pool=pool, seeds=1, limits=PATIENT):
        found.append(row)
        if len(found) in (5, 12):
            killed.append(next((h for h in pool.processes if h.job), pool.processes[0]).process)
            killed[-1].kill()
    told = ledger(found, wanted)
    assert told['came'] == told['asked'] and not told['twice'] and not told['never'], told
    assert all(status == 'lab_error' for _, status, _ in told['other']) and len(told['other']) <= 1, told
    assert len({p.pid for p in killed}) == 2


@pytest.mark.slow
def test_the_soak():
    told, killed = soaked(2000, 0.05, 15)
    print({**told, 'workers killed': killed})
    assert told['came'] == 2000 and not told['twice'] and not told['never'] and killed > 5
    assert all(status == 'lab_error' for _, status, _ in told['other']) and len(told['other']) <= killed // 2, told


# --- what is asked, read and kept, with a pool that works in this very process ---

class Here:
    "A pool without processes: room for two, the newest is done first."
    def __init__(self): self.at_work, self.given, self.closed = [], 0, False
    def room(self, job=None): return len(self.at_work) < 2
    def give(self, job): self.at_work.append(job); self.given += 1
    def close(self): self.closed = True
    def heard(self):
        job = self.at_work.pop()
        yield job, answer_job(job_to_text(job)), None


@pytest.fixture
def store(tmp_path):
    s = Store(tmp_path / 'lab.sqlite3')
    yield s
    s.close()


def rows(store):
    with store._read() as c: return c.execute(sa.select(sa.func.count()).select_from(EVALUATIONS)).scalar()


def remarks(n): return [f'# {k}\n{honest("relu").source}' for k in range(n)]


def ask(kernels, store=None, task='relu', **kw):
    return list(
        evaluate_many(kernels, task, 'small', **{'pool': Here(), 'seeds': 1, 'limits': QUICK, 'store': store, **kw}))


def test_what_is_known_is_not_given_away(store):
    first, pool, heard = ask(remarks(3), store), Here(), []
    again = ask(remarks(4), store, pool=pool, progress=lambda *said: heard.append(said))
    assert [e.cached for _, e in sorted(again)] == [True] * 3 + [False] and pool.given == 1 and rows(store) == 4
    assert {e.id for _, e in first} <= {e.id for _, e in again} and heard == [(k, 4) for k in (1, 2, 3, 4)]
    assert [e.cached for _, e in ask(remarks(1), store, seeds=2)] == [False]
    assert {e.baseline_us for _, e in again} == {first[0][1].baseline_us
                                                 } and rows(store) == 5, 'the baseline is kept with the evaluation'


def test_the_program_comes_along(store):
    (_, e), = ask([honest('relu')], store)
    assert store.program(e).count == e.profile.instructions


def test_equal_kernels_are_worked_out_once(store):
    pool = Here()
    found = ask(remarks(1) * 40, store, pool=pool)
    assert sorted(n for n, _ in found) == list(range(40)) and pool.given == rows(store) == 1
    assert Counter(e.cached for _, e in found) == {False: 1, True: 39}
    assert len({e.id for _, e in ask(remarks(1) * 3)}) == 3, 'without a store each is asked for itself'


def test_the_moments_fault_is_tried_for_each(store):
    found = ask([HOSTILE['leaves'][0]] * 3, store)
    assert [str(e.status) for _, e in found] == ['crashed'] * 3 and not any(e.cached
                                                                            for _, e in found) and rows(store) == 3
    assert not any(e.cached for _, e in ask([HOSTILE['leaves'][0]], store))


@pytest.mark.parametrize('name', ['unequal', 'equal', 'known'])
def test_a_list_is_read_as_fast_as_it_is_worked_on(store, name):
    """Of a list without an end only what the workers need, a few equal ones more, and of what is known each when it is
    asked for."""
    read = []
    def kernels():
        for k in itertools.count(): read.append(k); yield f'def {k if name == "unequal" else ""}'
    if name == 'known': ask(['def '], store)
    found = evaluate_many(kernels(), 'relu', 'small', pool=Here(), seeds=1, store=None if name == 'unequal' else store)
    for k in range(1, 30):
        next(found)
        assert len(read) <= k + {'unequal': 2, 'equal': 18, 'known': 0}[name]
    found.close()


def test_leaving_the_loop_closes_the_pool(store):
    pool = Here()
    for number, e in evaluate_many(remarks(5), 'relu', 'small', pool=pool, seeds=1, store=store): break
    assert pool.closed and rows(store) == 1


def test_a_store_that_fails_ends_the_work(store, monkeypatch):
    pool = Here()
    def full(*a): raise UsageError('The store cannot grow: the disk is full.')
    monkeypatch.setattr(store, 'save_evaluation', full)
    with pytest.raises(UsageError, match='disk is full'): ask(remarks(3), store, pool=pool)
    assert pool.closed


def test_a_line_of_progress(capfd, monkeypatch):
    "On standard error, and only where that is a terminal."
    for terminal in (True, False):
        monkeypatch.setattr(rich.console, 'Console', partial(rich.console.Console, force_terminal=terminal, width=120))
        assert len(ask(['def'] * 3, progress=True)) == 3
        said = capfd.readouterr()
        assert said.out == '' and ('3/3' in said.err) == terminal, said
        monkeypatch.undo()


# --- workers of this machine ---

def started_by(pid):
    "The processes of this machine that a process has started, and those that they have, as {pid: when it began}."
    parents = {}
    for place in Path('/proc').glob('[0-9]*'):
        try: said = (place / 'stat').read_text().rpartition(')')[2].split()
        except OSError: continue
        parents[int(place.name)] = int(said[1]), said[19], said[0]
    found, waiting = {}, [pid]
    while waiting:
        at = waiting.pop()
        for child, (parent, began, state) in parents.items():
            if parent == at and state != 'Z': found[child] = began; waiting.append(child)
    return found


def said_by(pid):
    "A process's command line; nothing where it is gone."
    try: return Path(f'/proc/{pid}/cmdline').read_bytes()
    except OSError: return b''


def left_of(processes, seconds=10):
    "Those of some processes that are still there after so many seconds."
    def there(pid, began):
        try: said = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
        except OSError: return False
        return said[19] == began and said[0] != 'Z'
    late = time.monotonic() + seconds
    while (left := [p for p in processes.items() if there(*p)]) and time.monotonic() < late: time.sleep(0.1)
    return left


needs_proc = pytest.mark.skipif(not Path('/proc/self/stat').exists(), reason='processes are counted in /proc')


@needs_proc
def test_leaving_the_loop_ends_the_work():
    travel.job_worker().end()                                      # what workers are forked from stays
    pool, before = LocalPool(2), started_by(os.getpid())
    found = evaluate_many(['def', HOSTILE['hangs'][0], HOSTILE['hangs'][0]], 'relu', 'small', pool=pool, seeds=1)
    next(found)
    mine = started_by(os.getpid()).items() - before.items()
    found.close()
    assert len(mine) >= 2 and not pool.processes and not left_of(dict(mine))


PARENT = """
import json, sys
from kernel_lab.evaluate.pool.dispatch import evaluate_many
from kernel_lab.evaluate.store.store import Store
place, kernels, more = json.loads(sys.argv[1])
for number, e in evaluate_many(kernels, 'relu', 'small', seeds=1, store=Store(place), **more): print(number, flush=True)
"""


def parent(place, kernels, **more):
    "A process of its own that evaluates kernels, and says each number when it has it."
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, '-c', PARENT,
                             json.dumps([str(place), kernels, more])], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=env)


def after_the_end(store, kernels, workers, ending):
    """Kernels evaluated by a parent that is ended once half of them, less one, have come: (how many were saved then,
    how many the same question gave away again)."""
    process = parent(store.path, kernels, workers=workers)
    for _ in range(len(kernels) // 2): process.stdout.readline()
    mine = started_by(process.pid)
    process.send_signal(ending)
    process.wait(30)
    assert len(mine) >= 2 * workers and not left_of(mine), 'workers, and their children'
    saved, pool = rows(store), Here()
    again = ask(kernels, store, pool=pool)
    assert sum(e.cached for _, e in again) == saved and len(again) == len(kernels)
    return saved, pool.given


@needs_proc
def test_a_parent_that_is_killed_leaves_nothing_behind_but_what_came(store):
    "Its worker ends by itself, in the middle of a kernel without an end; asked again only the rest is done."
    assert after_the_end(store, [*remarks(1), HOSTILE['hangs'][0]], 1, signal.SIGKILL) == (1, 1)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize('ending', [signal.SIGKILL, signal.SIGINT])
def test_two_workers_of_a_parent_that_is_ended(store, ending):
    saved, given = after_the_end(store, [*remarks(3), HOSTILE['hangs'][0], *remarks(8)[3:]], 2, ending)
    assert 4 <= saved <= 7 and given == 9 - saved


ME = os.getpid()
# as if it were a notebook: workers need not import this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def own(name, there):
    "A task of a person's own that does what `there` says where a worker has it."
    def reference(x):
        if os.getpid() != ME: there()
        return x * 2
    return task_from(reference, lambda rng: {'x': rng.standard_normal((128, 64)).astype(np.float32)}, name=name)


def killed(): print('these are my last words', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGKILL)
def starved(): raise MemoryError
def noisy(): print('this is noise'); print('this is noise', file=sys.stderr)
def hangs(): time.sleep(600)


TWICE = """
import nki.language as nl
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 2.0)
    return out
"""


def test_a_worker_in_trouble_costs_its_own_evaluation_only(store, capfd):
    """A person's own task that kills its worker, starves it or makes noise: what it said is not on the screen.

    What is good is known again."""
    tasks = [own(f.__name__, f) for f in (killed, starved, noisy)]
    found = dict(evaluate_many([TWICE] * 3, tasks, workers=2, seeds=1, store=store))
    assert [str(found[k].status)
            for k in range(3)] == ['lab_error', 'lab_error', 'correct'], [found[k].log for k in range(3)]
    assert all(word in found[0].log for word in ('the worker died (signal 9', 'my last words', '2 times'))
    assert 'MemoryError' in found[1].log
    (_, again), = evaluate_many([TWICE], tasks[2], pool=Here(), seeds=1, store=store)
    assert again.cached and again.id == found[2].id
    said = capfd.readouterr()
    assert 'noise' not in said.out + said.err and 'last words' not in said.out + said.err


@pytest.mark.slow
def test_workers_that_hang():
    found = dict(
        evaluate_many([TWICE] * 6, [own(f.__name__, f) for f in (hangs, noisy) * 3], workers=2, seconds=15, seeds=1))
    assert [str(found[k].status) for k in range(6)] == ['lab_error', 'correct'] * 3
    assert all('longer than 15 s' in found[k].log for k in (0, 2, 4))


def test_a_worker_of_another_lab_is_refused(monkeypatch):
    monkeypatch.setattr(travel, 'versions',
                        lambda chip, real=travel.versions: real(chip) | {'lab': 'c0ffee', 'numpy': '1.0'})
    pool = LocalPool(1)
    with pytest.raises(UsageError, match='another lab .*numpy .*lab c0ffee.*Install the same lab'):
        ask(['def'], pool=pool)
    assert not pool.processes


def test_gpu_kernels_need_no_gpu_and_no_name_of_one():
    pytest.importorskip('triton', reason='triton is not installed')
    found = dict(ask([Kernel('def', target='cuda'), Kernel('def', target='triton')], pool=LocalPool(1)))
    assert [(str(e.status), e.chip) for e in found.values()] == [('parse_error', 'sm_90')] * 2
    with pytest.raises(UsageError, match="no GPU 'trn1'"): ask([Kernel('def', target='triton')], chip='trn1')


# --- a Ray cluster ---

needs_ray = pytest.mark.skipif(not importlib.util.find_spec('ray'), reason='Ray is not installed')


def plain(e):
    "An evaluation without what differs from one time to the next: its seconds, and the guard on those of tracing."
    found = {k: v for k, v in e.to_dict().items() if k not in ('id', 'created', 'seconds')}
    timed = ('traced', 'guard: note: slow trace')
    return found | {'log': [line for line in found['log'].splitlines() if not line.startswith(timed)],
                    'guards': [g for g in found['guards'] if g['name'] != 'slow trace']}


@needs_ray
def test_no_cluster_there(monkeypatch):
    monkeypatch.setattr(cluster, 'CLUSTER_ANSWER_TIMEOUT_S', 0.5)
    for kind in ('127.0.0.1:1', 'ray://127.0.0.1:1'):
        with pytest.raises(UsageError, match='There is no Ray cluster at .*: nobody answers'):
            list(evaluate_many(['def'], 'relu', 'small', pool=kind))
    with pytest.raises(UsageError, match='no address of a Ray cluster'): RayPool('somewhere')


@needs_ray
def test_a_client_needs_its_package(monkeypatch):
    "Which is looked for once somebody answers."
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name, *rest: None if name == 'grpc' else there(name, *rest))
    with socket.create_server(
        ('127.0.0.1', 0)) as door, pytest.raises(UsageError, match=r"needs Ray's client.*kernel-lab\[cluster\]"):
        list(evaluate_many(['def'], 'relu', 'small', pool=f'ray://127.0.0.1:{door.getsockname()[1]}'))


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as s: return s.getsockname()[1]


class Head:
    "A Ray cluster of two processors on this machine, in processes of its own."
    def __init__(self, *more):
        self.place, port, self.client = tempfile.TemporaryDirectory(
            prefix='r', dir='/tmp', ignore_cleanup_errors=True), free_port(), free_port()
        self.address = f'127.0.0.1:{port}'
        command = [
            Path(sys.executable).with_name('ray'), 'start', '--head', '--block', '--node-ip-address=127.0.0.1',
            f'--port={port}', '--num-cpus=2', '--include-dashboard=false', '--disable-usage-stats',
            f'--temp-dir={self.place.name}', *more]
        if importlib.util.find_spec('grpc'): command.append(f'--ray-client-server-port={self.client}')
        env = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env,
                                        start_new_session=True)

    def pool(self, address=None, **kw):
        "A pool of this cluster, once it is there."
        for tries in range(12):
            try: return RayPool(address or self.address, **kw)
            except UsageError:
                if self.process.poll() is not None or tries == 11: raise

    def end(self):
        "All its processes, at once."
        with_it = started_by(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in with_it:
            try: os.kill(pid, signal.SIGKILL)
            except ProcessLookupError: continue
        assert not left_of(with_it)
        self.place.cleanup()


@pytest.fixture(scope='module')
def key():
    "A token that the clusters of these tests ask for, so that none is written into anybody's home."
    with pytest.MonkeyPatch.context() as m:
        for k, v in {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': secrets.token_hex(32)}.items(): m.setenv(k, v)
        yield


@pytest.fixture(scope='module')
def head(key):
    h = Head('--resources={"neuron_cores": 1}')
    yield h
    h.end()


@pytest.mark.slow
@needs_ray
@needs_proc
def test_ray_gives_the_same(head):
    kernels, tasks = [*map(honest, HONEST), 'def', HOSTILE['leaves'][0],
                      HOSTILE['hangs'][0]], [*HONEST, 'relu', 'relu', 'relu']
    found = {
        name: dict(evaluate_many(kernels, tasks, 'small', pool=pool, seeds=[1, 2, 3], limits=QUICK))
        for name, pool in (('local', LocalPool(2)), ('ray', head.pool()))}
    for n in range(len(kernels)): assert plain(found['local'][n]) == plain(found['ray'][n]), n


@pytest.mark.slow
@needs_ray
@needs_proc
def test_workers_in_trouble_on_a_cluster(head, store):
    """A task of a person's own, time-outs, tries, what is known, and devices, as with the local pool; nothing stays in
    work."""
    found = dict(
        evaluate_many([TWICE] * 4, [own(f.__name__, f) for f in (killed, hangs, starved, noisy)],
                      pool=head.pool(seconds=15), seeds=1, store=store))
    assert [str(found[k].status)
            for k in range(4)] == ['lab_error', 'lab_error', 'lab_error', 'correct'], [found[k].log for k in range(4)]
    assert all(
        word in found[0].log
        for word in ('the worker died (signal 9', 'my last words', '2 times')) and 'longer than 15 s' in found[1].log
    assert [e.cached for _, e in ask(remarks(1) * 3, store, pool=head.pool())] == [False, True, True]
    job, = jobs_of(['def'], 'relu', 'small')
    pool, on_it = head.pool(), replace(job, kernel=Kernel('def', target='neuron'))
    assert pool.room(on_it)
    pool.given[0] = on_it
    assert not pool.room(on_it) and pool.room(job)
    pool.given.clear(); pool.close()
    found = evaluate_many(['def', *[HOSTILE['hangs'][0]] * 5], 'relu', 'small', pool=head.pool(), seeds=1)
    next(found)
    before = started_by(head.process.pid)
    found.close()
    late = time.monotonic() + 20
    while (busy := [p for p in started_by(head.process.pid)
                    if b'kernel_lab.core.workers' in said_by(p)]) and time.monotonic() < late:
        time.sleep(0.2)
    assert len(before) > 2 and not busy


@pytest.mark.slow
@needs_ray
@needs_proc
def test_a_cluster_that_goes_away(store, key):
    """In the middle of the work: a word about it, what came is kept, and another pool does the rest.

    So it is where only its head's books are lost, and its machines go on."""
    for books in (False, True):
        head, came, kernels = Head(), [], [f'# {books} {k}\n{honest("relu").source}'
                                           for k in range(12)] + [HOSTILE['hangs'][0]]
        before = rows(store)
        with pytest.raises(UsageError, match='The Ray cluster went away.*safe where there is a store') as e:
            for number, found in evaluate_many(kernels, 'relu', 'small', pool=head.pool(), seeds=1, store=store):
                came.append(number)
                if len(came) == 4:
                    if books:
                        os.kill(next(p for p in started_by(head.process.pid)
                                     if b'gcs_server' in said_by(p)), signal.SIGKILL)
                    else: head.end()
        if books: head.end()
        print(e.value, len(came))
        assert 4 <= len(came) and rows(store) == before + len(came)
        pool = Here()
        again = ask(kernels, store, pool=pool)
        assert len(again) == 13 and sum(e.cached for _, e in again) == len(came) and pool.given == 13 - len(came)


@pytest.mark.slow
@needs_ray
@needs_proc
def test_a_cluster_of_a_parent_that_is_killed(store, key, monkeypatch):
    "One that was started for it ends with it."
    monkeypatch.setenv('RAY_ADDRESS', 'local')
    process = parent(store.path, [*remarks(1), HOSTILE['hangs'][0]], pool='ray', workers=1)
    assert process.stdout.readline() == '0\n', process.stderr.read()
    mine = started_by(process.pid)
    process.kill()
    process.wait()
    assert len(mine) > 4 and not left_of(mine, 30)


@pytest.mark.slow
@needs_ray
@needs_proc
def test_a_client_of_a_cluster(head):
    if not importlib.util.find_spec('grpc'): pytest.skip("Ray's client is not installed")
    head.pool().close()
    found = list(evaluate_many(remarks(2), 'relu', 'small', pool=head.pool(f'ray://127.0.0.1:{head.client}'), seeds=1))
    assert [str(e.status) for _, e in found] == ['correct'] * 2
