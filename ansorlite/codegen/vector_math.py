"""Mathematical functions as LLVM IR, on scalars and on vectors of any length.

In: an IRBuilder and values of type `float`, `double` or a vector of these. Out: the value
of the function; `codegen.functions` finds functions by name. Float functions are polynomials
without branches, so they vectorise; their errors are a few units in the last place (ulp) for all
inputs, with infinities, NaN, signed zeros and subnormal results. Double functions call libm, one
element at a time. Coefficients are near-minimax fits (Lawson's iteration on Chebyshev nodes in
extended precision), lowest power first.

`llvm.fmuladd` becomes one FMA on targets that have the instruction, else a multiplication and an
addition; correctness does not depend on it. No fast-math flags: inf and NaN must be preserved.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.emit_index import declared
from ansorlite.errors import BuildError

# ln 2 in two parts: the first has 10 significant bits, so its product with an exponent is exact.
LN2_HIGH, LN2_LOW = 0.693359375, -2.1219444005469057e-4
LN2, LOG2_E = 0.6931471805599453, 1.4426950408889634

LEAST_NORMAL_EXP = -87.33654  # exp of it is the least normal float
FAR_FROM_INF = 40.0  # exp of such a number and 2^64 times as much are finite floats

# exp(r) = 1 + r + r^2 q(r) on |r| <= ln(2)/2; relative error 2^-28 of exp, 2^-26 of expm1.
EXP_Q = (
    0.49999993373064405,
    0.166665195238877,
    0.041668401088150335,
    0.008368851085355988,
    0.0013814320359382976,
)
# exp(r) = 1 + r + r^2 q(r) on |r| <= ln(2)/32; relative error 2^-29. And 2^(k/16).
NEAR_EXP_Q = (0.5000161580454175, 0.16666721380097235)
SIXTEENTHS = [2.0 ** (k / 16) for k in range(16)]
# Floats of which the bits are those of 2^(k/16) less k * 2^19: k on bits 19 and up adds that again.
SIXTEENTHS_BELOW = [
    1.0 + (round((f - 1.0) * 2**23) - (k << 19)) / 2**24 for k, f in enumerate(SIXTEENTHS)
]
# The same as EXP_Q for exp with relative error 2^-23.
SHORT_EXP_Q = (
    0.4999923030855245,
    0.1666711538865029,
    0.04189033162883805,
    0.0083125013247044,
)
EXPM1_Q = (
    0.4999999813292359,
    0.1666654268438214,
    0.04166720392165637,
    0.008366646804222002,
    0.0013882497283669664,
)
# log(1 + f) = f - f^2/2 + f^3 q(f) on sqrt(1/2) - 1 <= f < sqrt(2) - 1; relative error 2^-27.
LOG_Q = (
    0.33333331707804675,
    -0.25000821035500825,
    0.20001226865405497,
    -0.16623357298098754,
    0.14201758233783773,
    -0.131601830626404,
    0.1276157564369896,
    -0.07634493023813277,
)
# erf(a) = a + a p(a^2) on 0 <= a < 15/16; relative error 2^-31.
ERF_CUT = 0.9375
ERF_SMALL = (
    0.12837916612625122,
    -0.37612631916999817,
    0.1128367930650711,
    -0.02685849741101265,
    0.005198831204324961,
    -0.0008118088007904589,
    8.267504745163023e-05,
)
# erf(a) = 1 - exp(-p(a)) on 15/16 <= a <= 4; relative error 2^-29.
ERF_TAIL = (
    0.00022350040671881288,
    1.127561330795288,
    0.6373738050460815,
    0.10376431792974472,
    -0.022146649658679962,
    0.0030231643468141556,
    -0.00019390080706216395,
)
# erfc(a) = exp(a p(a)), a >= 0: absolute error 2^-24, relative error 2^-9 for a <= 4.2; p falls.
LOG_ERFC = (
    -1.1283825635910034,
    -0.6365587711334229,
    -0.10312943905591965,
    0.020093219354748726,
    -0.0011666219215840101,
    -0.0006240310030989349,
    0.00017764784570317715,
    -1.5130378415051382e-05,
)
ERFC_0 = 7.729  # a p(a) is -87.85 there, whose power of two is 2^-127: 0
# log2((1 + s) / (1 - s)) = s p(s^2) on |s| <= 3 - sqrt(8); relative error 2^-37. In double.
LOG2_ATANH = (
    2.885390081790142,
    0.9617966732662074,
    0.5770836003459495,
    0.4116717448605103,
    0.34074899795890756,
)
# 2^r on |r| <= 1/2; relative error 2^-34. In double.
EXP2_P = (
    0.999999999961682,
    0.6931471807284476,
    0.24022651198157496,
    0.05550410353446286,
    0.009618027253678054,
    0.0013333922564909221,
    0.00015469291120139392,
    1.5201921278952927e-05,
)

# x * 2^n in one instruction, by the lanes of a vector of float.
SCALES = {n: f"llvm.x86.avx512.mask.scalef.ps.{32 * n}" for n in (4, 8, 16)}
PERMUTE = "llvm.x86.avx512.permvar.sf.512"  # the elements of a vector of 16 at these places

B: TypeAlias = ir.IRBuilder
V: TypeAlias = ir.Value


def exp(b: B, x: V, scales: bool = False, most: float = math.inf) -> V:
    """e^x; float: error below 1 ulp. Underflows gradually; 0 below -103.98, inf above 88.72.

    With `scales` the target multiplies a vector by powers of two (`SCALES`). An x that is known to
    be at most `FAR_FROM_INF`, as `most` says, needs fewer instructions, and one of at most 0 fewer
    still (`_exp_of_negative`, in vectors of 16).
    """
    far = most <= FAR_FROM_INF
    if most <= 0.0 and scales and x.type.count == len(SIXTEENTHS):
        return _exp_of_negative(b, x)
    # The results at the bounds are 0 and inf; a NaN fails both comparisons and stays NaN.
    x = _clamp(b, x, -104.0, math.inf if far else 89.0)
    if scales and x.type.count in SCALES:
        if x.type.count == len(SIXTEENTHS):
            return _exp_by_table(b, x)
        _, whole = _binary_exponent(b, x)
        return _scaled(b, b.fadd(_expm1(b, x, whole), splat(x, 1.0)), whole)
    # Where the result is subnormal or infinite, float cannot hold 2^n: multiply twice.
    if far:
        power, whole = _binary_power(b, x, 64)
        y = fma(b, _expm1(b, x, whole), power, power)
        return b.fmul(y, splat(x, 2.0**-64))
    n, whole = _binary_exponent(b, x)
    half = b.ashr(n, splat(n, 1))
    power = _power_of_two(b, x, half)
    y = fma(b, _expm1(b, x, whole), power, power)
    return b.fmul(y, _power_of_two(b, x, b.sub(n, half)))


def _exp_by_table(b: B, x: V) -> V:
    """e^x = 2^n T(f) e^r, x = (n + f) ln 2 + r, f in sixteenths: one register holds T = 2^f.

    Three multiplications fewer than without a table. For x of `exp`'s range, 16 lanes.
    """
    places, whole = _in_sixteenths(b, x)
    r = _remainder_of_ln2(b, x, whole)
    low = fma(b, b.fmul(r, r), polynomial(b, r, NEAR_EXP_Q), r)
    power = _from_table(b, places, SIXTEENTHS)
    return _scaled(b, fma(b, power, low, power), whole)


def _exp_of_negative(b: B, x: V) -> V:
    """The same for x <= 0, as in a softmax: n is added to the exponent of T(f), a normal number.

    The error is below 1.5 ulp for x >= -16 and below 5 ulp for less: a remainder of one
    multiplication, by ln 2 as a float, adds 2.8e-9 |x|. Results below 2^-126 are 0.
    """
    places, whole = _in_sixteenths(b, x)
    r = fma(b, whole, splat(x, -LN2), x)
    low = fma(b, b.fmul(r, r), polynomial(b, r, NEAR_EXP_Q), r)
    near = bits_of(b, _from_table(b, places, SIXTEENTHS_BELOW))
    power = b.bitcast(b.add(near, b.shl(places, splat(places, 19))), x.type)
    y = fma(b, power, low, power)
    # A NaN is not less than a number, and passes.
    return b.select(b.fcmp_unordered(">=", x, splat(x, LEAST_NORMAL_EXP)), y, splat(x, 0.0))


def _in_sixteenths(b: B, x: V) -> tuple[V, V]:
    """(bits, value) of x / ln 2 in sixteenths: the bits hold sixteenths in the lowest four places.

    Permutations look at no others, `_scaled` looks at the rest alone.
    """
    magic = splat(x, 1.5 * 2.0**19)
    shifted = fma(b, x, splat(x, LOG2_E), magic)
    return bits_of(b, shifted), b.fsub(shifted, magic)


def _from_table(b: B, places: V, table: Sequence[float]) -> V:
    """The elements of a table of 16 at the places in the lowest four bits."""
    kind = ir.vector(ir.FLOAT, len(table))
    permute = declared(b.module, PERMUTE, kind, [kind, places.type])
    return b.call(permute, [kind(table), places])


def log(b: B, x: V) -> V:
    """Natural logarithm; float: error below 1.5 ulp. log(+-0) = -inf, NaN for x < 0."""
    subnormal = b.fcmp_ordered("<", x, splat(x, 2.0**-126))
    normal = b.select(subnormal, b.fmul(x, splat(x, 2.0**25)), x)
    # After subtracting the bits of sqrt(1/2), the exponent field belongs to m in
    # [sqrt(1/2), sqrt(2)).
    bits = bits_of(b, normal)
    offset = b.sub(bits, splat(bits, 0x3F3504F3))
    exponent = b.ashr(offset, splat(bits, 23))
    m = b.bitcast(b.sub(bits, b.shl(exponent, splat(bits, 23))), x.type)
    e = b.sitofp(exponent, x.type)
    e = b.select(subnormal, b.fsub(e, splat(x, 25.0)), e)
    f = b.fsub(m, splat(x, 1.0))
    square = b.fmul(f, f)
    y = b.fmul(b.fmul(square, f), polynomial(b, f, LOG_Q))
    y = fma(b, e, splat(x, LN2_LOW), y)
    y = fma(b, square, splat(x, -0.5), y)
    y = fma(b, e, splat(x, LN2_HIGH), b.fadd(f, y))
    # inf and NaN stay as they are, negative numbers give NaN, both zeros give -inf.
    y = b.select(b.fcmp_ordered("<", x, splat(x, math.inf)), y, x)
    y = b.select(b.fcmp_ordered("<", x, splat(x, 0.0)), splat(x, math.nan), y)
    return b.select(b.fcmp_ordered("==", x, splat(x, 0.0)), splat(x, -math.inf), y)


def tanh(b: B, x: V) -> V:
    """Hyperbolic tangent; float: error below 3 ulp, exact sign and subnormals.

    tanh|x| = e / (e + 2) with e = exp(2|x|) - 1 = 2^n expm1(r) + (2^n - 1), accurate near 0.
    """
    a = _clamp(b, call_math(b, "llvm.fabs", x), -math.inf, 10.0)
    a = b.fadd(a, a)
    scale, whole = _binary_power(b, a)
    r = _remainder_of_ln2(b, a, whole)
    expm1 = fma(b, b.fmul(r, r), polynomial(b, r, EXPM1_Q), r)
    e = fma(b, expm1, scale, b.fsub(scale, splat(x, 1.0)))
    return call_math(b, "llvm.copysign", b.fdiv(e, b.fadd(e, splat(x, 2.0))), x)


def erf(b: B, x: V) -> V:
    """Error function; float: error below 1.5 ulp, exact sign and subnormals."""
    a = _clamp(b, call_math(b, "llvm.fabs", x), -math.inf, 4.0)
    small = fma(b, x, polynomial(b, b.fmul(a, a), ERF_SMALL), x)
    # exp(z) is at most 0.185, so that its own error counts for a fifth: fewer terms will do.
    z = polynomial(b, a, [-c for c in ERF_TAIL])
    power, whole = _binary_power(b, z)
    r = fma(b, whole, splat(x, -LN2), z)
    square = b.fmul(r, r)
    y = b.fadd(fma(b, square, by_pairs(b, r, square, SHORT_EXP_Q), r), splat(x, 1.0))
    tail = fma(b, b.fneg(y), power, splat(x, 1.0))
    tail = call_math(b, "llvm.copysign", tail, x)
    return b.select(b.fcmp_ordered("<", a, splat(x, ERF_CUT)), small, tail)


def erf_plus_1(b: B, x: V) -> V:
    """1 + erf(x) of floats: absolute error below 2^-22, 2 ulp from 0 on; 0 from -8 on downwards.

    Phi of a normal distribution is half of it at x / sqrt(2). With erfc(|x|) = exp(z), z a
    polynomial, the function is exp(z) or 2 - exp(z): nothing cancels, and erf's second polynomial
    near 0 is not needed.
    """
    a = _clamp(b, call_math(b, "llvm.fabs", x), -math.inf, ERFC_0)
    z = b.fmul(by_pairs(b, a, b.fmul(a, a), LOG_ERFC), a)
    power, n = _binary_power(b, z)
    r = fma(b, n, splat(x, -LN2), z)
    square = b.fmul(r, r)
    e = fma(b, fma(b, square, by_pairs(b, r, square, EXP_Q), r), power, power)
    return b.select(b.fcmp_ordered("<", x, splat(x, 0.0)), e, b.fsub(splat(x, 2.0), e))


def sigmoid(b: B, x: V, top: float = 1.0) -> V:
    """top / (1 + exp(-x)) without overflow; float: error below 2.5 ulp, underflows gradually.

    `top` is a power of two.
    """
    if is_double(x):
        e = libm(b, "exp", [b.fneg(call_math(b, "llvm.fabs", x))])
        above = b.select(b.fcmp_ordered("<", x, x.type(0.0)), e, x.type(1.0))
        return b.fmul(b.fdiv(above, b.fadd(x.type(1.0), e)), x.type(top))
    # Both sides of the fraction are divided by 2^64: exp(-x) may exceed what a float can hold, and
    # where it is small its power of two may be far below 1.
    x = _clamp(b, x, -105.0, 43.0)
    power, n = _binary_power(b, x, -64, sign=-1.0)
    r = _remainder_of_ln2(b, x, n, sign=-1.0)
    square = b.fmul(r, r)
    q = by_pairs(b, r, square, [c if i % 2 else -c for i, c in enumerate(EXP_Q)])
    low = fma(b, square, q, r)  # 1 - e^-r
    scale = splat(x, 2.0**-64)
    below = fma(b, b.fneg(low), power, b.fadd(power, scale))
    return b.fdiv(splat(x, top * 2.0**-64), below)


def tanh_plus_1(b: B, x: V) -> V:
    """1 + tanh(x) of floats, which is 2 sigmoid(2 x); error below 2.5 ulp."""
    return sigmoid(b, b.fadd(x, x), top=2.0)


def power(b: B, x: V, y: V) -> V:
    """x^y with C's special cases; float: error below 0.52 ulp, computed in double."""
    double = shaped(x.type, ir.DOUBLE)
    magnitude = call_math(b, "llvm.fabs", x)
    exponent = b.fmul(b.fpext(y, double), log2_double(b, b.fpext(magnitude, double)))
    z = b.fptrunc(exp2_double(b, exponent), x.type)
    zero, one = splat(x, 0.0), splat(x, 1.0)
    unit = b.or_(b.fcmp_ordered("==", magnitude, one), b.fcmp_ordered("==", y, zero))
    # |x| = 1 with y = NaN stays NaN, except that 1^NaN = 1.
    unit = b.and_(unit, b.fcmp_ordered("ord", y, y))
    unit = b.or_(unit, b.fcmp_ordered("==", x, one))
    z = b.select(unit, one, z)
    integer = b.fcmp_ordered("==", call_math(b, "llvm.floor", y), y)
    half = b.fmul(y, splat(x, 0.5))
    odd = b.and_(integer, b.fcmp_ordered("!=", call_math(b, "llvm.floor", half), half))
    z = b.select(odd, call_math(b, "llvm.copysign", z, x), z)
    # Numbers from 2^24 on, and infinities, count as even integers.
    finite_negative = b.and_(
        b.fcmp_ordered("<", x, zero), b.fcmp_ordered(">", x, splat(x, -math.inf))
    )
    not_real = b.and_(finite_negative, b.not_(integer))
    return b.select(not_real, splat(x, math.nan), z)


