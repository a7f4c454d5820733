"Each limit of the hardware: a kernel that just keeps it passes, one that just breaks it is refused by name."
import ml_dtypes, numpy as np, pytest
from kernel_lab.nki.check import RULES, allocations, check, crowded, too_large
from kernel_lab.nki.limits import LIMITS, capacity
from kernel_lab.nki import trace
from tests.simulator.helpers import nisa, nl

F32, BF16, FP8 = np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3

def sb(*shape, dtype=F32): return filled(nl.ndarray(shape, dtype))
def ps(*shape, dtype=F32): return filled(nl.ndarray(shape, dtype, buffer=nl.psum))
def filled(t):
    nisa.memset(t, 0.0, engine=nisa.engine.vector)
    return t

def found(body, chip='trn2'):
    "What the checker says about a kernel with this body."
    def kernel(x):
        body()
        out, t = nl.ndarray((1, 1), F32, buffer=nl.shared_hbm), sb(1, 1)
        nisa.dma_copy(out, t)
        return out
    return [str(d) for d in check(trace(kernel, np.zeros((1, 1), F32), chip=chip), chip)]

def mm(k=128, m=128, n=512, a=BF16, b=None, dst=None, rows=False):
    pair = (2,) if rows else ()
    extra = {'perf_mode': 'double_row'} if rows else {}
    nisa.nc_matmul(nl.ndarray((m, n), F32, buffer=nl.psum) if dst is None else dst(), sb(k, *pair, m, dtype=a), sb(k, *pair, n, dtype=b or a), **extra)

def shuffle(kind=F32, to=None): nisa.nc_stream_shuffle(sb(128, 8, dtype=to or kind), sb(128, 8, dtype=kind), list(range(32)))
def copied_to(dst, tiles):
    for t in tiles: nisa.tensor_copy(dst, t)

def many(n):
    tiles = [sb(128, 4096) for _ in range(n)]
    copied_to(tiles[0], tiles)

def banks(n):
    tiles = [ps(128, 512) for _ in range(n)]
    copied_to(sb(128, 512), tiles)

