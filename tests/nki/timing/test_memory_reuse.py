"""No two tiles that share memory are in use at once: read off the timelines of random programs, on chips whose memories
are just as large as it takes in program order. Banks of PSUM that rotate are left out: the page of allocation says
why."""
import pytest
from memory_programs import memory_program, peaks
from random_programs import rows_of

from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.timing import scheduler

# (rows ahead, loads left out, engines chosen, queues of Vector, buffers of a tensor)
MODES = [(0, False, False, 1, 0), (0, False, True, 1, 0), (0, False, False, 2, 0), (5, False, False, 1, 0),
         (64, False, False, 1, 0), (400, True, True, 1, 2), (400, True, True, 2, 0), (400, False, True, 1, 4)]
DIALECTS = ('nki', 'neuronxcc.nki')


def tight(program, chip):
    "({memory: units that its values need in program order}, the chip with that much)."
    n = len(rows_of(program))
    need = peaks(program, chip, {k: k for k in range(n)}, {k: k + 0.5 for k in range(n)})
    return need, chip.but(sbuf_bytes=need.get('sbuf', 1) + chip.sbuf_reserved, psum_banks=need.get('psum', 1))


def overfull(seed, mode, dialect, n=20, more=0):
    """{memory: (units in use at once, units there are)} where a timeline uses more than there is, on a chip with `more`
    bytes of SBUF than it takes, in which loads may be kept."""
    ahead, reuse, balance, vectors, copies = mode
    p = memory_program(seed, n, dialect)
    need, chip = tight(p, CHIPS['trn2'])
    need['sbuf'] = need.get('sbuf', 1) + more
    chip = chip.but(vector_queues=vectors, sbuf_bytes=chip.sbuf_bytes + more, compiler_stream_bytes=0)
    run = scheduler.run(p, chip, ahead, reuse, balance, copies=copies)
    place = {(int(k), int(t)): r for r, (k, t) in enumerate(zip(run.instr, run.turn))}
    at = {n: place[k, t] for n, (k, t, _) in enumerate(rows_of(p)) if (k, t) in place}
    assert run.missing < 0 and (reuse or len(at) == len(rows_of(p)))
    used = peaks(p, chip, *({n: float(times[r]) for n, r in at.items()} for times in (run.rows.start, run.rows.end)))
    if copies: used.pop('psum', 0)                                  # banks rotate
    return {b: (n, need[b]) for b, n in used.items() if n > need[b] + 1e-6}


@pytest.mark.parametrize('dialect', DIALECTS)
@pytest.mark.parametrize('mode', MODES, ids=str)
def test_memory_is_never_overfull(mode, dialect):
    assert not {seed: x for seed in range(6) if (x := overfull(seed, mode, dialect))}


@pytest.mark.slow
@pytest.mark.parametrize('dialect', DIALECTS)
@pytest.mark.parametrize('mode', MODES, ids=str)
def test_memory_is_never_overfull_in_many_programs(mode, dialect):
    assert not {seed: x for seed in range(1000) if (x := overfull(seed, mode, dialect, 30))}


def test_the_programs_reuse_memory():
    "Or the tests above would show nothing: with memory without end they would use more."
    more = 0
    for seed in range(10):
        p = memory_program(seed)
        need, _ = tight(p, CHIPS['trn2'])
        run = scheduler.run(p, CHIPS['trn2'].but(sbuf_bytes=2**40, psum_banks=2**20), 64)
        place = {(int(k), int(t)): r for r, (k, t) in enumerate(zip(run.instr, run.turn))}
        at = [place[k, t] for k, t, _ in rows_of(p)]
        used = peaks(p, CHIPS['trn2'], dict(enumerate(run.rows.start[at])), dict(enumerate(run.rows.end[at])))
        more += used['sbuf'] > need['sbuf']
    assert more > 7
