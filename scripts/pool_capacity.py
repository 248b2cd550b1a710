"""Trials a second of a pool, and what a trial costs more there than on this machine.

Claims: 200 pretended devices on one scheduler get at least 300 trials a second; four pretended
devices of 50 ms a trial do at least 3.5 times the trials of one; with one real worker on loopback a
trial takes at most 10 ms more than with the local runner. All with TLS, scheduler, devices and
tuner in processes of their own. Takes a minute; writes results/pool_capacity.jsonl and
.txt.
Usage: python scripts/pool_capacity.py [--again] [--table]
"""

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ansorlite.codegen.build import build_program
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import MachineError
from ansorlite.measure.runner import CheckSpec, LocalRunner, Runner
from ansorlite.pool.runner import RemoteRunner
from ansorlite.schedule.lower import lower
from ansorlite.search.measuring import CHECK_SEED
from ansorlite.search.reference import reduction_length, reference_state
from ansorlite.target import Target
from ansorlite.workloads import workload
from bench.experiment import RESULTS, Experiment, Row, exit_status, machine_line, stamp

START_S = 60.0
# what -> (pretended devices, processes that have them, ms a trial, trials)
CAPACITIES = {
    "1 device, 50 ms": (1, 1, 50.0, 100),
    "4 devices, 50 ms": (4, 1, 50.0, 400),
    "200 devices, 50 ms": (200, 4, 50.0, 6000),
    "200 devices, 500 ms": (200, 4, 500.0, 4000),
    "200 devices, 0 ms": (200, 4, 0.0, 6000),
}
OVERHEAD = "1 real device"
OVERHEAD_TRIALS, TURNS = 20, 5
GOALS = {"200 devices, 500 ms": 300.0, "200 devices, 50 ms": 300.0, "200 devices, 0 ms": 300.0}
HEAD = f"{'pool':<22}{'trials':>8}{'seconds':>9}{'trials/s':>10}{'ms a trial':>12}  claim"


@contextlib.contextmanager
def pool(devices: Sequence[Sequence[str]], count: int) -> Iterator[tuple[str, Path]]:
    """(address, certificates) of a pool with a worker process for each list of options."""
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="pool-capacity-") as folder:
        certificates = Path(folder) / "certificates"
        where = ("--cert-dir", str(certificates))

        def start(*words: str) -> "subprocess.Popen[bytes]":
            with (Path(folder) / "log").open("ab") as log:
                command = [sys.executable, "-m", "ansorlite", "pool", *words]
                return subprocess.Popen(command, stdout=log, stderr=log, process_group=0)

        try:
            start("init", str(certificates)).wait()
            port = free_port()
            listen = ("--host", "127.0.0.1", "--port", str(port), "--dashboard", "0")
            running.append(start("scheduler", *listen, *where))
            address = f"tls://127.0.0.1:{port}"
            for k, options in enumerate(devices):
                name = ("--name", f"worker{k}")
                running.append(start("worker", address, *name, *options, *where))
            end = time.monotonic() + START_S
            while (n := _present(address, certificates)) < count:
                if time.monotonic() > end:
                    text = (Path(folder) / "log").read_text()[-500:]
                    raise MachineError(f"{n} of {count} devices joined in {START_S:.0f} s: {text}")
                time.sleep(0.5)
            yield address, certificates
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                process.wait(30)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _present(address: str, certificates: Path) -> int:
    import asyncio

    from ansorlite.pool.status import devices_of
    from ansorlite.pool.wire import pool_at

    try:
        return len(asyncio.run(devices_of(pool_at(address, certificates))))
    except MachineError:
        return 0


def kernel() -> tuple[CheckSpec, KernelImage]:
    """A small matrix product of the suite, and its plain program."""
    task = workload("GMM:0")
    reference = build_program(lower(reference_state(task.plain)), task.target)
    spec = CheckSpec(task.dag, CHECK_SEED, reference, reduction_length(task.plain.dag))
    return spec, reference


