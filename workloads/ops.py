"""The operator suite as search tasks: shapes and FLOP formulas in ops.toml, definitions here.

In: the name of an operator ("C2D"), the number of a case, a batch size. Out: a `SearchTask` in
float32, channels last, with padding as a separate stage. Weights of convolutions, biases and batch
norms are placeholders marked `constant`; operands of GMM, TBG, TBS, NRM and SFM are not. `define`
builds an operator for any shape.
"""

import ast
import operator
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops import matmul, normalization
from ansorlite.graph.ops.conv import conv_nhwc, depthwise_conv_nhwc, grouped_conv_nhwc
from ansorlite.graph.ops.conv_transpose import conv_transpose_nhwc
from ansorlite.graph.ops.movement import pad
from ansorlite.ir.expr import Expr
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.te.tensor import Tensor

Params = Mapping[str, int]
CAPSULE = 4  # extent of a capsule's matrices


@dataclass(frozen=True)
class Operator:
    """An entry of ops.toml; `batch` is the parameter that a batch size multiplies ("" if none)."""

    name: str
    summary: str
    parameters: tuple[str, ...]
    batch: str
    derived: tuple[tuple[str, str], ...]
    flop: str
    cases: tuple[tuple[int, ...], ...]

    def case(self, index: int, batch: int = 1) -> dict[str, int]:
        """Parameters of a case by name; raises ModelError for an unknown case or a wrong batch."""
        if not isinstance(index, Integral) or not 0 <= index < len(self.cases):
            known = f"{self.name}:0 to {self.name}:{len(self.cases) - 1}"
            raise ModelError(f"{self.name} has no case {index!r}: choose one of {known}")
        params = dict(zip(self.parameters, self.cases[int(index)], strict=True))
        if not isinstance(batch, Integral) or batch < 1 or (batch != 1 and not self.batch):
            why = "give at least 1" if self.batch else f"{self.name} has no batch, leave it at 1"
            raise ModelError(f"batch of {self.name} is {batch!r}: {why}")
        return {**params, self.batch: int(batch) * params[self.batch]} if self.batch else params

    def count_flop(self, params: Params) -> int:
        """Floating-point operations for these parameters, from the formula in ops.toml."""
        names = dict(params)
        for name, formula in self.derived:
            names[name] = arithmetic(formula, names)
        return arithmetic(self.flop, names)


@cache
def operators() -> dict[str, Operator]:
    """All operators of ops.toml by name, in the order of the file."""
    text = Path(__file__).with_name("ops.toml").read_text(encoding="utf-8")
    return {name: _operator(name, table) for name, table in tomllib.loads(text).items()}


def _operator(name: str, table: dict[str, Any]) -> Operator:
    return Operator(
        name,
        table["summary"],
        tuple(table["parameters"]),
        table.get("batch", ""),
        tuple(table.get("derived", {}).items()),
        table["flop"],
        tuple(tuple(case) for case in table["cases"]),
    )


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def arithmetic(formula: str, names: Params) -> int:
    """The value of a formula of integers, names, + - * // and parentheses.

    Raises ModelError for any other element; nothing is executed.
    """

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(n)) if not isinstance(n, bool):
                return n
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
                return _BINARY[type(op)](value(a), value(b))
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return -value(a)
        raise ModelError(
            f"cannot evaluate {ast.unparse(node)!r} in {formula!r}: use integers, + - * // and "
            f"the names {', '.join(names)}"
        )

    try:
        tree = ast.parse(formula.strip(), mode="eval")
    except SyntaxError as err:
        raise ModelError(f"{formula!r} is no arithmetic formula: {err.msg}") from None
    return value(tree.body)


# ---- tasks --------------------------------------------------------------------------------------


def workload(
    name: str,
    index: int = 0,
    batch: int = 1,
    constant_weights: bool | None = None,
    target: Target | None = None,
) -> SearchTask:
    """The task of a case: `workload("C2D", 2)` or `workload("C2D:2")`, in upper or lower case.

    `constant_weights`: True marks all weights as constant, so that they may be packed ahead of
    time, also B of a GMM; False marks none; None is the choice of the suite (all weights, but not
    B). Raises ModelError, with the existing ones, for an unknown name, case or batch.
    """
    if ":" in str(name):
        name, index = parse_case(name)
    op = find(name)
    result = define(op.name, op.case(index, batch), constant_weights)
    suffix = f" batch {batch}" if op.batch else ""
    return SearchTask([result], target, f"{op.name}:{index}{suffix}")


