"""Where emitted values are known: loops, branches, and what was computed in each of them.

A loop has a block of its own for what depends on its variable and those around it alone, so that
the emitter computes every value once and as far out as it can, instead of leaving thousands of
equal instructions for LLVM to find.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir

from ansorlite.ir.ranges import Interval


@dataclass
class Memory:
    """A buffer at run time: its pointer and row-major strides in elements."""

    pointer: ir.Value
    strides: tuple[int, ...]
    dtype: str
    padded: bool = False  # vectors may touch the elements up to the next whole vector
    constant: bool = False  # nobody writes to it while the function runs


class Scope:
    """A loop (or the function), with the block `home`; or a branch, without one."""

    def __init__(
        self, parent: "Scope | None", home: ir.Block | None, certain: bool = False
    ) -> None:
        """`certain`: whenever the code around is run, this is, at least once."""
        self.parent, self.home, self.certain = parent, home, certain
        self.depth: int = parent.depth + 1 if parent else 0
        self.root: Scope = parent.root if parent else self
        self.known: dict[Hashable, ir.Value] = {}
        self._recent: dict[Hashable, None] = {}  # of `known`, those that were kept, oldest first
        self._forgotten: set[Hashable] = set()

    def find(self, key: Hashable) -> ir.Value | None:
        """What was computed here or in a scope around."""
        scope: Scope | None = self
        while scope is not None:
            if (value := scope.known.get(key)) is not None:
                return value
            scope = scope.parent
        return None

    def keep(self, key: Hashable, room: int) -> bool:
        """Keep no more than `room` such values of this scope; was this one forgotten before?"""
        again = key in self._forgotten and key not in self.known
        self._recent.pop(key, None)
        self._recent[key] = None
        while len(self._recent) > room:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            if self.known.pop(oldest, None) is not None:
                self._forgotten.add(oldest)
        return again


@dataclass(frozen=True)
class Env:
    """What is known at one place: loop variables, buffers, and the scope around."""

    vars: Mapping[str, Any]  # ir.Value (i64) or int
    memory: Mapping[str, Memory]
    scope: Scope
    ranges: Mapping[str, Interval]  # of the variables, over all lanes
    vector: str | None = None  # variable of the vector loop
    width: int = 1
    lanes: int = 1  # that are used, of `width`; the others hold anything
    past_caches: bool = False  # vectors are stored so
    room: int | None = None  # registers for values that are read, beside an accumulator's

    def inner(
        self,
        vars: Mapping[str, Any],
        ranges: Mapping[str, Interval] | None = None,
        **changed: Any,
    ) -> "Env":
        """The environment with more variables, or others; numbers need no range."""
        known = {name: (v, v) for name, v in vars.items() if isinstance(v, int)}
        return replace(
            self,
            vars={**self.vars, **vars},
            ranges={**self.ranges, **known, **(ranges or {})},
            **changed,
        )

    def branch(self) -> "Env":
        """The environment of code that may not run; it sees what is known here."""
        return replace(self, scope=Scope(self.scope, None))


class Scoped:
    """An emitter that computes what it can only once, where all operands are known first."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder
        # values by order of use: what is emitted must not depend on memory addresses
        self._numbers: dict[int, tuple[int, ir.Value, Scope | None]] = {}

    def place(self, value: ir.Value, home: Scope | None) -> ir.Value:
        """Say in which loop's block a value is known; in none: after it was computed only."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers), value, home
        return value

    def number(self, value: ir.Value) -> int:
        return self.placed(value)[0]

    def placed(self, value: ir.Value) -> tuple[int, ir.Value, Scope | None]:
        """(number, value, home) of a value."""
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = len(self._numbers), value, None
        return known

    def once(
        self,
        kind: Hashable,
        operands: Sequence[ir.Value | int],
        env: Env,
        make: Callable[[], ir.Value],
        *,
        here: bool = False,
        certain: bool = False,
    ) -> ir.Value:
        """`make()` for these operands, emitted once, in the block of their innermost home.

        `here`: where the emitter stands, because it may not be executed anywhere else. `certain`:
        no further out than where it is executed in any case.
        """
        key: list[Hashable] = [kind]
        home: Scope | None = None
        numbers = self._numbers
        for x in operands:
            if isinstance(x, int):
                key.append(x)
                continue
            number, _, at = numbers.get(id(x)) or self.placed(x)
            key.append((number,))
            if at is None:
                here = True
            elif home is None or at.depth > home.depth:
                home = at
        if here or home is None or home.home is None:
            found = env.scope.find(tuple(key))
            if found is None:
                found = env.scope.known[tuple(key)] = self.place(make(), None)
            return found
        if certain:
            outer = env.scope
            while outer is not home and outer.certain and outer.parent is not None:
                outer = outer.parent
            if outer is env.scope or outer.home is None:
                return self.once(kind, operands, env, make, here=True)
            home = outer
        found = home.known.get(tuple(key))
        if found is None:
            back = self.b.block
            self.b.position_at_end(home.home)
            found = home.known[tuple(key)] = self.place(make(), home)
            self.b.position_at_end(back)
        return found
