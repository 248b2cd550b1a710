"""Printed form of expressions; deterministic, since the order of expressions depends on the text.

In: operation names and operands. Out: pieces (texts and nested expressions) for `ir.deep`.
"""

from collections.abc import Sequence

from ansorlite.ir.deep import Node, Piece

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "and": "and",
    "or": "or",
    "floordiv": "//",
    "mod": "%",
}


def op_pieces(name: str, args: Sequence[Node], dtype: str) -> list[Piece]:
    """Pieces of an operation, infix or as a call."""
    if name in INFIX:
        out: list[Piece] = []
        for a in args:
            out += [f" {INFIX[name]} ", *_paren(a)]
        return out[1:]
    return [f"{dtype if name == 'cast' else name}(", *listed(args), ")"]


def listed(args: Sequence[Node]) -> list[Piece]:
    """The expressions separated by commas."""
    out: list[Piece] = []
    for a in args:
        out += [", ", a]
    return out[1:]


def poly_pieces(terms: Sequence[tuple[Sequence[Node], int]]) -> list[Piece]:
    """Pieces of a polynomial."""
    out: list[Piece] = []
    for mono, c in terms:
        if out:
            out.append(" - " if c < 0 else " + ")
        elif c < 0:
            out.append("-")
        factors = [_paren(a) for a in mono]
        if abs(c) != 1 or not factors:
            factors.append([str(abs(c))])
        for k, factor in enumerate(factors):
            out += ["*", *factor] if k else factor
    return out


def _paren(e: Node) -> list[Piece]:
    """An expression, in parentheses if it is printed infix."""
    return ["(", e, ")"] if e.infix else [e]
