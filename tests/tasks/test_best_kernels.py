"""Kernels that are kept as the best of their tasks: what a file may hold, and that no time stands beside another clock's."""
import json
from dataclasses import asdict, replace
from importlib import import_module

import pytest

from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.verification.verify import verify
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing import timeline
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.baselines.best_kernels import (BEST_FILE, BestKernel, add_best, best_kernels, kept_kernels,
                                                     read_best, worth_keeping, write_best)
from kernel_lab.tasks.baselines.kept_facts import first_hash
from kernel_lab.tasks.baselines.known_times import known_task_times
from kernel_lab.tasks.suite.registry import TASKS

page = import_module('kernel_lab.tasks.baselines.best_kernels')
SOFTMAX = TASKS['softmax']
KEPT = read_best(BEST_FILE)


def sample(task='softmax', **other):
    given = dict(task=task, workload='full', chip='trn2', us=1.0, first_us=2.0, clock=timeline.CLOCK, maker='a person',
                 first=first_hash(TASKS[task], TASKS[task].workload('full')), recipe={'start': 'given'}, source='…')
    return BestKernel(**given | other)


@pytest.fixture
def keeping(monkeypatch, tmp_path):
    "A function: the lab keeps these kernels and no others."
    def keep(*rows):
        write_best(rows, tmp_path / 'kept.jsonl.xz')
        monkeypatch.setattr(page, 'BEST_FILE', tmp_path / 'kept.jsonl.xz')
        for cached in (page._lines, page._kept): cached.cache_clear()
    yield keep
    for cached in (page._lines, page._kept): cached.cache_clear()


def test_every_kept_kernel_is_of_the_suite_and_said_once():
    assert KEPT and all(b.task in TASKS and b.kind == 'simulated' and b.us <= b.first_us * 1.001 for b in KEPT)
    assert len({(b.task, b.workload, b.chip, b.maker) for b in KEPT}) == len(KEPT) == len(worth_keeping(KEPT))
    assert BEST_FILE.stat().st_size < 400_000


def test_the_known_times_have_the_best_kernel_of_their_clock_only(keeping, monkeypatch):
    keeping(sample(maker='of today'), sample(maker='slower', us=1e9, chip='trn1'))
    row = known_task_times(SOFTMAX)
    assert (row.best_us, row.best_by, row.speedup) == (1.0, 'of today', row.eager_us)
    for stale in (dict(clock='lab-0'), dict(first='another'), dict(chip='trn1'), dict(workload='small'), dict(us=1e9)):
        keeping(sample(**stale))
        assert known_task_times(SOFTMAX).best_by not in ('a person', 'of today'), stale
    keeping(sample(clock='lab-0'))
    assert [b.clock for b in kept_kernels(SOFTMAX)] == ['lab-0'] and best_kernels(SOFTMAX) == ()
    monkeypatch.setattr(timeline, 'CLOCK', 'lab-0')
    assert [b.us for b in best_kernels(SOFTMAX)] == [1.0]


def test_the_fastest_of_today_comes_first_and_one_a_maker_is_kept(keeping):
    rows = [sample(us=3.0), sample(us=2.5, maker='another'), sample(us=2.0), sample(us=0.5, clock='lab-0')]
    assert [b.us for b in worth_keeping(rows)] == [2.0, 2.5]
    keeping(*worth_keeping(rows))
    assert [b.us for b in best_kernels(SOFTMAX)] == [2.0, 2.5]
    assert best_kernels(replace(SOFTMAX, family='mine')) == ()


def test_a_search_that_was_killed_goes_on_in_its_file(tmp_path):
    path, whole = tmp_path / 'found.jsonl', json.dumps(asdict(sample()), ensure_ascii=False).encode() + b'\n'
    for cut in range(1, len(whole), 7):
        path.write_bytes(whole + whole[:cut])
        if cut < len(whole) - 1: assert read_best(path) == [sample()]
        add_best(sample(us=5.0), path)
        assert [b.us for b in read_best(path)] == [1.0, 5.0], cut


@pytest.mark.parametrize('text', ['{}\n', '[1]\n{}\n', 'no json\nx\n', json.dumps(asdict(sample()) | {'us2': 1}) + '\n'])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    (tmp_path / 'x.jsonl').write_text(text)
    with pytest.raises(UsageError, match='best kernel'): read_best(tmp_path / 'x.jsonl')
    (tmp_path / 'x.jsonl.xz').write_text(text)
    with pytest.raises(UsageError, match='Cannot read'): read_best(tmp_path / 'x.jsonl.xz')


@pytest.mark.slow
@pytest.mark.parametrize('best', KEPT, ids=lambda b: f'{b.task}-{b.maker}')
def test_a_kept_kernel_is_right(best):
    task = TASKS[best.task]
    w = task.workload(best.workload)
    assert verify(trace_source(best.source, None, specs_of(task, w), best.chip), task, w, [0]).passed
