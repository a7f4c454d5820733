"""Batched and interpreted execution give the same bits, for every row of the instruction table, in a loop, on values that
hide nothing: whole integers over all their range, infinities, NaN, −0, subnormals and the largest finite numbers.

What moves bits is compared bit by bit. What computes is, too, but a NaN equals any other NaN: IEEE 754 leaves the sign and
payload of a computed NaN to the implementation, numpy's vector and remainder loops differ in it, and no plan is made
for a program that could look at it (one that reads a memory as another dtype)."""
import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import execute, interpret, jit, trace
from kernel_lab.nki.chip.dtypes import NUMPY
from kernel_lab.nki.executor import plan, vectorized
from kernel_lab.nki.ir.instructions import INSTRUCTIONS
from kernel_lab.nki.ir.semantics import ACT, ALU, BITWISE, REDUCE
from kernel_lab.nki.ir.semantics_collective import COLLECTIVES
from kernel_lab.nki.lang import isa as nisa, language as nl, legacy_language as ol
from kernel_lab.nki.validate import conformance
from kernel_maker import bits_of, nasty
from trials import all_trials

MOVES = {'tensor_copy', 'dma_copy', 'dma_transpose', 'nc_stream_shuffle', 'local_gather', 'nc_n_gather', 'register_move',
         'register_load', 'register_store', 'select', 'dropout', 'rng', 'memset', 'iota'}    # of one dtype: all bits
SUMS = {'nc_matmul': 2.0**-18}       # whose order batching may change: a tolerance relative to Σ |products|
INTERPRETED = {'nc_matmul_mx', 'quantize_mx', 'nonzero_with_count', 'set_rng_seed', 'rand_set_state', 'rand_get_state',
               'register_load', 'sendrecv', *COLLECTIVES}       # rows that no plan takes: there is one path
TURNS = 3
FLOATS = ('float32', 'bfloat16', 'float16', 'float8_e4m3', 'float8_e5m2')
WHOLE = ('int32', 'uint32', 'int16', 'uint16', 'int8', 'uint8')


# --- both paths ---

def on_both_paths(program, arrays):
    "(interpreted outputs, batched outputs) of a program; the latter None where there is no plan. Nothing falls back."
    want, made = interpret(program, *arrays), plan.plan_of(program)
    return want, made and plan.in_shape(program, vectorized._run_plan(*made, arrays, 2))


