"Two cores and one HBM: what is refused, and what is not."
import random
import warnings
from dataclasses import replace
from itertools import product
import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import assert_ok, simulate, trace
from kernel_lab.nki.ir.program import Program
from kernel_lab.nki.ir.affine import Affine, arange
from kernel_lab.nki.ir.nodes import Access, Loop
from kernel_lab.nki.ir.overlap import touched_bytes_of
from kernel_lab.nki.checks.races import race_warnings, races, uncertain_accesses
from kernel_lab.nki.executor.interpreter import run_program
from dialects import nisa, nl, nki, normal
from random_programs import TENSORS, instruction

def shared(shape, name): return nl.ndarray(shape, np.float32, buffer=nl.shared_hbm, name=name)

def exchange(x, meet='barrier', turns=1):
    "Each core stores its half and loads the other's."
    core = nl.program_id(0)
    part, out = shared((2, 64, 32), 'part'), shared((2, 64, 32), 'out')
    for _ in nl.sequential_range(turns):
        t, u = nl.ndarray((64, 32), np.float32), nl.ndarray((64, 32), np.float32)
        nisa.dma_copy(t, x[core])
        nisa.dma_copy(part[core], t)
        if meet == 'barrier': nisa.core_barrier(part, (0, 1))
        if meet == 'sendrecv': nisa.sendrecv(t, u, 1 - core, 1 - core)
        nisa.dma_copy(u, part[1 - core])
        nisa.dma_copy(out[core], u)
        if meet == 'barrier': nisa.core_barrier(part, (0, 1))
    return out

X = normal(2, 64, 32)

@pytest.mark.parametrize('meet', ['barrier', 'sendrecv'])
@pytest.mark.parametrize('turns', [1, 3])
def test_cores_that_meet(meet, turns):
    np.testing.assert_array_equal(simulate(nki.jit(exchange)[2], X, meet, turns, chip='trn2'), X[::-1])

def test_cores_that_do_not_meet():
    with pytest.raises(KernelError,
                       match=r'core 0 writes part on line \d+ \(dma_copy\) while core 1 reads it on line \d+') as e:
        simulate(nki.jit(exchange)[2], X, 'never', chip='trn2')
    assert e.value.line and 'core_barrier' in str(e.value) and e.value.kind == 'trace'      # the kernel's mistake

def test_the_file_format_keeps_the_stretches():
    p = trace(nki.jit(exchange)[2], X, 'barrier', chip='trn2')
    assert_ok(Program.from_json(p.to_json()))

@pytest.mark.parametrize('write, race', [
    (lambda out, t, core: nisa.dma_copy(out[0:64], t), True),  # both write one place, with values of their own
    (lambda out, t, core: nisa.dma_copy(out[nl.ds(64 * core, 64)], t), False),
    (lambda out, t, core: nisa.dma_copy(out[nl.ds(32 * core, 64)], t), True),                   # halves that overlap
    # rows that interleave
    (lambda out, t, core: nisa.dma_copy(out.ap([[64, 64], [1, 32]], offset=32 * core), t), False),
    (lambda out, t, core: nisa.dma_copy(out.ap([[64, 64], [1, 32]], offset=31 * core), t), True)])
@pytest.mark.parametrize('rolled', [True, False])
def test_writes(write, race, rolled):
    def kernel(x):
        core = nl.program_id(0) if rolled else int(nl.program_id(0))
        out, t = nl.ndarray((128, 32), np.float32, buffer=nl.shared_hbm, name='out'), nl.ndarray((64, 32), np.float32)
        nisa.dma_copy(t, x[core])
        write(out, t, core)
        return out
    p = trace(nki.jit(kernel)[2], X, chip='trn2')
    if not race: assert_ok(p); return
    with pytest.raises(KernelError, match='core . writes out .* while core . writes it'): assert_ok(p)

