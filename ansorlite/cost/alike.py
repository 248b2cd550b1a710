"""Which candidates features cannot tell apart: all but always, their machine code is the same.

In: float32[P, S, F] of `cost.features`. Out: bytes a candidate, equal where the features are. A
limit on unrolled steps counts as what it lets be unrolled: other limits may leave the same loops.
"""

import numpy as np
import numpy.typing as npt

from ansorlite.cost.features import FEATURE_NAMES

_AT = {name: k for k, name in enumerate(FEATURE_NAMES)}


def signatures(features: npt.NDArray[np.float32]) -> list[bytes]:
    """One a candidate; those of programs with other numbers of statements differ."""
    out = features.copy()
    limit = np.rint(np.exp2(out[..., _AT["unroll"]]) - 1.0)
    steps = np.rint(np.exp2(out[..., _AT["inner_reduction"]]) - 1.0)
    body = np.maximum(out[..., _AT["rows"]] * out[..., _AT["vectors"]], 1.0)
    out[..., _AT["unroll"]] = np.clip(np.floor(limit / body), 1.0, np.maximum(steps, 1.0))
    return [row.tobytes() for row in out]
