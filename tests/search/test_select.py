"""Selection of rows of a population, compared with a plain slow version and by frequency."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ansorlite.search import select
from ansorlite.search.select import equals_before, roulette, rows_in, unique_rows

Rows = npt.NDArray[np.int32]


def populations(n_holes: int = 3) -> st.SearchStrategy[Rows]:
    shapes = st.tuples(st.integers(0, 30), st.just(n_holes))
    return shapes.flatmap(lambda s: hnp.arrays(np.int32, s, elements=st.integers(-2, 2)))


def weak_hashes(pop: Rows) -> npt.NDArray[np.uint64]:
    return (np.abs(pop).sum(axis=1) % 3).astype(np.uint64)


def first_occurrences(pop: Rows) -> list[int]:
    rows = [tuple(r) for r in pop.tolist()]
    return [i for i, r in enumerate(rows) if r not in rows[:i]]


@given(populations())
def test_unique_rows_are_the_first_of_their_kind(pop: Rows) -> None:
    assert unique_rows(pop).tolist() == first_occurrences(pop)


@given(populations(), populations())
def test_rows_in(pop: Rows, other: Rows) -> None:
    known = {tuple(r) for r in other.tolist()}
    assert rows_in(pop, other).tolist() == [tuple(r) in known for r in pop.tolist()]


def test_equal_rows_are_counted_in_their_order() -> None:
    pop = np.array([[1, 2], [3, 4], [1, 2], [1, 2], [3, 4], [0, 0]], np.int32)
    assert equals_before(pop).tolist() == [0, 0, 1, 2, 1, 0]
    assert equals_before(pop[:0]).tolist() == []
    assert equals_before(pop[:, :0]).tolist() == [0, 1, 2, 3, 4, 5]


def test_clashing_hashes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pop = rng.integers(0, 3, (60, 3), dtype=np.int32)
    other = rng.integers(0, 3, (9, 3), dtype=np.int32)
    monkeypatch.setattr(select, "_row_hashes", weak_hashes)
    assert unique_rows(pop).tolist() == first_occurrences(pop)
    known = {tuple(r) for r in other.tolist()}
    assert rows_in(pop, other).tolist() == [tuple(r) in known for r in pop.tolist()]


def test_hashes_tell_columns_and_neighbours_apart() -> None:
    values = np.arange(300, dtype=np.int32)
    pop = np.stack(np.meshgrid(values, values, indexing="ij"), -1).reshape(-1, 2)
    assert len(np.unique(select._row_hashes(pop))) == len(pop)


def test_a_row_without_holes_is_one_candidate() -> None:
    assert unique_rows(np.zeros((4, 0), np.int32)).tolist() == [0]


def test_rows_of_other_widths_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 holes here and 2 there"):
        rows_in(np.zeros((1, 3), np.int32), np.zeros((1, 2), np.int32))


def test_roulette_follows_the_scores() -> None:
    scores = np.array([0.0, 1.0, -5.0, 3.0, np.nan, -np.inf, 0.0])
    drawn = roulette(scores, 40_000, np.random.default_rng(1))
    counts = np.bincount(drawn, minlength=7)
    assert counts[[0, 2, 4, 5, 6]].sum() == 0
    assert counts[3] / counts[1] == pytest.approx(3.0, rel=0.1)


def test_roulette_without_a_positive_score_is_uniform_over_finite_rows() -> None:
    drawn = roulette(np.array([-1.0, -9.0, np.nan, 0.0]), 3000, np.random.default_rng(1))
    assert np.bincount(drawn, minlength=4) / 1000 == pytest.approx([1, 1, 0, 1], abs=0.15)


def test_roulette_with_extreme_scores() -> None:
    huge = np.full(5, np.finfo(np.float64).max)
    assert len(set(roulette(huge, 100, np.random.default_rng(0)).tolist())) == 5
    assert roulette(np.array([-np.inf, np.nan]), 4, np.random.default_rng(0)).tolist() == []
    assert roulette(np.array([]), 4, np.random.default_rng(0)).tolist() == []
    assert roulette(np.ones(3), 0, np.random.default_rng(0)).tolist() == []
    tail = roulette(np.array([1e-300, 1.0, 0.0]), 1000, np.random.default_rng(0))
    assert set(tail.tolist()) == {1}
