"""Sketches of the paper's computations: how many, which rules made them, and how they print."""

from collections.abc import Callable

import numpy as np
import pytest
from space_cases import (
    TARGET,
    conv_bn_relu,
    example_1,
    example_2,
    matmul,
    max_pool,
    row_minimum,
    softmax,
)

from ansorlite import te
from ansorlite.schedule.holes import Hole
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Split
from ansorlite.space.rules import SKETCH_RULES, Outcome, multi_level_tiling, skip_stage
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target

PAPER = SpaceOptions(folding=False, packing=False, locations=False)

COUNTS: dict[str, tuple[Callable[[], te.Tensor], int]] = {
    "matmul": (lambda: matmul(512, 512, 512), 3),
    "a long reduction": (lambda: matmul(8, 8, 512), 5),
    "two matmuls": (lambda: matmul(512, 512, 512, matmul(512, 512, 512), "D"), 9),
    "conv, bn, relu": (lambda: conv_bn_relu(56, 64), 3),
    "max-pool": (lambda: max_pool(56, 64), 1),
    "row minimum": (lambda: row_minimum(64, 1024), 3),
    "softmax": (lambda: softmax(512, 512), 9),
}


@pytest.mark.parametrize("name", COUNTS)
def test_as_many_as_ansor_derives(name: str) -> None:
    make, count = COUNTS[name]
    found = sketches(te.ComputeDAG([make()]), TARGET, PAPER)
    assert len(found) == count
    assert len({s.name for s in found}) == len({s.state.steps for s in found}) == count
    assert not any(s.beyond_paper for s in found)


def test_the_rules_that_fired() -> None:
    tiled, cached, fused = "multi_level_tiling", "add_cache_write", "multi_level_tiling_with_fusion"
    found = sketches(te.ComputeDAG([matmul(512, 512, 512)]), TARGET, PAPER)
    assert sorted(s.fired for s in found) == [(cached, fused), (cached, fused), (tiled,)]
    (pool,) = sketches(te.ComputeDAG([max_pool(56, 64)]), TARGET, PAPER)
    assert pool.fired == ()


@pytest.mark.parametrize("number", [1, 2])
def test_examples_of_the_paper(number: int, golden: Callable[[str, str], None]) -> None:
    """Figure 5: three sketches of input 1; of input 2 there are two with rfactor, too."""
    dag = example_1() if number == 1 else example_2()
    found = sketches(dag, TARGET, PAPER)
    golden("\n".join([str(dag), *map(str, found)]), f"sketches_figure5_{number}")


def test_the_space_with_everything_contains_that_of_the_paper() -> None:
    for make, count in COUNTS.values():
        dag = te.ComputeDAG([make()])
        found = sketches(dag, TARGET)
        plain = [s for s in found if not s.beyond_paper]
        assert [s.fired for s in plain] == [s.fired for s in sketches(dag, TARGET, PAPER)]
        assert len(plain) == count and len({s.name for s in found}) == len(found)


def test_the_number_of_sketches_is_bounded() -> None:
    dag = te.ComputeDAG([softmax(512, 512)])
    assert len(sketches(dag, TARGET, SpaceOptions(max_sketches=18))) <= 27  # nine structures
    assert len(sketches(dag, TARGET, SpaceOptions(max_sketches=45))) > 27


def test_a_rule_of_the_users_own() -> None:
    """It stands beside the others, is asked in its turn, and its holes are sampled like any."""
    asked: list[str] = []

    def halve_rows(state: State, position: int, target: Target) -> Outcome | None:
        stage = state.schedule.stages[position]
        asked.append(stage.name)
        if stage.is_placeholder or stage.tiling:
            return None
        axis = stage.compute.axes[0].name
        hole = Hole(f"{stage.name}.{axis}", stage.name, "tile", ((2,), (4,)))
        split = Split(stage.name, axis, hole.columns)
        return Outcome(((state.open(hole).apply(split), position - 1),), skip_rest=True)

    dag = te.ComputeDAG([matmul(64, 64, 64)])
    options = SpaceOptions(packing=False, locations=False, rules=(halve_rows, *SKETCH_RULES))
    (found,) = sketches(dag, TARGET, options)
    assert found.fired == ("halve_rows",) and asked == ["C", "BC", "A"]
    assert found.holes[0].options == ((2,), (4,))
    rows = found.sample(64, np.random.default_rng(0))
    assert {found.values(r)["C.i"] for r in rows} == {(2,), (4,)}
    assert "for C.i.0 in range(16)" in str(
        found.fill(found.row({**found.values(rows[0]), "C.i": (4,)}))
    )


def test_without_tiling_rules_there_is_one_sketch() -> None:
    dag = te.ComputeDAG([matmul(64, 64, 64)])
    assert [s.fired for s in sketches(dag, TARGET, SpaceOptions(rules=(skip_stage,)))] == [()]
    two = SpaceOptions(packing=False, locations=False, rules=(multi_level_tiling, skip_stage))
    assert [s.fired for s in sketches(dag, TARGET, two)] == [("multi_level_tiling",)]
