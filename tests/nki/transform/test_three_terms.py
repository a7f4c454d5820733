"""Products of float32 as three of bfloat16 parts: who gets them, how exact they are, what refuses them."""
import numpy as np
import pytest
from kernel_lab.nki import trace
from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.ir.nodes import replace
from kernel_lab.nki.lang import isa as nisa, language as nl
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.engines import float32_products, three_terms
from kernel_lab.nki.transform.moves import FAMILIES, KNOWN_FAMILIES, OPT_IN_FAMILIES, THREE_TERMS, moves
from kernel_lab.nki.tuning.search import search
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.writing.writer import to_source
from kernel_lab.tasks.suite.registry import TASKS
from kernel_lab.targets.nki_sim import specs_of, trace_here


def product(x, y, dtype=nl.float32, parts=1):
    "x.T @ y, each tile of y written in so many parts."
    (rows, m), n = x.shape, y.shape[1]
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
    for k in nl.affine_range(rows // 128):
        a = nl.ndarray((128, m), dtype=dtype, buffer=nl.sbuf)
        b = nl.ndarray((128, n), dtype=dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[k * 128:(k + 1) * 128, :])
        for p in nl.affine_range(parts):
            w = n // parts
            nisa.dma_copy(dst=b[:, p * w:(p + 1) * w], src=y[k * 128:(k + 1) * 128, p * w:(p + 1) * w])
        nisa.nc_matmul(dst=acc, stationary=a, moving=b)
    tile = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


def inputs(scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return [(scale * rng.standard_normal((512, n))).astype(np.float32) for n in (64, 256)]


@pytest.mark.parametrize('parts', [1, 2])
@pytest.mark.parametrize('scale', [1e-3, 1.0, 1e3])
def test_three_terms_are_nearly_float32(parts, scale):
    x, y = inputs(scale)
    whole = trace(lambda x, y: product(x, y, parts=parts), x, y)
    after = three_terms(whole)
    assert not check(after, 'trn2')
    want = x.T.astype(np.float64) @ y
    error = np.abs(execute(after, x, y)[0] - want).max() / np.abs(want).max()
    one = np.abs(execute(trace(lambda x, y: product(x, y, nl.bfloat16), x, y), x, y)[0] - want).max() / np.abs(want).max()
    assert 0 < error < 3e-5 and one > 50 * error


def test_each_value_of_a_tile_is_split_where_it_is_written():
    x, y = inputs()
    after = three_terms(trace(lambda x, y: product(x, y, parts=2), x, y))
    ops = [o.op for o in after.instructions]
    assert ops.count('nc_matmul') == 3 and ops.count('tensor_tensor') == 2      # a, and b in its loop
    assert {after.tensors[a.tensor].dtype for o in after.instructions if o.op == 'nc_matmul'
            for a in o.ins.values()} == {'bfloat16'}


def test_what_is_not_float32_or_has_a_mask_is_refused():
    x, y = inputs()
    narrow = trace(lambda x, y: product(x, y, nl.bfloat16), x, y)
    with pytest.raises(IllegalTransformation, match='no product of float32'): three_terms(narrow)
    whole = trace(product, x, y)
    o, = float32_products(whole)
    masked = replace(whole, body=tuple(replace(n, body=tuple(
        replace(i, attrs={**i.attrs, 'is_transpose': True}) if i is o else i for i in n.body)) if hasattr(n, 'body')
        else n for n in whole.body))
    assert float32_products(masked) == []


def test_nobody_gets_it_unasked():
    assert THREE_TERMS not in FAMILIES and {*KNOWN_FAMILIES} == {*FAMILIES, *OPT_IN_FAMILIES}
    x, y = inputs()
    assert THREE_TERMS not in {m.family for m in moves(trace(product, x, y))}


@pytest.mark.slow
@pytest.mark.parametrize('name', ['matmul', pytest.param('rmsnorm_matmul', marks=pytest.mark.slow)])
def test_a_search_that_was_asked_takes_it_and_its_program_is_written_back(name):
    task = TASKS[name]
    workload = task.workload()
    program = trace_here(task.first(workload), specs_of(task, workload), 'trn2')
    asked = search(program, 'climb', 60, 1500, families=(*FAMILIES, THREE_TERMS))
    plain = search(program, 'climb', 60, 1500)
    assert [m.family for m in asked.steps].count(THREE_TERMS) == 1 and asked.latency_us < 0.9 * plain.latency_us
    assert all(m.is_exact is False for m in asked.steps if m.family == THREE_TERMS)
    source = to_source(asked.program)
    again = trace_source(source, None, specs_of(task, workload), 'trn2')
    assert first_difference(asked.program, again) is None
    arrays = list(task.draw(workload, 5).values())
    want, got = execute(program, *arrays)[0], execute(asked.program, *arrays)[0]
    tolerance = task.tolerance(workload)
    assert (np.abs(got - want) <= tolerance.atol + tolerance.rtol * np.abs(want)).all()
