"One small kernel, every figure of its timeline worked out by hand."
import numpy as np, pytest
from kernel_lab.nki import ArraySpec, profile_of, schedule, trace
from kernel_lab.nki.explain.efficiency import accelopt_peak_us, efficiency
from kernel_lab.nki.explain.critical_path import (critical_lines, critical_path, idle, multi_engine_rate,
    engine_concurrency)
from kernel_lab.nki.explain.neuron_profile import profiler_summary
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.explain.traffic import traffic
from kernel_lab.nki.explain.efficiency import what_if
from kernel_lab.nki.explain.waterfall import waterfall
from dialects import nisa, nl

def kernel(a, b):
    out, acc = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm), nl.ndarray((128, 512), nl.float32,
                                                                                    buffer=nl.psum)
    for _ in range(2):
        left, right = nl.load(a), nl.load(b)
    nisa.nc_matmul(acc, left, right)
    done = nl.ndarray((128, 512), nl.float32)
    nisa.tensor_copy(done, acc, engine=nisa.engine.vector)
    nisa.dma_copy(out, done)
    return out

PROGRAM = trace(kernel, ArraySpec((128, 128), 'bfloat16'), ArraySpec((128, 512), 'bfloat16'))
A, B, OUT = 128 * 128 * 2, 128 * 512 * 2, 128 * 512 * 4
FLOPS = 2 * 128 * 128 * 512

@pytest.fixture(scope='module', params=['trn1', 'trn2'])
def t(request): return schedule(PROGRAM, request.param)

def test_latency_is_the_chain(t):
    """Four loads one after the other, the product, the copy, the store: each with its start, its latency and what it
    takes to be seen."""
    c, ops = t.chip, [PROGRAM.instructions[k].op for k in t.instr]
    assert ops == ['dma_copy'] * 4 + ['nc_matmul', 'tensor_copy', 'dma_copy']
    gap = lambda a, b: 1e3 * (t.start_us[b] - t.end_us[a])
    assert gap(3, 4) == pytest.approx(c.dma_done_ns)  # the last load is seen
    assert gap(4, 5) == pytest.approx(max(c.tensor_latency_ns - c.tensor_start / c.tensor_ghz, 0) + c.semaphore_ns)
    assert gap(5, 6) == pytest.approx(
        max(c.vector_latency_ns - c.vector_start / c.vector_ghz, 0) + c.semaphore_ns + c.dma_start_ns)
    assert 1e3 * (t.end_us - t.start_us)[5] == pytest.approx((512 + c.vector_start) / c.vector_ghz)
    assert t.latency_us == pytest.approx(t.end_us[6] + c.end_ns / 1e3) and t.start_us[0] == pytest.approx(
        (c.start_ns + c.dma_start_ns) / 1e3)

def test_active_and_idle(t):
    p, table, us = profile_of(t), idle(t), t.latency_us
    for k, e in enumerate(('Tensor', 'Vector')):
        assert p.engines[e] == pytest.approx((t.end_us - t.start_us)[4 + k] / us)
    assert p.engines['DMA'] == pytest.approx(
        ((t.end_us - t.start_us)[6] + sum(b - a for a, b in joined(t, [0, 1, 2, 3]))) / us)
    assert table['DMA']['Tensor'] == pytest.approx(t.start_us[4] - t.chip.start_ns / 1e3) and table['another engine'][
        'Vector'] == pytest.approx(t.start_us[5] - t.chip.start_ns / 1e3)
    assert table['nothing left to do']['Tensor'] == pytest.approx(t.end_us[6] - t.end_us[4]) and np.allclose(
        table.sum(axis=1), us)
    assert multi_engine_rate(t) == 0 and engine_concurrency(t)[1] == pytest.approx((t.end_us - t.start_us)[4:6].sum())

