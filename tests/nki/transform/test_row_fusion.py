"""Copies within HBM and passes over rows as one loop: every kind of copy is taken, with the same bits; where blocks of
rows depend on one another, nothing wrong is made of them."""
import numpy as np
import pytest

from kernel_lab.nki import ArraySpec, check, execute, schedule
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.row_fusion import row_fusions
from kernel_lab.nki.transform.row_units import copy_in_units
from kernel_lab.nki.transform.tiles import copies_left_out

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, y):
    out = nl.ndarray((512, 64), nl.float32, buffer=nl.shared_hbm)
    s = nl.ndarray((512, 64), nl.float32, buffer=nl.private_hbm)
    r = nl.ndarray((512, 64), nl.float32, buffer=nl.private_hbm)
"""
REST = "\n    return out\n"
PASS = """
    for {i} in nl.affine_range(4):
        t{i} = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        u{i} = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t{i}, src={src})
        nisa.activation(dst=u{i}, op=nl.tanh, data=t{i})
        nisa.dma_copy(dst={dst}[128 * {i}:128 * ({i} + 1), :], src=u{i})
"""
ROWS = '[[64, 512], [1, 64]]'


def copy(dst, to, src, of): return f'    nisa.dma_copy(dst={dst}.ap({to[0]}, offset={to[1]}), src={src}.ap({of[0]}, offset={of[1]}))\n'


def one_pass(i, src, dst, block=None):
    block = block or f'[128 * {i}:128 * ({i} + 1), :]'
    return PASS.format(i=i, src=f'{src}{block}', dst=dst)


REVERSED = ('[[64, 512], [-1, 64]]', 63)
HALF = '[[64, 512], [1, 32]]'
FILL = """
    zero = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.25)
    for f in nl.affine_range(2): nisa.dma_copy(dst=r.reshape((256, 128))[128 * f:128 * (f + 1), :], src=zero)
