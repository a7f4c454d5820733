"""A kernel whose numbers are right but were not worked for: nothing downstream pays for it, and everything says so."""
import json
from dataclasses import replace

import numpy as np
import pytest
from kernel_lab.agents.engine.loop import base_step
from kernel_lab.agents.systems.prompts import ask_text, history_text
from kernel_lab.agents.tools import ToolBench, use_tool
from kernel_lab.cli.evaluate import error_sentence, fastest_line, result_line, summary_lines
from kernel_lab.cli.render import evaluation_lines, step_cells, step_text
from kernel_lab.cli.runs import runs_line
from kernel_lab.core.errors import SimulatorError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.evaluation import Evaluation, GuardReport
from kernel_lab.evaluate.records.run import Run, Step
from kernel_lab.evaluate.records.verification import Status
from kernel_lab.evaluate.store.export import rows
from kernel_lab.evaluate.store.store import Store
from kernel_lab.figures.report import key_numbers, ledger_html, report_html
from kernel_lab.figures.speedup import speedup_figure, speedup_frame
from kernel_lab.nki.timing.timeline import CLOCK
from kernel_lab.panels.source_and_log import CompileLog, log_text
from kernel_lab.panels.step_control import chip_text
from kernel_lab.tasks.importers.flashinfer_export import trace_of
from kernel_lab.tasks.model.task import task_from
from kernel_lab.tasks.model.workload import Kernel

SOURCE = '''
import nki.isa as nisa
import nki.language as nl

def kernel(x):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    {}
    nisa.dma_copy(dst=out, src=tile)
    return out
'''
HONEST = SOURCE.format('nisa.dma_copy(dst=tile, src=x)\n    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, '
                       'op=nl.subtract)')
CHEAT = SOURCE.format('nisa.memset(dst=tile, value=0.0)')


@pytest.fixture(scope='module')
def task():
    return task_from(lambda x: x - x, lambda rng: {'x': rng.standard_normal((128, 64), np.float32)}, HONEST, 'nothing')


@pytest.fixture(scope='module')
def pair(task):
    "(the evaluation of the honest kernel, of the one that reads nothing)."
    return tuple(evaluate(Kernel(k), task, seeds=1) for k in (HONEST, CHEAT))


@pytest.fixture
def run(task, pair):
    steps = tuple(Step(run='r', index=k, move=move, why='a test', expected='', evaluation=e, parent='', seconds=0.1,
                       created='2026-01-01T00:00:00+00:00')
                  for k, (move, e) in enumerate(zip(('first kernel', 'the trick'), pair)))
    return Run('r', task.name, pair[0].workload, pair[0].chip, 'test', steps, 'finished', '2026-01-01T00:00:00+00:00')


@pytest.fixture
def store(tmp_path, task, pair, run):
    kept = Store(tmp_path / 'kept.db')
    for e in pair: kept.save_evaluation(e, task)
    kept.save_run(run)
    return kept


def test_the_evaluation_has_no_time(pair):
    good, bad = pair
    assert good.status == Status.CORRECT and good.speedup == 1.0
    assert bad.status == Status.IMPLAUSIBLE and bad.verification.passed and bad.implausible
    assert (bad.profile, bad.latency, bad.latency_us, bad.speedup, bad.over_eager) == (None,) * 5


@pytest.mark.parametrize('severity, status', [('implausible', Status.IMPLAUSIBLE), ('refused', Status.BELOW_BOUND)])
def test_no_record_is_correct_with_a_grave_finding(pair, severity, status):
    good, _ = pair
    mark = GuardReport('inputs read', 'structural', True, 'it reads none of its inputs', severity)
    with pytest.raises(SimulatorError, match='cannot be correct'): replace(good, guards=(mark,))
    d = good.to_dict()
    d['guards'] = [vars(mark)]
    earlier = Evaluation.from_dict(json.loads(json.dumps(d)))
    assert (earlier.status, earlier.latency, earlier.speedup) == (status, None, None)
    assert 'it reads none of its inputs' in str(earlier)


def test_a_run_neither_starts_from_it_nor_counts_it(run, pair):
    assert run.best.index == 0 and base_step(run).index == 0 and run.best_speedup == 1.0
    assert run.first_us == pair[0].latency_us
    row = run.rows()[1]
    assert (row['status'], row['latency_us'], row['speedup']) == ('implausible', None, None)
    first = replace(run, steps=run.steps[1:])
    assert first.best is None and first.first_us is None and first.best_speedup is None


