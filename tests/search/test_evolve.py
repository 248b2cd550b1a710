"""Mutation: the rows that evolution can reach from a row in one step."""

import numpy as np
import pytest

from ansorlite.schedule.holes import tile_options
from ansorlite.search.evolve import neighbours

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
