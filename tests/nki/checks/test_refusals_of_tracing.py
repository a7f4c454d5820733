"""Every refusal of the layers that record a kernel, found in their text: each is refused in a forged Program too, which
nobody traced, or has a reason why no Program can be so. A new refusal without either fails here."""
import json
from dataclasses import replace

import pytest
from refusals import refusals
from test_limits_of_programs import (BROKEN, FORGED, LOAD, FAR, NEAR, NUMBER, SIZES, TENSORS, collective, far, forged,
                                     near, on)

from kernel_lab.core.errors import KernelError
from kernel_lab.nki import check
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.program import Program

SQUARE, WORD, ROWS = near(8, 8), Instruction('register_move', {'dst': NUMBER}, {'value': 0.0}), (4, 8)
PSUM = ((8, 8), 'float32', 'psum')


def one(*args, mask=()): return forged(*args, mask=mask)
def many(*body, tensors=TENSORS, dialect='nki', chip='trn2'): return tensors, body, chip, None, dialect


def broken(name): return many(*BROKEN[name][0]), BROKEN[name][1]


def edited(change, *body):
    "A program whose text is changed: `change(its table)`."
    return TENSORS, body or (LOAD,), 'trn2', change, 'nki'


def tensor(place, value):
    return edited(lambda d: d['tensors'][2].__setitem__(place, value))


def last(**changes): return edited(lambda d: d['body'][-1].update(changes))
def fill(a): return Instruction('memset', {'dst': a}, {'value': 0.0}, engine='Vector')
def copy(dst, src): return Instruction('tensor_copy', {'dst': dst}, {'src': src}, engine='Vector')


def indexed(**index):
    "A copy of a tile that is found through one number in memory."
    index = {'index': Access(3, Affine(), ((0, 128), (0, 512))), 'by': 1, 'most': 1, **index}
    return many(LOAD, WORD, copy(on(NEAR, 2), replace(NEAR, **index)))


def matmul(attrs, *sides, chip='trn2', mask=()):
    st, mv = sides or (SQUARE, SQUARE)
    return one('nc_matmul', {'dst': PSUM}, {'stationary': st, 'moving': mv}, {'accumulate': False, **attrs}, 'Tensor',
               chip, mask=mask)


def changed(case, **ins):
    "A forged case with other operands of its last instruction."
    tensors, body, chip = case
    return tensors, (*body[:-1], replace(body[-1], ins={**body[-1].ins, **ins})), chip


def condition(*axes): return ((Affine(3), axes),)


AGAIN = many(LOAD, Loop('i', 4, (copy(on(NEAR, 2), NEAR), Instruction(
    'tensor_tensor', {'dst': NEAR}, {'data1': on(NEAR, 2), 'data2': on(NEAR, 2)}, {'op': 'multiply'}, 'Vector')),
    'affine'), dialect='neuronxcc.nki', chip='trn1')
CUMULATED = one('tensor_scalar_cumulative', {'dst': SQUARE}, {'src': SQUARE}, {
    'op0': 'add', 'op1': 'add', 'reduce_cmd': 'load_reduce'}, 'Vector')
U32, BF16 = {'dtype': 'uint32'}, {'dtype': 'bfloat16'}
TOPK = lambda rows, k: one('topk', {'val_dst': near(rows, k, **BF16), 'idx_dst': near(rows, k, **U32)},
                           {'src': near(rows, 16, **BF16)}, {'n': 16, 'k': k}, 'GpSimd')
MX = one('nc_matmul_mx', {'dst': ((32, 32), 'float32', 'psum')}, {
    'stationary': near(32, 32), 'moving': near(32, 32), 'stationary_scale': near(32, 32, dtype='uint8'),
    'moving_scale': near(32, 32, dtype='uint8')}, {'accumulate': False}, 'Tensor', 'trn3')
QUANTIZED = lambda dst, chip: one('quantize_mx', {'dst': near(32, 8, dtype=dst), 'dst_scale': near(
    32, 8, dtype='uint8')}, {'src': near(32, 32, **BF16)}, {'format': 'float8_e4m3fn_x4'}, 'Vector', chip)
SEEDS = lambda src, engine='GpSimd': one('rand_set_state', {'state': near(8, 6, **U32)}, {'src_seeds': src}, {}, engine)


