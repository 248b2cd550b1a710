"""What the reference kernel says of devices: which are as fast as the others, and which throttle.

In: the rates (operations per second) of all devices of one fingerprint, when they joined and now.
Out: for each a factor, by which its latencies are longer than those of a usual device. Small
factors are scaled out; a device with a large one is held back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

SAME = 1.03  # factors up to this are chance
HELD_BACK = 1.25  # a device further off is not asked, as its memory may be slower by another factor


@dataclass(frozen=True)
class Rates:
    """Operations per second of a device's reference kernel: when it joined, and now."""

    joined: float
    now: float


@dataclass(frozen=True)
class Verdict:
    """`factor`: a device's times are so many times those of a usual one; `words` where it tells."""

    factor: float = 1.0
    held_back: bool = False
    words: str = ""


def verdicts(rates: Mapping[str, Rates], joined: Iterable[float] = ()) -> dict[str, Verdict]:
    """The verdict on each device, by name.

    `joined` are the rates at joining of further devices of the fingerprint, which tell what is
    usual, too.
    """
    known = [r for r in (*joined, *(x.joined for x in rates.values())) if r > 0]
    usual = median(known) if known else 0.0
    return {name: _verdict(r, usual) for name, r in rates.items()}


def _verdict(r: Rates, usual: float) -> Verdict:
    if r.now <= 0 or usual <= 0:
        return Verdict()
    factor = usual / r.now
    if 1 / SAME <= factor <= SAME:
        return Verdict()
    speed = f"{factor:.2f} times as slow" if factor > 1 else f"{1 / factor:.2f} times as fast"
    since = r.joined / r.now
    why = "throttles" if since > SAME else "differs"
    words = f"{why}: its reference kernel is {speed} as usual"
    if 1 / HELD_BACK <= factor <= HELD_BACK:
        return Verdict(factor, False, f"{words}, its results are scaled")
    return Verdict(factor, True, f"{words}, it is held back")
