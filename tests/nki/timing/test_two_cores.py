"Two cores side by side, and what is exchanged with other devices: against the sums worked out by hand."
import json
import numpy as np, pytest
from hypothesis import given, settings, strategies as st
from kernel_lab.nki import ArraySpec, profile_of, schedule, trace
from kernel_lab.nki.lang import collectives as ncc
from kernel_lab.nki.lang.multicore import core_barrier, sendrecv
from kernel_lab.nki.explain.efficiency import efficiency
from kernel_lab.nki.explain.critical_path import critical_path, idle
from kernel_lab.nki.explain.perfetto import perfetto
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.ranks import trace_ranks
from kernel_lab.nki.ir.cost import RING_COSTS, ring_collective_ns
from kernel_lab.nki.timing.timeline import LANES
from kernel_lab.nki.explain.efficiency import what_if
from kernel_lab.nki.explain.waterfall import waterfall
from dialects import nisa, nl
from timelines import assert_after_its_inputs, ns, pipeline

def work(steps, count, width, how):
    "Each core loads, works on and stores tiles of its own; then, if they meet, fetches what the other stored."
    def kernel(x):
        core = nl.program_id(0)
        out, part = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        for i in nl.sequential_range(count):
            t, u = nl.ndarray((128, width), x.dtype), nl.ndarray((128, width), x.dtype)
            at = nl.ds(i * width, width)
            nisa.dma_copy(t, x[core, :, at])
            for s in steps:
                (nisa.activation(t, nl.exp, t) if s == 'S' else
                 nisa.tensor_scalar(t, t, nl.add, 1.0) if s == 'V' else nisa.affine_select(t, [[1, width]], 1, t, 0.0))
            if how == 'apart': nisa.dma_copy(out[core, :, at], t); continue
            nisa.dma_copy(part[core, :, at], t)
            if how == 'swap': sendrecv(t, u, 1 - core, 1 - core)
            else:
                core_barrier(part, (0, 1))
                nisa.dma_copy(u, part[1 - core, :, at])
            nisa.dma_copy(out[core, :, at], u)
        return out
    return trace(kernel, ArraySpec((2, 128, count * width)), grid=(2,), chip='trn2')

kernels = st.builds(work, st.lists(st.sampled_from('SVG'), max_size=3), st.integers(1, 4),
                    st.sampled_from([16, 256, 512]), st.sampled_from(['apart', 'barrier', 'swap']))

@settings(max_examples=40, deadline=None)
@given(kernels, st.sampled_from(['trn2', 'trn3']))
def test_what_must_hold(program, chip):
    "Lanes of a core in order, inputs before uses, HBM never faster than it is, figures that add up."
    t = schedule(program, chip)
    assert t.cores == 2 and {0, 1} <= set(t.core) and (t.end_us > t.start_us).all() and t.uncosted == 0
    for core in (0, 1):
        for k, lane in enumerate(LANES):
            mine = np.flatnonzero((t.lane == k) & ((t.core == core) | (t.core < 0)))
            mine = mine[np.argsort(t.start_us[mine], kind='stable')]
            assert (t.start_us[mine][1:]
                    >= t.end_us[mine][:-1] - 1e-9).all(), f'{lane} of core {core} does two things at once'
    assert_after_its_inputs(t)
    table = idle(t)
    assert len(table) == 12 and np.allclose(table.sum(axis=1), t.latency_us)
    assert waterfall(t).us.sum() == pytest.approx(t.latency_us) and (waterfall(t).us >= -1e-9).all()
    path = critical_path(t)
    assert (path.dur_us + path.wait_us).sum() == pytest.approx(t.latency_us)
    p = profile_of(t)
    assert all(0 <= s <= 1 for s in p.engines.values()) and 0 < p.peak_pct <= 100
    assert (t.bytes_in + t.bytes_out) / (t.end_us.max() - t.start_us.min()) / 1e3 <= 2 * t.chip.hbm_gbps

@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from('SVG'), max_size=3), st.integers(1, 4), st.sampled_from(['apart', 'barrier', 'swap']))
def test_two_cores_beat_one_after_the_other(steps, count, how):
    "Never slower than either half alone, never as slow as both in turn."
    both = schedule(work(steps, count, 512, how))
    ends = [both.end_us[(both.core == c)].max() - both.start_us[(both.core == c)].min() for c in (0, 1)]
    assert max(ends) <= both.latency_us < sum(ends) + 16

def test_apart_is_one_core_with_more_room():
    "Where HBM gives all that both ask for, each core takes exactly as long as it would alone."
    program, roomy = work('SVG', 4, 512, 'apart'), CHIPS['trn2'].but(hbm_stack_gbps=1e9)
    t = schedule(program, roomy)
    alone = np.sort(t.start_us[t.core == 0]), np.sort(t.start_us[t.core == 1])
    assert np.allclose(*alone)
    shared = schedule(work('', 12, 512, 'apart'), CHIPS['trn2'].but(hbm_gbps=100))
    assert shared.latency_us * 1e3 >= (shared.bytes_in + shared.bytes_out) / 200

def test_a_barrier_is_two_semaphores():
    "The fetch after it begins when the other core's store has ended, been seen, and both have been told."
    t, c = schedule(work('', 1, 512, 'barrier')), CHIPS['trn2']
    f = t.frame()
    stored = f.end_us[(f.core == 1) & (f.lane == 'DMA out')].iloc[0]
    fetched = f.start_us[(f.core == 0) & (f.lane == 'DMA in')].iloc[1]
    assert fetched == pytest.approx(stored + (c.dma_done_ns + 2 * c.semaphore_ns + c.dma_start_ns) / 1e3)

