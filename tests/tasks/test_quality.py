"""Bad tasks, each with the check that must catch it; the tasks of the suite, each against seven impostors."""
import json
import sys

import numpy as np
import pytest
import torch

from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.survey.quality_survey import (FIRST_KERNEL, TaskExaminer, quality_from_row, survey_quality,
    survey_lines)
from kernel_lab.tasks.quality.checks import (CHECKS, IMPOSTORS, QUARANTINE, TaskCase, Quality, smallest_workload,
    check_task)
from kernel_lab.tasks.suite.registry import BY_HAND, TASK_FAMILIES, TASKS
from kernel_lab.tasks.model.task import Task
from kernel_lab.tasks.model.workload import Tolerance, Workload, max_error_ratio

SMALL = Workload('small', {'x': (16, 32)})


def task(reference, draw=None, shapes=None, **kw):
    "A task that nobody has tried yet: `task_from` would refuse some of these at once."
    def normal(workload, rng): return {k: rng.standard_normal(s, np.float32) for k, s in workload.shapes.items()}

    return Task('t', 1, 'mine', 'A test.', reference, draw or normal,
                (Workload('small', shapes or dict(SMALL.shapes)),), **kw)


XW = {'x': (16, 32), 'w': (32,)}
CALLS = iter(range(10_000))


def softmax_by_hand(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


BAD = [('runs', task(lambda x: [[1.0]])), ('runs', task(lambda x: x @ x)), ('runs', task(lambda x: ())),
       ('runs', task(lambda x: x.double())), ('runs', task(lambda x: x > 0)), ('runs', task(lambda x, w: x)),
       ('runs', task(lambda x: x, lambda w, rng: {'x': rng.standard_normal((3, 3))})),
       ('deterministic', task(lambda x: x + torch.rand(()))), ('deterministic', task(lambda x: x * (next(CALLS) + 1))),
       ('finite', task(lambda x: x.log())), ('finite', task(lambda x: x / 0)),
       ('finite', task(lambda x: (100 * x.abs()).exp())), ('inputs kept', task(lambda x: x.mul_(2))),
       ('listed', task(lambda x: x * 2 if x.sum() > 0 else x)), ('precise', task(lambda x: x.exp() + 1e6 - 1e6)),
       ('precise', task(lambda x: x @ torch.arange(32, dtype=torch.float32).outer(torch.ones(4)))),
       ('tolerance', task(lambda x: x.exp(), exponent=1e4)),
       ('inputs vary',
        task(lambda x, w: x.exp() * w, lambda s, rng: {'x': rng.standard_normal((16, 32)), 'w': np.ones(32)}, XW)),
       ('inputs vary',
        task(lambda x, w: x.exp() + w, lambda s, rng: {'x': rng.standard_normal((16, 32)), 'w': np.zeros(32)}, XW)),
       ('inputs vary', task(lambda x: x.exp(), lambda s, rng: {'x': 3 + 1e-3 * rng.standard_normal((16, 32))})),
       ('seeds differ', task(lambda x: x.exp(), lambda s, rng: {'x': np.sin(np.arange(512.)).reshape(16, 32)})),
       ('outputs vary', task(lambda x: x.softmax(-1).sum(-1))),
       ('outputs vary', task(lambda x: (x.softmax(-1) - 2).relu())),
       ('outputs vary', task(lambda x: x.sigmoid().mean() * 1e-7 + 3)),
       ('every input matters', task(lambda x, w: x.exp() + 0 * w, shapes=XW)),
       ('every input matters', task(lambda x, w: x.exp() + 1e-9 * w, shapes=XW)),
       ('every input matters', task(lambda x, w: (x + w.sum()).softmax(-1), shapes=XW)),
       ('zeros', task(lambda x: x.relu() * (x > 9))), ('constant', task(lambda x: 5 + 1e-9 * x)),
       ('constant', task(lambda x: x.softmax(-1).sum(-1, keepdim=True) + 1)),
       ('an input', task(lambda x, w: x + 1e-9 * w.exp().sum(), shapes=XW)),
       ('an input', task(lambda x: x.clone()[:8])), ('an input', task(lambda x: x.abs().sqrt().square() * x.sign())),
       ('another draw', task(lambda x: x.exp() * 1e-9 + torch.arange(32.))),
       ('wrong places', task(lambda x: x.exp().sum() + 1e-3 * x)),
       ('low precision', task(lambda x: x.exp(), exponent=4e3)),
       ('half the work', task(lambda x: x.exp().cumsum(-1).abs())),
       ('half the work', task(lambda x: x.exp().cumsum(-1) * 1.0)),
       ('removable work', task(lambda x: (x.softmax(-1) + 1).relu().log())),
       ('removable work', task(lambda x: torch.nn.functional.layer_norm(x + 3.0, (32,)))),
       ('removable work', task(softmax_by_hand)), ('removable work', task(lambda x: x.exp().clamp(max=1e9).sum(-1))),
       ('removable work', task(lambda x: x.sigmoid().square().abs().cumsum(0))),
       ('naive ways', task(lambda x: x.softmax(-1))), ('naive ways', task(lambda x: x.logsumexp(-1))),
       ('naive ways', task(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x))),]


