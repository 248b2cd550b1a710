"""The forms of one computation under tuning: the fastest form counts.

In: a `TaskTuner` a form (a direct convolution, Winograd's, ...). Out: the form that measures next,
and the best of all. A form gets rounds in proportion to a high power of its speed: a clearly slower
form soon gets none, but not by its first few candidates alone. The order follows from recorded
latencies, so a resumed run has the same.
"""

import math
from collections.abc import Sequence

from ansorlite.codegen.image import KernelImage
from ansorlite.search.history import Candidate
from ansorlite.search.promise import weights_bytes
from ansorlite.search.tuner import TaskTuner
from ansorlite.task import SearchTask

FAVOUR = 6.0  # exponent of the speed, relative to the fastest form, in a form's share of rounds
# Share of its latency that a form's second round may gain; later rounds are expected to gain less.
# The second round of ResNet-50's convolutions in Winograd's forms gained a fifth (median), up to a
# half.
HOPE = 0.3
# A form that is expected to take longer than the fastest by this factor is first measured when its
# turn comes, not before all second rounds.
HOPELESS = 1.2


class Forms:
    """Tuners of one computation, the plain form first; where nothing is measured, of one form.

    `order` has their numbers in the order of their first rounds, by default as they come; `weight`
    says how often the network has the computation; `expected` has seconds of each form, to be
    compared with one another, infinite where nothing is known.
    """

    def __init__(
        self,
        tuners: Sequence[TaskTuner],
        order: Sequence[int] = (),
        weight: float = 1.0,
        expected: Sequence[float] = (),
    ) -> None:
        self.tuners, self.weight = tuple(tuners), weight
        self._order = [self.tuners[k] for k in order] or list(self.tuners)
        times = expected or [math.inf] * len(self.tuners)
        self._slower = [s / min(times) if s < math.inf else 1.0 for s in times]
        self._exhausted: list[TaskTuner] = []

    @property
    def task(self) -> SearchTask:
        """The computation in its plain form, or in the only one."""
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
    def constants_bytes(self) -> float:
        """Bytes of weights of all of the network's kernels of it, as the fastest form has them."""
        return self.weight * weights_bytes(self.fastest.task.dag)

    @property
    def untried(self) -> bool:
        """Is there a form with hope that has not had a first round yet?"""
        live = [t for t in self.tuners if t not in self._exhausted]
        return any(t.rounds <= 1 and self._has_hope(t) for t in live)

    def _has_hope(self, tuner: TaskTuner) -> bool:
        return self._slower[self.tuners.index(tuner)] <= HOPELESS

    @property
    def exhausted(self) -> bool:
        """Has every form had a round without a candidate?"""
        return all(t in self._exhausted for t in self.tuners)

    @property
    def expected(self) -> TaskTuner:
        """The form that would be measured first."""
        return self._order[0]

    @property
    def built(self) -> tuple[TaskTuner, Candidate, KernelImage] | None:
        """What was built and not measured, of the form that would have been measured first."""
        for t in self._order:
            if (found := t.built) is not None:
                return t, *found
        return None

    def next(self) -> TaskTuner:
        """The tuner with the smallest used part of its share; every form gets a first round."""
        left = [t for t in self._order if t not in self._exhausted] or self._order
        for t in left:
            if t.pending or (t.rounds <= 1 and (t is left[0] or self._has_hope(t))):
                return t
        best = self.best_latency_s or 1.0

        def used(t: TaskTuner) -> float:
            if t.rounds > 1:
                slower = (t.best_latency_s or math.inf) / best
            else:
                slower = self._slower[self.tuners.index(t)]
            hope = 1.0 + HOPE / max(1, t.rounds - 1) ** 2
            return float(max(1, t.rounds) * max(1.0, slower / hope) ** FAVOUR)

        return min(left, key=used)

    def told(self, tuner: TaskTuner, trials: int) -> None:
        """A form whose round had no candidate gets no other, as long as there are other forms."""
        if not trials:
            self._exhausted.append(tuner)
