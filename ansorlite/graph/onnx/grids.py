"""Readers of operators that make grids of positions: AffineGrid.

Out: a product of constant positions with matrices that are data.
"""

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode


def affine_grid(c: Context, n: OnnxNode) -> str:
    """theta [n, d, d + 1] applied to each position of an image of the constant size [n, c, ...].

    Positions run from -1 to 1 along each axis, the last axis first: from the first to the last
    element with `align_corners`, else from edge to edge.
    """
    theta, size = c.operand(n, 0), c.numbers(n, 1)
    extents = size[2:]
    rank = len(extents)
    if rank not in (2, 3) or min(size) < 1 or c.shape(theta) != (size[0], rank, rank + 1):
        raise ModelError(f"size {size} and theta {c.type(theta)} are of no image of 2 or 3 axes")
    c.room([*extents, rank + 1], np.float64, cost=8)
    corners = bool(n.attrs.get("align_corners", 0))
    steps = []
    for e in extents:
        if corners:
            steps.append(np.linspace(-1, 1, e))
        else:
            steps.append((2 * np.arange(e) + 1) / e - 1)
    places = np.meshgrid(*steps, indexing="ij")
    ones = np.ones_like(places[0])
    base = np.stack([*reversed(places), ones], axis=-1).reshape(-1, rank + 1)
    points = c.constant(base.astype(c.type(theta).dtype))
    turned = c.emit("transpose", [theta], perm=(0, 2, 1))
    out = c.emit("matmul", [points, turned])
    return c.emit("reshape", [out], shape=(size[0], *extents, rank))
