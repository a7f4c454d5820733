"""What index arrays make of a tile is worked out once a trace: the same program as when it is worked out anew."""
import pytest

from kernel_lab.nki import ArraySpec, trace
from kernel_lab.nki.lang import legacy_language as nl
from kernel_lab.nki.lang.trace import jit
from kernel_lab.nki.record import indexing

ROWS, COLUMNS, TURNS = 32, 64, 60


def _kernel(once):
    "Copies tiles in a Python loop, by index arrays that are made once or in every iteration, and by one with a loop."
    def kernel(x):
        out = nl.ndarray((TURNS, ROWS, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        made = lambda: (nl.arange(ROWS)[:, None], nl.arange(COLUMNS)[None, :])
        rows, columns = made()
        for k in range(TURNS):
            if not once: rows, columns = made()
            wide = nl.ndarray((ROWS, 2 * COLUMNS), nl.float32, buffer=nl.sbuf)
            narrow = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.sbuf)
            wide[rows, 2 * columns] = nl.load(x[k, rows, columns])
            wide[rows, 2 * columns + 1] = nl.load(x[k, rows, columns])
            for i in nl.affine_range(2): narrow[rows, columns] = nl.copy(wide[rows, columns + COLUMNS * i])
            narrow[rows, columns] = nl.add(narrow[rows, columns], wide[rows, columns])
            nl.store(out[k, rows, columns], narrow[rows, columns])
        return out
    return jit(kernel, dialect='neuronxcc.nki')


def _body(once): return trace(_kernel(once), ArraySpec((TURNS, ROWS, COLUMNS))).body


@pytest.mark.sampled(2)
@pytest.mark.parametrize('most', [0, 1, 3, 1024])
def test_patterns_kept_or_not(monkeypatch, most):
    "However many are kept, and whether arrays live on or others take their place in memory."
    fresh = _body(once=False)
    monkeypatch.setattr(indexing, 'MAX_KEPT_PATTERNS', most)
    assert _body(once=True) == fresh == _body(once=False)


def test_arrays_that_take_the_place_of_others():
    "An index array that stands where a dead one stood in memory is not taken for it."
    def kernel(x):
        t, rows, columns = nl.load(x), nl.arange(ROWS)[:, None], nl.arange(2)[None, :]
        found = [t[rows, columns + k].offset.const for k in range(COLUMNS - 1)]
        assert found == [*range(COLUMNS - 1)]
        nl.store(x, t)
    assert trace(jit(kernel, dialect='neuronxcc.nki'), ArraySpec((ROWS, COLUMNS))).instructions


def test_as_many_are_kept_as_there_is_room_for(monkeypatch):
    "A trace with new arrays in every iteration does not gather them all."
    most, sizes, raw = 8, [], indexing.index_by_arrays
    monkeypatch.setattr(indexing, 'MAX_KEPT_PATTERNS', most)
    def counted(tile, keys):
        found = raw(tile, keys)
        sizes.append(len(tile.rec.patterns))
        return found
    monkeypatch.setattr(indexing, 'index_by_arrays', counted)
    _body(once=False)
    assert max(sizes) == most and len(sizes) > 5 * TURNS


def test_an_index_out_of_bounds_is_refused_each_time():
    "Nothing is kept of brackets that are refused: the second time they are refused again."
    def kernel(x):
        t, rows, columns = nl.load(x), nl.arange(ROWS)[:, None], nl.arange(COLUMNS)[None, :]
        for _ in range(2):
            with pytest.raises(Exception, match='do not mix'): t[rows, 'a']
            with pytest.raises(Exception, match='broadcast'): t[rows, nl.arange(COLUMNS)[:, None]]
        nl.store(x[rows, columns], t[rows, columns])
    assert trace(jit(kernel, dialect='neuronxcc.nki'), ArraySpec((ROWS, COLUMNS))).instructions
