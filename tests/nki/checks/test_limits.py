"Each limit of the hardware: a kernel that just keeps it passes, one that just breaks it is refused by name."
import ml_dtypes, numpy as np, pytest
from kernel_lab.nki.checks.limits import RULES
from kernel_lab.nki.checks.capacity import allocations, memory_overflow, too_large, places
from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.checks.limits import LIMITS
from kernel_lab.nki.checks.capacity import capacity
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, trace
from kernel_lab.nki.lang.trace import trace_source
from dialects import nisa, nl

F32, BF16, FP8 = np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3

def sb(*shape, dtype=F32): return filled(nl.ndarray(shape, dtype))
def ps(*shape, dtype=F32): return filled(nl.ndarray(shape, dtype, buffer=nl.psum))
def filled(t):
    nisa.memset(t, 0.0, engine=nisa.engine.vector)
    return t

def diagnosed(body, chip='trn2'):
    "What the checker says about a kernel with this body; what is refused while it is traced, too."
    def kernel(x):
        body()
        out, t = nl.ndarray((1, 1), F32, buffer=nl.shared_hbm), sb(1, 1)
        nisa.dma_copy(out, t)
        return out
    try: return check(trace(kernel, np.zeros((1, 1), F32), chip=chip), chip)
    except KernelError as e: return [e]

def found(body, chip='trn2'): return [str(d) for d in diagnosed(body, chip)]

def mm(k=128, m=128, n=512, a=BF16, b=None, dst=None, rows=False, **kw):
    pair = (2,) if rows else ()
    extra = kw | ({'perf_mode': 'double_row'} if rows else {})
    nisa.nc_matmul(
        nl.ndarray((m, n), F32, buffer=nl.psum) if dst is None else dst(), sb(k, *pair, m, dtype=a),
        sb(k, *pair, n, dtype=b or a), **extra)

def shuffle(kind=F32, to=None):
    nisa.nc_stream_shuffle(sb(128, 8, dtype=to or kind), sb(128, 8, dtype=kind), list(range(32)))
def copied_to(dst, tiles):
    for t in tiles: nisa.tensor_copy(dst, t)

def together(n):
    "Three tiles that one instruction needs, of n elements a partition each."
    nisa.tensor_tensor(sb(128, n), sb(128, n), sb(128, n), nl.add)

def banks(n):
    tiles = [ps(128, 512) for _ in range(n)]
    copied_to(sb(128, 512), tiles)

def tiled(position, size, k=32, m=32, **kw):
    nisa.nc_matmul(nl.ndarray((m, 64), F32, buffer=nl.psum), sb(k, m, dtype=BF16), sb(k, 64, dtype=BF16),
                   tile_position=position, tile_size=size, **kw)

def moving_tile(step, rows, turns=2):
    for i in nl.affine_range(turns): tiled((i * step, 0), (rows, 128))

def packed(p, f, kind='float8_e4m3fn_x4'): return filled(nl.ndarray((p, f), getattr(nl, kind)))
def scales(p, f): return filled(nl.ndarray((p, f), np.uint8))