def remainder(b: B, x: V, y: V) -> V:
    """x less the multiple of y that x / y without its fraction is, exact; C's fmod, by libm."""
    double = shaped(x.type, ir.DOUBLE)
    return b.fptrunc(libm(b, "fmod", [b.fpext(x, double), b.fpext(y, double)]), x.type)


def sqrt(b: B, x: V) -> V:
    """Square root, correctly rounded."""
    return call_math(b, "llvm.sqrt", x)


def floor(b: B, x: V) -> V:
    """The greatest integer not above x, exact."""
    return call_math(b, "llvm.floor", x)


def absolute(b: B, x: V) -> V:
    """|x|, exact; clears the sign of zeros and NaN too."""
    return call_math(b, "llvm.fabs", x)


def bfloat16(b: B, x: V) -> V:
    """The nearest float with 8 significant bits, halves to even; NaN stays NaN. Float only."""
    if is_double(x):
        raise BuildError("bfloat16 of a double: cast to float first")
    bits = bits_of(b, x)
    odd = b.and_(b.lshr(bits, splat(bits, 16)), splat(bits, 1))
    bits = b.and_(b.add(b.add(bits, splat(bits, 0x7FFF)), odd), splat(bits, -(1 << 16)))
    return b.select(b.fcmp_unordered("uno", x, x), x, b.bitcast(bits, x.type))


