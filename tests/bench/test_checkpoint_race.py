"""What searches would have settled on: checkpoints of their logs, raced."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from log_cases import record, write

import ansorlite as al
from ansorlite import te
from ansorlite.ir.program import Program
from ansorlite.schedule.lower import lower
from ansorlite.search.tune_tasks import WeightedTask
from ansorlite.space.plain import plain_state
from bench import checkpoint_race
from bench.checkpoint_race import settled
from bench.programs import raced


def _matmul(n: int) -> al.SearchTask:
    a, b = te.placeholder((n, 32), name="a"), te.placeholder((32, 32), name="b")
    k = te.reduce_axis(32, name="k")
    return al.SearchTask(
        te.compute((n, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    )


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of programs of all races; a program takes as many seconds as it has characters."""
    sizes: list[int] = []

    def pretended(task: al.SearchTask, programs: Sequence[Program], *more: object) -> list[float]:
        sizes.append(len(programs))
        return [float(len(str(p))) for p in programs]

    monkeypatch.setattr(checkpoint_race, "raced", pretended)
    return sizes


@pytest.mark.slow
def test_checkpoints_of_two_logs(tmp_path: Path, races: list[int]) -> None:
    first, second = _matmul(16), _matmul(24)
    logs = [tmp_path / "long", tmp_path / "short"]
    for log, trials in zip(logs, (10, 5), strict=True):
        write(log, [record(t, k) for t in (first, second) for k in range(trials)])
    weighted = [WeightedTask(first, 2.0), WeightedTask(second, 1.0)]
    long, short = settled(logs, weighted, [1, 10, 11, 20, 21], 0.05)
    # with one task alone there is no sum, and nothing beyond the end
    assert list(long) == [11, 20] and list(short) == [10]
    assert len(races) == 2  # a task's programs of both logs together


def test_what_was_the_best_already_is_raced_once(tmp_path: Path, races: list[int]) -> None:
    """The same programs at two checkpoints, or in two logs, have one latency."""
    task = _matmul(16)
    write(tmp_path / "log", [record(task, k, latency_s=1e-3 * (k + 1)) for k in range(4)])
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "log").read_bytes())
    one, other = settled([tmp_path / "log", copy], [WeightedTask(task, 3.0)], [3, 4], 0.05)
    assert one == other and list(one) == [3, 4] and one[3] == one[4]
    assert races[0] <= checkpoint_race.CONTENDERS


def test_programs_are_raced_on_this_machine() -> None:
    task = _matmul(16)
    (latency,) = raced(task, [lower(plain_state(task.dag, task.target))], 0.05, races=1)
    assert latency is not None and 0 < latency < 1
