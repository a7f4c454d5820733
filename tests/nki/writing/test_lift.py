"""Kernels of the earlier dialect in the current one: the same numbers bit for bit, within the chip's limits."""
import os
import time
from dataclasses import replace

import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.ir.nodes import ArraySpec, Loop
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.writing.lift import lift, without_single_loops
from kernel_lab.nki.writing.writer import to_source, trace_again

HEAD = '''
import numpy as np
from neuronxcc import nki
import neuronxcc.nki.language as nl
import neuronxcc.nki.isa as nisa
@nki.jit
def kernel(x):
    out = nl.ndarray(SHAPE, nl.float32, buffer=nl.shared_hbm)
BODY
    return out
'''
KERNELS = {     # name: (shape of the result, body); x is float32 [512, 512]
    'blocks': ((512, 512), '''
    t = nl.ndarray((4, nl.par_dim(128), 512), nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(4):
        t[i] = nl.load(x[i * 128:(i + 1) * 128, :])
    for j in nl.affine_range(4):
        nl.store(out[j * 128:(j + 1) * 128, :], nl.exp(t[j]))'''),
    'block of a loop': ((512, 512), '''
    t = nl.ndarray((4, 2, nl.par_dim(128), 256), nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(4):
        for j in nl.affine_range(2):
            t[i, j] = nl.load(x[i * 128:(i + 1) * 128, j * 256:(j + 1) * 256])
            nl.store(out[i * 128:(i + 1) * 128, j * 256:(j + 1) * 256], nl.multiply(t[i, j], 2.0))'''),
    'masked rows': ((300, 512), '''
    for i in nl.affine_range(3):
        r = i * 128 + nl.arange(128)[:, None]
        c = nl.arange(512)[None, :]
        t = nl.load(x[r, c], mask=r < 300)
        nl.store(out[r, c], nl.add(t, 1.0, mask=r < 300), mask=r < 300)'''),
    'masked rows, blocks': ((300, 500), '''
    t = nl.ndarray((3, 4, nl.par_dim(128), 128), nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(3):
        for j in nl.affine_range(4):
            r = i * 128 + nl.arange(128)[:, None]
            c = j * 128 + nl.arange(128)[None, :]
            m = (r < 300) & (c < 500)
            t[i, j] = nl.load(x[r, c], mask=m)
            nl.store(out[r, c], nl.exp(t[i, j], mask=m), mask=m)'''),
    'sums over loops': ((128, 4), '''
    s = nl.ndarray((4, nl.par_dim(128), 1), nl.float32, buffer=nl.sbuf)
    p = nl.ndarray((4, 4, nl.par_dim(128), 1), nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(4):
        for j in nl.affine_range(4):
            t = nl.load(x[i * 128:(i + 1) * 128, j * 128:(j + 1) * 128])
            p[i, j, nl.arange(128)[:, None], 0] = nisa.tensor_reduce(OP, t, axis=[1])
            s[j, nl.arange(128)[:, None], 0] = nl.loop_reduce(p[i, j, nl.arange(128)[:, None], 0], op=OP,
                                                              loop_indices=[i])
    for k in nl.affine_range(4):
        nl.store(out[nl.arange(128)[:, None], k + nl.arange(1)[None, :]], s[k])'''),
    'identity': ((128, 512), '''
    one = nl.shared_constant(np.identity(128, dtype=np.float32))
    eye = nl.load(one)
    for i in nl.affine_range(4):
        t = nl.load(x[i * 128:(i + 1) * 128, 0:128])
        turned = nl.ndarray((nl.par_dim(128), 128), nl.float32, buffer=nl.psum)
        turned[...] = nisa.nc_matmul(t, eye, is_transpose=True)
        nl.store(out[:, i * 128:(i + 1) * 128], nl.copy(turned))'''),
    'product': ((128, 512), '''
    acc = nl.zeros((nl.par_dim(128), 512), nl.float32, buffer=nl.psum)
    for i in nl.affine_range(4):
        a = nl.load(x[i * 128:(i + 1) * 128, 0:128])
        b = nl.load(x[i * 128:(i + 1) * 128, :])
        acc += nisa.nc_matmul(a, b)
    nl.store(out, nl.copy(acc))''')}
