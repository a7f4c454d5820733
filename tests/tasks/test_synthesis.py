"""Made tasks: the same with any number of workers, on from where a run was cut, and never lost to a candidate that
kills its worker."""
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest

from kernel_lab.core.errors import UsageError
from kernel_lab.tasks.synthesis import synthesize as synthesis
from kernel_lab.tasks.synthesis.compose import Candidate, candidate
from kernel_lab.tasks.quality.checks import check_task
from kernel_lab.tasks.synthesis.synthesize import curate, funnel, judge_candidate, synthesize

COUNT = 16


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('made')
    return folder, list(synthesize(folder, COUNT, seed=9, jobs=0, known=frozenset()))


def test_as_many_fates_as_candidates_in_order(run):
    folder, fates = run
    assert [f.name for f in fates] == [candidate(k, 9).name for k in range(COUNT)]
    assert [json.loads(line)['name']
            for line in (folder / 'fates.jsonl').read_text().splitlines()] == [f.name for f in fates]
    assert sum(f.fate == 'passed' for f in fates) > COUNT // 4
    assert all(f.why for f in fates if f.fate != 'passed')


@pytest.mark.parametrize('count, jobs', [(6, 2), pytest.param(COUNT, 1, marks=pytest.mark.slow),
                                         pytest.param(COUNT, 2, marks=pytest.mark.slow)])
def test_the_number_of_workers_does_not_matter(run, tmp_path, count, jobs):
    made = synthesize(tmp_path, count, seed=9, jobs=jobs, known=frozenset())
    assert [f.fate for f in made] == [f.fate for f in run[1]][:count]


def test_a_run_goes_on_after_a_line_cut_in_the_middle(run, tmp_path):
    folder, fates = run
    (tmp_path / 'run.json').write_text((folder / 'run.json').read_text())
    lines = (folder / 'fates.jsonl').read_text().splitlines()
    (tmp_path / 'fates.jsonl').write_text('\n'.join([*lines[:12], lines[12][:25]]))
    assert list(synthesize(tmp_path, COUNT, seed=9, jobs=0, known=frozenset())) == fates


def test_a_longer_run_goes_on_from_a_shorter_one(run, tmp_path):
    short = list(synthesize(tmp_path, 2, seed=9, jobs=0, known=frozenset()))
    assert list(synthesize(tmp_path, 4, seed=9, jobs=0, known=frozenset()))[:2] == short == run[1][:2]


def test_a_candidate_whose_worker_dies_or_hangs_costs_itself_only(monkeypatch):
    monkeypatch.setattr(synthesis, 'WORKER_TIMEOUT_S', 2)
    kind = replace(synthesis.CHECKING_RUN, target=f'{__name__}:serve_fragile')
    with closing(synthesis.CandidateWorkers((9, 'trn2', frozenset()), kind)) as workers:
        found = list(synthesis._each(range(8), workers, 2))
    assert [f.name for f in found] == [candidate(k, 9).name for k in range(8)]
    assert [f.name for f in found if 'died' in f.why] == [candidate(3, 9).name]
    assert [f.name for f in found if 'took longer than 2 s' in f.why] == [candidate(5, 9).name]


def serve_fragile(channel):
    "A worker's target: passes every candidate, but dies of number 3 and hangs at number 5."
    messages = iter(channel)
    seed, _, _ = json.loads(next(messages))
    for number in map(int, messages):
        if number == 3: os.kill(os.getpid(), signal.SIGKILL)
        if number == 5: sleep(60)
        channel.send(json.dumps(synthesis.FilterResult(candidate(number, seed).name, 'passed').to_dict()))


def test_a_reference_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(synthesis, 'CANDIDATE_TIMEOUT_S', 1)
    slow = Candidate('slow', 'chain', ('relu',), 'float32', (('x', (4, 4), 'normal'),),
                     'def slow(x):\n    while True: x = x + 1\n')
    monkeypatch.setattr(synthesis, 'judge_candidate', lambda *_: judge_candidate(slow))
    found = synthesis._judge(0, 9, 'trn2', frozenset())
    assert found.fate == 'runs' and 'longer than 1 s' in found.why


def test_chosen_and_counted(run):
    folder, fates = run
    kept = curate(folder, fates, 5)
    rows = funnel(fates, len(kept))
    assert rows[0][1] == COUNT and len(kept) == 5 == rows[-1][1] - rows[-1][2]
    assert all(a[1] - a[2] == b[1] for a, b in zip(rows, rows[1:]))