def gathered(indices, rows):
    "A transpose of rows that so many indices name, of those in a tile of 64 by 4."
    tensors = (Tensor('x', (64, 64), 'bfloat16', 'hbm', 'input'), Tensor('t', (64, 64), 'bfloat16', 'sbuf'),
               Tensor('i', (64, 4), 'uint32', 'sbuf'))
    return many(fill(Access(2, Affine(), ((4, 64), (1, 4)))), Instruction('dma_transpose', {
        'dst': Access(1, Affine(), ((64, 64), (1, rows)))}, {'src': Access(0, Affine(), ((0, rows), (1, 64)), None, Access(
            2, Affine(), ((4, indices), (0, 64))), 64, 64)}, {'axes': [1, 0]}), tensors=tensors)


# (module, message): (a forged program, what it is refused with)
REFUSED = {
    ('assignment', 'HBM is reached by DMA only'): (one('tensor_copy', {'dst': SQUARE}, {'src': far(8, 8)}, {}, 'Vector'),
                                                   'in HBM, which engines do not reach'),
    ('assignment', 'a value keeps its partitions when it is assigned'): (
        one('tensor_copy', {'dst': near(16, 4)}, {'src': SQUARE}, {}, 'Vector'), 'different shapes'),
    ('collectives', 'a collective does not cast'): FORGED['a permutation that casts'],
    ('collectives', 'a collective takes fewer tensors'): FORGED['nine tensors'],
    ('collectives', 'a rank is in two groups, or twice in one'): (
        collective('all_reduce', far(4, 8), far(4, 8), op='add', ranks=[0, 0]), 'no group of ranks'),
    ('collectives', 'rank {} is in no group'): (
        collective('all_reduce', far(4, 8), far(4, 8), op='add', ranks=[1, 2]), 'no group of ranks'),
    ('collectives', 'a rank sends or receives twice'): FORGED['a rank that receives twice'],
    ('collectives', 'a ring takes one tensor for each channel'): (forged(
        'collective_permute_implicit', {'dst': far(4, 8)}, {'src': far(4, 8), 'src1': far(4, 8)},
        {'ranks': [0, 1], 'rank': 0}), 'needs a destination'),
    ('collectives', 'collective_dim {} is not supported'): FORGED['columns gathered in HBM'],
    ('collectives', 'collective_permute takes one tensor'): FORGED['two permutations'],
    ('collectives', 'dst has a slot for each rank'): FORGED['no slot for each rank'],
    ('collectives', 'dst has the wrong shape'): FORGED['a sum of another shape'],
    ('collectives', 'every source needs a destination'): FORGED['more targets than sources'],
    ('collectives', 'metadata are three rows of 32-bit integers'): FORGED['metadata as floats'],
    ('collectives', 'several tensors at once only in HBM'): FORGED['two tiles at once'],
    ('collectives', '{} rows do not split over {} ranks'): FORGED['odd rows scattered'],
    ('collectives', '{} takes one tensor'): (forged('all_to_all_v', {'dst': far(4, 8), 'dst1': far(4, 8)}, {
        'src': far(4, 8), 'src1': far(4, 8), 'src2': SIZES}, {'ranks': [0, 1], 'rank': 0, 'counts': True}),
        'takes one tensor'),
    ('collectives', '{} works on HBM only'): (collective('all_to_all', near(4, 8), near(4, 8), dim=0), 'on HBM only'),
    ('collectives', '{} works on HBM, or on SBUF'): (collective('all_reduce', near(4, 8), far(4, 8), op='add'),
                                                     'on HBM, or on SBUF'),
    ('indexing', 'a mask over a row needs one condition for each axis'): (
        one('max8', {'dst': near(8, 8)}, {'src': near(8, 16)}, {}, 'Vector', 'trn2', mask=condition((-1, -1), (-2, -1))),
        'it looks at all of a row'),
    ('indexing', 'an operand mask of a matmul bounds one axis at a time'): (
        matmul({}, mask=condition((-1, -1), (-2, -1))), 'one condition for each axis'),
    ('indexing', 'an engine cannot read one partition from many lanes'): broken('one partition for all lanes'),
    ('indexing', 'an index from memory is a single number'): (
        indexed(index=Access(3, Affine(), ((0, 64), (0, 512)))), 'an index has the wrong shape'),
    ('indexing', 'slice of dimension {} of {} is empty'): (
        many(LOAD, fill(replace(NEAR, ap=((512, 128), (1, 0))))), 'not a whole number in range'),
    ('indexing', 'the partition to start from must be known'): broken('a partition by index'),
    ('indexing', 'what is added to a place in {} leaves it'): (indexed(by=512, most=4096), 'may leave its tensor'),
    ('isa_core', 'axis {} is none of the {} axes of the tile'): (
        one('tensor_reduce', {'dst': near(8, 1)}, {'data': near(8, 16)}, {'op': 'add', 'axis': [7]}, 'Vector'),
        'does not name axes'),
    ('isa_core', 'operand {} is not given'): (
        one('tensor_tensor', {'dst': SQUARE}, {'data1': SQUARE}, {'op': 'add'}, 'Vector'), 'data2 is missing'),
    ('assignment', 'a part of {} takes a tile or a number, not a {}'): (
        edited(lambda d: d['body'][-1]['ins'].update(src=[1])), 'not valid'),
    ('isa_core', 'operand {} is None'): (edited(lambda d: d['body'][-1]['ins'].update(src=None)), 'not valid'),
    ('isa_core', 'operand {} is a {}, not a tile or a number'): (
        edited(lambda d: d['body'][-1]['ins'].update(src='x')), 'not valid'),
    ('isa_core', 'operand {} must be a tile, not {}'): (many(LOAD, copy(on(NEAR, 2), 1.0)), 'must be a tile'),
    ('isa_core', 'reduce_res is given, but reduce_cmd={} leaves the accumulator alone'): (
        one('activation', {'dst': SQUARE, 'reduce_res': near(8, 1)}, {'data': SQUARE},
            {'func': 'exp', 'reduce_op': 'add', 'reduce_cmd': 'idle'}, 'Scalar'), 'leaves the accumulator alone'),
    ('isa_core', '{} does not exist on {}'): (QUANTIZED('float8_e4m3fn_x4', 'trn1'), 'does not exist on trn1'),
    ('isa_core', '{} does not run on {}'): (
        one('activation', {'dst': SQUARE}, {'data': SQUARE}, {'func': 'exp'}, 'Vector'), 'does not run on Vector'),
    ('isa_core', '{} has no argument {}'): (
        one('tensor_copy', {'dst': SQUARE}, {'src': SQUARE, 'foo': SQUARE}, {}, 'Vector'), 'no operand foo'),
    ('isa_core', '{} is not {}'): (
        one('tensor_tensor', {'dst': SQUARE}, {'data1': SQUARE, 'data2': SQUARE}, {'op': 'foo'}, 'Vector'), 'is no op'),
    ('isa_core', '{}.{} {}'): (last(op='foo'), 'is not an instruction'),
    ('isa_dma', 'dge_mode {} is not known'): (last(attrs={'dge': 'foo'}), 'is no dge'),
    ('isa_dma', 'dma_compute adds at most 16 sources'): FORGED['seventeen sources'],
    ('isa_dma', 'dma_compute through an index adds one source to dst, which is the other one'): broken('a sum by index'),
    ('isa_dma', 'only a gathered source has rows to skip'): broken('rows to skip'),
    ('isa_dma', 'several columns of indices have all partitions'): (gathered(32, 32), 'lie down the partitions'),
    ('isa_dma', 'there are fewer indices than rows'): (gathered(8, 16), 'an index has the wrong shape'),
    ('isa_gpsimd', 'dst has one element more than src, for the count'): (
        one('nonzero_with_count', {'dst': near(8, 16, dtype='int32')}, {'src': near(8, 16)},
            {'index_offset': 0, 'padding_val': -1}, 'GpSimd'), 'one element more'),
    ('isa_gpsimd', 'topk works on groups of 16 partitions'): (TOPK(8, 8), 'groups of 16 partitions'),
    ('isa_gpsimd', 'topk cannot rank {} of {} values here'): (TOPK(16, 64), 'cannot give so many'),
    ('isa_tensor', 'a tile of the array is two pairs of whole numbers'): (matmul({'tile': [0, 0, 3]}),
                                                                          'four whole numbers'),
    ('isa_tensor', 'nc_matmul_mx multiplies packed formats'): (MX, 'does not take this dtype'),
    ('isa_tensor', 'perf_mode {} is not modelled'): (matmul({'rows': 4}), 'two rows at most'),
    ('isa_vector', 'GpSimd has no generator on this chip'): FORGED['a generator that is not there'],
    ('isa_vector', 'a mask of {} is not modelled where the kernel holds the state of the generator'):
        FORGED['a masked draw with a state'],
    ('isa_vector', 'a seed is one 32-bit number'): (
        one('set_rng_seed', {'state': near(128, 24, **U32)}, {'src_seeds': near(1, 2, **U32)}, {}, 'Vector'),
        'one 32-bit number'),
    ('isa_vector', 'activation gives prelu no slope'): (
        one('activation', {'dst': SQUARE}, {'data': SQUARE}, {'func': 'prelu'}, 'Scalar'), 'no slope'),
    ('isa_vector', 'quantize_mx writes a packed fp8 format'): (QUANTIZED('float4_e2m1fn_x4', 'trn3'),
                                                               'does not take this dtype'),
    ('isa_vector', 'reduce_cmd=load_reduce starts from imm1, which is missing'): (changed(CUMULATED, imm0=1.0),
                                                                                  'imm1, which is missing'),
    ('isa_vector', 'seeds lie in SBUF'): (SEEDS(far(8, 6, **U32)), 'in HBM, which engines do not reach'),
    ('isa_vector', 'the state of {} is {} words a lane'): (SEEDS(near(8, 7, **U32)), 'other words'),
    ('isa_vector', '{} does not run on {} of {}'): FORGED['a state that trn2 hides'],
    ('isa_vector', '{} has no generator'): (SEEDS(near(8, 6, **U32), 'Scalar'), 'does not run on Scalar'),
    ('language', 'a reduction cannot run over partitions'): (
        one('tensor_reduce', {'dst': near(1, 16)}, {'data': near(8, 16)}, {'op': 'add', 'axis': [0]}, 'Vector'),
        'partition axis cannot be reduced'),
    ('language', 'tiles of shapes {} and {} do not meet'): (
        one('tensor_tensor', {'dst': SQUARE}, {'data1': SQUARE, 'data2': near(8, 4)}, {'op': 'add'}, 'Vector'),
        'different shapes'),
    ('language', '{} is not a memory'): (tensor(3, 'foo'), 'is none of hbm, sbuf, psum'),
    ('loops', 'an iteration of nl.affine_range (line {}) reads {}, a tile that the iteration before it made in line {}'): (
        AGAIN, 'reads what an earlier one wrote'),
    ('multicore', "GpSimd's DMA swaps small tiles"): (
        forged('sendrecv', {'dst': near(8, 512), 'dst1': near(8, 512)}, {'src': near(8, 512), 'src1': near(8, 512)},
               {'dma_engine': 'gpsimd_dma'}), 'swaps small tiles'),
    ('multicore', 'sendrecv needs equal tiles'): (
        forged('sendrecv', {'dst': SQUARE, 'dst1': near(8, 4)}, {'src': SQUARE, 'src1': near(8, 4)}), 'equal tiles'),
    ('multicore', 'there is no core {}'): (many(Loop('core2.1', 1, (LOAD,), 'core')), 'there is no core 2'),
    ('placement', 'an address is (partition, byte)'): (tensor(10, [[0]]), 'not valid'),
    ('placement', 'an allocation in {} gives {}'): (tensor(10, [[0, 0, 0]]), 'not valid'),
    ('placement', '{} has one number for each block dimension'): (tensor(10, [[0, 0], [0, 4096]]), 'not one a block'),
    ('placement', '{}{}'): (tensor(10, [[0, 3]]), 'an address is aligned'),
    ('recorder', 'a name is a text of one line'): (tensor(0, 'a\nb'), 'a name is missing, too long'),
    ('recorder', 'a shape has whole numbers, not {}'): (tensor(1, [128, 1.5]), 'not a whole number'),
    ('recorder', 'a tensor cannot have the shape {}'): (tensor(1, [128, 0]), 'not a whole number in range'),
    ('recorder', 'a tensor of shape {} is too large'): (tensor(1, [128, 2**40]), 'not a whole number in range'),
    ('recorder', '{}{} cannot be read as {}'): (
        many(LOAD, tensors=(*TENSORS, Tensor('a', (128, 300), 'bfloat16', 'sbuf', alias=1))), 'does not fit the memory'),
    ('registers', 'a register takes a whole number or a register'): (
        many(replace(WORD, ins={'value': 0.5})), 'takes a whole number'),
    ('registers', 'the step of a dynamic loop is a positive number'): (
        many(WORD, Loop('i', 1, (LOAD,), 'dynamic', 1, (0, NUMBER, -1))), 'wrong bounds'),
    ('registers', '{} takes a tensor of one element'): broken('a register of a tile'),
    ('tile', 'index {} of dimension {} is outside {}'): (many(fill(replace(NEAR, offset=Affine(10**5)))), 'leaves t'),
    ('tile', 'an index is added to one whole number in memory'): (
        indexed(index=Access(1, Affine(), ((0, 128), (0, 512)))), 'tile of 32-bit integers'),
    ('trace', 'the kernel returns {}, which is in {}'): (tensor(4, 'output'), 'is not in HBM'),
    ('views', 'reshape must keep the partition dimension first'): (
        many(fill(replace(NEAR, ap=((512, 64), (256, 4))))), 'crosses from one partition'),
    ('views', 'the first step of a pattern on chip is one partition'): (
        many(fill(replace(NEAR, ap=((256, 128), (1, 256))))), 'steps inside a row'),
    ('views', 'the partition axis stays where it is'): (
        many(LOAD, copy(replace(on(NEAR, 2), ap=((512, 128), (1, 128))), replace(NEAR, ap=((1, 128), (512, 128))))),
        'crosses from one partition'),
    ('views', 'vector_offset picks rows (axis 0) of an HBM tensor'): broken('rows of a tile by index'),
    ('views', 'vector_select picks rows (axis 0) of an HBM tensor, once'): broken('rows of a tile by index'),
    ('views', 'scalar_offset is one number: an integer, a register or a (1, 1) tile'): (
        indexed(index=Access(1, Affine(), ((0, 128), (0, 512)))), 'tile of 32-bit integers'),
    ('views', '{} elements do not fit the shape {}'): (
        many(LOAD, tensors=(*TENSORS, Tensor('a', (128, 1024), 'float32', 'sbuf', alias=1))), 'does not fit the memory'),
    ('views', 'the {} of the view is not a whole number of the wider elements'): (
        many(LOAD, tensors=(*TENSORS, Tensor('a', (1, 3), 'float32', 'sbuf', alias=3))), 'does not fit the memory'),
}

