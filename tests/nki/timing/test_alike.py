"""Instructions that differ only in where their operands lie share what is known of them: the same arrays, the same
refusals as when each is looked at by itself."""
from dataclasses import replace

import numpy as np
import pytest

from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, schedule, trace
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.ir import overlap
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.program import NO_FIGURE, Program, as_column
from kernel_lab.nki.ir.regions import region_of
from kernel_lab.nki.lang import language as nl
from kernel_lab.nki.timing import flat_program, timeline
from kernel_lab.nki.timing.flat_program import flatten

TRN1 = CHIPS['trn1']


def unrolled(x):
    "Tiles in a Python loop, some of them masked, with a loop inside."
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for k in range(6):
        t = nl.load(x[:, nl.ds(k * 128, 128)])
        for i in nl.affine_range(2): t[:, nl.ds(i * 64, 64)] = t[:, nl.ds(i * 64, 64)] * (k % 2 + 1)
        if k % 3 == 0: t = nl.exp(t)
        nl.store(out[:, nl.ds(k * 128, 128)], t)
    return out.reshape((128 * 768,))


def bytes_of(flat): return [np.ascontiguousarray(column).tobytes() for column in flat]


@pytest.mark.parametrize('most', [1, 3, 2**14])
def test_however_much_is_kept(monkeypatch, most):
    "Rows are those of the instruction by itself: without a cache, with one that overflows, with a full one."
    program = trace(unrolled, ArraySpec((128, 768)))
    fresh = lambda: Program(**{k: v for k, v in program.__dict__.items() if k in Program.__dataclass_fields__})
    monkeypatch.setattr(flat_program, '_ROWS', {})
    alone = []
    for o in program.instructions:
        loops = next(l for l, i in program.walk() if i is o)
        o.__dict__.pop('_rows', None)
        alone += [flat_program._costs(program, o, TRN1, True)[0]]
        assert not loops or flat_program._operands(program, o, []) is not None
    monkeypatch.setattr(flat_program, 'MAX_KEPT', most)
    first = flatten(fresh(), TRN1, True)
    assert bytes_of(flatten(fresh(), TRN1, True)) == bytes_of(first)
    costs = np.frombuffer(b''.join(alone), flat_program.COSTS)
    assert (costs['engines'] == first.engines).all() and (costs['copies'] == first.copies).all()
    terms, mine = [], []
    for o in program.instructions: mine += flat_program._operands(program, o, terms)
    tracked = {k for k, t in enumerate(program.tensors) if t.buffer != 'hbm'}
    mine = [o for o in mine if o[0] in tracked]
    assert [tuple(o) for o in first.operands.tolist()] == mine
    assert len(first.terms) == len(terms)


def lone(*body, tensors=None):
    return Program('lone', tensors or (Tensor('t', (4, 8), 'float32', 'sbuf'),), body, ())


def at(const, ap=((8, 4), (1, 8)), tensor=0): return Access(tensor, Affine(const), ap)
def fill(a, value=0.0): return Instruction('memset', {'dst': a}, {'value': value}, line=5)


def test_numbers_of_other_types_are_others():
    "True, 1 and 1.0 are equal in Python, and three kinds of operands."
    program = lone(*[fill(at(0), v) for v in (1, 1.0, True, 1.0)])
    rows = flat_program._rows_of(program, TRN1, False)
    assert rows[1] is rows[3] and len({*map(id, rows)}) == 3


def test_kept_rows_know_their_tensors():
    "An instruction in a program whose tensor of that number has another form has other rows."
    o, wide = fill(at(0)), (Tensor('t', (4, 16), 'float32', 'sbuf'),)
    first, second = (flatten(lone(o, tensors=t), TRN1) for t in (None, wide))
    assert (first.operands['row_size'], second.operands['row_size']) == (8, 16)
    assert flatten(lone(o), TRN1).operands['row_size'] == 8


FAR = 2**40