def started(run, folder, text):
    "A folder of the same run with a file of fates of its own."
    (folder / 'run.json').write_text((run[0] / 'run.json').read_text())
    (folder / 'fates.jsonl').write_text(text)
    return folder / 'fates.jsonl'


@pytest.mark.parametrize(
    'bad',
    [
        '',
        '{"fate": 1',
        'null',
        '[]',
        '{"name": "made_9_00000"}',
        '\x00\xff',
        '{"name": "x", "fate": "passed", "extra": 3}',
        '{"name": ["x"], "fate": "passed"}',
    ],
)
def test_a_spoiled_file_of_fates_is_mended(run, tmp_path, bad):
    started(run, tmp_path, bad)
    assert [f.fate for f in synthesize(tmp_path, 2, seed=9, jobs=0, known=frozenset())] == [f.fate for f in run[1][:2]]


def test_a_run_of_fewer_takes_no_line_away(run, tmp_path):
    text = (run[0] / 'fates.jsonl').read_text()
    path = started(run, tmp_path, text)
    assert list(synthesize(tmp_path, 3, seed=9, jobs=0, known=frozenset())) == run[1][:3]
    assert path.read_text() == text


def test_a_run_cut_short_has_every_line_that_it_yielded(run, tmp_path):
    steps = synthesize(tmp_path, COUNT, seed=9, jobs=0, known=frozenset())
    seen = [next(steps) for _ in range(3)]
    steps.close()
    assert [json.loads(line)['name']
            for line in (tmp_path / 'fates.jsonl').read_text().splitlines()] == [f.name for f in seen]


def test_broken_lines_are_passed_over_and_only_what_is_missing_is_added(run, tmp_path):
    lines = (run[0] / 'fates.jsonl').read_text().splitlines(True)
    path = started(run, tmp_path, ''.join([*lines[:2], 'no json\n', *lines[3:6], lines[6][:30]]))
    assert list(synthesize(tmp_path, 8, seed=9, jobs=0, known=frozenset())) == run[1][:8]
    assert path.read_text() == ''.join([*lines[:2], 'no json\n', *lines[3:6], lines[2], *lines[6:8]])


def test_a_last_line_without_its_end_is_kept(run, tmp_path):
    text = (run[0] / 'fates.jsonl').read_text()
    path = started(run, tmp_path, text[:-1])
    assert list(synthesize(tmp_path, COUNT, seed=9, jobs=0, known=frozenset())) == run[1]
    assert path.read_text() == text


FULL = """
import resource, signal, sys
from kernel_lab.tasks.synthesis.synthesize import synthesize
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try: print(len(list(synthesize(sys.argv[1], 8, seed=9, jobs=0, known=frozenset()))))
except Exception as e: print(type(e).__name__, e)
"""


@pytest.mark.slow
def test_where_nothing_more_can_be_written_the_run_says_so_and_goes_on_later(run, tmp_path):
    lines = (run[0] / 'fates.jsonl').read_text().splitlines(True)
    room = len(''.join(lines[:4])) + 40
    said = subprocess.run([sys.executable, '-c', FULL, str(tmp_path),
                           str(room)], capture_output=True, text=True, timeout=120).stdout
    assert said.startswith('UsageError Cannot write') and (tmp_path / 'fates.jsonl').read_text().startswith(''.join(
        lines[:4]))
    assert list(synthesize(tmp_path, 8, seed=9, jobs=0, known=frozenset())) == run[1][:8]
    assert (tmp_path / 'fates.jsonl').read_text() == ''.join(lines[:8])


KILLED = """
import sys
from kernel_lab.tasks.synthesis.synthesize import synthesize
for fate in synthesize(sys.argv[1], 400, seed=9, jobs=1, known=frozenset()): print(fate.name, flush=True)
"""


def children(pid): return [int(p) for p in Path(f'/proc/{pid}/task/{pid}/children').read_text().split()]


def runs(pid):
    return Path(f'/proc/{pid}/stat').exists() and Path(f'/proc/{pid}/stat').read_text().rpartition(
        ')')[2].split()[0] != 'Z'


