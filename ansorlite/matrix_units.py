"""Matrix units of targets: instructions that add the product of two tiles to a third one.

In: a `Target` and an operation on packed numbers. Out: a `MatrixUnit`, the tile's shape and its
throughput, or None. The search space (which register tiles fit), the cost model and code generation
(`codegen.tiles`) read the table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ansorlite.target import Target

LEAST_WORDS = 4  # of the sum's length, for which a tile is used


@dataclass(frozen=True)
class MatrixUnit:
    """`op` by tiles: a sum of `rows` by `columns` numbers of 32 bits, `words` of 32 bits deep.

    `registers` is the number of tile registers, `cycles` those of one instruction on a whole tile,
    `features` what LLVM has to know of the CPU. `swapped` is the instruction whose rows are the
    second operand of `op`.
    """

    op: str
    features: tuple[str, ...]
    name: str
    swapped: str
    rows: int = 16
    columns: int = 16
    words: int = 16
    registers: int = 8
    cycles: float = 16.0

    def chunk(self, words: Any) -> Any:
        """Words of a sum that one instruction adds: the largest part that divides the sum.

        0 where that is less than `LEAST_WORDS`; `words` is a number or an array.
        """
        best: Any = np.zeros_like(np.asarray(words))
        for part in range(LEAST_WORDS, self.words + 1):
            best = np.where(np.asarray(words) % part == 0, part, best)
        return best

    def tiles(self, rows: Any, columns: Any) -> Any:
        """Tile registers of a register tile, with operands; numbers or arrays."""
        down, across = -(-rows // self.rows), -(-columns // self.columns)
        return down * across + np.minimum(down, across) + 1


# AMX of Sapphire Rapids and later: 8 registers of 16 rows of 64 bytes.
UNITS = (
    MatrixUnit("dot_bf16", ("amx-tile", "amx-bf16"), "tdpbf16ps", "tdpbf16ps"),
    MatrixUnit("dot_u8s8", ("amx-tile", "amx-int8"), "tdpbusd", "tdpbsud"),
)


def unit_of(target: Target, op: str) -> MatrixUnit | None:
    """The target's matrix unit for an operation, by its features."""
    found = (u for u in UNITS if u.op == op and all(map(target.has, u.features)))
    return next(found, None)
