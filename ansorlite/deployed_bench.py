"""The command `python -m ansorlite.deployed DIR`: what a saved network is, and how fast (--bench).

In: a folder that `CompiledModule.save` wrote, numbers of threads. Out: for each size and number of
threads the latencies of calls on random arrays: median, percentiles, extremes, in seconds; a table,
or JSON. Nothing but numpy is needed. A call here is one from Python: arrays are checked, kernels
run, results lie in new arrays. Status 2 for a wrong folder or option, 1 for a failure.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from ansorlite.errors import AnsorliteError, ModelError, UsageError
from ansorlite.names import shown
from ansorlite.streams import put, tell
from ansorlite.tables import aligned
from ansorlite.units import format_latency

RUNS, SECONDS, WARMUP = 1000, 3.0, 3
LEAST_RUNS = 5  # however long they take
PERCENTILES = (5, 50, 90, 99)


class Network(Protocol):
    """A saved network: `ansorlite.deployed.DeployedModule`."""

    threads: int

    @property
    def version(self) -> str: ...

    @property
    def targets(self) -> Sequence[str]: ...

    @property
    def target(self) -> str: ...

    @property
    def sizes(self) -> Sequence[Any]: ...

    def __call__(self, *args: Any) -> Any: ...


@dataclass(frozen=True)
class Bench:
    """Latencies of one size with a number of threads, in seconds.

    `first_s` is the first call with these threads, which starts them; `runs` calls follow
    the warm-up. `p5_s` is the latency that 5 % of them do not exceed.
    """

    size: str
    threads: int
    runs: int
    first_s: float
    mean_s: float
    least_s: float
    p5_s: float
    median_s: float
    p90_s: float
    p99_s: float
    most_s: float


def bench(
    net: Network,
    arrays: Sequence[Any],
    size: str = "",
    runs: int = RUNS,
    seconds: float = SECONDS,
    warmup: int = WARMUP,
) -> Bench:
    """Time calls on these arrays: at most `runs`, for about `seconds`, but five at least."""
    first_s = _seconds(net, arrays)
    for _ in range(warmup):
        net(*arrays)
    times: list[float] = []
    began = perf_counter()
    while len(times) < min(runs, LEAST_RUNS) or (
        len(times) < runs and perf_counter() - began < seconds
    ):
        times.append(_seconds(net, arrays))
    p5, p50, p90, p99 = (float(x) for x in np.percentile(times, PERCENTILES))
    mean = math.fsum(times) / len(times)
    ends = min(times), p5, p50, p90, p99, max(times)
    return Bench(size, net.threads, len(times), first_s, mean, *ends)


def random_arrays(net: Network, size: int, seed: int = 0) -> list[Any]:
    """Arrays for a size: normal numbers; 0 and 1 for integers, where these are no index 0 alone.

    Raises ModelError where the network takes neither.
    """
    rng, inputs = np.random.default_rng(seed), net.sizes[size]["inputs"]
    out: list[Any] = []
    for v in inputs:
        kind = np.dtype(v["dtype"])
        if kind.kind == "f":
            out.append(rng.standard_normal(v["shape"]).astype(kind))
        else:
            out.append(rng.integers(0, 2, v["shape"]).astype(kind))
    try:
        net(*out)
    except ModelError:
        out = [x if x.dtype.kind == "f" else np.zeros_like(x) for x in out]
        net(*out)
    return out


def table(rows: Sequence[Bench]) -> str:
    """A line a size and number of threads, and the fastest."""
    titles = [
        "Size",
        "Threads",
        "Runs",
        "Median",
        "5 %",
        "90 %",
        "99 %",
        "Most",
        "First",
        "Calls/s",
    ]
    lines = [
        [
            row.size,
            str(row.threads),
            str(row.runs),
            *map(
                format_latency,
                (row.median_s, row.p5_s, row.p90_s, row.p99_s, row.most_s, row.first_s),
            ),
            f"{1 / row.mean_s:.1f}" if row.mean_s > 0 else "-",
        ]
        for row in rows
    ]
    best = min(rows, key=lambda row: row.median_s)
    last = ["", str(best.threads), "", format_latency(best.median_s), *[""] * 6]
    return aligned(titles, lines, ["fastest", *last[1:]], left=("Size",))


def _seconds(net: Network, arrays: Sequence[Any]) -> float:
    began = perf_counter()
    net(*arrays)
    return perf_counter() - began


# ---- the command --------------------------------------------------------------------------------


def main(load: Callable[[str], Any], argv: Sequence[str] | None = None) -> int:
    """Describe the folder's network, or time it; returns the exit status."""
    try:
        args = _parser().parse_args(argv)
        began = perf_counter()
        net = load(args.folder)
        opened_s = perf_counter() - began
        put(_report(net, args, opened_s), end="")
        return 0
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    except AnsorliteError as error:
        tell(f"ansorlite.deployed: {error}")
        return error.status
    except KeyboardInterrupt:
        tell("ansorlite.deployed: interrupted")
        return 130


