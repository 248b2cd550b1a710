"""The task scheduler: contract of both strategies, the paper's formula, objectives, resume."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansorlite.search import task_scheduler
from ansorlite.search.objectives import (
    Floats,
    LatencyRequirement,
    MeanSpeedup,
    OverNetworks,
    WeightedLatency,
    mean_speedup,
    network_latencies,
    required,
)
from ansorlite.search.task_scheduler import (
    GradientScheduler,
    RoundRobinScheduler,
    TaskScheduler,
    UCBScheduler,
)


def gradient(
    weights: Sequence[float],
    flops: Sequence[float] | None = None,
    keys: Sequence[str] | None = None,
    *,
    epsilon: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> GradientScheduler:
    n = len(weights)
    return GradientScheduler(
        weights,
        flops if flops is not None else [1e6] * n,
        keys if keys is not None else [str(i) for i in range(n)],
        epsilon=epsilon,
        rng=np.random.default_rng(seed),
        **options,
    )


def ucb(weights: Sequence[float], **options: Any) -> UCBScheduler:
    n = len(weights)
    keys = [str(i) for i in range(n)]
    rng = np.random.default_rng(0)
    return UCBScheduler(weights, [1e6] * n, keys, rng=rng, **options)


SCHEDULERS: dict[str, Callable[..., TaskScheduler]] = {
    "ucb": lambda n, **options: ucb([1.0] * n, **options),
    "round-robin": lambda n, **options: RoundRobinScheduler(n, **options),
    "gradient": lambda n, **options: gradient([1.0] * n, **options),
    "gradient-epsilon": lambda n, **options: gradient([1.0] * n, epsilon=0.5, **options),
}
every_scheduler = pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)


def run(
    scheduler: TaskScheduler,
    curves: Sequence[Callable[[int], float]],
    n_rounds: int,
    trials: int = 16,
) -> list[int]:
    """Let the scheduler spend rounds on tasks whose latency is curves[i](rounds so far)."""
    chosen = []
    for _ in range(n_rounds):
        i = scheduler.next_task()
        if i is None:
            break
        chosen.append(i)
        scheduler.tell(i, curves[i](scheduler.rounds[i] + 1), trials)
    return chosen


@every_scheduler
def test_the_first_pass_begins_where_most_is_at_stake(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(4)
    scheduler.start([0.1, 3.0, 0.2, 3.0])
    asked = []
    for _ in range(4):
        k = scheduler.next_task()
        assert k is not None
        asked.append(k)
        scheduler.tell(k, 1e-3, 8)
    assert asked == [1, 3, 2, 0]
    with pytest.raises(ValueError, match="stakes has 2 entries for 4 tasks"):
        make(4).start([1.0, 2.0])


@every_scheduler
def test_warm_up_is_one_round_each_in_order(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(4)
    assert run(scheduler, [lambda t: 1.0 / t] * 4, 4) == [0, 1, 2, 3]
    assert scheduler.rounds == (1, 1, 1, 1)
    assert scheduler.trials == (16, 16, 16, 16)
    assert scheduler.latency_s.tolist() == [1.0] * 4


@every_scheduler
def test_asking_twice_gives_the_same_answer(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(3)
    for _ in range(20):
        i = scheduler.next_task()
        assert i is not None and scheduler.next_task() == i
        scheduler.tell(i, 1.0 / (1 + scheduler.rounds[i]), 8)


@every_scheduler
def test_a_resumed_run_continues_as_the_first_would_have(
    make: Callable[..., TaskScheduler],
) -> None:
    curves = [lambda t: 1.0 + 1.0 / t, lambda t: 0.5 + 2.0 / t**2, lambda t: 3.0 / t**0.1]
    first = make(3)
    chosen = run(first, curves, 60)
    resumed = make(3)
    counts = [0, 0, 0]
    for i in chosen[:25]:
        counts[i] += 1
        resumed.tell(i, curves[i](counts[i]), 16)
    assert run(resumed, curves, 35) == chosen[25:]


@every_scheduler
def test_no_task_no_work(make: Callable[..., TaskScheduler]) -> None:
    assert make(0).next_task() is None


@every_scheduler
def test_an_exhausted_task_is_finished(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(2)
    scheduler.tell(0, 1.0, 16)
    scheduler.tell(1, 1.0, 16)
    scheduler.tell(0, 1.0, 0)
    assert scheduler.stop_reason(0) == "no candidate is left"
    assert scheduler.rounds == (1, 1)
    assert scheduler.next_task() == 1
    scheduler.tell(1, None, 0)
    assert scheduler.next_task() is None
    assert scheduler.latency_s.tolist() == [1.0, 1.0]


@every_scheduler
def test_a_task_that_stopped_improving_is_finished(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(2, early_stop_trials=48)
    chosen = run(scheduler, [lambda t: 1.0, lambda t: 0.9**t], 40)
    assert chosen.count(0) <= 4
    assert chosen[-20:] == [1] * 20
    if scheduler.rounds[0] == 4:
        assert scheduler.stop_reason(0) == "no improvement in 48 trials"


@every_scheduler
def test_creeping_gains_do_not_count_as_improvement(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(1, early_stop_trials=48, min_gain=0.01)
    # 0.4 % a round: the fourth round is 1.2 % better than the first, which counts.
    assert len(run(scheduler, [lambda t: 0.996**t], 9)) == 9
    scheduler = make(1, early_stop_trials=48, min_gain=0.05)
    assert len(run(scheduler, [lambda t: 0.996**t], 9)) == 4


@every_scheduler
def test_a_task_at_the_machines_limit_is_finished(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(2, bounds_s=[1.0, 0.0])
    chosen = run(scheduler, [lambda t: 1.0 + 0.1 / t**4, lambda t: 1.0], 30)
    assert chosen.count(0) == 2  # 1.1, then 1.006, which is within 1 %
    assert scheduler.stop_reason(0) == "at the machine's limit"
    scheduler.bound([0.5, 0.0])  # the machine is faster than it was thought to be
    assert not scheduler.stop_reason(0) and not scheduler.is_at_limit(0)
    with pytest.raises(ValueError, match="bounds_s"):
        scheduler.bound([0.5])


@every_scheduler
def test_tasks_without_a_valid_program_do_not_block(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(3, max_failed_rounds=4)
    chosen = run(scheduler, [lambda t: math.inf, lambda t: 1 / t, lambda t: math.nan], 40)
    assert chosen.count(0) <= 4 and chosen.count(2) <= 4
    assert chosen.count(1) >= 32
    assert scheduler.latency_s[[0, 2]].tolist() == [math.inf, math.inf]
    only_failures = make(2, max_failed_rounds=3)
    assert len(run(only_failures, [lambda t: math.inf] * 2, 99)) == 6
    assert only_failures.next_task() is None
    assert only_failures.stop_reason(1) == "no valid program in 3 rounds"


@every_scheduler
def test_a_late_first_success_counts(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(2, max_failed_rounds=4)
    run(scheduler, [lambda t: math.inf if t < 3 else 1.0 / t, lambda t: 0.1], 30)
    assert math.isfinite(scheduler.latency_s[0])
    assert scheduler.stop_reason(0) == ""


@every_scheduler
def test_a_worse_round_does_not_spoil_the_best(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(1)
    for latency in (2.0, 3.0, None):
        scheduler.tell(0, latency, 4)
    assert scheduler.latency_s.tolist() == [2.0]


@every_scheduler
def test_what_cannot_be_is_refused(make: Callable[..., TaskScheduler]) -> None:
    scheduler = make(2)
    with pytest.raises(ValueError, match="task 2 does not exist: there are 2"):
        scheduler.tell(2, 1.0, 1)
    with pytest.raises(ValueError, match=r"task 0: 0\.0 s after 1 trials is no result"):
        scheduler.tell(0, 0.0, 1)
    with pytest.raises(ValueError, match="bounds_s has 1 entries for 2 tasks"):
        make(2, bounds_s=[1.0])


def test_lengths_and_signs_are_checked() -> None:
    with pytest.raises(ValueError, match="flops has 1 entries for 2 tasks"):
        gradient([1.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="similarity_keys has 1 entries for 2 tasks"):
        gradient([1.0, 1.0], keys=["a"])
    with pytest.raises(ValueError, match="weights must be one finite number >= 0 per task"):
        gradient([1.0, -1.0])


@given(
    data=st.data(),
    n=st.integers(1, 5),
    epsilon=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
)
def test_whatever_is_told_the_choice_is_an_unfinished_task(
    data: st.DataObject, n: int, epsilon: float, seed: int
) -> None:
    scheduler = gradient(
        [1.0] * n,
        data.draw(st.lists(st.sampled_from([0.0, 1.0, 1e3, 1.2e3, 1e12]), min_size=n, max_size=n)),
        ["a"] * n,
        epsilon=epsilon,
        seed=seed,
        early_stop_trials=40,
        bounds_s=[1e-3] * n,
    )
    latencies = st.sampled_from([None, math.inf, 1e-3, 2e-3, 0.5, 1.0, 1e3])
    for _ in range(15):
        i = scheduler.next_task()
        if i is None:
            assert all(scheduler.stop_reason(k) for k in range(n))
            break
        assert not scheduler.stop_reason(i)
        scheduler.tell(i, data.draw(latencies), data.draw(st.integers(0, 16)))


def test_round_robin_skips_the_finished() -> None:
    scheduler = RoundRobinScheduler(3)
    assert run(scheduler, [lambda t: 1.0] * 3, 7) == [0, 1, 2, 0, 1, 2, 0]
    scheduler.tell(1, 1.0, 0)
    assert run(scheduler, [lambda t: 1.0] * 3, 4) == [2, 0, 2, 0]


def test_equal_rounds_know_no_limits() -> None:
    """Of two tasks, one at the limit: the paper's baseline goes on with it."""
    for name, chosen in (("round-robin", [0, 1] * 3), ("round-robin-limits", [0, 1, 1, 1, 1, 1])):
        make = task_scheduler.SCHEDULERS[name]
        scheduler = make([1.0] * 2, [1e6] * 2, ["a", "b"], bounds_s=[1.0, 0.1], rng=None)
        assert run(scheduler, [lambda t: 1.0] * 2, 6) == chosen


