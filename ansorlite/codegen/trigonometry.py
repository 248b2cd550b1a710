"""Trigonometric and hyperbolic functions and their inverses of float, as LLVM IR.

In: an IRBuilder and a value of type `float` or a vector of these. Out: the value of the
function, computed in double: polynomials of a reduced argument with relative errors of at most
2^-34, so that rounding to float makes nearly all of the error, which is below 0.51 ulp for all
inputs. Infinities, NaN, signed zeros and subnormal numbers are as in C. Coefficients are those of
interpolation at Chebyshev nodes in extended precision, lowest power first.
"""

import math
from collections.abc import Callable

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.emit_index import declared
from ansorlite.codegen.ir_text import I1
from ansorlite.codegen.vector_math import (
    LOG2_ATANH,
    LOG2_E,
    B,
    V,
    bits_of,
    call_math,
    exp2_double,
    fma,
    libm,
    log2_double,
    polynomial,
    shaped,
    splat,
)

# pi/2 in three parts of 26, 26 and 53 bits: a multiple n < 2^27 of the first two is exact.
HALF_PI = (1.5707963109016418, 1.5893254712295857e-08, 6.123233995736766e-17)
REDUCED = 1e8  # largest |x| that is reduced by these parts; libm's functions take larger ones
LN2 = math.log(2.0)
# sin(r) = r + r^3 p(r^2) and cos(r) = 1 - r^2/2 + r^4 q(r^2) on |r| <= pi/4; 2^-35, 2^-39.
SIN_P = (-0.16666666663853044, 0.008333331873837092, -0.00019840086263756243, 2.72498646551735e-06)
COS_Q = (
    0.041666666664319355,
    -0.0013888887671290604,
    2.4800599984212547e-05,
    -2.7300908224501115e-07,
)
# asin(a) = a + a^3 p(a^2) on 0 <= a <= 1/2; 2^-38.
ASIN_P = (
    0.16666666665494023,
    0.07500000599311187,
    0.04464235813380055,
    0.030397643579454067,
    0.02213232392811489,
    0.01930703184337728,
    0.0054407420802733844,
    0.0293082606508992,
)
# atan(a) = a + a^3 p(a^2) on 0 <= a <= tan(pi/8); 2^-38.
ATAN_P = (
    -0.33333333331439496,
    0.1999999891669056,
    -0.1428561246527502,
    0.11107493853427854,
    -0.09028967562064785,
    0.07135234647253864,
    -0.0404303369576009,
)
# sinh(a) = a + a^3 p(a^2) on 0 <= a <= 1; 2^-41.
SINH_P = (
    0.16666666666698424,
    0.00833333331745799,
    0.00019841282533939164,
    2.7553769549942125e-06,
    2.5456747356737408e-08,
)
# asinh(a) = a + a^3 p(a^2) on 0 <= a <= 1/2; 2^-36.
ASINH_P = (
    -0.16666666662314175,
    0.07499998290359462,
    -0.044641751128902646,
    0.03035482145338307,
    -0.02205010330552565,
    0.015327173950579377,
    -0.007159924863930091,
)
# atanh(a) = a p(a^2) on 0 <= a <= 3 - sqrt(8), from log2((1 + a) / (1 - a)); 2^-37.
ATANH_CUT = 0.17
ATANH_P = tuple(c * LN2 / 2 for c in LOG2_ATANH)


def sin(b: B, x: V) -> V:
    """Sine of x radians, however large; float: error below 0.51 ulp; NaN for infinities."""
    return _of_angle(b, "sin", x, 0)


def cos(b: B, x: V) -> V:
    """Cosine of x radians, however large; float: error below 0.51 ulp; NaN for infinities."""
    return _of_angle(b, "cos", x, 1)


def tan(b: B, x: V) -> V:
    """Tangent of x radians, however large; float: error below 0.51 ulp; NaN for infinities."""
    return _of_angle(b, "tan", x, 0)


def asin(b: B, x: V) -> V:
    """Arc sine; float: error below 0.51 ulp; NaN beyond 1."""
    wide, a, small = _split(b, x, 0.5)
    part, _ = _arc(b, a, small)
    rest = b.fsub(splat(wide, math.pi / 2), b.fadd(part, part))
    return _odd(b, b.select(small, part, rest), x)


