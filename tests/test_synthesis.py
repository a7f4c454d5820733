"""Made tasks: the same with any number of workers, on from where a run was cut, and never lost to a candidate that kills its worker."""
import json
import os
import signal

import pytest

from kernel_lab.errors import UsageError
from kernel_lab.evaluate import filters, synthesis
from kernel_lab.tasks.compose import Candidate, candidate
from kernel_lab.evaluate.filters import judged
from kernel_lab.evaluate.synthesis import curate, funnel, synthesize

COUNT = 16


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('made')
    return folder, list(synthesize(folder, COUNT, seed=9, jobs=2))


def test_as_many_fates_as_candidates_in_order(run):
    folder, fates = run
    assert [f.name for f in fates] == [candidate(k, 9).name for k in range(COUNT)]
    assert [json.loads(line)['name'] for line in (folder / 'fates.jsonl').read_text().splitlines()] == [f.name for f in fates]
    assert sum(f.fate == 'passed' for f in fates) > COUNT // 4
    assert all(f.why for f in fates if f.fate != 'passed')


def test_the_number_of_workers_does_not_matter(run, tmp_path):
    assert [f.fate for f in synthesize(tmp_path, COUNT, seed=9, jobs=0)] == [f.fate for f in run[1]]


def test_a_run_goes_on_after_a_line_cut_in_the_middle(run, tmp_path):
    folder, fates = run
    (tmp_path / 'run.json').write_text((folder / 'run.json').read_text())
    lines = (folder / 'fates.jsonl').read_text().splitlines()
    (tmp_path / 'fates.jsonl').write_text('\n'.join([*lines[:12], lines[12][:25]]))
    assert list(synthesize(tmp_path, COUNT, seed=9, jobs=0)) == fates


def test_a_longer_run_goes_on_from_a_shorter_one(run, tmp_path):
    short = list(synthesize(tmp_path, 5, seed=9, jobs=0))
    assert list(synthesize(tmp_path, 8, seed=9, jobs=0))[:5] == short == run[1][:5]


def test_a_candidate_that_kills_its_worker_costs_itself_only(monkeypatch, run):
    chunks = [[0, 1], [2, 3], [4, 5]]
    about = (9, 'trn2', frozenset())
    monkeypatch.setattr(synthesis, '_judge', _dies_at_three)
    found, left = [], chunks
    while left:
        steps = synthesis._some(left, about, 1)
        try:
            while True: found.append(next(steps))
        except StopIteration as e: left = e.value
    assert [f.name for f in found] == [candidate(k, 9).name for k in range(6)]
    assert [f.name for f in found if 'died' in f.why] == [candidate(3, 9).name]


def _dies_at_three(numbers, seed, chip, known):
    if 3 in numbers: os.kill(os.getpid(), signal.SIGKILL)
    return [filters.Fate(candidate(n, seed).name, 'passed') for n in numbers]


def test_a_reference_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(synthesis, 'PATIENCE', 1)
    monkeypatch.setattr(synthesis, 'judged', lambda *_: judged(Candidate('slow', 'chain', ('relu',), 'float32', (('x', (4, 4), 'normal'),), 'def slow(x):\n    while True: x = x + 1\n')))
    found, = synthesis._judge([0], 9, 'trn2', frozenset())
    assert found.fate == 'runs' and 'longer than 1 s' in found.why


def test_chosen_and_counted(run):
    folder, fates = run
    kept = curate(folder, fates, 5)
    rows = funnel(fates, len(kept))
    assert rows[0][1] == COUNT and len(kept) == 5 == rows[-1][1] - rows[-1][2]
    assert all(a[1] - a[2] == b[1] for a, b in zip(rows, rows[1:]))


@pytest.mark.parametrize('bad', ['', '{"fate": 1', 'null', '[]', '{"name": "made_9_00000"}', '\x00\xff', '{"name": "x", "fate": "passed", "extra": 3}'])
def test_a_spoiled_file_of_fates_is_told_or_mended(run, tmp_path, bad):
    (tmp_path / 'run.json').write_text((run[0] / 'run.json').read_text())
    (tmp_path / 'fates.jsonl').write_text(bad)
    assert [f.fate for f in synthesize(tmp_path, 4, seed=9, jobs=0)] == [f.fate for f in run[1][:4]]


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / 'file').write_text('x')
    with pytest.raises(UsageError, match='Cannot use the folder'): list(synthesize(tmp_path / 'file', 4, jobs=0))
    (tmp_path / 'run.json').write_text('no json')
    with pytest.raises(UsageError, match='Cannot use the folder'): list(synthesize(tmp_path, 4, jobs=0))