def test_a_swap_takes_both_queues():
    t = schedule(work('', 2, 512, 'swap'))
    swaps = np.flatnonzero([t.program.instructions[k].op == 'sendrecv' for k in t.instr])
    assert len(swaps) == 2 and (t.core[swaps] == -1).all()
    for c in (0, 1):
        before = [k for k in range(swaps[0]) if t.core[k] == c and t.lane[k] == t.lane[swaps[0]]]
        assert t.start_us[swaps[0]] >= max(t.end_us[before])

def test_each_core_has_its_own_memory():
    "Twenty tiles of 8 KB fit a core's 208 KB twice, not once for both."
    def kernel(x):
        out, core = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.program_id(0)
        tiles = [nl.load(x[core, :, nl.ds(k * 2048, 2048)]) for k in range(20)]
        core_barrier(out, (0, 1))
        for k, t in enumerate(tiles): nl.store(out[core, :, nl.ds(k * 2048, 2048)], t)
        return out
    t = schedule(trace(kernel, ArraySpec((2, 128, 40960)), grid=(2,), chip='trn2'))
    assert t.sbuf_peak == 20 * 8192

def test_the_trace_has_a_process_a_core(tmp_path):
    t = schedule(work('SV', 2, 256, 'barrier'))
    events = json.loads(perfetto(t, tmp_path / 't.json', arrows=True, points=20).read_text())['traceEvents']
    assert [e['pid'] for e in events if e['name'] == 'process_name'] == [1, 2]
    rows = {}
    for e in events:
        if e['ph'] == 'X': rows.setdefault(e['tid'], []).append((ns(e['ts']), ns(e['ts']) + ns(e['dur'])))
    assert sum(map(len, rows.values())) == len(t) and all(b[0] >= a[1]
                                                          for some in rows.values()
                                                          for a, b in zip(some, some[1:]))

def test_efficiency_counts_both_cores():
    both = efficiency(schedule(work('V', 4, 512, 'apart')))
    assert both.mbu == pytest.approx(
        both.hbm_bytes / (2 * 370 * both.latency_us * 1e3)) and both.ridge == pytest.approx(
        128 * (8 * 0.96 + 4 * 1.2 + 2 * 1.2) / 370)

XS = [(np.zeros((256, 512), np.float32),) for _ in range(8)]
CALLS = {
    'all_reduce': lambda a, b, n: ncc.all_reduce([a], [b], [[*range(n)]], nl.add),
    'all_to_all': lambda a, b, n: ncc.all_to_all([a], [b], [[*range(n)]], 0),
    'collective_permute': lambda a, b, n: ncc.collective_permute([a], [b], [(r, (r + 1) % n) for r in range(n)])}

@pytest.mark.parametrize('ranks', [2, 4, 8])
@pytest.mark.parametrize('call', list(CALLS))
def test_collectives_take_their_time(call, ranks):
    def kernel(x):
        a, b = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        nisa.dma_copy(a, x)
        CALLS[call](a, b, ranks)
        return b
    t = schedule(trace_ranks(kernel, XS[:ranks])[0], 'trn2')
    steps, share = {
        'all_reduce': (2 * (ranks - 1), 2 * (ranks - 1) / ranks), 'all_to_all': (ranks - 1, (ranks - 1) / ranks),
        'collective_permute': (1, 1)}[call]
    row = [t.program.instructions[k].op for k in t.instr].index(call)
    assert (t.end_us - t.start_us)[row] == pytest.approx(
        (steps * 1640 + share * 256 * 512 * 4 / 160) / 1e3) and t.uncosted == 0
    assert t.bytes_in >= 2 * 256 * 512 * 4 and np.isfinite(waterfall(t).us).all() and set(RING_COSTS) >= {call}
    assert ring_collective_ns(t.program, t.program.instructions[t.instr[row]],
                              CHIPS['trn2'].but(link_gbps=80))[0] > 1e3 * (t.end_us - t.start_us)[row]

def test_a_second_vector_engine():
    """Independent instructions on Vector take half the time; a chain of them takes as long as before; the others do
    not gain."""
    def kernel(count, chain):
        def f(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            t, u = nl.load(x), [nl.ndarray(x.shape, x.dtype) for _ in range(count)]
            for k in range(count): nisa.tensor_scalar(u[k], u[k - 1] if chain and k else t, nl.add, 1.0)
            nl.store(out, u[-1])
            return out
        return trace(f, ArraySpec((128, 2048)))
    one, two = CHIPS['trn1'], CHIPS['trn1'].but(vector_queues=2)
    def span(p, chip):
        t = schedule(p, chip)
        return t.end_us[t.lane == 1].max() - t.start_us[t.lane == 1].min()
    for chain, gain in ((False, 2), (True, 1)):
        assert span(kernel(8, chain), one) / span(kernel(8, chain), two) == pytest.approx(gain, rel=0.02)
    t = schedule(kernel(8, False), two)
    rows = np.flatnonzero(t.lane == 1)
    for queue in (rows[::2], rows[1::2]): assert (t.start_us[queue][1:] >= t.end_us[queue][:-1] - 1e-9).all()
    ask = lambda p: dict(zip(what_if(p).what_if, what_if(p).speedup))['there were a second Vector engine']
    assert ask(kernel(8, False)) > 1.1 and ask(kernel(8, True)) == pytest.approx(1) and ask(pipeline('S', 3, 512,
                                                                                                     True)) == 1
