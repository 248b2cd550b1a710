"""The forms of one computation under tuning: the fastest form counts.

In: a `TaskTuner` a form (a direct convolution, Winograd's, ...). Out: the form that measures next,
and the best of all. A form gets rounds in proportion to a high power of its speed: a clearly slower
form soon gets none, but not by its first few candidates alone. The order follows from recorded
latencies, so a resumed run has the same.
"""

from collections.abc import Sequence

from ansorlite.search.tuner import TaskTuner
from ansorlite.task import SearchTask

FAVOUR = 6.0  # exponent of the speed, relative to the fastest form, in a form's share of rounds
# Share of its latency that a form's second round may gain; later rounds are expected to gain less.
# The second round of ResNet-50's convolutions in Winograd's forms gained a fifth (median), up to a
# half.
HOPE = 0.3


class Forms:
    """Tuners of one computation, the plain form first.

    `order` has their numbers in the order of their first rounds, by default as they come; `weight`
    says how often the network has the computation.
    """

    def __init__(
        self, tuners: Sequence[TaskTuner], order: Sequence[int] = (), weight: float = 1.0
    ) -> None:
        self.tuners, self.weight = tuple(tuners), weight
        self._order = [self.tuners[k] for k in order] or list(self.tuners)
        self._exhausted: list[TaskTuner] = []

    @property
    def task(self) -> SearchTask:
        """The computation in its plain form."""
        return self.tuners[0].task

    @property
    def trials(self) -> int:
        return sum(t.trials for t in self.tuners)

    @property
    def measured(self) -> bool:
        """Was any form measured since the run began?"""
        return any(t.trials > t.resumed for t in self.tuners)

    @property
    def fastest(self) -> TaskTuner:
        """The tuner with the best program so far; the first one as long as there is none."""
        return min(self.tuners, key=lambda t: t.best_latency_s or float("inf"))

    @property
    def best_latency_s(self) -> float | None:
        return self.fastest.best_latency_s

    @property
    def stake_s(self) -> float:
        """Seconds of the network that the computation takes; 0 as long as nothing ran."""
        return self.weight * (self.best_latency_s or 0.0)

    @property
    def untried(self) -> bool:
        """Is there a form that has not had a first round yet?"""
        return any(t.rounds <= 1 for t in self.tuners if t not in self._exhausted)

    @property
    def exhausted(self) -> bool:
        """Has every form had a round without a candidate?"""
        return all(t in self._exhausted for t in self.tuners)

    def next(self) -> TaskTuner:
        """The tuner with the smallest used part of its share; every form gets a first round."""
        left = [t for t in self._order if t not in self._exhausted] or self._order
        for t in left:
            if t.rounds <= 1 or t.pending:
                return t
        best = self.best_latency_s or 1.0

        def used(t: TaskTuner) -> float:
            slower: float = (t.best_latency_s or float("inf")) / best
            hope = 1.0 + HOPE / max(1, t.rounds - 1) ** 2
            return float(t.rounds * max(1.0, slower / hope) ** FAVOUR)

        return min(left, key=used)

    def told(self, tuner: TaskTuner, trials: int) -> None:
        """A form whose round had no candidate gets no other, as long as there are other forms."""
        if not trials:
            self._exhausted.append(tuner)
