"""Timing of one kernel: repeats until the lowest time is confirmed or the kernel has clearly lost.

In: `repeat(n)`, which runs the kernel n times and returns the seconds. Out: a `Timing`, the seconds
per call of each repeat, and their median. Disturbances only make a run slower, so the lowest time
is the kernel's own, and the measurement ends when a few repeats agree with it. A repeat of a short
kernel consists of many calls and lasts about `repeat_s`. Longer repeats would be worse: in the same
total time, a disturbance hits all of a few long repeats but only some of many short ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

MAX_INNER = 1 << 20  # calls per repeat
DISTURBANCE = 3.0  # a lasting disturbance slows a kernel by less than this factor
PATIENCE_S = 4.0  # seconds; of waiting for a machine that is slow for a while
GROWTH = 10  # largest increase of calls per repeat: the time of a few calls is mostly overhead


@dataclass(frozen=True)
class TimingPolicy:
    """When a measurement ends; it usually takes 15 to 100 ms.

    It ends when `min_repeats` repeats are within the fraction `spread` of the lowest and all
    repeats together took `least_s`, or after `budget_s`; for a slow kernel after `limit_s` with
    fewer repeats. `losing` holds (repeats, factor): after so many repeats, a lowest time above
    factor times the best known latency ends the measurement. The warm-up run counts as a repeat if
    it takes `trusted_s` or more, and is the only one if it is `hopeless` times slower than the
    best. `cold`: one call per repeat after a flush of the caches, without a least time.
    `fresh_constants`: each call reads its constants from memory, as in a network whose weights
    exceed the caches, while activations may stay in the caches. `patience_s`: for a machine that is
    slow for a while (see `measure.canary`). Example: `LocalRunner(policy=TimingPolicy(cold=True))`.
    """

    repeat_s: float = 0.002
    least_s: float = 0.015
    min_repeats: int = 3
    max_repeats: int = 50
    budget_s: float = 0.1
    limit_s: float = 1.0
    spread: float = 0.03
    losing: tuple[tuple[int, float], ...] = ((2, 2.0), (4, 1.5))
    losing_long: tuple[tuple[int, float], ...] = ((2, 1.3),)  # for kernels of `trusted_s` or more
    trusted_s: float = 0.02
    hopeless: float = 1.8
    cold: bool = False
    fresh_constants: bool = False
    patience_s: float = PATIENCE_S


def in_network(timeout: float | None) -> TimingPolicy:
    """How the kernels of a network are timed: weights come from memory.

    Against the clock a kernel is timed for half as long, also where its times vary, and a disturbed
    machine is awaited for a hundredth of the time at most; the race inside the network tells the
    last contenders apart.
    """
    if timeout is None:
        return TimingPolicy(fresh_constants=True)
    return TimingPolicy(
        least_s=0.008,
        budget_s=0.05,
        losing=((1, 2.0), (2, 1.5), (4, 1.2)),
        fresh_constants=True,
        patience_s=min(PATIENCE_S, 0.01 * timeout),
    )


@dataclass(frozen=True)
class Timing:
    """`times_s`: seconds per call, one entry per repeat of `inner` calls."""

    times_s: tuple[float, ...]
    inner: int

    @property
    def latency_s(self) -> float:
        return median(self.times_s)


def time_kernel(
    repeat: Callable[[int], float],
    policy: TimingPolicy,
    best_latency_s: float | None = None,
    flush: Callable[[], None] | None = None,
    warm_up_s: float = 0.0,
    disturbed: Callable[[], bool] | None = None,
) -> Timing:
    """Time a kernel that has run once before: its check was the warm-up, of `warm_up_s` seconds.

    A repeat does not count if `disturbed()` is then true (see `measure.canary`), unless the kernel
    has lost even if the disturbance is taken into account. Returns at least one repeat, also where
    one call exceeds the limit.
    """
    inner, spent_s = 1, 0.0
    times: list[float] = []
    if warm_up_s >= policy.trusted_s and not policy.cold:
        times, spent_s = [warm_up_s], warm_up_s
        known = best_latency_s or 0.0
        # Only for a best latency of some length: one slow run of a short kernel is a disturbance.
        if known >= policy.trusted_s / 2 and warm_up_s > policy.hopeless * known:
            return Timing((warm_up_s,), 1)
    while not _enough(times, inner, spent_s, policy, best_latency_s):
        if flush is not None:
            flush()
        seconds = repeat(inner)
        spent_s += seconds
        if not policy.cold and seconds < policy.repeat_s / 2 and inner < MAX_INNER:
            # The repeat was too short. Earlier repeats were disturbed if they were long enough.
            inner = _longer(inner, seconds, policy.repeat_s)
            times.clear()
        elif (
            disturbed is None
            or spent_s >= policy.limit_s
            or _lost(seconds / inner, best_latency_s)
            or not disturbed()
        ):
            times.append(seconds / inner)
    return Timing(tuple(times), inner)


def _lost(seconds: float, best_latency_s: float | None) -> bool:
    """Is a repeat slower than the best latency by more than a disturbance can explain?"""
    return best_latency_s is not None and seconds > DISTURBANCE * best_latency_s


def _longer(inner: int, seconds: float, repeat_s: float) -> int:
    """The number of calls that fill `repeat_s`, given that `inner` calls took `seconds`."""
    wanted = math.ceil(inner * repeat_s / seconds) if seconds > 0 else MAX_INNER
    return min(wanted, inner * GROWTH, MAX_INNER)


def _enough(
    times: list[float],
    inner: int,
    spent_s: float,
    policy: TimingPolicy,
    best_latency_s: float | None,
) -> bool:
    done = len(times)
    if done == 0:
        return False
    if done >= policy.max_repeats or spent_s >= policy.limit_s:
        return True
    low = min(times)
    losing = policy.losing_long if low >= policy.trusted_s else policy.losing
    if best_latency_s is not None and any(
        done >= n and low > factor * best_latency_s for n, factor in losing
    ):
        return True
    if spent_s >= policy.budget_s:
        return done >= policy.min_repeats
    confirmed = sum(t <= low * (1.0 + policy.spread) for t in times)
    long_enough = policy.cold or sum(times) * inner >= policy.least_s
    return confirmed >= policy.min_repeats and long_enough
