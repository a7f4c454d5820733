"A dependency between iterations of affine_range, in the earlier dialect: refused where it is one, and only there."
from dataclasses import replace
import numpy as np, pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import trace
from kernel_lab.nki.checks.checker import assert_ok
from kernel_lab.nki.checks.loop_carried import loop_carried_reads
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.overlap import touched_bytes_of
from kernel_lab.nki.ir.program import Program
from dialects import normal, oisa as nisa, old as nki, onl as nl, run

X = normal(4, 128, 64)
def hbm(*shape): return nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
def tile(*shape): return nl.zeros(shape, nl.float32)

def prefix(a, loop):
    out, acc = hbm(4, 128, 64), tile(128, 64)
    for i in loop(4):
        acc += nl.load(a[i])
        nl.store(out[i], acc)
    return out

def decay(a, loop):
    out, acc = hbm(128, 64), tile(128, 64)
    for i in loop(4): acc[...] = nl.add(nl.multiply(acc, 0.5), nl.load(a[i]))
    nl.store(out, acc)
    return out

def backwards(a, loop):
    out, acc = hbm(128, 64), tile(128, 64)
    for i in loop(4): acc[...] = nl.subtract(nl.load(a[i]), acc)
    nl.store(out, acc)
    return out

def running_max(a, loop):
    out, m, s = hbm(128, 1), nl.full((128, 1), -1e30, nl.float32), tile(128, 1)
    for i in loop(4):
        x = nl.load(a[i])
        new = nl.maximum(m, nl.max(x, axis=1, keepdims=True))
        s[...] = s * nl.exp(m - new) + nl.sum(nl.exp(x - new), axis=1, keepdims=True)
        m[...] = nl.copy(new)
    nl.store(out, s)
    return out

def scanned(a, loop):
    out, init, r = hbm(128, 64), tile(128, 1), nl.ndarray((128, 64), nl.float32)
    for i in loop(4):
        x = nl.load(a[0, :, i * 16:(i + 1) * 16])
        r[:, i * 16:(i + 1) * 16] = nisa.tensor_tensor_scan(x, x, initial=init, op0=np.multiply, op1=np.add)
        init[...] = nl.copy(r[:, i * 16 + 15:i * 16 + 16])
    nl.store(out, r)
    return out

def through_hbm(a, loop):
    out = hbm(5, 128, 64)
    nl.store(out[0], nl.load(a[0]))
    for i in loop(4): nl.store(out[i + 1], nl.tanh(nl.load(out[i])))
    return out

def by_name(a, loop):
    out, acc = hbm(128, 64), tile(128, 64)
    for i in loop(4): acc = nl.exp(acc) * nl.load(a[i])
    nl.store(out, acc)
    return out

def partial_products(a, loop):
    out, ps = hbm(4, 64, 64), nl.zeros((64, 64), nl.float32, buffer=nl.psum)
    for i in loop(4):
        x = nl.load(a[i])
        ps += nl.matmul(x, x, transpose_x=True)
        nl.store(out[i], nl.copy(ps))
    return out


@pytest.mark.parametrize(
    'f',
    [prefix, decay, backwards, running_max, scanned, through_hbm, by_name, partial_products],
    ids=lambda f: f.__name__,
)
def test_refused_as_affine_and_right_as_sequential(f):
    with pytest.raises(KernelError, match='nl.sequential_range') as e:
        assert_ok(trace(nki.jit(f), X, loop=nl.affine_range))
    assert e.value.line and 'affine_range' in str(e.value)
    apart = run(nki.jit(f), X, loop=nl.static_range)
    np.testing.assert_array_equal(run(nki.jit(f), X, loop=nl.sequential_range)[0], apart[0])

def sums(a):
    out, acc, top = hbm(128, 64), tile(128, 64), nl.full((128, 64), -9.0, nl.float32)
    for i in nl.affine_range(4):
        x = nl.load(a[i])
        acc += x
        acc[...] = nl.add(x, acc)
        top[...] = nl.maximum(top, x)
    nl.store(out, acc * 0.5 + top)
    return out

