"""Skeletons: what of a program's steps other tasks of its kin can use."""

import pytest
from test_families import product, record

from ansorlite.search.families import kin_patterns
from ansorlite.search.roles import kin_of, recorded_roles
from ansorlite.search.skeletons import patterns_of, skeleton_of
from ansorlite.space.sketch import sketches_alike

ENDS = [(), ("bias",), ("bias", "relu"), ("residual", "half", "half"), ("bias", "half", "residual")]


@pytest.mark.parametrize("source", ENDS[1:])
@pytest.mark.parametrize("ends", ENDS[1:])
def test_kin_have_sketches_of_a_skeleton(source: tuple[str, ...], ends: tuple[str, ...]) -> None:
    one, other = product(32, 32, *source), product(48, 16, *ends)
    assert kin_of(one) == kin_of(other)
    for k in range(3):
        known = record(one, k)
        wanted = patterns_of(other, skeleton_of(one.dag, known))
        found = [s for s in sketches_alike(other.dag, other.target, wanted) if s is not None]
        assert len(found) == 1
    assert kin_patterns(other, [(recorded_roles(one.dag), record(one, k)) for k in range(3)])


def test_what_is_no_kin_has_no_pattern() -> None:
    plain, other = product(32, 32), product(32, 32, "bias")
    found = patterns_of(other, skeleton_of(plain.dag, record(plain, 0)))
    assert not any(sketches_alike(other.dag, other.target, found))
