"""Random inputs of a task, equal in every process and for every candidate.

In: a ComputeDAG and a seed. Out: arrays by placeholder name. Floats are normally distributed with
standard deviation 1/3, so mostly in [-1, 1], and so is bfloat16 in integers. Integers that index a
tensor are valid indices; other integers are small, or any of those with 8 or 16 bits. An array
depends only on the seed and the position of its placeholder.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ansorlite.calls import Array
from ansorlite.ir.expr import Expr, Load, Op, Var
from ansorlite.ir.literals import WIDE, range_of
from ansorlite.ir.packed import bits_of
from ansorlite.ir.ranges import Interval, bounds
from ansorlite.ir.traverse import loads, transform, walk
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import ComputeOp

SMALL_INT = 4  # integers that are no index lie in [-SMALL_INT, SMALL_INT]
BLOCK = 1 << 18  # numbers that are drawn at a time
MOST_NUMBERS = 1 << 22  # of a seed and position, that are kept
INDEX = "#index"  # variable in place of a loaded index; no axis can have this name


@dataclass(frozen=True)
class Source:
    """All that a random array depends on: equal sources give equal elements, in any shape.

    `limit`: integers are indices below that. `bfloat16`: integers hold numbers of that type.
    """

    seed: int
    position: int
    dtype: str
    size: int
    limit: int | None = None
    bfloat16: bool = False
    positive: bool = False


class NormalNumbers:
    """Normally distributed float32 numbers by seed, drawn once for many arrays.

    Arrays of one seed and position begin with the same numbers, so each is a copy of the first ones
    of the longest. Numbers beyond the first `MOST_NUMBERS` are drawn each time.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], list[Array]] = {}
        self._generators: dict[tuple[int, int], np.random.Generator] = {}

    def fill(self, seed: tuple[int, int], out: Array) -> None:
        """The first numbers of a seed: those of `default_rng(seed).standard_normal`.

        `out` is float32[size].
        """
        if out.size > MOST_NUMBERS:
            np.random.default_rng(seed).standard_normal(out=out, dtype=np.float32)
            return
        blocks = self._blocks.setdefault(seed, [])
        rng = self._generators.setdefault(seed, np.random.default_rng(seed))
        for first in range(0, out.size, BLOCK):
            if first == len(blocks) * BLOCK:
                blocks.append(rng.standard_normal(BLOCK, dtype=np.float32))
            part = out[first : first + BLOCK]
            part[...] = blocks[first // BLOCK][: part.size]


def random_inputs(dag: ComputeDAG, seed: int, *, positive: bool = False) -> dict[str, Array]:
    """Arrays for all placeholders, by name; `positive` makes all floats positive.

    Positive inputs serve computations with logarithms or square roots, which else give NaN.
    Example: `random_inputs(task.dag, seed=0)`.
    """
    arrays = {op.name: np.empty(op.shape, op.dtype) for op in dag.inputs}
    for name, source in sources(dag, seed, positive=positive).items():
        draw(source, arrays[name].reshape(-1))
    return arrays


def sources(dag: ComputeDAG, seed: int, *, positive: bool = False) -> dict[str, Source]:
    """The source of each placeholder's array, by name; `positive` as in `random_inputs`."""
    limits, low = index_limits(dag), bfloat16_inputs(dag)
    found: dict[str, Source] = {}
    for k, op in enumerate(dag.inputs):
        limit, size = limits.get(op.name), math.prod(op.shape)
        found[op.name] = Source(seed, k, op.dtype, size, limit, op.name in low, positive)
    return found


def draw(source: Source, out: Array, numbers: NormalNumbers | None = None) -> None:
    """Write the elements of a source to `out`, dtype[size]; `numbers` serves many draws."""
    seed = (source.seed, source.position)
    if source.dtype == "float32":
        if numbers is None:
            np.random.default_rng(seed).standard_normal(out=out, dtype=np.float32)
        else:
            numbers.fill(seed, out)
        out *= 1 / 3
        if source.positive:
            np.abs(out, out=out)
            out += np.float32(0.01)
        return
    rng = np.random.default_rng(seed)
    out[...] = _bfloat16(source, rng) if source.bfloat16 else _random(source, rng)


def _bfloat16(source: Source, rng: np.random.Generator) -> Array:
    """Numbers of bfloat16 in the integers of a placeholder, one for each 16 bits."""
    count = np.dtype(source.dtype).itemsize // 2
    x = rng.standard_normal((source.size, count), dtype=np.float32) * np.float32(1 / 3)
    bits = bits_of(np.abs(x) + np.float32(0.01) if source.positive else x)
    return np.asarray(bits.view(source.dtype).reshape(source.size))


def bfloat16_inputs(dag: ComputeDAG) -> set[str]:
    """The placeholders of integers that hold numbers of bfloat16: what is read as such."""
    held: set[str] = set()
    for op in reversed(dag.computes):
        exprs = [e for e in walk(op.body) if isinstance(e, Op)]
        found = [e for e in exprs if e.name in ("bf16_value", "dot_bf16")]
        if op.name in held:  # a copy, such as a pad
            found += [op.body] if isinstance(op.body, Op) else []
            held |= {x.tensor for x in [op.body] if isinstance(x, Load)}
        for e in found:
            held |= {x.tensor for a in e.args for x in loads(a)}
    return {p.name for p in dag.inputs if p.name in held and p.dtype in ("uint16", "int32")}


def _random(source: Source, rng: np.random.Generator) -> Array:
    size, dtype, limit = source.size, source.dtype, source.limit
    match dtype:
        case "float16" | "float64":
            kind: Any = np.float64 if dtype == "float64" else np.float32
            x = np.asarray(rng.standard_normal(size, dtype=kind))
            x *= 1 / 3
            x = np.abs(x) + kind(0.01) if source.positive else x
            return x.astype(dtype, copy=False)
        case "bool":
            return np.asarray(rng.integers(0, 2, size), dtype=np.bool_)
        case _ if limit is not None:
            most = range_of(dtype)[1]
            return np.asarray(rng.integers(0, min(limit, most), size), dtype=dtype)
        case _ if dtype in WIDE:
            low, high = range_of(dtype)
            return rng.integers(low, high + 1, size).astype(dtype)
        case _:
            return np.asarray(rng.integers(-SMALL_INT, SMALL_INT + 1, size), dtype=dtype)


def bfloat16_outputs(dag: ComputeDAG) -> set[str]:
    """The outputs that hold the bits of bfloat16."""
    return {
        op.name
        for op in dag.outputs
        if isinstance(op, ComputeOp)
        and any(isinstance(e, Op) and e.name == "bf16_bits" for e in walk(op.body))
    }


def index_limits(dag: ComputeDAG) -> dict[str, int]:
    """Integer placeholder that is used as an index -> limit; values in [0, limit) are valid."""
    limits: dict[str, int] = {}
    for op in dag.computes:
        axes = zip(op.axes + op.reduce_axes, _extents(op), strict=True)
        ranges = {axis.name: (0, extent - 1) for axis, extent in axes}
        for load in loads(op.body):
            sizes = dag.by_name[load.tensor].shape
            for index, size in zip(load.indices, sizes, strict=True):
                for name in {p for x in loads(index) for p in _origins(dag, x.tensor)}:
                    limit = _limit(index, size, ranges)
                    limits[name] = min(limits.get(name, limit), limit)
    return limits


def _extents(op: ComputeOp) -> tuple[int, ...]:
    return tuple(bounds(a.extent, {})[1] for a in op.axes + op.reduce_axes)


def _origins(dag: ComputeDAG, name: str) -> set[str]:
    """The integer placeholders that the tensor `name` is computed from."""
    above = dag.above(name)
    return {p.name for p in dag.inputs if p.name in above and "int" in p.dtype}


def _limit(index: Expr, size: int, ranges: Mapping[str, Interval]) -> int:
    """Largest n such that loaded values in [0, n) keep `index` inside [0, size)."""

    def leaf(x: Expr) -> Expr | None:
        return Var(INDEX, "axis") if isinstance(x, Load) else None

    plain = transform(index, leaf, {})

    def fits(n: int) -> bool:
        low, high = bounds(plain, {**ranges, INDEX: (0, n - 1)})
        return low >= 0 and high < size

    # Where interval arithmetic cannot prove even index 0, a condition such as select(i < 0, i + n,
    # i) or a cast hides the range: the extent of the tensor is then the limit.
    if fits(size) or not fits(1):
        return size
    low, high = 1, size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