def extremum(b: B, name: str, x: V, y: V) -> V:
    """min or max: NaN if an operand is NaN; for two zeros of different sign, either zero.

    One instruction for a constant operand or on machines with such an instruction. The x86
    instruction returns its second operand if either operand is NaN, so `x` needs a NaN test: a
    comparison and a masked move.
    """
    kind = x.type.element
    if kind is ir.I1:
        return b.and_(x, y) if name == "min" else b.or_(x, y)
    order = "<" if name == "min" else ">"
    if isinstance(kind, ir.IntType):
        return b.select(b.icmp_signed(order, x, y), x, y)
    constant = isinstance(x, ir.Constant) or isinstance(y, ir.Constant)
    if constant or not b.module.triple.startswith("x86"):
        return call_math(b, f"llvm.{name}imum", x, y, flags=("nsz",))
    number = b.fcmp_ordered("ord", x, x.type(0.0))
    one = b.select(b.fcmp_ordered(order, x, y), x, y)
    return b.select(number, one, x)


def libm(b: B, name: str, args: Sequence[V]) -> V:
    """Call libm's double function `name` on every element."""
    double = ir.DOUBLE
    function = declared(b.module, name, double, [double] * len(args))
    if not isinstance(args[0].type, ir.VectorType):
        return b.call(function, args)
    result: V = ir.Undefined(args[0].type)
    for i in range(args[0].type.count):
        lane = ir.I32(i)
        value = b.call(function, [b.extract_element(a, lane) for a in args])
        result = b.insert_element(result, value, lane)
    return result


