"""What is only copied together in HBM is read where it lies, or stored where it goes: the same bits, for random parts,
sources and readers; and a copy whose source changes, or that is read too early, stays."""
import random

import numpy as np
import pytest

from kernel_lab.nki import check, execute
from kernel_lab.nki.lang import isa as nisa, language as nl
from kernel_lab.nki.lang.trace import jit, trace
from kernel_lab.nki.transform.definitions import IllegalTransformation
from kernel_lab.nki.transform.inline import read_where_it_lies, store_where_it_goes
from kernel_lab.nki.transform.moves import FAMILIES
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.nki.writing.writer import trace_again, write_lines
from kernel_maker import bits_of, nasty

FAMILY = 'leave out a copy in HBM'


def drawn_case(seed):
    "(shape, axis, cuts, kinds of parts, kinds of readers) of an assembled tensor."
    rng = random.Random(seed)
    shape = [rng.choice((2, 4, 6, 8)), rng.choice((4, 6, 12, 16)), rng.choice((2, 8, 10))]
    axis = rng.randrange(3)
    cuts = sorted(rng.sample(range(1, shape[axis]), min(shape[axis] - 1, rng.randrange(4))))
    ends = [0, *cuts, shape[axis]]
    kinds = [rng.choice(('whole', 'slice', 'turned', 'copied', 'stored', 'looped')) for _ in ends[1:]]
    readers = rng.sample(('box', 'rows', 'turned', 'pairs', 'blocks', 'hbm', 'flat'), rng.choice((1, 2, 3)))
    return tuple(shape), axis, list(zip(ends, ends[1:])), kinds, readers, rng


