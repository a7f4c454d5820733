"""A stranger's kernel: optimised, left alone with a reason, or refused in a line; never wrong, whatever it is."""
import re
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from kernel_lab.agents.rewrite import without_task
from kernel_lab.agents.rewrite.without_task import (MAX_INSTRUCTIONS, OwnNumbers, drawn_inputs, how_different,
    narrowest_unit, optimised, traced)
from kernel_lab.cli.agents.optimize import move_lines
from kernel_lab.core.errors import KernelError
from kernel_lab.evaluate.sandbox.run import Limits
from kernel_lab.nki import ArraySpec, execute, schedule
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.cleanup import with_instructions
from kernel_lab.nki.transform.engines import three_terms
from kernel_lab.nki.transform.moves import FAMILIES, THREE_TERMS
from kernel_lab.nki.tuning.moves_taken import MoveTaken
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import TASKS

HEAD = 'import nki\nimport nki.isa as nisa\nimport nki.language as nl\n@nki.jit\ndef k(x):\n'
OUT = '    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n'
TILE = '    t = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)\n'
IN, BACK = '    nisa.dma_copy(dst=t, src=x[0:128, :])\n', '    nisa.dma_copy(dst=out[0:128, :], src=t)\n    return out\n'
TWICE = OUT + '''    half = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
    for i in nl.affine_range(4):
        t = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        u = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=u, data=t, op0=nl.multiply, operand0=0.5)
        nisa.dma_copy(dst=half[128 * i:128 * (i + 1), :], src=u)
    for i in nl.affine_range(4):
        t = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=half[128 * i:128 * (i + 1), :])
        u = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.activation(dst=u, op=nl.exp, data=t)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=u)
    return out
'''
LEGACY = '''from neuronxcc import nki
import neuronxcc.nki.language as nl
@nki.jit
def k(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    half = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)
    for i in nl.affine_range(4): nl.store(half[i*128:(i+1)*128, :], nl.load(x[i*128:(i+1)*128, :]) * 0.5)
    for i in nl.affine_range(4): nl.store(out[i*128:(i+1)*128, :], nl.exp(nl.load(half[i*128:(i+1)*128, :])))
    return out
'''
SPECS, ONE_TILE = [ArraySpec((512, 512))], [ArraySpec((128, 512))]


def best(source, specs=SPECS, chip='trn2', **more): return optimised(Kernel(source), specs, chip, seconds=20, **more)


@pytest.mark.parametrize('source', [HEAD + TWICE, LEGACY], ids=['current', 'earlier'])
def test_a_kernel_of_either_dialect_is_faster_and_right(source):
    done = best(source)
    assert done.latency_us < done.first_us / 1.2 and done.moves
    programs = [trace_source(s, None, SPECS, 'trn2') for s in (source, done.source)]
    assert programs[1].dialect == 'nki'
    assert float(schedule(programs[1], 'trn2').latency_us) == pytest.approx(done.latency_us)
    arrays = drawn_inputs(programs[0], 5)
    np.testing.assert_allclose(*(execute(p, *arrays)[0] for p in programs), rtol=1e-6)
    assert f'{len(done.moves)}. ' in done.source and 'simulated on trn2' in done.source
    assert best(done.source).moves == ()


ALONE = {
    'long': (HEAD + OUT + TILE + IN + f'    for i in nl.static_range({MAX_INSTRUCTIONS + 1}):\n'
             '        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)\n' + BACK, 'instructions'),
    'one pass': (HEAD + OUT + TILE + IN + BACK, 'of the time')}


@pytest.mark.parametrize('name', ALONE)
def test_what_is_left_alone_says_why(name):
    source, reason = ALONE[name]
    done = best(source, ONE_TILE)
    assert done.source is None and done.moves == () and done.reasons
    assert reason in ' '.join(done.reasons)


REFUSED = {
    'no python': ('def (', 'parse|syntax'),
    'no kernel': ('x = 1\n', 'entry|kernel|function'),
    'no trace': (HEAD + '    return nothing(x)\n', 'nothing'),
    'unwritten': (HEAD + OUT + TILE + BACK, 'read before it is written'),
    'other shape': (HEAD + OUT + TILE.replace('128, 512', '129, 512') + IN + BACK, ''),
    'endless': (HEAD + '    while True: pass\n', 'time|long|second'),
    'writes a file': ('open("mine", "w")\n' + HEAD + OUT + TILE + IN + BACK, 'sandbox|permitted|file'),
    '100,000': (HEAD + OUT + TILE + IN + '    for i in nl.static_range(100_000):\n'
                '        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)\n' + BACK, 'too many|too long')}