@pytest.mark.parametrize('const', [0, -1, 1, FAR, -FAR, 2**62, 2**63 - 1, 2**63, -2**63, 2**80])
@pytest.mark.parametrize('ap', [((8, 4), (1, 8)), ((8, 4), (-1, 8)), ((1, FAR),), ((2**62, 2), (1, 2)),
                                ((2**62, 3), (2**61, 3)), ((-2**80, 2),)])
def test_who_is_plainly_inside(const, ap):
    "By columns as one by one, with figures that no column holds."
    program = lone(fill(at(const, ap)), fill(at(0)), fill(at(const)))
    one_by_one = [timeline._is_plainly_inside(program.tensors, a) for a in program.operands.accesses]
    assert timeline._are_plainly_inside(program).tolist() == one_by_one
    if all(one_by_one): schedule(program, TRN1)
    else:
        with pytest.raises(KernelError, match='line 5: memset'): schedule(program, TRN1)


def test_a_tensor_that_there_is_not_is_refused():
    for k in (-1, 1, 2**70):
        with pytest.raises(KernelError, match=f'no tensor number {k}'): schedule(lone(fill(at(0)), fill(at(0, tensor=k))), TRN1)


def test_columns():
    assert as_column([3, 2**63, -2**63, 1.5, None]).tolist() == [3, NO_FIGURE, -2**63, NO_FIGURE, NO_FIGURE]
    assert not len(lone().operands.accesses) and not lone().read_back
    index = Access(1, Affine(), ((1, 4), (1, 1)))
    by_index = Access(0, Affine(), ((0, 4), (1, 8)), None, index, 8, 4)
    o = Instruction('dma_copy', {'dst': at(0, tensor=2)}, {'src': by_index})
    program = lone(o, replace(o, outs={'dst': by_index}, ins={'src': at(0, tensor=2)}))
    found = program.operands
    assert found.tensor.tolist() == [0, 2, 1, 2, 0, 1] and found.instr.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.writes.tolist() == [False, True, False, False, True, False]
    assert found.by_index.tolist() == [True, False, False, False, True, False]


@pytest.mark.parametrize('seed', range(20))
def test_boxes_of_writes(seed):
    "The boxes of many writes are those of each; a write that leaves the tensor has none."
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 9, 3).tolist())
    steps = (shape[1] * shape[2], shape[2], 1)
    def write():
        counts = [int(rng.integers(1, n + 1)) for n in shape]
        at = sum(int(rng.integers(0, n - c + 1 + (rng.random() < .1))) * s for n, c, s in zip(shape, counts, steps))
        return Access(0, Affine(at), tuple(zip(steps, counts)), None)
    program = lone(tensors=(Tensor('t', shape, 'float32', 'hbm'),))
    for _ in range(20):
        some = [write() for _ in range(3)]
        regions, boxes = [region_of(shape, a, {}) for a in some], overlap._boxes(program, some)
        if None in regions: assert boxes is None
        else: assert boxes.tolist() == [[list(r) for r in p.ranges({})] for p in regions]
        writes = [((), None, 'dst', a) for a in some]
        cells = [{*overlap.cells_of(a).reshape(-1).tolist()} for a in some]
        if overlap._apart(program, writes): assert sum(map(len, cells)) == len(set().union(*cells))


def test_a_loop_around_writes_is_seen():
    "Two writes in a loop that moves neither meet themselves."
    a, b = (Access(0, Affine(k), ((8, 4), (1, 4)), None) for k in (0, 4))
    tensors = (Tensor('t', (4, 8), 'float32', 'hbm', 'output'), Tensor('s', (4, 4), 'float32', 'sbuf'))
    store = lambda to: Instruction('dma_copy', {'dst': to}, {'src': Access(1, Affine(), ((4, 4), (1, 4)))})
    apart, again = (store(a), store(b)), (Loop('i', 2, (store(a), store(b))),)
    assert not overlap.written_twice(lone(*apart, tensors=tensors))
    assert overlap.written_twice(lone(*again, tensors=tensors)) == {0}
