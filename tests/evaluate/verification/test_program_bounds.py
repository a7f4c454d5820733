"""The bound of a Program: never above its time, and near it for each mechanism that it knows."""
import math

import pytest
from memory_programs import memory_program
from random_programs import random_program

from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.verification.least_costs import copy_ns, engine_ns
from kernel_lab.evaluate.verification.program_bounds import different_elements, program_bounds
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.timing.timeline import schedule

N = 512
TENSORS = (Tensor('x', (128, N), 'float32', 'hbm', 'input'), Tensor('out', (128, N), 'float32', 'hbm', 'output'),
           Tensor('a', (128, N), 'float32', 'sbuf'), Tensor('b', (128, N), 'float32', 'sbuf'),
           Tensor('rows', (128, 1), 'int32', 'sbuf'), Tensor('p', (128, N), 'float32', 'psum'),
           Tensor('w', (128, 128), 'float32', 'sbuf'), Tensor('column', (128, 1), 'float32', 'sbuf'))
X, OUT, A, B, ROWS, P, W, COLUMN = range(8)
FORTY = 40


def at(k, first=0, columns=None, index=None):
    "Columns of a tensor of 128 rows."
    width = TENSORS[k].shape[1]
    return Access(k, Affine(first), ((width, 128), (1, columns or width)), None if k < 2 else 0,
                  *((index, width, 128) if index else ()))


def made(*body, dialect='nki', chip='trn2'): return Program('t', TENSORS, body, (OUT,), dialect, chip)


def again(*body, trips=FORTY, kind='sequential', name='i'): return Loop(name, trips, body, kind)


def load(k=A, **kw): return Instruction('dma_copy', {'dst': at(k)}, {'src': at(X)}, **kw)


def store(k=A): return Instruction('dma_copy', {'dst': at(OUT)}, {'src': at(k)})


def add(dst=B, one=A, two=A, **kw):
    return Instruction('tensor_tensor', {'dst': at(dst)}, {'data1': at(one), 'data2': at(two)}, {'op': 'add'}, **kw)


def fill(k=A): return Instruction('memset', {'dst': at(k)}, {'value': 1.0}, {}, 'Vector')


def matmul(moving=A): return Instruction('nc_matmul', {'dst': at(P)}, {'stationary': at(W), 'moving': at(moving)})


