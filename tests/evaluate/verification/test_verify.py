"""What no page should show of a verification: every first kernel on every admitted draw, and that draws and guesses
hold for any input."""
import json

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
from kernel_lab.tasks.model.workload import Tolerance

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
