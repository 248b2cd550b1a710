"""Arithmetic element by element: sums, products, quotients, remainders, powers, bits.

Operands broadcast as in numpy. Integers wrap; division of integers truncates towards zero, as in
ONNX, and by zero it gives zero: no input stops the processor.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.elementwise import broadcast_type, by_element, by_numpy
from ansorlite.graph.ops.op import Arrays, ElementFn, Meaning, Op, Trait, Types, times
from ansorlite.graph.types import Array, Attrs, TensorType
from ansorlite.ir.expr import Const, Expr, is_float

Scalars = Sequence[Expr]
POWER_BITS = 6  # of integer exponents: an exponent of 64 or more overflows every integer


def _integers(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of operands of one dtype, which must be an integer's."""
    full = broadcast_type(attrs, types)
    if "int" not in full.dtype:
        raise ModelError(f"operands are {full.dtype}, not integers")
    return full


def divide(a: Any, b: Any) -> Array:
    """Integers truncate towards zero, as in ONNX; an integer divided by zero is zero."""
    with np.errstate(all="ignore"):
        if a.dtype.kind == "f":
            return np.asarray(a / b)
        down = a // b  # numpy's: towards minus infinity, 0 for a divisor of 0
        up = (down * b != a) & ((a < 0) != (b < 0)) & (b != 0)
        return np.asarray(down + up.astype(a.dtype))


def _quotient(a: Expr, b: Expr) -> Expr:
    """floor(a / b) of int64; 0 for a divisor of 0, and -a, which may wrap, for one of -1."""
    if isinstance(b, Const):
        return te.const(0, "int64") if b.value == 0 else -a if b.value == -1 else a // b
    plain = te.any(te.equal(b, 0), te.equal(b, -1))
    # Division by 0, and of the least integer by -1, is a fault of the processor: never done.
    down = a // te.select(plain, te.const(1, "int64"), b)
    return te.select(plain, te.select(te.equal(b, 0), te.const(0, "int64"), -a), down)


def _towards_zero(a: Expr, b: Expr) -> Expr:
    """a / b of int64 without its fraction; 0 for a divisor of 0."""
    down = _quotient(a, b)
    mixed = te.any(te.all(a < 0, b > 0), te.all(a > 0, b < 0))
    return te.select(te.all(mixed, te.not_equal(down * b, a)), down + 1, down)


def _wide_integers(xs: Scalars) -> list[Expr]:
    """Integers as int64, where -2^31 / -1 is representable; simplifications stop at the casts."""
    return [te.cast(x, "int64") for x in xs]


def _divide_element(attrs: Attrs, xs: Scalars) -> Expr:
    """Integers truncate towards zero; an integer divided by zero is zero."""
    if is_float(xs[0]):
        return xs[0] / xs[1]
    return te.cast(_towards_zero(*_wide_integers(xs)), xs[0].dtype)


def _modulo(attrs: Attrs, xs: Arrays) -> Array:
    """The remainder, with the divisor's sign or, with `fmod`, the dividend's; 0 modulo 0."""
    with np.errstate(all="ignore"):
        return np.asarray((np.fmod if attrs["fmod"] else np.mod)(*xs))


