"What must hold of every explanation of a timeline: nothing is lost, nothing is counted twice."
import json
from dataclasses import replace
import numpy as np, pytest
from hypothesis import example, given, settings, strategies as st
from kernel_lab.core.errors import UsageError
from kernel_lab.nki import ArraySpec, profile_of, schedule, trace
from kernel_lab.nki.explain.efficiency import efficiency, flops
from kernel_lab.nki.chip.dtypes import itemsize
from kernel_lab.nki.explain.critical_path import (critical_lines, critical_path, critical_rows, idle,
    multi_engine_rate, engine_concurrency)
from kernel_lab.nki.explain.neuron_profile import profiler_json, profiler_summary
from kernel_lab.nki.explain.perfetto import dma_rate, memory_over_time, perfetto
from kernel_lab.nki.chip.chips import CHIPS, ENGINES
from kernel_lab.nki.explain.profile import matmul_work
from kernel_lab.nki.timing.timeline import LANES
from kernel_lab.nki.explain.traffic import chip_bytes, copies, regions, touched_bytes, traffic
from kernel_lab.nki.explain.efficiency import what_if
from kernel_lab.nki.explain.waterfall import waterfall
from kernel_lab.targets.neuron_profile import (
    ToolError,
    measured_profile,
    measured_timeline,
    refuse_simulation,
    summary_of,
)

from dialects import nisa, nl, old, onl
from timelines import pipeline, product

