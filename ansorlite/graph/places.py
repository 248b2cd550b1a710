"""Where values lie: a value that is a part of another one has rows of it, at equal distances.

In: steps of a partition. Out: a `Place` for each value that is part of another one. A kernel reads
and writes such a part in place, where one of its operand's axes begins with each row (`width`): to
the kernel that axis is as long as in the whole value.
"""

import math
from typing import NamedTuple

Width = tuple[int, int] | None  # an axis and its extent in memory; None: nothing lies between
Widths = tuple[tuple[Width, ...], tuple[Width, ...]]  # of a kernel's inputs, of its outputs


class Place(NamedTuple):
    """Where a value lies: element `start` of `owner` first, `stride` further each step of a loop.

    The value has `rows` rows of equal length, which begin `pitch` elements apart; with one row its
    elements lie side by side.
    """

    owner: str
    start: int = 0
    stride: int = 0
    rows: int = 1
    pitch: int = 0

    def part(self, inner: "Place", whole: int, size: int) -> "Place | None":
        """The place of `size` elements that lie at `inner` in this value of `whole` elements.

        None where that is no row of equal distances any more.
        """
        stride = self.stride + inner.stride
        if self.rows == 1:
            return Place(self.owner, self.start + inner.start, stride, inner.rows, inner.pitch)
        row = whole // self.rows
        first, column = divmod(inner.start, row)
        start = self.start + first * self.pitch + column
        length = size // inner.rows
        if inner.rows > 1:  # each in a row of this value, or in several whole ones
            apart, rest = divmod(inner.pitch, row)
            if rest or column + length > row:
                return None
            return Place(self.owner, start, stride, inner.rows, apart * self.pitch)
        if column + size <= row:
            return Place(self.owner, start, stride)
        if column or size % row:
            return None
        return Place(self.owner, start, stride, size // row, self.pitch)


def width(shape: tuple[int, ...], place: Place) -> tuple[bool, Width]:
    """(is there a view of that shape in place, the axis that is longer in memory)."""
    if place.rows == 1:
        return True, None
    before = 1
    found: Width = None
    for axis, n in enumerate(shape):
        if before == place.rows:
            after = math.prod(shape[axis + 1 :])
            if place.pitch % after == 0:
                found = axis, place.pitch // after
        before *= n
    return found is not None, found
