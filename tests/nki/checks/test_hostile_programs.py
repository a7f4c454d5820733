"""Programs put together by hand that no scheduler can place: each ends in a `KernelError` that names its instruction,
soon; from a file as from memory."""
import signal
from dataclasses import replace
import numpy as np, pytest
from kernel_lab.core.errors import KernelError, SimulatorError
from kernel_lab.nki.timing import scheduler
from kernel_lab.nki import check, schedule
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.instructions import INSTRUCTIONS
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.ir.serialize import DIALECTS
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.program import Program

@pytest.fixture(autouse=True)
def soon():
    "Nothing here may take more than a minute (the first schedule of all compiles the scheduler)."
    def late(*_): raise TimeoutError('the scheduler hangs')
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)

AP = ((512, 128), (1, 512))
TENSORS = tuple(
    Tensor(n, (128, 512), 'float32', b, r)
    for n, b, r in (('x', 'hbm', 'input'), ('y', 'hbm', 'output'), ('a', 'sbuf', 'scratch'), ('b', 'sbuf', 'scratch'),
                    ('h', 'hbm', 'scratch')))
X, Y, A, B, H = range(5)
def at(k, const=0, terms=()): return Access(k, Affine(const, terms), AP)
def dma(dst, src, line, **kw): return Instruction('dma_copy', {'dst': at(dst)}, {'src': at(src)}, line=line, **kw)
def add(dst, src, line, **kw):
    return Instruction('tensor_scalar', {'dst': at(dst)}, {'data': at(src), 'operand0': 1.0}, {'op0': 'add'}, line=line,
                       **kw)
def to(dst, line): return Instruction('tensor_copy', {'dst': dst}, {'src': at(A)}, line=line)
def program(*body, **kw): return Program('by hand', TENSORS, body, (Y,), **kw)
def turning(n, *body): return Loop('i', n, body, 'sequential')

BAD = {
    'cycle': (program(add(A, B, 1), add(B, A, 2), dma(Y, A, 3)), 'line 1: tensor_scalar: operand b: instruction 0: b '
              'is read before it is written: the first that writes '
              'it is instruction 1, line 2'), 'reads what a later one writes': (
                  program(dma(Y, A, 1), dma(A, X, 2)), 'line 1: dma_copy: operand a: instruction '
                  '0: .* instruction 1, line 2'), 'reads what it alone writes': (program(dma(B, X, 1), add(A, A, 2)),
                                                                                 'line 2: tensor_scalar: operand a: '
                                                                                 'instruction 1'),
    'reads what nobody writes': (program(dma(B, X, 1), add(B, A, 2)), 'line 2: .* instruction 1: a is read before it '
                                 'is written: no instruction writes it'),
    'in a loop': (program(turning(4, add(B, A, 1), dma(A, X, 2))), 'instruction 0: a is read before it is written'),
    'through HBM': (program(dma(A, H, 1), dma(H, A, 2)), 'instruction 0: h is read before it is written'),
    'an engine no chip has': (program(dma(A, X, 1), add(B, A, 2, engine='Warp')), "line 2: tensor_scalar: instruction "
                              "1: trn1 has no engine 'Warp'"), 'a queue no chip has': (
                                  program(dma(A, X, 1, engine='Warp')), "line 1: dma_copy: instruction 0: trn1 has no "
                                  "engine 'Warp'"),
    'an engine that cannot': (program(dma(A, X, 1), add(B, A, 2, engine='Tensor')),
                              'line 2: tensor_scalar: instruction 1: it does not run on Tensor'),
    'an unknown op': (program(dma(A, X, 1), Instruction('frobnicate', {'dst': at(B)}, {'src': at(A)}, line=2)),
                      'line 2: instruction 1: .frobnicate. is not an instruction'), 'no operands': (
                          program(Instruction('tensor_copy', {}, {},
                                              line=1)), 'line 1: tensor_copy: instruction 0: its time cannot be found'),
    'DMA from nowhere': (program(Instruction('dma_copy', {'dst': at(A)}, {'src': 1.0}, line=1)),
                         'line 1: dma_copy: instruction 0: its time cannot be found'), 'past the end': (
                             program(dma(A, X, 1), to(at(B, 10 ** 9), 2)),
                             'line 2: tensor_copy: instruction 1: it reaches outside b'), 'before the beginning': (
                                 program(dma(A, X, 1),
                                         to(at(B, -10 ** 9),
                                            2)), 'instruction 1: it reaches outside b'), 'past the end in a loop': (
                                                program(dma(A, X, 1), turning(4, to(at(B, 0, (('i', 512),)), 2))),
                                                'instruction 1: it reaches outside b'), 'two thousand million turns': (
                                                    program(turning(2 ** 31, dma(A, X, 1))),
                                                    'line 1: dma_copy: instruction 0: it runs 2,147,483,648 times'),
    'as many, all masked': (program(turning(2 ** 31, dma(A, X, 1, mask=((Affine(-1), ()),)))),
                            'instruction 0: it runs 2,147,483,648 times'),}
