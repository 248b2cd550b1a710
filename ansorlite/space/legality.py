"""Legality as a mask over a population, applied before scoring.

In: a program with holes and the hole columns of a population. Out: bool[P]. All conditions are
closed forms over the program: register tiles fit the register file, local buffers fit the L2 cache,
code size is bounded, and large nests have work for every core.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.ir.expr import Op
from ansorlite.ir.program import (
    NO_NOTE,
    Block,
    For,
    Program,
    Store,
    all_buffers,
    stores_under,
    walk,
)
from ansorlite.ir.ranges import Evaluator
from ansorlite.matrix_units import MatrixUnit, unit_of
from ansorlite.target import Target

SMALL_WORK = 200_000  # store executions up to which one core suffices
Mask = npt.NDArray[np.bool_]


def legal(program: Program, columns: Mapping[str, Any], n: int, target: Target) -> Mask:
    """bool[n]: the candidates worth scoring; `columns` gives int64[n] per hole column."""
    value = Evaluator(columns)
    ok = np.ones(n, dtype=bool)
    for store, loops in stores_under(program.body):
        if store.combiner:
            fits = _registers(loops, value, target)
            matrix = matrix_tile(store, loops, value, target)
            ok &= fits if matrix is None else fits | matrix.fits
    ok &= _two_bodies(program, value)
    ok &= _local_bytes(program, value) <= target.l2_bytes
    ok &= _enough_grains(program, value, target)
    return ok


def tile_shape(loops: tuple[For, ...], value: Evaluator) -> tuple[Any, Any, Any]:
    """(rows, vectors per row, lanes) of the register tile around a store; 1s without a tile."""
    rows: Any = 1
    vectors: Any = 1
    lanes: Any = 1
    for lp in loops:
        tagged = lp.note("register") is not NO_NOTE
        width = lp.note("lanes")
        if width is not NO_NOTE and not lp.reduce:
            n = value(lp.nominal)
            lanes = np.where(n > 1, np.maximum(1, value(width)), 1)
            vectors = -(-n // lanes) if tagged else 1
        elif tagged:
            rows = rows * value(lp.nominal)
    return rows, vectors, lanes


class MatrixTile(NamedTuple):
    """A register tile on the target's matrix unit: does it fit, shares of the registers and of an
    instruction's products that are used. Numbers or arrays.
    """

    unit: MatrixUnit
    fits: Any
    registers: Any
    used: Any


def matrix_tile(
    store: Store, loops: tuple[For, ...], value: Evaluator, target: Target
) -> MatrixTile | None:
    """How a sum of packed products uses the matrix unit; None where the target has none for it."""
    unit = unit_of(target, store.value.name) if isinstance(store.value, Op) else None
    sums = [lp for lp in loops if lp.reduce]
    if unit is None or not sums:
        return None
    rows, vectors, lanes = tile_shape(loops, value)
    chunk = unit.chunk(value(sums[-1].nominal))
    width = math.prod(value(lp.nominal) for lp in loops if lp.note("lanes") is not NO_NOTE)
    tiles = unit.tiles(rows, vectors * unit.columns)
    whole = (lanes == unit.columns) & (width % unit.columns == 0)
    fits = whole & (chunk > 0) & (tiles <= unit.registers)
    used = chunk / unit.words * rows / (unit.rows * -(-rows // unit.rows))
    return MatrixTile(unit, fits, tiles / unit.registers, used)


def _registers(loops: tuple[For, ...], value: Evaluator, target: Target) -> Any:
    """MR*NV + min(MR, NV) + 1 <= registers, for an outer product of MR rows and NV vectors."""
    rows, vectors, _ = tile_shape(loops, value)
    live = rows * vectors + np.minimum(rows, vectors) + 1
    return live <= target.vector_registers


def _two_bodies(program: Program, value: Evaluator) -> Any:
    """A register loop has at most two bodies: at most one clamp is not a multiple of the loop."""
    ok: Any = True
    for nominal, rests in program.register_clamps:
        t = value(nominal)
        cut: Any = 0
        for coefficients in rests:
            odd: Any = False
            for c in coefficients:
                odd = odd | (value(c) % t != 0)
            cut = cut + odd
        ok = ok & (cut <= 1)
    return ok


def _local_bytes(program: Program, value: Evaluator) -> Any:
    """Bytes of all local buffers."""
    total: Any = 0
    for b in all_buffers(program):
        if b.scope == "local":
            total = total + math.prod(value(e) for e in b.shape) * _itemsize(b.dtype)
    return total


def _itemsize(dtype: str) -> int:
    return np.dtype(dtype).itemsize


def _enough_grains(program: Program, value: Evaluator, target: Target) -> Any:
    """Every nest with much work has at least one grain per core."""
    ok: Any = True
    for nest in _roots(program):
        work: Any = 0
        for store, _ in stores_under(nest):
            work = work + math.prod(value(c) for c in store.count)
        grains: Any = 1
        for s in walk(nest):
            if isinstance(s, For) and s.note("parallel") is not NO_NOTE:
                grains = grains * np.where(value(s.note("parallel")) > 0, value(s.nominal), 1)
        ok = ok & ((grains >= target.cores) | (work <= SMALL_WORK))
    return ok


def _roots(program: Program) -> tuple[Any, ...]:
    """The top-level nests of a program."""
    return program.body.stmts if isinstance(program.body, Block) else (program.body,)
