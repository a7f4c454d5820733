"""Bytes that a DMA copy reads and writes in HBM: those of the side that lies there, whatever the other side's dtype."""
import pytest

from kernel_lab.nki.explain.traffic import traffic
from kernel_lab.nki.ir.cost import hbm_shares
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.flat_program import dma_ns
from kernel_lab.nki.timing.timeline import schedule

SIZES = {'float32': 4, 'bfloat16': 2, 'float8_e4m3': 1, 'int32': 4}
PAIRS = [(a, b) for a in SIZES for b in SIZES if a != b]
COPY = '''
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def copies(x):
    out = nl.ndarray((128, 512), nl.{far}, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 512), nl.{near}, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out
'''
WITHIN = '''
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def within(x):
    out = nl.ndarray((128, 512), nl.{far}, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out
'''


def program_of(text, given, **dtypes):
    return trace_source(text.format(**dtypes), specs=[ArraySpec((128, 512), given)])


@pytest.mark.parametrize('chip', ['trn1', 'trn2'])
@pytest.mark.parametrize('far, near', PAIRS)
def test_a_cast_moves_the_bytes_of_the_side_in_hbm(far, near, chip):
    program = program_of(COPY, far, far=far, near=near)
    t = schedule(program, chip)
    assert (t.bytes_in, t.bytes_out) == (128 * 512 * SIZES[far],) * 2
    table = traffic(t)
    assert [table.bytes[table.way == way].sum() for way in ('in', 'out')] == [t.bytes_in, t.bytes_out]
    wide = 128 * 512 * max(SIZES[far], SIZES[near])             # the DMA engines are as busy as with the wider side
    assert [dma_ns(program, o, t.chip)[1] for o in program.instructions] == [wide, wide]


@pytest.mark.parametrize('given, far', PAIRS)
def test_a_copy_within_hbm_reads_one_dtype_and_writes_the_other(given, far):
    program = program_of(WITHIN, given, far=far)
    t = schedule(program, 'trn2')
    assert (t.bytes_in, t.bytes_out) == (128 * 512 * SIZES[given], 128 * 512 * SIZES[far])
    assert max(hbm_shares(program, program.instructions[0])) == 1


def test_a_copy_on_the_chip_moves_nothing_in_hbm():
    text = COPY.replace('nisa.dma_copy(dst=out, src=tile)', '''other = nl.ndarray((128, 512), nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=other, src=tile)
    nisa.dma_copy(dst=out, src=other)''')
    t = schedule(program_of(text, 'float32', far='bfloat16', near='float32'), 'trn2')
    assert (t.bytes_in, t.bytes_out) == (128 * 512 * 4, 128 * 512 * 2)


TURNED = '''
import neuronxcc.nki as nki, neuronxcc.nki.language as nl, neuronxcc.nki.isa as nisa
@nki.jit
def turned(x):
    out = nl.ndarray((4, {n}, {n}), x.dtype, buffer=nl.shared_hbm)
    tiles = nl.load(x)
    for i in nl.affine_range(4):
        t = nl.copy(tiles[:, nl.ds({n} * i, {n})], dtype=nl.{near})
        nl.store(out[i], nisa.tensor_copy(nisa.nc_transpose(t, engine=nki.isa.{engine}), dtype=x.dtype))
    return out
'''


@pytest.mark.parametrize('near', ['float32', 'bfloat16'])
@pytest.mark.parametrize('engine, n, loads', [('tensor_engine', 128, 1), ('tensor_engine', 32, 1), ('vector_engine', 32, 0)])
def test_the_earlier_compiler_loads_an_identity_for_transposes_by_tensor(near, engine, n, loads):
    program = trace_source(TURNED.format(near=near, engine=engine, n=n), specs=[ArraySpec((n, 4 * n))])
    t, plain = schedule(program, 'trn2'), schedule(program, 'trn2', without=['transpose'])
    assert t.bytes_in - plain.bytes_in == loads * 128 * 128 * SIZES[near]
    assert t.bytes_out == plain.bytes_out and t.latency_us >= plain.latency_us