def _remainder_of_ln2(b: B, x: V, n: V, sign: float = 1.0) -> V:
    """r = x - n ln 2 (x + n ln 2 for a `sign` of -1), |r| <= ln(2)/2, for whole floats n."""
    return fma(b, n, splat(x, -sign * LN2_LOW), fma(b, n, splat(x, -sign * LN2_HIGH), x))


def _expm1(b: B, x: V, n: V) -> V:
    """e^r - 1 for the r of `_remainder_of_ln2`, as exact as a sum with 1 needs it."""
    r = _remainder_of_ln2(b, x, n)
    square = b.fmul(r, r)
    return fma(b, square, by_pairs(b, r, square, EXP_Q), r)


def _binary_power(b: B, x: V, bias: int = 0, sign: float = 1.0) -> tuple[V, V]:
    """2^(n + bias) and n as floats, n the nearest integer to `sign` x / ln 2.

    The power is 0 for n + bias = -127 and inf for 128; n must not lie beyond.
    """
    # Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the sum, here with the bias
    # of exponents: one shift makes the power.
    magic = splat(x, 1.5 * 2.0**23 + 127 + bias)
    shifted = fma(b, x, splat(x, sign * LOG2_E), magic)
    bits = bits_of(b, shifted)
    power = b.bitcast(b.shl(bits, splat(bits, 23)), x.type)
    return power, b.fsub(shifted, magic)


