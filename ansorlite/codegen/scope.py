"""Scopes of emitted values: loops, branches, and the values computed in each of them.

Every loop has a block for the values that depend only on its variable and on outer loops. The
emitter computes each value once, in the outermost block where its operands are known. LLVM would
need long to find and move thousands of equal instructions.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ansorlite.codegen import ir_text as ir
from ansorlite.ir.expr import Load
from ansorlite.ir.ranges import Interval


@dataclass
class Memory:
    """A buffer at run time: its pointer and row-major strides in elements."""

    pointer: ir.Value
    strides: tuple[int, ...]
    dtype: str
    padded: bool = False  # vectors may access the elements up to the next whole vector
    constant: bool = False  # the function does not write to the buffer


class Scope:
    """A loop or the whole function, with the block `home` for its values; a branch has none."""

    def __init__(
        self, parent: "Scope | None", home: ir.Block | None, certain: bool = False
    ) -> None:
        """`certain`: the scope runs at least once whenever the code around it runs."""
        self.parent, self.home, self.certain = parent, home, certain
        self.depth: int = parent.depth + 1 if parent else 0
        self.root: Scope = parent.root if parent else self
        # The scope that a branch is in: it has the same variables.
        self.loop: Scope = self if home is not None or parent is None else parent.loop
        # Values of all scopes of the function by key, then by scope: most keys are in no scope.
        self._known: dict[Hashable, dict[Scope, ir.Value]] = parent._known if parent else {}
        self._recent: dict[Hashable, None] = {}  # keys given to `keep`, least recent first
        self._forgotten: set[Hashable] = set()

    def values(self, key: Hashable) -> "dict[Scope, ir.Value]":
        """The values computed for this key, by the scope of each."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = {}
        return found

    def nearest(self, values: "Mapping[Scope, ir.Value]") -> ir.Value | None:
        """The value of this scope or of the next one around that has one; None if there is none."""
        scope: Scope | None = self
        while scope is not None:
            if (value := values.get(scope)) is not None:
                return value
            scope = scope.parent
        return None

    def own(self, key: Hashable) -> ir.Value | None:
        """The value computed for this key in this scope."""
        found = self._known.get(key)
        return found.get(self) if found else None

    def close(self) -> None:
        """Forget the values of all scopes of the function, once its code is complete.

        Values refer to scopes, and scopes to values: otherwise only a garbage collection frees
        them, which takes longer.
        """
        self._known.clear()

    def keep(self, key: Hashable, room: int) -> bool:
        """Mark a value as used; forget the least recent ones beyond `room`.

        True where this value was forgotten before, so that it has to be computed again.
        """
        again = key in self._forgotten and self.own(key) is None
        self._recent.pop(key, None)
        self._recent[key] = None
        while len(self._recent) > room:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            if self._known.get(oldest, {}).pop(self, None) is not None:
                self._forgotten.add(oldest)
        return again


@dataclass(frozen=True)
class Env:
    """The environment of one place in the code: loop variables, buffers, the scope around."""

    vars: Mapping[str, Any]  # ir.Value (i64) or int
    memory: Mapping[str, Memory]
    scope: Scope
    ranges: Mapping[str, Interval]  # of the variables, over all lanes
    vector: str | None = None  # variable of the vector loop
    width: int = 1
    lanes: int = 1  # used lanes, at most `width`; the others hold any value
    past_caches: bool = False  # vectors are stored with non-temporal stores
    room: int | None = None  # number of loaded values to reuse (registers beside the accumulator)
    # scalars that copies of an unrolled loop read side by side: (variable, copies) of the loop
    beside: Mapping[Load, tuple[str, int]] = field(default_factory=dict)

    def inner(
        self,
        vars: Mapping[str, Any],
        ranges: Mapping[str, Interval] | None = None,
        **changed: Any,
    ) -> "Env":
        """The environment with further or replaced variables; the range of a number is implied."""
        known = dict(self.ranges)
        for name, v in vars.items():
            if isinstance(v, int):
                known[name] = v, v
        if ranges:
            known.update(ranges)
        return self._but(changed | {"vars": {**self.vars, **vars}, "ranges": known})

    def branch(self) -> "Env":
        """The environment of conditional code: values known here stay visible there."""
        return self._but({"scope": Scope(self.scope, None)})

    def _but(self, changed: Mapping[str, Any]) -> "Env":
        """`dataclasses.replace`, which takes three times as long."""
        made = object.__new__(Env)
        fields = made.__dict__
        fields.update(self.__dict__)
        fields.update(changed)
        return made


class Scoped:
    """An emitter that computes each value once, in the outermost block that knows its operands."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder
        self._numbers = count()

    def place(self, value: ir.Value, home: Scope | None) -> ir.Value:
        """Register the loop whose block holds a value; None: known only after its own place."""
        if value.number < 0:
            value.number, value.home = next(self._numbers), home
        return value

    def number(self, value: ir.Value) -> int:
        """Values are numbered by first use: code must not depend on memory addresses."""
        return self.place(value, None).number

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

        `here`: emit at the current place, because the code must not run elsewhere (it may trap).
        `certain`: move the code out only of scopes that certainly run, so that it never runs
        without need (a load must not run where the program does not reach it).
        """
        key = (kind, *operands)
        home: Scope | None = None
        for x in operands:
            if isinstance(x, int):
                continue
            at = x.home
            if at is None:
                if x.number < 0:
                    self.place(x, None)
                here = True
            elif home is None or at.depth > home.depth:
                home = at
        if certain and not here and home is not None and home.home is not None:
            home = _certain_scope(env.scope, home)
        if here or home is None or home.home is None:
            return self.once_here(key, env, make)
        values = env.scope.values(key)
        found = values.get(home)
        if found is None:
            back = self.b.block
            self.b.position_at_end(home.home)
            found = values[home] = self.place(make(), home)
            self.b.position_at_end(back)
        return found

    def once_here(self, key: Hashable, env: Env, make: Callable[[], ir.Value]) -> ir.Value:
        """`make()` for the kind and operands in `key`, emitted at the current place, once."""
        values = env.scope.values(key)
        found = env.scope.nearest(values) if values else None
        if found is None:
            found = values[env.scope] = self.place(make(), None)
        return found


def _certain_scope(scope: Scope, home: Scope) -> Scope | None:
    """The outermost scope up to `home` from which `scope` certainly runs.

    None where that is `scope` itself.
    """
    outer = scope
    while outer is not home and outer.certain and outer.parent is not None:
        outer = outer.parent
    return None if outer is scope else outer
