"""How long a kernel takes: repeats until the lowest is confirmed, or until it has clearly lost.

In: `repeat(n)`, which runs the kernel n times and returns the seconds that took. Out: `Timing`, the
seconds a call of each repeat, and their median. Disturbances only ever make a run slower, so the
lowest says what a kernel can do, and the measurement lasts until some more are as low. Short
kernels are run many times a repeat, so that a repeat lasts about `repeat_s`; not longer, for of the
same milliseconds in a few long repeats all are disturbed where some short ones are not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

MAX_INNER = 1 << 20
DISTURBANCE = 3.0  # no disturbance that lasts makes a kernel so many times slower
GROWTH = 10  # calls of a microsecond are overhead for the most part: do not trust one too far


@dataclass(frozen=True)
class TimingPolicy:
    """When to stop. An ordinary kernel takes 15-100 ms.

    The measurement ends when `min_repeats` are within `spread` of the lowest and all have taken
    `least_s`, or when it has lasted `budget_s`; a slow kernel's ends after `limit_s` even before
    that. `losing` holds (repeats, factor): after that many repeats, a minimum above factor times
    the best latency known ends it. The run that warms a kernel up counts as a repeat if it takes
    `trusted_s` or more, and is enough if it is `hopeless` times slower than the best. `cold` runs
    once a repeat, after a flush of the caches, and for no least time; `fresh_constants` reads
    constants from memory in every call, as the kernels of a network do that has more weights than
    the caches hold, while activations stay where they are.
    """

    repeat_s: float = 0.002
    least_s: float = 0.015
    min_repeats: int = 3
    max_repeats: int = 50
    budget_s: float = 0.1
    limit_s: float = 1.0
    spread: float = 0.03
    losing: tuple[tuple[int, float], ...] = ((2, 2.0), (4, 1.5))
    losing_long: tuple[tuple[int, float], ...] = ((2, 1.3),)  # of kernels that take `trusted_s`
    trusted_s: float = 0.02
    hopeless: float = 1.8
    cold: bool = False
    fresh_constants: bool = False


@dataclass(frozen=True)
class Timing:
    """`times_s`: seconds a call, one entry a repeat of `inner` calls."""

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
    """Time a kernel that has run once before (the check was its warm-up, of `warm_up_s` seconds).

    A repeat after which the machine is `disturbed` (see `measure.canary`) does not count, unless
    the kernel has lost even so. Always returns at least one repeat, even where one call alone
    exceeds the limit.
    """
    inner, spent_s = 1, 0.0
    times: list[float] = []
    if warm_up_s >= policy.trusted_s and not policy.cold:
        times, spent_s = [warm_up_s], warm_up_s
        known = best_latency_s or 0.0
        # a short kernel that takes long once was disturbed
        if known >= policy.trusted_s / 2 and warm_up_s > policy.hopeless * known:
            return Timing((warm_up_s,), 1)
    while not _enough(times, inner, spent_s, policy, best_latency_s):
        if flush is not None:
            flush()
        seconds = repeat(inner)
        spent_s += seconds
        if not policy.cold and seconds < policy.repeat_s / 2 and inner < MAX_INNER:
            # too short to trust; what came before was disturbed, or it would not have been enough
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
    """Is a repeat slower than the best by more than a disturbance can explain?"""
    return best_latency_s is not None and seconds > DISTURBANCE * best_latency_s


def _longer(inner: int, seconds: float, repeat_s: float) -> int:
    """How many calls will fill `repeat_s`, given that `inner` took `seconds`."""
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
