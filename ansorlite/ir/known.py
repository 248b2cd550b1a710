"""Proofs about integer expressions at one place of a computation.

In: intervals of variables, and conditions that hold at the place (conditions of selects, loop
extents). Out: whether an index stays inside [0, extent). Three methods, cheapest first: interval
arithmetic; linear reasoning with the conditions (a goal plus multiples of known inequalities, with
operations expanded, see `ir.linear`); evaluation at every point where the points are few.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import Const, Expr, Load, Monomial, Op, Var, compare, is_int, terms_of
from ansorlite.ir.linear import (
    Linear,
    facts_of,
    inequalities,
    plus,
    quotient,
    quotients,
    reduced,
    remainder,
)
from ansorlite.ir.literals import range_of
from ansorlite.ir.logic import negate
from ansorlite.ir.ranges import INF, Evaluator, Interval
from ansorlite.ir.traverse import below, walk

MAX_POINTS = 1 << 20  # most points at which an index is evaluated
CHEAP_POINTS = 1 << 12  # so few points are evaluated before linear reasoning is tried
MAX_TRIES = 600  # most inequalities examined for one index
MAX_DEPTH = 5  # most conditions and operations combined for one inequality
DTYPE_RANGES: dict[str, Interval] = {
    "bool": (0, 1),
    **{k: range_of(k) for k in ("int8", "uint8", "int16", "uint16", "int32", "uint32")},
}
ANYTHING = (-INF, INF)


@dataclass(frozen=True)
class Verdict:
    """Result of a proof: bounds of the index; "outside" if a counterexample was found."""

    kind: Literal["inside", "outside", "unknown"]
    low: int
    high: int


class Known:
    """Facts at one place: intervals and conditions; `assume` and `loop` give facts inside.

    Consequences of the conditions are derived only when intervals alone do not prove a query.
    """

    def __init__(
        self, ranges: Mapping[str, Interval], values: Callable[[Load], Interval] | None = None
    ) -> None:
        """`ranges`: intervals of variables; `values`: interval of a load (default: its dtype)."""
        self.ranges, self._values = dict(ranges), values or anything
        self._parent: Known | None = None
        self._added: tuple[Expr, ...] = ()
        self._derived = True
        self._spans: dict[Expr, Interval] = {}  # intervals of atoms that follow from conditions
        # Inequalities (each >= 0) of this place, without those of enclosing places.
        self._facts: list[Linear] = []
        self._conditions: list[Expr] = []
        self._intervals: dict[Expr, Interval] = {}
        self._left = 0

    def assume(self, *conditions: Expr) -> "Known":
        """The facts where the conditions hold too."""
        inner = Known.__new__(Known)
        inner.ranges, inner._values = self.ranges, self._values
        inner._parent, inner._added = self, conditions
        inner._derived, inner._intervals, inner._left = False, {}, 0
        return inner

    def loop(self, var: str, extent: Expr) -> "Known":
        """The facts inside `for var in range(extent)`."""
        if isinstance(extent, Const):
            inner = self.assume()
        else:
            inner = self.assume(compare("lt", Var(var), extent))
        high = self.interval(extent)[1]
        inner.ranges = {**self.ranges, var: (0, max(0, high - 1))}
        return inner

    def index(self, e: Expr, extent: int) -> Verdict:
        """Verdict on whether the index lies in [0, extent) here."""
        low, high = self.interval(e)
        if low >= 0 and high < extent:
            return Verdict("inside", low, high)
        self._derive()
        low, high = self.interval(e)
        if low >= 0 and high < extent:
            return Verdict("inside", low, high)
        seen = self._evaluated(e, CHEAP_POINTS)
        if seen is None and self._linear_inside(e, low, high, extent):
            return Verdict("inside", max(low, 0), min(high, extent - 1))
        seen = seen or self._evaluated(e, MAX_POINTS)
        if seen is None:
            return Verdict("unknown", low, high)
        low, high, exact = seen
        if low >= 0 and high < extent:
            return Verdict("inside", low, high)
        return Verdict("outside" if exact else "unknown", low, high)

    def positive(self, e: Expr) -> bool:
        """True if the expression is proven to be at least 1 here."""
        if self.interval(e)[0] > 0:
            return True
        self._derive()
        return self._holds({**terms_of(e), (): terms_of(e).get((), 0) - 1})

    # ---- intervals ------------------------------------------------------------------------------

    def interval(self, e: Expr) -> Interval:
        """The tightest known interval of an integer expression; unknown ends are +-INF."""
        if isinstance(e, Const):
            return int(e.value), int(e.value)
        found = self._intervals.get(e)
        if found is None:
            for x in below(e):
                if x not in self._intervals:
                    self._intervals[x] = self._interval(x)
            found = self._intervals[e] = self._interval(e)
        return found

    def _interval(self, e: Expr) -> Interval:
        """The interval of an expression whose operands have cached intervals."""
        if isinstance(e, Const):
            return int(e.value), int(e.value)
        if isinstance(e, Var):
            found = self.ranges.get(e.name, ANYTHING)
        elif isinstance(e, Op):
            found = self._op_interval(e)
        elif isinstance(e, Load):
            found = self._values(e)
        else:
            found = self._bounds(terms_of(e))
        if self._derived and e in self._spans:
            low, high = self._spans[e]
            found = max(found[0], low), min(found[1], high)
        return found

    def _bounds(self, g: Linear) -> Interval:
        """The interval of a linear form."""
        low = high = 0
        for mono, c in g.items():
            a, b = self._product(mono)
            low, high = low + min(a * c, b * c), high + max(a * c, b * c)
        return max(low, -INF), min(high, INF)

    def _product(self, mono: Monomial) -> Interval:
        """The interval of a monomial."""
        low = high = 1
        for atom, times in itertools.groupby(mono):
            power = len(list(times))
            a, b = self.interval(atom)
            ends = [a**power, b**power]
            if power % 2 == 0 and a < 0 < b:
                ends.append(0)
            products = [low * min(ends), low * max(ends), high * min(ends), high * max(ends)]
            low, high = min(products), max(products)
        return low, high

    def _op_interval(self, e: Op) -> Interval:
        args = [self.interval(a) if is_int(a) else ANYTHING for a in e.args]
        match e.name:
            case "min":
                return min(a for a, _ in args), min(b for _, b in args)
            case "max":
                return max(a for a, _ in args), max(b for _, b in args)
            case "abs" if is_int(e):
                a, b = args[0]
                return (0 if a <= 0 <= b else min(abs(a), abs(b))), max(abs(a), abs(b))
            case "select":
                return min(args[1][0], args[2][0]), max(args[1][1], args[2][1])
            case "floordiv" | "ceildiv" if args[1][0] > 0:
                (a, b), (c, d) = args
                if e.name == "floordiv":
                    return min(a // c, a // d), max(b // c, b // d)
                return min(-(-a // c), -(-a // d)), max(-(-b // c), -(-b // d))
            case "mod" if args[1][0] > 0:
                (a, b), (c, d) = args
                if c == d and a // c == b // c:
                    return a % c, b % c
                return (0, min(b, d - 1)) if a >= 0 else (0, d - 1)
            case "cast" if is_int(e):
                whole = DTYPE_RANGES.get(e.dtype, ANYTHING)
                of = e.args[0]
                a, b = args[0] if is_int(of) else DTYPE_RANGES.get(of.dtype, ANYTHING)
                return (a, b) if whole[0] <= a and b <= whole[1] else whole
            case _:
                return ANYTHING

    # ---- conditions -----------------------------------------------------------------------------

    def _derive(self) -> None:
        """Derive the consequences of the conditions, from the outermost place inwards."""
        path: list[Known] = []
        here: Known | None = self
        while here is not None and not here._derived:
            path.append(here)
            here = here._parent
        for known in reversed(path):
            above = known._parent
            assert above is not None
            known._spans, known._facts, known._conditions = dict(above._spans), [], []
            known._derived = True
            known._intervals = {}
            for condition in known._added:
                known._learn(condition)

    def _places(self) -> Iterator["Known"]:
        """This place and the enclosing places, innermost first."""
        here: Known | None = self
        while here is not None:
            yield here
            here = here._parent

    def _learn(self, condition: Expr) -> None:
        """Record a condition and the inequalities that follow from the condition."""
        for part in facts_of(condition):
            self._conditions.append(part)
            for g in inequalities(part):
                self._learn_inequality(g, 3)

    def _learn_inequality(self, g: Linear, depth: int) -> None:
        """Record g >= 0 and its consequences up to `depth`, as intervals where possible."""
        g = reduced(g)
        if not any(g):
            return
        for mono, c in g.items() if depth else ():
            atom = mono[0] if len(mono) == 1 else None
            if isinstance(atom, Op):
                for weaker in self._weaker(g, atom, mono, c):
                    self._learn_inequality(weaker, depth - 1)
        self._narrow(g)
        if len(g) - (() in g) > 1:
            self._facts.append(g)

    def _narrow(self, g: Linear) -> None:
        """Narrow the interval of each atom of g >= 0 by the intervals of the other atoms."""
        for mono, c in g.items():
            if len(mono) != 1 or isinstance(mono[0], Const):
                continue
            rest = self._bounds({m: k for m, k in g.items() if m != mono})[1]
            if rest >= INF:
                continue
            low, high = self._spans.get(mono[0], ANYTHING)
            if c > 0:  # c * atom >= -rest
                low = max(low, -(rest // c))
            else:
                high = min(high, rest // -c)
            self._spans[mono[0]] = low, high
            self._intervals.clear()

    def _weaker(self, g: Linear, atom: Op, mono: Monomial, k: int) -> Iterator[Linear]:
        """Consequences of rest + k * atom >= 0 with the operation `atom` expanded."""
        rest = {m: c for m, c in g.items() if m != mono}
        match atom.name:
            case "floordiv" | "ceildiv" if isinstance(atom.args[1], Const) and abs(k) == 1:
                yield quotient(rest, atom, k)
            case "mod" if isinstance(atom.args[1], Const):
                yield plus(rest, remainder(atom), k)
            case "min" | "max" if (atom.name == "min") == (k > 0):
                for a in atom.args:
                    yield plus(rest, terms_of(a), k)
            # One of the alternatives holds; impossible alternatives are dropped.
            case "min" | "max":
                ways = [plus(rest, terms_of(a), k) for a in atom.args]
                possible = [w for w in ways if self._bounds(w)[1] >= 0]
                if len(possible) == 1:
                    yield possible[0]

    # ---- linear reasoning -----------------------------------------------------------------------

    def _linear_inside(self, e: Expr, low: int, high: int, extent: int) -> bool:
        """True if 0 <= e < extent is proven by linear reasoning."""
        g = terms_of(e)
        self._left = MAX_TRIES
        if low < 0 and not self._holds(g):
            return False
        self._left = MAX_TRIES
        return high < extent or self._holds(plus({(): extent - 1}, g, -1))

    def _holds(self, g: Linear, depth: int = MAX_DEPTH) -> bool:
        """True if g >= 0 is proven with at most `depth` further conditions and operations."""
        if self._bounds(g)[0] >= 0:
            return True
        if depth == 0 or self._left <= 0:
            return False
        self._left -= 1
        for fact in (f for place in self._places() for f in place._facts):
            for mono, p in g.items():
                q = fact.get(mono, 0)
                if mono and p * q > 0:
                    less = plus({m: c * abs(q) for m, c in g.items()}, fact, -abs(p))
                    if len(less) < len(g) + len(fact) and self._holds(reduced(less), depth - 1):
                        return True
        return any(
            self._holds_by_definition(g, mono, k, depth)
            for mono, k in g.items()
            if len(mono) == 1 and isinstance(mono[0], Op)
        )

    def _holds_by_definition(self, g: Linear, mono: Monomial, k: int, depth: int) -> bool:
        """True if rest + k * atom >= 0 is proven by the definition of the operation `atom`."""
        atom = mono[0]
        assert isinstance(atom, Op)
        rest = {m: c for m, c in g.items() if m != mono}
        match atom.name:
            case "floordiv" | "ceildiv" if isinstance(atom.args[1], Const):
                return any(self._holds(reduced(w), depth - 1) for w in quotients(rest, atom, k))
            case "mod" if isinstance(atom.args[1], Const):
                return self._holds(plus(rest, remainder(atom), k), depth - 1)
            case "min" | "max":
                every = all if (atom.name == "min") == (k > 0) else any
                return every(self._holds(plus(rest, terms_of(a), k), depth - 1) for a in atom.args)
            case "select":
                return all(
                    inner._holds_on_branch(plus(rest, terms_of(x), k), depth - 1)
                    for inner, x in branches(self, atom)
                )
        return False

    def _holds_on_branch(self, g: Linear, depth: int) -> bool:
        """True if g >= 0 is proven on one branch of a select, with a reduced budget."""
        self._derive()
        self._left = MAX_TRIES // 8
        return self._holds(g, depth)

    # ---- evaluation -----------------------------------------------------------------------------

    def _evaluated(self, e: Expr, limit: int) -> tuple[int, int, bool] | None:
        """(lowest, highest, all conditions considered) over all points; None if too many."""
        if any(isinstance(x, Load) for x in walk(e)):
            return None
        names, tests, exact = set(e.free), list[Expr](), True
        left = [c for place in self._places() for c in place._conditions]
        if self._points(names) > limit:
            return None
        grown = True
        while grown:
            grown = False
            for test in left[:]:
                if not test.free & names:
                    continue
                left.remove(test)
                wider = names | test.free
                if self._points(wider) > limit or any(isinstance(x, Load) for x in walk(test)):
                    exact = False
                    continue
                tests.append(test)
                grown = grown or wider > names
                names = wider
        # A condition on other variables may imply that the place is never reached.
        exact = exact and not left
        return self._at_points(e, sorted(names), tests, exact)

    def _points(self, names: set[str]) -> int:
        """Number of combinations of values of the variables."""
        spans = [self.interval(Var(n)) for n in names]
        return math.prod(max(0, high - low + 1) for low, high in spans)

    def _at_points(
        self, e: Expr, names: list[str], tests: list[Expr], exact: bool
    ) -> tuple[int, int, bool] | None:
        """Minimum and maximum of `e` over the points where the tests hold."""
        env: dict[str, npt.NDArray[np.int64]] = {}
        for d, n in enumerate(names):
            low, high = self.interval(Var(n))
            shape = [-1 if k == d else 1 for k in range(len(names))]
            env[n] = np.arange(low, high + 1, dtype=np.int64).reshape(shape)
        shape = [env[n].size for n in names]
        value = Evaluator(env)
        try:
            with np.errstate(all="ignore"):
                mask = np.ones(shape, np.bool_)
                for test in tests:
                    mask &= np.asarray(value(test), np.bool_)
                found = np.broadcast_to(np.asarray(value(e), np.int64), shape)[mask]
        except (AnsorliteError, ArithmeticError):
            return None
        if not found.size:  # the place is never reached
            return 0, -1, True
        return int(found.min()), int(found.max()), exact


def anything(e: Expr) -> Interval:
    """The interval of the dtype of an expression."""
    return DTYPE_RANGES.get(e.dtype, ANYTHING)


def end(n: int) -> str:
    """An interval end as text for messages."""
    return "anywhere" if abs(n) >= INF else str(n)


def branches(known: Known, e: Op) -> Iterator[tuple[Known, Expr]]:
    """(facts, value) of the two branches of a select."""
    cond, a, b = e.args
    yield known.assume(cond), a
    yield known.assume(negate(cond)), b


def reads(e: Expr, known: Known) -> Iterator[tuple[Load, Known]]:
    """The loads of an expression, each with the facts at its place.

    A select evaluates only the taken branch; `and` and `or` evaluate all operands.
    """
    stack: list[tuple[Expr, Known]] = [(e, known)]
    while stack:
        x, here = stack.pop()
        if isinstance(x, Load):
            yield x, here
            stack.extend((i, here) for i in x.indices)
        elif isinstance(x, Op) and x.name == "select":
            stack.append((x.args[0], here))
            stack.extend((value, inner) for inner, value in branches(here, x))
        elif isinstance(x, Op):
            stack.extend((a, here) for a in x.args)
        elif not isinstance(x, Const | Var):
            stack.extend((a, here) for m in terms_of(x) for a in m)
