"""Ctrl-C while a kernel does not end: the evaluation is over at once, and so are its processes."""
import os
import signal
import threading
import time

import pytest
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.pool.dispatch import evaluate_many
from kernel_lab.evaluate.pool.jobs import job_worker
from kernel_lab.evaluate.sandbox.protocol import Limits
from kernel_lab.evaluate.sandbox.run import sandbox
from kernel_lab.tasks.suite.registry import get_task

MOST_SECONDS = 0.5

ENDLESS = {
    'a loop': 'while True: pass',
    'a sleep': 'import time\n    while True: time.sleep(60)',
    'one instruction of Python': '10 ** 10 ** 9',
    'a handler of its own': ('import signal\n    for n in (2, 15, 14): signal.signal(n, signal.SIG_IGN)\n'
                             '    while True: pass'),
    'an exception that is caught': ('while True:\n        try:\n            while True: pass\n'
                                    '        except BaseException: pass'),
}


def family(pid):
    "The ids of all processes below one."
    parents = {}
    for name in filter(str.isdigit, os.listdir('/proc')):
        try: stat = open(f'/proc/{name}/stat').read().rpartition(')')[2].split()
        except OSError: continue
        if stat[0] != 'Z': parents.setdefault(int(stat[1]), []).append(int(name))
    found, new = set(), [pid]
    while new: found.update(new := [c for p in new for c in parents.get(p, ())])
    return found


def is_left(before, seconds=2.0):
    "Whether this process has others below it than `before`; those that were killed need a moment to be gone."
    end = time.monotonic() + seconds
    while not (mine := family(os.getpid())) <= before and time.monotonic() < end: time.sleep(0.02)
    return not mine <= before


@pytest.fixture(autouse=True)
def on_linux():
    if not os.path.exists('/proc/self/stat'): pytest.skip('needs /proc')


def stopped(call, after=0.7):
    "Seconds from Ctrl-C, sent when a call has run so long, to its end."
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(after, send)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt): call()
    finally: timer.cancel()
    return time.monotonic() - sent[0]


@pytest.mark.parametrize('name', ENDLESS)
def test_ctrl_c_ends_a_kernel_that_does_not(name):
    sandbox()
    before = family(os.getpid())
    source = f'def kernel(x):\n    {ENDLESS[name]}\n'
    seconds = stopped(lambda: evaluate(source, 'softmax', 'small', seeds=1, limits=Limits(seconds=60)))
    assert seconds <= MOST_SECONDS
    assert not is_left(before)


def test_ctrl_c_ends_the_execution_of_a_long_program():
    "Each of a million instructions needs the one before, so they are executed one by one."
    task = get_task('softmax')
    source = task.first('small').source
    long = source.replace('    return out', """    t = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=t, value=0.0)
    for k in nl.sequential_range(1_900_000): nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
    return out""")
    evaluate(source, task, 'small', seeds=1)                       # everything is imported
    assert stopped(lambda: evaluate(long, task, 'small', seeds=1), after=2.0) <= MOST_SECONDS


def test_a_batch_that_is_closed_leaves_no_worker():
    job_worker().end()                                             # what workers are forked from stays
    before = family(os.getpid())
    found = evaluate_many(['def kernel(x):\n    while True: pass\n'] * 2, 'softmax', 'small', seeds=1, workers=1,
                          limits=Limits(seconds=60))
    seconds = stopped(lambda: next(found), after=8.0)
    since = time.monotonic()
    found.close()
    assert seconds + time.monotonic() - since <= MOST_SECONDS
    assert not is_left(before)
