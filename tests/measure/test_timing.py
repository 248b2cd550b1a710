"""time_kernel with a simulated clock: number of calls, end of the measurement, result."""

import math
from collections.abc import Callable, Iterator
from itertools import chain
from itertools import repeat as forever

import pytest

from ansorlite.measure.timing import MAX_INNER, Timing, TimingPolicy, time_kernel

POLICY = TimingPolicy()


class FakeKernel:
    """Takes `latency_s` a call, times the next of `noise`, plus `overhead_s` a repeat."""

    def __init__(
        self, latency_s: float, noise: tuple[float, ...] = (), overhead_s: float = 0.0
    ) -> None:
        self.latency_s, self.overhead_s = latency_s, overhead_s
        self.noise: Iterator[float] = chain(noise, forever(1.0))
        self.calls: list[int] = []

    @property
    def spent_s(self) -> float:
        return sum(self.calls) * self.latency_s

    def __call__(self, n: int) -> float:
        self.calls.append(n)
        return n * self.latency_s * next(self.noise) + self.overhead_s


def test_a_steady_kernel_takes_three_repeats() -> None:
    kernel = FakeKernel(0.02)
    timing = time_kernel(kernel, POLICY)
    assert kernel.calls == [1, 1, 1]
    assert timing == Timing((0.02, 0.02, 0.02), 1)
    assert timing.latency_s == 0.02


@pytest.mark.parametrize("latency_s", [3e-8, 1e-6, 2e-5, 1e-4, 1.2e-3, 4.9e-3])
def test_a_short_kernel_is_run_until_a_repeat_is_long_enough(latency_s: float) -> None:
    kernel = FakeKernel(latency_s)
    timing = time_kernel(kernel, POLICY)
    assert 0.5 * POLICY.repeat_s <= timing.inner * latency_s
    assert timing.inner == 1 or timing.inner * latency_s <= 2 * POLICY.repeat_s
    assert timing.latency_s == pytest.approx(latency_s)
    assert len(timing.times_s) >= POLICY.min_repeats
    assert POLICY.least_s <= kernel.spent_s < 2 * POLICY.least_s


def test_the_overhead_of_a_call_does_not_spoil_the_figure() -> None:
    timing = time_kernel(FakeKernel(1e-6, overhead_s=2e-5), POLICY)
    assert timing.latency_s == pytest.approx(1e-6, rel=0.03)


def test_a_disturbance_at_the_start_does_not_fix_the_number_of_calls() -> None:
    kernel = FakeKernel(1e-5, noise=(600.0,))
    timing = time_kernel(kernel, POLICY, best_latency_s=1e-5)
    assert timing.inner >= 0.5 * POLICY.repeat_s / 1e-5
    assert timing.times_s == pytest.approx([1e-5] * len(timing.times_s))


def test_a_kernel_without_a_measurable_time_ends() -> None:
    kernel = FakeKernel(0.0)
    assert time_kernel(kernel, POLICY).inner == MAX_INNER
    assert max(kernel.calls) == MAX_INNER


def test_noise_is_repeated_until_the_lowest_is_confirmed() -> None:
    kernel = FakeKernel(0.006, noise=(1.5, 1.4, 1.0, 1.3, 1.02, 1.2, 1.01, 1.9))
    timing = time_kernel(kernel, POLICY)
    assert len(timing.times_s) == 7
    assert timing.latency_s == pytest.approx(0.006 * 1.2)
    assert min(timing.times_s) == pytest.approx(0.006)


def test_repeats_that_agree_at_once_go_on_for_the_least_time() -> None:
    timing = time_kernel(FakeKernel(0.002), POLICY)
    assert len(timing.times_s) == math.ceil(POLICY.least_s / 0.002)


def test_endless_noise_ends_with_the_budget() -> None:
    drift = tuple(1.0 + 0.1 * k for k in range(100))
    kernel = FakeKernel(0.005, noise=drift)
    timing = time_kernel(kernel, POLICY)
    assert sum(timing.times_s[:-1]) < POLICY.budget_s <= sum(timing.times_s)


def test_endless_noise_ends_with_the_repeats() -> None:
    policy = TimingPolicy(budget_s=math.inf, limit_s=math.inf)
    timing = time_kernel(FakeKernel(0.005, noise=tuple(1.0 + 0.1 * k for k in range(100))), policy)
    assert len(timing.times_s) == policy.max_repeats


@pytest.mark.parametrize(("latency_s", "repeats"), [(0.2, 3), (0.45, 3), (0.6, 2), (1.5, 1)])
def test_a_slow_kernel_gets_fewer_repeats(latency_s: float, repeats: int) -> None:
    assert len(time_kernel(FakeKernel(latency_s), POLICY).times_s) == repeats


@pytest.mark.parametrize(
    ("ratio", "repeats"), [(0.5, 50), (1.0, 50), (1.45, 50), (1.55, 4), (2.05, 2), (9.0, 2)]
)
def test_a_loser_stops_early_and_a_contender_does_not(ratio: float, repeats: int) -> None:
    policy = TimingPolicy(budget_s=math.inf, limit_s=math.inf)
    kernel = FakeKernel(0.01 * ratio, noise=tuple(1.0 + 0.1 * k for k in range(100)))
    assert len(time_kernel(kernel, policy, best_latency_s=0.01).times_s) == repeats


def test_one_disturbed_repeat_does_not_make_a_loser() -> None:
    timing = time_kernel(FakeKernel(0.01, noise=(5.0, 1.6)), POLICY, best_latency_s=0.01)
    assert timing.latency_s == pytest.approx(0.01)


def test_the_warm_up_of_a_long_kernel_counts() -> None:
    kernel = FakeKernel(0.05)
    assert time_kernel(kernel, POLICY, warm_up_s=0.05).times_s == (0.05, 0.05, 0.05)
    assert kernel.calls == [1, 1]
    assert time_kernel(FakeKernel(0.01), POLICY, warm_up_s=0.01).times_s == (0.01, 0.01, 0.01)


@pytest.mark.parametrize(("ratio", "repeats"), [(1.0, 3), (1.2, 3), (1.4, 2), (1.9, 1)])
def test_a_long_loser_stops_after_its_warm_up(ratio: float, repeats: int) -> None:
    kernel = FakeKernel(0.05 * ratio)
    timing = time_kernel(kernel, POLICY, best_latency_s=0.05, warm_up_s=0.05 * ratio)
    assert len(timing.times_s) == repeats
    assert len(kernel.calls) == repeats - 1


def test_a_disturbed_warm_up_of_a_short_kernel_is_forgotten() -> None:
    timing = time_kernel(FakeKernel(1e-4), POLICY, best_latency_s=1e-4, warm_up_s=0.03)
    assert timing.times_s == pytest.approx([1e-4] * len(timing.times_s))
    assert len(timing.times_s) >= POLICY.min_repeats


def test_a_cold_kernel_runs_once_after_each_flush() -> None:
    kernel = FakeKernel(1e-4)
    log: list[str] = []

    def run(n: int) -> float:
        log.append(f"run {n}")
        return kernel(n)

    flush: Callable[[], None] = lambda: log.append("flush")  # noqa: E731
    timing = time_kernel(run, TimingPolicy(cold=True), flush=flush)
    assert log == ["flush", "run 1"] * 3
    assert timing == Timing((1e-4,) * 3, 1)
