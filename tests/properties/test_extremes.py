"""Numbers at the ends of their types: NaN, infinities, -0.0, subnormals, the extreme integers.

Random expressions over such inputs, alone and under reductions, mean the same to numpy, to the
interpreter and to native code, for the plain schedule and for random candidates. All operations but
the last are exact to the bit; a product is never an operand of a sum, since FMA may skip the
rounding (and the overflow) between.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from native import run_native

from ansorlite import te
from ansorlite.ir.expr import Const, Expr
from ansorlite.ir.interpret import interpret
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.space.legality import legal
from ansorlite.space.plain import plain_state
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target

Array = npt.NDArray[Any]
HOST = Target.detect()
SPECIAL = {
    "float32": (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -3e-39, 3.4028235e38, -3.4028235e38, 1.0,
                -1.5, 2.5, 0.1, 1e30, -(2.0**31), 2.0**31, 2.0**63, -3e9, 16777217.0, -7.0),
    "int32": (0, 1, -1, 7, -8, 2**31 - 1, -(2**31), -(2**31) + 1, 2**30, 46341, 65536, -65537),
    "int64": (0, 1, -1, 5, -12, 2**63 - 1, -(2**63), 2**62, 2**31, -(2**31) - 1, 2**53 + 1, 2**32),
    "bool": (False, True),
}  # fmt: skip


def draw_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Half special values, half small ones."""
    odd = np.array(SPECIAL[dtype], dtype)[rng.integers(0, len(SPECIAL[dtype]), shape)]
    plain = rng.integers(0, 2, shape) if dtype == "bool" else rng.integers(-6, 7, shape)
    return np.where(rng.random(shape) < 0.5, odd, plain.astype(dtype))


class _Tree:
    """A random expression over loads of special values."""

    def __init__(self, rng: np.random.Generator, leaves: dict[str, list[Expr]]) -> None:
        self.rng, self.leaves = rng, leaves

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def value(self, dtype: str, depth: int) -> Expr:
        if depth == 0:
            return self.pick(*self.leaves[dtype])
        if self.rng.random() < 0.2:
            return self.cast(dtype, depth - 1)
        if self.rng.random() < 0.15:
            cond = self.condition(depth - 1)
            return te.select(cond, self.value(dtype, depth - 1), self.value(dtype, depth - 1))
        x, y = self.value(dtype, depth - 1), self.value(dtype, depth - 1)
        if dtype == "bool":
            return self.pick(te.all, te.any)(x, te.logical_not(y))
        if dtype == "float32":
            return self.floating(x, y)
        y = self.pick(*self.leaves[dtype]) if isinstance(y, Const) else y  # no division by 0
        c = self.pick(2, 3, 8, -1, -3)
        return self.pick(
            lambda: x + y,
            lambda: x - y,
            lambda: x * y,
            lambda: x * c + 1,
            lambda: te.maximum(x, y),
            lambda: te.minimum(x, y, 7),
            lambda: te.abs(x),
            lambda: -x,
            lambda: x // y,
            lambda: x % y,
            lambda: te.ceildiv(x, y),
            lambda: x // c,
            lambda: x % c,
        )()

    def floating(self, x: Expr, y: Expr) -> Expr:
        return self.pick(
            lambda: x + y,
            lambda: x - y,
            lambda: te.abs(x * y),
            lambda: x / y,
            lambda: -x,
            lambda: te.maximum(x, y),
            lambda: te.minimum(x, y),
            lambda: te.maximum(x, 0.0),
            lambda: te.minimum(1.5, x),
            lambda: te.floor(x),
            lambda: te.sqrt(x),
            lambda: te.abs(x),
        )()

    def condition(self, depth: int) -> Expr:
        dtype = self.pick("float32", "int32", "int64")
        x, y = self.value(dtype, depth), self.value(dtype, depth)
        return self.pick(
            lambda: x < y,
            lambda: x <= y,
            lambda: te.equal(x, y),
            lambda: te.not_equal(x, y),
            lambda: te.logical_not(x >= y),
            lambda: te.any(x > y, te.equal(x, x)),
        )()

    def cast(self, dtype: str, depth: int) -> Expr:
        x = self.value(self.pick("float32", "int32", "int64", "bool"), depth)
        return te.cast(x, dtype)