OPERATIONS = ('np.add', 'np.maximum', 'np.multiply', 'np.minimum')
CASES = [(name, 'np.add') for name in KERNELS] + [('sums over loops', op) for op in OPERATIONS[1:]]


def earlier(name, op='np.add', chip='trn2'):
    shape, body = KERNELS[name]
    source = HEAD.replace('SHAPE', str(shape)).replace('BODY', body.replace('OP', op))
    return trace_source(source, None, [ArraySpec((512, 512))], chip)


def draw(kind, seed=0):
    x = np.random.default_rng(seed).standard_normal((512, 512), dtype=np.float32)
    return {'random': x, 'negative zeros': np.full_like(x, -0.0), 'infinities': np.where(x > 2, np.inf, x)}[kind]


@pytest.mark.parametrize('name, op', CASES)
def test_the_numbers_stay(name, op):
    program = earlier(name, op)
    source = to_source(program)
    again = trace_again(source, program)
    assert again.dialect == 'nki' and 'mask=' not in source and 'neuronxcc' not in source and '.ap(' not in source
    assert {t.par for t in again.tensors} == {0} and not check(again, 'trn2')
    for kind in ('random', 'negative zeros', 'infinities'):
        x = draw(kind)
        with np.errstate(all='ignore'): a, b = execute(program, x)[0], execute(again, x)[0]
        assert a.tobytes() == b.tobytes(), kind


def test_tiles_are_declared_in_the_loop_that_needs_them():
    source = to_source(earlier('masked rows, blocks'))
    assert 'nl.ndarray((128, 128)' in source and source.count('for ') > 1
    assert '172:' not in source and '44' in source                       # the last 44 rows on their own


def test_a_grid_becomes_loops():
    source = '''
from neuronxcc import nki
import neuronxcc.nki.language as nl
@nki.jit
def kernel(x):
    out = nl.ndarray((512, 512), nl.float32, buffer=nl.shared_hbm)
    i = nl.program_id(0)
    r, c = i * 128 + nl.arange(128)[:, None], nl.arange(512)[None, :]
    nl.store(out[r, c], nl.exp(nl.load(x[r, c])))
    return out
'''
    from kernel_lab.nki.lang.trace import installed, load_source, trace
    with installed(): program = trace(load_source(source)[(4,)], ArraySpec((512, 512)), chip='trn2')
    x = draw('random')
    again = trace_again(to_source(program), program)
    assert [l.trips for l in again.loops.values()] == [4]
    assert execute(program, x)[0].tobytes() == execute(again, x)[0].tobytes()


def lifted_alike(body):
    "(the program of a kernel of the earlier dialect, the same lifted, its source), which compute the same bits."
    program = trace_source(HEAD.replace('SHAPE', '(512, 512)').replace('BODY', body), None, [ArraySpec((512, 512))], 'trn2')
    source = to_source(program)
    again, x = trace_again(source, program), draw('random')
    assert execute(program, x)[0].tobytes() == execute(again, x)[0].tobytes() and not check(again, 'trn2')
    return program, again, source


@pytest.mark.parametrize('turn', ['nisa.nc_transpose(data)', 'nl.transpose(data)'])
def test_a_transpose_that_casts_is_one_and_a_copy(turn):
    program, again, source = lifted_alike(f"""
    for i in nl.affine_range(4):
        for j in nl.affine_range(4):
            data = nl.load(x[i * 128:(i + 1) * 128, j * 128:(j + 1) * 128])
            turned = nl.ndarray((128, 128), nl.bfloat16, buffer=nl.psum)
            turned[...] = {turn}
            nl.store(out[j * 128:(j + 1) * 128, i * 128:(i + 1) * 128], nl.copy(turned, dtype=nl.float32))""")
    casts = lambda p: [o for o in p.instructions if o.op == 'nc_transpose' and p.tensors[o.outs['dst'].tensor].dtype !=
                       p.tensors[o.ins['data'].tensor].dtype]
    assert casts(program) and not casts(again) and 'tensor_copy' in source