def test_the_gradient_is_the_papers() -> None:
    """Two dissimilar tasks, worked by hand: alpha back + (1 - alpha) forward, times the weight.

    Task 0: g = 8, 6, 5, 4.6 after 4 rounds: back = (4.6 - 8) / 3, forward = -4.6 / 4.
    Task 1: g = 3 after 1 round: back = 0, forward = -3.
    """
    expected_0 = 0.2 * (4.6 - 8.0) / 3 + 0.8 * (-4.6 / 4)
    expected_1 = 0.8 * -3.0
    even = expected_1 / expected_0
    for factor, choice in ((0.999, 1), (1.001, 0)):
        scheduler = gradient([even * factor, 1.0])
        for latency in (8.0, 6.0, 5.0, 4.6):
            scheduler.tell(0, latency, 16)
        scheduler.tell(1, 3.0, 16)
        assert scheduler.next_task() == choice


def test_similar_tasks_promise_more() -> None:
    """forward = beta C / max V - g: the speed of a similar task is within reach.

    Task 0 could run at half of task 1's 1000 FLOP/s: 2 s instead of 10 s, a gain of 8 s where its
    own 4 rounds promise 2.5 s. Task 2 promises 3 s.
    """

    def choice(keys: list[str], flops: list[float]) -> int | None:
        scheduler = gradient([1.0, 1.0, 1.0], flops, keys, alpha=0.0)
        for _ in range(4):
            scheduler.tell(0, 10.0, 16)
            scheduler.tell(1, 1.0, 16)
            scheduler.tell(2, 12.0, 16)
        return scheduler.next_task()

    assert choice(["a", "a", "b"], [1000.0, 1000.0, 1000.0]) == 0
    assert choice(["a", "a", "b"], [1000.0, 1600.0, 1000.0]) == 0
    assert choice(["a", "a", "b"], [1000.0, 1700.0, 1000.0]) == 2  # too different in size
    assert choice(["a", "c", "b"], [1000.0, 1000.0, 1000.0]) == 2  # another structure


