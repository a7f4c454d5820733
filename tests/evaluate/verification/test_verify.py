"""What no page should show of a verification: every first kernel on every admitted draw, and that draws and guesses
hold for any input."""
import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.verification.hypotheses import precision_notes
from kernel_lab.evaluate.verification.verify import compare, worst_elements
from kernel_lab.evaluate.verification.adversarial_inputs import CHANGES, admissions, draws_of
from kernel_lab.evaluate.records.verification import SeedReport, Verification, to_json_data
from kernel_lab.evaluate.verification.verify import verify
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.lang.trace import spec_of, trace_source
from kernel_lab.tasks.quality.checks import smallest_workload, narrow_workloads
from kernel_lab.tasks.suite.registry import BY_HAND, TASKS, get_task
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.evaluate.verification.element_errors import MAX_ERROR_RATIO
from kernel_lab.tasks.model.workload import DTYPES, Tolerance, error_ratio, mean_square, output_tolerance

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def program_of(task, workload):
    kernel = task.first(workload)
    return trace_source(kernel.source, kernel.entry, [spec_of(x) for x in task.draw(workload, 0).values()])


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.sampled_from(CHANGES), st.sampled_from(['float32', 'float16']), st.integers(0, 2**31))
def test_a_change_keeps_shape_and_dtype_and_says_the_same_twice(shape, change, dtype, seed):
    arrays = {'x': np.random.default_rng(seed).standard_normal(shape).astype(dtype), 'i': np.arange(3, dtype=np.int32)}
    for draw in (d for d in draws_of(arrays) if d.change == change):
        a, b = draw.of(arrays, seed), draw.of(arrays, seed)
        assert a['i'] is arrays['i'] and a['x'].shape == shape and a['x'].dtype == dtype
        assert a['x'].tobytes() == b['x'].tobytes()


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.integers(0, 2**31), st.integers(1, 12))
def test_the_worst_elements_are_the_worst(shape, seed, most):
    rng = np.random.default_rng(seed)
    want = rng.standard_normal(shape).astype(np.float32)
    got = want + rng.choice([0, 1, 2, np.nan, np.inf], shape).astype(np.float32)
    ratio = compare(got, want, Tolerance(0.01, 0.1, ''))[1]
    found = worst_elements(got, want, ratio, most)
    flat = np.sort(np.where(np.isnan(ratio), np.inf, ratio).reshape(-1))[::-1]
    np.testing.assert_allclose([e.off for e in found], [x for x in flat[:most] if x > 1], rtol=1e-5)
    assert len({e.index for e in found}) == len(found)


NASTY = [0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, 1e300, -1e300, np.inf, -np.inf, np.nan]


def by_numpy(got, want, tol):
    "What a report says, each number from whole arrays."
    g, w = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all='ignore'):
        ratio, diff = error_ratio(g, w, tol), np.abs(g - w)
        lost = np.isnan(ratio)
        diff[lost | (g == w)] = 0
        rel = np.where(np.isfinite(w) & (w != 0), diff / np.abs(w), 0)
    at = int(ratio.argmax())
    bad = ~(ratio <= 1)
    first = int(bad.argmax()) if bad.any() else None
    return (diff.max(), rel.max(), bad.mean(), at, int((lost & np.isfinite(w)).sum()), first), ratio


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(['float64', 'float32', 'int32', 'bfloat16']),
       st.sampled_from([(0.01, 0.1), (1e-3, 0.0), (1e-3, np.nan), (1e-3, np.inf)]))
def test_a_report_says_what_numpy_says(data, dtype, tolerance):
    size, dtype = data.draw(st.integers(1, 40)), DTYPES.get(dtype) or np.dtype(dtype)
    numbers = st.lists(st.sampled_from(NASTY if dtype.kind != 'i' else [0, 1, -7, 2**31 - 1]), min_size=size,
                       max_size=size)
    with np.errstate(all='ignore'): got, want = (np.array(data.draw(numbers)).astype(dtype) for _ in range(2))
    tol = output_tolerance(want, Tolerance(*tolerance, ''))
    r, ratio = compare(got, want, tol)
    said, wanted = by_numpy(got, want, tol)
    first = None if r.first_bad is None else r.first_bad[0]
    assert (r.max_abs, r.max_rel, r.mismatch_share, r.worst_index[0], r.nan_count, first) == said
    np.testing.assert_array_equal(ratio, np.minimum(wanted, MAX_ERROR_RATIO).astype(np.float32))


