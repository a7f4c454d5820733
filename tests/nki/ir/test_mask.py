"""Masks of the earlier dialect where the destination has other axes than what is masked: against plain numpy, one
instruction after another and batched."""
import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, assert_ok, execute, schedule
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.lang.trace import trace_source

HEAD = """import numpy as np
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
def kernel(x):
    p, f = nl.mgrid[0:4, 0:8]
    a, b, c = nl.mgrid[0:4, 0:2, 0:4]
    t = nl.load(x)
"""
X = np.random.default_rng(0).integers(-9, 10, (4, 8)).astype(np.float32)
FAR = np.float32(99)


def ran(*lines, x=X):
    text = HEAD + "".join(f"    {line}\n" for line in lines) + "    return out\n"
    program = assert_ok(trace_source(text, None, [ArraySpec(x.shape, x.dtype.name)], "trn2"))
    assert schedule(program).latency_us > 0
    one, other = interpret(program, x)[0], execute(program, x)[0]
    np.testing.assert_array_equal(one, other)
    return one


def out(*shape): return f"out = nl.ndarray({shape}, nl.float32, buffer=nl.shared_hbm)"


@pytest.mark.parametrize(
    "mask, keep", [("f < 3", slice(0, 3)), ("f >= 6", slice(6, 8)), ("(f > 1) & (f < 5)", slice(2, 5))]
)
@pytest.mark.parametrize(
    "call, meaning",
    [
        ("nl.sum({}, axis=1, mask={})", np.sum),
        ("nl.max({}, axis=[1], mask={})", np.max),
        ("nisa.tensor_reduce(np.min, {}, axis=1, mask={})", np.min),
        ("nl.sum({}, axis=1, keepdims=True, mask={})", np.sum),
    ],
)
def test_reduced_axis(mask, keep, call, meaning):
    got = ran(out(4, 1), f"s = {call.format('t[p, f]', mask)}", "nl.store(out, s)")
    np.testing.assert_array_equal(got[:, 0], meaning(X[:, keep], axis=1))


def test_rows_of_a_reduction():
    got = ran(out(4, 1), "s = nl.zeros((4, 1), nl.float32)", "s[...] = nl.sum(t[p, f], axis=1, mask=p < 2)",
              "nl.store(out, s)")
    np.testing.assert_array_equal(got[:2, 0], X[:2].sum(1))


@pytest.mark.parametrize(
    "mask, bits",
    [
        ("a < 3", (slice(0, 3), slice(None))),
        ("b < 1", (slice(None), slice(0, 1))),
        ("b >= 1", (slice(None), slice(1, 2))),
    ],
)
def test_reduction_of_three_axes_by_the_axes_that_stay(mask, bits):
    got = ran(out(4, 2), "d = nl.ndarray((4, 2, 4), nl.float32)", "nisa.dma_copy(dst=d, src=t)",
              "s = nl.sum(d[a, b, c], axis=2, mask=" + mask + ")", "nl.store(out, nl.zeros((4, 2), nl.float32))",
              "nl.store(out[nl.arange(4)[:, None], nl.arange(2)[None, "
              f":]], s, mask={mask_of(mask)})")
    want = np.zeros((4, 2), np.float32)
    want[bits] = X.reshape(4, 2, 4).sum(2)[bits]
    np.testing.assert_array_equal(got, want)


def mask_of(mask): return mask.replace("a ", "nl.arange(4)[:, None] ").replace("b ", "nl.arange(2)[None, :] ")


@pytest.mark.parametrize("mask, keep", [("c < 3", slice(0, 3)), ("c >= 2", slice(2, 4))])
def test_reduction_of_three_axes_by_the_axis_that_goes(mask, keep):
    got = ran(out(4, 2), "d = nl.ndarray((4, 2, 4), nl.float32)", "nisa.dma_copy(dst=d, src=t)",
              f"nl.store(out, nl.sum(d[a, b, c], axis=2, mask={mask}))")
    np.testing.assert_array_equal(got, X.reshape(4, 2, 4)[:, :, keep].sum(2))


@pytest.mark.parametrize("engine", ["", ", engine=nisa.vector_engine"])
@pytest.mark.parametrize("mask, keep", [("p < 3", np.s_[:, 0:3]), ("f < 5", np.s_[0:5, :]), ("f >= 6", np.s_[6:8, :])])
def test_transpose_is_masked_by_the_axes_of_what_is_transposed(mask, keep, engine):
    turned = mask.replace("p", "g").replace("f", "q")
    got = ran(out(8, 4), f"r = nisa.nc_transpose(t[p, f], mask={mask}{engine})", "nl.store(out, nl.full((8, 4), 99.0, "
              "nl.float32))", "q, g = nl.mgrid[0:8, 0:4]", f"nl.store(out[q, g], r[q, g], mask={turned})")
    want = np.full((8, 4), FAR)
    want[keep] = X.T[keep]
    np.testing.assert_array_equal(got, want)


def test_patterns_count_from_the_corner():
    got = ran(out(4, 8), "t[p, f] = nisa.iota(10 * p + f, dtype=nl.float32, mask=f >= 5)", "nl.store(out, t)")
    p, f = np.mgrid[0:4, 0:8]
    np.testing.assert_array_equal(got, np.where(f >= 5, 10 * p + f, X))
    got = ran(out(4, 8), "t[p, f] = nisa.affine_select(pred=(p - f + 4 >= 0), on_true_tile=t[p, f], "
                         "on_false_value=99.0, mask=f >= 3)", "nl.store(out, t)")
    np.testing.assert_array_equal(got, np.where((f >= 3) & (p - f + 4 < 0), FAR, X))


def test_a_sum_beside_an_activation():
    got = ran(out(4, 1), "s = nl.ndarray((4, 1), nl.float32)", "u = nisa.activation_reduce(np.square, t[p, f], "
              "reduce_op=np.add, reduce_res=s, mask=f < 3)", "nl.store(out, s)")
    np.testing.assert_array_equal(got[:, 0], np.square(X[:, :3]).sum(1))


def test_an_index_under_a_mask_may_point_anywhere():
    far = "k = nisa.iota(50 * nl.arange(4)[:, None] + nl.arange(1)[None, :] + 2, dtype=nl.int32)"
    got = ran(out(4, 8), far, "t[p, f] = nl.load(x[k[p, 0], f], mask=p < 1)", "nl.store(out, t)")
    np.testing.assert_array_equal(got, np.concatenate([X[2:3], X[1:]]))
    with pytest.raises(KernelError, match="points outside"):
        ran(out(4, 8), far, "t[p, f] = nl.load(x[k[p, 0], f], mask=p < 2)", "nl.store(out, t)")


@pytest.mark.parametrize("line", ["s = nl.sum(t[p, f], axis=1, mask=p + f < 5)"])
def test_what_is_not_modelled_is_refused(line):
    with pytest.raises(KernelError, match="mask") as caught: ran(out(4, 8), line, "nl.store(out, s)")
    assert caught.value.line == 9


def test_a_masked_result_assigned_with_a_cast_leaves_the_rest():
    p, f = np.mgrid[0:4, 0:8]
    got = ran(out(4, 8), "t[p, f] = nl.multiply(t[p, f], 2.0, dtype=nl.bfloat16, mask=f < 3)", "nl.store(out, t)")
    np.testing.assert_array_equal(got, np.where(f < 3, 2 * X, X))
