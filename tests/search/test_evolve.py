"""Mutation: the rows that evolution can reach from a row in one step."""

import numpy as np
import pytest

from ansorlite.schedule.holes import Hole, tile_options
from ansorlite.search.evolve import mutate, neighbours, reshape

Options = tuple[tuple[int, ...], ...]


def near(options: Options, option: tuple[int, ...]) -> set[tuple[int, ...]]:
    table = neighbours(options).of(np.arange(len(options), dtype=np.int32))
    return {options[int(k)] for k in table[options.index(option)]}


@pytest.mark.parametrize(("extent", "levels"), [(1, 3), (57, 1), (57, 2), (100, 3), (1024, 3)])
def test_every_register_factor_is_left_for_the_next_ones(extent: int, levels: int) -> None:
    """Inexact tiles too, whose outer levels cannot stay as they are."""
    options = tile_options(extent, levels)
    factors = sorted({o[-1] for o in options})
    table = neighbours(options).of(np.arange(len(options), dtype=np.int32))
    assert table.min() >= 0 and table.max() < len(options)
    for option in options[:: max(1, len(options) // 50)]:
        reached = {o[-1] for o in near(options, option)}
        at = factors.index(option[-1])
        assert {*factors[max(0, at - 1) : at], *factors[at + 1 : at + 2]} <= reached


def test_a_vector_more_or_less_is_one_move() -> None:
    options = tile_options(192, 3)
    assert {(1, 1, 32), (1, 1, 64)} <= near(options, (1, 1, 48))


def test_other_levels_stay_as_near_as_they_can() -> None:
    options = tile_options(128, 3)
    assert (5, 1, 13) in options and (5, 1, 12) not in options
    (found,) = (o for o in near(options, (5, 1, 13)) if o[-1] == 12)
    outer = np.log2([o[:-1] for o in options if o[-1] == 12])
    distance = np.abs(outer - np.log2([5, 1])).sum(axis=1)
    assert np.abs(np.log2(found[:-1]) - np.log2([5, 1])).sum() == distance.min()


def test_an_option_without_another_is_its_own_neighbour() -> None:
    assert set(neighbours(((3, 2),)).of(np.zeros(1, np.int32)).ravel()) == {0}


def test_a_register_tile_takes_another_shape_in_one_move() -> None:
    """6 x 64 becomes 12 x 32: either factor alone is a tile of half the size, or too large."""
    holes = (
        Hole("C.i", "C", "tile", tile_options(384, 3)),
        Hole("C.j", "C", "tile", tile_options(384, 3)),
        Hole("C.k", "C", "tile", ((8,), (16,))),
        Hole("D.i", "D", "tile", tile_options(384, 3)),  # alone in its node
    )
    start = [holes[0].find((4, 1, 6)), holes[1].find((1, 1, 64)), 1, 7]
    rows = np.tile(np.asarray(start, np.int32), (4000, 1))
    other = np.full_like(rows, -1)
    found = reshape(rows, other, holes, np.random.default_rng(0))
    changed = found[(found >= 0).all(axis=1)]
    assert (found[(found < 0).any(axis=1)] == -1).all()  # what was given otherwise
    assert len(changed) > 400 and (changed[:, 2:] == start[2:]).all()
    tiles = {
        tuple(int(h.table[v, -1]) for h, v in zip(holes[:2], row[:2], strict=True))
        for row in changed
    }
    assert {(12, 32), (8, 48), (9, 43), (24, 16)} <= tiles
    assert all(6 * 64 / 2 <= a * b <= 6 * 64 * 2 for a, b in tiles)
    assert all(a != 6 and b != 64 for a, b in tiles)
    one_step = mutate(rows, holes, np.random.default_rng(0))
    both = (one_step[:, 0] != start[0]) & (one_step[:, 1] != start[1])
    assert 0 < both.mean() < 0.15


def test_a_node_of_one_tile_has_no_other_shape() -> None:
    holes = (
        Hole("C.i", "C", "tile", tile_options(64, 3)),
        Hole("C.u", "C", "unroll", ((0,), (16,))),
    )
    rows = np.zeros((5, 2), np.int32)
    np.testing.assert_array_equal(
        reshape(rows, rows + 1, holes, np.random.default_rng(0)), rows + 1
    )
