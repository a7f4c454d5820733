"What must hold of every timeline."
import numpy as np, pytest
from hypothesis import given, settings, strategies as st
from kernel_lab.nki import ArraySpec, profile_of, schedule, trace
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.timing.timeline import LANES
from kernel_lab.nki.ir.instructions import INSTRUCTIONS
from kernel_lab.nki.ir.nodes import Access
from kernel_lab.nki.explain.efficiency import what_if
from dialects import nisa, nl, old, onl
from timelines import assert_after_its_inputs, pipeline

kernels = st.builds(pipeline, st.lists(st.sampled_from('SVG'), max_size=4), st.integers(1, 6),
                    st.sampled_from([16, 128, 512]), st.booleans())

@settings(max_examples=40, deadline=None)
@given(kernels, st.sampled_from(['trn1', 'trn2']))
def test_invariants(program, chip):
    t = schedule(program, chip)
    assert len(t) == program.count and (t.end_us >= t.start_us).all()
    for k, lane in enumerate(LANES):
        m = t.lane == k
        assert (t.start_us[m][1:] >= t.end_us[m][:-1] - 1e-9).all(), f'{lane} is not in order'
    p = profile_of(t)
    assert all(0 <= s <= 1 for s in p.engines.values()) and 0 < p.peak_pct <= 100
    assert p.hbm_read_bytes == p.hbm_write_bytes == program.inputs[0].size * 4
    assert sum(sum(v.values()) for v in p.lines.values()) == pytest.approx(float((t.end_us - t.start_us).sum()))

@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from('SVG'), max_size=3), st.integers(2, 5))
def test_own_tiles_are_never_slower(steps, n):
    own, shared = (schedule(pipeline(steps, n, 256, inside)).latency_us for inside in (True, False))
    assert own <= shared + 1e-6

def test_a_consumer_starts_after_its_producer():
    t = schedule(pipeline('SV', 1, 128, True))
    assert (t.start_us[1:] >= t.end_us[:-1]).all()

@settings(max_examples=40, deadline=None)
@given(kernels, st.sampled_from(['trn1', 'trn2']))
def test_nothing_starts_before_its_inputs_exist(program, chip):
    assert assert_after_its_inputs(schedule(program, chip)) >= 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from('SV'), max_size=4),
    st.integers(1, 6),
    st.sampled_from([16, 128, 512]),
    st.sampled_from(['trn1', 'trn2']),
)
def test_nothing_starts_before_its_inputs_exist_out_of_order(steps, n, width, chip):
    "The earlier dialect's compiler moves instructions, and still keeps to this."
    @old.jit
    def kernel(x):
        out = onl.ndarray(x.shape, dtype=x.dtype, buffer=onl.shared_hbm)
        for i in onl.affine_range(n):
            t = onl.load(x[:, onl.ds(i * width, width)])
            for s in steps: t = onl.exp(t) if s == 'S' else onl.add(t, t)
            onl.store(out[:, onl.ds(i * width, width)], t)
        return out
    t = schedule(trace(kernel, ArraySpec((128, n * width))), chip)
    assert assert_after_its_inputs(t) >= n
    for lane in range(len(LANES)):
        mine = np.flatnonzero(t.lane == lane)
        mine = mine[np.argsort(t.start_us[mine], kind='stable')]
        assert (t.start_us[mine][1:] >= t.end_us[mine][:-1] - 1e-9).all(), f'{LANES[lane]} does two things at once'

def summing(steps, n, width):
    "Loads and engine work, one store at the end: no copy out ever competes with a copy in."
    def kernel(x):
        out, acc = nl.ndarray((128, width), x.dtype, buffer=nl.shared_hbm), nl.ndarray((128, width), x.dtype)
        nisa.memset(acc, 0.0)
        for i in nl.affine_range(n):
            t = nl.ndarray((128, width), x.dtype)
            nisa.dma_copy(t, x[:, nl.ds(i * width, width)])
            for s in steps:
                if s == 'S': nisa.activation(t, nl.exp, t)
                if s == 'G': nisa.affine_select(t, [[1, width]], 1, t, 0.0)
            nisa.tensor_tensor(acc, acc, t, nl.add)
        nisa.dma_copy(out, acc)
        return out
    return trace(kernel, ArraySpec((128, n * width)))


@settings(max_examples=60, deadline=None)
@given(
    st.builds(summing, st.lists(st.sampled_from('SG'), max_size=3), st.integers(1, 6), st.sampled_from([16, 128, 512])),
    st.sampled_from(['trn1', 'trn2']),
    st.sampled_from(['vector_ghz', 'scalar_ghz', 'gpsimd_ghz', 'dma_gbps']),
    st.floats(1, 20),
)
def test_a_cheaper_instruction_never_makes_it_longer_on_the_real_queues(program, chip, figure, factor):
    """With the DMA as it is, wherever copies in and copies out do not overlap. Where they do, they share the engines
    in the order of the program, and a store that comes earlier takes from a load that others wait for: that anomaly
    is the hardware's, and the next test bounds it."""
    chip = CHIPS[chip]
    assert schedule(program, chip.but(**{figure: getattr(chip, figure) *
                                         factor})).latency_us <= schedule(program, chip).latency_us + 1e-6

