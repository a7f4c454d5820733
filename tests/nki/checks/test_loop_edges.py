"""Two cores that meet inside a loop: what they do on both sides of its edges is not kept apart by that."""
import numpy as np
import pytest
from dialects import nki, nisa, nl

from kernel_lab.nki import Program, check, execute, schedule, trace
from kernel_lab.nki.checks.races import race_warnings

X = np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
STEPS = {                   # of tile t, the core's own rows `me` of `far` and the other's `them`
    'l': lambda k: nisa.dma_copy(k.t, k.x[k.me]), 'o': lambda k: nisa.dma_copy(k.out[k.me], k.t),
    'W': lambda k: nisa.dma_copy(k.far[k.me], k.t), 'R': lambda k: nisa.dma_copy(k.t, k.far[k.them]),
    'b': lambda k: nisa.core_barrier(k.far, (0, 1)), 'V': lambda k: nisa.activation(k.t, nl.exp, k.t, scale=0.5)}


class Kept: pass


def traced(before, body, after, turns=3):
    "Two cores that do these steps before, in, and after a loop."
    def kernel(x):
        k = Kept()
        k.x, k.out, k.far = x, *(nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        k.t, core = nl.ndarray((128, 64), x.dtype), nl.program_id(0)
        k.me, k.them = nl.ds(core * 128, 128), nl.ds(128 - core * 128, 128)
        for s in before: STEPS[s](k)
        for _ in nl.sequential_range(turns):
            for s in body: STEPS[s](k)
        for s in after: STEPS[s](k)
        return k.out
    return trace(nki.jit(kernel)[2], X, chip='trn2')


@pytest.mark.parametrize('before, body, after', [
    ('l', 'WbR', 'o'), ('l', 'WVbRV', 'bo'), ('lb', 'WbR', 'bo'), ('lWb', 'RbW', 'o'),       # from turn to turn
    ('lW', 'RbV', 'o'), ('lbW', 'RbV', 'o'),                                                # into the loop
    ('l', 'VbW', 'Ro'), ('lb', 'VbVbW', 'RVo')])                                            # out of it
def test_what_goes_over_an_edge_is_a_race(before, body, after):
    p = traced(before, body, after)
    says, = race_warnings(Program.from_json(p.to_json()))
    assert 'over the edge of a loop' in says and says.startswith('line ') and 'nisa.core_barrier' in says


@pytest.mark.parametrize('before, body, after', [
    ('l', 'WbRb', 'o'), ('l', 'bWbR', 'o'), ('lWb', 'RbV', 'o'), ('lW', 'bRb', 'o'), ('l', 'VbW', 'bRo'), ('lW', 'bRbW', 'o'),
    ('l', 'WbRbV', 'o'), ('lW', 'VbV', 'bRo'), ('lWb', 'Rb', 'bWo'), ('l', 'VbV', 'o')])
def test_cores_that_meet_at_the_edge_do_not_race(before, body, after):
    p = traced(before, body, after)
    assert not race_warnings(p) and not check(p) and execute(p, X)[0].shape == X.shape and schedule(p).latency_us > 0


def nested(steps, turns=2):
    "Two cores that do these steps; in parentheses a loop."
    def kernel(x):
        k, rest = Kept(), iter(steps)
        k.x, k.out, k.far = x, *(nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        k.t, core = nl.ndarray((128, 64), x.dtype), nl.program_id(0)
        k.me, k.them = nl.ds(core * 128, 128), nl.ds(128 - core * 128, 128)
        def do(body):
            for s in body:
                if isinstance(s, str): STEPS[s](k)
                else:
                    for _ in nl.sequential_range(turns): do(s)
        def parsed():
            body = []
            for s in rest:
                if s == ')': break
                body.append(parsed() if s == '(' else s)
            return body
        do(parsed())
        return k.out
    return trace(nki.jit(kernel)[2], X, chip='trn2')


@pytest.mark.parametrize('steps', [
    'lW((RbV))o', 'lW(((RbV)))o', 'lW(V(RbV))o', 'lW(V((RbV)))o',                           # into loops in one another
    'l((VbW))Ro', 'l(((VbW)))Ro', 'l((VbW)V)Ro', 'l(((VbW))V)Ro',                           # out of them
    'lWb((RbV)(VbW))o', 'lWb((RbV)bVb(VbW))o', 'lWb((RbV)V(VbW)V)o', 'lWb(((RbV))((VbW)))o',        # from turn to turn
    'l(VbW)(RbV)o', 'l(VbW)V(RbV)o', 'l((VbW))((RbV))o', 'l((VbW)(RbV))o'])                 # from a loop to the next
def test_loops_that_begin_and_end_with_a_loop_hide_no_race(steps):
    p = nested(steps)
    says, = race_warnings(Program.from_json(p.to_json()))
    assert 'over the edge of a loop' in says and schedule(p).latency_us > 0


@pytest.mark.parametrize('steps', [
    'lWb((RbV))o', 'lW(b(RbV))o', 'lW((bRbV))o', 'lW(V(bRbV))o', 'lW(Vb(RbV))o', 'lW(b((RbV)))o', 'lW((b(RbV)))o',
    'l((VbW))bRo', 'l((VbW)b)Ro', 'l((VbWb))Ro', 'l((VbWb)V)Ro', 'l((VbW)bV)Ro', 'l(((VbW))b)Ro', 'l(((VbW)b))Ro',
    'l((RbV)(VbW)b)o', 'l(b(RbV)(VbW))o', 'l((bRbV)(VbW))o', 'l((RbV)(VbWb))o', 'l(((RbV)b)((VbW)b))o',
    'l(VbW)b(RbV)o', 'l(VbWb)(RbV)o', 'l(VbW)(bRbV)o', 'l(VbW)Vb(RbV)o', 'l(VbW)bV(RbV)o', 'l((VbW))(b(RbV))o'])
def test_cores_that_meet_between_such_loops_do_not_race(steps):
    assert not race_warnings(nested(steps))


def test_one_turn_has_no_next_one():
    assert not race_warnings(traced('l', 'WbR', 'o', turns=1)) and race_warnings(traced('l', 'WbR', 'o', turns=2))


def test_places_of_each_turn_do_not_meet():
    def kernel(x):
        out, far = (nl.ndarray(s, x.dtype, buffer=nl.shared_hbm) for s in (x.shape, (3, *x.shape)))
        t, core = nl.ndarray((128, 64), x.dtype), nl.program_id(0)
        me, them = nl.ds(core * 128, 128), nl.ds(128 - core * 128, 128)
        nisa.dma_copy(t, x[me])
        for i in nl.sequential_range(3):
            nisa.dma_copy(far[i, me], t)
            nisa.core_barrier(far, (0, 1))
            nisa.dma_copy(t, far[i, them])
        nisa.dma_copy(out[me], t)
        return out
    assert not race_warnings(trace(nki.jit(kernel)[2], X, chip='trn2'))
