"""Many expressions evaluated at once, for a whole population.

In: expressions over hole columns, and operations on their values, collected by a `Tape`. Out:
float64[rows, P], one row per value and one column per candidate. Operations of one kind whose
operands are known at the same time are executed by one numpy call, so the number of calls depends
on the depth of the expressions, not on their number. Integers are exact up to 2**53.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import COMPARE, Const, Expr, Op, Poly, Var
from ansorlite.ir.traverse import below

Values = npt.NDArray[np.float64]
Function = Callable[..., Any]  # of arrays of one shape, element by element


def floordiv(a: Values, b: Values) -> Values:
    """Quotients of integers, rounded down."""
    return np.floor(a / b)


def ceildiv(a: Values, b: Values) -> Values:
    """Quotients of integers, rounded up."""
    return np.ceil(a / b)


def where(chosen: Values, a: Values, b: Values) -> Values:
    """`a` where `chosen` is not 0, otherwise `b`."""
    return np.where(chosen != 0, a, b)


_FOLDED: dict[str, Function] = {
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
}
_FUNCTIONS: dict[str, Function] = {
    "floordiv": floordiv,
    "ceildiv": ceildiv,
    "mod": np.remainder,
    "abs": np.absolute,
    "not": np.logical_not,
    "select": where,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
_COMMUTATIVE = (np.multiply, np.add, np.minimum, np.maximum)
ZERO, ONE = 0, 1  # numbers of the values 0 and 1


class Tape:
    """Values that are computed from hole columns, by number, each once.

    `of`, `const` and `apply` return the number of a value; `run` evaluates all of them. Example:
    `t = Tape(); k = t.apply(np.multiply, t.of(extent), t.const(4.0)); t.run(columns, n)[t.row[k]]`.
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}  # by expression, or function and operands
        self._value: list[float | None] = []  # of constants
        self._made: list[tuple[Function | None, tuple[int, ...]]] = []
        self._depth: list[int] = []
        self._names: dict[str, int] = {}  # of columns
        self._schedule: _Schedule | None = None
        self.const(0.0)
        self.const(1.0)

    def const(self, value: float) -> int:
        """A constant."""
        found = self._known.get(("const", value))
        return self._new(("const", value), None, (), value) if found is None else found

    def value(self, k: int) -> float | None:
        """The value of a constant; None for other values."""
        return self._value[k]

    def apply(self, fn: Function, *args: int) -> int:
        """`fn` of other values. Equal functions of equal values are computed once."""
        if fn in _COMMUTATIVE:
            a, b = args
            args = (a, b) if a <= b else (b, a)
        key = (fn, *args)
        found = self._known.get(key)
        if found is None:
            found = self._simple(fn, args)
            if found is None:
                return self._new(key, fn, args, None)
            self._known[key] = found
        return found

    def _simple(self, fn: Function, args: tuple[int, ...]) -> int | None:
        """The number of an equal value without this operation, if there is one."""
        known = [self._value[k] for k in args]
        if None not in known:
            with np.errstate(all="ignore"):
                return self.const(float(fn(*(np.float64(v) for v in known))))
        if fn is np.multiply and ONE in args:
            return args[0] if args[1] == ONE else args[1]
        if fn is np.multiply and ZERO in args:
            return ZERO
        if fn is np.add and ZERO in args:
            return args[0] if args[1] == ZERO else args[1]
        if fn is np.true_divide and args[1] == ONE:
            return args[0]
        if fn in (np.minimum, np.maximum) and args[0] == args[1]:
            return args[0]
        if fn is where and known[0] is not None:
            return args[1] if known[0] else args[2]
        if fn is where and args[1] == args[2]:
            return args[1]
        return None

    def _new(
        self, key: Any, fn: Function | None, args: tuple[int, ...], value: float | None
    ) -> int:
        number = self._known[key] = len(self._made)
        self._value.append(value)
        self._made.append((fn, args))
        self._depth.append(1 + max((self._depth[a] for a in args), default=-1))
        self._schedule = None
        return number

    def fold(self, fn: Function, args: Sequence[int], empty: int) -> int:
        """`fn` of all `args` in pairs, as a balanced tree; `empty` for none of them."""
        left = list(args)
        while len(left) > 1:
            pairs = [self.apply(fn, a, b) for a, b in zip(left[::2], left[1::2], strict=False)]
            left = pairs + left[len(left) & ~1 :]
        return left[0] if left else empty

    def product(self, args: Sequence[int]) -> int:
        """The product of all `args`."""
        return self.fold(np.multiply, args, ONE)

    def of(self, e: Expr) -> int:
        """The value of an integer expression over hole variables.

        Raises AnsorliteError for an expression without such a value.
        """
        found = self._known.get(e)
        if found is None:
            for x in below(e):
                self._of(x)
            found = self._of(e)
        return found

    def _of(self, e: Expr) -> int:
        found = self._known.get(e)
        if found is None:
            found = self._known[e] = self._compute(e)
        return found

    def _compute(self, e: Expr) -> int:
        match e:
            case Const():
                return self.const(float(e.value))
            case Var():
                if e.name not in self._names:
                    self._names[e.name] = self._new(("var", e.name), None, (), None)
                return self._names[e.name]
            case Poly():
                terms = [
                    self.apply(
                        np.multiply, self.product([self._of(a) for a in mono]), self.const(float(c))
                    )
                    for mono, c in e.terms
                ]
                return self.fold(np.add, terms, ZERO)
            case Op() if e.name in _FOLDED:
                return self.fold(_FOLDED[e.name], [self._of(a) for a in e.args], ZERO)
            case Op() if e.name in _FUNCTIONS:
                return self.apply(_FUNCTIONS[e.name], *(self._of(a) for a in e.args))
        raise AnsorliteError(f"{e} is no integer expression over variables")

    @property
    def row(self) -> npt.NDArray[np.intp]:
        """The row of `run`'s result that has each value, by its number."""
        return self._scheduled().row

    def run(self, columns: Mapping[str, Any], n: int) -> Values:
        """float64[rows, n]: all values; `columns` gives int64[n] per hole variable.

        Raises AnsorliteError for a variable without a column.
        """
        plan = self._scheduled()
        out = np.empty((len(self._made), n))
        first = len(plan.constants)
        out[:first] = plan.constants
        for k, name in enumerate(self._names, first):
            if name not in columns:
                raise AnsorliteError(f"no value is given for {name}")
            out[k] = columns[name]
        with np.errstate(all="ignore"):
            for fn, begin, end, operands in plan.steps:
                given = [out.take(rows, axis=0) for rows in operands]
                if isinstance(fn, np.ufunc):
                    fn(*given, out=out[begin:end])
                else:
                    out[begin:end] = fn(*given)
        return out

    def _scheduled(self) -> "_Schedule":
        if self._schedule is None:
            self._schedule = _Schedule(self._made, self._depth, self._value, self._names)
        return self._schedule


