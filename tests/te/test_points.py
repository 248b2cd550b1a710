"""Gathering elements by index arrays: equal to numpy's indexing for all forms of indices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansorlite.te.evaluate import Array
from ansorlite.te.points import gathered

EXTENTS = st.integers(1, 5)


@st.composite
def gathers(draw: st.DrawFn) -> tuple[Array, list[Array]]:
    """An array, and index arrays that broadcast: some run through a dimension along an axis."""
    shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=4)))
    extents = draw(st.lists(EXTENTS, min_size=1, max_size=4))
    runs = [draw(st.booleans()) for _ in shape]
    axes = {d: draw(st.integers(0, len(extents) - 1)) for d, run in enumerate(runs) if run}
    for d, axis in axes.items():
        extents[axis] = shape[d]
    index = []
    for d, n in enumerate(shape):
        if d in axes and extents[axes[d]] == n:
            along = [-1 if a == axes[d] else 1 for a in range(len(extents))]
            index.append(np.arange(n).reshape(along))
            continue
        varies = [e if draw(st.booleans()) else 1 for e in extents]
        varies = varies[draw(st.integers(0, len(varies))) :]
        size = int(np.prod(varies))
        values = draw(st.lists(st.integers(0, n - 1), min_size=size, max_size=size))
        index.append(np.array(values, np.int64).reshape(varies))
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape), index


@given(gathers())
def test_gathered_elements_are_those_of_an_index(case: tuple[Array, list[Array]]) -> None:
    x, index = case
    np.testing.assert_array_equal(gathered(x, index), x[tuple(index)], strict=True)


def test_the_operands_of_a_convolution() -> None:
    weight = np.random.default_rng(0).random((3, 3, 6, 8), np.float32)
    points = np.array([5, 0, 5, 7]).reshape(-1, 1, 1, 1)
    kh, kw, ci = (np.arange(n).reshape(s) for n, s in ((3, (3, 1, 1)), (3, (3, 1)), (6, (6,))))
    for index in ([kh, kw, ci, points], [kh, kw[::-1], ci, points], [kw, kh, ci, points]):
        got = gathered(weight, index)
        np.testing.assert_array_equal(got, weight[tuple(index)], strict=True)
    rows = np.moveaxis(weight, -1, 0)
    for x in (rows, np.ascontiguousarray(rows)):
        got = gathered(x, [points, kh, kw, ci])
        np.testing.assert_array_equal(got, x[points, kh, kw, ci], strict=True)


def test_no_index_no_elements_and_places_outside() -> None:
    x = np.arange(6).reshape(2, 3)
    assert gathered(np.array(4.0), []) == 4
    assert gathered(x, [np.zeros((0, 1), int), np.arange(3)]).shape == (0, 3)
    assert gathered(x, [np.array([-1]), np.array([1])]).tolist() == [4]
    with pytest.raises(IndexError):
        gathered(x, [np.array([0]), np.array([3])])
