"""What each part of the search is worth (some 25 s a run of 200 trials; all of them: 2 hours).

Shows what each part of the default search gains in the area under the best-so-far curve. Runs what
is missing in results/ablations.jsonl, so it can be stopped and continued, then races what
was found and writes the table and the plot beside it. With `--trials 1000 --policies full` it
shows sample efficiency. With `--avx2` programs have 16 registers of 32 bytes, and the analytic
estimate the constants of such a CPU: what parts are worth where it does not fit the machine
(results/ablations_avx2.jsonl). With `--synthetic` latencies are those of machines that do not
exist, whose constants the estimate does not know (results/ablations_synthetic.jsonl): no noise, and
some 3 s a run. Recorded runs of policies that are left out by now are shown, too. Runs of other
machines count for nothing: give each a folder.
Usage: python scripts/ablations.py [--policies full random ...] [--cases C2D:2 ...] [--seeds 3]
       [--trials 200] [--table] [--race-seconds 15] [--races 3] [--no-race] [--avx2]
       [--synthetic] [--results DIR]
"""

import argparse
import sys
from itertools import product
from pathlib import Path

from ansorlite.target import Target
from bench import ablations, synthetic
from bench.experiment import RESULTS, exit_status
from bench.programs import RACES, race_all
from bench.runs import RacedRun, draw, experiment_of_runs
from bench.suite import CASES


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    every = list(ablations.POLICIES)
    parser.add_argument("--policies", nargs="+", choices=every, default=every)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
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
    experiment = experiment_of_runs(args.results / f"ablations{kind}.jsonl")
    machine = synthetic.machine_name(target) if args.synthetic else target.fingerprint

    def done(run: RacedRun) -> bool:
        return run.target == machine and run.budget >= args.trials

    def once(key: tuple[str, str, int]) -> RacedRun:
        search = synthetic.run if args.synthetic else ablations.run
        return search(*key, args.trials, target)

    if not args.table:
        seeds = product(range(args.seeds), args.cases, args.policies)
        experiment.run([(policy, case, seed) for seed, case, policy in seeds], once, done)
    runs, raced = [r for r in experiment.rows() if r.target == machine], None
    if not (args.no_race or args.synthetic):
        raced = race_all(runs, ablations.space_of, args.race_seconds, target, args.races)
    experiment.finish(ablations.table(runs, raced))
    draw(experiment, runs)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