@pytest.mark.parametrize('shape', [(1,), (7,), (129,), (65537,), (300, 1000), (3, 5, 70_001), (4096, 129), (0, 4)])
@pytest.mark.parametrize('dtype', ['float32', 'float64', 'int32', 'bool'])
def test_the_mean_square_is_numpys_to_the_last_digit(shape, dtype):
    x = (np.random.default_rng(1).standard_normal(shape) * 3).astype(dtype)
    with np.errstate(all='ignore'), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for y in (x, x.T, x[..., ::2]):
            assert repr(mean_square(y)) == repr(float(np.mean(np.square(y, dtype=np.float64))))


def test_a_program_cannot_write_what_it_is_given(monkeypatch):
    "An executor at fault is found out when it writes, not when somebody compares."
    from kernel_lab.nki.executor import vectorized
    def faulty(program, *arrays, **options):
        arrays[0][...] = 0
        return arrays
    task = get_task('softmax')
    monkeypatch.setattr(vectorized, 'execute', faulty)
    with pytest.raises(ValueError, match='read-only'): verify(program_of(task, 'small'), task, 'small', seeds=[1])


@pytest.mark.slow
def test_specs_of_a_large_workload_are_those_of_its_draw():
    for task in TASKS.values():
        for w in task.workloads: assert specs_of(task, w) == tuple(map(spec_of, task.draw(w, 0).values())), task.name


def test_a_verification_of_an_earlier_lab_is_read():
    told = verify(program_of(get_task('softmax'),
                             get_task('softmax').workload('small')), get_task('softmax'), 'small', seeds=[1])
    d = json.loads(json.dumps(to_json_data(told)))
    for k in ('elements', 'guesses', 'notes', 'left_out'): del d[k]
    for r in d['seeds']: del r['draw']
    old = Verification.from_dict(d)
    assert old == told and isinstance(old.seeds[0], SeedReport)


def test_a_program_by_hand_that_writes_an_input_is_refused_though_it_is_right():
    task = get_task('softmax')
    d = json.loads(program_of(task, task.workload('small')).to_json())
    x = next(k for k, t in enumerate(d['tensors']) if t[4] == 'input')
    store = next(o for o in (d['body'][-1]['body'] if 'loop' in d['body'][-1] else d['body'])
                 if o['op'] == 'dma_copy' and d['tensors'][o['outs']['dst']['t']][4] == 'output')
    store['outs']['dst']['t'], d['outputs'] = x, [x]
    with pytest.raises(KernelError, match='writes into the input') as e:
        verify(Program.from_json(json.dumps(d)), task, 'small', seeds=[1])
    assert e.value.kind == 'input'


ALWAYS = [t.name for t in BY_HAND]


@pytest.mark.parametrize('name', [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in TASKS])
def test_first_kernels_on_every_admitted_draw(name):
    "In every dtype, on the smallest shapes: right, and in float32 no fewer bits than the task asks for."
    task = get_task(name)
    for w in (smallest_workload(task), *narrow_workloads(task, smallest_workload(task))):
        program, fair = program_of(task, w), [d for d, why in admissions(task, w).items() if not why]
        found = verify(program, task, w, seeds=[11], draws=fair)
        assert found.passed, str(found.worst)
        assert len(found.left_out) <= max(3, len(fair) // 2), found.left_out
        assert not precision_notes(program,
                                   w) or 'quant' in task.family or w.dtype != 'float32', precision_notes(program, w)


@pytest.mark.parametrize('refused', [['patchwork'], ['patchwork', 'patchwork without outliers']])
def test_parts_are_tried_where_the_patchwork_does_not_count(refused, monkeypatch):
    from kernel_lab.evaluate.verification import verify as module
    judged, real = [], module._changed_trial

    def without_patchwork(*args):
        judged.append(args[5])
        return (None, 'not today') if args[5].name in refused else real(*args)

    monkeypatch.setattr(module, '_changed_trial', without_patchwork)
    task = get_task('softmax')
    got = verify(program_of(task, 'small'), task, 'small', seeds=[1], draws=['patchwork'])
    assert got.passed and got.left_out == tuple((n, 'not today') for n in refused)
    rest = [d for d in judged if d.name not in refused]
    assert [r.draw for r in got.seeds] == ['', *(d.name for d in rest)]
    families = {d.change.family for d in judged[0].parts}
    alone = [d for d in rest if d in judged[0].parts]
    assert sum(d.change.family == 'outlier' for d in alone) == 1
    if len(refused) == 2: assert {d.change.family for d in alone} == families and len(rest) == len(families) > 1
    else: assert [d.name for d in rest if d not in alone] == ['patchwork without outliers'] and len(alone) == 1
