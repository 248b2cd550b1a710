"""The operator suite against peers: tune a case, then time every contender in turn.

In: cases, a batch size, budgets. Out: a row a case in results/ops_b<batch>.jsonl and a table beside
it. Contenders of a case start in fresh processes, which then take turns: a latency is the median
over the turns of the median within each, a ratio the median over neighbouring turns. FLOPs are
those of workloads/ops.toml.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ansorlite.errors import AnsorliteError, MeasureError, UsageError
from ansorlite.files import write_whole
from ansorlite.measure.limits import least_seconds
from ansorlite.measure.peak import Peak, measure_peak
from ansorlite.target import Target
from ansorlite.units import format_latency
from ansorlite.workloads import workload
from ansorlite.workloads.ops import find, operators, parse_case

PEERS = ("torch", "numpy")
ROOT = Path(__file__).parents[2]
PAUSE_S = 0.03  # lets the threads of the contender before go to sleep
READY_S = 120.0


@dataclass(frozen=True)
class BenchOptions:
    """Budgets of one case, and how it is timed."""

    batch: int = 1
    trials: int = 200
    timeout: float = 60.0
    peers: tuple[str, ...] = PEERS[:1]
    turns: int = 7
    turn_s: float = 0.25
    seed: int = 0
    log: Path | None = None  # continued where it exists; a temporary one by default
    peer_python: str | None = None


@dataclass(frozen=True)
class BenchRow:
    """One case: median latencies in seconds by contender, `ratio` = fastest peer's / ours."""

    case: str
    batch: int
    latency_s: dict[str, float]
    mode: dict[str, str]
    ratio: float | None
    gflops: float
    share_of_peak: float
    trials: int
    tuning_s: float
    turns: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    share_of_limit: float | None = None  # of what arithmetic and data allow


def suite(only: Iterable[str] = ()) -> list[str]:
    """All cases as "C2D:0", or those of the given operators and cases, in the suite's order."""
    wanted = list(only)
    if not wanted:
        wanted = list(operators())
    out: list[str] = []
    for text in wanted:
        if ":" in text:
            name, index = parse_case(text)
            out.append(f"{name}:{index}")
        else:
            op = find(text)
            out += [f"{op.name}:{k}" for k in range(len(op.cases))]
    return list(dict.fromkeys(out))


def write_results(path: Path, rows: Sequence[Mapping[str, Any]], lines: Sequence[str]) -> None:
    """Rows as JSON lines, and beside them the same as a table."""
    write_whole(path, "".join(json.dumps(r) + "\n" for r in rows))
    write_whole(path.with_suffix(".txt"), "\n".join(lines) + "\n")


def machine(target: Target, peak: Peak) -> dict[str, Any]:
    """What the figures depend on."""
    name = target.cpu
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [
            x
            for x in info.read_text(encoding="utf-8", errors="replace").splitlines()
            if x.startswith("model name")
        ]
        name = models[0].partition(":")[2].strip() if models else name
    return {
        "cpu": f"{name} ({target.cpu})",
        "cores": target.cores,
        "fma_gflops": round(peak.flops_all / 1e9, 1),
        "copy_gb_s": round(peak.copy_bytes_per_s / 1e9, 1),
        "fingerprint": target.fingerprint,
    }


def bench_ops(
    cases: Sequence[str],
    options: BenchOptions,
    each: Callable[[BenchRow], None],
    failed: Callable[[str, AnsorliteError], None] | None = None,
) -> list[BenchRow]:
    """Tune and time the cases one after the other; `each` gets every row as it comes.

    `failed` gets the cases that have none, and why; without it the first such case ends the run.
    """
    target = Target.detect()
    peak = measure_peak(target)
    rows: list[BenchRow] = []
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "ops.jsonl"
        for case in cases:
            try:
                row = _bench_case(case, options, log, target, peak)
            except AnsorliteError as error:
                if failed is None:
                    raise
                failed(case, error)
                continue
            rows.append(row)
            each(row)
    return rows


def _bench_case(
    case: str, options: BenchOptions, log: Path, target: Target, peak: Peak
) -> BenchRow:
    from ansorlite.search.tune import tune

    name, index = parse_case(case)
    op = find(name)
    batch = options.batch if op.batch else 1
    task = workload(case, batch=batch)
    began = time.perf_counter()
    found = tune(task, options.trials, options.timeout, seed=options.seed, log=log, progress=False)
    tuning_s = time.perf_counter() - began
    if found.best is None:
        why = next((f": {r.error}" for r in reversed(found.records) if r.error), "")
        raise MeasureError(f"no program of {task.name} ran in {tuning_s:.0f} s{why}")
    params = op.case(index, batch)
    # The winner of the race at the end, which one lucky measurement in the log may have beaten.
    ours = {"case": case, "batch": batch, "log": str(log), "trial": found.best.record.trial}
    specs: dict[str, tuple[str, dict[str, Any]]] = {"ansorlite": (sys.executable, ours)}
    for peer in options.peers:
        spec = {"name": name, "params": params, "threads": target.cores}
        specs[peer] = (peer_interpreter(peer, options.peer_python), spec)
    turns, modes = take_turns(specs, options.turns, options.turn_s)
    latency = {n: median(times) for n, times in turns.items()}
    speed = op.count_flop(params) / latency["ansorlite"]
    return BenchRow(
        case,
        batch,
        latency,
        modes,
        min((paired_ratio(turns, p) for p in options.peers), default=None),
        speed / 1e9,
        speed / peak.flops_all,
        found.trials,
        round(tuning_s, 1),
        turns,
        machine(target, peak),
        time.strftime("%Y-%m-%d"),
        least_seconds(task, peak) / latency["ansorlite"],
    )