MASK = ((Affine(N // 2 - 1), ((-1, -1),)),)
BACKWARDS = Access(X, Affine(N - 1), ((N, 128), (-1, N)), None)
HALVES = [Instruction('tensor_scalar', {'dst': at(B, c, N // 2)}, {'data': at(A, 0, N // 2), 'operand0': 2.0},
                      {'op0': 'multiply'}, 'Vector') for c in (0, N // 2)]
KINDS = {      # what the bound before this knew nothing of, each in a program that is little else
    'a mask': made(fill(), again(add(mask=MASK, engine='Vector'))),
    'arithmetic that only Vector gets': made(fill(), again(add())),
    'a reduction': made(fill(), again(Instruction('tensor_reduce', {'dst': at(COLUMN)}, {'data': at(A)},
                                                  {'op': 'add', 'axis': [1], 'keepdims': True}))),
    'a reciprocal': made(fill(), again(Instruction('reciprocal', {'dst': at(B)}, {'data': at(A)}))),
    'one element at a time': made(again(Instruction('dma_copy', {'dst': at(A)}, {'src': BACKWARDS}))),
    'a gather': made(Instruction('memset', {'dst': at(ROWS)}, {'value': 0.0}, {}, 'Vector'), again(
        Instruction('dma_copy', {'dst': at(A)}, {'src': at(X, index=at(ROWS))}))),
    'few partitions, one after another': made(again(
        Instruction('dma_copy', {'dst': Access(A, Affine(), ((N, 8), (1, N)), 0)},
                    {'src': Access(X, Affine(), ((N, 8), (1, N)), None)}),
        Instruction('dma_copy', {'dst': Access(X, Affine(), ((N, 8), (1, N)), None)},
                    {'src': Access(A, Affine(), ((N, 8), (1, N)), 0)}))),
    'copies that wait for one another': made(again(
        load(), store(), Instruction('dma_copy', {'dst': at(X)}, {'src': at(OUT)}))),
    'a chain through several tiles': made(fill(), again(add(B, A), add(A, B))),
    'a chain through a part of a tile': made(fill(), fill(B), *FORTY * [
        HALVES[0], Instruction('tensor_copy', {'dst': at(A)}, {'src': at(B)}, {}, 'Scalar')]),
    'the earlier dialect: products': made(load(), load(W), again(
        Instruction('dma_copy', {'dst': at(A)}, {'src': Access(X, Affine(0, (('i', 1),)), ((0, 128), (1, N)), None)}),
        matmul()), dialect='neuronxcc.nki'),
    'the earlier dialect: every input once': made(load(), store(), dialect='neuronxcc.nki')}
LEAST = {'one element at a time': 0.9, 'a chain through a part of a tile': 0.6, 'a gather': 0.25,
         'few partitions, one after another': 0.4,
         'copies that wait for one another': 0.4, 'the earlier dialect: products': 0.5,
         'the earlier dialect: every input once': 0.25}


def share(program, chip='trn2'):
    "The bound as a share of the time, both without the launch."
    launch = CHIPS[chip].launch_us
    return (max(program_bounds(program, chip).values()) - launch) / (schedule(program, chip).latency_us - launch)


@pytest.mark.parametrize('name', KINDS)
def test_each_mechanism_counts(name):
    found = share(KINDS[name])
    assert LEAST.get(name, 0.75) < found < 1, found


def holds(program, chip):
    "Whether its bound is below its time; None where it has none."
    try: us = schedule(program, chip).latency_us
    except KernelError: return None
    return bool(max(program_bounds(program, chip).values()) <= 0.999 * us)


def of_seed(seed): return random_program(seed), memory_program(seed), memory_program(seed, dialect='neuronxcc.nki')


def never_above(seeds):
    found = [(seed, k, chip, holds(p, chip)) for seed in seeds for k, p in enumerate(of_seed(seed)) for chip in CHIPS]
    assert not [x for x in found if x[-1] is False] and sum(x[-1] is True for x in found) > len(found) / 2


def test_no_random_program_is_below_its_bound(): never_above(range(12))


@pytest.mark.slow
def test_none_of_many_random_programs_is_below_its_bound(): never_above(range(12, 400))


@pytest.mark.parametrize('chip', CHIPS)
@pytest.mark.parametrize('name', KINDS)
def test_no_mechanism_counts_too_much(name, chip): assert holds(KINDS[name], chip)


def test_two_cores_share_the_work():
    halves = made(fill(), again(add(), trips=2, kind='parallel', name='core'))
    for chip in CHIPS: assert holds(halves, chip) is not False


def test_an_unnamed_engine_is_one_that_the_api_documents():
    chip, program = CHIPS['trn2'], made()
    assert engine_ns(program, add(), chip).keys() == {'Vector'}
    assert engine_ns(program, add(engine='GpSimd'), chip).keys() == {'GpSimd'}
    copy = Instruction('tensor_copy', {'dst': at(B)}, {'src': at(A)})
    assert engine_ns(program, copy, chip).keys() == {'Vector', 'Scalar', 'GpSimd'}
    assert engine_ns(program, copy, CHIPS['trn1']).keys() == {'Vector', 'GpSimd'}
    from_psum = Instruction('tensor_copy', {'dst': at(B)}, {'src': at(P)})
    assert engine_ns(program, from_psum, CHIPS['trn1']).keys() == {'Vector'}


def test_a_copy_of_few_partitions_uses_few_engines():
    few = Instruction('dma_copy', {'dst': Access(A, Affine(), ((N, 8), (1, N)), 0)},
                      {'src': Access(X, Affine(), ((N, 8), (1, N)), None)})
    all_of_them, its_own, far = copy_ns(made(), few, CHIPS['trn2'])
    assert its_own == 16 * all_of_them and far == 8 * N * 4


def test_windows_that_overlap_count_once():
    window = Access(X, Affine(0, (('i', 64),)), ((1, 96),), None)
    assert different_elements(window, (Loop('i', 4, ()),)) == 3 * 64 + 96
    apart = Access(X, Affine(0, (('i', 128),)), ((1, 96),), None)
    assert different_elements(apart, (Loop('i', 4, ()),)) == 4 * 96


@pytest.mark.parametrize('chip', CHIPS)
@pytest.mark.parametrize('windows', [((1, 500), (1, 8)), ((1, 8), (1, 500)), ((2, 200), (1, 4)), ((64, 4), (1, 3), (1, 64)),
                                     ((0, 8), (1, 64)), ((1, 64), (0, 8))], ids=str)
@pytest.mark.parametrize('where', ['source', 'both'])
def test_windows_that_overlap_are_not_marked(chip, windows, where):
    """Loads of a convolution: windows that lie in one another in HBM, side by side in SBUF, or the same in both: of
    several axes with one step the order that the kernel wrote counts."""
    free = math.prod(n for _, n in windows)
    tensors = (Tensor('x', (128, N), 'float32', 'hbm', 'input'), Tensor('a', (128, free), 'float32', 'sbuf'),
               Tensor('out', (128, free), 'float32', 'hbm', 'output'))
    side_by_side, steps = free, []
    for _, n in windows:
        side_by_side //= n
        steps.append((side_by_side, n))
    copy = Instruction('dma_copy', {'dst': Access(1, Affine(), ((free, 128), *(windows if where == 'both' else steps)), 0)},
                       {'src': Access(0, Affine(), ((N, 128), *windows), None)})
    rows = lambda k, par: Access(k, Affine(), ((free, 128), (1, free)), par)
    keep = Instruction('dma_copy', {'dst': rows(2, None)}, {'src': rows(1, 0)})
    program = Program('t', tensors, (again(copy), keep), (2,), chip=chip)
    assert max(program_bounds(program, chip).values()) <= schedule(program, chip).latency_us
