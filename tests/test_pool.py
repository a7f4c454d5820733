"""Many evaluations at once: workers that die, kernels that crash, hang and eat memory; each accounted for, none twice; the same through Ray.

    python -m pytest tests/test_pool.py -m slow          the soak: 2,000 evaluations, one in twenty hostile, workers killed all the while
"""
import importlib.util
import os
import random
import signal
import threading
import time
from collections import Counter

import pytest

from kernel_lab.errors import UsageError
from kernel_lab.evaluate.jobs import jobs_of
from kernel_lab.evaluate.pool import LocalPool, evaluate_many
from kernel_lab.evaluate.replies import Limits
from kernel_lab.tasks.suite import TASKS

QUICK = Limits(seconds=1, memory_mb=640)
HONEST = {n: TASKS[n].first('small') for n in ('softmax', 'relu', 'rmsnorm', 'matmul')}
HOSTILE = {
    'crashes': ('import os, ctypes\ndef kernel(x):\n    ctypes.string_at(8)', 'crashed'),
    'leaves': ('import os\ndef kernel(x):\n    os._exit(0)', 'crashed'),
    'hangs': ('def kernel(x):\n    while True: pass', 'timeout'),
    'eats memory': ('def kernel(x):\n    kept = []\n    while True: kept.append(bytearray(1 << 26))', 'out_of_memory'),
    'fills its answer': ('import os\ndef kernel(x):\n    while True: os.write(3, bytes(1 << 20))', ('limit_exceeded', 'crashed', 'trace_error'))}


def workload(count, share, seed=0):
    "Kernels, their tasks, and the status each must end in: `share` of them hostile."
    dice, rows = random.Random(seed), []
    for _ in range(count):
        if dice.random() < share:
            source, status = HOSTILE[dice.choice(sorted(HOSTILE))]
            rows.append((source, 'relu', status))
        else:
            name = dice.choice(sorted(HONEST))
            rows.append((HONEST[name], name, 'correct'))
    return map(list, zip(*rows))


def ledger(found, wanted):
    "How many came, how many twice or never, how many with another status than they must have."
    came = Counter(n for n, _ in found)
    other = [(n, str(e.status), e.log[-200:]) for n, e in found if str(e.status) not in (wanted[n] if isinstance(wanted[n], tuple) else (wanted[n],))]
    return {'asked': len(wanted), 'came': len(came), 'twice': [n for n, k in came.items() if k > 1], 'never': sorted(set(range(len(wanted))) - set(came)), 'other': other}


def soaked(count, share, every, most=1000):
    "The ledger of so many evaluations while a worker is killed every so many seconds, `most` of them, and how many were."
    kernels, tasks, wanted = workload(count, share)
    pool, over, killed, dice = LocalPool(2), threading.Event(), [], random.Random(1)
    def kill():
        while len(killed) < most and not over.wait(every * dice.uniform(0.5, 1.5)):
            alive = [h for h in list(pool.hands) if h.ready]
            if not alive: continue
            os.kill(dice.choice(alive).process.pid, signal.SIGKILL)
            killed.append(time.monotonic())
    killer = threading.Thread(target=kill)
    killer.start()
    try: found = list(evaluate_many(kernels, tasks, 'small', pool=pool, seeds=1, limits=QUICK))
    finally: over.set(); killer.join()
    return ledger(found, wanted), len(killed)


def test_a_small_soak():
    "Two dozen evaluations, a fifth of them hostile, and two workers that are killed: all accounted for, none twice; only a job that lost two workers is the lab's fault."
    told, killed = soaked(24, 0.2, 4, 2)
    assert told['came'] == told['asked'] and not told['twice'] and not told['never'], told
    assert all(status == 'lab_error' for _, status, _ in told['other']) and len(told['other']) <= killed // 2, (told, killed)


@pytest.mark.slow
def test_the_soak():
    told, killed = soaked(2000, 0.05, 15)
    print({**told, 'workers killed': killed})
    assert told['came'] == 2000 and not told['twice'] and not told['never'] and killed > 5
    assert all(status == 'lab_error' for _, status, _ in told['other']) and len(told['other']) <= killed // 2, told


def test_leaving_the_loop_ends_the_work():
    pool = LocalPool(2)
    for _ in evaluate_many(['def', HOSTILE['hangs'][0]] * 5, 'relu', 'small', pool=pool, seeds=1): break
    assert not pool.hands


def test_a_list_is_read_as_fast_as_it_is_worked_on():
    read = []
    def kernels():
        for k in range(1000): read.append(k); yield 'def'
    pool = LocalPool(1)
    jobs = pool.run(jobs_of(kernels(), 'relu', 'small', seeds=1))
    for _ in range(3): next(jobs)
    jobs.close()
    assert len(read) <= 5


def plain(e):
    "An evaluation without what differs from one time to the next."
    found = {k: v for k, v in e.to_dict().items() if k not in ('id', 'created', 'seconds')}
    return found | {'log': [line for line in found['log'].splitlines() if not line.startswith('traced')]}


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec('ray'), reason='Ray is not installed')
def test_ray_gives_the_same():
    kernels, tasks = [*HONEST.values(), 'def', HOSTILE['leaves'][0], HOSTILE['hangs'][0]], [*HONEST, 'relu', 'relu', 'relu']
    found = {pool: dict(evaluate_many(kernels, tasks, 'small', pool=pool, workers=2, seeds=[1, 2, 3], limits=QUICK)) for pool in ('local', 'ray')}
    for n in range(len(kernels)): assert plain(found['local'][n]) == plain(found['ray'][n]), n


def test_no_cluster_there():
    if not importlib.util.find_spec('ray'): pytest.skip('Ray is not installed')
    with pytest.raises(UsageError, match='no Ray cluster'): list(evaluate_many(['def'], 'relu', 'small', pool='ray://127.0.0.1:1'))
