"Regions against brute force: iterations that are called apart touch no element in common."
import itertools
import random

from kernel_lab.nki.ir.regions import Region, iterations_disjoint

STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, -1, -2, -4)


def elements(place, trips, fixed):
    "The elements of a region, with some loops at one iteration."
    moving = [(vec, [fixed[u]] if u in fixed else range(trips[u])) for u, vec in place.loops.items()]
    moving += [(vec, range(n)) for vec, n in place.axes]
    return {tuple(c + sum(i * vec[d] for i, (vec, _) in zip(at, moving)) for d, c in enumerate(place.const))
            for at in itertools.product(*(turns for _, turns in moving))}


def are_apart(places, trips, outer):
    "Whether iterations of loop v share no element; where `outer` is given, in each of its iterations."
    for turn in [{outer: o} for o in range(trips[outer])] if outer else [{}]:
        met = [set().union(*(elements(p, trips, {'v': x, **turn}) for p in places)) for x in range(trips['v'])]
        if any(one & other for one, other in itertools.combinations(met, 2)): return False
    return True


def drawn(rng):
    dims, names = rng.choice((1, 1, 2)), ('v', 'a', 'b', 'o')
    step = lambda: tuple(rng.choice(STEPS) for _ in range(dims))
    trips, common = {n: rng.randint(1, 4) for n in names}, {n: step() for n in names}
    def place():
        loops = {n: common[n] if n in 'vo' or rng.random() < 0.6 else step() for n in names}
        axes = tuple((step(), rng.randint(1, 3)) for _ in range(rng.randint(0, 2)))
        return Region(tuple(rng.randint(0, 9) for _ in range(dims)), loops, axes)
    return [place() for _ in range(rng.randint(1, 2))], trips, rng.choice((None, 'o'))


def test_iterations_that_are_called_apart_are():
    rng, found = random.Random(5), 0
    for _ in range(6000):
        places, trips, outer = drawn(rng)
        if trips['v'] < 2 or not iterations_disjoint(places, 'v', trips, (outer,) if outer else ()): continue
        found += 1
        assert are_apart(places, trips, outer), (places, trips, outer)
    assert found > 500, found


def test_a_digit_between_others_is_apart():
    "Heads of a group: index = 8 · block + 2 · pair + head."
    heads = Region((0,), {'v': (1,), 'a': (8,), 'b': (2,)}, ())
    trips = {'v': 2, 'a': 4, 'b': 4}
    assert iterations_disjoint([heads], 'v', trips) and iterations_disjoint([heads], 'b', trips)
    assert not iterations_disjoint([heads], 'v', trips | {'v': 3})
    assert not iterations_disjoint([heads, Region((1,), heads.loops, ())], 'v', trips)
