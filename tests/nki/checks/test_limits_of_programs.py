"""Limits that tracing holds, broken by Programs that nobody traced: `check` refuses each."""
from dataclasses import replace

import pytest

from kernel_lab.nki import check, schedule
from kernel_lab.nki.checks.limits import LIMITS
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.program import Program

NEAR = Access(1, Affine(), ((512, 128), (1, 512)))
FAR = Access(0, Affine(), ((512, 128), (1, 512)), None)
NUMBER = Access(3, Affine(), ((1, 1), (1, 1)))
TENSORS = (Tensor('x', (128, 512), 'float32', 'hbm', 'input'), Tensor('t', (128, 512), 'float32', 'sbuf'),
           Tensor('u', (128, 512), 'float32', 'sbuf'), Tensor('n', (1, 1), 'int32', 'sbuf'),
           Tensor('y', (128, 512), 'float32', 'hbm', 'output'))
LOAD = Instruction('dma_copy', {'dst': NEAR}, {'src': FAR})


def said(*body, tensors=TENSORS, chip='trn2'):
    p = Program('p', tensors, body, (), chip=chip)
    again = Program.from_json(p.to_json())                          # a forged one comes as text
    return [d.message for d in check(again)]


def on(a, k): return replace(a, tensor=k)


BROKEN = {
    'two loads as a swap': ((LOAD, Instruction('sendrecv', {'dst': NEAR, 'dst1': on(NEAR, 2)},
                                               {'src': FAR, 'src1': FAR}, engine='DMA')), 'a swap is between tiles'),
    'half a swap': ((LOAD, Instruction('sendrecv', {'dst': on(NEAR, 2)}, {'src': NEAR}, engine='DMA')), 'two cores'),
    'a swap on one core': ((LOAD, Instruction('sendrecv', {'dst': on(NEAR, 2), 'dst1': on(NEAR, 2)},
                                              {'src': NEAR, 'src1': NEAR}, engine='DMA')), 'both ways'),
    'a register of a tile': ((LOAD, Instruction('register_load', {'dst': on(NEAR, 2)}, {'src': NEAR})),
                             'moves one number'),
    'a register filled': ((Instruction('register_move', {'dst': NEAR}, {'value': 0.0}),), 'moves one number'),
    'a register stored': ((LOAD, Instruction('register_store', {'dst': on(NEAR, 2)}, {'src': NEAR})),
                          'moves one number'),
    'a sum by index': ((Instruction('register_move', {'dst': NUMBER}, {'value': 0.0}), Instruction(
        'dma_compute', {'dst': NEAR}, {'src': replace(FAR, index=Access(3, Affine(), ((0, 128), (0, 512))), by=1,
                                                      most=1)})), 'through an index'),
    'rows to skip': ((LOAD, Instruction('dma_transpose', {'dst': replace(NEAR, ap=((512, 128), (1, 128)))}, {
        'src': replace(FAR, ap=((512, 128), (1, 128)))}, {'axes': [1, 0], 'oob': 'skip'})), 'gathered source'),
    'a mask that nobody can count': ((LOAD, Instruction('memset', {'dst': NEAR}, {'value': 0.0}, engine='Vector', mask=(
        (Affine(2**50 - 1), ((-2, 2**50), (-1, 2**50))),))), 'leaves what the hardware can count'),
    'a masked place far outside': ((Loop('i', 8, (Instruction('memset', {'dst': replace(NEAR, offset=Affine(
        0, (('i', 2**39),)))}, {'value': 0.0}, engine='Vector', mask=((Affine(0, (('i', -1),)), ()),)),)),),
        'addressed far outside'),
}


@pytest.mark.parametrize('name', BROKEN)
def test_check_refuses(name):
    body, words = BROKEN[name]
    found = said(*body)
    assert found and any(words in m for m in found), found


def test_every_limit_has_a_rule():
    "None is held by tracing alone."
    assert all(l.rules for l in LIMITS)


@pytest.mark.parametrize('tiles, fits', [(8, True), (9, False)])
def test_psum_has_eight_banks(tiles, fits):
    "Small tiles too: a tile begins a bank of its own. The schedule and the check refuse the same."
    tensors = TENSORS + tuple(Tensor(f'p{k}', (128, 8), 'float32', 'psum') for k in range(tiles))
    at = lambda k: Access(5 + k, Affine(), ((8, 128), (1, 8)))
    fill = [Instruction('memset', {'dst': at(k)}, {'value': 1.0}, engine='Vector') for k in range(tiles)]
    use = [Instruction('tensor_copy', {'dst': replace(NEAR, ap=((512, 128), (1, 8)))}, {'src': at(k)}, engine='Vector')
           for k in range(tiles)]
    p = Program('p', tensors, (*fill, *use), (), chip='trn2')
    assert bool(check(p)) != fits
    if fits: assert schedule(p).psum_peak == 8

