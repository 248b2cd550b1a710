"""Where the time of a compiled network goes, kernel by kernel (`CompiledModule.profile`).

In: what `profile_runs` found on a module and the arrays of a call. Out: a `Profile` with a row a
kernel, as a table, as JSON and as a trace for Chrome. Times in place are those of the untouched
kernels in the network's own order and buffers; limits are those of `measure.limits`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.codegen.stamps import CALL, REGION, Stamps
from ansorlite.errors import MachineError
from ansorlite.files import write_whole
from ansorlite.graph.trace import trace_events
from ansorlite.measure.peak import Peak
from ansorlite.names import shown
from ansorlite.tables import ABOVE, aligned, shortened
from ansorlite.units import (
    format_bytes,
    format_gflops,
    format_latency,
    format_share,
    rate,
    share,
)

DISTURBED = 1.2  # from here on, that is told
_NOTES = "calls", "regions"


@dataclass(frozen=True)
class Moved:
    """Bytes of one call's operands, each once: activations, constants as packed, own memory.

    Of a tensor in which elements are looked up, no more counts than is looked up. `scratch` is
    written and read again within the kernel, and no part of `total`.
    """

    read: int
    constants: int
    written: int
    scratch: int = 0

    @property
    def total(self) -> int:
        return self.read + self.constants + self.written

    def of_steps(self, n: int) -> "Moved":
        """What `n` steps move; their own memory is the same."""
        return Moved(n * self.read, n * self.constants, n * self.written, self.scratch)


@dataclass(frozen=True)
class KernelTime:
    """One kernel of the network; seconds, FLOP and bytes are of all `times` steps of its loop.

    `in_place_s`: within the network; `alone_s`: repeated, None where that was not asked for.
    `least_s`: what the machine's limits allow at best, which `bound_by` names: multiply-adds, a
    dot-product instruction, or its operands once from the level of memory that holds them.
    `late_s` and `waiting_s` are the parts of the time in place in which a thread of its parallel
    regions, on average, has not begun yet (all of a region for one that never does), or has ended
    and waits for the region's end.
    """

    name: str
    nodes: tuple[str, ...]
    times: int
    in_place_s: float
    alone_s: float | None
    least_s: float
    bound_by: str
    flop: float
    moved: Moved
    regions: int
    threads: int
    late_s: float
    waiting_s: float
    above: str = ""

    @property
    def share_of_limit(self) -> float | None:
        """`least_s` as a share of the time in place: 1 is a kernel at the limit."""
        return share(self.least_s, self.in_place_s)


@dataclass(frozen=True)
class Profile:
    """Kernels in running order, and what the network takes without the clock around them.

    `call_s` is a call from Python, `network_s` the same kernels run untouched, `stamped_s` with
    the clock around each of them, of which the kernels of a round take `round_s` together,
    `regions_s` with the clock in their regions, too; medians of the faster half of the rounds, of
    which the others took `slower_rounds` times as long. `calls` and `regions` are the notes of the
    fastest round with the latter, in nanoseconds, rows as
    `codegen.stamps` has them. Example: `print(module.profile(x)); module.profile(x).to_json()`.
    """

    network: str
    cpu: str
    threads: int
    rounds: int
    rows: tuple[KernelTime, ...]
    call_s: float
    network_s: float
    round_s: float
    stamped_s: float
    regions_s: float
    slower_rounds: float
    peak: Peak
    calls: Stamps = field(compare=False, repr=False)
    regions: Stamps = field(compare=False, repr=False)

    @property
    def kernels_s(self) -> float:
        """The kernels' times in place together."""
        return sum(row.in_place_s for row in self.rows)

    @property
    def between_s(self) -> float:
        """What the untouched network takes beyond the kernels of a round; negative: the clock."""
        return self.network_s - self.round_s

    @property
    def disturbed(self) -> float:
        """How much longer the work of rounds took than the kernels' medians, or slow rounds than
        fast ones: about 1 on an idle machine.
        """
        return max(self.slower_rounds, share(self.round_s, self.kernels_s) or 1.0)

    def __str__(self) -> str:
        return "\n".join([self._title(), self._table(), *self._notes()])

    def _title(self) -> str:
        count = f"{len(self.rows)} kernels" if len(self.rows) != 1 else "1 kernel"
        threads = f"{self.threads} threads" if self.threads != 1 else "1 thread"
        return shown(f"{self.network}: {count}, {threads}, {self.rounds} rounds on {self.cpu}")

    def _table(self) -> str:
        head = ["ID", "Kernel", "In place", "Share", "Alone", "GFLOP/s", "Limit", "Bound by"]
        head += ["Data", "Constants", "Late", "Waiting"]
        lines = [
            [str(k), shortened(row.name), *self._figures([row], row.alone_s), *_bytes([row])]
            for k, row in enumerate(self.rows)
        ]
        for row, line in zip(self.rows, lines, strict=True):
            line[7:7] = [row.bound_by]
            line += _idle([row])
        known = [row.alone_s for row in self.rows if row.alone_s is not None]
        alone = sum(known) if len(known) == len(self.rows) else None
        total = ["", "total", *self._figures(self.rows, alone), "", *_bytes(self.rows)]
        return aligned(head, lines, [*total, *_idle(self.rows)], left=("Kernel", "Bound by"))

    def _figures(self, rows: Sequence[KernelTime], alone_s: float | None) -> list[str]:
        in_place_s = sum(row.in_place_s for row in rows)
        return [
            format_latency(in_place_s),
            format_share(share(in_place_s, self.kernels_s)),
            format_latency(alone_s),
            format_gflops(rate(sum(row.flop for row in rows), in_place_s)),
            format_share(share(sum(row.least_s for row in rows), in_place_s)),
        ]

    def _notes(self) -> list[str]:
        away = abs(self.between_s)
        more = "more" if self.between_s >= 0 else "less"
        lines = [
            f"kernels {format_latency(self.kernels_s)}, in one round"
            f" {format_latency(self.round_s)}; untouched, the network takes"
            f" {format_latency(self.network_s)}:"
            f" {format_latency(away)} {more} ({format_share(share(away, self.network_s))})",
            f"a call from Python {format_latency(self.call_s)}; with the clock around kernels"
            f" {format_latency(self.stamped_s)}, in their regions {format_latency(self.regions_s)}",
            f"the machine's limits: {self.peak}",
        ]
        if self.disturbed > DISTURBED:
            lines.append(
                f"rounds were disturbed, up to {self.disturbed:.2f} times as long: the machine is"
                " busy, profile again when it is idle"
            )
        found: dict[str, list[str]] = {}
        for k, row in enumerate(self.rows):
            if (row.share_of_limit or 0.0) > ABOVE:
                found.setdefault(row.above, []).append(str(k))
        return lines + [f"Limit above 100 %: {why} (ID {', '.join(k)})" for why, k in found.items()]

    def as_dict(self) -> dict[str, Any]:
        """All figures as values that JSON has, without the notes of the trace."""
        rows = []
        for row in self.rows:
            own = asdict(row)
            own["moved"]["total"] = row.moved.total
            rows.append({**own, "share_of_limit": row.share_of_limit})
        kept = [f.name for f in fields(self) if f.name not in ("rows", "peak", *_NOTES)]
        figures = {name: getattr(self, name) for name in (*kept, "kernels_s")}
        figures |= {"between_s": self.between_s, "peak": asdict(self.peak)}
        return {**figures, "kernels": rows}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "Profile":
        """The profile of `as_dict`, without a trace. Raises ValueError for anything else."""
        none = np.zeros((0, REGION), np.int64)
        try:
            rows = []
            for row in found["kernels"]:
                own = {f.name: row[f.name] for f in fields(KernelTime)}
                own["moved"] = Moved(**{f.name: int(row["moved"][f.name]) for f in fields(Moved)})
                rows.append(KernelTime(**{**own, "nodes": tuple(own["nodes"])}))
            kept = [f.name for f in fields(cls) if f.name not in ("rows", "peak", *_NOTES)]
            figures = {name: found[name] for name in kept}
            peak = Peak.from_json(found["peak"])
            made = cls(**figures, rows=tuple(rows), peak=peak, calls=none[:, :CALL], regions=none)
            str(made)  # numbers are numbers
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"no profile: {type(error).__name__} {error}") from None
        return made

    def to_json(self) -> str:
        """`as_dict` as indented JSON, seconds and bytes as numbers."""
        return json.dumps(self.as_dict(), indent=1) + "\n"

    def trace(self) -> dict[str, Any]:
        """The notes of one round in Chrome's trace format (chrome://tracing, ui.perfetto.dev)."""
        told = [
            {
                "flop": row.flop / row.times,
                "bytes": row.moved.total // row.times,
                "share of limit": row.share_of_limit,
                "bound by": row.bound_by,
            }
            for row in self.rows
        ]
        names = [row.name for row in self.rows]
        return trace_events(self.network, names, told, self.calls, self.regions)

    def save_trace(self, file: str | Path) -> Path:
        """Write `trace` to a file; raises MachineError where it cannot be written."""
        path = Path(file)
        try:
            write_whole(path, json.dumps(self.trace()) + "\n")
        except OSError as error:
            raise MachineError(f"cannot write {path}: {error.strerror}") from error
        return path


def _bytes(rows: Sequence[KernelTime]) -> list[str]:
    return [
        format_bytes(sum(row.moved.read + row.moved.written for row in rows)),
        format_bytes(sum(row.moved.constants for row in rows)),
    ]


def _idle(rows: Sequence[KernelTime]) -> list[str]:
    whole = sum(row.in_place_s for row in rows)
    return [
        format_share(share(sum(row.late_s for row in rows), whole)),
        format_share(share(sum(row.waiting_s for row in rows), whole)),
    ]