@pytest.mark.parametrize('rolled', [True, False])
def test_the_same_work_done_twice_is_no_race(rolled):
    def kernel(x):
        if not rolled: int(nl.program_id(0))
        out, t = nl.ndarray((64, 32), np.float32, buffer=nl.shared_hbm), nl.ndarray((64, 32), np.float32)
        nisa.dma_copy(t, x[0])
        nisa.dma_copy(out, t)
        nisa.dma_copy(t, out)
        return out
    assert_ok(trace(nki.jit(kernel)[2], X, chip='trn2'))

def test_masks_against_trying_all_elements():
    "Core 0 writes where a·p + b·f < c, core 1 where it is at least d: a race where an element is in both."
    rng, seen, (p, f) = np.random.default_rng(0), [], (arange(64)[:, None], arange(32)[None, :])
    rows, cols = np.indices((64, 32))
    for _ in range(40):
        a, b, c, d = (int(rng.integers(low, high)) for low, high in ((0, 3), (0, 3), (1, 60), (1, 60)))
        def kernel(x):
            core, out, t = nl.program_id(0), shared((64, 32), 'out'), nl.ndarray((64, 32), np.float32)
            nisa.dma_copy(t, x[core])
            nisa.dma_copy(out, t, mask=(a * p + b * f < c) & (core < 1))
            nisa.dma_copy(out, t, mask=(a * p + b * f >= d) & (core >= 1))
            return out
        value = a * rows + b * cols
        seen.append(bool(((value < c) & (value >= d)).any()))
        assert bool(list(races(trace(nki.jit(kernel)[2], X, chip='trn2')))) == seen[-1], (a, b, c, d)
    assert 8 < sum(seen) < 32

@pytest.mark.parametrize('told', [True, False])
def test_rows_by_index_are_apart_or_named(told):
    def kernel(x, idx):
        core, out = nl.program_id(0), shared((2, 64, 32), 'out')
        t, i = nl.load(x[core]), nl.load(idx[core])
        nisa.dma_copy((out[core] if told else out[0]).ap([[32, 64], [1, 32]], vector_offset=i), t)
        return out
    p = trace(nki.jit(kernel)[2], X, np.zeros((2, 64, 1), np.int32), chip='trn2')
    assert_ok(p)
    assert bool(uncertain_accesses(p)) is not told


def fill_and_scatter(x, rows, fills, meet):
    "Core 0 scatters x; core `fills` has filled the output with zeros before."
    core, out = nl.program_id(0), shared((64, 32), 'out')
    t, i, zero = nl.ndarray((64, 32), np.float32), nl.ndarray((64, 1), np.int32), nl.ndarray((64, 32), np.float32)
    if core == fills:
        nisa.memset(zero, 0.0)
        nisa.dma_copy(out, zero)
    if meet: nisa.core_barrier()
    if core == 0:
        nisa.dma_copy(t, x[0])
        nisa.dma_copy(i, rows)
        nisa.dma_copy(out.ap([[32, 64], [1, 32]], vector_offset=i), t)
    return out


@pytest.mark.parametrize('fills, meet', [(1, False), (1, True), (0, False)])
@pytest.mark.filterwarnings('ignore:.*cannot be excluded')
def test_a_scatter_is_not_erased_without_a_word(fills, meet):
    x, rows = X.astype(np.float32), np.arange(64)[::-1, None].astype(np.int32)
    kernel = nki.jit(lambda x, rows: fill_and_scatter(x, rows, fills, meet))[2]
    run = lambda: simulate(kernel, x, rows, chip='trn2')
    if fills == 1 and not meet:
        assert race_warnings(trace(kernel, x, rows, chip='trn2'))
        with pytest.raises(KernelError, match='with these inputs'): run()
    else: assert np.array_equal(run(), x[0][::-1])