@pytest.mark.parametrize('name', REFUSED)
def test_what_is_wrong_is_refused_in_a_line(name):
    source, reason = REFUSED[name]
    with pytest.raises(KernelError) as e: best(source, ONE_TILE, limits=Limits(seconds=5))
    assert re.search(reason, str(e.value)) and '\n' not in str(e.value), str(e.value)


def test_addresses_are_left_to_the_compiler():
    placed = TWICE.replace('buffer=nl.sbuf', 'buffer=nl.sbuf, address=(0, 0)')
    done = best(HEAD + placed)
    assert placed != TWICE and done.moves and done.latency_us < done.first_us / 1.2
    assert 'address' not in done.source and 'addresses' in done.reasons[0]
    programs = [trace_source(s, None, SPECS, 'trn2') for s in (HEAD + placed, done.source)]
    arrays = drawn_inputs(programs[0], 5)
    np.testing.assert_allclose(*(execute(p, *arrays)[0] for p in programs), rtol=1e-6)


def test_a_grid_of_the_earlier_dialect_is_loops():
    from kernel_lab.nki.lang.trace import installed, load_source, trace
    source = LEGACY.replace('for i in nl.affine_range(4):', 'for i in (nl.program_id(0),):')
    with installed(): program = trace(load_source(source)[(4,)], *SPECS, chip='trn2')
    done = without_task.optimised_program(program, 5)
    assert [l.kind for l in program.loops.values()] == ['parallel'] and done.moves
    assert 'without a grid' in done.reasons[0] and 'program_id' not in done.source
    again, (x,) = trace_source(done.source, None, SPECS, 'trn2'), drawn_inputs(program, 5)
    np.testing.assert_allclose(execute(program, x)[0], execute(again, x)[0], rtol=1e-6)


def test_what_is_faster_in_the_current_dialect_alone_is_handed_over(monkeypatch):
    "As if the earlier compiler had made it slow, and no move were legal."
    real = without_task.schedule
    def twice(program, chip):
        return SimpleNamespace(latency_us=float(real(program, chip).latency_us) * (1 if program.dialect == 'nki' else 2))
    monkeypatch.setattr(without_task, 'schedule', twice)
    done = best(LEGACY, families=())
    assert done.moves == () and done.source and done.latency_us < done.first_us and '.ap(' not in done.source
    assert 'as fast' in [*move_lines(done, 'trn2')][-1]
    again = trace_source(done.source, None, SPECS, 'trn2')
    assert float(real(again, 'trn2').latency_us) == pytest.approx(done.latency_us)


def test_a_path_whose_kernel_cannot_be_executed_is_left_out(monkeypatch):
    "As of a program that reads what nothing has written: the search goes by the clock, and does not execute."
    real = without_task.execute
    def of(program, *arrays):
        if not any(t.name == 'half' for t in program.tensors): raise KernelError('it reads what nobody wrote', kind='uninitialised')
        return real(program, *arrays)
    monkeypatch.setattr(without_task, 'execute', of)
    done = best(LEGACY)
    assert 'cannot be executed: it reads what nobody wrote' in ' '.join(done.reasons)
    assert done.source is None or 'half' in done.source


@pytest.mark.parametrize('kind', ['core', 'parallel', 'dynamic', 'while'])
def test_loops_that_a_search_cannot_change_are_left_alone(kind, monkeypatch):
    program = trace_source(HEAD + TWICE, None, SPECS, 'trn2')
    loops = [replace(l, kind=kind, bound=(0, 4, 1) if kind in ('dynamic', 'while') else ()) for l in program.body]
    monkeypatch.setattr(without_task, 'traced', lambda *a: replace(program, body=tuple(loops)))
    done = best(HEAD + TWICE)
    assert done.source is None and 'Left alone' in done.reasons[0]


