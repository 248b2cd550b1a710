"""The results of one claim: JSON lines that a run resumes from, with a table and plots beside them.

In: keys of the rows that a claim needs, and a function that measures one row. Out: results/X.jsonl
(one row a line), results/X.txt (the table) and, where a script draws, results/X.svg. Every script
that measures has one `Experiment`; each row is written as soon as it is measured, so that a run can
be stopped and continued. Times are in seconds.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ansorlite.baselines.runs import chart
from ansorlite.errors import AnsorliteError, MissingExtra, UsageError
from ansorlite.files import write_whole
from ansorlite.measure.machine_cache import cache_file
from ansorlite.measure.peak import Peak, measure_peak
from ansorlite.streams import one_line
from ansorlite.target import Target

RESULTS = Path(__file__).parents[2] / "results"
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
Row = dict[str, Any]


def line_of(row: Any) -> str:
    """A dataclass or a dict as a JSON line."""
    fields = asdict(row) if is_dataclass(row) and not isinstance(row, type) else row
    return json.dumps(fields) + "\n"


@dataclass(frozen=True)
class Experiment(Generic[R]):
    """Rows of one claim in the file `path`.

    `key` tells what a row is of: a new row replaces the old one of its key, or is added where
    `keeps_all`. `make` turns the fields of a JSON line into a row (a dict, or a dataclass), `write`
    turns a row into a line. The table is `head`, `line` of each row and the lines of `foot`, in the
    order of `order`; `what` names the rows in errors.
    """

    path: Path
    key: Callable[[R], Hashable]
    line: Callable[[R], str]
    head: str = ""
    foot: Callable[[Sequence[R]], Sequence[str]] = lambda rows: ()
    make: Callable[..., R] = dict  # type: ignore[assignment]
    write: Callable[[R], str] = line_of
    order: Callable[[R], Any] | None = None
    what: str = "rows"
    keeps_all: bool = False

    def rows(self) -> list[R]:
        """The rows of the file, none where it is missing; UsageError for a file of other things."""
        try:
            rows = [self.make(**fields) for fields in json_rows(self.path)]
            for row in rows:
                self.key(row)
            return rows
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{self.path} does not hold {self.what}: {error}") from error

    def run(
        self,
        wanted: Iterable[K],
        once: Callable[[K], R],
        done: Callable[[R], bool] = lambda row: True,
        again: bool = False,
    ) -> list[str]:
        """Measure a row of each wanted key that the file lacks; returns the keys without a row.

        Rows that are not `done` (of another machine, of fewer trials) do not count; `again`
        measures all. A key whose measurement raises an AnsorliteError is told on standard error
        and left out.
        """
        known = {self.key(r) for r in self.rows() if done(r) and not again}
        failed = []
        if self.head:
            print(self.head, flush=True)
        for key in wanted:
            if key in known:
                continue
            try:
                self.add(once(key))
            except AnsorliteError as error:
                print(one_line(f"{key}: {error}"), file=sys.stderr)
                failed.append(str(key))
        return failed

    def add(self, row: R) -> None:
        """Write a row to the file and print its line."""
        print(self.line(row), flush=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.keeps_all:
            with self.path.open("a", encoding="utf-8") as out:
                out.write(self.write(row))
            return
        found = {self.key(r): r for r in (*self.rows(), row)}
        rows = sorted(found.values(), key=self.order) if self.order else list(found.values())
        write_whole(self.path, "".join(map(self.write, rows)))

    def table(self, rows: Sequence[R] | None = None) -> str:
        """Head, a line a row and the closing lines, of all rows of the file by default."""
        found = self.rows() if rows is None else rows
        head = [self.head] * bool(self.head)
        return "\n".join([*head, *map(self.line, found), *self.foot(found)]) + "\n"

    def finish(self, text: str | None = None) -> None:
        """Write the table beside the rows: `text`, which is printed, or that of all rows.

        Of the table of all rows only the closing lines are printed: each row was, as it came.
        """
        rows = self.rows()
        if text is None and not rows:
            return
        print("".join(f"{x}\n" for x in self.foot(rows)) if text is None else text, end="")
        write_whole(self.path.with_suffix(".txt"), self.table(rows) if text is None else text)

    def draw(self, x: str, y: str, content: Callable[[Any], None], suffix: str = "") -> None:
        """Write a plot beside the rows (see `chart`); without matplotlib tell so and go on."""
        try:
            chart(self.path.with_name(f"{self.path.stem}{suffix}.svg"), x, y, content)
        except MissingExtra as error:
            print(f"no plot: {error}", file=sys.stderr)


def json_rows(path: Path) -> list[Row]:
    """The objects of a file of JSON lines, none where it is missing. Raises ValueError."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line]


def stamp(target: Target, peak: Peak | None = None) -> Row:
    """What the figures of a row depend on: the machine with its limits, and the date."""
    return {"machine": machine(target, peak), "date": time.strftime("%Y-%m-%d")}


def machine(target: Target, peak: Peak | None = None) -> Row:
    """Processor, cores, limits of multiply-adds and of copying, fingerprint."""
    name, peak = target.cpu, peak or measure_peak(target)
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        models = [x for x in lines if x.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    return {
        "cpu": f"{name} ({target.cpu})",
        "cores": target.cores,
        "fma_gflops": round(peak.flops_all / 1e9, 1),
        "copy_gb_s": round(peak.copy_bytes_per_s / 1e9, 1),
        "fingerprint": target.fingerprint,
    }


def machine_line(machine: Row, date: str = "") -> str:
    """The last line of a table: the machine of its last row and the date."""
    text = ", ".join(f"{k} {v}" for k, v in machine.items())
    return f"{text}, {date}" if date else text


def kept_folder(name: str) -> Path:
    """Where logs that are too large for results/ are kept between runs, a folder a script."""
    file = cache_file(name)
    return Path(tempfile.gettempdir()) / name if file is None else file.with_suffix("")


def exit_status(main: Callable[[], int]) -> int:
    """Run a script: its status, or that of an error, which is printed as one line."""
    try:
        return main()
    except AnsorliteError as error:
        print(one_line(str(error)), file=sys.stderr)
        return error.status