def _modulo_type(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of numbers of one dtype."""
    full = broadcast_type(attrs, types)
    return full if full.dtype.startswith("float") else _integers(attrs, types)


def _modulo_element(attrs: Attrs, xs: Scalars) -> Expr:
    """a - a/b*b, with the sign of b, or with `fmod` of a; 0 for integers and a divisor of 0."""
    if is_float(xs[0]):
        rest, zero = te.fmod(*xs), te.const(0, xs[0].dtype)
        other = te.any(te.all(rest < zero, xs[1] > zero), te.all(rest > zero, xs[1] < zero))
        return rest if attrs["fmod"] else te.select(other, rest + xs[1], rest)
    a, b = _wide_integers(xs)
    quotient = _towards_zero(a, b) if attrs["fmod"] else _quotient(a, b)
    rest = te.select(te.equal(b, 0), te.const(0, "int64"), a - quotient * b)
    return te.cast(rest, xs[0].dtype)


def _power(attrs: Attrs, xs: Arrays) -> Array:
    """x ** y; an integer to a negative power is 1 or -1 for x of 1 or -1, else 0."""
    x, y = xs
    with np.errstate(all="ignore"):
        if x.dtype.kind == "f":
            return np.asarray(np.power(x, y))
        odd = (y % 2 != 0) & (x == -1)
        below = np.where(odd, -1, np.abs(x) == 1).astype(x.dtype)
        return np.asarray(np.where(y < 0, below, np.power(x, np.maximum(y, 0))))


def _power_element(attrs: Attrs, xs: Scalars) -> Expr:
    """x ** y; integers by squaring; negative powers of integers as `_power` has them."""
    x, y = xs
    if is_float(x):
        return te.pow(x, y)
    one, zero = te.const(1, x.dtype), te.const(0, x.dtype)
    if isinstance(y, Const) and 0 <= y.value < 8:
        out: Expr = one
        for _ in range(y.value):
            out = out * x
        return out
    odd = te.equal(y % 2, 1)
    unit = te.select(
        te.equal(x, 1), one, te.select(te.equal(x, -1), te.select(odd, -one, one), zero)
    )
    out, square = one, x
    for k in range(POWER_BITS):
        out = out * te.select(te.equal((y // 2**k) % 2, 1), square, one)
        square = square * square
    inside = te.all(y >= 0, y < 2**POWER_BITS)
    return te.select(inside, out, unit)


def _bits(name: str, fn: Any, element: Any) -> Op:
    """An operator on the bits of two integers, in two's complement."""
    return Op(
        name,
        "elementwise",
        _integers,
        by_numpy(fn),
        arity=(2, 2),
        element=by_element(element),
        traits=("commutative",),
    )


def _shift(attrs: Attrs, xs: Arrays) -> Array:
    """Bits moved; by counts that the width has not 0, or -1 of negative numbers to the right."""
    x, count = xs
    width = x.dtype.itemsize * 8
    inside = (count >= 0) & (count < width)
    held = np.where(inside, count, width - 1)
    if attrs["left"]:
        return np.asarray(np.where(inside, np.left_shift(x, held), 0)).astype(x.dtype)
    return np.asarray(np.right_shift(x, held)).astype(x.dtype)


def _shift_element(attrs: Attrs, xs: Scalars) -> Expr:
    return te.shift_left(*xs) if attrs["left"] else te.shift_right(*xs)


def _binary(
    name: str, meaning: Meaning, element: ElementFn, *traits: Trait, names: tuple[str, ...] = ()
) -> Op:
    return Op(
        name,
        "elementwise",
        broadcast_type,
        meaning,
        arity=(2, 2),
        element=element,
        names=names,
        traits=traits,
    )


OPS = (
    _binary(
        "add",
        by_numpy(np.add),
        by_element(lambda a, b: a + b),
        "commutative",
        "integer_sum",
        "keeps_not_negative",
        names=("other", "bias"),
    ),
    _binary("sub", by_numpy(np.subtract), by_element(lambda a, b: a - b), "integer_sum"),
    _binary(
        "mul",
        by_numpy(np.multiply),
        by_element(lambda a, b: a * b),
        "commutative",
        "integer_product",
        "keeps_not_negative",
        names=("other", "scale"),
    ),
    _binary("div", lambda attrs, xs: divide(*xs), _divide_element, "keeps_not_negative"),
    Op(
        "mod",
        "elementwise",
        _modulo_type,
        _modulo,
        attrs=("fmod",),
        arity=(2, 2),
        element=_modulo_element,
    ),
    Op(
        "pow",
        "elementwise",
        broadcast_type,
        _power,
        arity=(2, 2),
        element=_power_element,
        traits=("integer_product",),
        work=times(16),
    ),
    _bits("bit_and", np.bitwise_and, te.bitwise_and),
    _bits("bit_or", np.bitwise_or, te.bitwise_or),
    _bits("bit_xor", np.bitwise_xor, te.bitwise_xor),
    Op(
        "bit_shift",
        "elementwise",
        _integers,
        _shift,
        attrs=("left",),
        arity=(2, 2),
        element=_shift_element,
    ),
)
