"""Which of the programs that are known so far trees are trained on.

In: `TrainingGroup`s whose programs are numbered by the round of the whole run that told of them.
Out: groups of those that were known when enough was new the last time. To train takes time in
proportion to all that is known, and a round of a search does not get longer: trained after every
one, trees would take most of the time of a long run. The answer depends on the groups alone, not on
what was asked before, so a resumed run has the trees of the uninterrupted one.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ansorlite.cost.losses import TrainingGroup

NEW = 1 / 32  # of what trees were trained on: with so much more they are trained anew
Contents = list[tuple[str, bytes]]


def settled(groups: Sequence[TrainingGroup]) -> list[TrainingGroup]:
    """All groups, without the last programs; whole ones if any group's are not numbered."""
    told = [g.told for g in groups if g.told is not None]
    if not told or not is_history(groups):
        return list(groups)
    rounds, counts = np.unique(np.concatenate(told), return_counts=True)
    trained, last = 0, -1
    for number, known in zip(rounds, np.cumsum(counts), strict=True):
        if known >= (1.0 + NEW) * trained:
            trained, last = int(known), int(number)
    return [part for g in groups if len((part := _until(g, last)).latency_s)]


def is_history(groups: Sequence[TrainingGroup]) -> bool:
    """Whether all programs are numbered: then those of a task are as before but for new ones."""
    return all(g.told is not None for g in groups)


def contents(groups: Sequence[TrainingGroup]) -> Contents:
    """What tells two states of a history apart."""
    return [(g.task_key, g.latency_s.tobytes()) for g in groups]


def _until(g: TrainingGroup, last: int) -> TrainingGroup:
    assert g.told is not None
    keep = g.told <= last
    if keep.all():
        return g
    features = [f for f, k in zip(g.features, keep, strict=True) if k]
    return replace(g, features=features, latency_s=g.latency_s[keep], told=g.told[keep])
