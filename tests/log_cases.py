"""Records and logs for the tests of the command line, in the form that the tuner writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.records import Record, RecordLog
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.naming import canonical_names
from ansorlite.space.legality import legal
from ansorlite.space.sketch import sketches
from ansorlite.task import SearchTask


def record(task: SearchTask, trial: int = 0, of: int = 0, **changes: Any) -> Record:
    """The record of a legal candidate of sketch `of`; a different row for each trial."""
    names, sketch = canonical_names(task.dag), sketches(task.dag, task.target)[of]
    rows = sketch.sample(256, np.random.default_rng(trial))
    rows = rows[legal(sketch.program, population_columns(sketch.holes, rows), 256, task.target)]
    fields: dict[str, Any] = {
        "target": task.target.fingerprint,
        "task": task.workload_key,
        "task_name": task.name,
        "sketch": sketch.name,
        "steps": tuple(names.steps(sketch.state.to_json())),
        "holes": names.holes(sketch.values(rows[0])),
        "status": "OK",
        "latency_s": 1e-3,
        "round": min(trial, 1),
        "trial": trial,
    }
    return Record(**(fields | changes))


def write(path: Path, records: Sequence[Record]) -> Path:
    with RecordLog(path, fsync=False) as log:
        for r in records:
            log.append(r)
    return path