def test_sums_are_not_refused():
    np.testing.assert_allclose(run(nki.jit(sums), X)[0], X.sum(0) + X.max(0), rtol=1e-5, atol=1e-5)

def products(a):
    out = hbm(4, 64, 64)
    ps = nl.ndarray((64, 64), nl.float32, buffer=nl.psum)
    for i in nl.affine_range(4):
        x = nl.load(a[i])
        ps[...] = nl.matmul(x, x, transpose_x=True)
        nl.store(out[i], nl.copy(ps))
    return out

def test_a_product_assigned_to_an_outer_tile_is_not_added_to_it():
    np.testing.assert_allclose(run(nki.jit(products), X)[0], np.einsum('ikm,ikn->imn', X, X), rtol=1e-5, atol=1e-5)

def reduced(a):
    out, acc = hbm(128, 64), nl.ndarray((128, 64), nl.float32)
    for i in nl.affine_range(4): acc[...] = nl.loop_reduce(nl.load(a[i]), op=np.add, loop_indices=[i], dtype=nl.float32)
    nl.store(out, acc)
    return out

def test_loop_reduce_is_not_refused():
    np.testing.assert_allclose(run(nki.jit(reduced), X)[0], X.sum(0), rtol=1e-5, atol=1e-5)

@nki.jit
def window(a, move, start, width, read, moved, first):
    "Writes t[:, start + move·i …], and reads t[:, read + moved·i …] before or after."
    out, t = hbm(4, 128, 1), tile(128, 64)
    for i in nl.affine_range(4):
        mine = nl.ds(i * move + start, width)
        if first: t[:, mine] = nl.load(a[0, :, 0:width])
        nl.store(out[i], nl.sum(t[:, nl.ds(i * moved + read, width)], axis=1, keepdims=True))
        if not first: t[:, mine] = nl.load(a[0, :, 0:width])
    return out

def expected(move, start, width, read, moved, first):
    "By trying all iterations: does one read a column that an earlier one wrote, and that it has not written itself?"
    wrote = lambda i: set(range(i * move + start, i * move + start + width))
    reads = lambda i: set(range(i * moved + read, i * moved + read + width)) - (wrote(i) if first else set())
    return any(wrote(i) & reads(j) for j in range(4) for i in range(j))

def test_against_trying_all_iterations():
    rng, seen = np.random.default_rng(0), []
    for _ in range(150):
        case = [
            int(rng.choice([0, 4, 8, 12])),
            int(rng.integers(0, 16)),
            int(rng.choice([1, 4, 8])),
            int(rng.integers(0, 16)),
            int(rng.choice([0, 4, 8])),
            bool(rng.integers(2))]
        program = trace(window, X, *case)
        try: assert_ok(program)
        except KernelError as e: refused = 'affine_range' in str(e); assert refused, e
        else: refused = False
        assert refused == expected(*case), case
        seen.append(refused)
    assert 20 < sum(seen) < 130

def last_tile(a, loop):
    out = hbm(128, 64)
    for i in loop(4): nl.store(out, nl.exp(nl.load(a[i])))
    return out

def test_the_last_value_of_an_output_is_refused_as_affine():
    with pytest.raises(KernelError, match='write different values to one place of') as e:
        assert_ok(trace(nki.jit(last_tile), X, loop=nl.affine_range))
    assert e.value.line and 'sequential_range' in e.value.hint
    np.testing.assert_allclose(run(nki.jit(last_tile), X, loop=nl.sequential_range)[0], np.exp(X[3]), rtol=1e-6)

def then_whole(a):
    out, total = hbm(128, 64), tile(128, 64)
    for i in nl.affine_range(4):
        nl.store(out, nl.load(a[0]))                         # the same each time
        total += nl.load(a[i])
    for i in nl.affine_range(4): nl.store(out, nl.load(a[i]))
    nl.store(out, total)                                     # the last word
    return out

