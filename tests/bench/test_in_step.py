"""Jobs in step: one job runs at a time, the one that has run least."""

import threading

import pytest

from bench.in_step import Turn, in_step


def test_whoever_is_behind_goes_on_and_none_beside_it() -> None:
    order: list[tuple[int, int]] = []
    running = threading.Lock()

    def job(k: int, size: int, rounds: int, turn: Turn) -> int:
        for done in range(size, size * rounds + 1, size):
            assert running.acquire(blocking=False)
            order.append((k, done))
            running.release()
            turn(done)
        return k

    jobs = [
        lambda turn: job(0, 4, 3, turn),
        lambda turn: job(1, 2, 6, turn),
        lambda turn: job(2, 8, 1, turn),
    ]
    assert in_step(jobs) == [0, 1, 2]
    assert sorted(order) == sorted(
        [(0, 4), (0, 8), (0, 12), *((1, n) for n in range(2, 13, 2)), (2, 8)]
    )
    done = [0, 0, 0]
    for k, n in order:
        assert done[k] == min(d for j, d in enumerate(done) if d < (12, 12, 8)[j])
        done[k] = n


def test_a_job_that_fails_does_not_hold_up_the_others() -> None:
    ended = []

    def fails(turn: Turn) -> None:
        turn(1)
        raise ValueError("no more")

    def works(turn: Turn) -> None:
        for n in range(3):
            turn(n)
        ended.append(True)

    with pytest.raises(ValueError, match="no more"):
        in_step([fails, works])
    assert ended
    assert in_step([]) == []


def test_ctrl_c_ends_every_job_at_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, begun = [], threading.Event()

    def job(k: int, turn: Turn) -> None:
        try:
            for n in range(10**6):
                turn(n)
                begun.set()
        except KeyboardInterrupt:
            kept.append(k)
            raise

    def interrupted(futures: object) -> None:
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.in_step.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_step([lambda turn, k=k: job(k, turn) for k in range(3)])
    assert sorted(kept) == [0, 1, 2]
