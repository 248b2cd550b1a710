"""PoolBuilder: outcomes in the order of requests, also when requests kill their workers."""

import os
import pickle
import signal
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from measure_entries import Counted, Unpackable

from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.measure.builder import NICER, BuildOutcome, PoolBuilder, Wanted
from ansorlite.measure.result import Status
from ansorlite.measure.worker import Worker

ENTRY = "measure_entries:build"


@pytest.fixture
def pool() -> Iterator[PoolBuilder]:
    with PoolBuilder(2, entry=ENTRY) as builder:
        yield builder


def values(outcomes: list[BuildOutcome]) -> list[object]:
    assert all(o.status is Status.OK for o in outcomes), outcomes
    return [o.image for o in outcomes]


def test_outcomes_come_in_request_order(pool: PoolBuilder) -> None:
    naps = [0.2, 0.0, 0.1, 0.0, 0.05, 0.0, 0.0]
    outcomes = pool.build([("sleep", s) for s in naps])
    assert values(outcomes) == naps
    assert outcomes[0].build_s >= 0.2
    assert pool.build([]) == []


def test_builds_leave_the_core_to_the_process_that_asks_for_them(pool: PoolBuilder) -> None:
    own = os.nice(0)
    assert values(pool.build([("nice", None)])) == [min(own + NICER, 19)]


def test_requests_are_built_beside_the_caller(pool: PoolBuilder) -> None:
    for seconds in (0.2, 0.0, 0.1):
        pool.begin(("sleep", seconds))
    assert values(pool.finish()) == [0.2, 0.0, 0.1]
    assert pool.finish() == []
    pool.begin(("sleep", 0.01))
    assert values(pool.finish()) == [0.01]
    assert values(pool.build([("sleep", 0.0)])) == [0.0]


def test_requests_are_served_by_all_workers_as_they_come(pool: PoolBuilder, tmp_path: Path) -> None:
    woken, wake = os.pipe()
    wanted, told = deque[Wanted](), list[object]()
    last = tmp_path / "last"

    def want(request: tuple[str, object], more: tuple[str, ...] = ()) -> None:
        def done(outcome: BuildOutcome) -> None:
            told.append(outcome.image)
            for name in more:
                want(("echo", name))
            if outcome.image == last.name:
                last.touch()

        wanted.append(Wanted(request, done))
        os.write(wake, b"!")

    want(("wait for", str(last)))
    want(("echo", "first"), ("second", last.name))  # the other request is still being built
    pool.serve(wanted, woken)
    assert told == ["first", "second", last.name, str(last)]
    assert not wanted
    os.close(woken)
    os.close(wake)


def test_processes_start_with_the_first_build() -> None:
    with PoolBuilder(2, entry=ENTRY, at_once=False) as builder:
        assert not any(w.starting or w.idle for w in builder._workers)
        assert values(builder.build([("sleep", 0.0)])) == [0.0]


def test_every_worker_takes_part(pool: PoolBuilder) -> None:
    assert len(set(values(pool.build([("pid after", 0.4)] * 6)))) == 2


def test_failures_are_outcomes_and_spare_their_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit = Worker.submit

    def submit_for(w: Worker, request: tuple[bytes, object], timeout_s: float) -> None:
        submit(w, request, 0.3 if b"hang in C" in request[0] else timeout_s)

    monkeypatch.setattr(Worker, "submit", submit_for)
    requests: list[object] = [
        ("echo", "first"),
        ("raise", "no such axis"),
        ("print and crash", "LLVM ERROR: cannot select"),
        ("hang in C", None),
        Unpackable(),
        ("lambda", 1),
        ("crash", None),
        ("echo", "last"),
    ]
    with PoolBuilder(2, timeout_s=60.0, entry=ENTRY) as pool:
        out = pool.build(requests)
    assert [o.status for o in out] == [
        Status.OK,
        Status.BUILD_ERROR,
        Status.BUILD_ERROR,
        Status.BUILD_TIMEOUT,
        Status.BUILD_ERROR,
        Status.BUILD_ERROR,
        Status.BUILD_ERROR,
        Status.OK,
    ]
    assert values([out[0], out[-1]]) == ["first", "last"]
    assert "ValueError: no such axis" in out[1].error
    assert out[2].error == "killed by SIGABRT; it printed: LLVM ERROR: cannot select"
    assert out[3].error == "no answer within 0.3 s"
    assert "cannot be unpacked" in out[4].error
    assert out[6].error == "killed by SIGSEGV"
    result = out[3].as_result()
    assert (result.status, result.error) == (Status.BUILD_TIMEOUT, out[3].error)
    assert result.build_s >= 0.3 and result.latency_s is None and not result.ok


