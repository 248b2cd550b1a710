"""Limits of a network: bytes of its values, operations of constants computed at import.

In: types of values as they are made. Out: nothing, or a ModelError that names the value, the size
and the limit, before memory or time is spent. The limit is ANSORLITE_MAX_BYTES; by default half of
the memory that this process may have. Constants computed at import take at most 1 GiB, or a
multiple of the network's own data, and as many operations on elements; or as much as the variable
allows.
"""

import os
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.types import Array, TensorType
from ansorlite.settings import settings

VARIABLE = "ANSORLITE_MAX_BYTES"
MOST_AXES = 32
FREE_BYTES, FREE_WORK = 1 << 30, 1 << 32  # of computed constants, however small the network is
MULTIPLE = 16  # of the network's own data, for constants that are computed
FALLBACK_BYTES = 16 << 30  # of memory, where the system does not say


def most_bytes() -> int:
    """The limit in bytes."""
    given = settings().max_bytes
    if given is not None:
        return given
    soft = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min(_memory(), *(n if n >= 0 else FALLBACK_BYTES << 30 for n in soft)) // 2


@cache
def _memory() -> int:
    """Bytes of memory of this machine, or of the control group that this process runs in."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        machine = FALLBACK_BYTES
    return min([machine, *_of_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])


def _of_groups(root: Path, own: Path) -> Iterator[int]:
    """The limits of the control groups around this process, version 2 and version 1."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers not in ("", "memory"):
            continue
        base, name = (
            (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        )
        place = Path(path.lstrip("/"))
        for folder in (place, *place.parents):
            try:
                text = (base / folder / name).read_text(encoding="utf-8").strip()
            except (OSError, ValueError):
                continue
            if text.isdecimal() and int(text) > 0:
                yield int(text)


def size_bytes(kind: TensorType) -> int:
    return kind.size * np.dtype(kind.dtype).itemsize


def megabytes(n: int) -> str:
    return f"{n / 1e6:,.0f} MB"


@dataclass
class Room:
    """Bytes and operations that an import has used, and the limits; `what` names values in errors.

    Constants that are computed may take FREE_BYTES and MULTIPLE times the data that was given,
    within the limit; all of the limit where the user has set one.
    """

    most: int = field(default_factory=most_bytes)
    given: int = 0  # bytes of constants that were given
    made: int = 0  # bytes of constants that were computed
    work: int = 0  # element operations that computed them
    _places: set[int] = field(default_factory=set, repr=False)

    def fits(self, what: str, size: int, most: int | None = None) -> None:
        """Raise a ModelError if `size` bytes are more than the limit."""
        most = self.most if most is None else most
        if size > most:
            raise ModelError(
                f"{what} takes {megabytes(size)}, more than the limit of {megabytes(most)}: "
                f"set {VARIABLE}={size} to allow it"
            )

    def value(self, what: str, kind: TensorType) -> None:
        """Raise a ModelError for a value that is too large or has too many axes."""
        if kind.rank > MOST_AXES:
            raise ModelError(f"{what} has {kind.rank} axes, more than the {MOST_AXES} possible")
        if max(kind.shape, default=0) >= 1 << 62:
            raise ModelError(f"{what} is {kind}: an extent has to be below 2^62")
        self.fits(f"{what}, {kind},", size_bytes(kind))

    def another(self, what: str, kind: TensorType) -> None:
        """Raise a ModelError if there is no room to compute a constant of that type."""
        self.value(what, kind)
        self._fits_made(what, self.made + size_bytes(kind))

    def keep(self, what: str, array: Array, computed: bool) -> None:
        """Count a constant, unless one with the same first element (a view) has been counted."""
        place = int(array.__array_interface__["data"][0])
        if place in self._places:
            return
        self._places.add(place)
        if computed:
            self.made += int(array.nbytes)
            self._fits_made(what, self.made)
        else:
            self.given += int(array.nbytes)
        self.fits(f"the sum of all constants up to {what}", self.given + self.made)

    def _fits_made(self, what: str, size: int) -> None:
        most = self._computed(FREE_BYTES)
        self.fits(f"the sum of the constants computed up to {what}", size, most)

    def _computed(self, free: int) -> int:
        if settings().max_bytes is not None:
            return self.most
        return min(self.most, free + MULTIPLE * self.given)

    def windows(self, what: str, work: int) -> None:
        """Raise a ModelError for windows whose operations at every call exceed the limit."""
        if work > self.most:
            raise ModelError(
                f"{what} takes {work:.1e} operations, more than {self.most:.1e}: set "
                f"{VARIABLE}={work} to allow it"
            )

    def compute(self, what: str, work: int) -> None:
        """Count the operations of a constant before it is computed."""
        self.work += work
        if self.work > (most := self._computed(FREE_WORK)):
            raise ModelError(
                f"the constants up to {what} take {self.work:.1e} operations to compute, more than "
                f"{most:.1e}: set {VARIABLE}={self.work} to allow it"
            )


def peak_bytes(values: Iterable[tuple[int, int, int]]) -> int:
    """The most bytes that live at the same time, given (bytes, first step, last step)."""
    change: dict[int, int] = {}
    for size, first, last in values:
        change[first] = change.get(first, 0) + size
        change[last + 1] = change.get(last + 1, 0) - size
    most = now = 0
    for step in sorted(change):
        now += change[step]
        most = max(most, now)
    return most