def acos(b: B, x: V) -> V:
    """Arc cosine; float: error below 0.51 ulp; NaN beyond 1."""
    wide, a, small = _split(b, x, 0.5)
    part, twice = _arc(b, a, small)
    near = b.fsub(splat(wide, math.pi / 2), call_math(b, "llvm.copysign", part, wide))
    negative = b.fcmp_ordered("<", wide, splat(wide, 0.0))
    far = b.select(negative, b.fsub(splat(wide, math.pi), twice), twice)
    return b.fptrunc(b.select(small, near, far), x.type)


def atan(b: B, x: V) -> V:
    """Arc tangent; float: error below 0.51 ulp.

    atan(a) = pi/4 + atan((a - 1) / (a + 1)) = pi/2 + atan(-1 / a).
    """
    cut = math.tan(math.pi / 8)
    wide, a, small = _split(b, x, cut)
    one, zero = splat(wide, 1.0), splat(wide, 0.0)
    large = b.fcmp_ordered(">", a, splat(wide, 1.0 / cut))
    top = b.select(small, a, b.select(large, splat(wide, -1.0), b.fsub(a, one)))
    bottom = b.select(small, one, b.select(large, a, b.fadd(a, one)))
    base = b.select(large, splat(wide, math.pi / 2), splat(wide, math.pi / 4))
    part = _from_cubes(b, b.fdiv(top, bottom), ATAN_P)
    return _odd(b, b.fadd(b.select(small, zero, base), part), x)


def sinh(b: B, x: V) -> V:
    """Hyperbolic sine; float: error below 0.51 ulp; infinite beyond 89.41."""
    wide, a, small = _split(b, x, 1.0)
    e, inverse = _exponentials(b, a)
    large = b.fmul(b.fsub(e, inverse), splat(wide, 0.5))
    return _odd(b, b.select(small, _from_cubes(b, a, SINH_P), large), x)


def cosh(b: B, x: V) -> V:
    """Hyperbolic cosine; float: error below 0.51 ulp; infinite beyond 89.41."""
    wide, a, _ = _split(b, x, 0.0)
    e, inverse = _exponentials(b, a)
    return b.fptrunc(b.fmul(b.fadd(e, inverse), splat(wide, 0.5)), x.type)


def asinh(b: B, x: V) -> V:
    """Inverse hyperbolic sine; float: error below 0.51 ulp."""
    wide, a, small = _split(b, x, 0.5)
    root = call_math(b, "llvm.sqrt", fma(b, a, a, splat(wide, 1.0)))
    large = _natural(b, b.fadd(a, root))
    return _odd(b, b.select(small, _from_cubes(b, a, ASINH_P), large), x)


def acosh(b: B, x: V) -> V:
    """Inverse hyperbolic cosine; float: error below 0.51 ulp; NaN below 1."""
    wide = b.fpext(x, shaped(x.type, ir.DOUBLE))
    one = splat(wide, 1.0)
    below = b.fsub(wide, one)
    root = call_math(b, "llvm.sqrt", b.fmul(below, b.fadd(wide, one)))
    y = _natural(b, b.fadd(wide, root))
    y = b.select(b.fcmp_ordered("<", wide, one), splat(wide, math.nan), y)
    return b.fptrunc(y, x.type)


def atanh(b: B, x: V) -> V:
    """Inverse hyperbolic tangent; float: error below 0.51 ulp; infinite at 1, NaN beyond."""
    wide, a, small = _split(b, x, ATANH_CUT)
    one = splat(wide, 1.0)
    y = _natural(b, b.fdiv(b.fadd(one, a), b.fsub(one, a)))
    y = b.fmul(y, splat(wide, 0.5))
    y = b.select(b.fcmp_ordered(">", a, one), splat(wide, math.nan), y)
    near = b.fmul(a, polynomial(b, b.fmul(a, a), ATANH_P))
    return _odd(b, b.select(small, near, y), x)


