"""Kill, stop and cut off parts of a pool while it tunes; count what is lost.

Claim: workers killed or stopped while they measure, a network that is cut for 30 s, a scheduler
that is killed and restarted, a tuner that is killed: nothing is lost but the measurement in flight,
no device stays busy, no process is left behind, and each fault is named in a log. The network is
cut between two network namespaces of this script (needs root and `ip`). 20 of each take forty
minutes. Writes results/pool_faults.jsonl and .txt.
Usage: python scripts/pool_faults.py [--times 20] [--limit N] [--faults NAME ...] [--table]
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kills import alive, children, lines, trials, wait_for

from ansorlite.errors import MachineError
from bench.experiment import RESULTS, Experiment, Row, exit_status

TRIALS = 16
CUT_S = 30.0
PATIENCE_S = 120.0  # for a tuner, a device, a line of a log
GONE_S = 15.0  # for the end of processes
PORT = 8790
OPERATOR = ("tune-op", "GMM:0", "--policy", "random", "--trials", str(TRIALS), "-q")
COUNTS = ("lost", "failed", "busy", "left", "unnamed", "hung")
HEAD = f"{'fault':<20}{'times':>6}" + "".join(f"{c:>9}" for c in COUNTS) + f"{'seconds':>9}"


class Namespaces:
    """Two network namespaces and a wire: scheduler and tuner at one end, workers at the other."""

    def __init__(self) -> None:
        tag = f"{os.getpid() % 10000}"
        self.near, self.far = f"pooln{tag}", f"poolf{tag}"
        self._wires = f"vn{tag}", f"vf{tag}"
        near, far = self._wires
        self._ip("netns", "add", self.near)
        self._ip("netns", "add", self.far)
        self._ip(
            *("link", "add", near, "netns", self.near, "type", "veth"),
            *("peer", "name", far, "netns", self.far),
        )
        for space, wire, address in (
            (self.near, near, "10.231.0.1"),
            (self.far, far, "10.231.0.2"),
        ):
            self._ip("-n", space, "addr", "add", f"{address}/30", "dev", wire)
            self._ip("-n", space, "link", "set", wire, "up")
            self._ip("-n", space, "link", "set", "lo", "up")

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def wire(self, state: str) -> None:
        """Set the wire "down" or "up"."""
        self._ip("-n", self.near, "link", "set", self._wires[0], state)

    def close(self) -> None:
        for space in (self.near, self.far):
            with contextlib.suppress(subprocess.CalledProcessError):
                self._ip("netns", "del", space)


class Rig:
    """A pool of processes: a scheduler, workers of one core each, and one tuner after another.

    With `pretended`, so many workers measure nothing instead.
    """

    def __init__(
        self, root: Path, port: int, spaces: Namespaces | None = None, pretended: int = 0
    ) -> None:
        self.root, self.port, self.spaces = root, port, spaces
        self.host = "10.231.0.1" if spaces else "127.0.0.1"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.seen: set[int] = set()  # processes of the pool, to be gone at the end
        self.cores = sorted(os.sched_getaffinity(0))[:2]
        self.pretended, self.workers = pretended, pretended or len(self.cores)
        self.start("init", "pool", "init", str(root / "certificates")).wait()
        self.scheduler()
        for k in range(self.workers):
            self.worker(k)

    def start(self, name: str, *words: str, far: bool = False) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "ansorlite", *words]
        if self.spaces is not None:
            space = self.spaces.far if far else self.spaces.near
            command = ["ip", "netns", "exec", space, *command]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=os.environ | {"ANSORLITE_BUILD_WORKERS": "1"},
            )
        self.processes[name] = process
        self.seen.add(process.pid)
        return process

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    @property
    def where(self) -> tuple[str, ...]:
        return (f"{self.host}:{self.port}", "--cert-dir", str(self.root / "certificates"))

    def scheduler(self) -> None:
        self.start(
            "scheduler",
            *("pool", "scheduler", "--host", self.host, "--port", str(self.port)),
            *("--dashboard", "0", *self.where[1:]),
        )

    def worker(self, k: int) -> None:
        own = ("--pretend", "5") if self.pretended else ("--cores", str(self.cores[k]))
        words = ("--name", f"device{k}", *own)
        self.start(f"device{k}", "pool", "worker", *self.where, *words, far=True)

    def tuner(self, log: Path, *what: str) -> "subprocess.Popen[bytes]":
        words = ("--on", *self.where)
        return self.start("tuner", *(what or OPERATOR), "--log", str(log), *words)

    def devices(self) -> list[str]:
        """The lines of `pool status` that are of devices."""
        words = [sys.executable, "-m", "ansorlite", "pool", "status", "--on", *self.where]
        if self.spaces is not None:
            words = ["ip", "netns", "exec", self.spaces.near, *words]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        return [x for x in done.stdout.splitlines() if x.startswith("device") and "  " in x]

    def all_here(self) -> bool:
        return len(self.devices()) == self.workers

    def idle(self) -> bool:
        """Are all devices here, and does none measure or have trials that wait?"""
        found = self.devices()
        return len(found) == self.workers and all(x.split()[-1] == "-" for x in found)

    def descend(self) -> set[int]:
        """The processes of workers and tuner now."""
        pids = {p.pid for p in self.processes.values() if p.poll() is None}
        todo = list(pids)
        while todo:
            own = children(todo.pop())
            todo += own
            pids.update(own)
        self.seen |= pids
        return pids

    def orphans(self, before: set[int]) -> list[int]:
        """Those processes that are alive and no longer of any worker, tuner or scheduler."""
        return [p for p in before - self.descend() if alive(p)]

    def close(self) -> int:
        """End everything; returns how many processes did not end."""
        self.descend()
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GONE_S)
        wait_for(lambda: not any(map(alive, self.seen)), GONE_S)
        left = [p for p in self.seen if alive(p)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)


# ---- faults: each returns what has to be named, as (log, words) ----------------------------------


def real(process: "subprocess.Popen[bytes]") -> int:
    """The process of Python, which `ip netns exec` becomes."""
    return process.pid


def worker_killed(rig: Rig, rng: random.Random, log: Path) -> list[tuple[str, str]]:
    k = rng.randrange(len(rig.cores))
    os.kill(real(rig.processes[f"device{k}"]), signal.SIGKILL)
    rig.processes[f"device{k}"].wait()
    rig.worker(k)
    return [("tuner", f"device{k} is lost")]


def worker_stopped(rig: Rig, rng: random.Random, log: Path) -> list[tuple[str, str]]:
    k = rng.randrange(len(rig.cores))
    process = rig.processes[f"device{k}"]
    os.kill(real(process), signal.SIGSTOP)
    wait_for(lambda: named(rig, "tuner", f"device{k} is lost"), PATIENCE_S)
    os.kill(real(process), signal.SIGCONT)
    return [("tuner", f"device{k} is lost: nothing was heard")]


def network_cut(rig: Rig, rng: random.Random, log: Path) -> list[tuple[str, str]]:
    assert rig.spaces is not None
    rig.spaces.wire("down")
    time.sleep(CUT_S)
    rig.spaces.wire("up")
    return [("tuner", f"device{k} is lost") for k in range(len(rig.cores))]


def scheduler_killed(rig: Rig, rng: random.Random, log: Path) -> list[tuple[str, str]]:
    os.kill(real(rig.processes["scheduler"]), signal.SIGKILL)
    rig.processes["scheduler"].wait()
    rig.scheduler()
    return [(f"device{k}", "the scheduler is lost") for k in range(len(rig.cores))]


def tuner_killed(rig: Rig, rng: random.Random, log: Path) -> list[tuple[str, str]]:
    os.kill(real(rig.processes["tuner"]), signal.SIGKILL)
    rig.processes["tuner"].wait()
    return [(f"device{k}", "ended: the connection broke") for k in range(len(rig.cores))]


FAULTS: dict[str, Callable[[Rig, random.Random, Path], list[tuple[str, str]]]] = {
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
    "network cut": network_cut,
    "scheduler killed": scheduler_killed,
    "tuner killed": tuner_killed,
}


def named(rig: Rig, name: str, words: str) -> bool:
    """Does the log say these words since `mark`?"""
    return words in rig.log(name).read_text(errors="replace")


def once(rig: Rig, fault: str, n: int, expected: Sequence[object]) -> Row:
    """One tuner, one fault; what went wrong."""
    rng, began = random.Random(f"{fault} {n}"), time.monotonic()
    found: Counter[str] = Counter()
    log = rig.root / f"{time.monotonic_ns()}.jsonl"
    if not wait_for(rig.idle, PATIENCE_S):
        found["busy"] += 1
    for name in rig.processes:
        with contextlib.suppress(FileNotFoundError):
            os.truncate(rig.log(name), 0)
    process = rig.tuner(log)
    wanted = 2 + rng.randrange(TRIALS // 2)
    wait_for(lambda: lines(log) >= wanted or process.poll() is not None, PATIENCE_S)
    running = rig.descend()
    before = set(map(str, trials(log)))
    to_name = FAULTS[fault](rig, rng, log)
    if fault == "tuner killed":
        free = wait_for(rig.idle, GONE_S)  # at once, and without a tuner
        found["busy"] += not free
        process = rig.tuner(log)
    try:
        code = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        found["hung"] += 1
        process.kill()
        code = process.wait()
    done = trials(log)
    found["hung"] += code not in (0, -signal.SIGKILL)
    found["lost"] += len(before - set(map(str, done))) + (list(done) != list(expected))
    found["failed"] += sum(not ok for ok in statuses(log))
    for name, words in to_name:
        found["unnamed"] += not wait_for(lambda n=name, w=words: named(rig, n, w), GONE_S)  # type: ignore[misc]
    found["busy"] += not wait_for(rig.idle, PATIENCE_S)
    gone = wait_for(lambda: not rig.orphans(running), GONE_S)
    found["left"] += 0 if gone else len(rig.orphans(running))
    row = {"fault": fault, "n": n, **{c: found[c] for c in COUNTS}}
    return row | {"seconds": round(time.monotonic() - began, 1), "date": time.strftime("%Y-%m-%d")}


def statuses(log: Path) -> list[bool]:
    from ansorlite.records import read_log

    return [r.ok for r in read_log(log).records]


@contextlib.contextmanager
def pool_of(fault: str, port: int) -> Iterator[tuple[Rig, list[object]]]:
    """A pool for faults of one kind, and the trials of a tuner that nothing happened to."""
    root = Path(tempfile.mkdtemp(prefix="pool-faults-"))
    spaces = Namespaces() if fault == "network cut" else None
    rig = Rig(root, port, spaces)
    left = 0
    try:
        if not wait_for(rig.all_here, PATIENCE_S):
            raise MachineError(f"the pool did not start: {rig.log('device0').read_text()[-500:]}")
        whole = root / "whole.jsonl"
        rig.tuner(whole).wait(PATIENCE_S)
        expected = trials(whole)
        if len(expected) != TRIALS:
            raise MachineError(f"the whole run failed: {rig.log('tuner').read_text()[-500:]}")
        yield rig, list(expected)
    finally:
        left = rig.close()
        if spaces is not None:
            spaces.close()
    if left:
        raise MachineError(f"{left} processes of the pool did not end: see {root}")
    shutil.rmtree(root)


def by_fault(rows: Sequence[Row]) -> list[Row]:
    """The sums over all rows of each fault."""
    out = []
    for fault in FAULTS:
        own = [r for r in rows if r["fault"] == fault]
        if own:
            sums = {c: sum(r[c] for r in own) for c in (*COUNTS, "seconds")}
            out.append({"fault": fault, "times": len(own), **sums})
    return out


def table_line(row: Row) -> str:
    counts = "".join(f"{row[c]:>9}" for c in COUNTS)
    return f"{row['fault']:<20}{row['times']:>6}{counts}{row['seconds']:>9.0f}"


def table(rows: Sequence[Row]) -> str:
    date = rows[-1]["date"] if rows else ""
    foot = [
        "lost: trials that a log had or ought to have; failed: trials recorded with an error;",
        "busy: a device that did not come back free; left: processes; unnamed: no line in the log;",
        f"hung: tuners that did not end well. {TRIALS} trials a tuner, two workers, {date}",
    ]
    return "\n".join([HEAD, *map(table_line, by_fault(rows)), *foot]) + "\n"


def can_cut() -> bool:
    """May this process make network namespaces?"""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"pooltry{os.getpid() % 10000}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=20, help="of each fault, in all")
    parser.add_argument("--limit", type=int, help="end after so many of each fault")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--output", type=Path, default=RESULTS / "pool_faults.jsonl")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    args = parser.parse_args()
    experiment = Experiment[Row](
        args.output, key=lambda r: (r["fault"], r["n"]), line=row_line, what="faults of a pool"
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the pool is to be ended, too
    known = {(r["fault"], r["n"]) for r in experiment.rows()}
    for fault in args.faults if not args.table else ():
        missing = [n for n in range(args.times) if (fault, n) not in known][: args.limit]
        if fault == "network cut" and not can_cut():
            print("network cut: skipped, no network namespaces here (needs root)", file=sys.stderr)
        elif missing:
            with pool_of(fault, args.port) as (rig, expected):
                for n in missing:
                    experiment.add(once(rig, fault, n, expected))
    rows = experiment.rows()
    experiment.finish(table(rows))
    return 1 if any(r[c] for r in rows for c in COUNTS) else 0


def row_line(row: Row) -> str:
    wrong = ", ".join(f"{c} {row[c]}" for c in COUNTS if row[c])
    return f"{row['fault']} {row['n']}: {wrong or 'nothing lost'}, {row['seconds']} s"


if __name__ == "__main__":
    sys.exit(exit_status(main))