SMOOTH = (
    *(te.exp, te.log, te.tanh, te.erf, te.sigmoid, te.sin, te.cos, te.atan, te.sinh, te.asinh),
    *(te.asin, te.acosh, te.atanh, lambda x: te.pow(x, te.const(2.0))),
)


def draw_dag(rng: np.random.Generator) -> tuple[te.ComputeDAG, bool]:
    """A computation of two stages, and is it exact?"""
    rows, columns = int(rng.choice([1, 3, 5])), int(rng.choice([1, 7, 16, 37]))
    inputs = [
        te.placeholder((rows, columns), dtype, name=f"{dtype}_{k}")
        for dtype in SPECIAL
        for k in range(2)
    ]
    dtype = str(rng.choice(["float32", "float32", "float32", "int32", "int64", "bool"]))
    smooth = None

    def body(i: Expr, j: Expr) -> Expr:
        nonlocal smooth
        leaves = {d: [x[i, j] for x in inputs if x.dtype == d] for d in SPECIAL}
        e = _Tree(rng, leaves).value(dtype, int(rng.integers(1, 4)))
        if dtype == "float32" and rng.random() < 0.3:
            smooth = SMOOTH[int(rng.integers(len(SMOOTH)))]
            e = smooth(e)
        return e

    outs = [te.compute((rows, columns), body, name="T")]
    if rng.random() < 0.6:
        kinds = (te.max, te.min) if dtype in ("float32", "bool") else (te.max, te.min, te.sum)
        combine = kinds[int(rng.integers(len(kinds)))]
        k = te.reduce_axis(columns, "k")
        t = outs[0]
        outs.append(te.compute((rows,), lambda i: combine(t[i, k], axis=k), name="R"))
        if rng.random() < 0.5:
            outs = outs[1:]
    return te.ComputeDAG(outs), smooth is None


def check(got: dict[str, Array], want: dict[str, Array], exact: bool, what: str) -> None:
    for name, x in want.items():
        assert got[name].dtype == x.dtype, what
        if exact or x.dtype.kind != "f":
            np.testing.assert_array_equal(got[name], x, err_msg=f"{name}: {what}")
        else:
            np.testing.assert_allclose(
                got[name], x, rtol=2e-6, atol=3e-45, err_msg=f"{name}: {what}"
            )


def check_seed(seed: int) -> None:
    rng = np.random.default_rng([seed, 38])
    dag, exact = draw_dag(rng)
    shapes = {p.name: tuple(int(str(e)) for e in p.shape) for p in dag.inputs}
    inputs = {p.name: draw_values(rng, shapes[p.name], p.dtype) for p in dag.inputs}
    want = dag.evaluate(inputs)
    target = replace(
        HOST, cores=int(rng.choice([1, 2])), vector_bytes=int(rng.choice([16, 32, 64]))
    )
    programs = [lower(plain_state(dag, target))]
    found = sketches(dag, target, SpaceOptions(max_sketches=12))
    sketch = found[int(rng.integers(len(found)))]
    population = sketch.sample(40, rng)
    columns = population_columns(sketch.holes, population)
    mask = legal(sketch.program, columns, len(population), target)
    programs += [sketch.fill(row) for row in population[mask][:2]]
    for program in programs:
        check(run_native(program, inputs, target), want, exact, f"native\n{dag}\n{program}")
    check(interpret(programs[-1], inputs), want, exact, f"interpreter\n{dag}\n{programs[-1]}")


@pytest.mark.parametrize("seed", range(40))
def test_extremes(seed: int) -> None:
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_more_extremes(part: int) -> None:
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        check_seed(seed)
