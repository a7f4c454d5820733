"""Every row of the instruction table is tried against numpy and refused once, on the page that introduces it; and each
trial could have failed."""
import importlib
import itertools
from dataclasses import replace

import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki.ir.semantics_collective import COLLECTIVES
from kernel_lab.nki.ir.instructions import INSTRUCTIONS
from trials import all_trials
from kernel_lab.nki.validate.conformance import largest_error, refusal, missing_cases

runner = importlib.import_module('kernel_lab.nki.executor.interpreter')
@pytest.fixture(scope='module')
def every(): return all_trials()

def flat(every): return [t for ts in every.values() for t in ts]

def test_every_row_has_a_numpy_answer_and_a_refusal(every):
    assert missing_cases(flat(every)) == {}
    assert len(every) >= 8 and len(flat(every)) > len(INSTRUCTIONS)

@pytest.mark.parametrize('row', INSTRUCTIONS)
def test_a_row_that_loses_its_trials_is_missed(every, row):
    left = [t for t in flat(every) if t.row != row]
    assert missing_cases(left) == {row: ['numpy', 'a refusal']}
    unrefused = [replace(t, misuse=None) if t.row == row else t for t in flat(every)]
    assert missing_cases(unrefused) == {row: ['a refusal']}

@pytest.mark.parametrize('row', INSTRUCTIONS)
def test_trials_hold(every, row):
    "On every chip of theirs, on one after the other here."
    for t in (t for t in flat(every) if t.row == row):
        for chip in t.chips:
            largest_error(t, chip)
            if t.misuse: refusal(t, chip)

def spoil(y, count):
    "Change the first element of an array in place, to another number each time."
    first = y[(slice(0, 1),) * y.ndim]
    if y.dtype.names: first.view(f'u{y.itemsize}')[...] ^= 1
    else: first[...] = next(n for n in (next(count) % 100, next(count) % 100) if n != first.reshape(-1)[0])

@pytest.mark.parametrize('row', INSTRUCTIONS)
def test_a_wrong_number_fails_every_trial(every, row, monkeypatch):
    "Where one element of what the row computes is wrong, each of its trials notices."
    count, apply, exchange = itertools.count(1), runner.apply_instruction, COLLECTIVES.get(row)
    def wrong(memory, o, r, outs, *rest):
        apply(memory, o, r, outs, *rest)
        if o.op == row:
            for y in outs.values(): spoil(y, count)
    def misled(*given):
        y = exchange(*given)
        for a in (y,) if not isinstance(y, tuple) else y[1:2]: spoil(a, count)
        return y
    monkeypatch.setattr(runner, 'apply_instruction', wrong)
    if exchange: monkeypatch.setitem(COLLECTIVES, row, lambda *given: misled(*(copied(g) for g in given)))
    for t in (t for t in flat(every) if t.row == row):
        with pytest.raises((AssertionError, KernelError)): largest_error(t, t.chips[-1])

def copied(x): return [c.copy() if hasattr(c, 'copy') else c for c in x] if isinstance(x, list) else x
