"""Readers of norms: of the elements along an axis, of windows, of all elements of a channel.

Out: powers of the elements, a `reduce_sum` or `sum_pool` of them, and the root of the sum.
"""

from collections.abc import Callable
from dataclasses import replace

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import windows
from ansorlite.graph.onnx.context import Context, OnnxNode, axis_of


def lp_norm(c: Context, n: OnnxNode) -> str:
    """x divided by its norm along an axis, 0 where that is 0."""
    x, p = c.operand(n, 0), int(n.attrs.get("p", 2))
    axis = axis_of(int(n.attrs.get("axis", -1)), len(c.shape(x)))
    if p not in (1, 2):
        raise ModelError(f"p is {p}: only the norms 1 and 2 are defined")
    powers, root = _powers(c, n, x)
    norm = root(c.emit("reduce_sum", [powers], axes=(axis,), keepdims=True))
    zero = c.scalar(0, x)
    return c.emit("where", [c.emit("equal", [norm, zero]), zero, c.emit("div", [x, norm])])


def lp_pool(c: Context, n: OnnxNode) -> str:
    """The norm of each window."""
    powers, root = _powers(c, n, c.operand(n, 0))
    c.values[powers] = powers
    return root(windows.pool("sum_pool")(c, replace(n, inputs=(powers,))))


def global_lp_pool(c: Context, n: OnnxNode) -> str:
    """The norm of each channel."""
    x = c.operand(n, 0)
    if len(c.shape(x)) < 3:
        raise ModelError(f"{c.type(x)} has no spatial axes")
    powers, root = _powers(c, n, x)
    axes = tuple(range(2, len(c.shape(x))))
    return root(c.emit("reduce_sum", [powers], axes=axes, keepdims=True))


def _powers(c: Context, n: OnnxNode, x: str) -> tuple[str, Callable[[str], str]]:
    """(|x| ** p, the function that takes the root of sums of them)."""
    p = float(n.attrs.get("p", 2))
    if not p >= 1:
        raise ModelError(f"p is {p}: norms need at least 1")
    if p == 1:
        return c.emit("abs", [x]), lambda v: v
    if p == 2:
        return c.emit("mul", [x, x]), lambda v: c.emit("sqrt", [v])
    powers = c.emit("pow", [c.emit("abs", [x]), c.scalar(p, x)])
    return powers, lambda v: c.emit("pow", [v, c.scalar(1 / p, x)])
