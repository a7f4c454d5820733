"""Tasks to train on: what a record holds is what an evaluation would find out, and no evaluation finds it out again."""
import pytest

from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.survey import training_tasks as page
from kernel_lab.evaluate.verification import adversarial_inputs
from kernel_lab.nki.tuning.moves_taken import replayed
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.timeline import CLOCK, schedule
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.baselines import eager
from kernel_lab.tasks.codegen import lower
from kernel_lab.tasks.model import task as model
from kernel_lab.tasks.synthesis.compose import TRAINING, Candidate, candidate
from kernel_lab.tasks.synthesis.synthesize import CandidateCase, judge_candidate
from kernel_lab.tasks.synthesis.training_records import TrainingRecord

NUMBER = 6


@pytest.fixture(scope='module')
def record():
    found = judge_candidate(candidate(NUMBER, 0, TRAINING), kind=page.MAKING)
    assert found.fate == 'passed', found.why
    return TrainingRecord.from_dict(found.record)


def test_a_record_holds_what_would_be_worked_out(record):
    made, w = record.candidate.task(), record.candidate.task().workloads[0]
    assert record.first == made.first().source and record.times.clock == CLOCK
    assert record.times.eager_us == eager.eager(made, w).us and record.times.bound_us == eager.bound(made, w)[1]
    assert record.facts['draws'][w.dtype] == adversarial_inputs.work_out_draws(made, w.dtype)
    assert record.task().tolerance() == made.tolerance() and record.task().outputs() == made.outputs()
    assert specs_of(record.task(), None) == specs_of(made, None)


def test_the_best_latency_is_that_of_the_moves(record):
    arrays = record.candidate.task().draw()
    program = trace_source(record.first, None, tuple(arrays.values()), 'trn2')
    assert float(schedule(program, 'trn2').latency_us) == record.times.first_us
    assert float(schedule(replayed(program, record.headroom.moves)[-1], 'trn2').latency_us) == pytest.approx(
        record.times.best_us, rel=1e-9)
    assert record.headroom.gain >= page.MIN_SEARCH_GAIN


def test_an_evaluation_of_a_made_task_works_nothing_out(record, monkeypatch):
    def fail(*_): raise AssertionError('worked out again')
    monkeypatch.setattr(model, 'work_out_counts', fail)
    for name in ('_admission', 'draws_of'): monkeypatch.setattr(adversarial_inputs, name, fail)
    for name in ('eager', 'capture'): monkeypatch.setattr(eager, name, fail)
    monkeypatch.setattr(lower, 'kernel_graph', fail)
    task = record.task()
    found = evaluate(task.first(), task, chip='trn2', seeds=1)
    assert str(found.status.value) == 'correct', found.log
    assert (found.eager_us, found.baseline_us) == (record.times.eager_us, record.times.first_us)


def test_a_kernel_that_is_wrong_is_no_best_kernel(monkeypatch):
    found = page.headroom_of
    def wrong(program, fused): return found(program, fused)[0], broken
    case = CandidateCase(candidate(NUMBER, 0, TRAINING))
    x = next(iter(case.task.workloads[0].shapes))
    bad = Candidate.from_dict(case.candidate.to_dict() | {
        'source': case.candidate.source.replace('    h1 = ', f'    {x} = {x} + 3\n    h1 = ', 1)})
    arrays = case.task.draw()
    broken = trace_source(bad.task().first().source, None, tuple(arrays.values()), 'trn2')
    monkeypatch.setattr(page, 'headroom_of', wrong)
    judged = judge_candidate(case.candidate, kind=page.MAKING)
    assert judged.fate == 'agrees' and 'tolerances off' in judged.why and judged.record is None


def test_a_task_with_nothing_to_find_is_turned_down():
    c = Candidate('train_0_00000', 'chain', ('relu',), 'float32', (('x', (4096, 2048), 'normal'),),
                  'def train_0_00000(x):\n    return x.exp()\n')
    judged = judge_candidate(c, kind=page.MAKING)
    assert judged.fate == 'headroom' and judged.why.startswith('the search finds 1.') and judged.cpu_s > 0


def test_an_eager_time_that_takes_too_long_is_recorded_as_unknown(monkeypatch):
    monkeypatch.setattr(page, 'EAGER_SECONDS', 0.0)
    case = CandidateCase(candidate(NUMBER, 0, TRAINING))
    us, launches, why = page._eager(case, case.task.workloads[0])
    assert us is None and why.startswith('unknown: the eager baseline')