def test_figures_and_reports_say_it(run, task, tmp_path):
    frame = speedup_frame(run)
    assert list(frame.best) == [True, False] and frame.latency_us.isna()[1] and frame.speedup.isna()[1]
    assert list(frame.status) == ['correct', 'implausible']
    assert 'implausible' in speedup_figure(run).to_json() and 'implausible' in ledger_html(run)
    assert 'implausible' in report_html(run, tmp_path / 'report.html', task).read_text()
    assert {number for number, _ in key_numbers(run) if '×' in number} == {'1.00×'}


def test_times_of_another_clock_keep_its_name_everywhere(run, store, task, tmp_path):
    "In the list of runs, in a report, in exported rows; beside a run of the clock of today."
    def older(e): return replace(e, id=f'old{e.id}', profile=e.profile and replace(e.profile, clock='lab-0'))
    old = replace(run, id='old', steps=tuple(replace(s, run='old', evaluation=older(s.evaluation)) for s in run.steps))
    store.save_run(old)
    listed = {r['id']: r['clock'] for r in store.overview()}
    assert listed == {'old': 'lab-0', 'r': CLOCK}
    lines = {r['id']: runs_line(r) for r in store.overview()}
    assert 'lab-0' in lines['old'] and CLOCK in lines['r']
    for one, name in ((old, 'lab-0'), (run, CLOCK)):
        assert f'clock {name}' in report_html(one, tmp_path / f'{one.id}.html', task).read_text()
    assert {r['clock'].split(',')[0] for r in rows(store) if r['run'] == 'old' and r['latency_us']} == {'lab-0'}


def test_the_store_pays_for_nothing(store, pair, task):
    seen, = store.overview()
    assert (seen['best_us'], seen['over_first'], seen['steps']) == (pair[0].latency_us, 1.0, 2)
    assert store.experiences() == []
    found = {r['evaluation']: r for r in rows(store)}[pair[1].id]
    assert (found['status'], found['latency_us'], found['speedup'], found['over_eager'], found['peak_pct']) == (
        'implausible', None, None, None, None)
    assert store.load_run('r').best.index == 0
    assert store.known(pair[1].kernel, task, pair[1].workload, pair[1].chip).status == Status.IMPLAUSIBLE


def test_an_exported_trace_has_no_performance(pair):
    good, bad = (trace_of(e, {}, {'definition': 'd', 'name': 'n'}) for e in pair)
    assert good['evaluation']['status'] == 'PASSED' and good['evaluation']['performance']
    assert bad['evaluation']['status'] != 'PASSED' and not bad['evaluation']['performance']


def test_a_model_is_told(task, run, pair):
    bench = ToolBench(task, task.workload(), options={'seeds': 1})
    for name in ('verify', 'profile'):
        text, ok = use_tool(bench, name, {'source': CHEAT})
        assert not ok and text.startswith('status: implausible') and pair[1].implausible[0] in text
        assert 'latency' not in text.split('\n')[0] and ' us (' not in text
    text, ok = use_tool(bench, 'submit', dict(source=CHEAT, move='trick', why='a test', expected='faster'))
    assert not ok and 'implausible' in text and bench.submitted is None and bench.best is None
    assert history_text(run).splitlines()[1] == '- step 1, the trick: implausible'
    asked = ask_text(run, task, task.workload())
    assert HONEST.strip() in asked and 'memset' not in asked


def test_terminals_and_panels_say_it(run, pair):
    good, bad = pair
    assert step_cells(run.steps[1], run.first_us)[1:4] == ('implausible', '–', '–')
    assert 'implausible' in str(step_text(run.steps[1], run.first_us))
    assert result_line('b.py', bad).startswith('implausible') and '×' not in result_line('b.py', bad)
    assert list(evaluation_lines(bad, error_sentence(bad)))[0].startswith('implausible')
    assert fastest_line([('a.py', good)]) in summary_lines([('a.py', good), ('b.py', bad)])
    assert pair[1].implausible[0] in log_text(bad)
    assert CompileLog(bad).text.startswith('✕ implausible') and chip_text(run.steps[1], run.best) == '1 ✕'
    assert 'implausible' in str(bad) and 'implausible' in bad._repr_html_()
