"""Illegal draws that are changed until they are legal."""

from dataclasses import replace

import numpy as np
import pytest
from search_cases import matmul

from ansorlite.search.evolve import Rows
from ansorlite.search.history import FEW, History
from ansorlite.search.mend import mended
from ansorlite.space.sketch import sketches
from ansorlite.target import Target

OPTIONS = np.array([10, 10, 10, 10, 1, 7])


def broken(rows: Rows) -> np.ndarray:
    """Four holes want their fourth option: one draw of 10,000 has it."""
    return np.asarray(4.0 - (rows[:, :4] == 3).sum(1))


def test_few_draws_become_many_legal_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, OPTIONS, (200, 6)).astype(np.int32)
    before = rows.copy()
    found = mended(rows, OPTIONS, broken, np.random.default_rng(1))
    assert np.array_equal(rows, before)
    assert 5 <= len(found) <= 7  # all that there are: the last two holes are free
    assert np.unique(found, axis=0).shape == found.shape and not broken(found).any()
    assert (found >= 0).all() and (found < OPTIONS).all()
    assert np.array_equal(found, mended(rows, OPTIONS, broken, np.random.default_rng(1)))


def test_legal_rows_stay_and_what_cannot_be_mended_is_left_out() -> None:
    rng = np.random.default_rng(0)
    legal = np.full((3, 6), 3, np.int32) * (OPTIONS > 3)
    assert np.array_equal(mended(legal.astype(np.int32), OPTIONS, broken, rng), legal[:1])
    never = mended(legal.astype(np.int32), OPTIONS, lambda rows: np.ones(len(rows)), rng)
    assert never.shape == (0, 6)
    assert mended(np.empty((1, 0), np.int32), OPTIONS[:0], broken, rng).shape == (0, 0)
    assert mended(legal[:0].astype(np.int32), OPTIONS, broken, rng).shape == (0, 6)


@pytest.fixture(scope="module")
def cramped() -> History:
    """A product for a machine of four registers and hardly any cache."""
    target = replace(Target.detect(), l2_bytes=1 << 9, vector_registers=4, cores=2)
    return History(sketches(matmul(210).dag, target), target)


def test_sketches_with_hardly_any_legal_draw_have_rows(cramped: History) -> None:
    few = {}
    for name, s in cramped.sketches.items():
        drawn = s.sample(4000, np.random.default_rng(0))
        share = float(cramped.legal(name, drawn).mean())
        if 0 < share < 0.005:
            few[name] = share
    assert few
    found = cramped.samples(few, 32, 16, lambda _: np.random.default_rng(1))
    again = History(list(cramped.sketches.values()), cramped.target)
    for name, rows in found.items():
        assert len(rows) >= FEW and cramped.legal(name, rows).all(), name
        assert len(np.unique(rows, axis=0)) == len(rows)
        same = again.sample(name, 32, 16, np.random.default_rng(1))
        assert np.array_equal(rows, same)  # a function of the draws alone: runs are resumed
