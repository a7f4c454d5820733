"""Programs written as source: the same program, numbers and time; what has no source is refused."""
import ast
from dataclasses import replace

import numpy as np
import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.nki.record.python_subset import read_outside
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.writing.same_program import first_difference
from kernel_lab.nki.writing.writer import to_source, trace_again
from kernel_lab.targets.nki_sim import specs_of
from kernel_lab.tasks.suite.registry import TASKS, get_task

CHIPS = ('trn1', 'trn2', 'trn3')
# hand-written ones, products, convolutions, a gather, a scan, a top-k, views of every kind, columns from last to first
SOME = ('softmax', 'causal_attention', 'matmul', 'swiglu', 'focal_loss', 'adamw_step', 'add_layer_norm', 'conv2d_3x3',
        'avg_pool2d', 'embedding', 'paged_decode', 'cumsum', 'argmax_rows', 'flip_columns', 'triangular_matmul')
FEW = [*dict.fromkeys([*SOME, *list(TASKS)[::25]])]


def first_program(name, size, chip='trn2'):
    task = get_task(name)
    kernel = task.first(size)
    return trace_source(kernel.source, kernel.entry, list(specs_of(task, task.workload(size))), chip)


def written(program):
    "The source, and the program that it gives."
    source = to_source(program)
    return source, trace_again(source, program)


def latency(program, chip):
    "Simulated µs, or None where the chip has no room for it."
    try: return schedule(program, chip).latency_us
    except KernelError: return None


def same_times(one, other):
    for chip in CHIPS:
        a, b = latency(one, chip), latency(other, chip)
        assert a == b or abs(b / a - 1) < 0.01, chip


@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', FEW)
def test_a_first_kernel_comes_back(name):
    program = first_program(name, 'small')
    source, again = written(program)
    inputs = [*get_task(name).draw('small', 3).values()]
    for a, b in zip(execute(program, *inputs), execute(again, *inputs)): assert a.tobytes() == b.tobytes()
    same_times(program, again)
    assert to_source(again) == source                              # what it writes, it writes again
    assert read_outside(source) == [] and '[[' not in source.replace('pattern=[[', '').replace('.ap([[', '')
    one, other = (ast.get_docstring(ast.parse(s).body[-1]) for s in (source, get_task(name).first('small').source))
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize('name', list(TASKS))
def test_every_first_kernel_comes_back(name):
    for size in ('small', 'full'):
        program = first_program(name, size)
        source, again = written(program)
        assert len([line for line in source.splitlines() if len(line) > 120 and '"""' not in line]) == 0
        same_times(program, again)


def test_the_suite_needs_hardly_any_patterns():
    counts = {name: to_source(first_program(name, 'small')).count('.ap(') for name in FEW}
    assert {name for name, n in counts.items() if n} == {'flip_columns', 'embedding', 'paged_decode'}


# --- names, comments, notes ---

KERNEL = '''
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def kernel(x):
    """What the kernel says of itself."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row_block in nl.affine_range(4):
        # one block of rows
        tile = nl.ndarray((128, 512), x.dtype)
        nisa.dma_copy(tile, x[row_block * 128:(row_block + 1) * 128])

        # twice as large
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(out[row_block * 128:(row_block + 1) * 128], tile)
    return out
'''


def program_of(source, *shapes, chip='trn2'):
    return trace_source(source, None, [ArraySpec(s) for s in shapes], chip)


def test_names_comments_and_notes_are_kept():
    program = program_of(KERNEL, (512, 512))
    source = to_source(program, {1: 'changed', program.instructions[0].op: '', 'i0': 'four blocks', '': 'made shorter'})
    for line in ('def kernel(x):', '"""What the kernel says of itself."""', '# one block of rows', '# twice as large',
                 '# changed', '# four blocks', '# made shorter', 'for row_block in nl.affine_range(4):',
                 'x[row_block * 128:(row_block + 1) * 128, :]'):
        assert source.count(line) == 1, line
    assert source.index('# twice as large') < source.index('# changed') < source.index('nisa.tensor_scalar(')


def test_an_edit_of_a_program_is_an_edit_of_its_source():
    program = program_of(KERNEL, (512, 512))
    loop, = program.body
    other = replace(loop.body[1], ins={**loop.body[1].ins, 'operand0': 3.0})
    changed = replace(program, body=(replace(loop, body=(loop.body[0], other, loop.body[2])),))
    a, b = to_source(program).splitlines(), to_source(changed).splitlines()
    assert len(a) == len(b) and sum(x != y for x, y in zip(a, b)) == 1


@pytest.mark.parametrize('name', ['nl', 'for', 'x y', '1x', '', 'float', 'é', "x'); import os; ('"])
def test_names_become_identifiers(name):
    program = program_of(KERNEL, (512, 512))
    tensors = tuple(replace(t, name=name) for t in program.tensors)
    renamed = replace(program, name=name or 'k', tensors=tensors)
    source = to_source(renamed)
    names = [n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)]
    assert first_difference(program, trace_again(source, renamed)) is None and 'os' not in names


