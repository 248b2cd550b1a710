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
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ansorlite.bench.ops import machine, write_results
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import TrainingGroup
from ansorlite.measure.peak import measure_peak
from ansorlite.search.evolve import Rows, mutate
from ansorlite.search.policy import EvolutionaryPolicy
from ansorlite.search.select import roulette, unique_rows
from ansorlite.search.session import Session
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.workloads import workload

RESULTS = Path(__file__).parents[1] / "results"
ROWS, DRAFTED, LEARNED = 2048, 50_000, 1000
TURNS = 15
LUCK = 0.1  # standard deviation of what the model has to learn
BEGUN = 64  # trials after which a search has all of its parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", default="C2D:2")
    parser.add_argument("--trials", type=int, default=0, help="of a search whose memory is watched")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (results)")
    args = parser.parse_args()
    target = Target.detect()
    known = {"case": args.case, "machine": machine(target, measure_peak(target))}
    known["date"] = time.strftime("%Y-%m-%d")
    rows = [{"what": what, "ms": 1e3 * s} for what, s in speeds(args.case, target).items()]
    lines = [f"{r['what']:40} {r['ms']:8.1f} ms" for r in rows]
    if args.trials:
        at = memory(args.case, args.trials)
        rows += [{"what": "resident memory", "trials": n, "mb": mb} for n, mb in at.items()]
        lines += [f"resident memory after {n:5} trials {mb:14.1f} MB" for n, mb in at.items()]
    print("\n".join(lines))
    args.results.mkdir(parents=True, exist_ok=True)
    write_results(args.results / "search_speed.jsonl", [r | known for r in rows], lines)
    return 0


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
    return {what: _seconds(part) for what, part in parts.items()}


def _seconds(part: Callable[[], Any]) -> float:
    part()
    times = []
    for _ in range(TURNS):
        began = time.perf_counter()
        part()
        times.append(time.perf_counter() - began)
    return median(times)


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
    sys.exit(main())