BY_HAND = {
    'no such tensor': (program(dma(A, 9, 7)), 'line 7: dma_copy: instruction 0: there is no tensor number 9'),
    'a loop that is not there': (program(dma(A, X, 1), to(at(B, 0, (('z', 1),)), 7)),
                                 "line 7: tensor_copy: instruction 1: b moves with loop 'z'"),
    'a mask on such a loop': (program(dma(A, X, 1, mask=((Affine(0, (('z', 1),)), ()),))),
                              'instruction 0: its mask cannot be evaluated'),
    'an empty loop': (program(turning(2 ** 31)), "loop 'i' is empty"),}

@pytest.mark.parametrize('dialect', DIALECTS)
@pytest.mark.parametrize('case', list(BAD) + list(BY_HAND))
def test_what_cannot_be_played_is_refused(case, dialect):
    p, said = (BAD | BY_HAND)[case]
    with pytest.raises(KernelError, match=said): schedule(replace(p, dialect=dialect), 'trn1')

@pytest.mark.parametrize('case', list(BAD))
def test_the_same_from_a_file(case):
    p, said = BAD[case]
    with pytest.raises(KernelError, match=f'{said}|not valid'): schedule(Program.from_json(p.to_json()), 'trn1')

def crowd(count, buffer, shape, dialect, untouched=False):
    "So many tiles, all of them still needed at the end."
    tiles = tuple(Tensor(f't{k}', shape, 'float32', buffer) for k in range(count))
    whole, some = (tuple((shape[1], 128) if k == 0 else (1, n)
                         for k, n in enumerate((128, n)))
                   for n in (shape[1], min(512, shape[1])))
    body = [
        Instruction('memset', {'dst': Access(2 + k, Affine(), whole)}, {'value': 0.0}, line=1 + k)
        for k in range(count)]
    body += [
        Instruction('dma_copy', {'dst': Access(Y, Affine(), AP)}, {'src': Access(2 + k, Affine(), some)}, line=101 + k)
        for k in range(count)]
    return Program('crowd', TENSORS[:2] + tiles, tuple(body), (Y,), dialect=dialect, untouched=untouched)

@pytest.mark.parametrize('count,buffer,width,line', [(1, 'sbuf', 10**6, 1), (10, 'psum', 512, 9)])
def test_memory_that_never_becomes_free(count, buffer, width, line):
    with pytest.raises(
            KernelError,
            match=f'line {line}: .* is full: everything allocated is still needed at instruction {line - 1}, memset'):
        schedule(crowd(count, buffer, (128, width), 'nki'))

@pytest.mark.parametrize('dialect', ['nki', 'neuronxcc.nki'])
def test_it_goes_on_where_tiles_can_be_spilled(dialect):
    """Six tiles of 36 KB a partition: two of them go to HBM, and come back.

    A tile larger than all of SBUF cannot be anywhere."""
    t = schedule(crowd(6, 'sbuf', (128, 9000), dialect))
    assert t.spilled > 0 and t.reloaded > 0 and np.isfinite(t.end_us).all()
    for untouched in (False, True):
        with pytest.raises(KernelError, match='SBUF is full'):
            schedule(crowd(1, 'sbuf', (128, 10**6), dialect, untouched))