def test_what_is_written_again_afterwards_is_not_refused():
    np.testing.assert_allclose(run(nki.jit(then_whole), X)[0], X.sum(0), rtol=1e-5, atol=1e-5)

@nki.jit
def strided(a, move, width, outer):
    "Writes out[:, move·i + 64·j …], i affine inside or outside of j."
    out = nl.ndarray((128, 320), dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(out, nl.zeros((128, 320), nl.float32))
    def one(i, j): nl.store(out[:, nl.ds(move * i + 64 * j, width)], nl.load(a[i, :, 0:width]))
    if outer:
        for i in nl.affine_range(3):
            for j in nl.sequential_range(2): one(i, j)
    else:
        for j in nl.sequential_range(2):
            for i in nl.affine_range(3): one(i, j)
    return out

def test_only_a_place_that_does_not_move_is_refused():
    seen = []
    for move in (0, 4, 16, 64, 68):
        for width in (4, 16, 60):
            for outer in (True, False):
                clash = move == 0                        # windows that move may share an edge that both compute alike
                try: assert_ok(trace(strided, X, move, width, outer))
                except KernelError as e:
                    assert clash and 'different values' in str(e), (move, width, outer, str(e))
                    seen.append(True)
                else: assert not clash, (move, width, outer); seen.append(False)
    assert 5 < sum(seen) < 25


TENSORS = (Tensor('a', (4, 24), 'float32', 'hbm'), Tensor('a_16', (4, 48), 'bfloat16', 'hbm', alias=0),
           Tensor('a_t', (24, 4), 'float32', 'hbm', alias=0), Tensor('t', (4, 24), 'float32', 'sbuf'),
           Tensor('t_16', (4, 48), 'bfloat16', 'sbuf', alias=3), Tensor('x', (96,), 'float32', 'hbm', 'input'))


def moving(rng, k, steps):
    "A random access to tensor `k` that moves with the loop and stays inside, or None."
    t, ap = TENSORS[k], tuple((int(rng.choice([1, -1, 2, 4])), int(rng.integers(1, 4))) for _ in range(2))
    a = Access(k, Affine(int(rng.integers(0, t.size)), (('i', int(rng.choice(steps))),)), ap)
    (lo, hi), (low, high) = a.offset.bounds({'i': 4}), a.span()
    return a if 0 <= lo + low and hi + high < t.size else None


def test_tensors_of_several_dtypes_are_compared_in_bytes():
    "By the bytes of each iteration, one by one."
    rng, seen = np.random.default_rng(0), []
    while len(seen) < 300:
        group = ((0, 1, 2), (3, 4))[int(rng.integers(2))]
        w, r = (moving(rng, int(rng.choice(group)), [0, 1, 2, 8, -3]) for _ in range(2))
        if w is None or r is None: continue
        put = Instruction('dma_copy', {'dst': w}, {'src': Access(5, Affine(), tuple((1, n) for _, n in w.ap))})
        get = Instruction('dma_copy', {'dst': replace(r, tensor=6, offset=Affine(48))}, {'src': r})
        out = Tensor('y', (192,), TENSORS[r.tensor].dtype, 'hbm', 'output')
        p = Program('p', (*TENSORS, out), (Loop('i', 4, (put, get), 'affine'),), (6,), 'neuronxcc.nki')
        cells = {k: [set(touched_bytes_of(p, o, k, {'i': i}).tolist()) for i in range(4)]
                 for o, k in ((put, 'dst'), (get, 'src'))}
        reads = [cells['src'][j] - cells['dst'][j] for j in range(4)]
        real = any(cells['dst'][i] & reads[j] for j in range(4) for i in range(j))
        assert bool([*loop_carried_reads(p)]) == real, (w, r)
        seen.append(real)
    assert 30 < sum(seen) < 270
