"""The most that is alive at one moment, beside a count at every moment."""
from types import SimpleNamespace
import numpy as np
import pytest
from kernel_lab.nki.timing import timeline


def counted(lifetimes, rows, pool):
    "At each begin: what has begun and not ended, an end at the same time having freed its room."
    spans = [(rows.start[f], max([rows.end[u] for u in users if u >= 0], default=0), n) for p, f, n, users in
             zip(lifetimes.pool, lifetimes.first, lifetimes.units, lifetimes.users) if p == pool and f >= 0 and n > 0]
    return max([0, *(sum(n for start, _, n in spans if start <= now) - sum(n for _, end, n in spans if end <= now)
                     for now, _, _ in spans)])


@pytest.mark.parametrize('seed', range(60))
def test_peak_is_the_most_alive_at_one_moment(seed):
    rng = np.random.default_rng(seed)
    n, instructions = int(rng.integers(0, 40)), 50
    start = rng.integers(0, 20, instructions).astype(float)        # many at the same moment
    rows = SimpleNamespace(start=start, end=start + rng.integers(0, 4, instructions))
    lifetimes = SimpleNamespace(pool=rng.integers(1, 3, n), first=rng.integers(-1, instructions, n),
                                units=rng.integers(0, 9, n), users=rng.integers(-1, instructions, (n, 3)))
    for pool in (1, 2): assert timeline._core_peak(lifetimes, rows, pool) == counted(lifetimes, rows, pool)
