"""Random integer trees for the tests of `ir`: drawing, conversion to `Expr`, evaluation in Python.

A tree is nested tuples: ("var", name), ("const", c) or (operation, tree, ...). Trees are never
simplified, so the simplified expression of `build` can be compared with the value of its tree.
Divisors are positive by construction: constants, holes, products and sums of these. The first
operand of `select` is a condition.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ansorlite.ir.expr import Expr, Var, ceildiv, compare, floordiv, mod, wrap
from ansorlite.ir.extremum import maximum, minimum
from ansorlite.ir.logic import all_of, any_of, negate, select

Tree = tuple[Any, ...]

HOLES = ("h0", "h1", "h2")
LOOPS = ("i0", "i1")
VARIABLES: dict[str, Expr] = {
    **{name: Var(name, "hole") for name in HOLES},
    **{name: Var(name, "loop") for name in LOOPS},
}
BUILD: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": floordiv,
    "ceildiv": ceildiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
    "select": select,
    "lt": lambda a, b: compare("lt", a, b),
    "le": lambda a, b: compare("le", a, b),
    "eq": lambda a, b: compare("eq", a, b),
    "ne": lambda a, b: compare("ne", a, b),
    "and": all_of,
    "or": any_of,
    "not": negate,
}
PLAIN: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "select": lambda c, a, b: a if c else b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
}
ARITHMETIC = ("add", "sub", "mul", "min", "max")
DIVIDING = ("floordiv", "ceildiv", "mod")
COMPARING = ("lt", "le", "eq", "ne")


def build(tree: Tree, leaves: Mapping[str, Expr]) -> Expr:
    """The expression of a tree, by the constructors; `leaves` maps variables to expressions."""
    if tree[0] == "const":
        return wrap(tree[1])
    if tree[0] == "var":
        return leaves[tree[1]]
    return wrap(BUILD[tree[0]](*(build(t, leaves) for t in tree[1:])))


def value(tree: Tree, env: Mapping[str, int]) -> int:
    """The value of a tree, in Python's unbounded integers."""
    if tree[0] == "const":
        return int(tree[1])
    if tree[0] == "var":
        return env[tree[1]]
    return int(PLAIN[tree[0]](*(value(t, env) for t in tree[1:])))


def mirror(tree: Tree, rng: np.random.Generator) -> Tree:
    """The tree with operands of commutative operations swapped and regrouped at random."""
    if tree[0] in ("const", "var"):
        return tree
    name, *args = tree[0], *(mirror(t, rng) for t in tree[1:])
    if name in ("add", "mul", "min", "max"):
        a, b = args if rng.random() < 0.5 else reversed(args)
        if a[0] == name and rng.random() < 0.5:
            return (name, a[1], (name, a[2], b))
        return (name, a, b)
    return (name, *args)


# ---- drawing by numpy ---------------------------------------------------------------------------


def draw_tree(rng: np.random.Generator, depth: int = 4) -> Tree:
    """A tree over all variables, at most `depth` operations deep (conditions not counted)."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.4:
            return ("const", int(rng.integers(-9, 17)))
        return ("var", str(rng.choice((*HOLES, *LOOPS))))
    name = str(rng.choice((*ARITHMETIC, *DIVIDING, "select")))
    first = draw_tree(rng, depth - 1)
    if name == "select":
        return (name, draw_condition(rng, depth - 1), first, draw_tree(rng, depth - 1))
    return (name, first, draw_divisor(rng) if name in DIVIDING else draw_tree(rng, depth - 1))


def draw_condition(rng: np.random.Generator, depth: int) -> Tree:
    """A condition: a comparison, or several joined by and, or, not."""
    kind = rng.random()
    if depth < 1 or kind < 0.7:
        return (str(rng.choice(COMPARING)), draw_tree(rng, depth), draw_tree(rng, depth))
    if kind < 0.8:
        return ("not", draw_condition(rng, depth - 1))
    parts = draw_condition(rng, depth - 1), draw_condition(rng, depth - 1)
    return (str(rng.choice(["and", "or"])), *parts)


def draw_divisor(rng: np.random.Generator) -> Tree:
    """A positive tree: often a constant, else holes, products and sums."""
    if rng.random() < 0.6:
        return ("const", int(rng.integers(1, 13)))
    if rng.random() < 0.6:
        return ("var", str(rng.choice(HOLES)))
    return (str(rng.choice(["add", "mul"])), draw_divisor(rng), draw_divisor(rng))


def draw_positive(rng: np.random.Generator) -> Expr:
    """A polynomial over the holes; its coefficients make it at least 1."""
    h = VARIABLES[str(rng.choice(HOLES))]
    return h * int(rng.integers(1, 4)) * VARIABLES[str(rng.choice(HOLES))] + int(rng.integers(0, 5))


def draw_env(rng: np.random.Generator) -> dict[str, int]:
    """Values of all variables: holes from 1, loops from 0; small values are frequent."""
    top = int(rng.choice([2, 4, 16, 100]))
    return {
        **{name: int(rng.integers(1, top + 1)) for name in HOLES},
        **{name: int(rng.integers(0, top)) for name in LOOPS},
    }


# ---- drawing by hypothesis ----------------------------------------------------------------------


def _grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    condition = st.tuples(st.sampled_from(COMPARING), inner, inner)
    return (
        st.tuples(st.sampled_from(ARITHMETIC), inner, inner)
        | st.tuples(st.sampled_from(DIVIDING), inner, DIVISORS)
        | st.tuples(st.just("select"), condition, inner, inner)
    )


_HOLE = st.sampled_from(HOLES).map(lambda name: ("var", name))
DIVISORS: st.SearchStrategy[Tree] = st.recursive(
    st.integers(1, 12).map(lambda c: ("const", c)) | _HOLE,
    lambda inner: st.tuples(st.sampled_from(["add", "mul"]), inner, inner),
    max_leaves=3,
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.integers(-9, 16).map(lambda c: ("const", c))
    | st.sampled_from((*HOLES, *LOOPS)).map(lambda name: ("var", name)),
    _grow,
    max_leaves=12,
)
ENVS: st.SearchStrategy[dict[str, int]] = st.fixed_dictionaries(
    {**dict.fromkeys(HOLES, st.integers(1, 40)), **dict.fromkeys(LOOPS, st.integers(0, 40))}
)