class _Schedule:
    """The order of evaluation: constants, columns, then groups of equal operations by depth.

    `steps`: (function, first row, end, rows of each operand).
    """

    def __init__(
        self,
        made: Sequence[tuple[Function | None, tuple[int, ...]]],
        depth: Sequence[int],
        value: Sequence[float | None],
        names: Mapping[str, int],
    ) -> None:
        constants = [k for k, v in enumerate(value) if v is not None]
        self.constants = np.array([[value[k]] for k in constants], np.float64)
        place: dict[Any, int] = {}
        kinds = [-1 if fn is None else place.setdefault(fn, len(place)) for fn, _ in made]
        order = sorted((depth[k], kinds[k], k) for k in range(len(made)) if kinds[k] >= 0)
        self.row = np.empty(len(made), np.intp)
        self.row[[*constants, *names.values(), *(k for *_, k in order)]] = np.arange(len(made))
        self.steps: list[tuple[Function, int, int, npt.NDArray[np.intp]]] = []
        begin = len(constants) + len(names)
        functions = list(place)
        for (_, kind), group in groupby(order, lambda entry: entry[:2]):
            rows = self.row[[made[k][1] for *_, k in group]].T
            self.steps.append((functions[kind], begin, begin + rows.shape[1], np.ascontiguousarray(rows)))
            begin += rows.shape[1]
