"""A search on a pool beside the same search on this machine.

Claim: `tune-op C2D:2 --on ...` finds what a local run finds. Scheduler and tuner are in one network
namespace, the workers in another one (needs root and `ip`; else all on loopback). Four pretended
workers, whose latencies follow from the object code, have to give the same trials as a local run
with them; then real workers, one a core, measure, and the program found is raced against the one
of a local run on one core, in alternating processes. Three minutes. Writes results/pool_finds.txt.
Usage: python scripts/pool_finds.py [--case C2D:2] [--trials 128] [--pretended 4]
"""

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from kills import wait_for
from pool_faults import PATIENCE_S, PORT, Namespaces, Rig, can_cut

import ansorlite as al
from ansorlite.errors import MachineError
from ansorlite.pool.device import PretendedRunner
from ansorlite.records import Record, read_log
from ansorlite.target import Target
from bench.contest import OURS, Spec, paired_ratio, take_turns
from bench.experiment import RESULTS, exit_status, machine, machine_line

TUNING_S = 900.0
TURNS, TURN_S = 12, 0.3


def on_a_pool(root: Path, case: str, trials: int, pretended: int, cut: bool) -> Path:
    """The log of a tuner that asks a pool of processes."""
    folder = root / f"pool{pretended}"
    folder.mkdir()
    spaces, log = Namespaces() if cut else None, folder / "log.jsonl"
    rig = Rig(folder, PORT + 7, spaces, pretended)
    try:
        if not wait_for(rig.all_here, PATIENCE_S):
            raise MachineError(f"the pool did not start: {rig.log('device0').read_text()[-500:]}")
        what = ("tune-op", case, "--trials", str(trials), "-q")
        code = rig.tuner(log, *what).wait(TUNING_S)
        if code:
            raise MachineError(
                f"the tuner ended with {code}: {rig.log('tuner').read_text()[-500:]}"
            )
    finally:
        rig.close()
        if spaces is not None:
            spaces.close()
    return log


def pretended_here(log: Path, case: str, trials: int) -> Path:
    """The log of the same search in this process, with what pretended workers would say."""
    al.tune(al.workload(case), trials, log=log, runner=PretendedRunner(), progress=False)
    return log


def locally(log: Path, case: str, trials: int) -> Path:
    """The log of a search on this machine's cores, as far as this process may use them."""
    words = ("tune-op", case, "--trials", str(trials), "-q", "--log", str(log))
    subprocess.run([sys.executable, "-m", "ansorlite", *words], check=True, capture_output=True)
    return log


def told(log: Path) -> list[tuple[object, ...]]:
    """What a log holds in the order in which candidates were asked, without times and devices."""
    found = sorted(read_log(log).records, key=lambda r: r.trial)
    return [(r.trial, r.round, r.sketch, str(r.holes), r.latency_s) for r in found]


def winner(log: Path) -> Record:
    """The record of the program that the search settled on."""
    found = read_log(log)
    if found.choices:
        return found.choices[-1]
    return min((r for r in found.records if r.ok), key=lambda r: r.latency_s or math.inf)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", default="C2D:2")
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--pretended", type=int, default=4)
    parser.add_argument("--output", type=Path, default=RESULTS / "pool_finds.txt")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root, cut = Path(tempfile.mkdtemp(prefix="pool-finds-")), can_cut()
    where = "in two network namespaces" if cut else "on loopback"
    case, trials, told_lines = args.case, args.trials, []
    log = on_a_pool(root, case, trials, args.pretended, cut)
    same = told(log) == told(pretended_here(root / "pretended.jsonl", case, trials))
    told_lines.append(
        f"{args.pretended} pretended workers {where}, {case}, {len(told(log))} trials: "
        + ("the trials of a local run" if same else "NOT the trials of a local run")
    )
    logs = {OURS: on_a_pool(root, case, trials, 0, cut)}
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as one worker has
    logs["local"] = locally(root / "local.jsonl", case, trials)
    found = {name: winner(log) for name, log in logs.items()}
    specs = {
        name: Spec("ours", {"case": case, "batch": 1, "log": str(logs[name]), "trial": r.trial})
        for name, r in found.items()
    }
    turns, _ = take_turns(specs, TURNS, TURN_S)
    devices = sorted({str(r.device) for r in read_log(logs[OURS]).records if r.device})
    told_lines += [
        f"real workers {where}, one a core ({', '.join(devices)}), {case}, {trials} trials:",
        *(
            f"  {'pool' if name == OURS else name:6} {median(t) * 1e6:8.1f} us raced, "
            f"{(found[name].latency_s or math.nan) * 1e6:8.1f} us as recorded"
            for name, t in turns.items()
        ),
        f"  what the pool found is {paired_ratio(turns, 'local'):.3f} times as fast",
        machine_line(machine(Target.detect()), time.strftime("%Y-%m-%d")),
    ]
    text = "\n".join(told_lines) + "\n"
    args.output.write_text(text)
    print(text, end="")
    shutil.rmtree(root)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(exit_status(main))
