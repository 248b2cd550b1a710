"""Memory plan of a compiled network: where in one arena each activation lives.

In: sizes in bytes and lifetimes (first and last step that touch a value). Out: byte offsets.
Values whose lifetimes overlap never share memory; large values are placed first, each at the
lowest offset that is free for its whole lifetime.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ansorlite.calls import aligned_bytes


@dataclass(frozen=True)
class Lifetime:
    """A value of `size_bytes` is written at step `first` and read for the last time at `last`."""

    size_bytes: int
    first: int
    last: int

    def overlaps(self, other: "Lifetime") -> bool:
        return self.first <= other.last and other.first <= self.last


def plan_arena(values: Mapping[str, Lifetime]) -> tuple[dict[str, int], int]:
    """(offset of each value, size of the arena), all in bytes and aligned to 64."""
    offsets: dict[str, int] = {}
    for name in sorted(values, key=lambda v: (-values[v].size_bytes, values[v].first, v)):
        mine = values[name]
        taken = sorted(
            (offsets[v], offsets[v] + aligned_bytes(values[v].size_bytes))
            for v in offsets
            if values[v].overlaps(mine)
        )
        at = 0
        for begin, end in taken:
            if at + mine.size_bytes <= begin:
                break
            at = max(at, end)
        offsets[name] = at
    total = max((offsets[v] + aligned_bytes(values[v].size_bytes) for v in offsets), default=0)
    return offsets, total