def test_a_psum_tile_of_several_banks_is_a_tile_for_each():
    program, again, _ = lifted_alike("""
    for i in nl.affine_range(4):
        sums = nl.zeros((128, 2, 512), nl.float32, buffer=nl.psum)
        rows = nl.load(x[i * 128:(i + 1) * 128, :])
        for k in nl.affine_range(2):
            sums[:, k, :] += nisa.nc_matmul(nl.load(x[k * 128:(k + 1) * 128, 0:128]), rows)
        nl.store(out[i * 128:(i + 1) * 128, :], nl.add(sums[:, 0, :], sums[:, 1, :]))""")
    size = lambda p: max(t.tile_bytes for t in p.tensors if t.buffer == 'psum')
    assert size(program) == 4096 and size(again) == 2048


@pytest.mark.parametrize('turns', [1, 4])
def test_a_sum_in_psum_that_nothing_started_starts_from_zeros(turns):
    program, again, _ = lifted_alike(f"""
    for i in nl.affine_range(4):
        rows = nl.load(x[i * 128:(i + 1) * 128, :])
        sums = nl.ndarray((nl.par_dim(128), 512), nl.float32, buffer=nl.psum)
        for k in nl.affine_range({turns}):
            sums[...] += nisa.nc_matmul(nl.load(x[k * 128:(k + 1) * 128, 0:128]), rows)
        nl.store(out[i * 128:(i + 1) * 128, :], nl.copy(sums))""")
    assert not any(t.zero for t in program.tensors if t.buffer == 'psum')


@pytest.mark.parametrize('op, axes', [('np.max', [1]), ('np.min', [1, 3]), ('np.max', [2]), ('np.add', [1])])
def test_axes_in_the_middle_are_reduced_last(op, axes):
    "Windows of 3 × 2 elements over rows of 32; the axes of a window stand in the middle or at the end."
    shape = tuple(n for k, n in enumerate((128, 3, 16, 2)) if k not in axes)
    program = trace_source(HEAD.replace('SHAPE', str(shape)).replace('BODY', f"""
    p, a, b, c = nl.mgrid[0:128, 0:3, 0:16, 0:2]
    t = nl.load(x[0:128, :])
    r = nisa.tensor_reduce({op}, t[p, a * 32 + b * 2 + c], axis={axes})
    nl.store(out, r.reshape({shape}))"""), None, [ArraySpec((512, 512))], 'trn2')
    again, x = trace_again(to_source(program), program), draw('random')
    assert execute(program, x)[0].tobytes() == execute(again, x)[0].tobytes() and not check(again, 'trn2')
    axis = lambda p: next(o for o in p.instructions if o.op == 'tensor_reduce').attrs['axis']
    assert axis(program) == axes and axis(again) == [*range(4 - len(axes), 4)]


def test_sums_over_several_axes_in_the_middle_are_refused():
    "They would add in another order."
    program = trace_source(HEAD.replace('SHAPE', '(128, 16)').replace('BODY', """
    p, a, b, c = nl.mgrid[0:128, 0:3, 0:16, 0:2]
    nl.store(out, nisa.tensor_reduce(np.add, nl.load(x[0:128, :])[p, a * 32 + b * 2 + c], axis=[1, 3]))"""), None,
                           [ArraySpec((512, 512))], 'trn2')
    refused, = check(trace_again(to_source(program), program), 'trn2')
    assert 'trailing axes' in refused.message


