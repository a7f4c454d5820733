"""What somebody from outside tried and the chip does not take: indices that stay in HBM, transposes that cast, and inputs
beyond the dtype that they are given for."""
import json
import warnings

import numpy as np
import pytest
from dialects import nisa, nl, oisa, old, onl, run

from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, Program, assert_ok, check, execute, trace
from kernel_lab.nki.chip.dtypes import NUMPY
from kernel_lab.nki.lang.trace import trace_source

X = np.random.default_rng(0).normal(size=(512, 64)).astype(np.float32)
ROWS = np.random.default_rng(1).permutation(512)[:128].astype(np.int32).reshape(128, 1)


def gathering(near, **how):
    "Rows of x by the indices in j, which are loaded first where they are `near`."
    def kernel(x, j):
        out, t = nl.ndarray((128, 64), x.dtype, buffer=nl.shared_hbm), nl.ndarray((128, 64), x.dtype)
        at = j
        if near:
            at = nl.ndarray(j.shape, j.dtype)
            nisa.dma_copy(at, j)
        nisa.dma_copy(t, x.ap([[64, 128], [1, 64]], indirect_dim=0, **{how['by']: at}))
        nisa.dma_copy(out, t)
        return out
    return kernel


@pytest.mark.parametrize('by, rows', [('vector_offset', ROWS), ('scalar_offset', ROWS[:1])])
def test_indices_lie_in_sbuf(by, rows):
    "A row that is found through HBM would save the load of its index."
    want = X[rows[:, 0]] if by == 'vector_offset' else X[rows[0, 0]:rows[0, 0] + 128]
    if by == 'scalar_offset': rows, want = rows % 100, X[rows[0, 0] % 100:][:128]
    np.testing.assert_array_equal(run(gathering(True, by=by), X, rows, chip='trn2')[0], want)
    p = trace(gathering(False, by=by), X, rows, chip='trn2')
    said = str(check(Program.from_json(p.to_json()))[0])
    assert 'j holds indices and is in HBM' in said and 'Bring it into SBUF' in said and said.startswith('line ')


@pytest.mark.parametrize('chip', ['trn1', 'trn2', 'trn3'])
@pytest.mark.parametrize('given, asked', [('bfloat16', 'float16'), ('float32', 'bfloat16'), ('int32', 'float32')])
def test_a_transpose_does_not_cast(chip, given, asked):
    spec = ArraySpec((128, 64), given)
    assert not check(trace(lambda x: turned(x, NUMPY[given]), spec, chip=chip))
    said = str(check(trace(lambda x: turned(x, NUMPY[asked]), spec, chip=chip))[0])
    assert 'a transpose does not cast' in said and f'limit {given}, got {asked}' in said


def turned(x, wanted):
    out, t = nl.ndarray((64, 128), wanted, buffer=nl.shared_hbm), nl.ndarray((128, 64), x.dtype)
    flip, near = nl.ndarray((64, 128), wanted, buffer=nl.psum), nl.ndarray((64, 128), wanted)
    nisa.dma_copy(t, x)
    nisa.nc_transpose(flip, t)
    nisa.tensor_copy(near, flip)
    nisa.dma_copy(out, near)
    return out


def test_a_transpose_on_tensor_may_end_in_float32_as_every_product():
    x = X[:128, :64].astype(NUMPY['bfloat16'])
    np.testing.assert_array_equal(run(lambda x: turned(x, np.float32), x, chip='trn2')[0], x.T.astype(np.float32))


def test_the_language_casts_what_it_has_transposed():
    x = X[:128]
    def kernel(x):
        out = nl.ndarray((64, 128), nl.bfloat16, buffer=nl.shared_hbm)
        nl.store(out, nl.transpose(nl.load(x), dtype=nl.bfloat16))
        return out
    np.testing.assert_array_equal(run(kernel, x, chip='trn2')[0], x.T.astype(NUMPY['bfloat16']))