@pytest.mark.parametrize(
    'cost,said',
    [
        (None, 'its row has no cost rule'),
        (lambda w: float('nan'), 'its cost rule gives no time'),
        (lambda w: -5, 'its cost rule gives no time'),
        (lambda w: 1 / 0, 'its time cannot be found'),
        (lambda w: 10**400, 'its time cannot be found'),
    ],
)
def test_a_cost_rule_that_says_nothing(cost, said, monkeypatch):
    monkeypatch.setitem(INSTRUCTIONS, 'tensor_scalar', replace(INSTRUCTIONS['tensor_scalar'], cost=cost))
    with pytest.raises(KernelError, match=f'line 2: tensor_scalar: instruction 1: {said}'):
        schedule(program(dma(A, X, 1), add(B, A, 2), dma(Y, B, 3)))

def test_a_chip_without_an_engine():
    "Nobody asks for the others; who does is named."
    chip = replace(CHIPS['trn2'], figures={k: f for k, f in CHIPS['trn2'].figures.items() if k != 'vector_ghz'})
    with pytest.raises(KernelError,
                       match='line 2: tensor_scalar: instruction 1: its time cannot be found .*vector_ghz'):
        schedule(program(dma(A, X, 1), add(B, A, 2)), chip)
    assert len(schedule(program(dma(A, X, 1), dma(Y, A, 2)), chip)) == 2

def test_a_scheduler_that_is_stuck_says_so(monkeypatch):
    "It cannot be with a program, because all edges go back; so the edges are forged."
    graph_of = scheduler.dependency_graph
    def forged(*a):
        x = graph_of(*a)
        x.edges.row[:] = len(x.instr) - 1
        return x
    monkeypatch.setattr(scheduler, 'dependency_graph', forged)
    with pytest.raises(SimulatorError, match='stuck: instruction'):
        schedule(program(dma(A, X, 1), add(B, A, 2), dma(Y, B, 3), dialect='neuronxcc.nki'))


ODD_VALUES = (True, None, -1, 2**70, 1.5, 'x', [], [1, 0], [[1, 2]], [[[]]], {}, {'a': 1})


@pytest.mark.parametrize('name', ['axes', 'axis', 'dim', 'loops', 'pattern', 'shuffle_mask', 'tile', 'tiles', 'transform', 'op0', 'dge'])
@pytest.mark.parametrize('made', [dma, add, lambda dst, src, line: to(at(dst), line)], ids=['dma_copy', 'tensor_scalar', 'tensor_copy'])
def test_an_attribute_where_it_has_no_place_breaks_no_rule_of_ours(name, made):
    "`axes` of a tensor_scalar, which has no operand `src`, was looked up in it."
    for value in ODD_VALUES:
        o = made(B, A, 2)
        assert isinstance(check(program(dma(A, X, 1), replace(o, attrs={**o.attrs, name: value}), dma(Y, B, 3))), list | tuple)
    o = made(B, A, 2)
    found = check(program(dma(A, X, 1), replace(o, attrs={**o.attrs, 'axes': True}), dma(Y, B, 3)))
    assert any('axes is not an order' in d.message for d in found)


VIEWS = {'of more rows': Tensor('v', (128, 512), 'float32', 'hbm', 'output', alias=5),
         'of a later tensor': Tensor('v', (128, 512), 'float32', 'hbm', 'output', alias=7),
         'of nothing': Tensor('v', (128, 512), 'float32', 'hbm', 'output', alias=-1),
         'of an input': Tensor('v', (128, 512), 'float32', 'hbm', 'input', alias=X)}

@pytest.mark.parametrize('view', VIEWS.values(), ids=VIEWS)
def test_a_view_has_the_memory_that_it_shares(view):
    "From memory as from a file."
    large = Tensor('large', (256, 512), 'float32', 'hbm')
    p = Program('by hand', (*TENSORS, large, view), (dma(A, X, 1), dma(6, A, 2)), (6,))
    found = check(p)
    assert [d.kind for d in found] == ['invalid'] and "tensor 'v'" in found[0].message and found[0].operand == 'v'
    with pytest.raises(KernelError, match="tensor 'v'|not a whole number"): Program.from_json(p.to_json())

def test_a_view_of_all_of_a_tensor_is_fine():
    same = Tensor('v', (128, 512), 'float32', 'hbm', 'output', alias=H)
    assert check(Program('by hand', (*TENSORS, same), (dma(A, X, 1), dma(5, A, 2)), (5,))) == []