def assembled(shape, axis, ends, kinds, readers, rng):
    "(kernel, inputs): a tensor assembled of parts, and read in several ways."
    a, b, c = shape
    parts = [tuple(hi - lo if d == axis else n for d, n in enumerate(shape)) for lo, hi in ends]
    def given(part, kind):
        if kind == 'slice': return tuple(n + 2 for n in part)
        return tuple(part[d] for d in (1, 0, 2)) if kind == 'turned' else part
    inputs = [nasty(given(p, k), np.dtype('float32'), rng.randrange(1000)) for p, k in zip(parts, kinds)]
    places = [tuple(slice(*end) if d == axis else slice(0, n) for d, n in enumerate(shape)) for end in ends]
    box = [(lo := rng.randrange(n), rng.randrange(lo + 1, n + 1)) for n in shape]
    inside, size = tuple(slice(*ends) for ends in box), [hi - lo for lo, hi in box]

    @jit
    def kernel(*xs):
        both = nl.ndarray(shape, nl.float32, buffer=nl.private_hbm)
        for n in range(len(xs)):
            x, part, kind, there = xs[n], parts[n], kinds[n], places[n]
            if kind == 'whole': nisa.dma_copy(dst=both[there], src=x)
            if kind == 'slice':
                nisa.dma_copy(dst=both[there], src=x[1:1 + part[0], 0:part[1], 2:2 + part[2]])
            if kind == 'turned': nisa.dma_copy(dst=both[there], src=x.permute((1, 0, 2)))
            if kind == 'copied':
                before = nl.ndarray(part, nl.float32, buffer=nl.private_hbm)
                nisa.dma_copy(dst=before, src=x)
                nisa.dma_copy(dst=both[there], src=before)
            if kind == 'stored':
                t = nl.ndarray(part, nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=x)
                nisa.dma_copy(dst=both[there], src=t)
            if kind == 'looped':
                made = nl.ndarray(part, nl.float32, buffer=nl.private_hbm)
                for i in nl.affine_range(part[0]):
                    t = nl.ndarray((part[1], part[2]), nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=t, src=x[i])
                    nisa.dma_copy(dst=made[i], src=t)
                nisa.dma_copy(dst=both[there], src=made)
        outs = []
        def out(some):
            outs.append(nl.ndarray(some, nl.float32, buffer=nl.shared_hbm))
            return outs[-1]
        for reader in readers:
            if reader == 'box':
                t = nl.ndarray(size, nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=both[inside])
                nisa.dma_copy(dst=out(size), src=t)
            if reader == 'rows':
                to = out(shape)
                for i in nl.affine_range(a):
                    t = nl.ndarray((b, c), nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=t, src=both[i])
                    nisa.dma_copy(dst=to[i], src=t)
            if reader == 'turned':
                t = nl.ndarray((b, a, c), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=both.permute((1, 0, 2)))
                nisa.dma_copy(dst=out((b, a, c)), src=t)
            if reader == 'pairs':
                to = out((b // 2, a, 2, c))
                t = nl.ndarray((b // 2, a, 2, c), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=both.reshape((a, b // 2, 2, c)).permute((1, 0, 2, 3)))
                nisa.dma_copy(dst=to, src=t)
            if reader == 'blocks':
                to = out((2, b // 2, a, c))
                for i in nl.affine_range(2):
                    t = nl.ndarray((b // 2, a, c), nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=t, src=both.reshape((a, 2, b // 2, c))[:, i].permute((1, 0, 2)))
                    nisa.dma_copy(dst=to[i], src=t)
            if reader == 'hbm': nisa.dma_copy(dst=out((b, a, c)).permute((1, 0, 2)), src=both)
            if reader == 'flat':
                t = nl.ndarray((a, b * c), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=both.reshape((a, b * c)))
                nisa.dma_copy(dst=out((a, b * c)), src=t)
        return tuple(outs)
    return kernel, inputs


def left_out(seeds):
    "How many moves random programs have, each with the same bits as before, and taken by the chip."
    count = 0
    for seed in seeds:
        case = drawn_case(seed)
        kernel, inputs = assembled(*case)
        program = trace(kernel, *inputs, chip=case[-1].choice(('trn1', 'trn2', 'trn3')))
        want = [bits_of(x, False) for x in execute(program, *inputs)]
        for _ in range(8):                                   # one after another, as a search would take them
            after = next(iter(FAMILIES[FAMILY].moves(program)), None)
            if after is None: break
            program, count = after.program, count + 1
            assert not check(program), (seed, after, check(program))
            for one, other in zip(want, execute(program, *inputs)):
                assert not (bits_of(other, False) != one).any(), (seed, str(after), case)
            if seed % 10 == 0:
                assert first_difference(program, trace_again(write_lines(program), program)) is None, seed
    return count


def test_bits_stay_in_random_cases():
    assert left_out(range(80)) > 90


@pytest.mark.slow
def test_bits_stay_in_two_thousand_random_cases():
    assert left_out(range(80, 2080)) > 2000


def joined(late=False, early=False, twice=False):
    "Two inputs joined by rows and read in a loop; what is copied may change, be read early, or overlap."
    @jit
    def kernel(x, y):
        both = nl.ndarray((64, 32), nl.float32, buffer=nl.private_hbm)
        before = nl.ndarray((32, 32), nl.float32, buffer=nl.private_hbm)
        out = nl.ndarray((64, 32), nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((32, 32), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=y)
        nisa.dma_copy(dst=before, src=t)
        nisa.dma_copy(dst=both[0:32], src=x)
        if early:
            first = nl.ndarray((32, 32), nl.float32, buffer=nl.sbuf)
            seen = nl.ndarray((32, 32), nl.float32, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=first, src=both[0:32])
            nisa.dma_copy(dst=seen, src=first)
        nisa.dma_copy(dst=both[32:64], src=before)
        if twice: nisa.dma_copy(dst=both[16:48], src=x)
        if late: nisa.dma_copy(dst=before, src=x)
        for i in nl.affine_range(2):
            rows = nl.ndarray((32, 32), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=rows, src=both[16 * i:16 * i + 32] if twice else both.reshape((32, 2, 32))[:, i])
            nisa.dma_copy(dst=out.reshape((32, 2, 32))[:, i], src=rows)
        return (out, seen) if early else out
    x, y = (np.random.default_rng(n).random((32, 32), np.float32) for n in range(2))
    program = trace(kernel, x, y, chip='trn2')
    return program, {t.name: k for k, t in enumerate(program.tensors)}


def test_what_it_says_where_it_is_refused():
    for transform, name, how, why in (
            (read_where_it_lies, 'both', dict(late=True), 'before is still written'),
            (read_where_it_lies, 'both', dict(early=True), 'otherwise than by a later load'),
            (read_where_it_lies, 'both', dict(twice=True), 'elements of both are written twice'),
            (read_where_it_lies, 'out', {}, 'out is no scratch in HBM'),
            (store_where_it_goes, 'both', {}, 'both is not just copied to another place in HBM'),
            (store_where_it_goes, 'before', dict(twice=True), 'writes both too'),
            (store_where_it_goes, 'before', dict(early=True), 'both is read before it is whole'),
            (store_where_it_goes, 'before', dict(late=True), 'before is still written when it is copied')):
        program, names = joined(**how)
        with pytest.raises(IllegalTransformation, match=why): transform(program, names[name])


def test_a_part_in_each_iteration():
    program, names = joined()
    after = read_where_it_lies(program, names['both'])
    x, y = (np.random.default_rng(n).random((32, 32), np.float32) for n in range(2))
    assert np.array_equal(execute(after, x, y)[0], np.concatenate([x, y]))
    assert [t.name for t in after.tensors if t.buffer == 'hbm'] == ['x', 'y', 'before', 'out']