PYTHON = 'It is about the Python of the kernel, of which nothing is recorded.'
VIEW = 'It is about how a view may be written; a Program has the access that results, held to its tensor and its rows.'
RUN = 'It is about how many ranks run together, which no Program says; the run refuses.'
FIELD = 'A Program has one field for it, so that it cannot be said twice, in part or otherwise.'
OTHER = 'Another function of the language records it, so that it is no breach in a Program.'
# tracing stops early; the parent holds every program to them (tests/evaluate/sandbox/test_long_programs.py)
ASKED = 'limits of the one who asks'
IMPOSSIBLE = {
    ASKED: [('builder', 'the program is too long to execute here'), ('builder', 'the traced program has too many parts'),
            ('builder', 'the trace is too long')],                  # memory of the process that traces; no Program keeps it
    OTHER: [('isa_vector', 'rng writes random bits')],                  # nl.rand
    PYTHON: [
        ('isa_core', 'NKI functions work only inside a kernel'), ('language', 'nl.store takes a tile'),
        ('language', 'nl.{} needs at least one tile'), ('language', 'nl.{} takes a tile, not {}'),
        ('numpy_habits', 'an array of the host does not meet a tile'), ('numpy_habits', 'tiles have no operator {}'),
        ('numpy_habits', '{} works on values, and a tile has none while the kernel is traced'),
        ('python_subset', '{} is outside the Python that the compiler takes{}'),
        ('registers', 'a register has no truth value while the kernel is traced'),
        ('numpy_habits', 'a tile has no .{}'), ('numpy_habits', 'an index has no .{}'),
        ('numpy_habits', '{} works on values, and an index array has none while the kernel is traced'),
        ('isa_core', 'the call does not fit: {}'), ('isa_core', 'the tile {} stands where {} is expected'),
        ('isa_core', '{} stands where the tile {} is expected'),            # arguments of a call; a Program has operands by name
        ('trace', '{}, but how often this loop turns is in memory: its counter has no values while the kernel is traced'),
        ('tile', 'a tile cannot be iterated'), ('tile', 'a tile has no truth value while the kernel is traced'),
        ('trace', 'a loop over a register is still open: while reg: … needs its second look'),
        ('trace', 'the kernel cannot be called with {} inputs: {}'), ('trace', 'the kernel does not parse: {}'),
        ('trace', 'the kernel is nested too deeply to parse'), ('trace', 'the kernel recurses without end'),
        ('trace', 'the kernel returns a {}, not a tensor'), ('trace', 'the kernel returns nothing'),
        ('trace', 'the source has {}'), ('trace', 'there is no function {}'),
        ('kernel_functions', '{} is not a Python function'),
        ('kernel_functions', 'a launch grid is a whole number of programs, or a tuple of them'),
        ('kernel_functions', 'the launch grid has too many programs to simulate'),
        ('trace', 'said_by(e)'), ('trace', 'said'), ('trace', '{}')],
    VIEW: [
        ('indexing', 'a slice of {} runs upwards'), ('indexing', 'a tile of shape {} does not broadcast to {}'),
        ('indexing', 'masks on operands of these shapes are not modelled'),
        ('indexing', 'slices and index arrays do not mix'), ('indexing', '{} indices for the {} dimensions of {}'),
        ('indexing', '{} is no index'), ('views', 'axis {} has {} elements, not one'),
        ('views', 'reshape needs a contiguous tile: {} with steps {} cannot become {}'),
        ('views', 'a view through an index cannot change the element size'),
        ('views', 'the last axis must be contiguous to be read as another dtype'),
        ('views', 'the sizes of {} do not follow from {} elements'), ('views', 'there is no axis {} in {}'),
        ('views', 'a shape is made of whole numbers'), ('views', '{} is not an order of {} axes'), ('views', '{} works on free axes; axis {} walks over partitions'),
        ('views', '{} → {} does not rearrange {} axes'), ('views', 'NkiTensor.indirect (tensor indirection) is not modelled'),
        ('legacy_isa', '{} works on a tile whose place is read from memory')],
    RUN: [
        ('collectives', '{} over {} ranks: one simulated run is one rank'), ('collectives', 'the group has rank {}'),
        ('legacy_language', 'nl.all_reduce over several programs is not modelled: they run one after another')],
    FIELD: [
        ('collectives', 'channels count from 0'),
        ('collectives', '{} with places of its own for what is received is not modelled'),
        ('indexing', 'only one index of a view may come from memory'), ('isa_dma', 'dma_compute scales by 1 only'),
        ('isa_tensor', 'tile_position and tile_size are given together'),
        ('legacy_language', 'atomic_rmw adds, and does nothing else'),
        ('multicore', 'core {} receives from core {}, which sends to core {}'),
        ('multicore', 'the cores do not wait for each other the same way: {}'),
        ('views', 'an access has one index: scalar_offset or vector_offset')]}


def answers(tensors, body, chip='trn2', change=None, dialect='nki'):
    "What a forged program, which comes as text, is refused with."
    table = json.loads(Program('p', tuple(tensors), tuple(body), (), dialect, chip).to_json())
    if change: change(table)
    try: return [d.message for d in check(Program.from_json(json.dumps(table)), chip)]
    except KernelError as e: return [str(e)]


@pytest.mark.parametrize('site', REFUSED, ids=' '.join)
def test_a_program_is_refused_what_a_kernel_is(site):
    case, words = REFUSED[site]
    found = answers(*case)
    assert any(words in m for m in found), found


def test_no_limit_is_held_by_tracing_alone():
    "Each refusal in the text of the recording layers is in one of the two tables, and each of the tables is there."
    found, impossible = refusals('record', 'lang'), [x for some in IMPOSSIBLE.values() for x in some]
    assert not {*REFUSED} & {*impossible} and len(impossible) == len({*impossible})
    assert found == {*REFUSED, *impossible}


def test_a_forged_loop_turns_a_whole_number_of_times():
    found = answers(*edited(lambda d: d['body'][0].update(n=1.5), Loop('i', 2, (LOAD,), 'sequential')))
    assert any('not a whole number' in m for m in found), found
