"""One run of the tuner as its tasks see it: budget, store, measuring, counts of trials.

In: made by a `Session`. `TaskTuner`s use it.
"""

from collections import Counter
from dataclasses import dataclass, field

from ansorlite.search.budget import Budget
from ansorlite.search.debug import Trace
from ansorlite.search.measuring import Measuring
from ansorlite.search.store import Store


@dataclass
class Run:
    """What all tasks of one run share."""

    budget: Budget
    store: Store
    measuring: Measuring
    seed: int = 0
    trace: Trace = field(default_factory=Trace)
    counts: Counter[str] = field(default_factory=Counter)  # trials by status, the log's included
    rounds: int = 0  # of all tasks that ended in this run