@pytest.mark.parametrize('rows, race', [((0, 1), False), ((1, 1), True)])
@pytest.mark.filterwarnings('ignore:.*cannot be excluded')
def test_whether_rows_meet_is_seen_when_they_are_known(rows, race):
    "Each core scatters one row that an index names; the same values to the same row are no race."
    def kernel(x, idx):
        core, out = nl.program_id(0), shared((64, 32), 'out')
        t, i = nl.load(x[core, 0:1]), nl.load(idx[core])
        nisa.dma_copy(out.ap([[32, 1], [1, 32]], vector_offset=i), t)
        return out
    idx = np.array(rows, np.int32).reshape(2, 1, 1)
    x = np.stack([np.full((64, 32), k, np.float32) for k in (1, 2)])
    p = trace(nki.jit(kernel)[2], x, idx, chip='trn2')
    assert_ok(p)
    assert any('through an index' in w for w in race_warnings(p))
    run = lambda x: run_program(p, [x, idx])
    if not race: run(x); return
    with pytest.raises(KernelError, match='core 1 writes out while core 0 writes it'): run(x)
    run(np.ones_like(x))


@pytest.mark.parametrize('order', [(0, 1), (1, 0)])
@pytest.mark.filterwarnings('ignore:.*cannot be excluded')
def test_a_value_that_passed_by_counts(order):
    "Zeros of both cores, and then a row of one: the other's zeros may come last."
    def kernel(x, idx):
        core, out = nl.program_id(0), shared((64, 32), 'out')
        zero, t, i = nl.ndarray((64, 32), np.float32), nl.load(x[0, 0:1]), nl.load(idx[0])
        nisa.memset(zero, 0.0)
        nisa.dma_copy(out, zero)
        if core == order[0]: nisa.dma_copy(out.ap([[32, 1], [1, 32]], vector_offset=i), t)
        return out
    p = trace(nki.jit(kernel)[2], X, np.zeros((2, 1, 1), np.int32), chip='trn2')
    with pytest.raises(KernelError, match='with these inputs'):
        run_program(p, [X.astype(np.float32) + 1, np.zeros((2, 1, 1), np.int32)])


def test_the_same_values_twice_are_a_warning():
    def kernel(x):
        int(nl.program_id(0))
        out, t = shared((64, 32), 'out'), nl.load(x[0])
        nisa.dma_copy(out, t)
        return out
    with pytest.warns(UserWarning, match='both cores write the same values'):
        simulate(nki.jit(kernel)[2], X.astype(np.float32), chip='trn2')


@pytest.mark.parametrize('other', [1, 63, 64, 65, 128, 129])
@pytest.mark.filterwarnings('ignore:.*cannot be excluded')
def test_programs_of_a_large_grid_are_told_apart(other):
    "Of 130 programs each scatters one row; program 0 and another one to the same row."
    def kernel(x, idx):
        me, out = nl.program_id(0), shared((256, 32), 'out')
        t, i = nl.load(x[me]), nl.load(idx[me])
        nisa.dma_copy(out.ap([[32, 1], [1, 32]], vector_offset=i), t)
        return out
    rows, x = np.arange(130, dtype=np.int32).reshape(130, 1, 1), normal(130, 1, 32).astype(np.float32)
    p = trace(nki.jit(kernel)[130], x, rows, chip='trn2')
    run_program(p, [x, rows])
    rows[other] = 0
    with pytest.raises(KernelError, match=f'core {other} writes out while core 0 writes it'): run_program(p, [x, rows])


def copied(rng, core):
    "A random copy whose values depend on the core, and its loops."
    while True:
        loops = [Loop(f'i{rng.randrange(10**6)}', 2, ()) for _ in range(rng.randrange(2))]
        o = instruction(rng, [core, *loops])
        if o.op == 'dma_copy' and TENSORS[o.outs['dst'].tensor].buffer == 'hbm': break
    src = o.ins['src']
    return replace(o, ins={'src': replace(src, offset=Affine(src.offset.const, (*src.offset.terms, ('core', 0))))}), loops


def bytes_of_cores(p, copies):
    "(core, memory, writes, bytes of HBM) of every copy."
    for core, (o, loops) in product(range(2), copies):
        for name, a in (*o.ins.items(), *o.outs.items()):
            if isinstance(a, Access) and p.tensors[a.tensor].buffer == 'hbm':
                turns = product(*(range(l.trips) for l in loops))
                found = [touched_bytes_of(p, o, name, {'core': core} | dict(zip((l.name for l in loops), turn)))
                         for turn in turns]
                yield core, p.base[a.tensor], name in o.outs, set(np.concatenate(found).tolist())


