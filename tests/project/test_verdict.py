"""The summary of `benchmarks/verdict.py`: shares of few values."""
import runpy
import statistics
from pathlib import Path

import pytest

WITHIN = runpy.run_path(str(Path(__file__).parents[2] / 'benchmarks' / 'verdict.py'))['within']


@pytest.mark.parametrize('values', [[3.0], [6.79, 7.14], [6.79, 7.5], [1, 2, 3], [1, 1, 9, 9], list(range(1, 12))])
@pytest.mark.parametrize('share', [0.5, 0.9, 1.0])
def test_a_share_holds_and_is_not_below_the_median(values, share):
    found = WITHIN(values, share)
    assert found in values and sum(v <= found for v in values) >= share * len(values)
    assert found >= statistics.median(values)
