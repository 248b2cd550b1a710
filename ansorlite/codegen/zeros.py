"""Terms that are zero by construction where loops are unrolled: a sum need not take them up.

`acc += select(hit, x, 0) * w` does nothing in the copies of an unrolled body where `hit` is false;
so a transposed or a sparse computation written with tests costs no products with zeros. The zero of
a test counts as zero even where the other factor is infinite or no number.
"""

from collections.abc import Mapping

from ansorlite.ir.expr import COMPARE, Const, Expr, Op, is_int
from ansorlite.ir.ranges import Evaluator
from ansorlite.ir.traverse import loads


def is_zero(e: Expr, known: Mapping[str, int]) -> bool:
    """Is a value zero, given some variables?"""
    if isinstance(e, Const):
        return bool(e.value == 0)
    if not isinstance(e, Op):
        return False
    match e.name:
        case "mul":
            return any(is_zero(a, known) for a in e.args)
        case "add" | "sub":
            return all(is_zero(a, known) for a in e.args)
        case "select":
            flag = decided(e.args[0], known)
            if flag is None:
                return is_zero(e.args[1], known) and is_zero(e.args[2], known)
            return is_zero(e.args[1 if flag else 2], known)
    return False


def decided(e: Expr, known: Mapping[str, int]) -> bool | None:
    """A condition where the known variables decide it, otherwise None."""
    if isinstance(e, Const):
        return bool(e.value)
    if not isinstance(e, Op):
        return None
    if e.name in ("and", "or"):
        parts = [decided(a, known) for a in e.args]
        deciding = e.name == "or"
        if deciding in parts:
            return deciding
        return None if None in parts else not deciding
    if e.name == "not":
        flag = decided(e.args[0], known)
        return None if flag is None else not flag
    if e.name in COMPARE and is_int(e.args[0]) and not loads(e):
        values = {name: known[name] for name in e.free if name in known}
        return bool(Evaluator(values)(e)) if len(values) == len(e.free) else None
    return None
