"""Loops taken apart and exchanged, work done once, and tensors held in SBUF: on random kernels of products, to the last
bit; and what forbids each."""
import random
from collections import Counter

import numpy as np
import pytest

from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, check, execute
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.on_chip import fuse_users, hold_on_chip, on_chip_moves, pace_moves
from kernel_lab.nki.transform.phases import (bring_out, interchange, exchange_moves, hoist_invariants, invariant_moves,
    phase_moves, strip_mine, distribute, without_repeated_nests)

SEARCHES = (phase_moves, exchange_moves, invariant_moves, on_chip_moves, pace_moves)
HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def products(x, w, row):
    out = nl.ndarray((512, 256), nl.float32, buffer=nl.shared_hbm)
    between = nl.ndarray((512, 256), nl.float32, buffer=nl.private_hbm)
    held = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=held, src=x[0:128, 0:128])
"""


class Products:
    """A random kernel: a product whose operand is transposed on the way, in loops of any order, and a pass over its
    result. Tiles are declared in any of the loops, some are shared by iterations, some written again; rows are stored
    once, twice, or in reverse."""
    def __init__(self, seed):
        self.rng, self.lines = random.Random(seed), []
        self.product()
        for _ in range(self.rng.randint(1, 2)): self.rows()
        self.source = HEAD + '\n'.join(self.lines) + '\n    return out\n'

    def put(self, depth, text): self.lines.append(f'{" " * (4 + 4 * depth)}{text}')

    def product(self):
        rng, put = self.rng, self.put
        shared = rng.random() < .25                              # one tile for all iterations
        kind = rng.choice(('affine', 'affine', 'sequential'))
        order = rng.choice((('i', 'n'), ('n', 'i')))
        trips = {'i': 4, 'n': 2}
        if shared: put(0, 'kept = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)')
        outer = 'range' if rng.random() < .3 else f'nl.{kind}_range'      # Python unrolls the loop, at times
        put(0, f'for {order[0]} in {outer}({trips[order[0]]}):')
        put(1, f'for {order[1]} in nl.{kind}_range({trips[order[1]]}):')
        who = rng.choice(('i', 'i', '0'))
        if rng.random() < .3:
            put(2, 'total = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)')
            put(2, 'nisa.memset(dst=total, value=0.5)')
            if rng.random() < .5: put(2, 'nisa.tensor_tensor(dst=held, data1=held, data2=total, op=nl.add)')
        put(2, 'acc = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)')
        put(2, 'for k in nl.affine_range(2):')
        put(3, 'rows = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)')
        put(3, 'nisa.dma_copy(dst=rows, src=x[128 * WHO:128 * (WHO + 1), 128 * k:128 * (k + 1)])'.replace('WHO', who))
        put(3, 'flip = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)')
        put(3, f'nisa.nc_transpose(dst=flip, data={"held" if rng.random() < .2 else "rows"})')
        if not shared: put(3, 'kept = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)')
        put(3, 'nisa.tensor_copy(dst=kept, src=flip)')
        put(3, 'w_tile = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)')
        put(3, 'nisa.dma_copy(dst=w_tile, src=w[128 * k:128 * (k + 1), 128 * n:128 * (n + 1)])')
        if rng.random() < .2: put(3, 'nisa.tensor_tensor(dst=w_tile, data1=w_tile, data2=held, op=nl.add)')
        if rng.random() < .15: put(3, 'nisa.tensor_copy(dst=held, src=w_tile)')
        put(3, 'nisa.nc_matmul(dst=acc, stationary=kept, moving=w_tile)')
        put(2, 'result = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)')
        put(2, 'nisa.tensor_copy(dst=result, src=acc)')
        self.row = rng.choice(('i', 'i', 'i', '3 - i'))
        put(2, f'nisa.dma_copy(dst=between[128 * ({self.row}):128 * ({self.row}) + 128, 128 * n:128 * (n + 1)], src=result)')
        if rng.random() < .2: put(2, 'nisa.tensor_scalar(dst=result, data=result, op0=nl.add, operand0=1.0)')
        if rng.random() < .15: put(2, 'nisa.dma_copy(dst=between[0:128, 128 * n:128 * (n + 1)], src=result)')

    def rows(self):
        "A pass over the rows of `between`, by 256 or by 128, or over the rows of another shape."
        rng, put = self.rng, self.put
        groups, view = rng.choice((1, 2)), rng.choice((256, 256, 128))
        put(0, f'for i in nl.affine_range({4 // groups}):')
        for g in range(groups):
            at = f'{groups} * i + {g}'
            rows = f'between.reshape(({512 * 256 // view}, {view}))'
            for half in range(256 // view):
                n = f'{256 // view} * ({at}) + {half}'
                put(1, f'u{g}{half} = nl.ndarray((128, {view}), nl.float32, buffer=nl.sbuf)')
                put(1, f'nisa.dma_copy(dst=u{g}{half}, src={rows}[128 * ({n}):128 * ({n}) + 128, :])')
                again = f'u{g}{half}' if rng.random() < .3 else f'v{g}{half}'
                if again[0] == 'v': put(1, f'{again} = nl.ndarray((128, {view}), nl.float32, buffer=nl.sbuf)')
                put(1, f'nisa.activation(dst={again}, op=nl.{rng.choice(("square", "tanh"))}, data=u{g}{half})')
                to = f'out.reshape(({512 * 256 // view}, {view}))[128 * ({n}):128 * ({n}) + 128, :]'
                put(1, f'nisa.dma_copy(dst={to}, src={again})')


def arrays_for(seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in ((512, 256), (256, 256), (1, 256))]


def walk(seeds, depth=4):
    "Random moves of random kernels, compared after each: moves taken by search, and kernels that were refused."
    taken, refused = Counter(), 0
    for seed in seeds:
        rng, arrays = random.Random(seed), arrays_for(seed)
        try:
            program = trace_source(Products(seed).source, None, [ArraySpec(a.shape) for a in arrays], ('trn1', 'trn2')[seed % 2])
            if check(program): raise KernelError('refused')
            want, path = execute(program, *arrays), []
        except KernelError: refused += 1; continue
        for _ in range(depth):
            found = [(s.__name__, change, after) for s in SEARCHES for change, after in s(program) if not check(after)]
            if not found: break
            name, change, program = rng.choice(found)
            taken[name] += 1
            taken['repeats'] += 'repeat' in change
            path.append(f'{name} {change}')
            for a, b in zip(want, execute(program, *arrays), strict=True):
                assert a.tobytes() == b.tobytes(), f'{seed}: {" → ".join(path)}'
    return taken, refused


def test_random_loop_moves_keep_the_bits():
    taken, refused = walk(range(75, 100))
    assert len(taken) == len(SEARCHES) + 1 and taken['repeats'] and taken.total() > 70 and refused < 20, (taken, refused)


@pytest.mark.slow
def test_random_loop_moves_of_three_thousand_kernels(): print(walk(range(1000, 4000), 6))


def program_of(body, shape=(512, 128)):
    source = HEAD.split('    between')[0].replace('(512, 256)', str(shape)) + body + '\n    return out\n'
    return trace_source(source, None, [ArraySpec(s) for s in ((512, 256), (256, 256), (1, 256))], 'trn2')


LOOP = """
    t = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=t, value=1.0)
    for i in nl.sequential_range(4):
        u = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=u, src=x[128 * i:128 * (i + 1), 0:128])
        nisa.tensor_tensor(dst=t, data1=t, data2=u, op=nl.add)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=t)