def test_the_earlier_dialects_transpose_takes_a_dtype():
    @old.jit
    def kernel(x):
        out = onl.ndarray((64, 128), onl.bfloat16, buffer=onl.shared_hbm)
        onl.store(out, onl.copy(oisa.nc_transpose(onl.load(x), dtype=onl.bfloat16)))
        return out
    np.testing.assert_array_equal(run(kernel, X[:128])[0], X[:128].T.astype(NUMPY['bfloat16']))


@pytest.mark.parametrize('dtype, given', [('float16', 'float32'), ('float16', 'bfloat16'), ('float8_e4m3', 'float32'),
                                          ('float8_e4m3fn', 'float16'), ('float16', 'int32'), ('bfloat16', 'float64')])
def test_inputs_beyond_a_narrow_float_are_refused(dtype, given):
    "With a sentence, and not as infinities beside a warning of numpy's; what is infinite already stays so."
    def kernel(x):
        out, t = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(t, x)
        nisa.dma_copy(out, t)
        return out
    p = assert_ok(trace(kernel, ArraySpec((128, 8), dtype), chip='trn2'))
    x = np.ones((128, 8), NUMPY.get(given) or np.dtype(given))
    far = x.copy()
    far[3, 4] = 1e38 if dtype == 'float16' and given == 'bfloat16' else 1e300 if given == 'float64' else 60000 if \
        dtype.startswith('float8') else 70000
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert (execute(p, x)[0] == 1).all()
        with pytest.raises(KernelError, match=f'input x holds what {dtype} does not') as e: execute(p, far)
        assert e.value.kind == 'input' and e.value.limit and e.value.value and e.value.hint
        if given != 'int32' and dtype != 'float8_e4m3fn':
            far[3, 4] = np.inf
            assert np.isinf(execute(p, far)[0][3, 4].astype(np.float32))


STATISTICS = '''
import numpy as np
import neuronxcc.nki as nki, neuronxcc.nki.isa as nisa, neuronxcc.nki.language as nl
@nki.jit
def statistics(x):
    rows, columns = x.shape
    out, F = nl.ndarray((rows, 2), x.dtype, buffer=nl.shared_hbm), nl.tile_size.bn_stats_fmax
    i_p, i_f, i_s, blocks = nl.arange(128)[:, None], nl.arange(columns)[None, :], nl.arange(6)[None, :], -(-columns // F)
    for i in nl.affine_range(-(-rows // 128)):
        inside = i * 128 + i_p < rows
        t, stats = nl.load(x[i * 128 + i_p, i_f], mask=inside), nl.ndarray((128, 6 * blocks), nl.float32)
        for j in nl.affine_range(blocks):
            i_b = j * F + nl.arange(F)[None, :]
            stats[i_p, j * 6 + i_s] = nisa.bn_stats(t[i_p, i_b], mask=MASK, dtype=np.float32)
        nl.store(out[i * 128 + i_p, nl.arange(2)[None, :]], nisa.bn_aggr(stats), mask=inside)
    return out
'''


@pytest.mark.parametrize('mask', ['i_b < columns', '(i_b < columns) & inside', '(i_b <= columns - 1) & (i_p >= 0)'])
@pytest.mark.parametrize('columns', [1000, 1024, 513, 40])
def test_a_mask_cuts_what_leaves_a_searched_tile(mask, columns):
    "As the tutorials write the statistics of a row whose width is no multiple of what bn_stats takes."
    x = np.random.default_rng(0).normal(size=(300, columns)).astype(np.float32)
    p = assert_ok(trace_source(STATISTICS.replace('MASK', mask), None, [ArraySpec(x.shape)]))
    np.testing.assert_allclose(execute(p, x)[0], np.stack([x.mean(1), x.var(1)], 1), rtol=1e-4, atol=1e-5)


def test_what_no_mask_keeps_inside_is_still_refused():
    with pytest.raises(KernelError, match='index 1023 of dimension 1 is outside t'):
        trace_source(STATISTICS.replace('MASK', 'i_b < 1024'), None, [ArraySpec((300, 1000))])