def test_shared_objects_reach_every_worker_once() -> None:
    with PoolBuilder(1, entry=ENTRY) as pool:
        pool.share("a", Counted())
        pool.share("b", [1, 2])
        assert values(pool.build([("unpickled", "a")] * 3)) == [1, 1, 1]
        pool.share("c", "late")
        pool.unshare("b")
        assert values(pool.build([("shared", "c"), ("keys", None), ("unpickled", "a")])) == [
            "late",
            ["a", "c"],
            1,
        ]


def test_a_key_that_is_given_again_has_the_new_value() -> None:
    with PoolBuilder(1, entry=ENTRY) as pool:
        for value in ("old", "new"):
            pool.share("a", value)
            assert values(pool.build([("shared", "a")])) == [value]
        pool.unshare("a")
        pool.share("a", "newest")
        assert values(pool.build([("shared", "a")])) == ["newest"]


def test_shared_objects_survive_crashes_and_recycling() -> None:
    with PoolBuilder(2, max_tasks=2, entry=ENTRY) as pool:
        pool.share("a", "here")
        assert values(pool.build([("shared", "a")] * 9)) == ["here"] * 9
        pool.share("b", "too")
        out = pool.build([Unpackable(), ("crash", None), ("shared", "b"), ("shared", "a")])
        assert not out[0].image and not out[1].image and values(out[2:]) == ["too", "here"]


def test_no_worker_starts_while_others_measure() -> None:
    with PoolBuilder(2, max_tasks=2, entry=ENTRY) as pool:
        for n in (0, 1, 3, 5):
            pool.build([("echo", 1)] * n)
            assert all(w.idle for w in pool._workers)


def test_an_unknown_key_is_a_build_error(pool: PoolBuilder) -> None:
    (outcome,) = pool.build([("shared", "nothing")])
    assert outcome.status is Status.BUILD_ERROR and "KeyError: 'nothing'" in outcome.error


def test_an_unknown_entry_function_is_an_error() -> None:
    with (
        PoolBuilder(1, entry="measure_entries:missing") as pool,
        pytest.raises(AnsorliteError, match="builder 0 cannot start: 'measure_entries:missing'"),
    ):
        pool.build([("echo", 1)])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP])
def test_a_build_whose_worker_was_killed_is_repeated(tmp_path: Path, number: int) -> None:
    timeout_s = 2.0 if number == signal.SIGSTOP else 60.0  # what is stopped is noticed at its end
    with PoolBuilder(2, timeout_s=timeout_s, entry=ENTRY) as pool:
        requests = [("echo", 1), ("signal me once", (str(tmp_path / "note"), number)), ("echo", 2)]
        outcomes = pool.build(requests)
        assert [o.status for o in outcomes] == [Status.OK] * 3 and outcomes[1].image


def test_workers_killed_at_their_start_fail_no_request() -> None:
    with PoolBuilder(2, entry=ENTRY) as pool:
        for worker in pool._workers:
            assert worker.starting and worker._child is not None
            worker._child.process.kill()
        assert values(pool.build([("echo", k) for k in range(5)])) == [0, 1, 2, 3, 4]


def test_wrong_numbers_of_processes_and_seconds() -> None:
    for n, timeout_s in ((0, 1.0), (-1, 1.0), (1, 0.0), (1, float("nan"))):
        with pytest.raises(UsageError, match=r"at least 1|give a positive number"):
            PoolBuilder(n, timeout_s=timeout_s, entry=ENTRY)


def test_usable_again_after_close(pool: PoolBuilder) -> None:
    (before,) = values(pool.build([("pid", None)]))
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(before)), 0)
    assert values(pool.build([("echo", 1)])) == [1]


def test_an_interrupted_build_leaves_no_stale_outcome(pool: PoolBuilder) -> None:
    pool.build([("echo", 0)])
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match="pickle"):
        pool.build([("sleep", 1000), ("echo", lambda: None)])
    assert values(pool.build([("echo", k) for k in range(4)])) == [0, 1, 2, 3]