def capacity(what: str) -> Row:
    """Trials a second of pretended devices, from the first to the last result."""
    n, processes, ms, trials = CAPACITIES[what]
    spec, image = kernel()
    # Different code, as that of the candidates of a round.
    images = [replace(image, object_bytes=image.object_bytes + b"%d" % k) for k in range(trials)]
    options = ["--pretend", str(ms), "--count", str(n // processes)]
    with (
        pool([options] * processes, n) as (address, certificates),
        RemoteRunner(address, cert_dir=certificates) as runner,
    ):
        runner.prepare("t", spec)
        while runner._dispatcher.width < n:
            time.sleep(0.05)
        began = time.perf_counter()
        found = [r for _, r in runner.run_all("t", images)]
        seconds = time.perf_counter() - began
        devices = len({r.device for r in found})
    if len(found) != trials or not all(r.ok for r in found):
        raise MachineError(f"{what}: {sum(r.ok for r in found)} of {trials} trials are right")
    return {
        "what": what,
        "trials": trials,
        "devices": devices,
        "seconds": round(seconds, 2),
        "per_s": round(trials / seconds, 1),
    }


def overhead(what: str) -> Row:
    """Milliseconds a trial more than the local runner's, the median of turns in turn."""
    spec, image = kernel()
    with (
        pool([()], 1) as (address, certificates),
        RemoteRunner(address, cert_dir=certificates) as remote,
        LocalRunner() as local,
    ):
        for runner in (remote, local):
            runner.prepare("t", spec)
            _ms_a_trial(runner, image)
        turns = [[_ms_a_trial(r, image) for r in (remote, local)] for _ in range(TURNS)]
    own, there = median(b for _, b in turns), median(a for a, _ in turns)
    return {
        "what": what,
        "trials": TURNS * OVERHEAD_TRIALS,
        "devices": 1,
        "seconds": round(sum(a for a, _ in turns) * OVERHEAD_TRIALS / 1e3, 2),
        "per_s": round(1e3 / there, 1),
        "ms": round(there, 2),
        "local_ms": round(own, 2),
        "turns_ms": [[round(x, 2) for x in turn] for turn in turns],
    }


def _ms_a_trial(runner: Runner, image: KernelImage) -> float:
    """Wall time of a trial less that of the timing itself, which ends by chance sooner or later."""
    began, spent_s = time.perf_counter(), 0.0
    for _ in range(OVERHEAD_TRIALS):
        result = runner.run("t", image)
        spent_s += result.run_s
    return (time.perf_counter() - began - spent_s) * 1e3 / OVERHEAD_TRIALS


def measured(what: str) -> Row:
    row = overhead(what) if what == OVERHEAD else capacity(what)
    return row | stamp(Target.detect())


def table_line(row: Row) -> str:
    ms = f"{row['ms']:.2f}" if "ms" in row else "-"
    claim = ""
    if row["what"] in GOALS:
        claim = f"at least {GOALS[row['what']]:.0f} trials/s"
    elif "ms" in row:
        more = row["ms"] - row["local_ms"]
        claim = f"{more:.2f} ms more than the local runner (at most 10); timing not counted"
    return (
        f"{row['what']:<22}{row['trials']:>8}{row['seconds']:>9.2f}{row['per_s']:>10.1f}{ms:>12}"
        f"  {claim}"
    ).rstrip()


def foot(rows: Sequence[Row]) -> list[str]:
    known = {r["what"]: r["per_s"] for r in rows}
    lines = []
    if known.keys() >= {"1 device, 50 ms", "4 devices, 50 ms"}:
        ratio = known["4 devices, 50 ms"] / known["1 device, 50 ms"]
        lines.append(f"four devices do {ratio:.2f} times the trials of one (at least 3.5)")
    return [*lines, machine_line(rows[-1]["machine"], rows[-1]["date"])]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="measure all, also what is known")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    args = parser.parse_args()
    wanted = [*CAPACITIES, OVERHEAD]
    experiment = Experiment[Row](
        RESULTS / "pool_capacity.jsonl",
        key=lambda r: r["what"],
        line=table_line,
        head=HEAD,
        foot=foot,
        order=lambda r: wanted.index(r["what"]),
        what="rows of pool_capacity.py",
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the pool is to be ended, too
    failed = experiment.run(wanted if not args.table else (), measured, again=args.again)
    experiment.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