def quantize(p=128, f=64, kind=BF16, dst=None):
    nisa.quantize_mx(packed(p, dst or f // 4), sb(p, f, dtype=kind), scales(p, f // 4))

def mx(k=128, m=128, n=512, dst=F32, moving=None, **kw):
    nisa.nc_matmul_mx(nl.ndarray((m, n), dst, buffer=nl.psum), packed(k, m), packed(moving or k, n), scales(k, m),
                      scales(k, n), **kw)

def rank(p=16, wide=3, n=42, k=8, kind=BF16, index=np.uint32):
    nisa.topk(sb(p, k, dtype=BF16), sb(p, k, dtype=index), sb(p, wide, dtype=kind), n)
def nonzero(src=F32, dst=np.int32, wide=9): nisa.nonzero_with_count(sb(128, wide, dtype=dst), sb(128, 8, dtype=src))
def hbm(*shape, dtype=BF16):
    t = nl.ndarray(shape, dtype, buffer=nl.private_hbm)
    nisa.dma_copy(t, sb(*shape, dtype=dtype))
    return t
def turn(*shape, dtype=BF16, mode=nisa.dge_mode.hwdge, to=None):
    nisa.dma_transpose(sb(*shape[::-1], dtype=to or dtype), hbm(*shape, dtype=dtype), dge_mode=mode)
def gathered(rows=128, wide=64, dtype=BF16, index=np.uint32, down=None, across=1, middle=(), **kw):
    size = int(np.prod(middle))
    far, steps = hbm(128, wide * size, dtype=dtype), [[wide * int(np.prod(middle[k + 1:])), n]
                                                      for k, n in enumerate(middle)]
    src = far.ap([[wide * size, rows], *steps, [1, wide]], vector_offset=sb(down or min(rows, 128), across,
                                                                            dtype=index))
    nisa.dma_transpose(sb(wide, *middle, rows, dtype=dtype), src, axes=(3, 1, 2, 0) if middle else (1, 0), **kw)
def many_registers(n):
    t, far = sb(128, n), hbm(1, 1, dtype=np.int32)
    regs = [nisa.register_alloc(far) for _ in range(n)]
    for k, r in enumerate(regs): nisa.tensor_copy(t[:, k:k + 1], t[:, nl.ds(r, 1)], engine=nisa.engine.vector)
def summed(n=2, shape=(128, 8), **kw):
    nisa.dma_compute(sb(128, 8), [sb(128, 8), *(sb(*shape) for _ in range(n - 1))], nl.add, **kw)
def swap(size, dtype=F32, by=nisa.dma_engine.gpsimd_dma):
    nisa.sendrecv(sb(128, size, dtype=dtype), sb(128, size, dtype=dtype), 0, 0, 0, dma_engine=by)

CASES = [  # limit, a body that keeps it, a body that breaks it, what is said; the chip, where it is not trn2
    ('C4', lambda: mm(n=4096), lambda: mm(n=4097, dst=lambda: nl.ndarray(
        (128, 4096), F32, buffer=nl.psum)), 'moving is too wide', 'trn3'),
    ('C6', lambda: ps(128, 4096), lambda: ps(128, 4097), 'larger than a bank', 'trn3'),
    ('C24', nonzero, lambda: nonzero(BF16), 'does not take this dtype'),
    ('C24', lambda: nonzero(np.int32), lambda: nonzero(dst=F32), 'does not take this dtype'),
    ('C24', nonzero, lambda: nonzero(wide=8), 'one element more'),
    ('C24', nonzero, nonzero, 'does not exist', 'trn2', 'trn1'), ('C25', rank, lambda: rank(p=24), 'groups of 16'),
    ('C25', lambda: rank(n=48), lambda: rank(n=49), 'cannot rank'),
    ('C25', lambda: rank(n=8), lambda: rank(n=7), 'cannot rank'),
    ('C25', rank, lambda: rank(kind=F32), 'does not take this dtype'),
    ('C25', rank, lambda: rank(index=np.int32), 'does not take this dtype'),
    ('C26', mx, lambda: mx(k=48), 'whole quadrants', 'trn3'),
    ('C26', lambda: mx(m=126), lambda: mx(m=127), 'even number', 'trn3'),
    ('C26', lambda: mx(n=4096), lambda: mx(n=4097, dst=BF16, moving=96), 'contraction dimensions differ', 'trn3'),
    ('C26', lambda: mx(n=8192, dst=BF16), lambda: mx(n=8193, dst=BF16), 'moving is too wide', 'trn3'),
    ('C26', mx, mx, 'does not exist', 'trn3', 'trn2'),
    ('C27', quantize, lambda: quantize(p=40), 'whole quadrants', 'trn3'),
    ('C27', lambda: quantize(f=68), lambda: quantize(f=66), 'packed into one', 'trn3'),
    ('C27', lambda: quantize(kind=np.float16), lambda: quantize(kind=F32), 'does not take this dtype', 'trn3'),
    ('C27', quantize, lambda: quantize(dst=17), 'quarter of the elements', 'trn3'),
    ('C27', quantize, quantize, 'does not exist', 'trn3', 'trn1'),
    ('C28', lambda: turn(16, 128), lambda: turn(32, 128), 'groups of 16'),
    ('C28', lambda: turn(2, 8, 96), lambda: turn(2, 7, 96), 'groups of 16'),
    ('C28', lambda: turn(4, 2, 4, 64), lambda: turn(3, 2, 16, 64), 'groups of 16'),
    ('C28', lambda: turn(16, 128), lambda: turn(16, 128, dtype=F32), '2-byte'),
    ('C28', lambda: turn(16, 100, dtype=F32, mode=nisa.dge_mode.unknown),
     lambda: turn(16, 128, mode=nisa.dge_mode.swdge), 'descriptors do not transpose'),
    ('C28', lambda: turn(16, 128), lambda: turn(16, 128, to=F32), 'does not cast'),
    ('C28', lambda: turn(16, 128), lambda: turn(16, 128), 'do not exist', 'trn2', 'trn1'),
    ('C29', gathered, lambda: gathered(dtype=F32), '2-byte'),
    ('C29', lambda: gathered(rows=64), lambda: gathered(rows=40), 'groups of 16'),
    ('C29', gathered, lambda: gathered(index=np.int32), 'uint32'),
    ('C29', gathered, gathered, 'does not gather and transpose', 'trn2', 'trn1'),
    ('C29', lambda: gathered(rows=64, down=128), lambda: gathered(rows=128, down=64), 'fewer indices than rows'),
    ('C29', lambda: gathered(rows=256, across=2), lambda: gathered(rows=128, down=64, across=2), 'have all partitions'),
    ('C29', lambda: gathered(middle=(1, 4)), lambda: gathered(middle=(2, 4)), 'one of the middle dimensions'),
    ('C29', lambda: gathered(oob_mode='skip'),
     lambda: nisa.dma_transpose(sb(64, 16, dtype=BF16), hbm(16, 64), oob_mode='skip'), 'only a gathered source'),
    ('C30', lambda: summed(16), lambda: summed(17), 'at most 16'),
    ('C30', lambda: summed(2, (64, 16)), lambda: summed(2, (64, 8)), 'as many elements'),
    ('C30', lambda: summed(scales=[1.0, 1.0]), lambda: summed(scales=[1.0, 2.0]), 'scales by 1 only'),
    ('C31', lambda: swap(256), lambda: swap(257), 'swaps small tiles'),
    ('C31', lambda: swap(256, BF16), lambda: swap(257, BF16), '512 bytes'),
    ('C31', lambda: swap(256, np.int8), lambda: swap(257, np.int8), '256 bytes'),
    ('C31', lambda: swap(2048, by=nisa.dma_engine.dma), lambda: swap(2048), 'swaps small tiles'),
    ('C32', lambda: tiled((64, 0), (64, 128)), lambda: tiled((32, 0), (64, 128)), 'starts at a multiple'),
    ('C32', lambda: tiled((96, 96), (32, 32)), lambda: tiled((96, 96), (32, 32)), 'not cut into', 'trn2', 'trn1'),
    ('C32', lambda: tiled((0, 0), (64, 64), k=64, m=64), lambda: tiled((0, 0), (32, 64), k=64), 'more rows than'),
    ('C32', lambda: tiled((0, 64), (128, 64)), lambda: tiled((0, 64), (128, 128)), 'starts at a multiple'),
    ('C32', lambda: tiled((0, 0), (128, 128)), lambda: tiled((0, 0), ()), 'given together'),
    ('C32', lambda: moving_tile(64, 64), lambda: moving_tile(32, 64), 'starts at a multiple'),
    ('C32', lambda: moving_tile(32, 32, 4), lambda: moving_tile(32, 32, 5), 'starts at a multiple'),
    ('C32', lambda: tiled((0, 64), (128, 64)),
     lambda: mm(k=64, m=64, a=FP8, rows=True, tile_position=(0, 0), tile_size=(64, 64)), 'take all columns'),
    ('C32', lambda: mx(k=64, tile_position=(64, 0), tile_size=(64, 128)),
     lambda: mx(k=64, m=64, tile_position=(0, 64), tile_size=(64, 64)), 'take all columns', 'trn3'),
    ('C36', lambda: many_registers(64), lambda: many_registers(65), '65 registers of Vector'),
    ('C36', lambda: nisa.register_alloc(2 ** 31 - 1), lambda: nisa.register_alloc(2 ** 31), '32 bits'),
    ('C1', lambda: sb(128, 4), lambda: sb(129, 4), 'too many partitions'),
    ('C3', lambda: mm(m=128), lambda: mm(m=129, dst=lambda: nl.ndarray(
        (128, 512), F32, buffer=nl.psum)), 'stationary is too wide'),
    ('C4', lambda: mm(n=512), lambda: mm(n=513, dst=lambda: nl.ndarray(
        (128, 512), F32, buffer=nl.psum)), 'moving is too wide'),
    ('C5', lambda: mm(k=64), lambda: nisa.nc_matmul(ps(128, 512), sb(64, 128), sb(128, 512)),
     'contraction dimensions differ'), ('C6', lambda: ps(128, 512), lambda: ps(128, 513), 'larger than a bank'),
    ('C7', lambda: banks(8), lambda: banks(9), 'PSUM does not hold'),
    ('C8', lambda: together(17749), lambda: together(17750), 'SBUF does not hold'),
    ('C8', lambda: sb(128, 53248), lambda: sb(128, 53249), 'larger than a partition'),
    ('C9', lambda: nisa.tensor_copy(sb(128, 8)[32:64],
                                    sb(128, 8)[64:96]), lambda: nisa.tensor_copy(sb(128, 8)[16:48],
                                                                                 sb(128, 8)[0:32]),
     'starts at partition 16'),
    ('C9', lambda: nisa.tensor_copy(sb(128, 8)[64:128],
                                    sb(128, 8)[0:64]), lambda: nisa.tensor_copy(sb(128, 8)[32:96],
                                                                                sb(128, 8)[0:64]),
     'starts at partition 32'), ('C10', shuffle, lambda: shuffle(F32, BF16), 'does not cast'),
    ('C11', lambda: nisa.max8(sb(128, 8), sb(128, 8)), lambda: nisa.max8(sb(128, 8), sb(128, 7)), 'impossible width'),
    ('C12', lambda: nisa.bn_stats(sb(128, 6), sb(128, 512)), lambda: nisa.bn_stats(sb(128, 6), sb(128, 513)),
     'limited width'),
    ('C12', lambda: nisa.bn_aggr(sb(128, 2), sb(128, 12)), lambda: nisa.bn_aggr(sb(128, 2), sb(128, 13)), 'triples'),
    ('C13', lambda: nisa.tensor_reduce(sb(128, 4), nl.add, sb(128, 4, 8), axis=2),
     lambda: nisa.tensor_reduce(sb(128, 8), nl.add, sb(128, 4, 8), axis=1), 'trailing'),
    ('C14', lambda: nisa.nc_transpose(sb(32, 32), sb(32, 32)),
     lambda: nisa.nc_transpose(sb(33, 32), sb(32, 33), engine=nisa.engine.vector), 'too large for Vector'),
    ('C14', lambda: nisa.nc_transpose(nl.ndarray((128, 128), F32, buffer=nl.psum), sb(128, 128)),
     lambda: nisa.nc_transpose(nl.ndarray((128, 128), F32, buffer=nl.psum), sb(128, 129)), 'too large for Tensor'),
    ('C15', lambda: nisa.tensor_copy(sb(128, 2, 2, 2, 2),
                                     sb(128, 4, 4, 4, 4)[:, 0:2, 0:2, 0:2, 0:2]),
     lambda: nisa.tensor_copy(sb(128, 2, 2, 2, 2, 2),
                              sb(128, 4, 4, 4, 4, 4)[:, 0:2, 0:2, 0:2, 0:2, 0:2]), 'too many free dimensions'),
    ('C16', lambda: nisa.tensor_copy(sb(128, 2, 4),
                                     sb(128, 2, 20000, dtype=BF16)[:, :, 0:4]),
     lambda: nisa.tensor_copy(sb(128, 2, 4),
                              sb(128, 2, 40000, dtype=np.int8)[:, :, 0:4]), 'does not fit 16 bits'),
    ('C17', mm, lambda: mm(dst=lambda: nl.ndarray((128, 512), F32)), 'writes PSUM only'),
    ('C17', mm, lambda: nisa.nc_matmul(nl.ndarray(
        (128, 128), F32, buffer=nl.psum), ps(128, 128), sb(128, 128)), 'reads SBUF only'),
    ('C19', lambda: nisa.affine_select(sb(128, 8), [[1, 8]], 1, sb(128, 8), 0.0),
     lambda: nisa.affine_select(sb(128, 8), [[1, 8]], 1, ps(128, 8), 0.0), 'GpSimd does not reach'),
    ('C20', lambda: nisa.tensor_tensor(sb(128, 8), ps(128, 8), sb(128, 8), nl.add),
     lambda: nisa.tensor_tensor(sb(128, 8), ps(128, 8), ps(128, 8), nl.add), 'both operands are in PSUM'),
    ('C20', lambda: nisa.tensor_tensor_scan(sb(128, 8), sb(128, 8), ps(128, 8), 0.0, nl.multiply, nl.add),
     lambda: nisa.tensor_tensor_scan(sb(128, 8), ps(128, 8), ps(128, 8), 0.0, nl.multiply, nl.add),
     'both operands are in PSUM'),
    ('C21', lambda: nisa.tensor_copy_predicated(sb(128, 8), sb(128, 8), sb(128, 8, dtype=np.uint8)),
     lambda: nisa.tensor_copy_predicated(sb(128, 8), sb(128, 8), sb(128, 8)), 'tile of integers'),
    ('C22', lambda: nisa.local_gather(sb(128, 32), sb(128, 64), sb(128, 2, dtype=np.uint16)),
     lambda: nisa.local_gather(sb(128, 32), sb(128, 64), sb(128, 2, dtype=np.int32)), '16-bit'),
    ('C22', lambda: nisa.local_gather(sb(128, 64), sb(128, 64), sb(128, 2, dtype=np.uint16), 2),
     lambda: nisa.local_gather(sb(128, 96), sb(128, 64), sb(128, 2, dtype=np.uint16), 3), 'elements an index'),
    ('C23', lambda: nisa.sequence_bounds(sb(1, 2, 8), sb(1, 8)),
     lambda: nisa.sequence_bounds(sb(1, 2, 8), sb(1, 8, dtype=BF16)), 'fp32 or int32'),
    ('C33', lambda: mm(a=FP8, rows=True), lambda: mm(a=BF16, rows=True), 'hold fp8'),
    ('C35', lambda: nisa.tensor_copy(sb(128, 512), ps(128, 512)),
     lambda: nisa.tensor_copy(sb(128, 70000, dtype=np.int8), sb(128, 70000, dtype=np.int8)), 'takes fewer elements')]

def complete(limit, legal, broken, says, chip='trn2', other=None):
    return limit, legal, broken, says, chip, other or chip
CASES = [complete(*c) for c in CASES]


@pytest.mark.parametrize(
    'limit, legal, broken, says, chip, other', CASES, ids=[f'{c[0]}-{c[3].replace(" ", "-")}' for c in CASES]
)
def test_a_limit(limit, legal, broken, says, chip, other):
    """The legal kernel passes on its chip; the broken one is refused (on another chip, where that is the point) with
    instruction, line, limit, value and a way out."""
    assert found(legal, chip) == []
    said = [d for d in diagnosed(broken, other) if says in str(d)]
    assert said, found(broken, other)
    assert said[0].line and said[0].instruction and said[0].limit is not None and said[0].value is not None and said[
        0].hint, str(said[0])
    assert said[
        0].operand or 'exist' in says or 'tile' in says or 'array' in says or 'hold' in says or 'gather' in says, str(
            said[0])

def test_every_limit_that_names_a_rule_has_one():
    rules = (
        {r.__name__ for r in RULES}
        | {f.__name__ for f in (allocations, capacity, memory_overflow, too_large, places)}
        | {'attributes', 'trace', 'sendrecv', 'dma_compute', 'dma_transpose', 'array_tile', 'registers_at_once'}
    )
    assert {w for l in LIMITS for w in l.held_by} <= rules
    # which have tests of their own below
    assert {l.id for l in LIMITS if l.held_by} - {c[0] for c in CASES} == {'C2', 'C18', 'C34', 'C37'}
    assert [l.id for l in LIMITS] == [f'C{n}' for n in range(1, 38)]

EARLIER = """
from neuronxcc import nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    BODY
    return out
"""

def earlier(*lines):
    return check(trace_source(EARLIER.replace('BODY', '\n    '.join(lines)), None, [ArraySpec((128, 8))], 'trn1'),
                 'trn1')

def test_the_partition_dimension_comes_first():
    "C2: after the block dimensions are indexed away."
    blocks = 't = nl.ndarray((4, nl.par_dim(128), 8), dtype=nl.float32)', 't[1] = nl.load(x)'
    assert earlier(*blocks, 'nl.store(out, t[1])') == []
    d, *_ = earlier(*blocks, 'u = nl.ndarray((128, 8), dtype=nl.float32)', 'u[0:1] = nisa.tensor_copy(t[1:2, 0, :])',
                    'nl.store(out, u)')
    assert 'not its partition dimension' in str(d) and d.line and d.operand and d.hint

def test_a_store_passes_psum_through_sbuf():
    "C18: the earlier dialect copies; the current one refuses."
    lines = 'p = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.psum)', 'p[...] = nl.load(x)', 'nl.store(out, p)'
    assert earlier(*lines) == []
    program = trace_source(EARLIER.replace('BODY', '\n    '.join(lines)), None, [ArraySpec((128, 8))], 'trn1')
    assert [o.op for o in program.instructions][-2:] == [
        'tensor_copy', 'dma_copy'] and program.tensors[program.instructions[-1].ins['src'].tensor].buffer == 'sbuf'
    d, *_ = diagnosed(lambda: nisa.dma_copy(nl.ndarray((128, 8), F32, buffer=nl.private_hbm), ps(128, 8)))
    assert 'DMA does not reach PSUM' in str(d) and (d.operand, d.value) == ('src', 'psum')

def test_an_address_is_aligned():
    "C34."
    at = lambda byte: lambda: filled(nl.ndarray((128, 4), F32, address=(0, byte)))
    assert found(at(1024)) == []
    d, *_ = diagnosed(at(1022))
    assert 'aligned' in str(d) and d.line and d.value == 1022 and d.hint

def test_results_are_in_hbm():
    "C37."
    def kernel(x): return nl.load(x)
    with pytest.raises(KernelError) as e: trace(kernel, np.zeros((128, 8), F32), chip='trn2')
    assert 'which is in sbuf' in str(e.value) and 'shared_hbm' in e.value.hint

def test_a_program_is_checked_for_another_chip():
    def kernel(x):
        out, t, c = nl.ndarray((128, 9), np.int32,
                               buffer=nl.shared_hbm), nl.load(x), filled(nl.ndarray((128, 9), np.int32))
        nisa.nonzero_with_count(c, t)
        nl.store(out, c)
        return out
    program = trace(kernel, np.zeros((128, 8), F32), chip='trn2')
    assert check(program, 'trn2') == check(program, 'trn3') == []
    d, = check(program, 'trn1')
    assert 'nonzero_with_count does not exist on trn1' in str(d) and d.limit == 'trn2 and later'

def test_a_chip_has_its_own_limits():
    assert found(lambda: together(15018), 'trn1') == [] and any('SBUF does not hold' in d
                                                                for d in found(lambda: together(15019), 'trn1'))
    assert any('do not exist on trn1' in d for d in found(lambda: mm(a=FP8, rows=True), 'trn1'))
    assert found(lambda: together(20480), 'trn3') == []

def test_the_refusal_says_what_was_alive():
    def crowd():
        big = sb(128, 30000)
        other = sb(128, 30000)
        nisa.tensor_copy(big, other)
    (said,) = found(crowd)
    assert said.count('120,000') == 2 and '(line ' in said and '240,00' in said
