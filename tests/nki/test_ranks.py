"Collectives over simulated ranks: against numpy, with mistakes, through the program's file format, and forged."
import json
import threading
import time
import numpy as np
import pytest
from kernel_lab.core.errors import KernelError, stoppable
from kernel_lab.nki import assert_ok, execute, profile, schedule, simulate_ranks
from kernel_lab.nki.lang.collectives import ReplicaGroup
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.ranks import trace_ranks
from dialects import installed, nisa, nl, nki, normal

with installed(): import nki.collectives as ncc

EIGHT = ReplicaGroup([list(range(8))])
XS = [normal(16, 8, seed=r) for r in range(8)]

def through(call, rows=16, dtype=None):
    def kernel(x):
        a, b = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.ndarray((rows, x.shape[1]), dtype or x.dtype,
                                                                              buffer=nl.shared_hbm)
        nisa.dma_copy(a, x)
        call(a, b)
        return b
    return kernel

def of(call, rows=16, xs=XS): return simulate_ranks(through(call, rows), [(x,) for x in xs])

@pytest.mark.parametrize('op, f', [(nl.add, np.sum), (nl.maximum, np.max), (nl.minimum, np.min)])
def test_reductions(op, f):
    want = f(np.stack(XS), axis=0)
    for y in of(lambda a, b: ncc.all_reduce(srcs=[a], dsts=[b], replica_group=EIGHT, op=op)):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    for r, y in enumerate(of(lambda a, b: ncc.reduce_scatter([a], [b], EIGHT, 0, op), 2)):
        np.testing.assert_allclose(y, want[2 * r:2 * r + 2], rtol=1e-5, atol=1e-5)

def test_gather_keeps_every_bit():
    xs = [x.copy() for x in XS]
    xs[3][0, 0] = np.nan
    for y in of(lambda a, b: ncc.all_gather([a], [b], EIGHT, 0), 128, xs):
        assert y.tobytes() == np.concatenate(xs).tobytes()

def test_groups_do_not_mix():
    odd_even = [[0, 2, 4, 6], [1, 3, 5, 7]]
    for r, y in enumerate(of(lambda a, b: ncc.all_to_all([a], [b], odd_even, 0))):
        np.testing.assert_array_equal(y, np.concatenate([XS[q][r // 2 * 4:r // 2 * 4 + 4] for q in odd_even[r % 2]]))

def test_bf16_sums_are_rounded_once():
    import ml_dtypes
    xs = [x.astype(ml_dtypes.bfloat16) for x in XS]
    want = sum(x.astype(np.float32) for x in xs).astype(ml_dtypes.bfloat16)
    assert all((y == want).all() for y in of(lambda a, b: ncc.all_reduce([a], [b], EIGHT, nl.add), xs=xs))

def test_a_loop_of_collectives_and_ranks_that_do_different_things():
    def kernel(x):
        a, b = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(a, x)
        for _ in nl.sequential_range(3):
            ncc.all_reduce([a], [b], [[0, 1], [2, 3]], nl.add)
            nisa.dma_copy(a, b)
        if ncc.rank_id() < 2: ncc.all_reduce([a], [b], [[0, 1], [2, 3]], nl.maximum)
        return b
    outs = simulate_ranks(kernel, [(x,) for x in XS[:4]])
    for r, y in enumerate(outs):
        np.testing.assert_allclose(y, 4 * (XS[r // 2 * 2] + XS[r // 2 * 2 + 1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda a, b: ncc.all_gather([a], [b], EIGHT, 0), r'\[128, 8\]'),
        (lambda a, b: ncc.all_reduce([a], [b], [[0, 1]], nl.add), 'is in no group'),
        (lambda a, b: ncc.all_reduce([a], [b], EIGHT, nl.multiply), 'reduces with'),
        (lambda a, b: ncc.all_reduce([a, a], [b], EIGHT, nl.add), 'every source needs a destination'),
        (lambda a, b: ncc.all_reduce([a], [b], [[*range(9)]], nl.add), 'the group has rank 8'),
        (lambda a, b: ncc.all_to_all([a], [b], EIGHT, 1), 'collective_dim 1'),
        (lambda a, b: ncc.collective_permute([a], [b], [(0, 1), (0, 2)]), 'twice'),
        (lambda a, b: ncc.all_reduce([b], [a], EIGHT, nl.add), 'read before it is written'),
        (
            lambda a, b: [ncc.all_reduce([a], [b], EIGHT, nl.add) for _ in range(1 + ncc.rank_id() // 7)],
            'which does not come',
        ),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(KernelError, match=message): of(call)

def test_one_rank_is_told_what_to_call():
    kernel = nki.jit(through(lambda a, b: ncc.all_reduce([a], [b], EIGHT, nl.add)))
    with pytest.raises(KernelError, match='simulate_ranks'): kernel(XS[0])
    with pytest.raises(KernelError, match='simulate_ranks'): execute(trace_ranks(kernel, [(x,) for x in XS])[0], XS[0])
    assert schedule(trace_ranks(kernel, [(x,) for x in XS])[0], 'trn2').uncosted == 0
    with pytest.raises(KernelError, match='simulate_ranks'): profile(kernel, XS[0])


@pytest.mark.parametrize(
    'attrs', [{'ranks': [0, 0]}, {'ranks': []}, {'rank': 9}, {'ranks': 3}, {'op': 'multiply'}, {'op': None}]
)
def test_forged_collectives_are_refused(attrs):
    p = trace_ranks(through(lambda a, b: ncc.all_reduce([a], [b], EIGHT, nl.add)), [(x,) for x in XS])[0]
    assert str(Program.from_json(p.to_json())) == str(p)
    d = json.loads(p.to_json())
    next(o for o in d['body'] if o['op'] == 'all_reduce')['attrs'] |= attrs
    with pytest.raises(KernelError): assert_ok(Program.from_json(json.dumps(d)))

def test_two_cores_gather_their_own_tiles():
    def kernel(x):
        out, lnc = nl.ndarray((16, 16), x.dtype, buffer=nl.shared_hbm), nl.program_id(0)
        mine, both = nl.ndarray((8, 8), x.dtype), nl.ndarray((8, 16), x.dtype)
        for _ in nl.affine_range(1):
            nisa.dma_copy(mine, x[nl.ds(8 * lnc, 8)])
            ncc.all_gather([mine], [both], [[0, 1]], 1)
            nisa.dma_copy(out[nl.ds(8 * lnc, 8)], both)
        return out
    for y in simulate_ranks(nki.jit(kernel)[2], [(x,) for x in XS[:2]]):
        np.testing.assert_array_equal(y, np.hstack(XS[:2]))

def test_ranks_that_work_for_hours_can_be_stopped():
    def long(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for _ in nl.sequential_range(10_000_000): nl.store(out, nl.load(x))
        return out
    stop, threads = threading.Event(), threading.active_count()
    threading.Timer(0.5, stop.set).start()
    since = time.monotonic()
    with stoppable(stop), pytest.raises(KeyboardInterrupt): simulate_ranks(long, [(x,) for x in XS[:2]])
    assert time.monotonic() - since < 20 and threading.active_count() <= threads