@pytest.mark.parametrize('name, bad', BAD, ids=[f'{name} {k}' for k, (name, _) in enumerate(BAD)])
def test_a_bad_task_is_caught_by_its_check(name, bad):
    found = check_task(bad)
    assert name in [f.check for f in found.failures], str(found)
    assert not found.passed
    assert found[name].seen and found[name].says


def test_a_good_task_passes_every_check():
    good = task(lambda x, w: (x * w).exp().cumsum(-1), shapes=XW)
    assert check_task(good).passed, str(check_task(good))


# the others are slow together
ONE_OF_EACH = {*(t.name for t in BY_HAND), *(next(iter(f.tasks)) for f in TASK_FAMILIES)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', [n if n in ONE_OF_EACH else pytest.param(n, marks=pytest.mark.slow) for n in TASKS])
def test_no_impostor_is_accepted_for_a_task_of_the_suite(name):
    found = check_task(TASKS[name],
                       checks=[c for c in CHECKS if c.name in ('runs', 'deterministic', 'finite', *IMPOSTORS)])
    assert found.passed or name in QUARANTINE, str(found)


LONGEST = {'llama_layer', 'mamba_block', 'resnet_bottleneck', 'multi_query_decode'}


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', [n if n in ONE_OF_EACH - LONGEST else pytest.param(n, marks=pytest.mark.slow)
                                  for n in TASKS])
def test_the_first_kernel_verifies_in_every_dtype_of_its_task(name):
    found = check_task(TASKS[name], checks=[FIRST_KERNEL])
    assert found.passed, str(found)


def test_quarantine_is_short_and_says_why():
    assert len(QUARANTINE) <= 5 and set(QUARANTINE) <= set(TASKS)
    assert all(len(reason) > 20 for reason in QUARANTINE.values())


def test_guards_are_notes():
    guarded = task(lambda x: x.exp() / (x.exp().sum(-1, keepdim=True) + 1e-6))
    found = check_task(guarded)
    assert [f.check for f in found.notes] == ['guards'] and found['guards'] not in found.failures


def test_distance():
    tol, want = Tolerance(0.1, 0.1, 'a test'), np.ones((2, 3), np.float32)
    assert max_error_ratio([want], [want], tol) == 0
    assert max_error_ratio([want * 1.1], [want], tol) == pytest.approx(0.5)
    assert max_error_ratio([want.T], [want], tol) == max_error_ratio([], [want], tol) == np.inf
    assert max_error_ratio([want * np.nan], [want], tol) == np.inf
    assert max_error_ratio([np.array([7])], [np.array([8])], Tolerance(10, 10, 'wide')) > 1


def test_whole_numbers_pass():
    found = check_task(task(lambda x: x.exp().cumsum(-1).argsort(-1, descending=True)))
    assert found['outputs vary'].passed and found['precise'].passed