def earlier(width, tile, steps):
    "A kernel of the earlier dialect whose last tile is cut by a mask."
    @old.jit
    def kernel(x):
        out = onl.ndarray(x.shape, dtype=x.dtype, buffer=onl.shared_hbm)
        p, f = onl.arange(128)[:, None], onl.arange(tile)[None, :]
        for i in onl.affine_range(-(-width // tile)):
            t = onl.load(x[p, i * tile + f], mask=i * tile + f < width)
            for s in steps:
                t = onl.exp(t, mask=i * tile + f < width) if s == 'S' else onl.add(t, t, mask=i * tile + f < width)
            onl.store(out[p, i * tile + f], t, mask=i * tile + f < width)
        return out
    return trace(kernel, ArraySpec((128, width)))

kernels = st.one_of(
    st.builds(pipeline, st.lists(st.sampled_from('SVG'), max_size=4), st.integers(1, 6), st.sampled_from([16, 128,
                                                                                                          512]),
              st.booleans()),
    st.builds(product, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from(['float32',
                                                                                                 'bfloat16']),
              st.booleans()),
    st.builds(earlier, st.integers(1, 400), st.sampled_from([32, 100]), st.lists(st.sampled_from('SV'), max_size=3)))
chips = st.sampled_from(list(CHIPS))

@settings(max_examples=60, deadline=None)
@given(kernels, chips)
def test_every_microsecond_has_one_name(program, chip):
    t = schedule(program, chip)
    table, busy = idle(t), profile_of(t).engines
    assert np.allclose(table.sum(axis=1), t.latency_us, rtol=1e-12) and (table.to_numpy() >= -1e-9 * t.latency_us).all()
    for e in ENGINES: assert table.active[e] == pytest.approx(busy[e] * t.latency_us, abs=1e-6)
    assert engine_concurrency(t).sum() == pytest.approx(t.latency_us) and 0 <= multi_engine_rate(t) <= 1
    assert (engine_concurrency(t) * np.arange(5)).sum() == pytest.approx(sum(table.active[e]
                                                                             for e in ENGINES), abs=1e-6)

@settings(max_examples=60, deadline=None)
@given(kernels, chips)
def test_the_critical_path_is_the_latency(program, chip):
    t = schedule(program, chip)
    path, rows = critical_path(t), critical_rows(t)
    assert path.dur_us.sum() + path.wait_us.sum() == pytest.approx(t.latency_us)
    assert (path.dur_us >= -1e-9).all() and (path.wait_us >= -1e-9).all()
    assert t.end_us[rows[-1]] == t.end_us.max() and t.after[rows[0]] == -1 and (t.after[rows[1:]] == rows[:-1]).all()
    assert critical_lines(t).share.sum() == pytest.approx(1)

@settings(max_examples=60, deadline=None)
@given(kernels, chips)
def test_the_waterfall_adds_up(program, chip):
    t = schedule(program, chip)
    bars = waterfall(t)
    assert (bars.us >= 0).all() and bars.us.sum() == pytest.approx(t.latency_us, rel=1e-12)
    assert bars.bar[0] in ('ideal memory', 'ideal compute')

@settings(max_examples=40, deadline=None)
@given(kernels)
def test_bytes_are_counted_once_and_again(program):
    t = schedule(program)
    table = traffic(t)
    if not any(o.mask for o in program.instructions):
        assert (table.bytes[table.way == 'in'].sum(), table.bytes[table.way == 'out'].sum()) == (t.bytes_in,
                                                                                                 t.bytes_out)
    assert (table.bytes == table.unique + table.again).all() and (table.again >= 0).all()
    for row in table.itertuples():      # every kernel of this page needs all of its inputs and writes all of its output
        x = next(x for x in program.tensors if x.name == row.tensor)
        assert row.unique == x.size * itemsize(x.dtype)
    again = regions(t)
    assert (again.bytes * (again.copies - 1)).sum() == table.again.sum()
    assert chip_bytes(t).loc['DMA in', 'SBUF written'] == table.bytes[table.way == 'in'].sum()

@settings(max_examples=30, deadline=None)
@given(kernels, chips)
@example(earlier(29, 100, []), 'trn1')          # 0.29 of a tile is a whole number of bytes, but for the last bit of a float
def test_what_is_exported_is_read_back(program, chip):
    t = schedule(program, chip)
    p, q = profile_of(t), measured_profile(summary_of(profiler_json(t)), t.chip)
    for field in ('hbm_read_bytes', 'hbm_write_bytes', 'flops', 'transpose_flops', 'instructions', 'bound',
                  'spill_bytes', 'kind'):
        assert getattr(p, field) == getattr(q, field), field
    assert (q.latency_us, q.peak_us, q.peak_pct) == pytest.approx(
        (p.latency_us, p.peak_us, p.peak_pct)) and q.engines == pytest.approx(p.engines)
    again = measured_timeline(profiler_json(t), t.chip, t.latency_us)
    order = np.argsort(t.start_us, kind='stable')
    assert np.allclose(np.sort(again.end_us), np.sort(t.end_us - t.start_us.min())) and again.kind == 'simulated'
    assert sorted(again.lane) == sorted(t.lane) and np.allclose(again.start_us, (t.start_us - t.start_us.min())[order])
    with pytest.raises(ToolError, match='simulated'): refuse_simulation(json.loads(profiler_json(t)))

@settings(max_examples=25, deadline=None)
@given(kernels, chips)
def test_a_trace_is_well_formed(tmp_path_factory, program, chip):
    t = schedule(program, chip)
    path = tmp_path_factory.mktemp('trace') / 'trace.json'
    data = json.loads(perfetto(t, path, arrows=True, points=20).read_text())
    events, slices = data['traceEvents'], [e for e in data['traceEvents'] if e['ph'] == 'X']
    assert data['otherData']['kind'] == 'simulated' and len(slices) == len(t)
    names = {e['tid']: e['args']['name'] for e in events if e['ph'] == 'M' and e['name'] == 'thread_name'}
    for tid, name in names.items():
        ns = sorted((round(e['ts'] * 1000), round((e['ts'] + e['dur']) * 1000)) for e in slices if e['tid'] == tid)
        assert all(b[0] >= a[1] for a, b in zip(ns, ns[1:])), f'slices of {name} overlap'
    for e in events:
        assert e['ph'] in 'XMCsf' and e['pid'] == 1 and isinstance(e['name'], str) and (e['ph'] == 'M' or e['ts'] >= 0)
        if e['ph'] == 's': assert any(s['tid'] == e['tid'] and s['ts'] <= e['ts'] <= s['ts'] + s['dur'] for s in slices)
        if e['ph'] == 'f': assert any(s['tid'] == e['tid'] and s['ts'] == e['ts'] for s in slices)

@settings(max_examples=25, deadline=None)
@given(kernels, chips)
def test_memory_and_rates_over_time(program, chip):
    t = schedule(program, chip)
    when, size = memory_over_time(t)
    assert size.max(initial=0) == pytest.approx(t.sbuf_peak) and (len(size) == 0 or size[-1] == 0)
    edges = np.linspace(0, t.latency_us, 30)
    moved = [(dma_rate(t, lane, edges) * np.diff(edges)).sum() * 1e3 for lane in LANES[-2:]]
    table = traffic(t)
    assert moved == pytest.approx([table.bytes[table.way == w].sum() for w in ('in', 'out')], rel=1e-6)

def test_flops_are_those_of_the_profile():
    t = schedule(product(2, 2, 3, 'float32', True))
    assert flops(t)[:2] == matmul_work(t.program, t.chip)[:2]
    e = efficiency(t)
    assert e.peak_pct == profile_of(t).peak_pct and 0 < e.mfu <= e.hfu < 1 and 0 < e.roof_share < 1

def test_keeping_a_tile_moves_its_bar():
    again, kept = (schedule(product(2, 2, 3, 'float32', keep)) for keep in (False, True))
    table = lambda t: traffic(t).set_index(['tensor', 'way']).again
    assert table(kept)['a', 'in'] == 0 and table(again)['a', 'in'] == 2 * 256 * 256 * 4
    bar = lambda t: dict(zip(waterfall(t).bar, waterfall(t).us))['reloads']
    assert bar(kept) < bar(again)


@pytest.mark.parametrize(
    'ask',
    [
        idle,
        critical_path,
        critical_lines,
        traffic,
        regions,
        chip_bytes,
        efficiency,
        waterfall,
        memory_over_time,
        profiler_summary,
    ],
)
def test_a_measured_timeline_is_refused(ask):
    t = replace(schedule(pipeline('SV', 2, 128, True)), after=None, cause=None, kind='measured')
    with pytest.raises(UsageError, match='cannot be told from it'): ask(t)

def test_a_gather_counts_as_all_different():
    def kernel(x, index):
        out, t = nl.ndarray((128, 64), x.dtype, buffer=nl.shared_hbm), nl.ndarray((128, 64), x.dtype)
        nisa.dma_copy(t, x.ap([[64, 128], [1, 64]], vector_offset=nl.load(index), indirect_dim=0))
        nisa.dma_copy(out, t)
        return out
    t = schedule(trace(kernel, ArraySpec((512, 64)), ArraySpec((128, 1), 'uint32')))
    row = traffic(t).set_index('tensor').loc['x']
    assert (row['bytes'], row['unique']) == (128 * 64 * 4, 128 * 64 * 4) and any(c.pattern == () for c in copies(t))
    assert touched_bytes([c for c in copies(t) if c.pattern == ()] * 9, 512 * 64 * 4) == 512 * 64 * 4

def test_what_if_says_why_not():
    p = pipeline('SV', 4, 512, True)
    table = what_if(p, 'trn2', {'SBUF had 17 KiB': CHIPS['trn2'].but(sbuf_bytes=17 * 1024)})
    assert np.isnan(table.speedup[1]) and 'SBUF is full' in table.why_not[1] and table.speedup[0] == 1
    answers = dict(zip(what_if(p).what_if, what_if(p).speedup))
    assert answers['DMA were free'] > 1 and answers['GpSimd were twice as fast'] == 1 and {
        'it ran on trn1', 'it ran on trn3'} < set(answers)
