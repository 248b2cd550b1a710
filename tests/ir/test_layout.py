"""Packed layouts of arrays: packing into given memory is the same as packing."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ansorlite.ir.layout import Array, Layout, copy_runs

SMALL = st.integers(1, 4)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, Array]:
    """A layout and an array that the layout fits, with or without padding."""
    tiles = tuple(tuple(t) for t in draw(st.lists(st.lists(SMALL, min_size=1), min_size=1)))
    tiles = tuple(t[:3] for t in tiles[:3])
    shape = [draw(st.integers(1, math.prod(t))) for t in tiles]
    levels = [(d, lv) for d, t in enumerate(tiles) for lv in range(len(t))]
    x = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    return Layout(tiles, tuple(draw(st.permutations(levels)))), x


@given(layouts())
def test_packing_into_memory_is_packing(case: tuple[Layout, Array]) -> None:
    layout, x = case
    out = np.full(layout.shape, np.nan, np.float32)
    layout.pack_to(out, x)
    np.testing.assert_array_equal(out, layout.pack(x), strict=True)
    np.testing.assert_array_equal(layout.unpack(out, x.shape), x, strict=True)


def test_copies_of_any_strides() -> None:
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    views = [x, x[:, :, 1:3], x[..., ::2], x[::-1], x[..., ::-1], x.transpose(2, 0, 1), x[0, 0, 0]]
    views += [x[..., :1], x[:0], x[:, :, :0]]
    for view in views:
        whole = np.full((*view.shape, 2), -1, np.int16)
        for out in (np.full(view.shape, -1, np.int16), whole[..., 1]):
            copy_runs(out, np.asarray(view))
            assert np.array_equal(out, view)
        assert (whole[..., 0] == -1).all()
