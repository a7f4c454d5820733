"""A kernel whose loops are as long as a number in memory is judged like any other, and timed on the draws it was verified on."""
import numpy as np
import pytest
from kernel_lab.evaluate import Evaluation, evaluate
from kernel_lab.evaluate.verification.plausibility import Evidence, run_guards
from kernel_lab.figures.timeline import timeline_of
from kernel_lab.tasks.model.task import task_from

def first_rows(x, n):
    import torch
    return (x * (torch.arange(8)[:, None] < n)).sum(0, keepdim=True)

def task_of(low, high):
    return task_from(first_rows, lambda rng: {'x': rng.standard_normal((8, 64)),
                                              'n': rng.integers(low, high, (1, 1)).astype(np.int32)}, name='first_rows')

HEAD = '''
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def kernel(x, n):
    out = nl.ndarray((1, 64), x.dtype, buffer=nl.shared_hbm)
    total = nl.zeros((1, 64), x.dtype, buffer=nl.sbuf)
    turns = nisa.register_alloc(n)
'''
TAIL = '''
        row = nl.ndarray((1, 64), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(row, x[nl.ds(i, 1), :])
        nisa.tensor_tensor(total, total, row, nl.add)
    nisa.dma_copy(out, total)
    return out
'''
DYNAMIC = f'{HEAD}    for i in nl.dynamic_range(turns):{TAIL}'
INSIDE = f'{HEAD}    for k in nl.sequential_range(1):\n      for i in nl.dynamic_range(turns):{TAIL}'

@pytest.mark.parametrize('source, low, high, turns', [(DYNAMIC, 5, 6, 5), (INSIDE, 0, 1, 0)])
def test_it_has_a_verdict_and_a_time(source, low, high, turns):
    e = evaluate(source, task_of(low, high), seeds=[1, 2])
    assert e.status == 'correct' and e.latency_us > 0
    assert e.warnings[-1].endswith(f'turned {turns} times') and 'longest of 2 draws' in e.warnings[-1]

def test_its_time_is_that_of_the_longest_draw():
    task = task_of(1, 9)
    counts = [int(task.draw(None, s)['n'].item()) for s in range(4)]
    few, most = (min(range(4), key=lambda s: at * counts[s]) for at in (1, -1))
    alone = [evaluate(DYNAMIC, task, seeds=[s]).latency_us for s in (few, most)]
    assert alone[0] < alone[1] == evaluate(DYNAMIC, task, seeds=[few, most]).latency_us

def test_its_timeline_is_found_again():
    task = task_of(1, 9)
    e = evaluate(DYNAMIC, task, seeds=[1, 2])
    stored = Evaluation.from_dict(e.to_dict())
    assert stored.profile.timeline is None and timeline_of(stored, task).latency_us == e.latency_us

def test_a_wrong_one_is_wrong():
    assert evaluate(DYNAMIC.replace('nl.ds(i, 1)', 'nl.ds(0, 1)'), task_of(5, 6), seeds=[1]).status == 'wrong_result'

def test_a_loop_in_memory_hides_no_missing_work():
    "The arithmetic of the turns it was timed with is compared with the reference's."
    import torch
    task = task_from(lambda x, w, n: torch.softmax(x @ w, -1).sum(-1, keepdim=True) * 0 + n,
                     lambda rng: {'x': rng.standard_normal((128, 128)), 'w': rng.standard_normal((128, 128)),
                                  'n': np.zeros((1, 1), np.int32)}, name='nothing')
    evaluation = evaluate(DYNAMIC, task_of(5, 6), seeds=[1])
    timed = evaluation.profile.timeline.program
    facts = Evidence(DYNAMIC, task, task.workload(None), program=timed, timed=timed, latency_us=evaluation.latency_us)
    assert any(g.name == 'arithmetic done' and g.found for g in run_guards(facts))
