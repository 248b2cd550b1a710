"""The features of AutoTVM's models, as float32[P, S, F].

In: a sketch and rows of option indices. Out: features. "knobs" are the numbers that a template left
open, comparable within one task only; "loops" describe every loop around the innermost statement
(NeurIPS'18, section 3 and appendix A); "relation" relates those features to each other, so that a
model carries over to other tasks and operators.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ansorlite.baselines.loop_context import loop_context, loop_relation
from ansorlite.schedule.holes import population_columns
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target

Features = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int32]
MAX_KNOBS = 48  # numbers of a row that count; templates have fewer
MAX_NAME = 997  # structures are told apart by a number below this


class FeatureSet(Protocol):
    """Features of rows of a sketch."""

    def of(self, sketch: Sketch, rows: Rows, target: Target) -> Features: ...


class KnobFeatures:
    """log2 of every number that is open, in order of their names, and which structure it is."""

    def of(self, sketch: Sketch, rows: Rows, target: Target) -> Features:
        columns = population_columns(sketch.holes, rows)
        names = sorted(name for h in sketch.holes if len(h.options) > 1 for name in h.columns)[
            :MAX_KNOBS
        ]
        out = np.zeros((len(rows), 1, MAX_KNOBS + 1), np.float32)
        for k, name in enumerate(names):
            out[:, 0, k] = np.log2(1.0 + columns[name])
        out[:, 0, MAX_KNOBS] = sum(map(ord, sketch.name)) % MAX_NAME
        return out


class LoopFeatures:
    """The context of every loop of the program's main statement."""

    def of(self, sketch: Sketch, rows: Rows, target: Target) -> Features:
        return loop_context(sketch, rows)[:, None, :]


class RelationFeatures:
    """How the features of the loops depend on each other: the same width for every program."""

    def of(self, sketch: Sketch, rows: Rows, target: Target) -> Features:
        return loop_relation(sketch, rows)[:, None, :]


FEATURE_SETS: dict[str, Callable[[], FeatureSet]] = {
    "knobs": KnobFeatures,
    "loops": LoopFeatures,
    "relation": RelationFeatures,
}
