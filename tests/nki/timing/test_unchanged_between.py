"""The earlier compiler moves, folds and leaves out what it may: an instruction that goes on from the iteration before is
not invariant, and nobody reads behind a write what was there before it."""
import numpy as np
import pytest
from dialects import oisa, old, onl, run

from kernel_lab.nki import execute, schedule, trace
from kernel_lab.nki.timing.legacy_compiler import compiled_program, fold, hoist, read_psum

X = np.ones((128, 512), np.float32)


def traced(body, *arrays, outs=1):
    "The program of a kernel of the earlier dialect whose body writes to (128, 512) outputs."
    @old.jit
    def kernel(*xs):
        out = [onl.ndarray((128, 512), np.float32, buffer=onl.shared_hbm) for _ in range(outs)]
        body(*xs, *out)
        return tuple(out)
    return trace(kernel, *arrays, chip='trn1')


def ops(program): return [o.op for o in program.instructions]


def in_a_loop(step, turns):
    "A tile of PSUM, zero at first, that `step(tile, x)` changes in every turn of a loop."
    def body(x, out):
        a, t = onl.load(x), onl.zeros((128, 512), np.float32, buffer=onl.psum)
        for _ in onl.sequential_range(turns): t[...] = step(t, a)
        onl.store(out, t)
    return traced(body, X)


@pytest.mark.parametrize('step', [
    lambda t, a: onl.add(t, a), lambda t, a: oisa.activation(np.exp, t, scale=-1.0),
    lambda t, a: oisa.scalar_tensor_tensor(data=t, op0=np.multiply, operand0=0.5, op1=np.add, operand1=a),
    lambda t, a: onl.rand((128, 512))], ids=['sum', 'activation', 'fused', 'random'])
def test_what_goes_on_is_done_in_every_turn(step):
    one, many = (in_a_loop(step, n) for n in (2, 100))
    assert ops(hoist(many)) == ops(many)
    assert schedule(many, 'trn1').latency_us > schedule(one, 'trn1').latency_us + 40


def test_what_does_not_go_on_still_leaves_the_loop():
    def body(x, out):
        a = onl.load(x)
        for i in onl.sequential_range(4):
            t = onl.exp(a)
            onl.store(out[:, 128 * i:128 * (i + 1)], t[:, 0:128])
    p = hoist(traced(body, X))
    assert [getattr(o, 'op', 'loop') for o in p.body] == ['dma_copy', 'activation', 'loop']


@pytest.mark.parametrize('later', [True, False])
def test_a_copy_of_what_a_product_goes_on_with_stays(later):
    "A snapshot of an accumulator, read after (or before) the next product is added."
    def body(x, w, a, b):
        t = onl.zeros((128, 512), np.float32, buffer=onl.psum)
        moving, weights, seen = onl.load(x), onl.load(w), []
        for out in (a, b):
            t[...] += oisa.nc_matmul(weights, moving)
            seen.append(onl.copy(t))
            if not later: onl.store(out, onl.multiply(seen[-1], 2.0))
        for out, s in zip((a, b), seen) if later else (): onl.store(out, onl.multiply(s, 2.0))
    p = traced(body, X, np.eye(128, dtype=np.float32), outs=2)
    assert ops(read_psum(p)).count('tensor_copy') == later
    for y, n in zip(execute(p, X, np.eye(128, dtype=np.float32)), (2, 4)): np.testing.assert_array_equal(y, n * X)


def test_a_product_with_a_number_of_what_is_overwritten_is_not_folded():
    def body(x, y, a, b, overwritten=True):
        t, u = onl.load(x), onl.load(y)
        s = onl.multiply(t, 2.0)
        if overwritten: t[...] = onl.exp(u)
        onl.store(a, onl.add(s, u))
        onl.store(b, t)
    p, q = (traced(lambda *xs, o=o: body(*xs, o), X, X, outs=2) for o in (True, False))
    assert ops(fold(p)) == ops(p) and ops(fold(q)) == ['dma_copy', 'dma_copy', 'scalar_tensor_tensor', 'dma_copy', 'dma_copy']
    np.testing.assert_array_equal(execute(p, X, X)[0], 3 * X)
    assert compiled_program(p).instructions


def test_numbers_are_those_of_the_kernel():
    y, = run(old.jit(lambda x: _summed(x)), X)
    np.testing.assert_array_equal(y, 3 * X)


def _summed(x):
    out, t = onl.ndarray(x.shape, x.dtype, buffer=onl.shared_hbm), onl.zeros(x.shape, x.dtype, buffer=onl.psum)
    a = onl.load(x)
    for _ in onl.sequential_range(3): t[...] = onl.add(t, a)
    onl.store(out, t)
    return out