"""


def test_what_forbids_a_loop_apart():
    program = program_of(LOOP)
    loop = program.loops['i0']
    with pytest.raises(IllegalTransformation, match='iterations of i0 share t'): distribute(program, loop, 2)
    with pytest.raises(IllegalTransformation, match='no two parts'): distribute(program, loop, 0)
    with pytest.raises(IllegalTransformation, match='no whole number'): strip_mine(program, 'i0', 3)
    with pytest.raises(IllegalTransformation, match='the same in every iteration'): hoist_invariants(program, loop)
    with pytest.raises(IllegalTransformation, match='is no loop'): bring_out(program, loop, 0)


def test_what_forbids_an_exchange():
    program = program_of("""
    t = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=t, value=1.0)
    for i in nl.sequential_range(4):
        for j in nl.sequential_range(2):
            nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
            nisa.dma_copy(dst=out[128 * i:128 * (i + 1), 64 * j:64 * (j + 1)], src=t[:, 0:64])""")
    with pytest.raises(IllegalTransformation, match='not shown to be apart'):
        interchange(program, program.loops['i0'], program.loops['i1'])


def test_a_sum_over_iterations_is_not_done_once():
    program = program_of("""
    acc = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    a = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, 0:128])
    for i in nl.sequential_range(4):
        nisa.nc_matmul(dst=acc, stationary=a, moving=a)
        r = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=r, src=acc)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=r)""")
    with pytest.raises(IllegalTransformation, match='nothing in loop i0'): hoist_invariants(program, program.loops['i0'])


@pytest.mark.parametrize('between, same', [
    ('', True), ('nisa.tensor_copy(dst=a, src=b)', False), ('nisa.dma_copy(dst=h, src=a)', False),
    ('nisa.tensor_copy(dst=b, src=a)', True)])
def test_a_nest_repeats_another_unless_what_it_reads_was_written_between(between, same):
    nest = """
    t = nl.ndarray((128, 4, 128), nl.float32, buffer=nl.sbuf)
    for k in nl.affine_range(4):
        u = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=u, src=h[128 * k:128 * (k + 1), :])
        nisa.tensor_tensor(dst=t[:, k, :], data1=u, data2=a, op=nl.add)
    nisa.dma_copy(dst=out[PLACE], src=t[:, 0, :])"""
    body = """
    h = nl.ndarray((512, 128), nl.float32, buffer=nl.private_hbm)
    a = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, 0:128])
    nisa.dma_copy(dst=b, src=x[128:256, 0:128])
    nisa.dma_copy(dst=h, src=x[:, 128:256])""" + nest.replace('PLACE', '0:128, :') + f'\n    {between}' + nest.replace(
        'PLACE', '128:256, :') + nest.replace('PLACE', '256:384, :') + '\n    nisa.dma_copy(dst=out[384:512, :], src=b)'
    program, arrays = program_of(body.replace('nisa.dma_copy(dst=h, src=a)', 'nisa.dma_copy(dst=h[0:128, :], src=a)')), arrays_for(0)
    after = without_repeated_nests(program)
    assert len(after.loops) == (1 if same else 2)
    assert execute(program, *arrays)[0].tobytes() == execute(after, *arrays)[0].tobytes()


def test_a_tile_that_is_read_before_its_last_value_is_not_done_once():
    program = program_of("""
    for i in nl.affine_range(4):
        r = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=r, src=x[0:128, 0:128])
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=r)
        nisa.tensor_scalar(dst=r, data=r, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), 0:64], src=r[:, 0:64])""")
    with pytest.raises(IllegalTransformation, match='nothing in loop i0'): hoist_invariants(program, program.loops['i0'])


BETWEEN = """
    between = nl.ndarray((512, 128), nl.float32, buffer=nl.private_hbm)
    for i in nl.affine_range(4):
        u = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=u, src=x[128 * i:128 * (i + 1), 0:128])
        STORE
    for i in nl.affine_range(4):
        v = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=v, src=LOAD)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=v)
