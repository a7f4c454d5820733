"""Random kernels of both dialects: each runs and equals plain numpy, or is refused with its line; no third way.

`kernel_maker` draws the programs and evaluates them apart from kernel_lab. The sample here is the same in every run;
`make slow` draws 10,000."""
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from kernel_lab.core.errors import KernelError
from kernel_lab.nki import ArraySpec, Program, assert_ok, execute, schedule
from kernel_lab.nki.executor.interpreter import interpret
from kernel_lab.nki.executor import plan
from kernel_lab.nki.lang.trace import trace_source
from kernel_maker import Undefined, mistakes, recipes, render

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


@settings(max_examples=120, **FEW)
@given(recipes())
def test_random_kernels(recipe): check_kernel(recipe)


@settings(max_examples=120, **FEW)
@given(mistakes())
def test_random_mistakes(case): check_mistake(*case)


@pytest.mark.slow
def test_ten_thousand():
    since = time.perf_counter()
    settings(max_examples=7000, **MANY)(given(recipes())(check_kernel))()
    settings(max_examples=3000, **MANY)(given(mistakes())(lambda case: check_mistake(*case)))()
    print(f"10,000 kernels in {time.perf_counter() - since:.0f} s")