FREE_DMA = {'dma_gbps': 1e9, 'hbm_gbps': 1e9, 'dma_packet_ns': 1e-6}

@settings(max_examples=60, deadline=None)
@given(kernels, st.sampled_from(['trn1', 'trn2']), st.sampled_from(['vector', 'scalar', 'gpsimd']), st.floats(1, 20))
def test_a_cheaper_instruction_never_makes_the_program_longer(program, chip, engine, factor):
    "With queues that do not share anything; engines are fixed in the current dialect."
    chip = CHIPS[chip].but(**FREE_DMA)
    faster = chip.but(**{f'{engine}_ghz': chip.clock(engine.title() if engine != 'gpsimd' else 'GpSimd') * factor})
    assert schedule(program, faster).latency_us <= schedule(program, chip).latency_us + 1e-6

@pytest.mark.parametrize('figure,factor', [('dma_gbps', 1e6), ('vector_ghz', 10), ('scalar_ghz', 10)])
def test_a_faster_chip_is_not_much_slower(figure, factor):
    """Two queues that share the DMA engines can get into each other's way a little when one comes earlier, as on
    hardware."""
    program, chip = pipeline('SVSV', 6, 512, True), CHIPS['trn1']
    assert schedule(program, chip.but(**{figure: getattr(chip, figure) *
                                         factor})).latency_us <= 1.03 * schedule(program, chip).latency_us

def test_the_frame_is_the_timeline():
    t = schedule(pipeline('SV', 3, 128, True))
    f = t.frame()
    assert len(f) == len(t) and np.allclose(f.end_us, t.end_us) and set(f.lane) <= set(LANES)
    assert list(f.iteration[:5]) == ['i0=0', 'i0=0', 'i0=0', 'i0=0', 'i0=1']

def test_double_writes_to_one_place_stay_in_order():
    def kernel(x):
        out, t = nl.ndarray((128, 64), x.dtype, buffer=nl.shared_hbm), nl.ndarray((128, 64), x.dtype)
        nisa.memset(t, 1.0, engine=nisa.engine.gpsimd)
        nisa.activation(t, nl.exp, nl.load(x))
        nisa.dma_copy(out, t)
        return out
    f = schedule(trace(kernel, ArraySpec((128, 64)))).frame()
    by = {op: f[f.op == op] for op in ('memset', 'activation')}
    assert by['activation'].start_us.iloc[0] >= by['memset'].end_us.iloc[0]

@pytest.mark.parametrize('chip', list(CHIPS))
def test_every_row_of_the_instruction_table_has_a_cost(chip):
    "A rule for each that an engine runs; DMA has one for all."
    missing = [name for name, row in INSTRUCTIONS.items() if row.engines != ('DMA',) and not callable(row.cost)]
    assert not missing and all(e in (*LANES, 'DMA') for row in INSTRUCTIONS.values() for e in row.engines)
    assert all(CHIPS[chip].clock(e) > 0 for row in INSTRUCTIONS.values() for e in row.engines if e != 'DMA')

@settings(max_examples=30, deadline=None)
@given(kernels, st.sampled_from(list(CHIPS)))
def test_no_instruction_is_free(program, chip):
    t = schedule(program, chip)
    assert t.uncosted == profile_of(t).uncosted == 0 and (t.end_us > t.start_us).all() and ' 0 without a cost' in str(
        profile_of(t))

def test_a_rule_that_says_nothing_is_counted(monkeypatch):
    from dataclasses import replace
    monkeypatch.setitem(INSTRUCTIONS, 'activation', replace(INSTRUCTIONS['activation'], cost=lambda w: 0))
    assert profile_of(schedule(pipeline('SVS', 3, 128, True))).uncosted == 6

def test_what_if():
    "Each change helps where it should, and not elsewhere."
    ask = lambda p: dict(zip(what_if(p, 'trn2').what_if, what_if(p, 'trn2').speedup))
    copies, vector = ask(pipeline('', 6, 512, True)), ask(pipeline('VVVVVVVV', 6, 512, False))
    assert copies['DMA were free'] > 1.2 and copies['Vector were twice as fast'] == 1 and copies['SBUF had no end'] == 1
    assert vector['Vector were twice as fast'] > 1.1 and vector['DMA were free'] > 1 and vector[
        'Scalar were twice as fast'] == 1
    assert vector['it ran on trn1'] < 1

def test_what_if_sbuf_had_no_end():
    "Where SBUF has place for one tile, each load waits for the store before it; with no end to it they overlap."
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(8):
            t = nl.ndarray((128, 16384), x.dtype)
            nisa.dma_copy(t, x[:, nl.ds(i * 16384, 16384)])
            for _ in range(4): nisa.tensor_scalar(t, t, nl.multiply, 2.0)
            nisa.dma_copy(out[:, nl.ds(i * 16384, 16384)], t)
        return out
    chip = CHIPS['trn2'].but(sbuf_bytes=CHIPS['trn2'].sbuf_reserved + 100_000)
    table = what_if(trace(kernel, ArraySpec((128, 8 * 16384))), chip)
    assert dict(zip(table.what_if, table.speedup))['SBUF had no end'] > 1.1