def _binary_exponent(b: B, x: V) -> tuple[V, V]:
    """n, the nearest integer to x / ln 2, as an integer and as a float; for |x| < 2^13."""
    magic = splat(x, 1.5 * 2.0**23)
    shifted = fma(b, x, splat(x, LOG2_E), magic)
    return b.sub(bits_of(b, shifted), bits_of(b, magic)), b.fsub(shifted, magic)


def _scaled(b: B, x: V, n: V) -> V:
    """x * 2^floor(n), rounded once: vectors of `SCALES` lanes."""
    lanes = x.type.count
    mask, full = ir.I16 if lanes == 16 else ir.I8, (1 << lanes) - 1
    now = [ir.I32(4)] * (lanes == 16)  # the rounding mode that is set
    args = [x, n, x, mask(full if lanes > 4 else 0xFF), *now]
    function = declared(b.module, SCALES[lanes], x.type, [a.type for a in args])
    return b.call(function, args)


def _power_of_two(b: B, like: V, n: V) -> V:
    """2^n as a float, for -126 <= n <= 127."""
    return b.bitcast(b.shl(b.add(n, splat(n, 127)), splat(n, 23)), like.type)


def log2_double(b: B, x: V) -> V:
    """log2 of a double >= 0 that is no subnormal number; relative error 2^-37; 0 -> -inf."""
    bits, one = bits_of(b, x), 0x3FF << 52
    # The bits of sqrt(1/2) become the bits of 1: the exponent field then belongs to m in
    # [sqrt(1/2), sqrt(2)).
    offset = b.add(bits, splat(bits, one - 0x3FE6A09E667F3BCD))
    biased = b.lshr(offset, splat(bits, 52))
    fraction = b.sub(bits, b.shl(biased, splat(bits, 52)))
    m = b.bitcast(b.add(fraction, splat(bits, one)), x.type)
    # Few targets convert 64-bit integers to double: put the exponent into the low bits of 2^52.
    magic = splat(x, 2.0**52)
    e = b.bitcast(b.or_(bits_of(b, magic), biased), x.type)
    e = b.fsub(e, splat(x, 2.0**52 + 0x3FF))
    s = b.fdiv(b.fsub(m, splat(x, 1.0)), b.fadd(m, splat(x, 1.0)))
    y = fma(b, s, polynomial(b, b.fmul(s, s), LOG2_ATANH), e)
    zero, inf = splat(x, 0.0), splat(x, math.inf)
    y = b.select(b.fcmp_ordered("==", x, zero), splat(x, -math.inf), y)
    return b.select(b.fcmp_ordered("<", x, inf), y, x)


