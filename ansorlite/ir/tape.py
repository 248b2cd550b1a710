"""Values that are computed from hole columns: expressions, and operations on their values.

In: expressions over hole columns, and functions of other values, collected by a `Tape`, each once.
Out: `Arrays`, the values in an order of evaluation. `ir.evaluation` evaluates them for whole
populations. Values are float64: integers are exact up to 2**53.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import Const, Expr, Op, Poly, Var
from ansorlite.ir.traverse import below

Values = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]
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
COLUMN, CONSTANT = -1, -2


class Tape:
    """Values by number.

    `of`, `const` and `apply` return the number of a value. Example: `t = Tape(); k =
    t.apply(np.multiply, t.of(extent), t.const(4.0)); Evaluation([t], [columns], [n]).of(0, k)`.
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}  # by expression, or function and operands
        self._value: list[float | None] = []  # of constants
        self._made: list[tuple[Function | None, tuple[int, ...]]] = []
        self._depth: list[int] = []
        self._names: dict[str, int] = {}  # of columns
        self._arrays: Arrays | None = None
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

    def arrays(self) -> "Arrays":
        """The values as arrays; none may be added afterwards."""
        if self._arrays is None:
            self._arrays = Arrays.of(self._made, self._value, self._depth, tuple(self._names))
        return self._arrays


class Arrays(NamedTuple):
    """The values of a tape by number.

    `kind` is the place in `functions` (with `arity`, the numbers of operands), or CONSTANT or
    COLUMN. `operands`, intp[most operands, values], is 0 where there is none. `constants` and
    `names` (of columns) are in the order of their values.
    """

    depth: Numbers
    kind: Numbers
    operands: Numbers
    functions: tuple[Function, ...]
    arity: tuple[int, ...]
    constants: Values
    names: tuple[str, ...]

    @staticmethod
    def of(
        made: Sequence[tuple[Function | None, tuple[int, ...]]],
        value: Sequence[float | None],
        depth: Sequence[int],
        names: tuple[str, ...],
    ) -> "Arrays":
        """From each value's function and operands, or constant, and its depth."""
        place: dict[Function, int] = {}
        arity: list[int] = []
        kind = np.empty(len(made), np.intp)
        operands = np.zeros((max(len(args) for _, args in made), len(made)), np.intp)
        for k, (fn, args) in enumerate(made):
            if fn is None:
                kind[k] = COLUMN if value[k] is None else CONSTANT
                continue
            if fn not in place:
                place[fn] = len(place)
                arity.append(len(args))
            kind[k] = place[fn]
            operands[: len(args), k] = args
        constants = np.array([v for v in value if v is not None], np.float64)
        depths = np.array(depth, np.intp)
        return Arrays(depths, kind, operands, tuple(place), tuple(arity), constants, names)
