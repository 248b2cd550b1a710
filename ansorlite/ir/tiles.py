"""Analysis of an annotated nest: register tile, vector loop, surrounding reductions.

In: tidied loops with annotations. Out: numbers and positions of loops, for `ir.specialize`.
"""

from ansorlite.ir.expr import Const, Expr, Op, terms_of
from ansorlite.ir.program import NO_NOTE, For


def extent_of(lp: For) -> int:
    """The constant extent of a loop."""
    assert isinstance(lp.extent, Const)
    return int(lp.extent.value)


def lanes_of(lp: For) -> int:
    """The vector length of a loop; 0 without the annotation."""
    note = lp.note("lanes")
    return int(note.value) if isinstance(note, Const) else 0


def whole_vectors(lp: For) -> int:
    """The extent rounded up to whole vectors."""
    lanes = max(1, lanes_of(lp))
    return -(-extent_of(lp) // lanes) * lanes


def pieces_of(n: int, lanes: int) -> list[tuple[int, int, int]]:
    """(first index, number of vectors, width): full vectors, then one remainder vector."""
    whole, rest = divmod(n, lanes)
    out = [(0, whole, lanes)] if whole else []
    return [*out, (whole * lanes, 1, rest)] if rest else out


def region_of(loops: list[For]) -> tuple[int, int] | None:
    """Positions (top, first) of the outermost reduction and of the tile; None if not annotated."""
    tagged = [
        k for k, lp in enumerate(loops) if lanes_of(lp) > 1 or lp.note("register") is not NO_NOTE
    ]
    if not tagged:
        return None
    if any(loops[k].reduce for k in tagged):
        last = len(loops) - 1
        if tagged[-1] != last or not isinstance(loops[last].extent, Const):
            return None
        top = last
        while top > 0 and loops[top - 1].reduce:
            top -= 1
        return top, last
    first = tagged[0]
    if any(not lp.reduce and k not in tagged for k, lp in enumerate(loops) if k > first):
        return None
    top = first
    while top > 0 and loops[top - 1].reduce:
        top -= 1
    return top, first


def full_and_tail(lp: For) -> tuple[int, Expr, int] | None:
    """(t, rest, N mod t) of an extent min(t, rest), rest = N - multiples of t; otherwise None."""
    e = lp.extent
    if not (isinstance(e, Op) and e.name == "min" and len(e.args) == 2):
        return None
    numbers = [a for a in e.args if isinstance(a, Const)]
    rests = [a for a in e.args if not isinstance(a, Const)]
    if len(numbers) != 1:
        return None
    full = int(numbers[0].value)
    terms = terms_of(rests[0])
    size = terms.pop((), 0)
    if size % full == 0 or any(c % full for c in terms.values()):
        return None
    return full, rests[0], size % full