def test_a_task_that_cannot_follow_leaves_its_group() -> None:
    scheduler = gradient([1.0, 1.0, 1.0], keys=["a", "a", "b"], alpha=0.0)
    for _ in range(6):
        scheduler.tell(0, 10.0, 16)
    scheduler.tell(1, 1.0, 16)
    for _ in range(2):
        scheduler.tell(2, 12.0, 16)
    assert scheduler.next_task() == 0  # promises 8 s
    scheduler.tell(0, 10.0, 16)
    assert scheduler.next_task() == 2  # 7 rounds to 1, and no faster: promises 10 / 7 s


def test_gradient_beats_round_robin() -> None:
    curves = [
        lambda t: 1e-5 * (1.0 + 1.0 / t),
        lambda t: 2e-3 * (1.0 + 5.0 / t),
        lambda t: 5e-5 * (1.0 + 9.0 * 0.5**t),
        lambda t: 1e-4,
    ]
    weights = [1.0, 4.0, 2.0, 1.0]
    totals = []
    for scheduler in (gradient(weights, epsilon=0.05), ucb(weights), RoundRobinScheduler(4)):
        run(scheduler, curves, 40)
        totals.append(float(np.dot(weights, scheduler.latency_s)))
    assert max(totals[:2]) < 0.9 * totals[2]


