"""What a careless caller gives `simulate` and the decorated kernels: each is refused before anything is computed, with
what to write, or does what it says; nothing is dropped without a word."""
import functools
import inspect

import ml_dtypes
import numpy as np
import pytest
import torch
from dialects import nisa, nki, nl, normal, old, onl
from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.nki import ArraySpec, profile, simulate, trace
from kernel_lab.nki.chip.dtypes import quantize

X = normal(4, 8)


def scaled(x, by=1, plus=0):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.multiply(nl.load(x), float(by)), float(plus)))
    return out


def rows(x):
    out = onl.ndarray(x.shape, x.dtype, buffer=onl.shared_hbm)
    i = onl.program_id(0)
    onl.store(out[i:i + 1], onl.multiply(onl.load(x[i:i + 1]), 2.0))
    return out


def doubled(x): nl.store(x, nl.multiply(nl.load(x), 2.0))


def frozen():
    x = X.copy()
    x.flags.writeable = False
    return x


# --- arguments given by functools.partial ---

@pytest.mark.parametrize('kernel', [
    functools.partial(scaled, by=3), functools.partial(nki.jit(scaled), by=3), nki.jit(functools.partial(scaled, by=3)),
    functools.partial(functools.partial(scaled, by=9), by=3), nki.jit(functools.partial(nki.jit(scaled), by=3))])
def test_arguments_of_partials_count(kernel):
    "They were dropped: the kernel ran with its defaults."
    np.testing.assert_allclose(simulate(kernel, X), 3 * X, rtol=1e-6)
    assert trace(kernel, X).hash == trace(nki.jit(scaled), X, by=3).hash
    assert profile(kernel, X).latency_us > 0


def test_a_partial_may_hold_arrays_and_keeps_dialect_and_grid():
    np.testing.assert_allclose(simulate(functools.partial(scaled, X), plus=1), X + 1, rtol=1e-6)
    part = functools.partial(old.jit(rows)[4], X)
    assert trace(part).dialect == 'neuronxcc.nki'
    np.testing.assert_allclose(simulate(part), 2 * X, rtol=1e-6)
    assert 'partial' in repr(nki.jit(functools.partial(scaled, by=3)))


# --- launch grids ---

@pytest.mark.parametrize('grid', [4, np.int64(4), np.int32(4), (4,), [4], (np.uint8(4),)])
def test_every_program_of_a_grid_runs(grid):
    "A NumPy integer has a .size of 1: one program of four ran, and three rows were never written."
    np.testing.assert_allclose(old.jit(rows)[grid](X), 2 * X, rtol=1e-6)
    assert old.jit(rows)[grid].grid == (4,)


@pytest.mark.parametrize('jit', [nki.jit, old.jit])
@pytest.mark.parametrize('grid', [0, -1, 1.5, np.float64(2), 'a', None, slice(1, 2), True, (2, 0), 10**12, (1 << 11, 1 << 11)])
def test_a_grid_that_is_none_is_refused(jit, grid):
    with pytest.raises(KernelError) as e: jit(scaled)[grid]
    assert e.value.kind == 'entry' and e.value.hint


# --- inputs ---

WITHOUT_VALUES = {
    'meta': lambda: torch.zeros(4, 8, device='meta'), 'sparse': lambda: torch.eye(4).to_sparse(),
    'spec': lambda: ArraySpec((4, 8))}


@pytest.mark.parametrize('name', WITHOUT_VALUES)
def test_an_input_without_values_can_be_traced_only(name):
    x = WITHOUT_VALUES[name]()
    with pytest.raises(KernelError) as e: simulate(scaled, x)
    assert e.value.kind == 'input' and e.value.hint
    assert trace(scaled, x).count and profile(scaled, x).latency_us > 0


