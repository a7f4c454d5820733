"""What a report says of an output, against the same six numbers written plainly: on numbers of all sizes, values that are
not finite, equal elements, chunks and blocks that end anywhere."""
import math

import numpy as np
import pytest

from kernel_lab.evaluate.verification.verify import CHUNK_ELEMENTS, compare, report_on
from kernel_lab.tasks.model.workload import DTYPES, Tolerance

SIZES = (1, 3, 255, 256, 257, 4000, CHUNK_ELEMENTS - 1, CHUNK_ELEMENTS + 300)
NASTY = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, -1e300, 3e38, 1e-45, 1.0])


def drawn(rng, size, dtype):
    "(got, want) of a size and dtype: close, somewhere equal, somewhere nasty."
    want = rng.standard_normal(size) * 10.0 ** rng.integers(-5, 5)
    got = want * (1 + rng.choice([1e-4, 1e-3, 0.1]) * rng.standard_normal(size))
    with np.errstate(all="ignore"):
        for x in (got, want):
            at = rng.random(size) < rng.choice([0, 0, 1e-3, 0.1])
            x[at] = rng.choice(NASTY, int(at.sum()))
        same = rng.random(size) < rng.choice([0, 0.5, 1])
        got[same] = want[same]
        return got.astype(dtype), want.astype(dtype)


def plainly(got, want, rtol, atol):
    "(largest absolute and relative difference, share outside, lost, first outside, worst), and the errors."
    g, w = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        off, size = np.abs(g - w), np.abs(w)
        ratio = off / (size * rtol + atol)
        ratio[~(np.isfinite(g) & np.isfinite(w))] = np.nan
        ratio[g == w] = 0
        lost, bad = np.isnan(ratio), ~(ratio <= 1)
        off[lost | (g == w)] = 0
        relative = np.divide(off, size, out=np.zeros_like(off), where=np.isfinite(size) & (size > 0))
    first = int(bad.argmax()) if bad.any() else None
    return (off.max(), relative.max(), bad.mean(), int((lost & np.isfinite(w)).sum()), first, int(ratio.argmax()),
            np.minimum(ratio, 1e9).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
def test_a_report_says_what_it_says_plainly(size, dtype):
    rng = np.random.default_rng([size, len(dtype)])
    for _ in range(12):
        got, want = drawn(rng, size, DTYPES.get(dtype, np.float64))
        tolerance = Tolerance(*[(0.01, 0.1), (1e-3, 0.0), (1e-3, np.nan), (1e-3, np.inf)][rng.integers(4)], "")
        largest, relative, share, lost, first, worst, errors = plainly(got, want, tolerance.rtol, tolerance.atol)
        report, ratio = compare(got, want, tolerance)
        assert repr(report) == repr(report_on(got, want, tolerance))
        assert (report.max_abs, report.max_rel, report.nan_count) == (largest, relative, lost)
        assert math.isclose(report.mismatch_share, share) and report.worst_index == (worst,)
        assert report.first_bad == (None if first is None else (first,))
        np.testing.assert_array_equal(ratio, errors)