def assert_same(program, arrays, exact=False, near=None, planned=True):
    want, got = on_both_paths(program, arrays)
    assert got is not None or not planned, f'no plan:\n{program}'
    for k, (a, b) in enumerate(zip(want, got or want, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape
        off = bits_of(a, exact) != bits_of(b, exact)
        if near is not None: off &= ~(np.abs(a.astype(np.float64) - b) <= near)
        where = tuple(np.argwhere(off)[0]) if off.any() else ()
        assert not off.any(), f'output {k}: {off.sum()} differ, interpreted {a[where]!r}, batched {b[where]!r} at ' \
                              f'{where}\n{program}'
    return got is not None


# --- every trial of every row, in a loop ---

INDICES = {'local_gather': (1,), 'nc_n_gather': (1,), 'dma_copy': (), 'topk': ()}    # operands that are places

def in_a_loop(use, answers, buffer='sbuf', old=False):
    "The kernel use(*destinations, *tiles) for each entry of the inputs' first axis."
    lang = ol if old else nl
    def kernel(*xs):
        outs = [lang.ndarray((TURNS, *y.shape), y.dtype, buffer=lang.shared_hbm) for y in answers]
        for i in lang.affine_range(TURNS):
            tiles = [lang.load(x[i]) for x in xs]
            if old:
                got = use(*tiles)
                for o, t in zip(outs, got if isinstance(got, tuple) else (got,)): ol.store(o[i], t)
                continue
            dsts = [nl.ndarray(y.shape, y.dtype, buffer=buffer) for y in answers]
            use(*dsts, *tiles)
            for o, d in zip(outs, dsts): nisa.dma_copy(o[i], d if buffer == 'sbuf' else nl.copy(d))
        return tuple(outs)
    return jit(kernel, dialect='neuronxcc.nki') if old else kernel


def looped(case):
    "The kernel of a trial in a loop, or None where its way has no loop around it (ranks, cores, HBM as it comes)."
    way = getattr(case.way, 'func', case.way)
    if way is conformance.on_tiles:
        return in_a_loop(case.use, case.answers, getattr(case.way, 'keywords', {}).get('buffer', 'sbuf'))
    if way is conformance.in_legacy_dialect: return in_a_loop(case.use, case.answers, old=True)


def test_every_row_is_tried_in_a_loop():
    tried = {c.row for cs in all_trials().values() for c in cs if looped(c)}
    assert set(INSTRUCTIONS) - tried == {'sendrecv', 'dma_copy', *COLLECTIVES}


def values_for(case):
    "Nasty inputs of a trial for each turn; places stay places."
    places = {'local_gather': (1,), 'nc_n_gather': (1,), 'register_load': (0,)}.get(case.row, ())
    return [np.stack([x] * TURNS) if j in places else nasty((TURNS, *x.shape), x.dtype, j)
            for j, x in enumerate(case.inputs)]


@pytest.mark.parametrize('row', [r for r in INSTRUCTIONS if r not in ('sendrecv', 'dma_copy', *COLLECTIVES)])
def test_every_row_in_a_loop(row):
    "What the trials of the pages do, on each of their chips."
    planned = []
    for case in (c for cs in all_trials().values() for c in cs if c.row == row and looped(c)):
        xs = values_for(case)
        moves = row in MOVES and len({*(x.dtype for x in xs), *(y.dtype for y in case.answers)}) == 1
        for chip in case.chips[-2:]:
            program = trace(looped(case), *xs, chip=chip)
            near = SUMS[row] * product_sizes(xs) if row in SUMS else None
            planned.append(assert_same(program, xs, moves, near, planned=False))
    assert any(planned) or row in {*INTERPRETED, 'rng', 'rand2'}       # those two are tried below, without a state


def product_sizes(xs):
    "Σ |products| of each element of a matrix product; infinite where the order decides whether fp32 overflows."
    with np.errstate(all='ignore'):
        a, b = (np.abs(x.astype(np.float64)) for x in xs[:2])
        sizes = np.swapaxes(a, -1, -2) @ b
        return np.where(sizes < np.finfo(np.float32).max, sizes, np.inf)


# --- every operation, dtype and form ---

P, F = 40, 18
NUMBERS = -0.0, 16777217.0, float('inf')


def alu_uses(only=ALU):
    "(name, use(dst, a, b, column)) of what computes by ALU operations."
    for op in only:
        for engine in ('', 'vector', 'gpsimd'):
            yield f'tensor_tensor {op} {engine}', lambda d, a, b, c, op=op, e=engine: nisa.tensor_tensor(
                d, a, b, op=op, **({'engine': getattr(nisa, f'{e}_engine')} if e else {}))
        yield f'tensor_scalar {op} column', lambda d, a, b, c, op=op: nisa.tensor_scalar(d, a, op, c, True, 'add', 0.5)
        yield f'scalar_tensor_tensor {op}', lambda d, a, b, c, op=op: nisa.scalar_tensor_tensor(d, a, op, c, 'add', b)
        yield f'scalar_tensor_tensor add {op}', lambda d, a, b, c, op=op: nisa.scalar_tensor_tensor(d, a, 'add', 2.0, op, b)
        for n in NUMBERS:
            yield f'tensor_scalar {op} {n}', lambda d, a, b, c, op=op, n=n: nisa.tensor_scalar(d, a, op, n)
        yield f'tensor_scalar multiply {op}', lambda d, a, b, c, op=op: nisa.tensor_scalar(d, a, 'multiply', c, False, op, 3)
        yield f'tensor_tensor_scan {op}', lambda d, a, b, c, op=op: nisa.tensor_tensor_scan(d, a, b, 1.0, op, 'add')


def act_uses():
    for op in ACT:
        yield f'activation {op}', lambda d, a, b, c, op=op: nisa.activation(d, op, a)
        yield f'activation {op} scaled', lambda d, a, b, c, op=op: nisa.activation(d, op, a, bias=c, scale=-0.5)


def row_uses():
    "Reductions, copies, choices and fills."
    for op in REDUCE:
        yield f'tensor_reduce {op}', lambda d, a, b, c, op=op: nisa.tensor_reduce(d[:, 0:1], op, a, axis=1)
        yield f'tensor_reduce -{op}', lambda d, a, b, c, op=op: nisa.tensor_reduce(d[:, 0:1], op, a, axis=1, negate=True)
    for e in ('', 'vector', 'scalar', 'gpsimd'):
        yield f'tensor_copy {e}', lambda d, a, b, c, e=e: nisa.tensor_copy(
            d, a, **({'engine': getattr(nisa, f'{e}_engine')} if e else {}))
    yield 'dma_copy', lambda d, a, b, c: nisa.dma_copy(d, a)
    yield 'reciprocal', lambda d, a, b, c: nisa.reciprocal(d, a)
    for n in (*NUMBERS, -1, 300): yield f'memset {n}', lambda d, a, b, c, n=n: nisa.memset(d, n)
    yield 'select', lambda d, a, b, c: nisa.tensor_copy(d, nl.where(a, b, a))
    yield 'select number', lambda d, a, b, c: nisa.tensor_copy(d, nl.where(a, b, -0.0))
    yield 'rng', lambda d, a, b, c: nisa.rng(d)
    yield 'rand2', lambda d, a, b, c: nisa.rand2(d, -1.0, c)
    for op in ('add', 'maximum'): yield f'reduce_res {op}', lambda d, a, b, c, op=op: with_row_results(d, a, c, op)


def with_row_results(d, a, c, op):
    full, rows = nl.ndarray(d.shape, d.dtype, buffer=nl.sbuf), nl.ndarray((P, 1), np.float32, buffer=nl.sbuf)
    nisa.activation(full, 'square', a, bias=c, scale=2.0, reduce_op=op, reduce_res=rows, reduce_cmd='reset_reduce')
    nisa.tensor_scalar(d, full, 'add', rows)


def tiles_of(form, x, y, column):
    "The operands of the uses, from HBM in one of the forms."
    if form == 'strided': x, y = x[:, ::2], y[:, 1::2]
    a, b, c = nl.load(x), nl.load(y), nl.load(column)
    if form == 'part': a, b = a[:, ::2], b[:, 1::2]
    if form == 'broadcast': b = b[:, 0:1].broadcast_to((P, F))
    if form == 'own': a, b = nl.multiply(a, 1.0, dtype=a.dtype), nl.multiply(b, 1.0, dtype=b.dtype)   # no copies
    return a, b, c


def kernel_of(uses, dtype, form, done):
    "A kernel that does all of these in a loop, in tiles of their own; `done`: the names of those that were accepted."
    def kernel(x, y, column):
        outs = [nl.ndarray((TURNS, P, F), dtype, buffer=nl.shared_hbm) for _ in uses]
        kept = {}
        for i in nl.affine_range(TURNS):
            a, b, c = tiles_of(form, x[i], y[i], column[i])
            for out, (name, use) in zip(outs, uses):
                d = nl.ndarray((P, F), dtype, buffer=nl.sbuf)
                if name.startswith('tensor_reduce'): nisa.memset(d, 1)
                try: use(d, a, b, c)
                except KernelError: continue
                nisa.dma_copy(out[i], d)
                kept[name] = out
        done.extend(kept)
        return tuple(kept.values())
    return kernel


def sweep(uses, given, dtype, form, chip='trn2'):
    "How many of these uses ran, each the same on both paths; some only raise, on both."
    wide = F * (2 if form in ('strided', 'part') else 1)
    xs = [nasty((TURNS, P, wide), given, 1), nasty((TURNS, P, wide), given, 2), nasty((TURNS, P, 1), np.float32, 3)]
    done = []
    try: program = trace(kernel_of(uses, dtype, form, done), *xs, chip=chip)
    except KernelError:
        assert not done or len(uses) == 1, done
        return 0
    exact = given == dtype and all(n.split()[0] in MOVES for n, _ in uses)
    try: assert_same(program, xs, exact)
    except KernelError:           # whole numbers to negative powers
        if len(uses) > 1: return sum(sweep([u], given, dtype, form, chip) for u in uses if u[0] in done)
        with pytest.raises(KernelError): execute(program, *xs)
    return len(done)


FORMS = ('plain', 'strided', 'part', 'broadcast', 'own')
FEW = {'plain': ('float32', 'int32'), 'strided': ('uint32',), 'part': ('bfloat16',), 'broadcast': ('float32',),
       'own': ('uint8',)}


def by_operation(uses):
    "The uses in groups of one operation, those apart that see bits."
    groups = {}
    for name, use in uses: groups.setdefault((*name.split(' '), '')[1], []).append((name, use))
    return groups


def all_ways(uses, given, dtype, form):
    "How many uses of these ran, operation by operation."
    floats = any(k not in WHOLE for k in (given, dtype))
    return sum(sweep(group, NUMPY[given], NUMPY[dtype], form) for op, group in by_operation(uses).items()
               if not (floats and op in (*BITWISE, 'power')) or op == 'power' and given == dtype == 'float32')


ONE_OF_EACH = 'add', 'divide', 'maximum', 'power', 'less', 'bitwise_and', 'left_shift', 'logical_and', 'rsqrt'


@pytest.mark.parametrize('form', FORMS)
def test_some_operations(form):
    "One operation of each kind in every form; all of them in the next test."
    for given in FEW[form]: assert all_ways(alu_uses([k for k in ALU if k in ONE_OF_EACH]), given, given, form) > 30


@pytest.mark.parametrize('form', [f if f == 'part' else pytest.param(f, marks=pytest.mark.slow) for f in FORMS])
def test_operations(form):
    for given in FEW[form]:
        assert all_ways(alu_uses(), given, given, form) > 200
        assert all_ways(row_uses(), given, given, form) > 25
    assert all_ways(act_uses(), 'float32', 'float32', form) > 60


@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('given', (*FLOATS, *WHOLE, 'bool'))
def test_operations_of_every_dtype(form, given):
    for dtype in dict.fromkeys((given, 'float32', 'int32', 'int16')):
        for uses in (alu_uses(), row_uses(), act_uses()): assert all_ways(uses, given, dtype, form)


@pytest.mark.parametrize('op', BITWISE)
def test_bits_of_floats_are_refused_on_both_paths(op):
    sweep(list(alu_uses([op])), NUMPY['float32'], NUMPY['float32'], 'plain')


# --- what was wrong, and its neighbours ---

@pytest.mark.parametrize('dtype', ('int32', 'uint32'))
@pytest.mark.parametrize('engine', ('', 'gpsimd', 'vector'))
def test_whole_numbers_at_any_size(dtype, engine):
    "Added where they lie: exact on GpSimd, through fp32 on Vector, however many rows there are."
    extra = {'engine': getattr(nisa, f'{engine}_engine')} if engine else {}
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(x.shape[0] // 128):
            t, sum_ = nl.load(x[128 * i:128 * (i + 1)]), nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(sum_, t, t, 'add', **extra)
            nl.store(out[128 * i:128 * (i + 1)], sum_)
        return out
    answers = []
    for rows in (256, 2048):
        x = np.full((rows, 512), 300000007, dtype)
        x[1::2] = np.iinfo(dtype).max
        answers += [int(y[k, 0]) for y in execute(trace(kernel, x, chip='trn2'), x) for k in (0, 1)]
    assert answers[:2] == answers[2:]
    assert (answers[0] == 600000014) == (engine != 'vector')


def transposing(shape, dtype, how, kind='psum'):
    "Tiles of x transposed by the matrix engine."
    p, f = shape
    def kernel(x, eye):
        out = nl.ndarray((x.shape[0], f, p), x.dtype, buffer=nl.shared_hbm)
        one = nl.load(eye)
        for i in nl.affine_range(x.shape[0]):
            turned = nl.ndarray((f, p), x.dtype if dtype != 'float32' else np.float32, buffer=nl.psum)
            if how == 'matmul': nisa.nc_matmul(turned, nl.load(x[i]), one, is_transpose=True)
            else: nisa.nc_transpose(turned, nl.load(x[i]), engine=nisa.tensor_engine)
            nisa.dma_copy(out[i], nl.copy(turned))
        return out
    return kernel


@pytest.mark.parametrize('how', ('matmul', 'nc_transpose'))
@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_transposes_move_bits_on_trn2(how, dtype):
    x, eye = nasty((8, 64, 96), NUMPY[dtype], 5), np.eye(64).astype(NUMPY[dtype])
    program = trace(transposing((64, 96), dtype, how), x, eye, chip='trn2')
    assert_same(program, [x, eye], exact=dtype == 'float32')
    y, = vectorized._run_plan(*plan.plan_of(program), [x, eye], 2)
    assert (bits_of(y, dtype == 'float32') == bits_of(np.swapaxes(x, 1, 2), dtype == 'float32')).all()


@pytest.mark.parametrize('how', ('matmul', 'nc_transpose'))
def test_transposes_multiply_on_trn1(how):
    "A tile with an infinity spoils its rows; the other tiles stay as they are, on both paths."
    x, eye = np.random.default_rng(0).normal(size=(8, 64, 96)).astype(np.float32), np.eye(64, dtype=np.float32)
    x[3, 5, 7], x[:, 0, 0] = np.inf, -0.0
    program = trace(transposing((64, 96), 'float32', how), x, eye, chip='trn1')
    assert_same(program, [x, eye])
    y, = vectorized._run_plan(*plan.plan_of(program), [x, eye], 2)
    assert np.isnan(y).sum() == 63 and np.isnan(y[3, 7]).sum() == 63


def test_matmul_within_the_tolerance_of_its_sums():
    def kernel(a, b):
        out = nl.ndarray((96, 80), np.float32, buffer=nl.shared_hbm)
        sums = nl.ndarray((96, 80), np.float32, buffer=nl.psum)
        for k in nl.affine_range(4): nisa.nc_matmul(sums, nl.load(a[k]), nl.load(b[k]))
        nisa.dma_copy(out, nl.copy(sums))
        return out
    rng = np.random.default_rng(0)
    xs = [(rng.normal(size=(4, 64, n)) * np.exp2(rng.integers(-40, 40, (4, 64, n)))).astype(np.float32) for n in (96, 80)]
    xs[0][1, 3, 5] = np.nan
    assert_same(trace(kernel, *xs, chip='trn2'), xs, near=SUMS['nc_matmul'] * product_sizes([x.reshape(256, -1)
                                                                                             for x in xs]))


@pytest.mark.parametrize('op', ('add', 'maximum', 'minimum', 'multiply'))
def test_running_reductions_keep_their_order(op):
    @jit(dialect='neuronxcc.nki')
    def kernel(x):
        out, kept = ol.ndarray((128, 24), x.dtype, buffer=ol.shared_hbm), ol.ndarray((128, 24), x.dtype, buffer=ol.sbuf)
        for i in ol.affine_range(5):
            for j in ol.affine_range(3):
                t = ol.load(x[i, :, 24 * j:24 * (j + 1)])
                kept[...] = ol.loop_reduce(t, op=getattr(np, op), loop_indices=[i, j])
        ol.store(out, kept)
        return out
    for x in (nasty((5, 128, 72), np.float32), np.random.default_rng(0).normal(size=(5, 128, 72)).astype(np.float32)):
        assert_same(trace(kernel, x), [x])


def test_masks_with_tails():
    @jit(dialect='neuronxcc.nki')
    def kernel(x):
        out = ol.ndarray(x.shape, x.dtype, buffer=ol.shared_hbm)
        rows = ol.ndarray((x.shape[0], 1), x.dtype, buffer=ol.shared_hbm)
        p, f = ol.mgrid[0:128, 0:96]
        for i in ol.affine_range(3):
            m = (i * 128 + p < 300)
            t = ol.load(x[i * 128 + p, f], mask=m)
            u = ol.tanh(ol.add(t, 3.0, mask=m & (f < 50)), mask=m)
            u[p, f] = ol.maximum(t, t, mask=m & (f >= 50))
            s = ol.sum(t, axis=[1], mask=m)
            ol.store(out[i * 128 + p, f], u, mask=m)
            q, one = ol.mgrid[0:128, 0:1]
            ol.store(rows[i * 128 + q, one], s, mask=(i * 128 + q < 300))
        return out, rows
    x = nasty((300, 96), np.float32, 4)
    assert_same(trace(kernel, x), [x])


def test_random_numbers_come_in_one_order():
    def kernel(x):
        kinds = np.uint32, np.float32
        out = [nl.ndarray((4, 128, 40), kind, buffer=nl.shared_hbm) for kind in kinds]
        for i in nl.affine_range(4):
            d, e = (nl.ndarray((128, 40), kind, buffer=nl.sbuf) for kind in kinds)
            nisa.rng(d)
            nisa.dropout(e, nl.load(x[i]), 0.5)
            for o, t in zip(out, (d, e)): nisa.dma_copy(o[i], t)
        return tuple(out)
    x = nasty((4, 128, 40), np.float32)
    assert_same(trace(kernel, x, chip='trn2'), [x], exact=True)