def exp2_double(b: B, x: V) -> V:
    """2^x as a double, relative error 2^-34; x is clamped to +-1000, beyond float's range."""
    x = _clamp(b, x, -1000.0, 1000.0)
    magic = splat(x, 1.5 * 2.0**52)
    shifted = b.fadd(x, magic)
    y = polynomial(b, b.fsub(x, b.fsub(shifted, magic)), EXP2_P)
    bits = bits_of(b, shifted)
    exponent = b.shl(bits, splat(bits, 52))
    scaled = b.bitcast(b.add(bits_of(b, y), exponent), x.type)
    # The integer addition may turn the bits of a NaN into a number.
    return b.select(b.fcmp_ordered("ord", x, x), scaled, x)


def polynomial(b: B, x: V, coefficients: Sequence[float]) -> V:
    """A polynomial in x; coefficients start with the constant term.

    Horner's scheme. Polynomials of more than 6 coefficients are split into even and odd powers,
    which halves the chain of dependent operations.
    """
    if len(coefficients) > 6:
        square = b.fmul(x, x)
        even, odd = coefficients[::2], coefficients[1::2]
        return fma(b, x, polynomial(b, square, odd), polynomial(b, square, even))
    *rest, y = (splat(x, c) for c in coefficients)
    for c in reversed(rest):
        y = fma(b, y, x, c)
    return y


