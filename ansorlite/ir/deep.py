"""Base class of expressions, and recursion over expressions that are thousands of nodes deep.

`recursion_starts` splits a deep recursion: the function lists nodes, innermost first, such that a
memoised recursion started at each node in turn descends at most `SHALLOW` levels. Printing,
comparison and pickling of deep expressions use explicit stacks, implemented here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ansorlite.errors import ModelError

SHALLOW = 48  # levels that one recursion may descend
MAX_DEPTH = 10_000  # deepest expression of a computation
# Most nodes of an expression tree of a computation; each node becomes an instruction or more.
MAX_SIZE = 200_000
MAX_NODES = 1 << 20  # most nodes of any expression tree
FRAMES = 16  # Python frames per level in code generation, at most
FRAME_BYTES = 1024
STACK_BYTES = 16 << 20
_ONE_AT_A_TIME = threading.Lock()
FLOATS = ("float32", "float64")
_NOTHING: frozenset[str] = frozenset()


class Node:
    """Base of all expressions: structural equality, a printed form (`key`), and size measures.

    `depth` is the number of nodes of the longest path and `size` that of the tree. `free` holds the
    names of free variables. `reads` is True if the value depends on a tensor or a float, and not on
    loop variables alone.
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
    infix = False  # printed with infix operators
    is_load = False

    def _seal(self, parts: tuple[Any, ...], dtype: str, below: Sequence[Node] = ()) -> None:
        """Set the derived fields; `parts` and `dtype` define equality, `below` are the operands."""
        self._parts, self.dtype = parts, dtype
        self._hash, self._key = hash((parts, dtype)), None
        free, depth, size, reads = _NOTHING, 0, 1, self.is_load or dtype in FLOATS
        for e in below:
            size += e.size
            if e.depth > depth:
                depth = e.depth
            if e.reads:
                reads = True
            if e.free is not free and e.free:
                free = free | e.free if free else e.free
        self.free, self.depth, self.size, self.reads = free, depth + 1, size, reads
        if size > MAX_NODES:
            raise ModelError(
                f"an expression has more than {MAX_NODES} operations when written out: compute "
                "the repeated part as a separate tensor"
            )

    @property
    def key(self) -> str:
        """The printed form, which also defines the order of expressions."""
        if self._key is not None:
            return self._key
        # Caching the text of every node would need memory quadratic in the size.
        if self.depth > SHALLOW:
            text = _printed(self)
            if self.depth % SHALLOW == 0:
                self._key = text
            return text
        self._key = "".join([p if isinstance(p, str) else p.key for p in self.pieces()])
        return self._key

    def pieces(self) -> list[Piece]:
        """The printed form as a list of texts and nested expressions."""
        return [type(self).__name__]

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key})"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Node) or self._hash != other._hash or self.dtype != other.dtype:
            return False
        if self._parts is other._parts:
            return True
        same = self._parts == other._parts if self.depth <= SHALLOW else _equal(self, other)
        if same:  # compared once: equal trees share their parts from here on
            other._parts = self._parts
        return same

    def __hash__(self) -> int:
        return self._hash

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        """(class, arguments) that construct an equal node."""
        return type(self), ()

    def __reduce__(self) -> Any:
        return self.made_of() if self.depth <= SHALLOW else _reduced(self)


Piece = str | Node  # part of a printed form: text, or an expression to be printed in its place
N = TypeVar("N", bound=Node)
T = TypeVar("T")


def recursion_starts(e: N, children: Callable[[N], Iterable[N]]) -> list[N]:
    """Nodes below `e` at most `SHALLOW` levels apart, innermost first; [] if `e` is not deep."""
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


def with_deep_stack(depth: int, call: Callable[[], T]) -> T:
    """The result of `call()`, run with a stack that suffices for recursion down `depth` levels.

    For deep recursion, `call` runs in a thread with a larger stack and a raised recursion limit.
    """
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
    """The text of an expression, without recursion over deep nodes."""
    out: list[str] = []
    stack: list[Piece] = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, str):
            out.append(x)
        elif x.depth <= SHALLOW or x._key is not None:
            out.append(x.key)
        else:
            stack.extend(reversed(x.pieces()))
    return "".join(out)


def _equal(a: Node, b: Node) -> bool:
    """Structural equality of two nodes, without recursion."""
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
    """Reference to the node at position `at` of a pickled list."""

    at: int


def _reduced(e: Node) -> Any:
    """Pickle form of a deep expression: a flat list of its nodes, innermost first."""
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
    """The deep nodes among constructor arguments; shallow nodes are pickled directly."""
    if isinstance(args, tuple):
        return [x for a in args for x in _deep(a)]
    return [args] if isinstance(args, Node) and args.depth > SHALLOW else []


def _placed(args: Any, places: dict[int, int]) -> Any:
    """Constructor arguments with deep nodes replaced by references."""
    if isinstance(args, tuple):
        return tuple(_placed(a, places) for a in args)
    return _Place(places[id(args)]) if id(args) in places else args


def _restored(nodes: list[tuple[Any, tuple[Any, ...]]]) -> Any:
    """The last of the nodes constructed from a pickled list."""
    made: list[Any] = []
    for make, args in nodes:
        made.append(make(*_filled(args, made)))
    return made[-1]


def _filled(args: Any, made: list[Any]) -> Any:
    """Constructor arguments with references replaced by nodes."""
    if isinstance(args, tuple):
        return tuple(_filled(a, made) for a in args)
    return made[args.at] if isinstance(args, _Place) else args