def joined(t, rows):
    "Intervals of rows, those that touch made one."
    found = []
    for a, b in sorted((t.start_us[k], t.end_us[k]) for k in rows):
        if found and a <= found[-1][1]: found[-1][1] = max(found[-1][1], b)
        else: found.append([a, b])
    return found

def test_bytes(t):
    table = traffic(t).set_index(['tensor', 'way'])
    assert (t.bytes_in, t.bytes_out, t.spilled) == (2 * (A + B), OUT, 0)
    assert table.again.to_dict() == {('a', 'in'): A, ('b', 'in'): B, (PROGRAM.outputs[0].name, 'out'): 0}
    s = profiler_summary(t)
    assert (s['psum_write_bytes'], s['psum_read_bytes']) == (512 * 4, 512 * 4)

def test_efficiency(t):
    e, c, us = efficiency(t), t.chip, t.latency_us
    peak, moved = 2 * 128 * 128 * 2.4e9, 2 * (A + B) + OUT
    assert (e.flops, e.hbm_bytes, e.least_bytes) == (FLOPS, moved, A + B + OUT)
    assert e.mfu == e.hfu == pytest.approx(FLOPS /
                                           (peak * us * 1e-6)) and e.mbu == pytest.approx(moved /
                                                                                          (c.hbm_gbps * us * 1e3))
    assert e.intensity == pytest.approx(FLOPS / moved) and e.ridge == pytest.approx(
        peak / c.hbm_gbps / 1e9) and e.bound == 'memory'
    assert e.roof_share == pytest.approx(FLOPS / us * 1e6 / (FLOPS / moved * c.hbm_gbps * 1e9))
    assert e.peak_pct == pytest.approx(100 * max(FLOPS / peak * 1e6, (A + B + OUT) / c.hbm_gbps / 1e3) / us)
    best = max(FLOPS / 23.75e6, (A + B + OUT) / (410 * 1.073741824) / 1e3)
    assert (e.accelopt_pct == pytest.approx(100 * best / us)) if c.name == 'trn1' else (
        e.accelopt_pct is None and accelopt_peak_us(c, FLOPS, 0, moved) is None)

def test_path_lines_and_bars(t):
    path, lines, bars = critical_path(t), critical_lines(t), waterfall(t)
    assert list(path.op)[-4:] == ['nc_matmul', 'tensor_copy', 'dma_copy', 'end'
                                  ] and path.line.iloc[-2] == PROGRAM.instructions[-1].line > 0
    for total in (path.dur_us.sum() + path.wait_us.sum(), lines.share.sum() * t.latency_us, bars.us.sum()):
        assert total == pytest.approx(t.latency_us)
    assert (bars.us >= -1e-9).all() and bars.bar[0] == 'ideal memory'
    moved = (A + B) / min(t.chip.dma_gbps, t.chip.hbm_gbps) / 1e3      # what the two copies take, and are issued in
    assert moved < dict(zip(bars.bar, bars.us))['reloads'] < moved + 2 * t.chip.dma_issue_ns / 1e3
    busy = profile_of(t).lines[PROGRAM.instructions[4].line]
    assert busy == pytest.approx({'Tensor': (t.end_us - t.start_us)[4]})

def test_what_if(t):
    "Each answer is a schedule on a chip made by hand."
    answers = dict(zip(what_if(PROGRAM, t.chip).what_if, what_if(PROGRAM, t.chip).latency_us))
    free = t.chip.but(dma_gbps=1e9, hbm_gbps=1e9, dma_packet_ns=0, dma_issue_ns=0, dma_start_ns=0, dma_done_ns=0)
    assert answers['nothing changed'] == t.latency_us and answers['DMA were free'] == schedule(
        PROGRAM, free).latency_us < t.latency_us
    assert answers['SBUF had no end'] == answers['there were a second Vector engine'] == t.latency_us
    other = 'trn2' if t.chip.name == 'trn1' else 'trn1'
    assert answers[f'it ran on {other}'] == schedule(PROGRAM, CHIPS[other]).latency_us