"""
ROWS = 'between[128 * i:128 * (i + 1), :]'


@pytest.mark.parametrize('store, load, why', [
    (f'nisa.dma_copy(dst={ROWS}, src=u)', ROWS, ''),
    (f'nisa.dma_copy(dst={ROWS}, src=u); nisa.memset(dst=u, value=0.0)', ROWS, 'no tile can be a part|'),
    ('nisa.dma_copy(dst=between[0:128, :], src=u)', 'between[0:128, :]', 'written more than once'),
    (f'nisa.dma_copy(dst={ROWS}, src=u)', 'between.reshape((256, 256))[0:128, 0:128]', 'crosses'),
    (f'nisa.dma_copy(dst={ROWS}, src=u); nisa.dma_copy(dst=between[0:128, 0:64], src=u[:, 0:64])', ROWS,
     'written more than once')])
def test_what_is_held_in_sbuf(store, load, why):
    program = program_of(BETWEEN.replace('STORE', store).replace('LOAD', load))
    k, arrays = [t.name for t in program.tensors].index('between'), arrays_for(0)
    if why and why[-1] != '|':
        with pytest.raises(IllegalTransformation, match=why): hold_on_chip(program, k)
        return
    after = hold_on_chip(program, k)
    assert not any(t.name == 'between' and t.buffer == 'hbm' for t in after.tensors)
    assert execute(program, *arrays)[0].tobytes() == execute(after, *arrays)[0].tobytes()


def test_nests_that_read_backwards_are_not_fused():
    load = 'between[128 * (3 - i):128 * (3 - i) + 128, :]'
    program = program_of(BETWEEN.replace('STORE', f'nisa.dma_copy(dst={ROWS}, src=u)').replace('LOAD', load))
    k = [t.name for t in program.tensors].index('between')
    with pytest.raises(IllegalTransformation, match='not shown to allow one'): fuse_users(program, k)