@pytest.mark.parametrize('seed', range(40))
def test_races_are_the_bytes_that_both_cores_touch(seed):
    "Shapes, dtypes, steps, loops and masks at random; where values depend on the core, whatever both touch counts."
    rng, core = random.Random(seed), Loop('core', 2, ())
    for n in range(4):
        copies = [copied(rng, core) for _ in range(1 + n % 2)]
        body = tuple(Loop(loops[0].name, loops[0].trips, (o,), 'sequential') if loops else o for o, loops in copies)
        p = Program('p', TENSORS, (Loop('core', 2, body, 'parallel'),), (), chip='trn2')
        some = [*bytes_of_cores(p, copies)]
        real = any(c < d and k == m and (w or v) and x & y for c, k, w, x in some for d, m, v, y in some)
        assert bool([*races(p)]) == real, copies


@pytest.mark.parametrize('alike', [True, False])
def test_reading_back_what_both_cores_wrote_through_an_index(alike):
    "Every core does all the work, and copies the result onto itself: alike, the order does not matter; else it does."
    def kernel(x, rows):
        out, index = nl.ndarray(x.shape[1:], x.dtype, buffer=nl.shared_hbm), nl.load(rows)
        t = nl.load(x[0] if alike else x[nl.program_id(0)])
        nisa.dma_copy(out.ap([[64, 128], [1, 64]], vector_offset=index, indirect_dim=0), t)
        nisa.dma_copy(out, out)
        return out
    x = np.ones((2, 128, 64), np.float32)
    x[1] = 2
    rows = np.arange(128, dtype=np.uint32)[:, None]
    run = lambda: simulate(nki.jit(kernel)[2], x, rows, chip='trn2')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        if alike: np.testing.assert_array_equal(run(), x[0])
        else:
            with pytest.raises(KernelError, match='core'): run()

# --- cores whose bodies differ and that write one place

def one_place(mine, theirs=None, after=None):
    "Core 0 does `mine` to a tile of x and core 1 does `theirs`; both store it in one place."
    def kernel(x):
        core, out = nl.program_id(0), shared((64, 32), 'out')
        t, spare = nl.ndarray((64, 32), np.float32), nl.ndarray((64, 32), np.float32)
        nisa.dma_copy(t, x[0])
        if core == 0: mine(t, spare)
        elif theirs: theirs(t, spare)
        if after: after(t, spare)
        nisa.dma_copy(out, t)
        return out
    return trace(nki.jit(kernel)[2], X, chip='trn2')

def times(n, loop=nl.sequential_range):
    def add(t, spare):
        for _ in loop(n): nisa.tensor_scalar(t, t, nl.add, 1.0)
    return add

def squared(t, spare): nisa.activation(t, nl.square, t)
def elsewhere(t, spare): nisa.memset(spare, 1.0)
def through_spare(t, spare):
    nisa.memset(spare, 2.0)
    nisa.tensor_tensor(t, t, spare, nl.multiply)
def summed(t, spare):
    nisa.activation(spare, nl.copy, t, reduce_op=nl.add, reduce_res=t[:, 0:1], reduce_cmd='reduce')
def drawn(t, spare): nisa.dropout(t, t, 0.5)

@pytest.mark.parametrize('mine, theirs, after', [
    (squared, None, None), (None, squared, None), (squared, times(1), None), (times(2), times(3), None),
    (times(2, range), times(3, range), None), (through_spare, elsewhere, None), (through_spare, None, None),
    (elsewhere, None, through_spare and (lambda t, s: nisa.tensor_copy(t, s))), (None, None, drawn), (drawn, None, None),
    (lambda t, s: (elsewhere(t, s), squared(t, s)), elsewhere, None), (elsewhere, None, summed),
    (lambda t, s: (times(1)(t, s), squared(t, s)), lambda t, s: (squared(t, s), times(1)(t, s)), None)])
def test_different_values_in_one_place_are_a_race(mine, theirs, after):
    try: program = one_place(mine or (lambda t, s: None), theirs, after)
    except KernelError as e: assert 'before it is written' in str(e); return
    assert [*races(program)], program