def paired_ratio(turns: dict[str, list[float]], peer: str) -> float:
    """The peer's latency over ours: the median over the turns, each against its neighbour.

    A machine that gets slower or faster meanwhile does so for both of a pair.
    """
    pairs = zip(turns[peer], turns["ansorlite"], strict=True)
    return median(theirs / ours for theirs, ours in pairs)


# ---- contenders ---------------------------------------------------------------------------------


def peer_interpreter(peer: str, given: str | None = None) -> str:
    """A Python that has the peer: as given, of .venv-<peer> of this checkout, or this one."""
    candidates = [given] if given else [str(ROOT / f".venv-{peer}" / "bin" / "python")]
    if not given:
        candidates.append(sys.executable)
    for python in candidates:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({peer!r}) is None)"
        try:
            if subprocess.run([python, "-c", code], check=False).returncode == 0:
                return str(python)
        except OSError:
            continue
    raise UsageError(
        f"no interpreter with {peer}: run scripts/bench_ops.py, which makes one, or name one "
        "with --peer-python"
    )


class _Contender:
    """A process that runs `bench.serve`."""

    def __init__(self, name: str, python: str, spec: dict[str, Any]) -> None:
        self.name = name
        module = spec.get("module") or ("ours" if name == "ansorlite" else f"peer_{name}")
        path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        self._process = subprocess.Popen(
            [python, "-m", "ansorlite.bench.serve", module, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        )
        self.mode = str(self._answer()["mode"])

    def turn(self, seconds: float) -> float:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: its answer, or none, tells why
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        return float(self._answer()["latency_s"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MeasureError(f"contender {self.name} died: status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise MeasureError(f"contender {self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def take_turns(
    specs: dict[str, tuple[str, dict[str, Any]]], turns: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(latencies of the turns, mode) by contender; they start one after the other."""
    contenders: list[_Contender] = []
    try:
        for name, (python, spec) in specs.items():
            contenders.append(_Contender(name, python, spec))
        times: dict[str, list[float]] = {c.name: [] for c in contenders}
        for _ in range(turns):
            for c in contenders:
                time.sleep(PAUSE_S)
                times[c.name].append(c.turn(seconds))
        return times, {c.name: c.mode for c in contenders}
    finally:
        for c in contenders:
            c.close()


# ---- results ------------------------------------------------------------------------------------


def row_text(row: BenchRow) -> str:
    """One line of the table."""
    ours = format_latency(row.latency_s["ansorlite"])
    others = [format_latency(v) for n, v in row.latency_s.items() if n != "ansorlite"]
    ratio = "" if row.ratio is None else f"{row.ratio:6.2f}"
    limit = "     -" if row.share_of_limit is None else f"{row.share_of_limit:6.0%}"
    return (
        f"{row.case:12} {ours:>10} {' '.join(f'{o:>10}' for o in others)} {ratio} "
        f"{row.gflops:8.1f} {row.share_of_peak:6.0%} {limit} {row.trials:6} {row.tuning_s:7.1f}"
    )


def head_text(peers: Sequence[str]) -> str:
    names = " ".join(f"{p:>10}" for p in peers)
    return (
        f"{'case':12} {'ours':>10} {names} {'ratio':>6} {'GFLOP/s':>8} {'peak':>6} {'limit':>6} "
        f"{'trials':>6} {'tuned s':>7}"
    )


def table(rows: Sequence[BenchRow]) -> str:
    """The rows, the geometric mean of their ratios, and the machine."""
    if not rows:
        return "no cases\n"
    peers = [n for n in rows[0].latency_s if n != "ansorlite"]
    lines = [head_text(peers), *map(row_text, rows)]
    ratios = [r.ratio for r in rows if r.ratio is not None]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(
            f"geometric mean of {len(ratios)} ratios: {mean:.3f}; the lowest: {min(ratios):.2f}"
        )
    last = rows[-1]
    lines.append(", ".join(f"{k} {v}" for k, v in last.machine.items()) + f", {last.date}")
    return "\n".join(lines) + "\n"


def read_rows(path: Path) -> list[BenchRow]:
    """The rows of a file, none if there is no file; UsageError if it holds anything else."""
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [BenchRow(**json.loads(line)) for line in lines if line]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} does not hold rows of operators: {error}") from error


def merge_rows(path: Path, new: Sequence[BenchRow]) -> list[BenchRow]:
    """Write the rows, each in place of an older one of its case, in the suite's order."""
    order = {case: k for k, case in enumerate(suite())}
    rows = {r.case: r for r in (*read_rows(path), *new)}
    merged = sorted(rows.values(), key=lambda r: order.get(r.case, len(order)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(asdict(r)) + "\n" for r in merged))
    write_whole(path.with_suffix(".txt"), table(merged))
    return merged