def test_ucb_comes_back_to_every_task() -> None:
    """Task 1 gained nothing so far, but the bound on what it may gain grows with the others'."""
    curves = [lambda t: 1.0 + 1.0 / t, lambda t: 1.0]
    assert 5 <= run(ucb([1.0, 1.0]), curves, 100).count(1) <= 95
    greedy = run(ucb([1.0, 1.0], explore=0.0), curves, 100)
    assert greedy.count(1) == 1


def test_epsilon_visits_every_task() -> None:
    curves = [lambda t: 1.0 / t, lambda t: 1e-9]
    assert run(gradient([1.0, 1.0]), curves, 200).count(1) == 1
    visits = run(gradient([1.0, 1.0], epsilon=0.2), curves, 200).count(1)
    assert 10 <= visits <= 35
    other = run(gradient([1.0, 1.0], epsilon=0.2, seed=1), curves, 200)
    assert other != run(gradient([1.0, 1.0], epsilon=0.2), curves, 200)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_choices_do_not_depend_on_the_unit(scale: float) -> None:
    """An absolute probe of 1e-4 s makes the cost of a small kernel negative."""
    curves = [lambda t: scale * (1 + 1 / t), lambda t: scale * (0.5 + 2 / t)]
    weights = [[1.0, 1.0], [1.0, 0.0]]
    for objective in (
        WeightedLatency(weights),
        MeanSpeedup(weights, [scale, scale]),
        lambda g: float(np.log(g).sum()),
    ):
        chosen = run(gradient([1.0, 1.0], objective=objective), curves, 30)
        assert 0 < chosen.count(0) < 30
        assert chosen == run(
            gradient([1.0, 1.0], objective=_rescaled(objective, scale)),
            [lambda t: 1 + 1 / t, lambda t: 0.5 + 2 / t],
            30,
        )


def _rescaled(objective: Callable[[Floats], float], scale: float) -> Callable[[Floats], float]:
    return lambda g: objective(g * scale)


def test_objective_values() -> None:
    g = np.array([1.0, 2.0, 4.0])
    weights = [[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]]
    assert network_latencies(weights, g).tolist() == [5.0, 6.0]
    assert WeightedLatency([1.0, 2.0, 0.0])(g) == 5.0
    assert WeightedLatency(weights)(g) == 11.0
    assert LatencyRequirement(weights, [7.0, 2.0])(g) == 7.0 + 6.0
    assert MeanSpeedup(weights, [20.0, 6.0])(g) == pytest.approx(-2.0)


def test_objectives_of_networks() -> None:
    """A function of the networks' latencies is one of the tasks'."""
    g = np.array([1.0, 2.0, 4.0])
    weights = [[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]]
    assert OverNetworks(weights, np.max)(g) == 6.0
    assert OverNetworks(weights, required([7.0, 2.0]))(g) == 7.0 + 6.0
    assert OverNetworks(weights, mean_speedup([20.0, 6.0]))(g) == pytest.approx(-2.0)
    assert OverNetworks([weights[0]], required([2.0]))(g) == 5.0


def test_f2_spends_nothing_beyond_the_requirement() -> None:
    weights = [[1.0, 0.0], [0.0, 1.0]]
    scheduler = gradient([1.0, 1.0], objective=LatencyRequirement(weights, [0.5, 0.1]))
    chosen = run(scheduler, [lambda t: 2.0 / t, lambda t: 1.0 / t], 100)
    assert scheduler.latency_s[0] <= 0.5 and scheduler.latency_s[1] <= 0.1
    assert chosen.count(0) == 4 and chosen.count(1) == 10
    assert scheduler.next_task() is None