@pytest.mark.parametrize('text', ['ends in "', 'back\\slash', '"""', "'''", 'two\nlines', 'a\x00b', '{x}', '#'])
def test_docstrings_and_comments_cannot_be_code(text):
    program = program_of(KERNEL.replace('"""What the kernel says of itself."""', repr(text)), (512, 512))
    source = to_source(program)
    found = ast.get_docstring(ast.parse(source).body[-1], clean=False)
    assert found.split() == text.split()


# --- what is refused ---

def refused(program):
    with pytest.raises(KernelError) as e: to_source(program)
    assert e.value.kind == 'unsupported' and e.value.hint and '\n' not in e.value.message
    return e.value.message


def test_masks_that_move_with_a_loop_are_refused():
    program = program_of(KERNEL, (512, 512))
    loop, = program.body
    moving = replace(loop.body[0].ins['src'].offset, const=0, terms=((loop.name, -1),))
    masked = replace(loop.body[1], mask=((moving, ((-1, 1),)),))
    assert 'mask' in refused(replace(program, body=(replace(loop, body=(loop.body[0], masked, loop.body[2])),)))


@pytest.mark.parametrize('kind, what', [('core', 'two cores'), ('parallel', 'grid'), ('dynamic', 'in memory'),
                                        ('while', 'in memory')])
def test_loops_without_a_source_are_refused(kind, what):
    program = program_of(KERNEL, (512, 512))
    assert what in refused(replace(program, body=(replace(program.body[0], kind=kind),)))


def test_unknown_instructions_and_too_many_are_refused():
    program = program_of(KERNEL, (512, 512))
    loop, = program.body
    with_op = lambda op: replace(program, body=(replace(loop, body=(replace(loop.body[1], op=op),)),))
    assert 'all_gather' in refused(with_op('all_gather')) and 'register' in refused(with_op('register_move'))
    assert '30,000 statements' in refused(replace(program, body=loop.body[1:2] * 30_000))


def test_a_tensor_used_outside_its_loop_is_refused():
    program = program_of(KERNEL, (512, 512))
    loop, = program.body
    assert 'outside the loops' in refused(replace(program, body=(loop, loop.body[1])))


def test_a_program_that_another_trace_would_change_is_refused():
    "An attribute that no argument gives: the written source would leave it out."
    program = program_of(KERNEL, (512, 512))
    loop, = program.body
    odd = replace(loop.body[1], attrs={**loop.body[1].attrs, 'resets': ['i0']})
    assert 'another one' in refused(replace(program, body=(replace(loop, body=(loop.body[0], odd, loop.body[2])),)))


def test_random_views_come_back_or_are_refused():
    "Slices, steps, reshapes, permutations and repeats, drawn at random: what is written is what was read."
    rng = np.random.default_rng(0)
    for _ in range(120):
        shape = tuple(int(n) for n in rng.choice([2, 3, 4, 6, 8], rng.integers(1, 5)))
        text = random_view(rng, shape)
        source = f"""
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def kernel(x):
    view = x{text}
    out = nl.ndarray(view.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, view)
    return out
"""
        program = program_of(source, shape)
        assert first_difference(program, trace_again(to_source(program), program)) is None, text


def random_view(rng, shape):
    "A chain of views of an array of this shape, as text."
    text = ''
    for _ in range(int(rng.integers(1, 4))):
        kind = rng.choice(['slice', 'permute', 'merge', 'split', 'one'])
        if kind == 'slice':
            keys = []
            for n in shape:
                start = int(rng.integers(0, n))
                stop, step = int(rng.integers(start + 1, n + 1)), int(rng.integers(1, 3))
                keys.append((start, stop, step))
            text += f"[{', '.join(f'{a}:{b}:{c}' for a, b, c in keys)}]"
            shape = tuple(-(-(b - a) // c) for a, b, c in keys)
        elif kind == 'permute':
            order = [int(k) for k in rng.permutation(len(shape))]
            text += f'.permute({tuple(order)})'
            shape = tuple(shape[k] for k in order)
        elif kind == 'one':
            at = int(rng.integers(0, len(shape) + 1))
            text += f'.expand_dims({at}).broadcast(dim={at}, size=3)'
            shape = (*shape[:at], 3, *shape[at:])
        elif text == '' and kind == 'merge' and len(shape) > 1:
            shape = (shape[0] * shape[1], *shape[2:])
            text += f'.reshape({shape})' if len(shape) > 1 else f'.reshape(({shape[0]},))'
        elif text == '' and shape[0] % 2 == 0:
            shape = (2, shape[0] // 2, *shape[1:])
            text += f'.reshape({shape})'
    return text
