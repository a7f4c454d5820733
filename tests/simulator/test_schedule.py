"What must hold of every timeline."
import numpy as np, pytest
from hypothesis import given, settings, strategies as st
from kernel_lab.nki import ArraySpec, profile_of, schedule, trace
from kernel_lab.nki.machine import CHIPS
from kernel_lab.nki.schedule import LANES
from tests.simulator.helpers import nisa, nl

def pipeline(steps, n, width, inside):
    "A kernel of `n` iterations that applies a list of engine steps to a tile of `width` columns."
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        outer = None if inside else nl.ndarray((128, width), x.dtype)
        for i in nl.affine_range(n):
            t = nl.ndarray((128, width), x.dtype) if inside else outer
            nisa.dma_copy(t, x[:, nl.ds(i * width, width)])
            for s in steps:
                if s == 'S': nisa.activation(t, nl.exp, t)
                if s == 'V': nisa.tensor_scalar(t, t, nl.add, 1.0)
                if s == 'G': nisa.affine_select(t, [[1, width]], 1, t, 0.0)
            nisa.dma_copy(out[:, nl.ds(i * width, width)], t)
        return out
    return trace(kernel, ArraySpec((128, n * width)))

kernels = st.builds(pipeline, st.lists(st.sampled_from('SVG'), max_size=4), st.integers(1, 6), st.sampled_from([16, 128, 512]), st.booleans())

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

FREE_DMA = {'dma_gbps': 1e9, 'dma_packet_ns': 1e-6}

@settings(max_examples=60, deadline=None)
@given(kernels, st.sampled_from(['trn1', 'trn2']), st.sampled_from(['vector', 'scalar', 'gpsimd']), st.floats(1, 20))
def test_a_cheaper_instruction_never_makes_the_program_longer(program, chip, engine, factor):
    "With queues that do not share anything; engines are fixed in the current dialect."
    chip = CHIPS[chip].but(**FREE_DMA)
    faster = chip.but(**{f'{engine}_ghz': chip.clock(engine.title() if engine != 'gpsimd' else 'GpSimd') * factor})
    assert schedule(program, faster).latency_us <= schedule(program, chip).latency_us + 1e-6

@pytest.mark.parametrize('figure,factor', [('dma_gbps', 1e6), ('vector_ghz', 10), ('scalar_ghz', 10)])
def test_a_faster_chip_is_not_much_slower(figure, factor):
    "Two queues that share the DMA engines can get into each other's way a little when one comes earlier, as on hardware."
    program, chip = pipeline('SVSV', 6, 512, True), CHIPS['trn1']
    assert schedule(program, chip.but(**{figure: getattr(chip, figure) * factor})).latency_us <= 1.03 * schedule(program, chip).latency_us

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