def test_a_quality_survives_json():
    found = check_task(task(lambda x: x.log()))
    assert Quality.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_the_smallest_workload_in_float32_is_asked():
    works = Workload('full', {'x': (64, 64)}), Workload('bf16', {'x': (8, 8)},
                                                        'bfloat16'), Workload('small', {'x': (16, 16)})
    assert smallest_workload(Task('t', 1, 'f', 'd', None, None, works)).name == 'small'


def test_other_dtypes_are_asked_too():
    works = Workload('small', {'x': (16, 32)}), Workload('bf16', {'x': (16, 32)}, 'bfloat16')
    def draw(workload, rng): return {'x': rng.standard_normal(workload.shapes['x'])}
    fine = Task('t', 1, 'f', 'd', lambda x: (3 + 1e-3 * x).exp(), draw, works)
    found = check_task(fine)
    assert 'bfloat16' in found['other dtypes'].seen and found['other dtypes'].failed and found['constant'].passed


def test_a_case_is_as_strict_as_a_verification():
    from kernel_lab.evaluate.verification.verify import compare
    from kernel_lab.tasks.suite.handwritten import softmax
    case = TaskCase(softmax, softmax.workload('small'))
    want, = case.want()
    for share in (0.99, 1.01):
        got = want + share * (case.tolerance.atol + case.tolerance.rtol * abs(want))
        assert compare(got, want, case.tolerance)[0].passed == (case.distance([got]) <= 1) == (share < 1)


SOMEBODY = """
import os, time
from kernel_lab.tasks.model.task import Task
from kernel_lab.tasks.model.workload import Workload
def made(name, f): return Task(name, 1, 'mine', name, f, lambda w, rng: {'x': rng.standard_normal(w.shapes['x'])}, (Workload('small', {'x': (128, 64)}),))
def hangs(x):
    while True: time.sleep(1)
def prints(x):
    print('{"task": "another"}')
    return x.exp().cumsum(-1)
TASKS = {'ends': lambda x: os._exit(3), 'hangs': hangs, 'prints': prints, 'exits': lambda x: exit(1), 'good': lambda x: x.exp().cumsum(-1)}
def get(name): return made(name, TASKS[name])
"""


@pytest.fixture
def somebody(tmp_path, monkeypatch):
    (tmp_path / 'somebody.py').write_text(SOMEBODY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield 'somebody:get'
    sys.modules.pop('somebody', None)


@pytest.mark.slow
def test_a_task_that_hangs_or_ends_the_process_costs_its_own_row(somebody):
    worker = TaskExaminer(somebody)
    rows = {
        k: quality_from_row(worker.ask(k, s))
        for k, s in (('exits', 100), ('good', 100), ('hangs', 2), ('ends', 100), ('prints', 100))}
    worker.close()
    assert {k: bool(r.reason)
            for k, r in rows.items()} == {'exits': False, 'good': False, 'hangs': True, 'ends': True, 'prints': False}
    assert 'SystemExit' in rows['exits'].quality.failures[0].seen
    assert rows['good'].task == 'good' and rows['prints'].task == 'prints'
    # none of them has a first kernel
    assert list(survey_lines(list(rows.values())))[0].startswith('5 tasks: 0 good, 5 bad')


@pytest.mark.slow
def test_what_was_found_is_kept_until_the_task_changes(somebody, tmp_path):
    first, again = ([*survey_quality(['good'], somebody, jobs=1, cache=tmp_path / 'kept')] for _ in range(2))
    assert (first[0].kept, again[0].kept) == (False, True) and first[0].quality == again[0].quality
    (tmp_path / 'somebody.py').write_text(SOMEBODY.replace('cumsum(-1)', 'cumsum(0)'))
    assert not next(survey_quality(['good'], somebody, jobs=1, cache=tmp_path / 'kept')).kept


def test_a_loader_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match='load tasks with'): next(survey_quality(['softmax'], 'kernel_lab.nowhere:get'))
