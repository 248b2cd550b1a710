"""The printed form of expressions: deterministic, and what they are ordered by."""

from collections.abc import Sequence
from typing import Protocol

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


class Printed(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def infix(self) -> bool: ...


def op_text(name: str, args: Sequence[Printed], dtype: str) -> str:
    if name in INFIX:
        return f" {INFIX[name]} ".join(_paren(a) for a in args)
    if name == "cast":
        return f"{dtype}({args[0].key})"
    return f"{name}({', '.join(a.key for a in args)})"


def poly_text(terms: Sequence[tuple[Sequence[Printed], int]]) -> str:
    out = ""
    for mono, c in terms:
        factors = [_paren(a) for a in mono]
        if abs(c) != 1 or not factors:
            factors.append(str(abs(c)))
        text = "*".join(factors)
        out += (f"-{text}" if c < 0 else text) if not out else (f" {'-' if c < 0 else '+'} {text}")
    return out


def _paren(e: Printed) -> str:
    return f"({e.key})" if e.infix else e.key
