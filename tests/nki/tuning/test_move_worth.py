"""What moves are worth, and why there are none: over first kernels of the suite."""
import pytest

from kernel_lab.nki import ArraySpec, schedule
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.definitions import IllegalTransformation, refusals_noted
from kernel_lab.nki.tuning.move_worth import why_no_move, worth_of_moves
from kernel_lab.nki.tuning.search import search
from kernel_lab.tasks.suite.registry import TASKS


def first_kernel(name):
    specs = [ArraySpec(a.shape, a.dtype.name) for a in TASKS[name].draw('small', 1).values()]
    return trace_source(TASKS[name].first('small').source, None, specs, 'trn2')


@pytest.mark.sampled(3)
@pytest.mark.parametrize('name', ['softmax_backward', 'focal_loss', 'input_embeddings'])
def test_the_worth_of_moves_adds_up(name):
    program = first_kernel(name)
    found = search(program, candidates=300)
    worth = worth_of_moves(program, found.steps)
    assert sum(w.gain_us for w in worth) == pytest.approx(found.first_us - found.latency_us)
    assert worth[0].before_us == found.first_us and worth[-1].after_us == found.latency_us
    assert worth[0].alone_us == pytest.approx(worth[0].gain_us)            # nothing came before the first
    assert all(w.before_us == float(schedule(program, 'trn2').latency_us) for w in worth[:1])


@pytest.mark.slow
def test_reasons_are_true_of_the_program():
    for name in list(TASKS)[7::80]:
        program = search(first_kernel(name), 'climb').program
        bound, legal, *refused = why_no_move(program)
        assert 'of the time' in bound
        assert legal == 'No move is legal here.' or 'none is faster' in legal or 'leads to' in legal, (name, legal)
        assert all(r.startswith('Forbidden: ') for r in refused)


def test_refusals_are_noted_only_inside():
    with refusals_noted() as outer:
        IllegalTransformation('one')
        with refusals_noted() as inner: IllegalTransformation('two')
        IllegalTransformation('three')
    IllegalTransformation('four')
    assert (outer, inner) == (['one', 'three'], ['two'])