def _report(net: Any, args: argparse.Namespace, opened_s: float) -> str:
    labels = [_label(size) for size in net.sizes]
    about = {
        "network": net.metadata["network"],
        "version": net.version,
        "target": net.target,
        "targets": net.metadata["targets"],
        "identity": net.metadata["identity"],
        "opened_s": opened_s,
    }
    if not args.bench:
        about = {**about, "threads": net.threads, "sizes": list(net.sizes)}
        return json.dumps(about, indent=1) + "\n" if args.json else _description(net, labels)
    chosen = range(len(labels)) if args.size is None else [args.size]
    if args.size is not None and args.size >= len(labels):
        raise UsageError(f"the network has {len(labels)} sizes: there is no --size {args.size}")
    rows = []
    for k in chosen:
        arrays = random_arrays(net, k, args.seed)
        for n in args.threads or [net.threads]:
            net.threads = n
            rows.append(bench(net, arrays, labels[k], args.runs, args.seconds, args.warmup))
    if args.json:
        return json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    name = shown(about["network"], 80)
    return f"{name}, opened in {format_latency(opened_s)}\n{table(rows)}\n"


def _label(size: Any) -> str:
    return ", ".join(f"{v['dtype']}{v['shape']}" for v in size["inputs"]) or "no input"


def _description(net: Any, labels: Sequence[str]) -> str:
    known, name = net.metadata, shown(net.metadata["network"], 80)
    lines = [
        f"{name}: saved by ansorlite {shown(net.version)} for {', '.join(map(shown, net.targets))}",
        f"{known['kernels']} kernels on {net.threads} threads, {known['weights_bytes']} bytes of"
        f" weights, {known['arena_bytes']} of activations",
        *(targets_text(known["targets"], net.target) if len(net.targets) > 1 else ()),
    ]
    for k, size in enumerate(net.sizes):
        lines += [f"size {k}: {labels[k]}"] * (len(labels) > 1)
        lines += [
            f"{kind} {shown(v['name'], 80)}: {v['dtype']}{v['shape']}"
            for kind in ("input", "output")
            for v in size[f"{kind}s"]
        ]
    return "\n".join(lines) + "\n"


def targets_text(targets: Sequence[Any], running: str = "") -> list[str]:
    """A line for each set of kernels: its name, how its kernels were found, what it needs."""
    lines = []
    for t in targets:
        found = ", ".join(f"{n} {how}" for how, n in t["kernels"].items() if n) or "none"
        here = " (runs here)" if t["name"] == running else ""
        needs = ", ".join(t["requires"][:40]) or "nothing"
        lines.append(shown(f"{t['name']}{here}: kernels {found}; needs {needs}", 600))
    return lines


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        tell(f"usage: {self.prog} DIR [--bench ...], see --help; error: {shown(message)}")
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    p = _Parser("python -m ansorlite.deployed", description="A saved network: what it is, how fast")
    p.add_argument("folder", metavar="DIR", help="folder that module.save wrote")
    p.add_argument("--bench", action="store_true", help="time calls on random arrays")
    p.add_argument("--threads", type=_numbers, metavar="N,...", help="one line each (as is usual)")
    p.add_argument("--size", type=_from(0), metavar="K", help="one size alone, by its number")
    p.add_argument("--runs", type=_from(1), default=RUNS, help=f"calls at most ({RUNS})")
    p.add_argument(
        "--seconds", type=_time, default=SECONDS, help=f"for about so long a line ({SECONDS:g})"
    )
    p.add_argument("--warmup", type=_from(0), default=WARMUP, help=f"calls before ({WARMUP})")
    p.add_argument("--seed", type=_from(0), default=0, help="of the arrays (0)")
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


def _from(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or not least <= int(text[:10]) < 10**9:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} on")
        return int(text)

    return whole


def _numbers(text: str) -> list[int]:
    return [_from(1)(part) for part in text.split(",")]


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number of seconds > 0")
    return value
