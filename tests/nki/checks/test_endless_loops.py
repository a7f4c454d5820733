"""Loops that turn a thousand million times around nothing, or around a loop that never turns, in a program that is
otherwise fine: whoever walks loops refuses it or has its answer at once, and takes no memory for its turns."""
import signal
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.verification.program_bounds import program_bounds
from kernel_lab.nki import ArraySpec, Stepper, check, execute, interpret, profile_of, schedule, trace
from kernel_lab.nki.ir.nodes import Loop
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.run import execute_widened, find_out_of_domain
from kernel_lab.nki.timing import scheduler
from kernel_lab.nki.writing.writer import to_source
from dialects import nisa, nki, nl


def doubled(x):
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        t = nl.load(x[nl.ds(i * 128, 128), :])
        nl.store(out[nl.ds(i * 128, 128), :], nl.add(t, t))
    return out


HONEST = trace(doubled, ArraySpec((512, 64)))
FULL, = HONEST.body
X = np.ones((512, 64), np.float32)
NEVER = replace(FULL, trips=0)


def nested(depth, turns):
    body = ()
    for k in range(depth): body = (Loop(f'z{k}', turns, body, line=9),)
    return body


LOOPS = {
    'empty': (FULL, *nested(1, 10**12)),
    'empty, first': (*nested(1, 10**12), FULL),
    'empty, nested': (FULL, *nested(5, 10**12)),
    'empty, many small ones': (FULL, *nested(20, 3)),
    'empty, inside': (replace(FULL, body=(*FULL.body, *nested(1, 10**12))),),
    'nothing else': nested(1, 10**12),
    'around one that never turns': (Loop('e', 2**31, (NEVER,), line=9),),
    'around several of them': (Loop('e', 2**31, (Loop('f', 2**31, (NEVER,), line=9),), line=9),),
    'in one that never turns': (Loop('e', 0, (replace(FULL, trips=2**31),), line=9),),
    'made up for by a negative one': (Loop('e', -10**12, (FULL,), line=9), Loop('g', 10**12, (FULL,), line=9)),
    'full': (replace(FULL, trips=10**12),)}
WALKERS = {
    'check': check, 'schedule': schedule, 'execute': lambda p: execute(p, X), 'interpret': lambda p: interpret(p, X),
    'execute_widened': lambda p: execute_widened(p, X), 'find_out_of_domain': lambda p: find_out_of_domain(p, X),
    'Stepper': lambda p: Stepper(p, X), 'bounds': lambda p: program_bounds(p, p.chip),
    'profile': lambda p: profile_of(schedule(p)), 'to_source': to_source, 'hash': lambda p: p.hash,
    'from_json': lambda p: Program.from_json(p.to_json()), 'shown': lambda p: (repr(p), str(p), p._repr_html_()),
    'in the earlier dialect': lambda p: schedule(replace(p, dialect='neuronxcc.nki', chip='trn1'))}


@contextmanager
def soon(seconds):
    "Within so many seconds of this process's own work, and 100 MB."
    def late(*_): raise TimeoutError('it hangs')
    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.fixture(scope='module', autouse=True)
def compiled():
    scheduler.warm()
    schedule(HONEST), execute(HONEST, X)


@pytest.mark.parametrize('walker', WALKERS)
@pytest.mark.parametrize('case', LOOPS)
def test_nobody_walks_on_forever(case, walker):
    with soon(5):
        try: WALKERS[walker](replace(HONEST, body=LOOPS[case]))
        except KernelError as e: assert e.message


@pytest.mark.parametrize('case', [k for k in LOOPS if k not in ('in one that never turns',)])
def test_executing_says_what_is_too_long(case):
    for walk in execute, interpret, Stepper:
        with pytest.raises(KernelError, match='too long to execute.*50,000,000 instructions in all'):
            walk(replace(HONEST, body=LOOPS[case]), X)


@pytest.mark.parametrize('case', [k for k in LOOPS if 'never' in k or 'negative' in k])
def test_a_loop_that_never_turns_is_refused_with_its_name(case):
    p = replace(HONEST, body=LOOPS[case])
    with pytest.raises(KernelError, match="loop '.*' never turns"): schedule(p)
    assert 'never turns' in check(p)[0].message
    with pytest.raises(KernelError, match='not valid'): Program.from_json(p.to_json())


def test_few_empty_turns_are_no_matter():
    p = replace(HONEST, body=(FULL, *nested(3, 100)))
    assert (execute(p, X)[0] == 2).all() and (interpret(p, X)[0] == 2).all() and Stepper(p, X).count == 12


def test_cores_that_meet_a_thousand_million_times_are_compared_a_few_times():
    def halves(x):
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        for _ in nl.sequential_range(4):
            t = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(t, x[nl.program_id(0)])
            nisa.dma_copy(out[nl.program_id(0)], t)
            nisa.core_barrier(out, (0, 1))
        return out
    p = trace(nki.jit(halves)[2], ArraySpec((2, 128, 64)), chip='trn2')
    loop, = [l for l in p.loops.values() if l.trips == 4]
    def longer(o):
        if not isinstance(o, Loop): return o
        return replace(o, trips=2**31 if o is loop else o.trips, body=tuple(map(longer, o.body)))
    with soon(5): check(replace(p, body=tuple(map(longer, p.body))))
