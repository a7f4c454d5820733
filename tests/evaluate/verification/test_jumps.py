"""A right kernel is not blamed for roundings: where two logits are alike but for those of a long sum and the answer jumps,
and where terms cancel in an element."""
import numpy as np
import pytest
from kernel_lab.evaluate.verification.adversarial_inputs import _named
from kernel_lab.tasks.model.workload import are_rare
from kernel_lab.evaluate.verification.verify import _changed_trial, verify
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.suite.registry import TASKS


def traced(task, workload, change=('', '')):
    first = task.first(workload)
    assert not change[0] or change[0] in first.source
    return trace_source(first.source.replace(*change, 1), first.entry, specs_of(task, workload), 'trn2')


@pytest.mark.slow
@pytest.mark.parametrize('seed', [1125246467, 1, 9])    # six to twenty-six of 1,024 rows jump
def test_a_softmax_over_large_logits_jumps_in_a_few_rows(seed):
    task = TASKS['linear_softmax']
    w = task.workload()
    program = traced(task, w)
    trial, why = _changed_trial(program, task, w, seed, task.draw(w, seed), _named('far up'))
    assert trial is None and ('the reference in float32 is' in why or 'roundings' in why)
    spoilt = traced(task, w, ('op=nl.exp', 'op=nl.square'))
    if 'the reference in float32 is' not in why:        # where torch's own float32 has jumped, nobody is judged by them
        trial, why = _changed_trial(spoilt, task, w, seed, task.draw(w, seed), _named('far up'))
        assert not why and not trial.passed             # a wrong one is
    assert not verify(spoilt, task, w, seeds=[seed]).passed


def test_few_rows_are_rare_and_single_numbers_never():
    ratios = np.zeros((1000, 8))
    ratios[:10, 3] = 5
    assert are_rare([ratios]) and not are_rare([ratios, ratios[:100]]) and not are_rare([np.array([5.0, 0])])


def test_inputs_that_cancel_in_an_element_are_drawn_again():
    task = TASKS['ssm_step']
    w = task.workload()
    found = verify(traced(task, w), task, w, seeds=[1503856820], draws=[])      # off by 1.27 tolerances in one element
    assert found.passed and found.left_out[0][0] == 'seed 1503856820' and found.seeds[0].seed != 1503856820


def test_an_element_that_no_rounding_moves_counts_however_few():
    task = TASKS['relu']
    w = task.workload('small')
    stores = '    nisa.dma_copy(dst=relu_out[0:ROWS, :], src=relu)\n'
    spoils = '    nisa.tensor_scalar(dst=relu[7:8, 9:10], data=relu[7:8, 9:10], op0=nl.add, operand0=1e-4)\n'
    found = verify(traced(task, w, (stores, spoils + stores)), task, w, seeds=[3], draws=[])
    assert not found.passed and not found.left_out
