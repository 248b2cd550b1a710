"""The canary with a simulated clock: when it trusts the machine and how long it waits."""

from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import numpy as np
import pytest

from ansorlite.measure.canary import FIRST, MEMORY, NAP_S, ONCE_S, USUAL, Canary, local_canary
from ansorlite.measure.timing import PATIENCE_S, TimingPolicy, in_network, time_kernel
from ansorlite.target import Target

USUAL_S = 0.0004


class Machine:
    """A clock that runs as long as the canary does: `USUAL_S`, times the next of `slow`."""

    def __init__(self, slow: Iterable[float] = ()) -> None:
        self.now_s = 0.0
        self.slow: Iterator[float] = iter(slow)

    def run(self) -> None:
        self.now_s += USUAL_S * next(self.slow, 1.0)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def canary(self, expected_s: float | None = None) -> Canary:
        return Canary(self.run, expected_s, lambda: self.now_s, self.sleep)


def test_a_steady_machine_is_trusted_at_once() -> None:
    machine = Machine()
    canary = machine.canary()
    assert not any(canary.disturbed() for _ in range(100))
    assert canary.waited_s == 0.0
    assert canary.usual_s == pytest.approx(USUAL_S)


def test_an_interrupt_is_no_disturbance() -> None:
    machine = Machine(chain(repeat(1.0, 20), [5.0, 1.0]))
    canary = machine.canary()
    assert not canary.disturbed()
    assert canary.waited_s == 0.0


def test_a_slow_phase_is_waited_for_and_reported() -> None:
    machine = Machine(chain(repeat(1.0, 20), repeat(1.95, 30)))
    canary = machine.canary()
    assert canary.disturbed()
    assert 10 * NAP_S < canary.waited_s < ONCE_S
    assert not canary.disturbed()


def test_without_patience_disturbed_figures_count() -> None:
    machine = Machine(chain(repeat(1.0, 20), repeat(1.95)))
    canary = machine.canary()
    assert not canary.disturbed()  # it never became fast again: better a figure than none
    assert canary.waited_s == pytest.approx(ONCE_S, rel=0.1)
    for _ in range(500):
        canary.disturbed()
    # What lasts is how the machine is now: nothing more is waited for.
    assert canary.usual_s == pytest.approx(1.95 * USUAL_S)
    assert canary.waited_s < PATIENCE_S + ONCE_S


def test_patience_does_not_pile_up() -> None:
    machine = Machine(chain(repeat(1.0, 20), repeat(1.95)))
    canary = machine.canary()
    machine.sleep(10_000.0)  # an undisturbed day
    for _ in range(20):  # the repeats of one kernel
        canary.disturbed()
    assert canary.waited_s < PATIENCE_S + ONCE_S


def test_a_process_that_starts_in_a_slow_phase_uses_the_expected_time() -> None:
    machine = Machine(repeat(1.95, 40))
    canary = machine.canary(expected_s=USUAL_S)
    assert canary.disturbed()


def test_a_disturbed_repeat_does_not_count() -> None:
    times = iter([0.01, 0.0195, 0.0195, 0.01, 0.01])
    states = iter([False, True, True, False, False])
    timing = time_kernel(lambda n: next(times), TimingPolicy(), disturbed=lambda: next(states))
    assert timing.times_s == (0.01, 0.01, 0.01)


def test_a_clear_loser_does_not_wait_for_the_machine() -> None:
    def never() -> bool:
        raise AssertionError("the canary was asked")

    timing = time_kernel(lambda n: 0.01 * n, TimingPolicy(), 0.001, disturbed=never)
    assert timing.latency_s == 0.01


def test_a_long_kernel_on_a_disturbed_machine_ends() -> None:
    policy = TimingPolicy()
    timing = time_kernel(lambda n: 0.3 * n, policy, disturbed=lambda: True)
    assert timing.times_s == (0.3,)


def test_the_canary_of_this_machine_runs() -> None:
    canary = local_canary(Target.detect().cores)
    assert canary.disturbed() in (True, False)
    assert canary.usual_s > 0


def test_the_patience_is_bounded_by_what_the_run_has() -> None:
    machine = Machine(chain(repeat(1.0, 20), repeat(2.0)))
    canary = Canary(machine.run, None, lambda: machine.now_s, machine.sleep, most_s=0.1)
    for _ in range(50):
        assert not canary.disturbed()
    assert canary.waited_s < 0.1 + 0.1 * machine.now_s
    assert in_network(10.0).patience_s == pytest.approx(0.1)
    assert in_network(None) == TimingPolicy(fresh_constants=True)
    assert in_network(1e4).patience_s == PATIENCE_S


def test_against_the_clock_one_repeat_tells_a_clear_loser() -> None:
    calls: list[int] = []

    def run(n: int) -> float:
        calls.append(n)
        return 0.002 * n

    assert len(time_kernel(run, in_network(20.0), 0.0009).times_s) == 1
    assert len(time_kernel(run, in_network(None), 0.0009).times_s) == 2


def test_the_usual_time_is_a_quantile_of_the_last_runs() -> None:
    drawn = np.random.default_rng(0).lognormal(size=1000)
    machine = Machine(chain(repeat(1.0, FIRST), drawn))
    canary = machine.canary()
    for _ in range(600):
        canary._is_fast()
    last = list(canary._times)
    assert len(last) == MEMORY and canary._ordered == sorted(last)
    assert canary.usual_s == pytest.approx(float(np.quantile(last, USUAL)))


def test_one_run_tells_what_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansorlite.measure.canary.FIRST", 1)
    assert Machine().canary().usual_s == pytest.approx(USUAL_S)