def test_a_wrong_transformation_is_cut_off_the_path(monkeypatch):
    "Were a proof wrong, the numbers would say so: the path ends before the move."
    from kernel_lab.nki.transform import moves
    real = moves.FAMILIES['compute where it is read']
    def wrong(program):
        for change, after in real.find(program):
            o = next(o for o in after.instructions if o.op == 'tensor_scalar')
            o.ins['operand0'] = 0.25
            yield change, after
    for name, family in moves.FAMILIES.items():
        monkeypatch.setitem(moves.FAMILIES, name, replace(family, find=lambda program: iter(()), asks=False))
    monkeypatch.setitem(moves.FAMILIES, real.name, replace(real, find=wrong))
    done = best(HEAD + TWICE)
    assert all(m.family != 'compute where it is read' for m in done.moves)
    assert any('left out' in r for r in done.reasons), done.reasons


def test_a_kernel_without_source_says_what_to_do_in_a_line(monkeypatch):
    def nothing(*a): raise KernelError('the writer has no source for a thing', kind='unsupported', line=7, hint='Use another.')
    monkeypatch.setattr(without_task, 'written_again', nothing)
    why, = best(HEAD + TWICE).reasons
    assert why == ('Left alone: a faster kernel is handed over as source, and the writer has no source for a thing in line '
                   '7. Use another.')


@pytest.mark.parametrize('blocks', (3, 4))
def test_a_loop_that_is_turned_and_has_one_iteration_left_can_be_written(blocks):
    source = HEAD + OUT + f"""    for i in nl.affine_range({blocks}):
        t = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        nisa.activation(dst=t, op=nl.exp, data=t)
        nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.multiply)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=t)
    return out
"""
    program = trace_source(source, None, [ArraySpec((128 * blocks, 512))], 'trn2')
    found = [*FAMILIES['work a step ahead'].moves(program)]
    assert found
    for move in found: without_task.written_again(move.program, '')


def test_draws_are_of_several_kinds_and_seeded():
    program = traced(Kernel(HEAD + TWICE), SPECS, 'trn2')
    own = OwnNumbers(program, 3, Limits())
    means = [float(arrays[0].mean()) for arrays, _ in own.draws]
    assert len(own.draws) == 3 and max(means) > 0.5 > abs(min(means, key=abs))
    assert own.against([program]) == ''
    for (a, _), (b, _) in zip(own.draws, OwnNumbers(program, 3, Limits()).draws): assert (a[0] == b[0]).all()


@pytest.mark.slow
def test_first_kernels_of_the_suite_without_their_task():
    "A sample of the suite at full size: what is written is right by the task's own tolerance."
    for name in list(TASKS)[11::50]:
        task = TASKS[name]
        specs = [ArraySpec(a.shape, a.dtype.name) for a in task.draw('full', 0).values()]
        done = optimised(Kernel(task.first('full').source), specs, 'trn2', seconds=20)
        print(name, done.first_us, done.latency_us, done.reasons)
        assert done.latency_us <= done.first_us and (done.source is None) == (not done.moves)


BF16 = 2.0**-7


def bf16_rows(seed=0):
    """Sums of rows of 512, scaled rows of bfloat16: as a kernel makes them, and by another order of the sum."""
    x = np.random.default_rng(seed).standard_normal((128, 512)).astype(np.float32)
    rows = lambda total: (x / (1 + np.abs(total))[:, None]).astype(ml_dtypes.bfloat16)
    backwards = np.add.accumulate(x[:, ::-1], axis=1, dtype=np.float32)[:, -1]
    return x, rows, x.sum(axis=1), backwards


def test_another_order_of_a_sum_is_no_difference():
    for seed in range(20):
        _, rows, total, backwards = bf16_rows(seed)
        assert how_different(rows(total), rows(backwards), 1, BF16) == ''
        assert how_different(total, backwards, 1, BF16) == ''


def test_without_a_rounding_move_every_bit_counts():
    _, rows, total, _ = bf16_rows()
    for right in (rows(total), total):
        for bit in range(8 * right.dtype.itemsize):
            wrong = right.copy()
            wrong.reshape(-1).view(f'u{right.dtype.itemsize}')[77] ^= 1 << bit
            assert how_different(right, wrong), bit
        assert how_different(right, right.copy()) == ''
    nothing = np.zeros(3, np.float32)
    assert how_different(nothing, -nothing)