@pytest.mark.parametrize('mine', [elsewhere, lambda t, s: [elsewhere(t, s) for _ in range(5)], lambda t, s: None,
                                  lambda t, s: nisa.tensor_copy(s, t)])
def test_work_beside_does_not_make_values_different(mine):
    program = one_place(mine)
    assert not [*races(program)], program
    assert 'both cores write the same values' in ' '.join(race_warnings(program))

def summed(x, how='sum', by=nl.add):
    "Each core sends its part, adds what it gets, and both store the whole to one place."
    core = nl.program_id(0)
    out = shared((64, 32), 'out')
    t, u, v = (nl.ndarray((64, 32), np.float32) for _ in range(3))
    nisa.dma_copy(t, x[core])
    if how == 'another part': nisa.tensor_scalar(v, t, nl.multiply, 2.0)
    nisa.sendrecv(v if how == 'another part' else t, u, 1 - core, 1 - core)
    if how == 'changed before': nisa.tensor_scalar(t, t, nl.multiply, 2.0)
    if how == 'late': nisa.sendrecv(t, v, 1 - core, 1 - core)
    if how == 'twice': nisa.tensor_tensor(u, u, t, nl.subtract)
    nisa.tensor_tensor(t[0:32] if how == 'half of it' else t, t[0:32] if how == 'half of it' else t,
                       u[0:32] if how == 'half of it' else u, by)
    if how == 'changed after': nisa.tensor_scalar(t, t, nl.multiply, 1.0 + core)
    nisa.dma_copy(out, t)
    return out

def both_say(kernel, *args):
    program = trace(nki.jit(kernel)[2], *args, chip='trn2')
    return list(races(program)), race_warnings(program)

def test_a_sum_of_what_was_exchanged_is_one_value_on_both_cores():
    for by in (nl.add, nl.multiply):
        found, said = both_say(summed, X, 'sum', by)
        assert not found and any('the same values to the same places of out' in s for s in said)
    np.testing.assert_array_equal(simulate(nki.jit(summed)[2], X, chip='trn2'), X[0] + X[1])
    assert not both_say(summed, X, 'late')[0]                   # another exchange does not matter

@pytest.mark.parametrize('how, by', [('sum', nl.subtract), ('sum', nl.maximum), ('another part', nl.add),
                                     ('changed before', nl.add), ('changed after', nl.add), ('half of it', nl.add),
                                     ('twice', nl.add)])
def test_a_sum_that_differs_between_the_cores_is_a_race(how, by): assert both_say(summed, X, how, by)[0]

def gathered(x, how='halves'):
    "Each core makes half of a tile, the other half is sent; both store the whole to one place."
    core, n = nl.program_id(0), 16
    out, t = shared((64, 32), 'out'), nl.ndarray((64, 32), np.float32)
    mine, theirs = nl.ds(n * core, n), nl.ds(n * (1 - core), n)
    if how == 'own before': nisa.dma_copy(t, x[core])
    nisa.dma_copy(t[:, mine], x[core, :, mine])
    if how == 'a quarter': nisa.sendrecv(t[:, nl.ds(n * core, 8)], t[:, nl.ds(n * (1 - core), 8)], 1 - core, 1 - core)
    else: nisa.sendrecv(t[:, mine], t[:, theirs], 1 - core, 1 - core)
    if how == 'changed after': nisa.tensor_scalar(t[:, 0:1], t[:, 0:1], nl.multiply, 1.0 + core)
    nisa.dma_copy(out, t)
    return out

def test_halves_that_were_exchanged_are_one_tile_on_both_cores():
    for how in ('halves', 'own before'):
        found, said = both_say(gathered, X, how)
        assert not found and any('the same values to the same places of out' in s for s in said)
    got = simulate(nki.jit(gathered)[2], X, chip='trn2')
    np.testing.assert_array_equal(got, np.concatenate([X[0, :, :16], X[1, :, 16:]], 1))

@pytest.mark.parametrize('how', ['changed after', 'a quarter'])
def test_halves_that_differ_between_the_cores_are_a_race(how): assert both_say(gathered, X, how)[0]
