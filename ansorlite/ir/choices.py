"""Loops over lists of different expressions, written out: no test is left at run time.

rewrite: `for a in range(2): y[a] = select(a == 0, p, q)` -> `y[0] = p; y[1] = q`

In: a specialised statement. Out: the statement whose loops over such lists are marked `unroll`, so
that code generation decides the tests and LLVM computes once what the expressions have in common.
The transforms of fast algorithms are such lists, where a loop would branch at every vector.
"""

from collections import Counter
from dataclasses import replace
from functools import lru_cache, reduce
from operator import or_

from ansorlite.ir.expr import Const, Expr, Op
from ansorlite.ir.program import Alloc, Block, For, If, Stmt, Store
from ansorlite.ir.traverse import children

MOST = 128  # stores of a loop that is written out


def write_out(s: Stmt) -> Stmt:
    """The statement with loops over lists of expressions marked `unroll`."""
    return _written_out(s)[0]


def _written_out(s: Stmt) -> tuple[Stmt, int, Counter[str]]:
    """The statement, its number of stores, and by variable how many numbers it is compared with."""
    match s:
        case Store():
            return s, 1, _compared(s.value)
        case For():
            body, n, compared = _written_out(s.body)
            size = int(s.extent.value) if isinstance(s.extent, Const) else 0
            listed = s.mark == "serial" and 1 < size <= compared.get(s.var, 0) + 1
            if listed and size * n <= MOST:
                return replace(s, body=body, mark="unroll", notes=()), size * n, compared
            copies = size if s.mark == "unroll" else 1
            return replace(s, body=body), copies * n, compared
        case Alloc():
            body, n, compared = _written_out(s.body)
            return replace(s, body=body), n, compared
        case Block():
            parts = [_written_out(x) for x in s.stmts]
            compared = reduce(or_, (found for _, _, found in parts), Counter[str]())
            return Block(tuple(x for x, _, _ in parts)), sum(n for _, n, _ in parts), compared
        case If():
            then, n, compared = _written_out(s.then)
            if s.orelse is None:
                return replace(s, then=then), n, compared
            orelse, more, others = _written_out(s.orelse)
            return If(s.cond, then, orelse), n + more, compared | others
        case _:
            return s, 0, Counter()


@lru_cache(maxsize=1 << 10)
def _compared(e: Expr) -> Counter[str]:
    """By variable, with how many numbers conditions of `select` compare it for equality."""
    tests, seen, stack = set[Expr](), set[Expr](), [e]
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        if isinstance(x, Op) and x.name == "select":
            test = x.args[0]
            if isinstance(test, Op) and test.name == "eq" and len(test.free) == 1:
                tests.add(test)
        stack.extend(children(x))
    return Counter(v for test in tests for v in test.free)