CASES = [     # limit, a body that keeps it, a body that breaks it, what is said
    ('C1', lambda: sb(128, 4), lambda: sb(129, 4), 'too many partitions'),
    ('C3', lambda: mm(m=128), lambda: mm(m=129, dst=lambda: nl.ndarray((128, 512), F32, buffer=nl.psum)), 'stationary is too wide'),
    ('C4', lambda: mm(n=512), lambda: mm(n=513, dst=lambda: nl.ndarray((128, 512), F32, buffer=nl.psum)), 'moving is too wide'),
    ('C5', lambda: mm(k=64), lambda: nisa.nc_matmul(ps(128, 512), sb(64, 128), sb(128, 512)), 'contraction dimensions differ'),
    ('C6', lambda: ps(128, 512), lambda: ps(128, 513), 'larger than a bank'),
    ('C7', lambda: banks(8), lambda: banks(9), 'PSUM does not hold'),
    ('C8', lambda: many(13), lambda: many(14), 'SBUF does not hold'),
    ('C8', lambda: sb(128, 53248), lambda: sb(128, 53249), 'larger than a partition'),
    ('C9', lambda: nisa.tensor_copy(sb(128, 8)[32:64], sb(128, 8)[64:96]), lambda: nisa.tensor_copy(sb(128, 8)[16:48], sb(128, 8)[0:32]), 'starts at partition 16'),
    ('C9', lambda: nisa.tensor_copy(sb(128, 8)[64:128], sb(128, 8)[0:64]), lambda: nisa.tensor_copy(sb(128, 8)[32:96], sb(128, 8)[0:64]), 'starts at partition 32'),
    ('C10', shuffle, lambda: shuffle(F32, BF16), 'does not cast'),
    ('C11', lambda: nisa.max8(sb(128, 8), sb(128, 8)), lambda: nisa.max8(sb(128, 8), sb(128, 7)), 'impossible width'),
    ('C12', lambda: nisa.bn_stats(sb(128, 6), sb(128, 512)), lambda: nisa.bn_stats(sb(128, 6), sb(128, 513)), 'limited width'),
    ('C12', lambda: nisa.bn_aggr(sb(128, 2), sb(128, 12)), lambda: nisa.bn_aggr(sb(128, 2), sb(128, 13)), 'triples'),
    ('C13', lambda: nisa.tensor_reduce(sb(128, 4), nl.add, sb(128, 4, 8), axis=2), lambda: nisa.tensor_reduce(sb(128, 8), nl.add, sb(128, 4, 8), axis=1), 'trailing'),
    ('C14', lambda: nisa.nc_transpose(sb(32, 32), sb(32, 32)), lambda: nisa.nc_transpose(sb(33, 32), sb(32, 33), engine=nisa.engine.vector), 'too large for Vector'),
    ('C14', lambda: nisa.nc_transpose(nl.ndarray((128, 128), F32, buffer=nl.psum), sb(128, 128)),
     lambda: nisa.nc_transpose(nl.ndarray((128, 128), F32, buffer=nl.psum), sb(128, 129)), 'too large for Tensor'),
    ('C15', lambda: nisa.tensor_copy(sb(128, 2, 2, 2, 2), sb(128, 4, 4, 4, 4)[:, 0:2, 0:2, 0:2, 0:2]),
     lambda: nisa.tensor_copy(sb(128, 2, 2, 2, 2, 2), sb(128, 4, 4, 4, 4, 4)[:, 0:2, 0:2, 0:2, 0:2, 0:2]), 'too many free dimensions'),
    ('C16', lambda: nisa.tensor_copy(sb(128, 2, 4), sb(128, 2, 20000, dtype=BF16)[:, :, 0:4]),
     lambda: nisa.tensor_copy(sb(128, 2, 4), sb(128, 2, 40000, dtype=np.int8)[:, :, 0:4]), 'does not fit 16 bits'),
    ('C17', mm, lambda: mm(dst=lambda: nl.ndarray((128, 512), F32)), 'writes PSUM only'),
    ('C17', mm, lambda: nisa.nc_matmul(nl.ndarray((128, 128), F32, buffer=nl.psum), ps(128, 128), sb(128, 128)), 'reads SBUF only'),
    ('C19', lambda: nisa.affine_select(sb(128, 8), [[1, 8]], 1, sb(128, 8), 0.0), lambda: nisa.affine_select(sb(128, 8), [[1, 8]], 1, ps(128, 8), 0.0), 'GpSimd does not reach'),
    ('C20', lambda: nisa.tensor_tensor(sb(128, 8), ps(128, 8), sb(128, 8), nl.add), lambda: nisa.tensor_tensor(sb(128, 8), ps(128, 8), ps(128, 8), nl.add), 'both operands are in PSUM'),
    ('C20', lambda: nisa.tensor_tensor_scan(sb(128, 8), sb(128, 8), ps(128, 8), 0.0, nl.multiply, nl.add),
     lambda: nisa.tensor_tensor_scan(sb(128, 8), ps(128, 8), ps(128, 8), 0.0, nl.multiply, nl.add), 'both operands are in PSUM'),
    ('C21', lambda: nisa.tensor_copy_predicated(sb(128, 8), sb(128, 8), sb(128, 8, dtype=np.uint8)),
     lambda: nisa.tensor_copy_predicated(sb(128, 8), sb(128, 8), sb(128, 8)), 'tile of integers'),
    ('C22', lambda: nisa.local_gather(sb(128, 32), sb(128, 64), sb(128, 2, dtype=np.uint16)), lambda: nisa.local_gather(sb(128, 32), sb(128, 64), sb(128, 2, dtype=np.int32)), '16-bit'),
    ('C22', lambda: nisa.local_gather(sb(128, 64), sb(128, 64), sb(128, 2, dtype=np.uint16), 2),
     lambda: nisa.local_gather(sb(128, 96), sb(128, 64), sb(128, 2, dtype=np.uint16), 3), 'elements an index'),
    ('C23', lambda: nisa.sequence_bounds(sb(1, 2, 8), sb(1, 8)), lambda: nisa.sequence_bounds(sb(1, 2, 8), sb(1, 8, dtype=BF16)), 'fp32 or int32'),
    ('C33', lambda: mm(a=FP8, rows=True), lambda: mm(a=BF16, rows=True), 'hold fp8'),
    ('C35', lambda: nisa.tensor_copy(sb(128, 512), ps(128, 512)), lambda: nisa.tensor_copy(sb(128, 70000, dtype=np.int8), sb(128, 70000, dtype=np.int8)), 'takes fewer elements')]

@pytest.mark.parametrize('limit, legal, broken, says', CASES, ids=[f'{c[0]}-{c[3].replace(" ", "-")}' for c in CASES])
def test_a_limit(limit, legal, broken, says):
    assert found(legal) == []
    assert any(says in d and 'line' in d for d in found(broken)), found(broken)

def test_every_limit_that_names_a_rule_has_one():
    rules = {r.__name__ for r in RULES} | {f.__name__ for f in (allocations, capacity, crowded, too_large)} | {'attributes', 'trace'}
    assert {w for l in LIMITS for w in l.where.split()} <= rules
    assert {l.id for l in LIMITS if l.where} - {c[0] for c in CASES} == {'C2', 'C18', 'C37'}

def test_a_chip_has_its_own_limits():
    assert found(lambda: many(11), 'trn1') == [] and any('SBUF does not hold' in d for d in found(lambda: many(12), 'trn1'))
    assert any('do not exist on trn1' in d for d in found(lambda: mm(a=FP8, rows=True), 'trn1'))
    assert found(lambda: many(15), 'trn3') == []

def test_the_refusal_says_what_was_alive():
    def crowd():
        big = sb(128, 30000)
        other = sb(128, 30000)
        nisa.tensor_copy(big, other)
    (said,) = found(crowd)
    assert said.count('120,000') == 2 and '(line ' in said and '240,00' in said
