"""Signatures of candidates: equal for candidates that the features cannot distinguish.

In: features float32[P, S, F] of `cost.features`. Out: 16 bytes per candidate. Equal signatures
almost always mean equal machine code. The unroll limit is replaced by the number of unrolled steps
that it allows, because different limits may produce the same loops.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from ansorlite.cost.names import AT


def signatures(features: npt.NDArray[np.float32]) -> list[bytes]:
    """One signature per candidate; a different number of statements gives a different one."""
    out = features.copy()
    limit = np.rint(np.exp2(out[..., AT["unroll"]]) - 1.0)
    steps = np.rint(np.exp2(out[..., AT["inner_reduction"]]) - 1.0)
    body = np.maximum(out[..., AT["rows"]] * out[..., AT["vectors"]], 1.0)
    out[..., AT["unroll"]] = np.clip(np.floor(limit / body), 1.0, np.maximum(steps, 1.0))
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in out]
