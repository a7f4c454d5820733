"""Random kernels of both dialects: each runs and equals plain numpy, or is refused with its line; no third way.

`kernel_maker` draws the programs and evaluates them apart from kernel_lab. The sample here is the same in every run;
`make slow` draws 10,000."""
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, Program, assert_ok, execute, schedule
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.executor import loop_passes, plan, vectorized
from kernel_lab.nki.lang.trace import trace_source
from kernel_maker import DTYPES, SeededMaker, Undefined, bits_of, mistakes, nasty, recipes, render

@pytest.fixture(autouse=True)
def always_planned(monkeypatch): monkeypatch.setattr(plan, "MIN_ELEMENTS_PER_INSTRUCTION", 0)      # light programs too


CHIPS = ("trn1", "trn2")
FEW = dict(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
MANY = FEW | dict(derandomize=False)


def traced(text, arrays, chip="trn2"):
    return assert_ok(trace_source(text, None, [ArraySpec(a.shape, a.dtype.name) for a in arrays.values()], chip))


def differs(got, want, error):
    """Where a result is neither within its error nor the same infinity or NaN; what a mask left undefined may be
    anything."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.isfinite(error) & ~((np.abs(got - want) <= error) | (got == want) | (np.isnan(got) & np.isnan(want)))


def same_bits(one, other):
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
               for a, b in zip(one, other, strict=True))


def check_kernel(recipe):
    "The contract, for one random kernel."
    text, arrays = render(recipe), recipe.arrays()
    try: want = recipe.expected()
    except Undefined as why:
        try: execute(traced(text, arrays), *arrays.values())
        except KernelError as e: assert e.line, f"{why}: {e}"
        else: assert why.either, f"{why}: it ran\n{text}"
        return
    try: program = traced(text, arrays)
    except KernelError as e:        # turns of an affine loop that need each other
        if recipe.carried and e.line and "nl.affine_range" in str(e): return
        raise
    got = interpret(program, *arrays.values())
    for y, (values, error) in zip(got, want, strict=True):
        assert y.dtype == values.dtype and y.shape == values.shape
        assert not differs(y, values, error).any(), text
    check_program(text, program, arrays, want, got)


def check_program(text, program, arrays, want, got):
    "The batched execution, the file format, tracing again and the schedule."
    for y, quick, (_, error) in zip(got, execute(program, *arrays.values()), want, strict=True):
        assert not differs(quick, y, error).any(), text
    again = Program.from_json(program.to_json())
    assert again.to_json() == program.to_json()
    if all(np.isfinite(error).all() for _, error in want): assert same_bits(interpret(again, *arrays.values()), got)
    assert traced(text, arrays).hash == program.hash
    try: first = schedule(program)
    except KernelError as full: assert full.kind == "limit" and full.line; return
    second = schedule(again)
    assert first.latency_us == second.latency_us > 0 and np.array_equal(
        first.start_us, second.start_us) and np.array_equal(first.end_us, second.end_us)


def check_mistake(recipe, text, line):
    "A kernel with a mistake is refused, with the line of the mistake."
    arrays = recipe.arrays()
    try: execute(traced(text, arrays), *arrays.values())
    except KernelError as e:
        assert e.line == line if line else e.line, f"line {e.line}, not {line}: {e}\n{text}"
        assert "Traceback" not in str(e)
    else: raise AssertionError(f"line {line} was accepted:\n{text}")


@settings(max_examples=60, **FEW)
@given(recipes())
def test_random_kernels(recipe): check_kernel(recipe)


@settings(max_examples=120, **FEW)
@given(mistakes())
def test_random_mistakes(case): check_mistake(*case)


# --- both executors, on values that hide nothing ---

def runs(program, made, arrays, without=(), threads=1):
    "The outputs of a program's plan, on so many threads; the vectorizers named in `without` are left out."
    kept = vectorized.VECTORIZERS
    try:
        vectorized.VECTORIZERS = [v for v in kept if v[1].__name__ not in without]
        return plan.in_shape(program, vectorized._run_plan(*made, arrays, threads))
    except vectorized.NotFinite:
        made = plan.build_plan(made[0].program, finite=False)
        return plan.in_shape(program, vectorized._run_plan(*made, arrays, threads))
    finally: vectorized.VECTORIZERS = kept


def check_paths(seed):
    """'same' where program `seed` gives the same bits on both paths, else 'refused' or 'one path' (there is no plan). A
    matrix product of a nest may add in another order: one that differs must be the same where only products are made
    tile by tile."""
    recipe = SeededMaker(seed).recipe()
    arrays = {k: nasty(shape, np.dtype(v), seed + n, (2 / 3, 0.02, 0.0)[seed % 3]) for n, (k, (shape, v)) in enumerate(
        (k, (shape, DTYPES[kind])) for k, (shape, kind) in recipe.inputs.items())}
    text = render(recipe)
    try:
        program = trace_source(text, None, [ArraySpec(a.shape, a.dtype.name) for a in arrays.values()],
                               CHIPS[seed % len(CHIPS)])
        want = interpret(program, *arrays.values())
    except KernelError: return 'refused'
    fused, call = (0, 64) if seed % 4 == 1 else (loop_passes.MIN_SHARED_TENSOR_BYTES, loop_passes.ELEMENTS_PER_CALL)
    with mock.patch.multiple(loop_passes, MIN_SHARED_TENSOR_BYTES=fused, ELEMENTS_PER_CALL=call):
        made = plan.plan_of(program)
    if made is None: return 'one path'
    off = differences(want, runs(program, made, list(arrays.values()), threads=1 + (seed % 8 == 0)))
    if off and any(o.op == 'nc_matmul' for o in program.instructions):
        off = differences(want, runs(program, plan.build_plan(program), list(arrays.values()), ('vectorize_matmul',)))
        if not off: return 'same but for sums'
    assert not off, f'program {seed}: {off}\n{text}'
    return 'same'


def differences(one, other):
    return [f'output {k}: {n} differ' for k, (a, b) in enumerate(zip(one, other, strict=True))
            for n in [(bits_of(a, False) != bits_of(b, False)).sum()] if n]


def many_paths(seeds):
    "How often each answer came, and the seeds that failed with their errors."
    found, failed = Counter(), {}
    for seed in seeds:
        try: found[check_paths(seed)] += 1
        except (AssertionError, KernelError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
            failed[seed] = f'{type(e).__name__}: {e}'[:2000]
    return found, failed


def test_both_paths_of_random_kernels():
    "The last two: numpy multiplies a tile by itself in its own way, and a product that underflows is -0."
    found, failed = many_paths([*range(45), 23503, 299631])
    assert not failed, next(iter(failed.values()))
    assert found['same'] > 30 and found['same but for sums'] < 20, found


@pytest.mark.slow
def test_a_hundred_thousand_on_both_paths():
    "In worker processes, as many as there are processors."
    chunks = [range(k, k + 500) for k in range(0, 100_000, 500)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context('spawn')) as pool:
        answers = list(pool.map(many_paths, chunks))
    failed = {k: v for _, errors in answers for k, v in errors.items()}
    print(sum((found for found, _ in answers), Counter()))
    assert not failed, f'{len(failed)} of 100,000 programs: {failed}'[:4000]


@pytest.mark.slow
def test_ten_thousand():
    since = time.perf_counter()
    settings(max_examples=7000, **MANY)(given(recipes())(check_kernel))()
    settings(max_examples=3000, **MANY)(given(mistakes())(lambda case: check_mistake(*case)))()
    print(f"10,000 kernels in {time.perf_counter() - since:.0f} s")
