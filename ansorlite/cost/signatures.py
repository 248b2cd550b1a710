"""Which candidates features cannot tell apart: all but always, their machine code is the same.

In: float32[P, S, F] of `cost.features`. Out: 16 bytes a candidate, equal where the features are. A
limit on unrolled steps counts as what it lets be unrolled: other limits may leave the same loops.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from ansorlite.cost.names import AT


def signatures(features: npt.NDArray[np.float32]) -> list[bytes]:
    """One a candidate; those of programs with other numbers of statements differ."""
    out = features.copy()
    limit = np.rint(np.exp2(out[..., AT["unroll"]]) - 1.0)
    steps = np.rint(np.exp2(out[..., AT["inner_reduction"]]) - 1.0)
    body = np.maximum(out[..., AT["rows"]] * out[..., AT["vectors"]], 1.0)
    out[..., AT["unroll"]] = np.clip(np.floor(limit / body), 1.0, np.maximum(steps, 1.0))
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in out]
