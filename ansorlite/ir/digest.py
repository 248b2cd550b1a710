"""Digests of programs and computations: equal for equal structure, in any process.

In: frozen dataclasses, expressions, tuples and plain values. Out: a hexadecimal text. All fields
count, also those that are not printed, such as names, dtypes and operation counts; derived values
that an object has cached do not. Used as keys of what is kept on disk (`codegen.object_cache`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

from ansorlite.ir.deep import Node


def digest(*things: Any) -> str:
    """64 hexadecimal digits. Example: `digest(program) == digest(pickle.loads(packed))`."""
    known: dict[Node, int] = {}
    state = sha256()
    for text in _texts(things, known):
        state.update(text.encode())
        state.update(b"\0")
    return state.hexdigest()


def _texts(x: Any, known: dict[Node, int]) -> Iterator[str]:
    """The structure of `x` as texts; `known` are expressions that were written, by number."""
    if isinstance(x, Node):
        yield from _expression(x, known)
    elif isinstance(x, tuple | list):
        yield f"[{len(x)}"
        for part in x:
            yield from _texts(part, known)
    elif isinstance(x, Mapping):
        yield f"{{{len(x)}"
        for key in sorted(x):
            yield from _texts((key, x[key]), known)
    elif is_dataclass(x) and not isinstance(x, type):
        yield type(x).__name__
        for f in fields(x):
            yield from _texts(getattr(x, f.name), known)
    else:
        yield f"{type(x).__name__} {x!r}"


def _expression(e: Node, known: dict[Node, int]) -> Iterator[str]:
    """An expression, operands first, each different one once; without recursion over its depth."""
    stack: list[tuple[Node, bool]] = [(e, False)]
    while stack:
        x, done = stack.pop()
        if x in known:
            continue
        make, args = x.made_of()
        if done:
            known[x] = len(known)
            yield f"{make.__name__}{_placed(args, known)!r}"
            continue
        stack.append((x, True))
        stack.extend((below, False) for below in _nodes(args))
    yield f"#{known[e]}"


def _nodes(args: Any) -> list[Node]:
    if isinstance(args, tuple):
        return [x for a in args for x in _nodes(a)]
    return [args] if isinstance(args, Node) else []


def _placed(args: Any, known: dict[Node, int]) -> Any:
    """Constructor arguments with the numbers of expressions in their places."""
    if isinstance(args, tuple):
        return tuple(_placed(a, known) for a in args)
    return ("#", known[args]) if isinstance(args, Node) else args
