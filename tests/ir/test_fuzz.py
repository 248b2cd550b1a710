"""Random integer expressions: substituting before or after simplifying gives the same normal form.

Lowering a sketch once depends on this property: a filled program must print like a program that was
lowered with the values. Each check takes one tree and runs on trees from hypothesis, which shrinks
them, and on a seeded stream (many thousands with `-m slow`).
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_trees import (
    ENVS,
    HOLES,
    TREES,
    VARIABLES,
    Tree,
    build,
    draw_env,
    draw_positive,
    draw_tree,
    mirror,
    value,
)

from ansorlite.ir.expr import Const, Expr, sub
from ansorlite.ir.extremum import provably_nonneg
from ansorlite.ir.ranges import Evaluator, Interval, bounds, coefficient, simplify
from ansorlite.ir.traverse import substitute

Env = dict[str, int]
SEEDS = st.integers(0, 2**32 - 1)


def _some(env: Env, rng: np.random.Generator) -> dict[str, Expr]:
    return {name: Const(v) for name, v in env.items() if rng.random() < 0.5}


def _around(env: Env, rng: np.random.Generator) -> dict[str, Interval]:
    """Ranges that contain the values; holes stay positive."""
    return {
        name: (max(int(name in HOLES), v - int(rng.integers(0, 4))), v + int(rng.integers(0, 4)))
        for name, v in env.items()
    }


# ---- one tree, one property ---------------------------------------------------------------------


def check_values_first_or_last(tree: Tree, env: Env, rng: np.random.Generator) -> None:
    e = build(tree, VARIABLES)
    part = _some(env, rng)
    assert str(substitute(e, part)) == str(build(tree, {**VARIABLES, **part}))
    everything: dict[str, Expr] = {name: Const(v) for name, v in env.items()}
    assert str(substitute(e, everything)) == str(value(tree, env))


def check_polynomials_first_or_last(tree: Tree, env: Env, rng: np.random.Generator) -> None:
    """A hole made of other holes, a loop made of loops: as when tiles take the place of axes."""
    parts = {
        "h0": draw_positive(rng),
        "i0": VARIABLES["i0"] * draw_positive(rng) + VARIABLES["i1"],
    }
    e = build(tree, VARIABLES)
    assert str(substitute(e, parts)) == str(build(tree, {**VARIABLES, **parts}))


def check_axis_then_holes(tree: Tree, env: Env, rng: np.random.Generator) -> None:
    """Lowering replaces an axis by any expression of holes; filling before or after is the same."""
    x = build(draw_tree(rng, 2), VARIABLES)
    part = _some(env, rng)
    part.pop("i0", None)
    e = build(tree, VARIABLES)
    late = substitute(substitute(e, {"i0": x}), part)
    early = substitute(e, {**part, "i0": substitute(x, part)})
    assert str(late) == str(early)


def check_order_of_writing(tree: Tree, env: Env, rng: np.random.Generator) -> None:
    assert str(build(mirror(tree, rng), VARIABLES)) == str(build(tree, VARIABLES))


def check_evaluator(tree: Tree, env: Env, rng: np.random.Generator) -> None:
    e = build(tree, VARIABLES)
    assert Evaluator(env)(e) == value(tree, env)
    rows = [{name: int(rng.integers(name in HOLES, 9)) for name in env} for _ in range(5)]
    columns = {name: np.array([row[name] for row in rows]) for name in env}
    if _small(tree, {name: 9 for name in env}):
        got = np.broadcast_to(Evaluator(columns)(e), len(rows))
        assert got.tolist() == [value(tree, row) for row in rows]


def check_ranges(tree: Tree, env: Env, rng: np.random.Generator) -> None:
    e = build(tree, VARIABLES)
    ranges, want = _around(env, rng), value(tree, env)
    low, high = bounds(e, ranges)
    assert low <= want <= high or abs(want) >= 1 << 60
    assert Evaluator(env)(simplify(e, ranges, {})) == want


def check_nonneg(tree: Tree, env: Env, rng: np.random.Generator) -> None:
    e = build(tree, VARIABLES)
    if provably_nonneg(e):
        assert value(tree, env) >= 0
    difference = sub(e, build(draw_tree(rng, 2), VARIABLES))
    if provably_nonneg(difference):
        assert Evaluator(env)(difference) >= 0


def check_coefficient(tree: Tree, env: Env, rng: np.random.Generator) -> None:
    e = build(tree, VARIABLES)
    c = coefficient(e, "i0")
    if c is None:
        return
    assert "i0" not in c.free
    steps = [Evaluator({**env, "i0": v})(e) for v in range(3)]
    assert steps[1] - steps[0] == steps[2] - steps[1] == Evaluator(env)(c)


def _small(tree: Tree, top: Env) -> bool:
    """No part of the tree can leave int64: products of the largest magnitudes stay below."""
    return _magnitude(tree, top) < 1 << 40


def _magnitude(tree: Tree, top: Env) -> int:
    if tree[0] == "const":
        return abs(int(tree[1]))
    if tree[0] == "var":
        return top[tree[1]]
    parts = [_magnitude(t, top) for t in tree[1:]]
    return parts[0] * parts[1] if tree[0] == "mul" else sum(parts)


CHECKS: tuple[Callable[[Tree, Env, np.random.Generator], None], ...] = (
    check_values_first_or_last,
    check_polynomials_first_or_last,
    check_axis_then_holes,
    check_order_of_writing,
    check_evaluator,
    check_ranges,
    check_nonneg,
    check_coefficient,
)
BY_NAME = pytest.mark.parametrize("check", CHECKS, ids=[c.__name__[6:] for c in CHECKS])


@BY_NAME
def test_shrinking_trees(check: Callable[[Tree, Env, np.random.Generator], None]) -> None:
    @given(tree=TREES, env=ENVS, seed=SEEDS)
    def holds(tree: Tree, env: Env, seed: int) -> None:
        check(tree, env, np.random.default_rng(seed))

    holds()


def _stream(first: int, n: int, depth: int) -> None:
    for seed in range(first, first + n):
        rng = np.random.default_rng(seed)
        tree, env = draw_tree(rng, depth), draw_env(rng)
        for check in CHECKS:
            try:
                check(tree, env, rng)
            except AssertionError as err:
                raise AssertionError(f"{check.__name__}, seed {seed}: {tree} at {env}") from err


def test_hundreds_of_trees() -> None:
    _stream(0, 400, 3)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_tens_of_thousands_of_trees(part: int) -> None:
    _stream(10_000 + part * 5000, 5000, 4)
