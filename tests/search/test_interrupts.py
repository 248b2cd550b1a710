"""A tuning process that is killed or interrupted: no processes left behind, and resuming."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sampled import sampled
from search_cases import PEAK, Pretender, matmul

import ansorlite.search.session as session_module
from ansorlite.records import Record, read_log
from ansorlite.search.tune import tune

TRIALS = 10
TUNE = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
import quick_script
from search_cases import matmul
from ansorlite.search.tune import tune
quick_script.be_quick()
tune(matmul(), {TRIALS}, log=sys.argv[1], policy="random", progress=False, round_size=4)
"""

linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")


def start(*arguments: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=env,
        # what was started in the background of a script may ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def candidates(records: tuple[Record, ...]) -> list[tuple[int, int, str, str]]:
    return [(r.trial, r.round, r.sketch, str(r.holes)) for r in records]


@linux
def test_a_killed_tuner_loses_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    victim = start("-c", TUNE, str(path))
    assert eventually(lambda: lines(path) >= 4)
    before = read_log(path).records
    workers = children(victim.pid)
    assert workers and all(map(alive, workers))
    victim.kill()
    _, errors = victim.communicate()
    assert victim.returncode == -signal.SIGKILL, errors
    assert eventually(lambda: not any(map(alive, workers)))
    left = read_log(path)
    assert left.problems == () and left.records[: len(before)] == before

    again = start("-c", TUNE, str(path))
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    records = read_log(path).records
    assert records[: len(left.records)] == left.records
    assert [r.trial for r in records] == list(range(TRIALS))
    # Random candidates do not depend on latencies: they are those of a run without interruption.
    monkeypatch.setattr(session_module, "measure_peak", lambda target: PEAK)
    both = Pretender()
    whole = tune(
        matmul(),
        TRIALS,
        policy="random",
        progress=False,
        round_size=4,
        builder=both,
        runner=both,
    )
    assert candidates(records) == candidates(whole.records)


@linux
@pytest.mark.parametrize(
    ("number", "status"),
    sampled([(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], 3),
)
def test_ctrl_c_and_the_like_end_the_command_with_the_best_so_far(
    tmp_path: Path, number: int, status: int
) -> None:
    path = tmp_path / "log"
    command = ("-m", "ansorlite", "tune-op", "GMM:0", "--trials", "5000", "--policy", "random")
    process = start(*command, "--log", str(path))
    assert eventually(lambda: lines(path) >= 3)
    workers = children(process.pid)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert out.startswith("GMM:0 batch 1: ") and " GFLOP/s" in out
    assert "Latency" in out and "measuring" in out
    assert "interrupted: the best so far is kept" in errors and "Traceback" not in errors
    assert eventually(lambda: not any(map(alive, workers)))
    contents = read_log(path)
    assert contents.problems == () and len(contents.records) >= 3


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_command_that_is_ended_while_its_workers_start_leaves_nothing(
    tmp_path: Path, number: int
) -> None:
    command = ("-m", "ansorlite", "tune-op", "GMM:0", "--trials", "5000")
    process = start(*command, "--log", str(tmp_path / "log"))
    assert eventually(lambda: bool(children(process.pid)))
    workers = children(process.pid)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (128 + number, -number) and "Traceback" not in errors
    assert eventually(lambda: not any(map(alive, workers)))
