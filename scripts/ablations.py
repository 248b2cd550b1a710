"""What each part of the search is worth (some 25 s a run of 200 trials; all of them: 1 h 45 min).

Shows what each part of the default search gains in the area under the best-so-far curve. Runs what
is missing in results/ablations.jsonl, so it can be stopped and continued, then races what
was found and writes the table and the plot beside it. With `--trials 1000 --policies full` it
shows sample efficiency. With `--avx2` programs have 16 registers of 32 bytes, and the analytic
estimate the constants of such a CPU: what parts are worth where it does not fit the machine
(results/ablations_avx2.jsonl). With `--synthetic` latencies are those of machines that do not
exist, whose constants the estimate does not know (results/ablations_synthetic.jsonl): no noise, and
some 3 s a run. Policies called "former" are those of the search before parts that gained nothing
were left out; they run where they are named. Runs of other machines count for nothing: give each
a folder.
Usage: python scripts/ablations.py [--policies full random ...] [--cases C2D:2 ...] [--seeds 3]
       [--trials 200] [--table] [--race-seconds 15] [--races 3] [--no-race] [--avx2]
       [--synthetic] [--results DIR]
"""

import argparse
import sys
from pathlib import Path

from ansorlite.bench import ablations, synthetic
from ansorlite.bench.programs import RACES, race_all
from ansorlite.bench.runs import Run, append_run, draw, read_runs
from ansorlite.target import Target

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    now = [p for p in ablations.POLICIES if not p.startswith("former")]
    parser.add_argument("--policies", nargs="+", choices=tuple(ablations.POLICIES), default=now)
    parser.add_argument("--cases", nargs="+", default=list(ablations.CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    parser.add_argument("--race-seconds", type=float, default=15.0, help="of every case (15)")
    parser.add_argument("--races", type=int, default=RACES, help=f"processes of a race ({RACES})")
    parser.add_argument("--no-race", action="store_true", help="figures as each run measured them")
    parser.add_argument("--avx2", action="store_true", help="x86-64 only")
    parser.add_argument("--synthetic", action="store_true", help="measure nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (results)")
    args = parser.parse_args()
    target = Target.host_as("x86-avx2") if args.avx2 else Target.detect()
    kind = "_synthetic" if args.synthetic else "_avx2" if args.avx2 else ""
    path = args.results / f"ablations{kind}.jsonl"
    machine = synthetic.machine_name(target) if args.synthetic else target.fingerprint

    def own() -> list[Run]:
        return [r for r in read_runs(path) if r.target == machine]

    todo = ablations.missing(own(), args.policies, args.cases, args.seeds, args.trials)
    for policy, case, seed in [] if args.table else todo:
        search = synthetic.run if args.synthetic else ablations.run
        done = search(policy, case, seed, args.trials, target)
        append_run(path, done)
        print(
            f"{policy:14} {case:7} seed {seed}: {done.best()[-1] * 1e3:.3f} ms in "
            f"{done.wall_s:.0f} s",
            flush=True,
        )
    runs, raced = own(), None
    if not (args.no_race or args.synthetic):
        raced = race_all(runs, ablations.space_of, args.race_seconds, target, args.races)
    text = ablations.table(runs, raced)
    path.with_suffix(".txt").write_text(text)
    print(text, end="")
    draw([r for r in runs if r.policy in ablations.POLICIES], path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