def parse_case(text: str) -> tuple[str, int]:
    """The operator and number of a case: "c2d:2" -> ("C2D", 2), "C2D" -> ("C2D", 0).

    Raises ModelError for an unknown operator or case.
    """
    name, _, number = text.partition(":")
    op = find(name)
    if number and not (number.isascii() and number.isdecimal()):
        raise ModelError(f"{text!r} is no case: write {op.name}:0 to {op.name}:{len(op.cases) - 1}")
    index = int(number[:9] or 0)
    op.case(index)
    return op.name, index


def find(name: str) -> Operator:
    """The operator of a name in upper or lower case; raises ModelError with all names."""
    for op in operators().values():
        if op.name.casefold() == str(name).casefold():
            return op
    raise ModelError(f"unknown workload {name!r}: choose one of {', '.join(operators())}")


# ---- definitions --------------------------------------------------------------------------------


def define(name: str, params: Params, constant_weights: bool | None = None) -> Tensor:
    """The output tensor of the operator `name`; `params` has the parameter names of ops.toml.

    Raises ModelError for missing or unknown parameters. Example:
    `define("GMM", {"B": 1, "N": 64, "M": 64, "K": 32})`.
    """
    op = find(name)
    if set(params) != set(op.parameters):
        raise ModelError(f"{op.name} takes the parameters {', '.join(op.parameters)}")
    constant = op.name not in VARIABLE_WEIGHTS if constant_weights is None else constant_weights
    return DEFINITIONS[op.name](params, constant)


def convolution(rank: int) -> Callable[[Params, bool], Tensor]:
    """data [N, *spatial, CI] and weight [*k, CI, CO] with `rank` spatial axes, dilation `d`."""

    def build(p: Params, constant: bool) -> Tensor:
        extents = [p[name] for name in ({1: "L", 2: "HW", 3: "DHW"}[rank])]
        data = te.placeholder((p["N"], *extents, p["CI"]), name="data")
        shape = (*(p["k"],) * rank, p["CI"], p["CO"])
        weight = te.placeholder(shape, name="weight", constant=constant)
        return conv_nhwc(data, weight, *_windows(p, rank))

    return build


def _windows(p: Params, rank: int) -> tuple[Any, Any, Any]:
    """Strides, paddings and dilations of `rank` spatial axes."""
    return (p["s"],) * rank, ((p["p"], p["p"]),) * rank, (p.get("d", 1),) * rank


