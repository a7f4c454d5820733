"""Runs for training: a line holds verdict and record, so that no cut, kill or full disk loses or doubles a row."""
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from time import sleep

import pytest

from kernel_lab.core.errors import UsageError
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.timeline import CLOCK
from kernel_lab.tasks.baselines.known_times import TaskTimes
from kernel_lab.tasks.codegen.lower import lower_unfused
from kernel_lab.tasks.codegen.precision import kernel_graph
from kernel_lab.tasks.synthesis.compose import CHECKING, TRAINING, candidate
from kernel_lab.tasks.synthesis.headroom import CONSTANT_RULES, Headroom, fixed_search, ruled
from kernel_lab.tasks.synthesis.synthesize import run_candidates
from kernel_lab.tasks.synthesis.training_records import (TRAINING_RUN, TrainingRecord, TrainingResult, best_rule,
    training_records, training_results, training_summary, training_tasks)


def check_cheaply(case):
    "A filter that rejects every third candidate and makes a record of invented times."
    number, w = int(case.candidate.name[-5:]), case.task.workloads[0]
    if number % 3 == 2: return 'the search finds 1.00 ×'
    times = TaskTimes(case.task.name, 2, 'made', w.name, case.chip, 10.0, 'DMA', None, 0, 'unknown: too long',
                      60.0 + number, 30.0, 'search', clock=CLOCK)
    facts = {'workloads': {w.name: {'flops': 0, 'scale': 1.0, 'bytes': 1, 'outputs': [], 'first': ''}}, 'draws': {}}
    case.record = TrainingRecord(case.candidate, 'text', times, {'a': 35.0, 'b': None}, [], facts).to_dict()


CHEAP = replace(TRAINING_RUN, filters=(('headroom', check_cheaply),))


def run(folder, count): return list(run_candidates(folder, count, CHEAP, 4, 'trn2', 0, frozenset()))


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp('training')
    return folder, run(folder, 8)


def names(folder): return [json.loads(line)['name'] for line in (folder / 'training.jsonl').read_text().splitlines()]


def copied(made, folder, text):
    (folder / 'run.json').write_text((made[0] / 'run.json').read_text())
    (folder / 'training.jsonl').write_text(text)
    return folder


def test_a_run_is_read_back_as_tasks(made):
    folder, results = made
    assert [r.name for r in results] == [candidate(k, 4, TRAINING).name for k in range(8)] == names(folder)
    assert training_results(folder) == results
    records = training_records(folder)
    assert [r.candidate.name for r in records] == [r.name for r in results if r.fate == 'passed']
    for record, task in zip(records, training_tasks(folder).values()):
        assert task.first().source == 'text' and task.min_bytes() == 1
        assert TrainingRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize('cut', [0, 1, 40, -1, -30])
def test_a_run_cut_in_a_line_goes_on_without_losing_or_doubling_a_row(made, tmp_path, cut):
    lines = (made[0] / 'training.jsonl').read_text().splitlines(True)
    copied(made, tmp_path, ''.join([*lines[:5], lines[5][:cut]]))
    assert len(training_results(tmp_path)) == (6 if cut == -1 else 5)            # only the end of the line is missing
    assert run(tmp_path, 8) == made[1] and names(tmp_path) == names(made[0])


def test_doubled_and_spoiled_lines_are_passed_over(made, tmp_path):
    lines = (made[0] / 'training.jsonl').read_text().splitlines(True)
    spoiled = json.dumps(json.loads(lines[3]) | {'fate': 'no such filter'}) + '\n'
    copied(made, tmp_path, ''.join([lines[0], lines[0], 'no json\n', '[]\n', *lines[1:3], spoiled, lines[4]]))
    assert [r.name for r in training_results(tmp_path)] == [r.name for r in made[1] if r.name[-1] in '0124']
    assert run(tmp_path, 8) == made[1]
    assert sorted(training_results(tmp_path), key=lambda r: r.name) == made[1]


@pytest.mark.parametrize('key, value, says', [('clock', 'lab-1', 'of the clock lab-1'), ('for', None, 'not for training')])
def test_records_of_another_clock_or_kind_are_refused(made, tmp_path, key, value, says):
    copied(made, tmp_path, (made[0] / 'training.jsonl').read_text())
    about = json.loads((tmp_path / 'run.json').read_text())
    (tmp_path / 'run.json').write_text(json.dumps(about | {key: value}))
    with pytest.raises(UsageError, match=says): training_records(tmp_path)
    with pytest.raises(UsageError, match='holds another run'): run(tmp_path, 1)


