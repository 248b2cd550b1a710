"""What searches would have settled on: the checkpoints of their logs, raced on this machine."""

from pathlib import Path

from search_cases import Pretender

import ansorlite as al
from ansorlite import te
from ansorlite.bench.settled import settled
from ansorlite.search.tune_tasks import WeightedTask


def _matmul(n: int) -> al.SearchTask:
    a, b = te.placeholder((n, 32), name="a"), te.placeholder((32, 32), name="b")
    k = te.reduce_axis(32, name="k")
    return al.SearchTask(
        te.compute((n, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    )


def pretended(task: al.SearchTask, trials: int, log: Path) -> None:
    """A log of programs that were never run: `settled` runs them."""
    both = Pretender()
    al.tune(task, trials, log=log, builder=both, runner=both, policy="random", progress=False)


def test_checkpoints_of_two_logs(tmp_path: Path) -> None:
    first, second = _matmul(16), _matmul(24)
    logs = [tmp_path / "long", tmp_path / "short"]
    for log, trials in zip(logs, (10, 5), strict=True):
        for task in (first, second):
            pretended(task, trials, log)
    weighted = [WeightedTask(first, 2.0), WeightedTask(second, 1.0)]
    long, short = settled(logs, weighted, [1, 10, 11, 20, 21], 0.05)
    # with one task alone there is no sum, and nothing beyond the end
    assert list(long) == [11, 20] and list(short) == [10]
    assert all(t > 0 for t in (*long.values(), *short.values()))


def test_what_was_the_best_already_is_raced_once(tmp_path: Path) -> None:
    """The same programs at two checkpoints, or in two logs, have one latency."""
    task, log = _matmul(16), tmp_path / "log"
    pretended(task, 4, log)
    copy = tmp_path / "copy"
    copy.write_bytes(log.read_bytes())
    (one, other) = settled([log, copy], [WeightedTask(task, 3.0)], [3, 4], 0.05)
    assert one == other and list(one) == [3, 4]