# --- zeros that nobody writes ---

def zero_tile(dialect, use):
    "A kernel whose `use(lang, isa, zeros, x, w)` gets a tile of zeros in PSUM, x (128, 64) and w (128, 128) in SBUF."
    lang, isa, jit = (onl, oisa, old.jit) if dialect == 'old' else (nl, nisa, lambda f: f)
    @jit
    def kernel(x, w):
        out = lang.ndarray((128, 64), lang.float32, buffer=lang.shared_hbm)
        a, b = lang.load(x), lang.load(w)
        t = lang.zeros((128, 64), lang.float32, buffer=lang.psum)
        lang.store(out, use(lang, isa, t, a, b) or t)
        return out
    return kernel


def _added(lang, isa, t, a, b): t[...] = lang.add(t, a)
def _product(lang, isa, t, a, b):
    if lang is onl: t[...] += isa.nc_matmul(b, a)
    else: isa.nc_matmul(t, b, a)
def _product_in_a_loop(lang, isa, t, a, b):
    for _ in lang.affine_range(3): _product(lang, isa, t, a, b)
def _half(lang, isa, t, a, b): t[:, 0:32] = lang.copy(a[:, 0:32])
def _whole(lang, isa, t, a, b): t[...] = lang.copy(a)
def _added_in_a_loop(lang, isa, t, a, b):
    for _ in lang.sequential_range(3): t[...] = lang.add(t, a)


W = np.eye(128, dtype=np.float32)


@pytest.mark.parametrize('dialect', ['old', 'new'])
@pytest.mark.parametrize('use, fills, times', [
    (lambda *_: None, 1, 0), (_added, 1, 1), (_half, 1, None), (_added_in_a_loop, 1, 3), (_product, 0, 1), (_whole, 0, 1),
    (_product_in_a_loop, 0, 3)], ids=['read', 'added', 'half', 'in a loop', 'product', 'whole', 'products'])
def test_zeros_are_written_where_no_product_begins(dialect, use, fills, times):
    "An accumulation needs none, whoever reads zeros does; and where they stand before the loop that reads them."
    p = trace(zero_tile(dialect, use), X[:128], W, chip='trn2' if dialect == 'new' else 'trn1')
    assert [o.op for o in p.instructions].count('memset') == fills and not check(p)
    assert all(o.op != 'memset' or not loops for loops, o in p.walk())
    y, = execute(p, X[:128], W)
    want = np.where(np.arange(64) < 32, X[:128], 0) if times is None else times * X[:128]
    np.testing.assert_allclose(y, want, rtol=1e-5)


def test_a_program_without_its_fill_is_refused():
    p = trace(zero_tile('new', _added), X[:128], W, chip='trn2')
    data = json.loads(p.to_json())
    data['body'] = [o for o in data['body'] if o.get('op') != 'memset']
    for t in data['tensors']: t[6] = t[3] == 'psum'
    said = str(check(Program.from_json(json.dumps(data)))[0])
    assert 'finds zeros in t that nobody has written' in said


def test_zeros_of_each_iteration_and_of_blocks():
    @old.jit
    def kernel(x):
        out = onl.ndarray((4, 128, 16), x.dtype, buffer=onl.shared_hbm)
        a = onl.load(x)
        for i in onl.affine_range(2):
            t = onl.zeros((2, onl.par_dim(128), 16), onl.float32, buffer=onl.psum)
            for j in onl.affine_range(2): onl.store(out[2 * i + j], onl.add(t[j], a[:, 0:16]))
        return out
    p = assert_ok(trace(kernel, X[:128]))
    assert [[l.trips for l in loops] for loops, o in p.walk() if o.op == 'memset'] == [[2], [2]]
    np.testing.assert_array_equal(execute(p, X[:128])[0], np.stack([X[:128, :16]] * 4))
