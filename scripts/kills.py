"""Kill the tuner, its builders and its runner, in any state; go on; count what was lost.

Claim: whatever is killed (KILL, TERM, INT, HUP), and whether it is starting or settled, a run that
is continued has the trials of an uninterrupted one, and no process or file is left behind. In turn
an operator, by the command line, and a small network of two tasks, by the API, both with random
candidates, which do not depend on latencies. Prints a table, appends a line to --json.
Usage: python scripts/kills.py [--kills 100] [--seed 0] [--json results/kills.jsonl]
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from ansorlite.records import read_log

Plan = deque[tuple[str, signal.Signals]]  # victims and signals that are left
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
VICTIMS = ("starting worker", "settled worker", "starting tuner", "settled tuner")
TRIALS = {"operator": 20, "network": 16}
STARTS_S = 0.5  # a process that is younger is starting
PATIENCE_S = 120.0  # for the end of a tuner
GONE_S = 10.0  # for the end of its workers
OPERATOR = ("tune-op", "GMM:0", "--policy", "random", "-q")
FAULTS = (
    "trials lost",
    "trials that failed",
    "processes left",
    "files left",
    "other results",
    "hung or failed",
)


def network(log: str) -> None:
    """Tune two dense layers of a network made here."""
    import ansorlite
    from ansorlite import te
    from ansorlite.search.session import Session
    from ansorlite.search.task_scheduler import SCHEDULERS
    from ansorlite.search.tune_tasks import WeightedTask, tune_tasks

    def layer(n: int) -> "ansorlite.SearchTask":
        x, w = te.placeholder((32, n), name="x"), te.placeholder((n, 32), name="w", constant=True)
        k = te.reduce_axis(n, name="k")
        y = te.compute((32, 32), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
        return ansorlite.SearchTask([te.relu(y)], name=f"layer{n}")

    weighted = [WeightedTask(layer(n), 1.0) for n in (32, 48)]
    with Session(
        TRIALS["network"], None, log=log, policy="random", progress=False, round_size=4
    ) as session:
        tune_tasks(session, weighted, SCHEDULERS["round-robin"])


class Bench:
    """A folder of its own: temporary files, kept figures, logs."""

    def __init__(self, root: Path) -> None:
        self.root, self.temporary, self.cache = root, root / "tmp", root / "cache"
        for folder in (self.temporary, self.cache):
            folder.mkdir()

    def start(self, kind: str, log: Path) -> "subprocess.Popen[bytes]":
        here = [sys.executable, __file__, "--tune-network", str(log)]
        command = [sys.executable, "-m", "ansorlite", *OPERATOR]
        command += ["--trials", str(TRIALS["operator"]), "--log", str(log)]
        with (self.root / "errors").open("ab") as errors:
            return subprocess.Popen(
                command if kind == "operator" else here,
                env=os.environ
                | {"TMPDIR": str(self.temporary), "ANSORLITE_CACHE_DIR": str(self.cache)},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                process_group=0,
                preexec_fn=_usual_signals,
            )

    def left(self) -> list[str]:
        """Files that a run has no reason to leave."""
        kept = [p for p in self.cache.rglob("*") if p.suffix != ".json"]
        return sorted(map(str, [*self.temporary.rglob("*"), *kept]))


def _usual_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # shells and nohup let them be ignored
        signal.signal(number, signal.SIG_DFL)


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def age_s(pid: int) -> float:
    fields = _stat(pid)
    if not fields:
        return 0.0
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Fields of a process after its name, its state first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def wait_for(condition: Callable[[], object], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def trials(log: Path) -> list[tuple[object, ...]]:
    """What was asked, task by task: no latency, no time."""
    found = read_log(log).records if log.exists() else ()
    return sorted((r.task, r.trial, r.round, r.sketch, str(r.holes)) for r in found)


def victim(process: "subprocess.Popen[bytes]", what: str, log: Path, rng: random.Random) -> int:
    """Wait for the moment and name the process to kill; 0 if the tuner ended before."""
    before = lines(log)

    def ready() -> list[int]:
        if process.poll() is not None:
            return [0]
        own = children(process.pid)
        match what:
            case "starting worker":
                return [p for p in own if age_s(p) < STARTS_S]
            case "settled worker":
                return [p for p in own if age_s(p) > STARTS_S] if lines(log) > before else []
            case "starting tuner":
                return [process.pid]
        return [process.pid] if lines(log) > before + 1 else []

    if what == "starting tuner":
        time.sleep(rng.uniform(0.0, 2.0))
    elif what.startswith("settled"):
        time.sleep(rng.uniform(0.0, 0.2))
    wait_for(ready, PATIENCE_S)
    return rng.choice(ready() or [0])


def watch(process: "subprocess.Popen[bytes]", workers: set[int]) -> None:
    """Wait for the end of a tuner, and note all its workers."""

    def ended() -> bool:
        workers.update(children(process.pid))
        return process.poll() is not None

    wait_for(ended, PATIENCE_S)


def tune_with_kills(bench: Bench, kind: str, rng: random.Random, plan: Plan) -> Counter[str]:
    """One tuner after the other until the log is complete: what was killed, and what went wrong."""
    log = bench.root / f"{kind}-{time.monotonic_ns()}"
    found: Counter[str] = Counter()
    seen: set[tuple[object, ...]] = set()
    complete = failed = False
    while not complete and not failed:
        process = bench.start(kind, log)
        workers: set[int] = set()
        hit = -1
        while plan and hit not in (0, process.pid):
            what, number = plan.popleft()
            hit = victim(process, what, log, rng)
            workers.update(children(process.pid))
            seen.update(trials(log))
            if hit == 0:
                plan.append((what, number))
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(hit, number)
                found[f"{what} {number.name}"] += 1
        watch(process, workers)
        if process.poll() is None:
            found["hung or failed"] += 1
            process.kill()
            process.wait()
        code = process.returncode
        failed = code != 0 and -code not in SIGNALS and code - 128 not in SIGNALS
        found["hung or failed"] += failed
        found["trials lost"] += len(seen.difference(trials(log)))
        gone = wait_for(lambda own=workers: not any(map(alive, own)), GONE_S)  # type: ignore[misc]
        found["processes left"] += 0 if gone else sum(map(alive, workers))
        found["files left"] += len(bench.left())
        complete = code == 0 and len(trials(log)) >= TRIALS[kind]
    records = read_log(log).records if log.exists() else ()
    found["trials that failed"] += sum(not r.ok for r in records)
    found["other results"] += trials(log) != reference(bench, kind)
    return found


def reference(bench: Bench, kind: str) -> list[tuple[object, ...]]:
    """The trials of an uninterrupted run, made once."""
    log = bench.root / f"{kind}-whole"
    if not log.exists() and bench.start(kind, log).wait() != 0:
        sys.exit(f"the uninterrupted run failed: {(bench.root / 'errors').read_text()[-500:]}")
    return trials(log)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tune-network", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tune_network:
        network(args.tune_network)
        return
    rng, began = random.Random(args.seed), time.monotonic()
    every = [(v, s) for v in VICTIMS for s in SIGNALS]
    chosen = (every * (args.kills // len(every) + 1))[: args.kills]
    rng.shuffle(chosen)
    plan, total = deque(chosen), Counter[str]()
    root = Path(tempfile.mkdtemp(prefix="kills-"))
    bench, runs = Bench(root), 0
    for kind in TRIALS:
        reference(bench, kind)
    while plan:
        total += tune_with_kills(bench, list(TRIALS)[runs % 2], rng, plan)
        runs += 1
    done = sum(n for name, n in total.items() if name not in FAULTS)
    row = {"kills": done, "runs": runs, "seconds": round(time.monotonic() - began)}
    row |= {fault: total[fault] for fault in FAULTS}
    print(f"{'victim':<16}" + "".join(f"{s.name:>9}" for s in SIGNALS))
    for v in VICTIMS:
        print(f"{v:<16}" + "".join(f"{total[f'{v} {s.name}']:>9}" for s in SIGNALS))
    print("\n".join(f"{name:<20} {n}" for name, n in row.items()))
    faults = sum(total[f] for f in FAULTS)
    if faults:
        print(f"kept for a look: {root}")
    else:
        shutil.rmtree(root)
    if args.json:
        with args.json.open("a") as out:
            out.write(json.dumps(row) + "\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