@pytest.mark.parametrize('ulps', (4, -4, 16))
def test_one_element_of_bfloat16_that_is_off_is_caught(ulps):
    "Even where a move may add otherwise: all but elements that are nothing beside the largest."
    for seed in range(10):
        _, rows, total, _ = bf16_rows(seed)
        right = rows(total).reshape(-1)
        wrong, at = right.copy(), int(np.random.default_rng(seed).choice(np.flatnonzero(np.abs(right.astype(float)) > 1e-3 * np.abs(right.astype(float)).max())))
        wrong.view(np.int16)[at] += ulps
        assert how_different(right, wrong, 1, BF16), (seed, float(right[at]), float(wrong[at]))


def test_a_sum_that_lost_its_last_element_is_caught():
    for seed in range(20):
        x, rows, total, _ = bf16_rows(seed)
        lost = x[:, :-1].sum(axis=1)
        assert how_different(rows(total), rows(lost), 1, BF16) and how_different(total, lost, 3, BF16)


def test_a_path_is_compared_part_by_part():
    "What an exact move changes is caught, though another move of the path may round otherwise."
    source = HEAD + TWICE
    program = trace_source(source, None, SPECS, 'trn2')
    nudged = trace_source(source.replace('operand0=0.5', f'operand0={0.5 * (1 + 2**-22)!r}'), None, SPECS, 'trn2')
    own = OwnNumbers(program, 0, Limits())
    exact = MoveTaken('fuse nests', 'it', 0, 1.0)
    rounds = MoveTaken('divide once a row', 'quotients of rows', 0, 1.0, is_exact=False)
    assert exact.is_exact and not rounds.is_exact and narrowest_unit(program) == 0
    assert own.against([program, nudged], [rounds]) == '' != own.against([program, nudged], [exact])
    assert own.against([program, nudged, nudged], [rounds, exact]) == ''
    assert own.against([program, program, nudged], [rounds, exact])
    assert own.against([program, nudged, nudged], [exact, rounds])

def test_three_terms_are_taken_only_if_asked_and_show_their_error():
    task = TASKS['matmul']
    workload = task.smallest('float32')
    kernel, specs = task.first(workload), [ArraySpec(s) for s in workload.shapes.values()]
    program = trace_source(kernel.source, kernel.entry, specs, 'trn2')
    numbers = OwnNumbers(program, 0, Limits())
    after = three_terms(program)
    says = without_task.error_line(numbers, after)
    assert 0 < float(re.search(r'at most (\S+)', says)[1]) < 3e-5
    taken = MoveTaken(THREE_TERMS, 'the product', 0, 1.0, is_exact=False)
    assert numbers.against([program, after], [taken]) == ''
    low = {id(o): [] for o in after.instructions if o.op == 'nc_matmul' and o.attrs.get('accumulate')}
    assert len(low) == 2 and 'away' in numbers.against([program, with_instructions(after, low)], [taken])
    done = optimised(kernel, specs, seconds=5)
    assert THREE_TERMS not in {m.family for m in done.moves} and not any(r.startswith('Error') for r in done.reasons)
    with pytest.raises(KernelError): optimised(Kernel(HEAD + '    return x.y\n'), SPECS, families=(*FAMILIES, THREE_TERMS))


SCATTER = '''import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def scatter_rows(x, idx):
    n = idx.shape[0]
    out = nl.ndarray((n, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.ndarray((n, 1), dtype=idx.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=idx)
    t = nl.ndarray((n, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.activation(dst=t, op=nl.tanh, data=t)
    nisa.dma_copy(dst=out.ap([[x.shape[1], n], [1, x.shape[1]]], vector_offset=rows, indirect_dim=0), src=t)
    return out
'''


def test_integers_are_drawn_as_the_kernel_takes_them():
    "A scatter needs each row once; rows beyond the seventh of a gather are read; a number too large ends nothing."
    specs = [ArraySpec((100, 40), 'float32'), ArraySpec((100, 1), 'int32')]
    program = traced(Kernel(SCATTER), specs, 'trn2')
    numbers = OwnNumbers(program, 0, Limits())
    for (_, rows), _ in numbers.draws: assert sorted(rows.ravel()) == list(range(100))
    wide = SCATTER.replace('nl.ndarray((n, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm', 'nl.ndarray((3 * n, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm')
    with pytest.raises(KernelError, match='Integer inputs were drawn here, from 0 up to 7, 299, 99, 39; none went well'):
        OwnNumbers(traced(Kernel(wide), specs, 'trn2'), 0, Limits())