@pytest.mark.parametrize('change', [{'schema': 2}, {'times': {}}, {'moves': [3]}, {'candidate': {'name': 'x'}}])
def test_a_record_that_is_none_is_named(made, tmp_path, change):
    result = next(r for r in made[1] if r.record)
    copied(made, tmp_path, json.dumps(replace(result, record=result.record | change).to_dict()) + '\n')
    with pytest.raises(UsageError, match='record'): training_records(tmp_path)


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from test_training_records import CHEAP, run_candidates
for r in run_candidates(sys.argv[1], 400, CHEAP, 4, 'trn2', 0, frozenset()): print(r.name, flush=True)
"""


@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_goes_on_where_it_was(made, tmp_path, how):
    child = subprocess.Popen([sys.executable, '-c', KILLED, str(tmp_path), os.path.dirname(__file__)],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    seen = [child.stdout.readline().strip() for _ in range(2)]
    sleep(0.05)
    child.send_signal(how)
    child.communicate()
    there = names(tmp_path)
    assert there[:2] == seen and len(set(there)) == len(there)
    count = max(8, len(there))
    assert run(tmp_path, count)[:8] == made[1] and len(names(tmp_path)) == len(set(names(tmp_path))) == count


FULL = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
from test_training_records import run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try: run(sys.argv[1], 8)
except Exception as e: print(type(e).__name__, e)
"""


def test_a_full_disk_ends_a_run_with_a_sentence_and_it_goes_on_later(made, tmp_path):
    lines = (made[0] / 'training.jsonl').read_text().splitlines(True)
    room = len(''.join(lines[:4]).encode()) + 40
    said = subprocess.run([sys.executable, '-c', FULL, str(tmp_path), os.path.dirname(__file__), str(room)],
                          capture_output=True, text=True, timeout=120).stdout
    assert said.startswith('UsageError Cannot write') and len(training_results(tmp_path)) >= 3
    assert run(tmp_path, 8) == made[1] and names(tmp_path) == names(made[0])


def test_shares_and_costs():
    room = lambda best, **rules: Headroom(56.0, best, 16.0, rules)
    assert room(36.0, a=41.0, b=36.0).lead() == 1.0 and room(36.0, a=41.0, b=36.0).lead('a') == 1.25
    assert room(36.0, a=None).lead('a') == 2.0 and room(36.0, a=96.0).lead('a') == 4.0
    assert training_summary([])['kept'] == 0
    assert training_summary([TrainingResult('x', 'runs', cpu_s=2.0)])['over_rule'] is None


def test_the_best_constant_rule_is_that_of_all_tasks_together(made):
    records = training_records(made[0])
    assert best_rule(records) == 'a'                            # b is never there: the first kernel stays
    found = training_summary([replace(r, cpu_s=2.0) for r in made[1]])
    assert found['kept'] == len(records) and found['over_rule'] == found['over_each'] == 1.0
    assert found['gain'] > 2 and found['cpu_a_task'] == 16 / len(records)


def test_drawing_for_checking_is_what_it_was():
    assert candidate(12, 9) == candidate(12, 9, CHECKING) != candidate(12, 9, TRAINING)
    drawn = [candidate(k, 0, TRAINING) for k in range(60)]
    assert all(len(c.steps) >= 3 and c.name.startswith('train_0_') for c in drawn)
    assert {c.pattern for c in drawn} == set(TRAINING.patterns)
    assert len({c.group for c in drawn}) >= 6                   # a stride through the catalogue, not its beginning


def program_of(number):
    "The first kernel of a candidate for training."
    c = candidate(number, 0, TRAINING)
    specs = [ArraySpec(v.shape, v.dtype.name) for v in c.task().draw().values()]
    return trace_source(lower_unfused(kernel_graph(c.task()), c.name), None, specs, 'trn2')


def searched():
    "Latency and moves that the fixed search finds for one first kernel, as JSON data."
    found = fixed_search(program_of(6))
    return json.dumps([found.latency_us, [str(m) for m in found.steps], found.candidates])


@pytest.mark.slow
def test_the_fixed_search_is_the_same_in_every_process():
    code = 'import sys; sys.path.insert(0, sys.argv[1]); from test_training_records import searched; print(searched())'
    said = subprocess.run([sys.executable, '-c', code, os.path.dirname(__file__)], capture_output=True, text=True,
                          env=os.environ | {'PYTHONHASHSEED': '7'}).stdout
    assert said.strip() == searched()


def test_rules_do_not_ask_for_the_time(monkeypatch):
    from kernel_lab.tasks.synthesis import headroom
    program = program_of(6)
    monkeypatch.setattr(headroom, 'schedule', None)
    assert ruled(program, CONSTANT_RULES['always fuse']).count <= program.count