def by_pairs(b: B, x: V, square: V, coefficients: Sequence[float]) -> V:
    """A polynomial in x, whose `square` is at hand; coefficients start with the constant term.

    Pairs of terms: as many operations as Horner's scheme has, in a chain half as long.
    """
    first, *rest = (splat(x, c) for c in coefficients)
    if not rest:
        return first
    low = fma(b, x, rest[0], first)
    return fma(b, square, by_pairs(b, x, square, coefficients[2:]), low) if rest[1:] else low


def _clamp(b: B, x: V, low: float, high: float) -> V:
    """x clamped to [low, high]; an infinite bound does nothing; NaN stays NaN."""
    if low > -math.inf:
        x = b.select(b.fcmp_ordered("<", x, splat(x, low)), splat(x, low), x)
    if high < math.inf:
        x = b.select(b.fcmp_ordered(">", x, splat(x, high)), splat(x, high), x)
    return x


def fma(b: B, x: V, y: V, z: V) -> V:
    return call_math(b, "llvm.fmuladd", x, y, z)


def call_math(b: B, intrinsic: str, *args: V, flags: tuple[str, ...] = ()) -> V:
    """Call an LLVM intrinsic whose arguments and result have one type; its name holds the type."""
    kind = args[0].type
    function = declared(b.module, f"{intrinsic}.{kind.short}", kind, [kind] * len(args))
    return b.call(function, args, flags=flags)


def bits_of(b: B, x: V) -> V:
    width = 64 if is_double(x) else 32
    return b.bitcast(x, shaped(x.type, ir.integer(width)))


def splat(like: V, value: float) -> V:
    """`value` as a constant of the type of `like`, in every lane."""
    return like.type(value)


def is_double(x: V) -> bool:
    return x.type.element is ir.DOUBLE


def shaped(kind: ir.Type, scalar: ir.Type) -> ir.Type:
    return ir.vector(scalar, kind.count) if isinstance(kind, ir.VectorType) else scalar
