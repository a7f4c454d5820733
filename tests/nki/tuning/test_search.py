"""Searches over random kernels and first kernels of the suite: what is found is what it says it is, the same again with
the same seed and from its file, and the clock of candidates never reports an estimate."""
import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.nki import ArraySpec, check, execute, schedule
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.lang import isa as nisa, language as nl
from kernel_lab.nki.lang.trace import trace, trace_source
from kernel_lab.nki.tuning.candidate_clock import CandidateClock, changed_windows, program_key
from kernel_lab.nki.tuning.moves_taken import (MoveMemory, MoveTaken, move_row, moves_of_rows, numbered_moves,
    replayed)
import kernel_lab.nki.tuning.search as climbs
from kernel_lab.nki.tuning.search import METHODS, search
from kernel_lab.nki.transform.definitions import DefUse
from kernel_lab.nki.transform.moves import FAMILIES, MoveFamily
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.tasks.suite.registry import TASKS

QUICK = ('linear_bias_gelu', 'softmax_backward', 'focal_loss')
ANYTHING = (*QUICK, 'swiglu', 'rmsnorm_matmul', 'input_embeddings')
SOME = pytest.mark.parametrize('names', [('softmax_backward', 'input_embeddings'), pytest.param(ANYTHING, marks=pytest.mark.slow)],
                               ids=['some', 'all'])


def first_kernel(name, workload='small', chip='trn2', seed=1):
    task = TASKS[name]
    arrays = list(task.draw(workload, seed).values())
    specs = [ArraySpec(a.shape, a.dtype.name) for a in arrays]
    return trace_source(task.first(workload).source, None, specs, chip), arrays


def of_all_moves(program):
    return [(m.family, m.change, m.program) for f in FAMILIES.values() for m in f.moves(program)]