def _of_angle(b: B, name: str, x: V, quarters: int) -> V:
    """sin(x + quarters * pi/2), or tan(x): x less multiples of pi/2, or libm for very large |x|."""
    wide = b.fpext(x, shaped(x.type, ir.DOUBLE))
    magic = splat(wide, 1.5 * 2.0**52)  # a sum with it holds the rounded integer in its low bits
    shifted = fma(b, wide, splat(wide, 2.0 / math.pi), magic)
    whole, r = b.fsub(shifted, magic), wide
    for part in HALF_PI:
        r = fma(b, whole, splat(wide, -part), r)
    square = b.fmul(r, r)
    sine = _from_cubes(b, r, SIN_P)
    tail = fma(b, square, polynomial(b, square, COS_Q), splat(wide, -0.5))
    cosine = fma(b, square, tail, splat(wide, 1.0))
    count = bits_of(b, shifted)
    if quarters:
        count = b.add(count, splat(count, quarters))
    odd = b.icmp_signed("!=", b.and_(count, splat(count, 1)), splat(count, 0))
    if name == "tan":
        top, bottom = b.select(odd, b.fneg(cosine), sine), b.select(odd, sine, cosine)
        near = b.fdiv(top, bottom)
    else:
        sign = b.shl(b.and_(count, splat(count, 2)), splat(count, 62))
        near = b.bitcast(b.xor(bits_of(b, b.select(odd, cosine, sine)), sign), wide.type)
    size = call_math(b, "llvm.fabs", wide)
    far = b.fcmp_ordered(">", size, splat(wide, REDUCED))
    return b.fptrunc(_unless(b, far, near, lambda: libm(b, name, [wide])), x.type)


def _unless(b: B, flags: V, near: V, other: Callable[[], V]) -> V:
    """`near`, or where a flag is set the value that `other` emits, which runs only if one is."""
    flag = flags
    if isinstance(flags.type, ir.VectorType):
        name = f"llvm.vector.reduce.or.v{flags.type.count}i1"
        flag = b.call(declared(b.module, name, I1, [flags.type]), [flags])
    before = b.block
    rare, join = b.append_basic_block("rare"), b.append_basic_block("join")
    b.cbranch(flag, rare, join)
    b.position_at_end(rare)
    value = b.select(flags, other(), near)
    after = b.block
    b.branch(join)
    b.position_at_end(join)
    phi = b.phi(near.type)
    phi.add_incoming(near, before)
    phi.add_incoming(value, after)
    return phi


def _split(b: B, x: V, cut: float) -> tuple[V, V, V]:
    """(x, |x|, |x| <= cut), all in double."""
    wide = b.fpext(x, shaped(x.type, ir.DOUBLE))
    a = call_math(b, "llvm.fabs", wide)
    return wide, a, b.fcmp_ordered("<=", a, splat(a, cut))


def _odd(b: B, y: V, x: V) -> V:
    """The value as float with the sign of x."""
    return call_math(b, "llvm.copysign", b.fptrunc(y, x.type), x)


def _from_cubes(b: B, a: V, coefficients: tuple[float, ...]) -> V:
    """a (1 + a^2 p(a^2)), which keeps the sign of zeros."""
    square = b.fmul(a, a)
    one = splat(a, 1.0)
    return b.fmul(a, fma(b, square, polynomial(b, square, coefficients), one))


def _arc(b: B, a: V, small: V) -> tuple[V, V]:
    """(asin(r), twice that) with r = a where `small`, else sqrt((1 - a) / 2)."""
    half = splat(a, 0.5)
    root = call_math(b, "llvm.sqrt", b.fmul(b.fsub(splat(a, 1.0), a), half))
    part = _from_cubes(b, b.select(small, a, root), ASIN_P)
    return part, b.fadd(part, part)


def _exponentials(b: B, a: V) -> tuple[V, V]:
    """exp(a) and exp(-a) for a >= 0."""
    e = exp2_double(b, b.fmul(a, splat(a, LOG2_E)))
    return e, b.fdiv(splat(a, 1.0), e)


def _natural(b: B, x: V) -> V:
    """The natural logarithm of a double that is no subnormal number."""
    return b.fmul(log2_double(b, x), splat(x, LN2))