"""
KINDS = {
    'reversed': one_pass('i', 'x', 's') + copy('r', (ROWS, 0), 's', REVERSED) + one_pass('j', 'r', 'out'),
    'halves changed': one_pass('i', 'x', 's') + copy('r', (HALF, 0), 's', (HALF, 32)) + copy(
        'r', (HALF, 32), 'y', (HALF, 0)) + one_pass('j', 'r', 'out'),
    'interleaved': one_pass('i', 'x', 's') + copy('r', ('[[64, 512], [2, 32]]', 0), 's', (HALF, 0)) + copy(
        'r', ('[[64, 512], [2, 32]]', 1), 's', (HALF, 32)) + one_pass('j', 'r', 'out'),
    'padded': one_pass('i', 'x', 's') + FILL + copy('r', ('[[64, 512], [1, 60]]', 4), 's', ('[[64, 512], [1, 60]]', 0)) + one_pass(
        'j', 'r', 'out'),
    'straight to a result': copy('out', (ROWS, 0), 'x', REVERSED),
}


def traced(body, chip='trn2'):
    return trace_source(HEAD + body + REST, None, [ArraySpec((512, 64))] * 2, chip)


def inputs():
    rng = np.random.default_rng(1)
    return [rng.standard_normal((512, 64)).astype('float32') for _ in range(2)]


def same_bits(program, after):
    for a, b in zip(execute(program, *inputs()), execute(after, *inputs()), strict=True): assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize('chip', ('trn1', 'trn2'))
@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_of_copy_becomes_part_of_the_loop(kind, chip):
    program = traced(KINDS[kind], chip)
    after = [p for _, p in row_fusions(program)]
    assert after and not any(check(p) for p in after)
    for p in after: same_bits(program, p)
    one = [p for p in after if len(p.body) == 1]
    assert one and min(schedule(p, chip).latency_us for p in one) < schedule(program, chip).latency_us


DEPENDENT = {
    'rows from the other end': one_pass('i', 'x', 's') + one_pass('j', 's', 'out', '[nl.ds(384 - 128 * j, 128), :]'),
    'copied upside down': one_pass('i', 'x', 's') + copy('r', (ROWS, 0), 's', ('[[-64, 512], [1, 64]]', 64 * 511)) + one_pass(
        'j', 'r', 'out'),
    'one row for all': one_pass('i', 'x', 's') + one_pass('j', 's', 'out', '[5:6, :].broadcast(dim=0, size=128)'),
    'turned': one_pass('i', 'x', 's') + '    nisa.dma_copy(dst=r[0:64, :], src=s[0:64, :].permute((1, 0)))\n' + copy(
        'r', ('[[64, 448], [1, 64]]', 64 * 64), 's', ('[[64, 448], [1, 64]]', 0)) + one_pass('j', 'r', 'out'),
    'written again': one_pass('i', 'x', 's') + copy('r', (ROWS, 0), 's', REVERSED) + one_pass('k', 'y', 's') + copy(
        'out', (HALF, 0), 'r', (HALF, 0)) + copy('out', (HALF, 32), 's', (HALF, 0)),
    'read before it is written': copy('r', (ROWS, 0), 'y', (ROWS, 0)) + '    for m in nl.affine_range(1):\n    ' + copy(
        's', (ROWS, 0), 'x', ('[[-64, 512], [1, 64]]', 64 * 511)) + one_pass('i', 'r', 's') + copy(
        'r', (ROWS, 0), 's', REVERSED) + one_pass('j', 'r', 'out'),
    'only halves, and read again': one_pass('i', 'x', 's') + copy('r', (ROWS, 0), 'y', ('[[-64, 512], [1, 64]]', 64 * 511)) + copy(
        'r', (HALF, 0), 's', (HALF, 32)) + one_pass('j', 'r', 'out'),
}


@pytest.mark.parametrize('kind', DEPENDENT)
def test_what_depends_on_other_rows_keeps_its_numbers(kind):
    program = traced(DEPENDENT[kind])
    for _, after in row_fusions(program):
        same_bits(program, after)
        for _, shorter in copies_left_out(after): same_bits(program, shorter)


@pytest.mark.parametrize('kind', [*DEPENDENT][:4])
def test_rows_that_need_others_are_not_fused_with_them(kind):
    "No loop holds both the pass that writes `s` and the one that reads other rows of it."
    for _, after in row_fusions(traced(DEPENDENT[kind])): assert len(after.body) > 1


TILES = """
    for i in nl.affine_range(4):
        t = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        c = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        d = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        w = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        {}
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=w)
"""
COPY = 'nisa.tensor_copy(dst={}, src={})'
COPIES = {
    'plain': ([COPY.format('c', 't'), 'nisa.activation(dst=w, op=nl.tanh, data=c)'], 1),
    'source written again': ([COPY.format('c', 't'), 'nisa.memset(dst=t, value=1.0)',
                              'nisa.tensor_tensor(dst=w, data1=c, data2=t, op=nl.add)'], 0),
    'target read before': (['nisa.memset(dst=d, value=2.0)', 'nisa.activation(dst=c, op=nl.tanh, data=t)',
                            'nisa.tensor_tensor(dst=w, data1=c, data2=d, op=nl.add)', COPY.format('d', 'c'),
                            'nisa.tensor_tensor(dst=t, data1=d, data2=w, op=nl.add)',
                            'nisa.tensor_copy(dst=w, src=t)'], 0),
    'target written between': (['nisa.activation(dst=c, op=nl.tanh, data=t)', 'nisa.memset(dst=w, value=2.0)',
                                COPY.format('w[:, 0:64]', 'c')], 0),
    'backwards': ([COPY.format('c', 't.ap([[64, 128], [-1, 64]], offset=63)'),
                   'nisa.tensor_tensor(dst=w, data1=c, data2=t, op=nl.add)'], 1),
    'a part': (['nisa.memset(dst=c, value=0.5)', COPY.format('c[:, 0:32]', 't[:, 0:32]'),
                'nisa.activation(dst=w, op=nl.tanh, data=c)'], 0),
}


@pytest.mark.parametrize('kind', COPIES)
def test_a_copy_goes_only_where_nobody_notices(kind):
    lines, least = COPIES[kind]
    program = traced(TILES.format('\n        '.join(lines)))
    after = [p for _, p in copies_left_out(program)]
    assert len(after) >= least and (least or not after)
    for p in after: same_bits(program, p)


def test_units_are_counted_once():
    "A copy that visits rows twice, or that leaves some out, has no units."
    twice = traced('    for i in nl.affine_range(2):\n    ' + copy('out', (ROWS, 0), 'x', (ROWS, 0)))
    assert copy_in_units(twice, twice.body[0], 512) is None
    some = traced(copy('out', (ROWS, 0), 'x', (ROWS, 0)) + copy('out', ('[[64, 256], [1, 64]]', 0), 'y', (
        '[[64, 256], [1, 64]]', 0)))
    assert copy_in_units(some, some.body[1], 512) is None and copy_in_units(some, some.body[0], 512)