@pytest.mark.parametrize('method', METHODS)
def test_a_search_reports_the_schedule_of_a_right_program(method):
    for name in QUICK:
        program, arrays = first_kernel(name)
        found = search(program, method, candidates=150, seed=2)
        assert found.latency_us == float(schedule(replace(found.program), 'trn2').latency_us)
        assert found.first_us == float(schedule(program, 'trn2').latency_us) >= found.latency_us
        assert not check(found.program)
        for a, b in zip(execute(program, *arrays), execute(found.program, *arrays), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


@SOME
@pytest.mark.parametrize('method', ['anneal', pytest.param('beam', marks=pytest.mark.slow)])
def test_no_search_is_slower_than_a_climb(method, names):
    for name in names:
        program, _ = first_kernel(name)
        assert search(program, method, candidates=2000).latency_us <= search(program, 'climb').latency_us * 1.0001, name


@pytest.mark.slow
def test_a_beam_leaves_where_a_climb_stops():
    "The order of families that the climb has is not the best for every kernel."
    gains = [search(p, 'climb').latency_us / search(p, candidates=2000).latency_us
             for p in (first_kernel(name, 'full')[0] for name in ('lstm_pointwise', 'layer_norm'))]
    assert max(gains) > 1.005, gains


@pytest.mark.parametrize('method', METHODS)
def test_the_same_seed_finds_the_same(method):
    program, _ = first_kernel('softmax_backward')
    one, other = (search(replace(program), method, candidates=120, seed=5) for _ in range(2))
    assert one.steps == other.steps and one.candidates == other.candidates
    assert first_difference(one.program, other.program) is None


@SOME
def test_a_path_gives_its_program_again(names):
    for name in names:
        program, _ = first_kernel(name)
        found = search(program, 'anneal', candidates=200, seed=3)
        programs = replayed(replace(program), found.steps)
        assert program_key(programs[-1]) == program_key(found.program)
        assert [float(schedule(p, 'trn2').latency_us) for p in programs[1:]] == [m.us for m in found.steps]


@pytest.mark.parametrize('method', METHODS)
def test_a_search_goes_on_from_its_file(method, tmp_path):
    "Cut off anywhere, even in the middle of a line, the file loses at most its last state."
    program, _ = first_kernel('softmax_backward')
    path = tmp_path / 'search.jsonl'
    whole = search(program, method, candidates=300, file=path)
    text = path.read_text()
    for cut in (len(text) - 1, 2 * len(text) // 3, len(text) // 2):
        path.write_text(text[:cut])
        try: states = [json.loads(line) for line in text[:cut].split('\n')[1:] if line.endswith('}')]
        except ValueError: states = []
        again = search(program, method, candidates=1, file=path)
        if states: assert again.latency_us <= states[-1]['us']
    path.write_text(text)
    assert search(program, method, candidates=300, file=path).latency_us <= whole.latency_us


@pytest.mark.parametrize('change', [dict(method='anneal'), dict(seed=1), dict(families=('hoist a load',))])
def test_a_file_of_another_search_is_refused(change, tmp_path):
    program, _ = first_kernel('linear_bias_gelu')
    search(program, 'beam', candidates=5, file=tmp_path / 'f')
    with pytest.raises(UsageError, match='another search'):
        search(program, **dict(method='beam', candidates=5, file=tmp_path / 'f') | change)


def test_a_move_of_another_kernel_is_refused():
    program, _ = first_kernel('linear_bias_gelu')
    for move in (MoveTaken('no family', 'x', 0, 1.0), MoveTaken('hoist a load', 'x', 7, 1.0)):
        with pytest.raises(UsageError, match='no move'): replayed(program, [move])


def test_no_budget_is_no_move():
    program, _ = first_kernel('focal_loss')
    for method in METHODS:
        assert search(program, method, seconds=0).steps == ()
        assert search(program, method, candidates=0).steps == ()


def test_an_interrupt_keeps_what_was_found(monkeypatch):
    program, _ = first_kernel('softmax_backward', 'full')
    calls, known = [], CandidateClock.register
    def register(self, p):
        calls.append(1)
        if len(calls) == 40: raise KeyboardInterrupt
        return known(self, p)
    monkeypatch.setattr(CandidateClock, 'register', register)
    found = search(program)
    assert found.ended == 'interrupted' and found.steps and found.latency_us < found.first_us


def test_a_refused_program_is_an_error():
    program, _ = first_kernel('focal_loss')
    with pytest.raises(KernelError): search(replace(program, body=program.body[1:]))


# -- the clock of candidates

def renumbered(program, seed):
    "The same program with its tensors in another order."
    from kernel_lab.nki.ir.nodes import Loop
    from kernel_lab.nki.transform.cleanup import with_numbers
    order = list(range(len(program.tensors)))
    random.Random(seed).shuffle(order)
    new = {k: n for n, k in enumerate(order)}
    inputs = [k for k in order if program.tensors[k].role == 'input']          # keep the order of the inputs
    for k, n in zip(program.input_ids, sorted(new[k] for k in inputs)): new[k] = n
    old = {n: k for k, n in new.items()}
    node = lambda o: replace(o, body=tuple(map(node, o.body))) if isinstance(o, Loop) else with_numbers(o, new)
    tensors = [program.tensors[old[n]] for n in range(len(old))]
    tensors = tuple(t if t.alias is None else replace(t, alias=new[t.alias]) for t in tensors)
    return replace(program, tensors=tensors, body=tuple(map(node, program.body)),
                   output_ids=tuple(new[k] for k in program.output_ids),
                   constants={new[k]: x for k, x in program.constants.items()})


def test_a_key_knows_a_program_whatever_its_numbers():
    for n, name in enumerate(ANYTHING):
        program, _ = first_kernel(name)
        assert program_key(program) == program_key(renumbered(program, n)), name
        keys = [program_key(after) for *_, after in of_all_moves(program)]
        assert program_key(program) not in keys


@pytest.mark.slow
@SOME
def test_programs_of_one_key_take_the_same_time(names):
    for name in names:
        seen = {}
        program, _ = first_kernel(name)
        for _, _, one in [(0, 0, program), *of_all_moves(program)[::16]]:
            for _, _, after in of_all_moves(one)[:6]:
                if check(after): continue
                us = float(schedule(replace(after), 'trn2').latency_us)
                assert seen.setdefault(program_key(after), us) == us


@pytest.mark.slow
@pytest.mark.parametrize('names', [('softmax_backward', 'ssm_step'), pytest.param(('softmax_backward', 'ssm_step', 'lora_linear'),
                                                                                  marks=pytest.mark.slow)], ids=['two', 'three'])
def test_an_estimate_orders_what_a_schedule_orders(names):
    "Where a move gains or costs more than 2 % of the latency, the estimate has the sign, and about the size."
    wrong, many = [], 0
    for name in names:
        program, _ = first_kernel(name, 'full')
        us, clock = float(schedule(program, 'trn2').latency_us), CandidateClock()
        for _, change, after in of_all_moves(program):
            exact = clock.latency_us(after)
            if exact is None or abs(us - exact) < 0.02 * us: continue
            many += 1
            if not 0.3 < clock.gain_us(program, after) / (us - exact) < 3: wrong.append((name, change))
    assert many > 15 and len(wrong) <= many // 8, (many, wrong)


@pytest.mark.slow
def test_only_what_differs_is_timed():
    "A change inside one loop costs a small window; one that moves loops or instructions between them at most both."
    program, _ = first_kernel('causal_attention', 'full')
    assert [*changed_windows(program, replace(program))] == []
    size = lambda o: sum(map(size, o.body)) if hasattr(o, 'trips') else 1
    blocks = lambda body: [len(body), *(n for o in body if hasattr(o, 'trips') for n in (o.trips, *blocks(o.body)))]
    kept = 0
    for _, change, after in of_all_moves(program)[::8]:
        if first_difference(program, after) is None: continue
        windows = [*changed_windows(program, after)]
        timed = sum(size(o) for _, a, b in windows for o in (*a, *b))
        before, behind = blocks(program.body), blocks(after.body)
        same = len(before) == len(behind) and sum(a != b for a, b in zip(before, behind)) <= 1
        kept += same
        assert 0 < timed <= (len(program.instructions) / 8 if same
                             else len(program.instructions) + len(after.instructions)), change
    assert kept > 3, kept


def test_a_copy_of_a_program_has_uses_of_its_own():
    "What is kept with a program names its instructions by id, and a copy has others."
    import copy
    import pickle
    program, _ = first_kernel('focal_loss')
    DefUse(program)
    for other in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        uses = DefUse(other)
        assert all(id(o) in uses.around for o in other.instructions)


@SOME
def test_what_is_kept_with_nodes_is_what_is_found_anew(names):
    "Candidates share instructions with the program they were made of; a copy shares nothing, and nothing is kept."
    import copy
    for name in names if len(names) < len(ANYTHING) else (*names, 'causal_attention'):
        program, _ = first_kernel(name)
        schedule(program), check(program)
        for family, change, after in of_all_moves(program)[::3]:
            anew = copy.deepcopy(after)
            assert not any(k.startswith('_') for o in anew.instructions for k in o.__dict__)
            assert [str(d) for d in check(after)] == [str(d) for d in check(anew)], (name, family, change)
            try: one = schedule(after)
            except KernelError as e:
                with pytest.raises(KernelError, match=re.escape(e.message)): schedule(anew)
                continue
            other = schedule(anew)
            assert (one.end_us == other.end_us).all() and one.latency_us == other.latency_us, (name, family, change)
            assert program_key(after) == program_key(anew)


def test_a_tensor_of_another_form_is_seen_by_what_is_kept():
    "The same instructions among tensors of another dtype cost something else, and may not be allowed."
    program, _ = first_kernel('swiglu')
    schedule(program), check(program)
    wide = lambda t: replace(t, dtype='bfloat16') if t.dtype == 'float32' and t.buffer == 'sbuf' else t
    other = replace(program, tensors=tuple(map(wide, program.tensors)))
    one, anew = schedule(other), schedule(Program.from_json(other.to_json()))
    assert one.latency_us == anew.latency_us != schedule(program).latency_us
    tall = replace(program, tensors=tuple(replace(t, role='output') if t.buffer == 'sbuf' else t
                                          for t in program.tensors))
    assert [str(d) for d in check(tall)] == [str(d) for d in check(Program.from_json(tall.to_json()))] != []


def test_memory_orders_families_by_what_helped(tmp_path):
    memory, program = MoveMemory(), first_kernel('softmax_backward')[0]
    search(program, candidates=300, memory=memory)
    assert memory.table and all(n > 0 for n, _ in memory.table.values())
    memory.save(tmp_path / 'memory')
    assert MoveMemory.load(tmp_path / 'memory') == memory
    (tmp_path / 'other').write_text('[1, 2]')
    with pytest.raises(UsageError): MoveMemory.load(tmp_path / 'other')


# --- the same move on copies ---

def unrolled(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in range(6):
        t = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        u = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        s = nl.ndarray((128, 1), x.dtype, buffer=nl.sbuf)
        v = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        nisa.activation(dst=u, op=nl.exp, data=t)
        nisa.tensor_reduce(dst=s, op=nl.add, data=u, axis=1)
        nisa.tensor_scalar(dst=v, data=u, op0=nl.multiply, operand0=s)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=v)
    return out


def test_a_move_is_taken_on_all_copies_at_once_and_replays():
    program = trace(unrolled, np.ones((768, 512), np.float32), chip='trn1')
    found = search(program, 'climb', candidates=400)
    combined = [m for m in found.steps if m.family == 'combine instructions']
    assert any(m.times == 6 for m in combined), found
    assert '6 times' in str(next(m for m in combined if m.times == 6))
    assert program_key(replayed(program, found.steps)[-1]) == program_key(found.program)
    assert moves_of_rows([move_row(m) for m in found.steps]) == found.steps
    assert moves_of_rows([['a family', 'a change', 0, 1.0]]) == (MoveTaken('a family', 'a change', 0, 1.0),)
    with pytest.raises(UsageError): moves_of_rows([['a family', 'a change', 0, 1.0, 'x']])


@pytest.mark.parametrize('excludes', [False, True])
def test_a_climb_takes_the_best_of_moves_that_exclude_each_other(monkeypatch, excludes):
    root, _ = first_kernel('swiglu')
    times = lambda m: schedule(m[2]).latency_us
    good = sorted((m for m in of_all_moves(root) if not check(m[2]) and times(m) < 0.99 * schedule(root).latency_us),
                  key=times, reverse=True)
    assert times(good[-1]) < times(good[0])
    after = lambda p: [(m[1], m[2]) for m in (good[0], good[-1])] if p is root else []
    monkeypatch.setitem(FAMILIES, 'one of two', MoveFamily('one of two', 'For a test.', after, excludes=excludes))
    floors = climbs.FLOORS
    monkeypatch.setattr(climbs, 'FLOORS', floors[-1:])
    found = search(root, 'climb', families=('one of two',))
    assert found.latency_us == times(good[-1 if excludes else 0])
    monkeypatch.setattr(climbs, 'FLOORS', floors)           # a move that brings much comes first in any case
    assert times(good[-1]) < 0.95 * schedule(root).latency_us < times(good[0])
    assert search(root, 'climb', families=('one of two',)).latency_us == times(good[-1])


@pytest.mark.parametrize('family', [f.name for f in FAMILIES.values() if f.asks])
def test_moves_that_say_one_change_are_those_of_all_that_say_it(family):
    "Asked for one change, a family makes no other, and the same as when all are made."
    program, _ = first_kernel('linear_bias_gelu', 'full')
    every = list(numbered_moves(program, family))
    assert every, family
    for change in [*dict.fromkeys(move.change for move, *_ in every)][:3]:
        found = list(numbered_moves(program, family, change))
        want = [(nth, program_key(after)) for move, nth, after in every if move.change == change]
        assert [(nth, program_key(after)) for _, nth, after in found] == want
