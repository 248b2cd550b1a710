"""Copies that read along one loop and store along another loop: transpositions.

A nest `for k in range(K): for j in range(J): y[.., j] = x[.., k]`, with x contiguous in k and y in
j, is copied in squares: vectors are loaded along k, transposed in registers, and stored along j.
"""

from ansorlite.ir.expr import Const, Expr, Load
from ansorlite.ir.program import NO_NOTE, For, Store
from ansorlite.ir.ranges import coefficient


def is_transposed(store: Store, across: For, along: For, lanes: int) -> bool:
    """True if the nest of `across` around `along` is a copy to make in `lanes` x `lanes`
    squares.
    """
    value = store.value
    if store.combiner or not isinstance(value, Load) or lanes < 2 or lanes & (lanes - 1):
        return False
    n = across.extent
    if not isinstance(n, Const) or n.value < lanes or across.note("parallel") is not NO_NOTE:
        return False
    noted = [across.note(key) for key in ("lanes", "register")]
    if across.reduce or any(v is not NO_NOTE for v in noted):
        return False
    return _contiguous(store.indices, along.var) and _contiguous(value.indices, across.var)


def _contiguous(indices: tuple[Expr, ...], var: str) -> bool:
    """True if the loop moves only the last index, with stride 1."""
    if not indices:
        return False
    *outer, last = indices
    return coefficient(last, var) == Const(1) and all(var not in i.free for i in outer)