@pytest.mark.skipif(not Path('/proc/self/task').exists(), reason='looks for processes in /proc')
def test_a_run_that_is_killed_leaves_every_line_and_no_worker(run, tmp_path):
    killed = subprocess.Popen([sys.executable, '-c', KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    seen, workers = [killed.stdout.readline().strip() for _ in range(2)], children(killed.pid)
    killed.kill()
    killed.wait()
    killed.stdout.close()
    names = [json.loads(line)['name'] for line in (tmp_path / 'fates.jsonl').read_text().splitlines()]
    assert names[:2] == seen == [f.name for f in run[1][:2]] and workers
    end = monotonic() + 20
    while any(map(runs, workers)) and monotonic() < end: sleep(0.2)
    assert not any(map(runs, workers))
    assert list(synthesize(tmp_path, len(names), seed=9, jobs=0, known=frozenset()))[:COUNT] == run[1][:len(names)]


def test_two_runs_do_not_write_into_one_folder(run, tmp_path):
    first = synthesize(tmp_path, 4, seed=9, jobs=0, known=frozenset())
    next(first)
    with pytest.raises(UsageError, match='Another run writes'):
        next(synthesize(tmp_path, 4, seed=9, jobs=0, known=frozenset()))
    first.close()


def test_a_task_that_came_into_the_suite_later_is_turned_down(run, tmp_path):
    fate = next(f for f in run[1] if f.fate == 'passed')
    started(run, tmp_path, (run[0] / 'fates.jsonl').read_text())
    again = {f.name: f for f in synthesize(tmp_path, COUNT, seed=9, jobs=0, known=frozenset([fate.likeness]))}
    assert again[fate.name].fate == 'listed'


def test_the_suite_is_listed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesis, 'suite_likenesses', lambda tasks=None: frozenset(['softmax(in0)']))
    assert synthesis.known_likenesses(tmp_path) == {'softmax(in0)'}
    monkeypatch.setattr(synthesis, 'suite_likenesses', None)
    assert synthesis.known_likenesses(tmp_path) == {'softmax(in0)'}


MADE = [('float32', 'x.exp() * w', True), ('bfloat16', 'x.exp() * w', True), ('float8_e4m3', 'x.exp() * w', True),
        ('bfloat16', 'x.exp() * w + 1e-3 * w.sin()', False), ('bfloat16', '(x.exp() + 4e-3) * w', False),
        ('float8_e4m3', '(x.exp() + 9).abs() * w', False), ('bfloat16', '100 + x.exp() * w', False),
        ('bfloat16', 'x.exp() + 0 * w', False)]


@pytest.mark.parametrize('dtype, text, good', MADE)
def test_the_gate_judges_in_the_dtype_of_the_task(dtype, text, good):
    c = Candidate('made', 'chain', ('exp',), dtype, (('x', (64, 96), 'normal'), ('w', (96,), 'gain')),
                  f'def made(x, w):\n    return {text}\n')
    found = check_task(c.task())
    assert found.passed == good, str(found)
    assert found['tolerance'].passed and (found['low precision'].passed is None) == (dtype != 'float32')


def test_a_tolerance_that_is_wide_for_its_dtype_is_seen():
    for dtype in ('float32', 'bfloat16'):
        task = Candidate('made', 'chain', ('exp',), dtype, (('x', (64, 96), 'normal'),),
                         'def made(x):\n    return x.exp()\n').task()
        assert not check_task(replace(task, exponent=4e3))['tolerance'].passed


@pytest.mark.parametrize('number', range(40))
def test_candidates_are_drawn_as_they_run(number):
    c = candidate(number, 9)
    task = c.task()
    assert all(w.size for w in task.expected(task.draw()))


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / 'file').write_text('x')
    with pytest.raises(UsageError, match='Cannot use the folder'):
        list(synthesize(tmp_path / 'file', 4, jobs=0, known=frozenset()))
    (tmp_path / 'run.json').write_text('no json')
    with pytest.raises(UsageError, match='Cannot use the folder'):
        list(synthesize(tmp_path, 4, jobs=0, known=frozenset()))


@pytest.mark.slow
@pytest.mark.parametrize('number', (2, 7, 8))
def test_a_fixed_search_finds_the_same_again(number):
    "To the last move, also in another program of the same text."
    from kernel_lab.nki import ArraySpec
    from kernel_lab.nki.lang.trace import trace_source
    from kernel_lab.tasks.codegen.lower import lower_unfused
    from kernel_lab.tasks.codegen.precision import kernel_graph
    from kernel_lab.tasks.synthesis.compose import TRAINING
    from kernel_lab.tasks.synthesis.headroom import headroom_of
    task = candidate(number, recipe=TRAINING).task()
    source, specs = lower_unfused(kernel_graph(task)), [ArraySpec(v.shape, v.dtype.name) for v in task.draw().values()]
    one, other = (headroom_of(trace_source(source, None, specs, 'trn2'))[0] for _ in range(2))
    assert one == other and one.gain >= 1
