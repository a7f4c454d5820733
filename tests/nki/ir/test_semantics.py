"""Functions of many elements and searches in long rows, against what they say, element by element."""
import math

import numpy as np
import pytest

from kernel_lab.nki.ir.semantics import ACT, max8, nc_find_index8


def test_erf_of_many_elements_is_that_of_each():
    x = (3 * np.random.default_rng(0).standard_normal((40, 2000))).astype(np.float32)
    x.flat[:7] = 0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e30
    one_by_one = np.array([math.erf(v) for v in x.flat], np.float32).reshape(x.shape)
    assert ACT["erf"](x).view(np.uint32).tolist() == one_by_one.view(np.uint32).tolist()
    assert ACT["erf"](x[:1]).view(np.uint32).tolist() == one_by_one[:1].view(np.uint32).tolist()


def rows(rng, shape):
    "Rows with ties, or NaN, or neither."
    x = rng.integers(-4, 5, shape) if rng.random() < 0.5 else rng.standard_normal(shape)
    x = x.astype(np.float32)
    if rng.random() < 0.3: x[rng.random(shape) < 0.1] = np.nan
    return x


def positions(row, values):
    "Where each value stands in a row, its k-th occurrence for the k-th of equal ones; -1 where there is none."
    found = []
    for k, v in enumerate(values):
        at, nth = np.flatnonzero(row == v), int((values[:k] == v).sum())
        found.append(int(at[nth]) if nth < len(at) else -1)
    return found


@pytest.mark.parametrize("shape", [(4, 8), (7, 9), (128, 700), (3, 5, 20)])
def test_the_8_largest_and_where_they_stand(shape):
    rng = np.random.default_rng(shape)
    for _ in range(20):
        x = rows(rng, shape)
        flat = x.reshape(len(x), -1)
        top = max8({"src": x}, {})
        plain = [sorted(row, key=lambda v: (math.isnan(v), -v))[:8] for row in flat.tolist()]
        np.testing.assert_array_equal(top, np.array(plain, np.float32))
        values = top if rng.random() < 0.5 else rows(rng, (len(x), 8))
        found = nc_find_index8({"data": x, "vals": values}, {})
        assert found.tolist() == [positions(row, v) for row, v in zip(flat, values)]