def test_a_view_that_torch_negates_late():
    x = torch.randn(4, 8, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(simulate(scaled, x, by=2), 2 * x)


@pytest.mark.parametrize('x', [memoryview(X), __import__('pandas').DataFrame(X), __import__('array').array('f', [1.0])],
                         ids=lambda x: type(x).__name__)
def test_what_looks_like_an_array_is_named(x):
    with pytest.raises(KernelError, match=r'x is a \w+; a kernel takes arrays .* Pass np\.asarray\(x\)'): simulate(scaled, x)


@pytest.mark.parametrize('x', [frozen, lambda: np.broadcast_to(X[:1], (4, 8)), lambda: torch.ones(1, 8).expand(4, 8)])
def test_an_input_that_cannot_be_written_is_refused_before_anything_is_computed(x, monkeypatch):
    from kernel_lab.nki import run
    monkeypatch.setattr(run, 'execute', lambda *a: pytest.fail('it was computed'))
    with pytest.raises(KernelError, match='writes to its input x, which .* cannot be written') as e: simulate(doubled, x())
    assert e.value.kind == 'input' and 'copy' in e.value.hint


def test_what_may_be_written_is_written():
    leaf = torch.ones(4, 8, requires_grad=True)
    simulate(doubled, leaf)
    assert (leaf == 2).all() and leaf.requires_grad
    view = np.zeros((4, 16), np.float32)[:, ::2] + np.float32(1)
    simulate(doubled, view)
    assert (view == 2).all()


def test_an_input_that_is_only_returned_is_not_written():
    x = frozen()
    np.testing.assert_array_equal(simulate(lambda x: x, x), x)


def test_packed_numbers_keep_their_bits_with_wide_storage():
    "The low byte of four numbers in a word was rounded away in fp32."
    def kernel(src, scale):
        rows, columns = src.shape[0], src.shape[1] // 4
        s, out = nl.load(src), nl.ndarray((rows, columns), nl.float8_e4m3fn_x4, buffer=nl.shared_hbm)
        d, c = nl.ndarray((rows, columns), nl.float8_e4m3fn_x4), nl.ndarray((rows, columns), nl.uint8)
        nisa.quantize_mx(dst=d, src=s, dst_scale=c)
        nisa.dma_copy(dst=out, src=d)
        nisa.dma_copy(dst=scale, src=c)
        return out
    x, scale = normal(32, 64).astype(ml_dtypes.bfloat16), np.zeros((32, 16), np.uint8)
    one, other = (simulate(kernel, x, scale, chip='trn3', precise=p).tobytes() for p in (True, False))
    assert one == other and any(one[::4])


@pytest.mark.parametrize('free', [(16,), (1, 16), (4, 4), (2, 1, 8)])
def test_scales_of_tiles_with_several_free_axes(free):
    "Scales of a tile with more than one free axis did not fit."
    def kernel(src, scale):
        s, d = nl.load(src), nl.ndarray((64, *free), nl.float8_e5m2_x4)
        c, out = nl.ndarray((64, *free), nl.uint8), nl.ndarray((64, *free), nl.float8_e5m2_x4, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=c, src=scale)
        nisa.quantize_mx(dst=d, src=s, dst_scale=c)
        nisa.dma_copy(dst=out, src=d)
        nisa.dma_copy(dst=scale, src=c)
        return out, scale
    x = (normal(64, 64) * 2.0 ** np.arange(64)).astype(ml_dtypes.bfloat16)
    of = lambda shape: [y.tobytes() for y in simulate(kernel, x.reshape(64, *shape[:-1], -1), np.full((64, *shape), 7, np.uint8),
                                                      chip='trn3')]
    data, scales = quantize(x.astype(np.float32), 'float8_e5m2_x4')
    rows = np.full((64, 16), 7, np.uint8)
    rows[[0, 1, 2, 3, 32, 33, 34, 35]] = scales
    assert of(free) == [data.tobytes(), rows.tobytes()]


# --- functions, and what they raise ---

def test_decorators_that_go_round_in_a_circle():
    def kernel(x): return x
    kernel.__wrapped__ = kernel
    with pytest.raises(KernelError, match='is not a Python function'): simulate(kernel, X)


class Mute(Exception):
    def __str__(self): raise RuntimeError('no text')


def test_an_exception_whose_text_fails():
    def kernel(x): raise Mute
    with pytest.raises(KernelError, match='Mute') as e: simulate(kernel, X)
    assert e.value.line == inspect.getsourcelines(kernel)[1]


def test_nki_simulate_says_how_it_is_called():
    with pytest.raises(UsageError, match=r'nki\.simulate\(kernel\)\(x, y\)'): nki.simulate(scaled, X)
    np.testing.assert_allclose(nki.simulate(scaled)(X), X, rtol=1e-6)


# --- names of parameters in the earlier dialect ---

NAMED = {
    'copy': lambda t: onl.copy(src=t, dtype=onl.float32), 'broadcast_to': lambda t: onl.broadcast_to(src=t, shape=(4, 8)),
    'expand_dims': lambda t: onl.expand_dims(data=t, axis=2), 'zeros_like': lambda t: onl.zeros_like(a=t),
    'empty_like': lambda t: onl.empty_like(a=t, dtype=onl.bfloat16), 'all_reduce': lambda t: onl.all_reduce(
        t, op=np.add, program_axes=0, parallel_reduce=False), 'device_print': lambda t: onl.device_print(prefix='t', x=t)}


@pytest.mark.parametrize('name', NAMED)
def test_the_earlier_dialects_own_names_of_parameters(name):
    def kernel(x):
        out, t = onl.ndarray(x.shape, x.dtype, buffer=onl.shared_hbm), onl.load(x)
        NAMED[name](t)
        onl.store(out, t)
        return out
    np.testing.assert_array_equal(old.jit(kernel)[1](X), X)


def test_a_copy_that_adds_where_its_index_points():
    from dialects import oisa
    def kernel(x):
        out = onl.ndarray((8, 8), x.dtype, buffer=onl.shared_hbm)
        onl.store(out, onl.full((8, 8), 1.0, x.dtype))
        i, j = onl.mgrid[0:4, 0:8]
        at = oisa.iota(2 * onl.arange(4)[:, None], dtype=np.int32)
        oisa.dma_copy(dst=out[at, j], src=onl.load(x[i, j]), dst_rmw_op=np.add)
        return out
    want = np.ones((8, 8), np.float32)
    want[::2] += X
    np.testing.assert_allclose(old.jit(kernel)(X), want, rtol=1e-6)
