"""Prices that only traces of trn2 show: descriptors made by GpSimd, loads of registers."""
import pytest

from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.ir.cost import is_made_by_gpsimd
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.flat_program import work_ns
from kernel_lab.nki.timing.timeline import schedule

TRN2 = CHIPS['trn2']
COPY = '''
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def copies(x, rows):
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    index = nl.ndarray((128, 1), nl.int32, buffer=nl.sbuf)
    tile = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    beside = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=rows)
    {copy}
    nisa.memset(beside, 1.0, engine=nisa.gpsimd_engine)
    nisa.dma_copy(dst=out, src=tile)
    return out
'''
WHOLE = 'nisa.dma_copy(dst=tile, src=x{})'
GATHER = 'nisa.dma_copy(dst=tile, src=x.ap(pattern=[[512, 128], [1, 512]], vector_offset=index, indirect_dim=0))'
SOFTWARE = [WHOLE.format(', dge_mode=nisa.dge_mode.swdge'), WHOLE.format(', engine=nisa.gpsimd_engine'), GATHER]
OTHERS = [WHOLE.format(a) for a in ('', ', dge_mode=nisa.dge_mode.hwdge', ', dge_mode=nisa.dge_mode.none',
                                    ', engine=nisa.scalar_engine', ', engine=nisa.engine.sync')]


def copied(text, chip):
    specs = [ArraySpec((128, 512)), ArraySpec((128, 1), 'int32')]
    return schedule(trace_source(COPY.format(copy=text), None, specs, chip), chip)


@pytest.mark.parametrize('chip', CHIPS)
@pytest.mark.parametrize('text', SOFTWARE)
def test_gpsimd_makes_the_descriptors_before_the_copy_begins(text, chip):
    t, c, plain = copied(text, chip), CHIPS[chip], copied(OTHERS[0], chip)
    copy, beside = t.program.instructions[1], [o.op for o in t.program.instructions].index('memset')
    assert is_made_by_gpsimd(copy)
    issued = 1e3 * t.start_us[1] - c.swdge_ns - c.swdge_start_ns
    assert 1e3 * t.start_us[beside] == pytest.approx(max(issued + c.swdge_ns + c.swdge_trigger_ns, 0))
    assert t.latency_us > plain.latency_us


@pytest.mark.parametrize('chip', CHIPS)
@pytest.mark.parametrize('text', OTHERS)
def test_other_copies_leave_gpsimd_alone(text, chip):
    t = copied(text, chip)
    assert not any(is_made_by_gpsimd(o) for o in t.program.instructions if o.op == 'dma_copy')
    assert 1e3 * t.start_us[[o.op for o in t.program.instructions].index('memset')] == pytest.approx(CHIPS[chip].start_ns)
    assert t.latency_us == copied(OTHERS[0], chip).latency_us


REGISTER = '''
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def one_register(x):
    out, count = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm), nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=count, src=x)
    nisa.register_store(count, nisa.register_alloc(count))
    nisa.dma_copy(dst=out, src=count)
    return out
'''


@pytest.mark.parametrize('op', ['register_load', 'register_store'])
def test_a_register_takes_as_long_as_published(op):
    program = trace_source(REGISTER, None, [ArraySpec((1, 1), 'int32')], 'trn2')
    one = next(o for o in program.instructions if o.op == op)
    assert work_ns(program, one, TRN2)['GpSimd'] == pytest.approx(682, rel=0.01)
