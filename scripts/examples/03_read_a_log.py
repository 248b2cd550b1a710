"""Read a tuning log: what each task reached, which programs failed, latency over trials as a plot.

Usage: python scripts/examples/03_read_a_log.py [log.jsonl [plot.svg]] (needs the extra `report`;
without a log, a short one is made first). `ansorlite report LOG` makes a whole page of a log.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import ansorlite as al
from ansorlite.records import Record, read_log


def short_log(path: Path) -> Path:
    """Four trials of a 128x128 matrix product."""
    al.tune(al.workload("GMM:0"), n_trials=4, log=path, progress=False)
    return path


def main(log: Path, plot: Path) -> None:
    # A log is one JSON object a line. Reading never runs anything: damaged lines are left out.
    contents = read_log(log)
    tasks: dict[str, list[Record]] = {}
    for record in contents.records:
        tasks.setdefault(record.task_name, []).append(record)

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for name, records in tasks.items():
        # One record a trial: status, latency of the program, and the program as steps and values.
        print(f"{name}: {len(records)} trials, {dict(Counter(r.status for r in records))}")
        best = min((r for r in records if r.ok), key=lambda r: r.latency_s or np.inf, default=None)
        if best is None:
            continue
        print(f"  best: trial {best.trial}, sketch {best.sketch}, {best.latency_s:.3g} s")
        print(f"  tile sizes and annotations: {dict(best.holes)}")
        curve = np.minimum.accumulate([r.latency_s or np.inf for r in records])
        axes.step(range(1, len(curve) + 1), curve * 1e3, where="post", label=name)
    axes.set(xlabel="trials", ylabel="best latency so far, ms", yscale="log")
    axes.legend()
    figure.savefig(plot)
    print(f"plot: {plot}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        log = Path(sys.argv[1]) if len(sys.argv) > 1 else short_log(Path(made) / "log.jsonl")
        main(log, Path(sys.argv[2]) if len(sys.argv) > 2 else Path(made) / "plot.svg")
