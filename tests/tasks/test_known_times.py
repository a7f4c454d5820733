"""The times that are kept for the suite are those that the lab works out today."""
from dataclasses import asdict
import csv
from importlib import import_module

import pytest

from kernel_lab.evaluate.survey.time_table import task_times
from kernel_lab.tasks.baselines.eager import EAGER_FILE, eager_row
from kernel_lab.tasks.baselines.known_times import TIMES_FILE, known_task_times, read_times
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.timing import timeline
from kernel_lab.nki.timing.timeline import CLOCK
from kernel_lab.tasks.suite.registry import TASKS

known_times, eager_page = (import_module(f'kernel_lab.tasks.baselines.{m}') for m in ('known_times', 'eager'))

SOME = ('relu', 'softmax', 'channels_first', 'embedding', 'add_rmsnorm', 'linear_bias_gelu', 'adamw_step')


def test_every_task_of_the_suite_has_a_row():
    rows = {r.task for r in read_times(TIMES_FILE) if r.chip == 'trn2'}
    assert rows == set(TASKS)


def same(task):
    old, new = asdict(known_task_times(task)), asdict(task_times(task))
    for name, value in new.items():
        assert old[name] == (pytest.approx(value, rel=1e-3, abs=0.01)
                             if isinstance(value, float) else value), (task.name, name)


@pytest.mark.parametrize('name', SOME)
def test_a_kept_row_is_what_comes_out_today(name): same(TASKS[name])


@pytest.mark.slow
@pytest.mark.parametrize('name', [n for n in TASKS if n not in SOME])
def test_every_kept_row_is_what_comes_out_today(name): same(TASKS[name])


def test_no_kernel_beats_its_bound_and_the_best_is_the_least():
    for r in read_times(TIMES_FILE):
        assert r.best_us is None or (r.bound_us * 0.999 <= r.best_us <= r.first_us), r


def kept_eager_rows():
    with open(EAGER_FILE, newline='') as file: return list(csv.DictReader(file))


def same_eager(kept):
    for chip, us in eager_row(kept['task'], kept['workload']).items():
        if chip in CHIPS:
            assert (float(kept[chip]) if kept[chip] else None) == (us and pytest.approx(us, rel=1e-9)), (kept, chip)


def test_kept_eager_times_are_those_of_today():
    rows = kept_eager_rows()
    assert [(r['task'], r['workload']) for r in rows] == [(t.name, w.name) for t in TASKS.values()
                                                          for w in t.workloads]
    for row in rows[::240]: same_eager(row)


@pytest.mark.slow
def test_every_kept_eager_time_is_that_of_today():
    for row in kept_eager_rows(): same_eager(row)


def test_kept_times_of_another_clock_are_not_used(monkeypatch):
    task = TASKS['softmax']
    w = task.workload('full')
    kept = known_task_times(task, w, 'trn2')
    assert kept.clock == CLOCK and {r.clock for r in read_times(TIMES_FILE)} == {CLOCK}
    assert {r['clock'] for r in kept_eager_rows()} == {CLOCK}
    for module in (timeline, eager_page): monkeypatch.setattr(module, 'CLOCK', 'lab-0')
    for cached in (known_times._known, eager_page._stored, eager_page.eager_us): cached.cache_clear()
    try:
        assert known_task_times(task, w, 'trn2') is None and not eager_page._stored()
        assert eager_page.eager_us(task, w, 'trn2') == pytest.approx(kept.eager_us, rel=1e-4)     # worked out anew
    finally:
        for cached in (known_times._known, eager_page._stored, eager_page.eager_us): cached.cache_clear()
