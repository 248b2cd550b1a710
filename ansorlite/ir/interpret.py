"""Reference execution of a concrete `Program`: translated to Python and run element by element.

In: a program (before or after `specialize`) and arrays by parameter name, in the users' shapes.
Out: arrays by output name. Slow on purpose; every index is checked against its buffer. Arithmetic
uses Python numbers: each floating-point operation rounds to its dtype; integers are unbounded and
wrapped by casts and stores. `counts` receives the number of executed stores per stage.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Load, Op, Poly, Var
from ansorlite.ir.layout import Layout
from ansorlite.ir.literals import (
    BITS,
    bfloat16,
    ceil_divide,
    converted,
    floor_divide,
    modulo,
    rounded,
)
from ansorlite.ir.packed import PACKED
from ansorlite.ir.program import Alloc, Block, Buffer, For, If, Prefetch, Program, Stmt, Store
from ansorlite.ir.traverse import below

Array = npt.NDArray[Any]


class _Checked:
    """An array that raises ScheduleError for any index outside, negative indices included."""

    def __init__(self, name: str, data: Array) -> None:
        self.name, self.data = name, data

    def _check(self, idx: tuple[int, ...]) -> tuple[int, ...]:
        for d, (i, n) in enumerate(zip(idx, self.data.shape, strict=True)):
            if not 0 <= i < n:
                raise ScheduleError(
                    f"index {i} of dimension {d} of {self.name} is outside of extent {n}"
                )
        return idx

    def __getitem__(self, idx: tuple[int, ...]) -> Any:
        return self.data[self._check(idx)].item()

    def __setitem__(self, idx: tuple[int, ...], value: Any) -> None:
        self.data[self._check(idx)] = value


def interpret(
    p: Program, inputs: Mapping[str, npt.ArrayLike], counts: Counter[str] | None = None
) -> dict[str, Array]:
    """Run the program: pack parameters that have a layout, fill outputs with poison, execute.

    Raises ScheduleError for open holes, missing inputs and indices outside a buffer.
    """
    if p.columns:
        raise ScheduleError(f"{p.name} has open holes: {', '.join(p.columns)}")
    source, names = to_python(p, counts is not None)
    known = dict(inputs)
    if p.bound is not None:
        known |= interpret(p.bound, inputs)
    arrays: dict[str, _Checked] = {}
    for b in p.buffers:
        arrays[b.name] = _Checked(b.name, _bind(b, known))
    env = {**_RUNTIME, "counts": counts, "buffer": _new_buffer}
    exec(compile(source, f"<{p.name}>", "exec"), env)
    with np.errstate(all="ignore"):
        env["kernel"](*[arrays[n] for n in names])
    return {b.name: arrays[b.name].data for b in p.buffers if b.role == "output"}


def concrete_shape(b: Buffer) -> tuple[int, ...]:
    """The stored shape of a buffer as ints; ScheduleError if an extent depends on holes."""
    if not all(isinstance(e, Const) for e in b.shape):
        raise ScheduleError(f"buffer {b.name} has shape {tuple(map(str, b.shape))}: not concrete")
    return tuple(int(e.value) for e in b.shape if isinstance(e, Const))


def concrete_layout(b: Buffer) -> Layout | None:
    """The packed layout of a buffer of a concrete program; None without a layout."""
    if b.layout is None:
        return None
    tiles = tuple(tuple(int(str(e)) for e in t) for t in b.layout.tiles)
    return Layout(tiles, b.layout.order)


def _bind(b: Buffer, inputs: Mapping[str, npt.ArrayLike]) -> Array:
    """The initial array of a parameter or temporary."""
    if b.role in ("input", "constant", "derived"):
        if b.name not in inputs:
            raise ScheduleError(f"no value is given for {b.name}")
        layout = concrete_layout(b)
        x = np.asarray(inputs[b.name])
        return layout.pack(x) if layout else x
    return _new_buffer(concrete_shape(b), b.dtype)


def _new_buffer(shape: tuple[int, ...], dtype: str) -> Array:
    """An array of poison values: NaN, True, -77 or 77."""
    poison = np.nan if dtype.startswith("float") else (True if dtype == "bool" else -77)
    poison = 77 if dtype.startswith("uint") else poison
    return np.full(shape, poison, dtype=dtype)


def to_python(p: Program, count: bool = False) -> tuple[str, list[str]]:
    """(source of a Python function `kernel`, names of its arguments in order)."""
    names: dict[str, str] = {}

    def ident(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}_{''.join(c for c in name if c.isalnum())}")

    args = [b.name for b in p.buffers]
    lines = [f"def kernel({', '.join(ident(n) for n in args)}):"]
    _write(p.body, 1, lines, ident, count)
    return "\n".join([*lines, "    return None"]), args


def _write(s: Stmt, depth: int, out: list[str], ident: Any, count: bool) -> None:
    """Append the lines of a statement at the given indentation depth."""
    pad = "    " * depth
    match s:
        case Block():
            if not s.stmts:
                out.append(f"{pad}pass")
            for x in s.stmts:
                _write(x, depth, out, ident, count)
        case For():
            out.append(f"{pad}for {ident(s.var)} in range({_py(s.extent, ident)}):")
            _write(s.body, depth + 1, out, ident, count)
        case Alloc():
            shape = concrete_shape(s.buffer)
            name = ident(s.buffer.name)
            out.append(
                f"{pad}{name} = Checked({s.buffer.name!r}, buffer({shape}, {s.buffer.dtype!r}))"
            )
            _write(s.body, depth, out, ident, count)
        case If():
            out.append(f"{pad}if {_py(s.cond, ident)}:")
            _write(s.then, depth + 1, out, ident, count)
            if s.orelse is not None:
                out.append(f"{pad}else:")
                _write(s.orelse, depth + 1, out, ident, count)
        case Store():
            idx = "".join(f"{_py(i, ident)}, " for i in s.indices)
            place = f"{ident(s.buffer)}[({idx})]"
            value, dtype = _value(s.value, ident, pad, out), s.value.dtype
            if s.combiner == "sum":
                value = f"{place} + {value}"
            elif s.combiner:
                value = f"{s.combiner}_({place}, {_wrapped(value, dtype)})"
            value = _wrapped(value, dtype)
            out.append(f"{pad}{place} = {value}")
            if count:
                out.append(f"{pad}counts[{s.stage!r}] += 1")
        case Prefetch():
            out.append(f"{pad}pass")


_PYTHON = {
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "lt": "({} < {})",
    "le": "({} <= {})",
    "eq": "({} == {})",
    "ne": "({} != {})",
    "bit_and": "({} & {})",
    "bit_or": "({} | {})",
    "bit_xor": "({} ^ {})",
    "shift_left": "({} << {})",
    "shift_right": "({} >> {})",
    "not": "(not {})",
}
_EXACT = ("min", "max", "abs", "floor", "select")  # operations whose result needs no rounding


def _wrapped(text: str, dtype: str) -> str:
    """The Python text that wraps a value to the range of an integer dtype."""
    return f"cast({dtype!r}, {text})" if dtype in BITS else text


def _value(e: Expr, ident: Any, pad: str, out: list[str]) -> str:
    """The Python text of a value; parts of a deep expression become local functions."""
    parts: dict[Expr, str] = {}
    for x in below(e):
        text = _py(x, ident, parts)
        parts[x] = f"part{len(parts)}"
        out.append(f"{pad}{parts[x]} = lambda: {text}")
    return _py(e, ident, parts)


def _py(e: Expr, ident: Any, parts: Mapping[Expr, str] | None = None) -> str:
    """The Python text of an expression; `parts` maps subexpressions to local functions."""
    if parts and e in parts:
        return f"{parts[e]}()"
    match e:
        case Const():
            if isinstance(e.value, float):
                return f"float('{rounded(e.value, e.dtype)!r}')"
            return repr(e.value)
        case Var():
            return str(ident(e.name))
        case Poly():
            terms = ["*".join([str(c), *(_py(a, ident, parts) for a in m)]) for m, c in e.terms]
            text = f"({' + '.join(terms)})"
            return _wrapped(text, "int64") if e.reads else text
        case Load():
            idx = "".join(f"{_py(i, ident, parts)}, " for i in e.indices)
            return f"{ident(e.tensor)}[({idx})]"
        case Op():
            text = _operation(e, [_py(a, ident, parts) for a in e.args])
            if e.dtype == "float32" and e.name not in (*_EXACT, "cast"):
                return f"cast('float32', {text})"
            return text
    raise ScheduleError(f"{e} has no Python form")


def _operation(e: Op, args: list[str]) -> str:
    """The Python text of an operation on argument texts."""
    if e.name == "select":
        return f"({args[1]} if {args[0]} else {args[2]})"
    if e.name in ("and", "or"):
        return f"({f' {e.name} '.join(args)})"
    if e.name == "cast":
        return f"cast({e.dtype!r}, {args[0]})"
    if e.name in _PYTHON:
        return _PYTHON[e.name].format(*args)
    return f"{e.name}_({', '.join(args)})"


def _ieee(fn: Any) -> Any:
    """The float64 numpy function, so that overflow and domain errors yield inf and NaN."""

    def call(*args: Any) -> float:
        with np.errstate(all="ignore"):
            return float(fn(*(np.float64(a) for a in args)))

    return call


def _sigmoid(x: float) -> float:
    e = math.exp(-abs(x)) if not math.isnan(x) else x
    return (1.0 if x >= 0 else e) / (1.0 + e)


def _extremum(fn: Any) -> Any:
    """The numpy function that reduces scalar arguments."""

    def call(*args: Any) -> Any:
        return fn.reduce(args).item()

    return call


_RUNTIME: dict[str, Any] = {
    "Checked": _Checked,
    "min_": _extremum(np.minimum),
    "max_": _extremum(np.maximum),
    "div_": _ieee(np.divide),
    "exp_": _ieee(lambda x, most=None: np.exp(x)),
    "log_": _ieee(np.log),
    "sqrt_": _ieee(np.sqrt),
    "tanh_": _ieee(np.tanh),
    "pow_": _ieee(np.power),
    "fmod_": _ieee(np.fmod),
    "sin_": _ieee(np.sin),
    "cos_": _ieee(np.cos),
    "tan_": _ieee(np.tan),
    "asin_": _ieee(np.arcsin),
    "acos_": _ieee(np.arccos),
    "atan_": _ieee(np.arctan),
    "sinh_": _ieee(np.sinh),
    "cosh_": _ieee(np.cosh),
    "asinh_": _ieee(np.arcsinh),
    "acosh_": _ieee(np.arccosh),
    "atanh_": _ieee(np.arctanh),
    "erf_": math.erf,
    "sigmoid_": _sigmoid,
    "floor_": _ieee(np.floor),
    "abs_": abs,
    "bfloat16_": bfloat16,
    **{f"{name}_": rule.number for name, rule in PACKED.items()},
    "floordiv_": floor_divide,
    "ceildiv_": ceil_divide,
    "mod_": modulo,
    "cast": lambda dtype, x: converted(x, dtype),
}
