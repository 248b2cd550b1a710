"""How fast the search itself is, on idle cores, and how much memory a long one takes (a minute).

Claims, of the sketch of a 14x14x256 convolution (C2D:2) with most holes: 2,048 candidates take less
than 30 ms for features, 80 ms with predictions, 120 ms for a whole generation (parents, mutation,
de-duplication, mask, score); 50,000 less than 200 ms for the analytic score. With `--trials 5000`
(some eight minutes) also: the memory of the tuner grows by less than 100 MB from trial 64 to the
last one. Times are medians. Writes results/search_speed.jsonl and a table.
Usage: python scripts/search_speed.py [--case C2D:2] [--trials 5000] [--results DIR]
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import TrainingGroup
from ansorlite.search.evolve import Rows, mutate
from ansorlite.search.policy import EvolutionaryPolicy
from ansorlite.search.select import roulette, unique_rows
from ansorlite.search.session import Session
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.workloads import workload
from bench.experiment import RESULTS, Experiment, Row, exit_status, stamp
from bench.serve import timed

ROWS, DRAFTED, LEARNED = 2048, 50_000, 1000
PART_S = 1.0  # of calls of each part
LUCK = 0.1  # standard deviation of what the model has to learn
BEGUN = 64  # trials after which a search has all of its parts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", default="C2D:2")
    parser.add_argument("--trials", type=int, default=0, help="of a search whose memory is watched")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (results)")
    args = parser.parse_args()
    experiment = Experiment[Row](
        args.results / "search_speed.jsonl",
        key=lambda r: (r["what"], r["case"], r.get("trials")),
        line=table_line,
    )
    target = Target.detect()
    known = {"case": args.case, **stamp(target)}
    for what, seconds in speeds(args.case, target).items():
        experiment.add({"what": what, "ms": 1e3 * seconds, **known})
    for n, mb in memory(args.case, args.trials).items() if args.trials else ():
        experiment.add({"what": "resident memory", "trials": n, "mb": mb, **known})
    experiment.finish()
    return 0


def table_line(row: Row) -> str:
    if "mb" in row:
        return f"resident memory after {row['trials']:5} trials {row['mb']:14.1f} MB"
    return f"{row['what']:40} {row['ms']:8.1f} ms"


def speeds(case: str, target: Target) -> dict[str, float]:
    """Seconds of each part, medians."""
    task, rng, model = workload(case, target=target), np.random.default_rng(0), CorrectionModel()
    found = sketches(task.dag, target)
    policy = EvolutionaryPolicy(found, target, 0, task.workload_key, model)
    history = policy.history
    sketch = max(found, key=lambda s: len(s.holes))
    name = sketch.name
    drafted = sketch.sample(DRAFTED, rng)
    rows = history.sample(name, ROWS, 64, rng)
    seen = history.sample(name, LEARNED, 64, rng)
    luck = np.exp(LUCK * rng.standard_normal(len(seen)))
    times = luck * np.exp2(-history.draft(name, seen)) * 1e-9
    model.update([TrainingGroup(task.workload_key, list(history.features(name, seen)), times)])
    scores = policy.score(name, rows)

    def generation() -> Rows:
        parents = rows[roulette(np.exp2(scores), ROWS, rng)]
        children = mutate(parents, sketch.holes, rng)
        children = children[unique_rows(children)]
        children = children[history.legal(name, children)]
        policy.score(name, children)
        return children

    parts: dict[str, Callable[[], Any]] = {
        f"features of {len(rows):,} candidates": lambda: history.features(name, rows),
        "with predictions": lambda: policy.score(name, rows),
        "a whole generation": generation,
        f"analytic score of {len(drafted):,}": lambda: history.draft(name, drafted),
    }
    return {what: timed(part, PART_S)[0] for what, part in parts.items()}


def memory(case: str, trials: int) -> dict[int, float]:
    """Resident memory of the tuner, MB, after some numbers of trials of one search."""
    task, out = workload(case), dict[int, float]()
    with Session(trials, None, progress=False) as session:
        tuner = session.tuner(task)
        while (n := session.budget.round_of(64, tuner.trials, 0)) > 0:
            session.train([tuner])
            if not tuner.round(n):
                break
            if tuner.trials >= BEGUN * 2 ** len(out):
                out[tuner.trials] = _resident_mb()
        out[tuner.trials] = _resident_mb()
    return out


def _resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    line = next(x for x in status.splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(exit_status(main))
