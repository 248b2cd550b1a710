"""A record with every field, and logs of records, for the tests of the tuning log."""

from dataclasses import replace
from pathlib import Path

from ansorlite.records import Record, RecordLog


def record(**changes: object) -> Record:
    plain = Record(
        target="x86-64/znver3/2",
        task="gmm-512",
        task_name="GMM:0",
        sketch="tile-fuse2",
        steps=(("SP", "C", 0, (8, 4)), ("AN", "C", 1, "parallel")),
        holes={"C.i": [8, 4], "C.unroll": [64]},
        status="OK",
        times_s=[0.001, 0.0011],
        latency_s=0.001,
        round=2,
        trial=130,
        seed=7,
        timestamp=1700000000.25,
        build_s=0.03,
        run_s=0.2,
        version="0.1.0",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def write(path: Path, *items: Record) -> None:
    with RecordLog(path) as log:
        for item in items:
            log.append(item)
