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
    'one partition for all lanes': ((LOAD, Instruction('tensor_copy', {'dst': on(NEAR, 2)}, {
        'src': replace(NEAR, ap=((0, 128), (1, 512)))}, engine='Vector')), 'from many lanes'),
    'a partition by index': ((LOAD, Instruction('register_move', {'dst': NUMBER}, {'value': 0.0}), Instruction(
        'tensor_copy', {'dst': replace(on(NEAR, 2), ap=((512, 32), (1, 512)))}, {'src': replace(
            NEAR, ap=((512, 32), (1, 512)), index=Access(3, Affine(), ((0, 32), (0, 512))), by=512, most=96)},
        engine='Vector')), 'partition to start from'),
    'rows of a tile by index': ((LOAD, Instruction('register_move', {'dst': NUMBER}, {'value': 0.0}), Instruction(
        'dma_copy', {'dst': on(NEAR, 2)}, {'src': replace(NEAR, ap=((0, 128), (1, 512)), index=Access(
            3, Affine(), ((1, 128), (0, 512))), by=512, most=128)})), 'picks rows of HBM'),
    'a loop that counts to a tile': ((LOAD, Loop('i', 1, (LOAD,), 'dynamic', 1, (0, NEAR, 1))), 'number in a register'),
    'a loop that counts to a float': ((LOAD, Loop('i', 1, (LOAD,), 'dynamic', 1, (
        0, Access(1, Affine(), ((1, 1), (1, 1))), 1))), 'number in a register'),
    'a masked place far outside': ((Loop('i', 8, (Instruction('memset', {'dst': replace(NEAR, offset=Affine(
        0, (('i', 2**39),)))}, {'value': 0.0}, engine='Vector', mask=((Affine(0, (('i', -1),)), ()),)),)),),
        'addressed far outside'),
}


@pytest.mark.parametrize('name', BROKEN)
def test_check_refuses(name):
    body, words = BROKEN[name]
    found = said(*body)
    assert found and any(words in m for m in found), found


def whole(k, shape):
    "All of tensor number `k`."
    steps = [1]
    for n in shape[:0:-1]: steps.insert(0, steps[0] * n)
    return Access(k, Affine(), tuple(zip(steps, shape)))


def forged(op, outs, ins, attrs=None, engine='DMA', chip='trn2', mask=()):
    """(tensors, instruction, chip): operands are (shape, dtype, memory), those of tiles filled before."""
    tensors, sides = [], []
    for operands in (outs, ins):
        side = {}
        for k, (shape, dtype, buffer) in operands.items():
            side[k] = whole(len(tensors), shape)
            tensors.append(Tensor(f'{k}_{len(tensors)}', shape, dtype, buffer,
                                  'input' if buffer == 'hbm' and operands is ins else 'scratch'))
        sides.append(side)
    if 'state' in outs and 'state' in ins: sides[1]['state'] = sides[0]['state']
    fill = [Instruction('memset', {'dst': a}, {'value': 0.0}, engine='Vector') for a in sides[1].values()
            if tensors[a.tensor].buffer == 'sbuf']
    return tensors, (*fill, Instruction(op, *sides, attrs or {}, engine, mask)), chip


def far(*shape, dtype='float32'): return shape, dtype, 'hbm'
def near(*shape, dtype='float32'): return shape, dtype, 'sbuf'


def collective(name, dst, src, *extra, **at):
    ins = {'src': src} | {f'src{k + 1}': e for k, e in enumerate(extra)}
    return forged(name, {'dst': dst}, ins, {'ranks': [0, 1], 'rank': 0, **at})


def several(name, n, one, **at):
    named = lambda k: {f'{k}{j or ""}': one for j in range(n)}
    return forged(name, named('dst'), named('src'), {'ranks': [0, 1], 'rank': 0, **at})