def test_no_requirement_is_met_by_an_estimate() -> None:
    """Task 1 is taken to be as fast as task 0, but nothing of it has run yet."""
    scheduler = gradient([1.0, 1.0], objective=LatencyRequirement([1.0, 1.0], [9.0]))
    chosen = run(scheduler, [lambda t: 1.0, lambda t: math.inf if t < 4 else 1.0], 50)
    assert chosen == [0, 1, 1, 1, 1]
    assert scheduler.next_task() is None


def test_a_gain_lost_in_rounding_ends_the_tuning() -> None:
    """Task 1 is 2e-15 of the total: no difference of the objective can show its gains."""
    scheduler = gradient([1.0, 1.0], bounds_s=[1e6, 0.0])
    assert run(scheduler, [lambda t: 1e6, lambda t: 2e-9], 50) == [0, 1]


def test_a_huge_task_without_a_program_does_not_drown_the_others() -> None:
    """At the speed of task 1 task 0 would take 1e15 s, and no gain on task 1 would show."""
    scheduler = gradient([1.0, 1.0], [1e18, 1.0], max_failed_rounds=2)
    chosen = run(scheduler, [lambda t: math.inf, lambda t: 1e-3 / t], 20)
    assert chosen.count(0) == 2 and chosen.count(1) == 18


def test_f3_weighs_networks_by_ratio_not_by_seconds() -> None:
    weights = [[1.0, 0.0], [0.0, 1.0]]
    curves = [lambda t: 1.0 + 0.1 / t, lambda t: 1e-3 * (0.1 + 3.0 / t)]
    ratio = run(gradient([1.0, 1.0], objective=MeanSpeedup(weights, [1.0, 1e-3])), curves, 20)
    seconds = run(gradient([1.0, 1.0]), curves, 20)
    assert ratio.count(1) > 10 > 2 >= seconds.count(1)


def test_f4_counts_a_stopped_task_as_constant() -> None:
    """The maximum of two tasks, the larger of which stopped: no gain is left."""
    scheduler = gradient([1.0, 1.0], objective=lambda g: float(g.max()), early_stop_trials=32)
    chosen = run(scheduler, [lambda t: 2.0, lambda t: 1.0 / t], 50)
    assert scheduler.stop_reason(0) and not scheduler.stop_reason(1)
    assert scheduler.next_task() is None
    assert len(chosen) < 8


def test_a_tie_that_only_joint_gains_break_goes_on() -> None:
    scheduler = gradient([1.0, 1.0], objective=lambda g: float(g.max()))
    assert sorted(run(scheduler, [lambda t: 1.0 / t] * 2, 4)) == [0, 0, 1, 1]


def test_an_objective_that_is_no_number_is_an_error() -> None:
    scheduler = gradient([1.0], objective=lambda g: math.nan)
    scheduler.tell(0, 0.25, 1)
    with pytest.raises(ValueError, match=r"the objective is nan for the latencies \[0.25\] s"):
        scheduler.next_task()


def test_the_limit_of_the_machine_bounds_the_promise() -> None:
    """Task 0 promises 5 s by its history, but with 0.5 s to its bound a quarter of a second."""
    for bound, choice in ((0.0, 0), (7.9, 0), (8.1, 1), (9.5, 1)):
        scheduler = gradient([1.0, 1.0], bounds_s=[bound, 0.0], bound_tolerance=0.01, alpha=0.0)
        for _ in range(2):
            scheduler.tell(0, 10.0, 16)
            scheduler.tell(1, 2.0, 16)
        assert scheduler.next_task() == choice


@pytest.mark.parametrize("name", list(task_scheduler.SCHEDULERS))
def test_a_task_in_work_is_not_chosen(name: str) -> None:
    make = task_scheduler.SCHEDULERS[name]
    plan = make([1.0] * 3, [1.0] * 3, list("abc"), rng=np.random.default_rng(0))
    plan.start([1.0, 3.0, 2.0])
    assert plan.next_task() == 1
    assert plan.next_task({1}) == 2
    assert plan.next_task({0, 1, 2}) is None
    for k in range(3):
        plan.tell(k, 1e-3 * (1 + k), 8)
    for busy in ({0}, {1, 2}, {0, 2}):
        assert plan.next_task(busy) not in busy