def test_what_python_unrolled_is_rolled_up_first():
    "1,024 turns of Python's own loop: passes over 5,120 instructions take many seconds."
    source = HEAD.replace('SHAPE', '(128, 16384)').replace('BODY', """
    for k in range(1024):
        t = nl.load(x[0:128, 16 * k:16 * k + 16])
        u = nl.ndarray((128, 16), nl.float32, buffer=nl.sbuf)
        u[0:64, 0:16] = nl.exp(t[0:64, 0:16])
        u[64:128, 0:16] = nl.tanh(t[64:128, 0:16])
        nl.store(out[0:128, 16 * k:16 * k + 16], u)""")
    program = trace_source(source, None, [ArraySpec((128, 16384))], 'trn2')
    since = time.process_time()
    again = lift(program)
    assert time.process_time() - since < 3 and len(again.instructions) < 8 and len(program.instructions) > 4000
    x = np.random.default_rng(0).standard_normal((128, 16384), dtype=np.float32)
    assert execute(program, x)[0].tobytes() == execute(again, x)[0].tobytes()


def test_a_tile_that_sbuf_does_not_hold_lies_in_hbm():
    body = '''
    t = nl.ndarray((120, nl.par_dim(128), 512), nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(120):
        t[i] = nl.exp(nl.load(x[0:128, :]))
    for j in nl.affine_range(120):
        nl.store(out[j], t[j])'''
    source = HEAD.replace('SHAPE', '(120, 128, 512)').replace('BODY', body)
    program = trace_source(source, None, [ArraySpec((512, 512))], 'trn2')
    again = trace_again(to_source(program), program)
    x = draw('random')
    assert not check(again, 'trn2') and schedule(again, 'trn2').latency_us
    assert execute(program, x)[0].tobytes() == execute(again, x)[0].tobytes()


@pytest.mark.parametrize('body, what', [
    ('''
    one = nl.shared_constant(np.arange(128 * 512, dtype=np.float32).reshape(128, 512))
    nl.store(out, nl.load(one))''', 'constant values'),
    ('''
    s = nl.ndarray((nl.par_dim(128), 512), nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(4):
        t = nl.load(x[i * 128:(i + 1) * 128, :])
        s[...] = nl.loop_reduce(t, op=np.subtract, loop_indices=[i])
    nl.store(out, s)''', 'loop_reduce')])
def test_what_has_no_form_is_refused(body, what):
    source = HEAD.replace('SHAPE', '(128, 512)').replace('BODY', body)
    program = trace_source(source, None, [ArraySpec((512, 512))], 'trn2')
    with pytest.raises(KernelError) as e: to_source(program)
    assert e.value.kind == 'unsupported' and what in e.value.message and e.value.hint and '\n' not in e.value.message


def test_loops_that_turn_once_are_dissolved():
    program = earlier('blocks')
    once = replace(program, body=tuple(replace(i, trips=1) if isinstance(i, Loop) else i for i in program.body))
    assert not without_single_loops(once).loops
    never = replace(program, body=tuple(replace(i, trips=0) if isinstance(i, Loop) else i for i in program.body))
    assert not without_single_loops(never).instructions


@pytest.mark.slow
def test_nkibench_comes_back_with_the_same_numbers():
    checkout = os.environ.get('NKIBENCH')
    if not checkout: pytest.skip('NKIBENCH names no checkout')
    from kernel_lab.targets.nki_sim import specs_of
    from kernel_lab.tasks.importers.import_suite import import_suite
    tasks = import_suite(checkout, seconds=300).tasks
    assert len(tasks) == 14
    for task in tasks.values():
        kernel = task.first('full')
        program = trace_source(kernel.source, kernel.entry, list(specs_of(task, task.workload('full'))), 'trn1')
        again = trace_again(to_source(program), program)
        assert not check(again, 'trn2'), task.name
        inputs = [*task.draw('full', 0).values()]
        for a, b in zip(execute(program, *inputs), execute(again, *inputs)): assert a.tobytes() == b.tobytes(), task.name