WORDS, FLAGS = (4, 8), ((Affine(3), ((-1, -1),)),)
SIZES = far(3, 2, dtype='uint32')
FORGED = {
    'random bits as floats': (forged('rng', {'dst': near(8, 8)}, {}, {'kind': 'int32'}, 'Vector'), 'dtype of its tile'),
    'random words of another dtype': (forged('rng', {'dst': near(8, 8, dtype='int32')}, {}, {'kind': 'uint8'},
                                             'Vector'), 'dtype of its tile'),
    'a generator that is not there': (forged('rng', {'dst': near(8, 8, dtype='int32')}, {}, {'kind': 'int32'}, 'GpSimd',
                                             'trn1'), 'has no generator'),
    'a state that trn2 hides': (forged('rand_set_state', {'state': near(8, 24, dtype='uint32')},
                                       {'src_seeds': near(8, 24, dtype='uint32')}, {}, 'Vector'), 'show its state'),
    'a state that trn1 hides': (forged('rand_set_state', {'state': near(8, 6, dtype='uint32')},
                                       {'src_seeds': near(8, 6, dtype='uint32')}, {}, 'GpSimd', 'trn1'), 'show its state'),
    'a masked draw with a state': (forged('rng', {'dst': near(8, 8, dtype='int32'),
                                                  'state': near(8, 24, dtype='uint32')},
                                          {'state': near(8, 24, dtype='uint32')}, {'kind': 'int32'}, 'Vector', 'trn2',
                                          FLAGS), 'not modelled'),
    'seventeen sources': (forged('dma_compute', {'dst': far(*WORDS)}, {f'src{k or ""}': far(*WORDS)
                                                                       for k in range(17)}), 'src16'),
    'another format': (forged('quantize_mx', {'dst': near(32, 8, dtype='float8_e4m3fn_x4'),
                                              'dst_scale': near(32, 8, dtype='uint8')},
                              {'src': near(32, 32, dtype='bfloat16')}, {'format': 'float8_e5m2_x4'}, 'Vector', 'trn3'),
                       'another format'),
    'columns gathered in HBM': (collective('all_gather', far(4, 16), far(4, 8), dim=1), 'collective_dim'),
    'gathered along another axis': (collective('all_gather', far(4, 16), far(4, 8), dim=0), 'wrong shape'),
    'columns scattered': (collective('reduce_scatter', far(4, 4), far(4, 8), dim=1, op='add'), 'collective_dim'),
    'odd rows scattered': (collective('reduce_scatter', far(1, 12), far(3, 8), dim=0, op='add'), 'do not split'),
    'odd rows exchanged': (collective('all_to_all', far(3, 8), far(3, 8), dim=0), 'do not split'),
    'columns exchanged': (collective('all_to_all', far(4, 8), far(4, 8), dim=1), 'collective_dim'),
    'a sum of another shape': (collective('all_reduce', far(2, 16), far(4, 8), op='add'), 'wrong shape'),
    'a ring of another shape': (collective('collective_permute_implicit', far(4, 4), far(4, 8)), 'wrong shape'),
    'a permutation that casts': (collective('collective_permute', far(4, 8, dtype='bfloat16'), far(4, 8),
                                            pairs=[[0, 1]]), 'does not cast'),
    'a rank that receives twice': (collective('collective_permute', far(4, 8), far(4, 8), pairs=[[0, 1], [1, 1]]),
                                   'twice'),
    'metadata as floats': (collective('all_to_all_v', far(4, 8), far(4, 8), far(3, 2), counts=True), '32-bit integers'),
    'metadata of three ranks': (collective('all_to_all_v', far(4, 8), far(4, 8), far(3, 3, dtype='uint32'),
                                           counts=True), '32-bit integers'),
    'pieces that are cast': (collective('all_to_all_v', far(4, 8, dtype='bfloat16'), far(4, 8), SIZES, counts=True),
                             'does not cast'),
    'no slot for each rank': (collective('all_to_all_v', far(1, 7), far(4, 8), SIZES, counts=True), 'slot for each'),
    'no metadata': (collective('all_to_all_v', far(4, 8), far(4, 8), counts=True), 'needs a destination'),
    'nine tensors': (several('all_reduce', 9, far(4, 8), op='add'), 'dst8'),
    'two tiles at once': (several('all_reduce', 2, near(4, 8), op='add'), 'one tensor'),
    'two permutations': (several('collective_permute', 2, far(4, 8), pairs=[[0, 1]]), 'one tensor'),
    'more targets than sources': (forged('all_reduce', {'dst': far(4, 8), 'dst1': far(4, 8)}, {'src': far(4, 8)},
                                         {'ranks': [0, 1], 'rank': 0, 'op': 'add'}), 'needs a destination'),
}


@pytest.mark.parametrize('name', FORGED)
def test_check_refuses_what_a_function_would_not_have_recorded(name):
    (tensors, body, chip), words = FORGED[name]
    found = said(*body, tensors=tuple(tensors), chip=chip)
    assert any(words in m for m in found), found


@pytest.mark.parametrize('case', [
    collective('all_reduce', far(4, 8), far(4, 8), op='add'), collective('all_gather', far(8, 8), far(4, 8), dim=0),
    collective('all_gather', near(4, 16), near(4, 8), dim=1), collective('all_to_all', far(4, 8), far(4, 8), dim=0),
    collective('all_to_all_v', far(4, 8), far(4, 8), SIZES, counts=True),
    several('collective_permute_implicit', 2, near(4, 8)), several('all_reduce', 2, far(4, 8), op='add'),
    forged('rng', {'dst': near(8, 8)}, {}, {'kind': 'float32'}, 'Vector'),
    forged('rng', {'dst': near(8, 8, dtype='int32')}, {}, {'kind': 'int32'}, 'Vector', 'trn1')])
def test_check_takes_what_a_function_records(case):
    tensors, body, chip = case
    assert not said(*body, tensors=tuple(tensors), chip=chip)


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



@pytest.mark.parametrize('read', [{'offset': Affine(127 * 512), 'ap': ((-512, 128), (1, 512))},
                                  {'index': Access(3, Affine(), ((0, 128), (0, 512))), 'by': 1, 'most': 1}],
                         ids=['reversed', 'through an index'])
def test_a_tile_that_another_took_is_not_read(read):
    "However the read walks over it."
    placed = tuple(replace(t, places=((0, 0),)) if t.name in 'tu' else t for t in TENSORS)
    body = (Instruction('register_move', {'dst': NUMBER}, {'value': 0.0}), LOAD,
            Instruction('memset', {'dst': on(NEAR, 2)}, {'value': 1.0}, engine='Vector'),
            Instruction('dma_copy', {'dst': on(FAR, 4)}, {'src': replace(NEAR, **read)}))
    found = said(*body, tensors=placed)
    assert any('alive at once and share' in m for m in found), found