def grouped(p: Params, constant: bool) -> Tensor:
    """data [N, H, W, CI] and weight [k, k, CI/g, g, CO/g] -> [N, OH, OW, g, CO/g]."""
    g = p["g"]
    if p["CI"] % g or p["CO"] % g:
        raise ModelError(f"{g} groups do not divide {p['CI']} and {p['CO']} channels")
    data = te.placeholder((p["N"], p["H"], p["W"], p["CI"]), name="data")
    shape = (p["k"], p["k"], p["CI"] // g, g, p["CO"] // g)
    weight = te.placeholder(shape, name="weight", constant=constant)
    return grouped_conv_nhwc(data, weight, *_windows(p, 2))


def depthwise(p: Params, constant: bool) -> Tensor:
    """data [N, H, W, C] and weight [k, k, C] -> [N, OH, OW, C]."""
    data = te.placeholder((p["N"], p["H"], p["W"], p["C"]), name="data")
    weight = te.placeholder((p["k"], p["k"], p["C"]), name="weight", constant=constant)
    return depthwise_conv_nhwc(data, weight, *_windows(p, 2))


def transposed(p: Params, constant: bool) -> Tensor:
    """data [N, H, W, CI], weight [k, k, CI, CO]; by sub-pixel phases, without products with 0."""
    data = te.placeholder((p["N"], p["H"], p["W"], p["CI"]), name="data")
    weight = te.placeholder((p["k"], p["k"], p["CI"], p["CO"]), name="weight", constant=constant)
    return conv_transpose_nhwc(data, weight, (p["s"],) * 2, ((p["p"], p["p"]),) * 2)


def capsule(p: Params, constant: bool) -> Tensor:
    """data [N, H, W, 4, 4, CI], weight [k, k, 4, 4, CI, CO]: a convolution of 4x4 matrices."""
    k, s, q = p["k"], p["s"], p["p"]
    data = te.placeholder((p["N"], p["H"], p["W"], CAPSULE, CAPSULE, p["CI"]), name="data")
    shape = (k, k, CAPSULE, CAPSULE, p["CI"], p["CO"])
    weight = te.placeholder(shape, name="weight", constant=constant)
    padded = pad(data, ((0, 0), (q, q), (q, q), (0, 0), (0, 0), (0, 0)))
    oh, ow = ((p[n] + 2 * q - k) // s + 1 for n in "HW")
    kh, kw = te.reduce_axis(k, name="kh"), te.reduce_axis(k, name="kw")
    cap, c = te.reduce_axis(CAPSULE, name="cap_k"), te.reduce_axis(p["CI"], name="ci")

    def element(n: Any, h: Any, w: Any, cap_i: Any, cap_j: Any, co: Any) -> Expr:
        value = padded[n, h * s + kh, w * s + kw, cap_i, cap, c]
        return te.sum(value * weight[kh, kw, cap, cap_j, c, co], axis=[kh, kw, cap, c])

    return te.compute((p["N"], oh, ow, CAPSULE, CAPSULE, p["CO"]), element, name="conv")


def batch_matmul(p: Params, constant: bool) -> Tensor:
    """A [B, N, K] and B [B, K, M] -> [B, N, M]."""
    a = te.placeholder((p["B"], p["N"], p["K"]), name="A")
    b = te.placeholder((p["B"], p["K"], p["M"]), name="B", constant=constant)
    return matmul.batch_matmul(a, b)


def norm(p: Params, constant: bool) -> Tensor:
    """A [B, M, N] -> [B]: the root of the sum of squares."""
    a = te.placeholder((p["B"], p["M"], p["N"]), name="A")
    i, j = te.reduce_axis(p["M"], name="i"), te.reduce_axis(p["N"], name="j")
    total = te.compute((p["B"],), lambda b: te.sum(a[b, i, j] * a[b, i, j], [i, j]), name="squares")
    return te.compute((p["B"],), lambda b: te.sqrt(total[b]), name="norm")


def conv_layer(p: Params, constant: bool) -> Tensor:
    """A 2-d convolution, bias, batch norm (scale and offset) and ReLU, as separate stages."""
    conv = convolution(2)(p, constant)
    bias, scale, offset = (
        te.placeholder((p["CO"],), name=name, constant=constant)
        for name in ("bias", "scale", "offset")
    )
    shape = conv.shape
    biased = te.compute(shape, lambda n, h, w, co: conv[n, h, w, co] + bias[co], name="biased")
    scaled = te.compute(shape, lambda n, h, w, co: biased[n, h, w, co] * scale[co], name="scaled")
    moved = te.compute(shape, lambda n, h, w, co: scaled[n, h, w, co] + offset[co], name="moved")
    return te.relu(moved, name="relu")


def attention_scores(p: Params, constant: bool) -> Tensor:
    """query, value [N, L, H, D] -> [N, H, L, L]: a matrix product for each head."""
    shape = (p["N"], p["L"], p["H"], p["D"])
    query, value = te.placeholder(shape, name="query"), te.placeholder(shape, name="value")
    left = te.compute(
        (p["N"], p["H"], p["L"], p["D"]), lambda b, h, i, d: query[b, i, h, d], name="query_t"
    )
    right = te.compute(
        (p["N"], p["H"], p["D"], p["L"]), lambda b, h, d, j: value[b, j, h, d], name="value_t"
    )
    k = te.reduce_axis(p["D"], name="k")
    return te.compute(
        (p["N"], p["H"], p["L"], p["L"]),
        lambda b, h, i, j: te.sum(left[b, h, i, k] * right[b, h, k, j], axis=k),
        name="matmul",
    )


def attention_softmax(p: Params, constant: bool) -> Tensor:
    """`attention_scores` with a softmax over the last axis."""
    return normalization.softmax(attention_scores(p, constant), (3,))


def softmax(p: Params, constant: bool) -> Tensor:
    """A [M, N] -> [M, N]: softmax over the last axis."""
    return normalization.softmax(te.placeholder((p["M"], p["N"]), name="A"), (1,))


VARIABLE_WEIGHTS = ("GMM",)  # operators whose second operand is not constant in the suite
DEFINITIONS: dict[str, Callable[[Params, bool], Tensor]] = {
    "C1D": convolution(1),
    "C2D": convolution(2),
    "C3D": convolution(3),
    "GMM": batch_matmul,
    "GRP": grouped,
    "DIL": convolution(2),
    "DEP": depthwise,
    "T2D": transposed,
    "CAP": capsule,
    "NRM": norm,
    "ConvLayer": conv_layer,
    "TBG": attention_scores,
    "TBS": attention_softmax,
    "SFM": softmax,
}
