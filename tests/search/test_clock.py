"""The phase clock, with a simulated clock."""

import pytest

from ansorlite.search.clock import PhaseClock


class Time:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.t = 100.0

    def __call__(self) -> float:
        return self.t


def test_phases_add_up_and_the_rest_is_nobodys() -> None:
    time = Time()
    clock = PhaseClock(time)
    time.t += 1
    for _ in range(2):
        with clock.phase("search"):
            time.t += 2
        time.t += 4
    with clock.phase("training"):
        time.t += 8
    assert clock.seconds == {"search": 4.0, "training": 8.0}
    assert clock.elapsed_s == 21.0


def test_inner_phases_are_not_counted_twice() -> None:
    time = Time()
    clock = PhaseClock(time)
    with clock.phase("search"):
        time.t += 1
        with clock.phase("training"):
            time.t += 2
            with clock.phase("search"):
                time.t += 4
        time.t += 8
    assert clock.seconds == {"search": 13.0, "training": 2.0}
    assert list(clock.seconds) == ["search", "training"]


def test_an_open_phase_counts_up_to_now() -> None:
    time = Time()
    clock = PhaseClock(time)
    with clock.phase("search"):
        time.t += 3
        assert clock.seconds == {"search": 3.0}
        time.t += 1
    assert clock.seconds == {"search": 4.0}


def test_an_exception_ends_the_phase() -> None:
    time = Time()
    clock = PhaseClock(time)
    with pytest.raises(KeyError), clock.phase("building"):
        time.t += 3
        raise KeyError
    time.t += 5
    assert clock.seconds == {"building": 3.0}


def test_time_known_afterwards_moves_out_of_the_phase_around_it() -> None:
    time = Time()
    clock = PhaseClock(time)
    with clock.phase("measuring"):
        time.t += 10
        clock.add("checking", 4.0)
    clock.add("checking", 1.0)
    assert clock.seconds == {"measuring": 6.0, "checking": 5.0}


def test_search_beside_builds_is_a_phase_of_its_own() -> None:
    time, built = Time(), Time()
    clock = PhaseClock(time)
    clock.count_beside(built)
    with clock.phase("search"):
        time.t += 4
        built.t += 1
        with clock.phase("building"):
            time.t += 6
            built.t += 6
        time.t += 2
        built.t += 3  # more than there was: read a moment later
        assert clock.seconds["search while building"] == 3.0
        time.t += 1
    assert clock.seconds == {"search": 4.0, "search while building": 3.0, "building": 6.0}


def test_the_real_clock_runs() -> None:
    clock = PhaseClock()
    with clock.phase("search"):
        sum(range(1000))
    assert 0 < clock.seconds["search"] <= clock.elapsed_s
