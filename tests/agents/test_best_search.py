"""Best kernels of tasks are searched for, verified, and worked out again from their recipes."""
from dataclasses import replace

import pytest

from kernel_lab.agents.rewrite import best_search
from kernel_lab.agents.rewrite.best_search import (each_in_workers, found_paths, played_again, search_best, search_many,
                                                   search_starts, start_named, work_out_again)
from kernel_lab.core.errors import KernelError, SimulatorError
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.baselines.best_kernels import BEST_FILE, read_best
from kernel_lab.tasks.suite.registry import TASKS

SOME = ('softmax', 'add_rmsnorm', 'layer_norm')


@pytest.fixture(scope='module')
def found():
    "{name: the best kernel of its small workload, by a short search}."
    return {n: search_best(TASKS[n], TASKS[n].workload('small'), 'trn2', 'climb', 6) for n in SOME}


@pytest.mark.parametrize('name', SOME)
def test_what_a_search_keeps_is_right_faster_and_found_again(found, name):
    best = found[name]
    assert best.us < best.first_us and best.why_stale() == '' and best.recipe['moves']
    assert work_out_again(replace(best, clock='lab-0', us=1.0, first_us=1.0)) == (best, True)


def test_a_recipe_outlives_the_names_and_lines_of_its_start(found):
    best = found['softmax']
    task, w = TASKS['softmax'], TASKS['softmax'].workload('small')
    text = task.first(w).source.replace('x_tile', 'rows_of_x')
    moved = text.replace('import nki\n', 'import nki\n\n\n\n', 1)
    assert moved != text
    trace = lambda source: trace_source(source, None, specs_of(task, w), 'trn2')
    wanted = trace(best.source)
    assert played_again(trace(moved), best.recipe['moves'], wanted) is not None
    assert played_again(trace(moved), best.recipe['moves'][:-1], wanted) is None


def test_a_wrong_path_is_not_kept(monkeypatch):
    "The judge has the last word: the fastest that it takes is kept, and where it takes none there is an error."
    task, w = TASKS['softmax'], TASKS['softmax'].workload('small')
    fastest = found_paths(search_starts(task, w, 'trn2'), 'climb', 6, 0)[0].us
    told = best_search._judged
    monkeypatch.setattr(best_search, '_judged', lambda k, *a: None if (us := told(k, *a)) <= fastest else us)
    best = search_best(task, w, 'trn2', 'climb', 6)
    assert fastest < best.us <= best.first_us
    monkeypatch.setattr(best_search, '_judged', lambda *a: None)
    with pytest.raises(KernelError, match='is right'): search_best(task, w, 'trn2', 'climb', 6)


def test_of_a_path_that_is_not_right_the_first_moves_are_kept(monkeypatch):
    task, w = TASKS['softmax'], TASKS['softmax'].workload('small')
    paths = found_paths(search_starts(task, w, 'trn2'), 'climb', 6, 0)
    most, whole = len(paths[0].moves) - 1, best_search.FoundPath.kernel
    def kernel(path):
        if len(path.moves) > most: raise KernelError('cannot be written', kind='unsupported')
        return whole(path)
    monkeypatch.setattr(best_search, 'found_paths', lambda *a: [p for p in paths if len(p.moves) in (0, most + 1)])
    monkeypatch.setattr(best_search.FoundPath, 'kernel', kernel)
    best = search_best(task, w, 'trn2', 'climb', 6)
    assert 0 < len(best.recipe['moves']) <= most and best.us < best.first_us


def test_a_search_starts_where_a_person_does(found):
    "Kept kernels are no start: the recipe begins with what the lab writes by rule."
    for name, best in found.items():
        task, w = TASKS[name], TASKS[name].workload('small')
        start = start_named(best.recipe['start'], task, w, 'trn2')
        assert best.recipe['start'] in ('first kernel', 'fused anew') and start.kernel.source != best.source


def test_a_worker_that_dies_takes_one_call_with_it():
    results = dict(each_in_workers(eval, [('0',), ('1',), ('__import__("os")._exit(7)',), ('9',), ('16',)], 2))
    assert isinstance(results.pop(2), SimulatorError) and results == {0: 0, 1: 1, 3: 9, 4: 16}


def test_a_search_of_many_goes_on_and_names_what_fails(tmp_path, monkeypatch):
    path, asked = tmp_path / 'found.jsonl', dict(method='climb', seconds=2.0, seed=0)
    here = lambda function, calls, jobs: ((k, function(*call)) for k, call in enumerate(calls))
    monkeypatch.setattr(best_search, 'each_in_workers', here)               # workers take seconds to start
    rows = search_many(['relu', 'gelu'], path, 'trn2', 'small', 1, **asked)
    first = next(rows)
    rows.close()                                                            # Ctrl-C after one task
    assert read_best(path) == [first]
    others = [*search_many(['relu', 'gelu'], path, 'trn2', 'small', 1, **asked)]
    assert {b.task for b in (first, *others)} == {'relu', 'gelu'} and len(others) == 1
    assert len([*search_many(['relu'], path, 'trn2', 'small', 1, **asked | {'seed': 1})]) == 1
    monkeypatch.setattr(best_search, '_judged', lambda *a: None)
    assert [*search_many(['tanh'], path, 'trn2', 'small', 1, **asked)][0].startswith('tanh: no kernel of tanh is right')


@pytest.mark.slow
@pytest.mark.parametrize('best', [b for b in read_best(BEST_FILE) if b.recipe.get('moves')][::25], ids=lambda b: b.task)
def test_a_kept_recipe_leads_to_its_kernel(best):
    again, by_recipe = work_out_again(best)
    assert by_recipe and (again.us, again.source) == (best.us, best.source) or best.why_stale()
