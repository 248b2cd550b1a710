"""Expressions thousands of nodes deep: what goes down them without a call for every level.

`landings` gives the nodes at which a recursion stops when it works from the innermost ones
outwards, each time only so many levels down to what was done before. Printing, comparing and
pickling have loops of their own, here in the base of all expressions.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ansorlite.errors import ModelError

SHALLOW = 48  # levels that a recursion may go down
MAX_DEPTH = 10_000  # of an expression that a computation may have
MAX_SIZE = 200_000  # nodes of its tree: each becomes an instruction or more
LARGEST = 1 << 20  # nodes of any expression
FRAMES = 16  # calls that a level takes at most where code is generated
FRAME_BYTES = 1024
STACK_BYTES = 16 << 20
_ONE_AT_A_TIME = threading.Lock()
FLOATS = ("float32", "float64")
_NOTHING: frozenset[str] = frozenset()


class Node:
    """What all expressions have: parts, by which they are equal, a printed form, and a depth.

    `depth` and `size` count the nodes of the longest path and of the tree; `reads` tells whether
    the value comes from a tensor or from floats, and not from loop variables alone.
    """

    __slots__ = ("_hash", "_key", "_parts", "depth", "dtype", "free", "reads", "size")
    dtype: str
    free: frozenset[str]
    depth: int
    reads: bool
    size: int
    _parts: tuple[Any, ...]
    _hash: int
    _key: str | None
    infix = False  # printed with operators between its parts
    is_load = False

    def _seal(self, parts: tuple[Any, ...], dtype: str, below: Sequence[Node] = ()) -> None:
        """`parts` and `dtype` are what makes a node equal to another."""
        self._parts, self.dtype = parts, dtype
        self._hash, self._key = hash((parts, dtype)), None
        self.free, self.depth, self.size = _NOTHING, 1, 1
        self.reads = self.is_load or dtype in FLOATS
        if below:
            self.free = _NOTHING.union(*[e.free for e in below])
            self.depth = 1 + max([e.depth for e in below])
            self.size = 1 + sum([e.size for e in below])
            self.reads = self.reads or any([e.reads for e in below])
            if self.size > LARGEST:
                raise ModelError(
                    f"an expression has more than {LARGEST} operations when written out: compute "
                    "what it uses several times as a tensor of its own"
                )

    @property
    def key(self) -> str:
        if self._key is not None:
            return self._key
        if self.depth > SHALLOW:  # not kept: the keys of all nodes would be the square of the size
            return _printed(self)
        self._key = "".join([p if isinstance(p, str) else p.key for p in self.pieces()])
        return self._key

    def pieces(self) -> list[Piece]:
        """The printed form, with the expressions in it."""
        return [type(self).__name__]

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key})"

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Node)
            and self._hash == other._hash
            and self.dtype == other.dtype
            and (self._parts == other._parts if self.depth <= SHALLOW else _equal(self, other))
        )

    def __hash__(self) -> int:
        return self._hash

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        """(class, arguments) that make the node again."""
        return type(self), ()

    def __reduce__(self) -> Any:
        return self.made_of() if self.depth <= SHALLOW else _reduced(self)


Piece = str | Node  # of a printed form: text, or an expression whose own stands there
N = TypeVar("N", bound=Node)
T = TypeVar("T")


def landings(e: N, children: Callable[[N], Iterable[N]]) -> list[N]:
    """Nodes below, no two further apart than `SHALLOW` levels, the innermost ones first.

    Of an expression that is not deep: none.
    """
    if e.depth <= SHALLOW:
        return []
    seen, stack, found = {id(e)}, [e], dict[int, N]()
    while stack:
        x = stack.pop()
        for c in children(x):
            if c.depth < SHALLOW:
                continue
            if c.depth // SHALLOW < x.depth // SHALLOW:
                found[id(c)] = c
            if id(c) not in seen:
                seen.add(id(c))
                stack.append(c)
    return sorted(found.values(), key=lambda x: x.depth)


def with_room(depth: int, call: Callable[[], T]) -> T:
    """`call()` where a recursion down so many levels has room: in a thread with a large stack."""
    if depth <= SHALLOW:
        return call()
    with _ONE_AT_A_TIME:
        limit, stack_bytes = sys.getrecursionlimit(), threading.stack_size()
        with ThreadPoolExecutor(1) as pool:
            try:
                sys.setrecursionlimit(max(limit, limit + FRAMES * depth))
                threading.stack_size(STACK_BYTES + FRAMES * FRAME_BYTES * depth // 4096 * 4096)
                done = pool.submit(call)
            finally:
                threading.stack_size(stack_bytes)
            try:
                return done.result()
            finally:
                sys.setrecursionlimit(limit)


def _printed(e: Node) -> str:
    """The text of an expression from the pieces of each node."""
    out: list[str] = []
    stack: list[Piece] = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, str):
            out.append(x)
        elif x.depth <= SHALLOW:
            out.append(x.key)
        else:
            stack.extend(reversed(x.pieces()))
    return "".join(out)


def _equal(a: Node, b: Node) -> bool:
    """Are two nodes equal, part by part?"""
    stack: list[tuple[Any, Any]] = [(a, b)]
    while stack:
        x, y = stack.pop()
        if x is y:
            continue
        if isinstance(x, tuple) and isinstance(y, tuple):
            if len(x) != len(y):
                return False
            stack.extend(zip(x, y, strict=True))
        elif isinstance(x, Node) and isinstance(y, Node) and x.depth > SHALLOW:
            if x._hash != y._hash or x.dtype != y.dtype:
                return False
            stack.append((x._parts, y._parts))
        elif x != y:
            return False
    return True


@dataclass(frozen=True)
class _Place:
    """Stands for the node made at this place of the list."""

    at: int


def _reduced(e: Node) -> Any:
    """What pickle makes the expression of again: its nodes in a list, the innermost ones first."""
    order: list[Node] = []
    places: dict[int, int] = {}
    stack: list[tuple[Node, bool]] = [(e, False)]
    while stack:
        x, done = stack.pop()
        if id(x) in places:
            continue
        if done:
            places[id(x)] = len(order)
            order.append(x)
            continue
        stack.append((x, True))
        stack.extend((c, False) for c in _deep(x.made_of()[1]))
    return _restored, ([_placed(x.made_of(), places) for x in order],)


def _deep(args: Any) -> list[Node]:
    """The deep nodes among arguments; what is shallow may be pickled as it is."""
    if isinstance(args, tuple):
        return [x for a in args for x in _deep(a)]
    return [args] if isinstance(args, Node) and args.depth > SHALLOW else []


def _placed(args: Any, places: dict[int, int]) -> Any:
    if isinstance(args, tuple):
        return tuple(_placed(a, places) for a in args)
    return _Place(places[id(args)]) if id(args) in places else args


def _restored(nodes: list[tuple[Any, tuple[Any, ...]]]) -> Any:
    made: list[Any] = []
    for make, args in nodes:
        made.append(make(*_filled(args, made)))
    return made[-1]


def _filled(args: Any, made: list[Any]) -> Any:
    if isinstance(args, tuple):
        return tuple(_filled(a, made) for a in args)
    return made[args.at] if isinstance(args, _Place) else args
