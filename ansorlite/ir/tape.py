"""Values that are computed from hole columns: expressions, and operations on their values.

In: expressions over hole columns, and functions of other values, collected by a `Tape`, each once.
Out: `Arrays`, the values in an order of evaluation. `ir.evaluation` evaluates them for whole
populations. Values are float64: integers are exact up to 2**53.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

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
_COMMUTATIVE = frozenset((np.multiply, np.add, np.minimum, np.maximum))
ZERO, ONE = 0, 1  # numbers of the values 0 and 1
COLUMN, CONSTANT = -1, -2


class Tape:
    """Values by number.

    `of`, `const` and `apply` return the number of a value. Example: with `t = Tape()` and
    `k = t.apply(np.multiply, t.of(extent), t.const(4.0))`,
    `Evaluation([t.arrays()], [Candidates(columns, n)]).of(0, k)` is float64[n].
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}  # by expression, or function and operands
        self._value: list[float | None] = []  # of constants
        self._kind: list[int] = []
        self._operands: list[int] = []  # three of each value
        self._depth: list[int] = []
        self._functions: dict[Function, tuple[int, int]] = {}  # place and number of operands
        self._names: list[str] = []  # of columns
        self.const(0.0)
        self.const(1.0)

    def const(self, value: float) -> int:
        """A constant."""
        found = self._known.get(value)
        return self._new(value, CONSTANT, (), value) if found is None else found

    def apply(self, fn: Function, *args: int) -> int:
        """`fn` of other values. Equal functions of equal values are computed once."""
        key = (fn, *args)
        found = self._known.get(key)
        if found is None:
            found = self._simple(fn, args)
            if found is None:
                place, _ = self._functions.setdefault(fn, (len(self._functions), len(args)))
                return self._new(key, place, args, None)
            self._known[key] = found
        return found

    def _simple(self, fn: Function, args: tuple[int, ...]) -> int | None:
        """The number of an equal value without this operation, if there is one."""
        value = self._value
        known = [value[k] for k in args]
        if None not in known:
            return self.const(_value_of(fn, *known))
        if fn is where:
            chosen, a, b = args
            if a == b or value[chosen] is not None:
                return a if value[chosen] else b
            return None
        a, b = args[0], args[-1]
        if fn is np.multiply and (a < 2 or b < 2):
            return (b if a == ONE else ZERO) if a < 2 else (a if b == ONE else ZERO)
        if fn is np.add and ZERO in args:
            return b if a == ZERO else a
        if (fn is np.true_divide and b == ONE) or (a == b and fn in (np.minimum, np.maximum)):
            return a
        if fn in _COMMUTATIVE and a > b:
            return self.apply(fn, b, a)
        return None

    def _new(self, key: Any, kind: int, args: tuple[int, ...], value: float | None) -> int:
        number = self._known[key] = len(self._kind)
        self._value.append(value)
        self._kind.append(kind)
        self._operands.extend((*args, 0, 0, 0)[:3])
        self._depth.append(1 + max([self._depth[a] for a in args]) if args else 0)
        return number

    def apply_each(self, fn: Function, *args: Sequence[int] | Numbers) -> Numbers:
        """`fn` of many values at once; equal ones are not found.

        An operand after the first may be one value for all.
        """
        count = len(args[0])
        places = [np.asarray(a).tolist() * (count if len(a) != count else 1) for a in args]
        place, _ = self._functions.setdefault(fn, (len(self._functions), len(args)))
        begin, depth = len(self._kind), self._depth
        rest = [[0] * count] * (3 - len(args))
        self._operands.extend(chain.from_iterable(zip(*places, *rest, strict=True)))
        deepest = (map(depth.__getitem__, own) for own in places)
        depth.extend([1 + max(ds) for ds in zip(*deepest, strict=True)])
        self._kind.extend([place] * count)
        self._value.extend([None] * count)
        return np.arange(begin, begin + count)

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
                found = self._known.get(e.name)
                if found is None:
                    found = self._new(e.name, COLUMN, (), None)
                    self._names.append(e.name)
                return found
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
        """The values so far, as what is evaluated."""
        constants = [v for v in self._value if v is not None]
        return Arrays(
            np.array(self._depth, np.intp),
            np.array(self._kind, np.intp),
            np.array(self._operands, np.intp).reshape(-1, 3).T,
            tuple((fn, arity) for fn, (_, arity) in self._functions.items()),
            np.array(constants, np.float64),
            tuple(self._names),
        )


@dataclass(frozen=True, eq=False)
class Arrays:
    """The values of a tape by number.

    `kind` is the place in `functions` (with their numbers of operands), or CONSTANT or COLUMN.
    `operands`, intp[3, values], is 0 where there is none. `constants` and `names` (of columns) are
    in the order of their values.
    """

    depth: Numbers
    kind: Numbers
    operands: Numbers
    functions: tuple[tuple[Function, int], ...]
    constants: Values
    names: tuple[str, ...]


@lru_cache(maxsize=1 << 14)
def _value_of(fn: Function, *args: float) -> float:
    """A function of constants."""
    with np.errstate(all="ignore"):
        return float(fn(*(np.float64(v) for v in args)))
