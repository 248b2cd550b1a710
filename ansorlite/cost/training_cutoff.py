"""Training cutoff: which of the measured programs the trees are trained on.

In: `TrainingGroup`s whose programs carry the number of the round, over the whole run, in which
their results arrived. Out: the groups without the programs after the cutoff. Training time grows
with the number of programs while the time of a search round does not; training after every round
would dominate a long run. The cutoff therefore advances only when the data has grown by a fixed
share. The cutoff depends on the groups alone, so a resumed run trains the same trees as an
uninterrupted run.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ansorlite.cost.losses import TrainingGroup

RETRAIN_GROWTH = 1 / 32  # the cutoff advances when the programs have grown by this share
Contents = list[tuple[str, bytes]]


def before_cutoff(groups: Sequence[TrainingGroup]) -> list[TrainingGroup]:
    """The groups up to the cutoff; all programs if some group has no round numbers."""
    numbered = [g.round_index for g in groups if g.round_index is not None]
    if not numbered or not has_rounds(groups):
        return list(groups)
    rounds, counts = np.unique(np.concatenate(numbered), return_counts=True)
    trained, last = 0, -1
    for number, known in zip(rounds, np.cumsum(counts), strict=True):
        if known >= (1.0 + RETRAIN_GROWTH) * trained:
            trained, last = int(known), int(number)
    return [part for g in groups if len((part := _until(g, last)).latency_s)]


def has_rounds(groups: Sequence[TrainingGroup]) -> bool:
    """True if all programs have round numbers: later states of the run only add programs."""
    return all(g.round_index is not None for g in groups)


def contents(groups: Sequence[TrainingGroup]) -> Contents:
    """Identifies a state of the history: task keys and latencies."""
    return [(g.task_key, g.latency_s.tobytes()) for g in groups]


def _until(g: TrainingGroup, last: int) -> TrainingGroup:
    """The programs of a group up to round `last`."""
    assert g.round_index is not None
    keep = g.round_index <= last
    if keep.all():
        return g
    features = [f for f, k in zip(g.features, keep, strict=True) if k]
    return replace(
        g, features=features, latency_s=g.latency_s[keep], round_index=g.round_index[keep]
    )
