"""Which task gets the next round of measurements (Ansor section 6).

Flow: the tuning loop asks `next_task()`, spends a round on that task, and tells what came of it:
`tell(index, best_latency_s, trials_used)`. Latencies in seconds, inf where no valid program is
known. Every choice is a function of what was told and of the seed alone, so a run is resumed by
telling its history again, and asking twice gives the same answer.

A task is finished when it was told that no candidate is left (0 trials used), when it has not
improved for `early_stop_trials`, when it has reached the limit of the machine (`bounds_s`), or
when `max_failed_rounds` rounds brought no valid program. `next_task()` is None when all are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ansorlite.errors import UsageError
from ansorlite.search.objectives import Floats, Objective, WeightedLatency

SIMILAR_FLOP_RATIO = 1.618
# Relative probe of the objective: any absolute one exceeds the latency of small kernels.
PROBE = 1e-3
# A task that is this many rounds ahead of a similar one, and still slower, learns no more from it.
ROUNDS_AHEAD = 5
# Share of the expected gain that is left where hardly any but the first trials improved a task.
HOPELESS = 0.2
# Bounds the guess for a task without a valid program, as a multiple of the slowest task's latency.
UNKNOWN_AT_MOST = 10.0


class TaskScheduler(ABC):
    """Keeps what was told; a subclass chooses among the unfinished tasks after the warm-up."""

    def __init__(
        self,
        n_tasks: int,
        *,
        early_stop_trials: int | None = None,
        min_gain: float = 0.005,
        bounds_s: Sequence[float] | None = None,
        bound_tolerance: float = 0.01,
        max_failed_rounds: int = 5,
    ) -> None:
        """`bounds_s[i]`: no program of task i can be faster (a roofline; 0 where unknown).

        A gain below the share `min_gain` is no improvement; a latency within `bound_tolerance`
        of its bound has reached it. Raises UsageError if the number of bounds is not `n_tasks`.
        """
        self.n_tasks = n_tasks
        self._early_stop_trials = early_stop_trials
        self._min_gain = min_gain
        self.bound(bounds_s if bounds_s is not None else [0.0] * n_tasks)
        self._bound_tolerance = bound_tolerance
        self._max_failed_rounds = max_failed_rounds
        self._rounds = np.zeros(n_tasks, np.int64)
        self._trials = np.zeros(n_tasks, np.int64)
        self._histories: list[list[float]] = [[] for _ in range(n_tasks)]
        self._improved_to = np.full(n_tasks, np.inf)
        self._trials_since = np.zeros(n_tasks, np.int64)
        self._exhausted = np.zeros(n_tasks, np.bool_)
        self._told = 0
        self._first = list(range(n_tasks))

    def start(self, stakes: Sequence[float]) -> None:
        """What is at stake in every task before the first round, such as its share of the latency:
        the first pass takes the largest first, so that a short budget is spent there.

        Raises UsageError where that is not one finite number >= 0 a task.
        """
        known = _per_task("stakes", stakes)
        _check_length("stakes", known, self.n_tasks)
        self._first = [int(k) for k in np.argsort(-known, kind="stable")]

    def bound(self, bounds_s: Sequence[float]) -> None:
        """New `bounds_s`, as the machine's limits are known by now: tasks may be unfinished again.

        Raises UsageError where they are not one number >= 0 a task.
        """
        known = _per_task("bounds_s", bounds_s)
        _check_length("bounds_s", known, self.n_tasks)
        self._bounds = known

    def tell(self, index: int, best_latency_s: float | None, trials_used: int) -> None:
        """Report a round: the best latency of the task (of the round or so far; None or inf if
        there is none) and how many programs were measured. 0 trials: nothing is left to measure.

        Raises UsageError for a task that does not exist, a latency that is zero or negative, or a
        negative number of trials.
        """
        latency = math.inf if best_latency_s is None else float(best_latency_s)
        if math.isnan(latency):
            latency = math.inf
        if not 0 <= index < self.n_tasks:
            raise UsageError(f"task {index} does not exist: there are {self.n_tasks}")
        if latency <= 0 or trials_used < 0:
            raise UsageError(f"task {index}: {latency} s after {trials_used} trials is no result")
        self._told += 1
        self._exhausted[index] = trials_used == 0
        best = min(latency, self.latency_s[index])
        if trials_used > 0:
            self._rounds[index] += 1
            self._trials[index] += trials_used
            self._trials_since[index] += trials_used
        if best < self._improved_to[index] * (1.0 - self._min_gain):
            self._improved_to[index] = best
            self._trials_since[index] = 0
        if math.isfinite(best) and (trials_used > 0 or not self._histories[index]):
            self._histories[index].append(best)

    @property
    def latency_s(self) -> Floats:
        """float64[n], seconds: the best of every task so far, inf where nothing was valid."""
        return np.array([h[-1] if h else math.inf for h in self._histories])

    @property
    def bounds_s(self) -> Floats:
        """float64[n], seconds: what no program of a task can beat, 0 where unknown."""
        return self._bounds.copy()

    @property
    def rounds(self) -> tuple[int, ...]:
        """Rounds spent on every task."""
        return tuple(self._rounds.tolist())

    @property
    def trials(self) -> tuple[int, ...]:
        """Programs measured for every task."""
        return tuple(self._trials.tolist())

    def is_at_limit(self, index: int) -> bool:
        """Is a task as fast as the machine allows, as far as its limits are known?"""
        least_s = self._bounds[index] * (1.0 + self._bound_tolerance)
        return bool(self.latency_s[index] <= least_s)

    def stop_reason(self, index: int) -> str:
        """Why a task gets no more rounds; empty while it may."""
        latency = self.latency_s[index]
        if self._exhausted[index]:
            return "no candidate is left"
        if self.is_at_limit(index):
            return "at the machine's limit"
        if not math.isfinite(latency):
            failed = self._rounds[index] >= self._max_failed_rounds
            return f"no valid program in {self._rounds[index]} rounds" if failed else ""
        stop_after = self._early_stop_trials
        if stop_after is not None and self._trials_since[index] >= stop_after:
            return f"no improvement in {self._trials_since[index]} trials"
        return ""

    def next_task(self, busy: Collection[int] = ()) -> int | None:
        """The task to spend the next round on; None if there is nothing left to improve.

        First comes one round for every task, in the order that `start` gave or their own. Tasks
        that are `busy`, with a round that was not told yet, are not chosen.
        """
        live = [i for i in range(self.n_tasks) if i not in busy and not self.stop_reason(i)]
        for index in self._first:
            if self._rounds[index] == 0 and index in live:
                return index
        return self._choose(live) if live else None

    @abstractmethod
    def _choose(self, live: list[int]) -> int | None:
        """One of `live` (not empty, every task has had a round), or None to end the tuning."""


class RoundRobinScheduler(TaskScheduler):
    """Every unfinished task in turn: the one with the fewest rounds, the first of several.

    Without `bounds_s` all tasks get equally many rounds, as without a task scheduler (the paper's
    baseline); with them, what tasks at the machine's limit do not need goes to the others.
    """

    def _choose(self, live: list[int]) -> int | None:
        return min(live, key=lambda i: self._rounds[i])


class GradientScheduler(TaskScheduler):
    """Descends the objective along the task where a round is expected to gain most.

    For task i after t_i rounds at latency g_i, with C_i its FLOP and V_k = C_k / g_k (section 6.2,
    derived in appendix A):

        df/dt_i = df/dg_i (alpha back_i + (1 - alpha) forward_i)
        back_i = (g_i(t_i) - g_i(t_i - dt)) / dt,  dt = window, or what there is of it
        forward_i = min(-(1 - 0.8 s_i) (g_i - b_i) / t_i, beta C_i / max_{k in N(i)} V_k - g_i)

    The most negative wins; with probability `epsilon` a random task does. N(i) are the tasks with
    the same similarity key whose FLOP differ by a factor of at most 1.618, i included. Beyond the
    paper, whose forward_i extrapolates to no latency at all (-g_i / t_i): it knows the machine's
    limit b_i and promises nothing below it. Over some 500 rounds of ResNet-50's tasks on each of
    two machines the share that a round gained went with the share of g_i above b_i, hardly with
    what the rounds before had gained; replayed, those of the second were shared out best so, by
    little (roots of that share do nearly as well). s_i is the share of the trials since the task
    last improved: in the logs of thirteen networks five rounds gained 30 % / t_i on average where
    that share was small, 7 % / t_i where it was nearly one. df/dg_i is a relative finite
    difference, of the objective at max(g, ES), where ES_i is where task i stopped (objective f4 of
    table 2, for all objectives); a task without a valid program counts as no faster than any other,
    in proportion to its FLOP, until it has failed `max_failed_rounds` times. Where no single task
    moves the objective but all of them together do, as for the maximum of equals, the weights stand
    in for df/dg_i. Where even halving all latencies gains nothing, as when f2's requirements are
    met, the tuning is over.
    """

    def __init__(
        self,
        weights: Sequence[float],
        flops: Sequence[float],
        similarity_keys: Sequence[str],
        objective: Objective | None = None,
        *,
        alpha: float = 0.2,
        beta: float = 2.0,
        window: int = 3,
        epsilon: float = 0.05,
        rng: np.random.Generator,
        early_stop_trials: int | None = None,
        min_gain: float = 0.005,
        bounds_s: Sequence[float] | None = None,
        bound_tolerance: float = 0.01,
        max_failed_rounds: int = 5,
    ) -> None:
        """`weights[i]`: how often task i occurs; `flops[i]`: FLOP of one run of it.

        `objective` maps float64[n] latencies to a number, default f1 with `weights`. The `rng` is
        drawn from once, here. Raises UsageError where the lengths differ.
        """
        super().__init__(
            len(weights),
            early_stop_trials=early_stop_trials,
            min_gain=min_gain,
            bounds_s=bounds_s,
            bound_tolerance=bound_tolerance,
            max_failed_rounds=max_failed_rounds,
        )
        self._weights = _per_task("weights", weights)
        self._flops = _per_task("flops", flops)
        _check_length("flops", self._flops, self.n_tasks)
        _check_length("similarity_keys", similarity_keys, self.n_tasks)
        self._objective = objective or WeightedLatency(self._weights)
        self._alpha, self._beta = alpha, beta
        self._window, self._epsilon = window, epsilon
        self._seed = int(rng.integers(2**63))
        self._similar = [
            [
                k
                for k in range(self.n_tasks)
                if similarity_keys[k] == similarity_keys[i]
                and max(self._flops[i], self._flops[k])
                <= SIMILAR_FLOP_RATIO * min(self._flops[i], self._flops[k])
            ]
            for i in range(self.n_tasks)
        ]

    def _choose(self, live: list[int]) -> int | None:
        latency = self._finite_latencies()
        slope = self._objective_slopes(latency, live)
        if slope is None:
            return None
        rng = np.random.default_rng([self._seed, self._told])
        if rng.random() < self._epsilon:
            return int(rng.choice(live))
        gradient = [
            slope[i]
            * (self._alpha * self._backward(i) + (1 - self._alpha) * self._forward(i, latency))
            for i in live
        ]
        # Equal gains: the task that has had least.
        return min(zip(gradient, self._rounds[live], live, strict=True))[2]

    def _finite_latencies(self) -> Floats:
        """Latencies with an estimate for tasks that have no valid program yet."""
        latency = self.latency_s
        valid = np.isfinite(latency)
        if valid.all():
            return latency
        slowest = float(latency[valid].max(initial=0.0)) or 1.0
        counted = valid & (self._flops > 0)
        if not counted.any():
            return np.where(valid, latency, slowest)
        speed = float(self._flops[counted].sum() / latency[counted].sum())
        # Capped, or the guess for a huge task would drown what is known of the others.
        estimate = np.clip(self._flops / speed, slowest, UNKNOWN_AT_MOST * slowest)
        return np.where(valid, latency, estimate)

    def _objective_slopes(self, latency: Floats, live: list[int]) -> Floats | None:
        """float64[n]: df/dg_i of the live tasks; None if no gain on them lowers f."""
        finished = np.ones(self.n_tasks, np.bool_)
        finished[live] = False
        early_stop = np.where(finished, latency, np.minimum(self._bounds, latency))
        now = self._value(latency)
        least = 1e-12 * abs(now)  # what is below is rounding
        slope = np.zeros(self.n_tasks)
        for i in live:
            probe = latency.copy()
            probe[i] = max(latency[i] * (1.0 - PROBE), early_stop[i])
            gain = now - self._value(probe)
            if abs(gain) > least:
                slope[i] = gain / (latency[i] * PROBE)
        if (slope > 0).any():
            return slope
        if now - self._value(np.maximum(0.5 * latency, early_stop)) > least:
            return np.where(finished, 0.0, self._weights)
        # No objective is met by a latency that is only an estimate.
        unknown = ~finished & ~np.isfinite(self.latency_s)
        return unknown.astype(np.float64) if unknown.any() else None

    def _value(self, latency: Floats) -> float:
        value = float(self._objective(latency.copy()))
        if not math.isfinite(value):
            raise UsageError(f"the objective is {value} for the latencies {latency.tolist()} s")
        return value

    def _backward(self, i: int) -> float:
        """Seconds gained a round over the last `window` rounds with a valid program (<= 0)."""
        history = self._histories[i]
        dt = min(self._window, len(history) - 1)
        return (history[-1] - history[-1 - dt]) / dt if dt > 0 else 0.0

    def _forward(self, i: int, latency: Floats) -> float:
        """Seconds that another round may gain (<= 0)."""
        most = max(0.0, latency[i] - self._bounds[i])
        stale = self._trials_since[i] / max(1, self._trials[i])
        gain = (1.0 - (1.0 - HOPELESS) * stale) * most / self._rounds[i]
        speed = self._best_similar_speed(i, latency)
        if speed > 0:
            gain = max(gain, min(latency[i] - self._beta * self._flops[i] / speed, most))
        return -float(gain)

    def _best_similar_speed(self, i: int, latency: Floats) -> float:
        """max V_k over N(i), FLOP/s; 0 where no speed is known."""
        best = 0.0
        for k in self._similar[i]:
            if not self._histories[k] or self._flops[k] <= 0:
                continue
            speed = self._flops[k] / latency[k]
            ahead = self._rounds[i] > self._rounds[k] + ROUNDS_AHEAD
            if ahead and self._flops[i] / latency[i] < speed / self._beta:
                continue
            best = max(best, speed)
        return best


class UCBScheduler(GradientScheduler):
    """Upper confidence bounds: tasks are arms, a reward is the share of the objective gained.

    Beside the paper. Of the last `window` rounds of a task the mean reward counts, and a bonus of
    `explore` times its share of the objective times sqrt(2 ln N / n_i) after n_i of N rounds.
    """

    def __init__(self, *args: Any, explore: float = 0.05, **options: Any) -> None:
        """The parameters of `GradientScheduler`; ignores similarity and epsilon."""
        super().__init__(*args, **options)
        self._explore = explore

    def _choose(self, live: list[int]) -> int | None:
        latency = self._finite_latencies()
        slope = self._objective_slopes(latency, live)
        if slope is None:
            return None
        stake = np.where(np.isfinite(latency), slope * latency, 0.0)
        total = max(float(stake.sum()), 1e-300)
        rounds = np.maximum(self._rounds, 1)
        bonus = self._explore * stake / total * np.sqrt(2 * np.log(rounds.sum()) / rounds)
        bound = [-slope[i] * self._backward(i) / total + bonus[i] for i in live]
        # Equal bounds: the task that has had least.
        return min(zip([-b for b in bound], self._rounds[live], live, strict=True))[2]


def round_robin(
    weights: Sequence[float],
    flops: Sequence[float],
    similarity_keys: Sequence[str],
    objective: Objective | None = None,
    *,
    rng: np.random.Generator,
    **limits: Any,
) -> RoundRobinScheduler:
    """A `RoundRobinScheduler` made like the others, whose parameters have no part in it."""
    return RoundRobinScheduler(len(weights), **limits)


def equal_rounds(
    *args: Any, bounds_s: Sequence[float] | None = None, **options: Any
) -> RoundRobinScheduler:
    """The same without a look at the machine's limits."""
    return round_robin(*args, **options)


SCHEDULERS: dict[str, Callable[..., TaskScheduler]] = {
    "gradient": GradientScheduler,
    "ucb": UCBScheduler,
    "round-robin": equal_rounds,
    "round-robin-limits": round_robin,
}


def _per_task(name: str, values: Sequence[float]) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all() or (array < 0).any():
        raise UsageError(f"{name} must be one finite number >= 0 per task, not {list(values)}")
    return array


def _check_length(name: str, values: Sequence[object] | Floats, n_tasks: int) -> None:
    if len(values) != n_tasks:
        raise UsageError(f"{name} has {len(values)} entries for {n_tasks} tasks")
