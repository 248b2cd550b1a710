"""Legality as a mask over a population, applied before scoring.

In: a program with holes and the hole columns of a population. Out: bool[P]. All conditions are
closed forms over the program: register tiles fit the register file, local buffers of a nest fit the
L2 cache, code size is bounded, and large nests have work for every core.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.ir.evaluation import Evaluation, blocks
from ansorlite.ir.expr import Op
from ansorlite.ir.program import (
    NO_NOTE,
    Alloc,
    Block,
    For,
    Program,
    Store,
    stores_under,
    walk,
)
from ansorlite.ir.reuse import reuse_buffers
from ansorlite.ir.tape import ONE, ZERO, Tape, ceildiv, where
from ansorlite.matrix_units import MatrixUnit, unit_of
from ansorlite.target import Target

BLOCK_ROWS = 8192  # candidates that are looked at together, so that arrays take some 10 MB
SMALL_WORK = 200_000  # store executions up to which one core suffices
Mask = npt.NDArray[np.bool_]


class Legality:
    """The conditions on candidates of one program for one target.

    `broken` is the number of a value of the tape: how many conditions a candidate breaks.
    """

    def __init__(self, program: Program, target: Target) -> None:
        tape = Tape()
        conditions = [
            _tile_fits(tape, store, loops, target)
            for store, loops in stores_under(program.body)
            if store.combiner
        ]
        conditions += _two_bodies(tape, program)
        size = _local_bytes(tape, reuse_buffers(program))
        conditions.append(tape.apply(np.less_equal, size, tape.const(float(target.l2_bytes))))
        conditions += _enough_grains(tape, program, target)
        missing = [tape.apply(np.subtract, ONE, c) for c in conditions]
        self.broken = tape.fold(np.add, missing, ZERO)
        self.tape = tape.arrays()


Asked = Sequence[tuple[Legality, Mapping[str, Any], int]]


def legal_of(asked: Asked) -> list[Mask]:
    """bool[n] of several programs, each with int64[n] per hole column."""
    return [n == 0 for n in broken_of(asked)]


def broken_of(asked: Asked) -> list[npt.NDArray[np.float64]]:
    """float64[n] of several programs: how many conditions each candidate breaks."""
    out = [np.empty(n) for *_, n in asked]
    for block in blocks([(columns, n) for _, columns, n in asked], BLOCK_ROWS):
        conditions = [asked[p.owner][0] for p in block]
        found = Evaluation([c.tape for c in conditions], block)
        for t, (part, own) in enumerate(zip(block, conditions, strict=True)):
            out[part.owner][part.begin : part.begin + part.n] = found.of(t, own.broken)
    return out


def legal(program: Program, columns: Mapping[str, Any], n: int, target: Target) -> Mask:
    """bool[n]: the candidates worth scoring; `columns` gives int64[n] per hole column."""
    return legal_of([(Legality(program, target), columns, n)])[0]


class TileShape(NamedTuple):
    """Rows, vectors per row and lanes of a register tile, as values of a tape; 1 without a tile."""

    rows: int
    vectors: int
    lanes: int


def tile_shape(tape: Tape, loops: tuple[For, ...]) -> TileShape:
    """The register tile around a store."""
    rows, vectors, lanes = [], ONE, ONE
    for lp in loops:
        tagged = lp.note("register") is not NO_NOTE
        width = lp.note("lanes")
        if width is not NO_NOTE and not lp.reduce:
            n = tape.of(lp.nominal)
            wide = tape.apply(np.maximum, ONE, tape.of(width))
            lanes = tape.apply(where, tape.apply(np.greater, n, ONE), wide, ONE)
            vectors = tape.apply(ceildiv, n, lanes) if tagged else ONE
        elif tagged:
            rows.append(tape.of(lp.nominal))
    return TileShape(tape.product(rows), vectors, lanes)


def live_registers(tape: Tape, shape: TileShape) -> int:
    """MR*NV + min(MR, NV) + 1, for an outer product of MR rows and NV vectors."""
    sums = tape.apply(np.multiply, shape.rows, shape.vectors)
    operands = tape.apply(np.minimum, shape.rows, shape.vectors)
    return tape.apply(np.add, tape.apply(np.add, sums, operands), ONE)


class MatrixTile(NamedTuple):
    """A register tile on the target's matrix unit: does it fit, shares of the registers and of an
    instruction's products that are used. Values of a tape.
    """

    unit: MatrixUnit
    fits: int
    registers: int
    used: int


def matrix_tile(
    tape: Tape, store: Store, loops: tuple[For, ...], target: Target
) -> MatrixTile | None:
    """How a sum of packed products uses the matrix unit; None where the target has none for it."""
    unit = unit_of(target, store.value.name) if isinstance(store.value, Op) else None
    sums = [lp for lp in loops if lp.reduce]
    if unit is None or not sums:
        return None
    rows, vectors, lanes = tile_shape(tape, loops)
    chunk = tape.apply(unit.chunk, tape.of(sums[-1].nominal))
    wide = [tape.of(lp.nominal) for lp in loops if lp.note("lanes") is not NO_NOTE]
    columns, high = tape.const(float(unit.columns)), tape.const(float(unit.rows))
    tiles = tape.apply(unit.tiles, rows, tape.apply(np.multiply, vectors, columns))
    rest = tape.apply(np.remainder, tape.product(wide), columns)
    registers = tape.const(float(unit.registers))
    fits = [
        tape.apply(np.equal, lanes, columns),
        tape.apply(np.equal, rest, ZERO),
        tape.apply(np.greater, chunk, ZERO),
        tape.apply(np.less_equal, tiles, registers),
    ]
    depth = tape.apply(np.true_divide, chunk, tape.const(float(unit.words)))
    filled = tape.apply(np.multiply, high, tape.apply(ceildiv, rows, high))
    used = tape.apply(np.true_divide, tape.apply(np.multiply, depth, rows), filled)
    return MatrixTile(
        unit,
        tape.fold(np.minimum, fits, ONE),
        tape.apply(np.true_divide, tiles, registers),
        used,
    )


def _tile_fits(tape: Tape, store: Store, loops: tuple[For, ...], target: Target) -> int:
    """The register tile of a reduction fits the vector registers or the matrix unit."""
    live = live_registers(tape, tile_shape(tape, loops))
    fits = tape.apply(np.less_equal, live, tape.const(float(target.vector_registers)))
    matrix = matrix_tile(tape, store, loops, target)
    return fits if matrix is None else tape.apply(np.maximum, fits, matrix.fits)


def _two_bodies(tape: Tape, program: Program) -> list[int]:
    """A register loop has at most two bodies: at most one clamp is not a multiple of the loop."""
    out = []
    for nominal, rests in program.register_clamps:
        t, cuts = tape.of(nominal), []
        for coefficients in rests:
            left = [tape.apply(np.remainder, tape.of(c), t) for c in coefficients]
            odd = [tape.apply(np.not_equal, x, ZERO) for x in left]
            cuts.append(tape.fold(np.maximum, odd, ZERO))
        out.append(tape.apply(np.less_equal, tape.fold(np.add, cuts, ZERO), ONE))
    return out


def _local_bytes(tape: Tape, program: Program) -> int:
    """The most bytes of local buffers that one nest has: those of another nest are gone by then."""
    nests = []
    for nest in _roots(program):
        own = [s.buffer for s in walk(nest) if isinstance(s, Alloc) and s.buffer.scope == "local"]
        sizes = [
            tape.product([*map(tape.of, b.shape), tape.const(float(np.dtype(b.dtype).itemsize))])
            for b in own
        ]
        nests.append(tape.fold(np.add, sizes, ZERO))
    return tape.fold(np.maximum, nests, ZERO)


def _enough_grains(tape: Tape, program: Program, target: Target) -> list[int]:
    """Every nest with much work has at least one grain per core."""
    out = []
    cores, little = tape.const(float(target.cores)), tape.const(float(SMALL_WORK))
    for nest in _roots(program):
        counts = [tape.product([tape.of(c) for c in s.count]) for s, _ in stores_under(nest)]
        small = tape.apply(np.less_equal, tape.fold(np.add, counts, ZERO), little)
        grains = tape.product([grains_of(tape, s) for s in walk(nest) if isinstance(s, For)])
        out.append(tape.apply(np.maximum, tape.apply(np.less_equal, cores, grains), small))
    return out


def grains_of(tape: Tape, loop: For) -> int:
    """Iterations of a parallel loop, 1 for another loop."""
    note = loop.note("parallel")
    if note is NO_NOTE:
        return ONE
    shared = tape.apply(np.greater, tape.of(note), ZERO)
    return tape.apply(where, shared, tape.of(loop.nominal), ONE)


def _roots(program: Program) -> tuple[Any, ...]:
    """The top-level nests of a program."""
    return program.body.stmts if isinstance(program.body, Block) else (program.body,)
