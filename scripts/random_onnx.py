"""A growing ONNX graph with the arrays that its nodes compute, by ONNX's own rules.

In: nodes, by `Growing.add`. Out: `Value`s and how far rounding may lead away from them. Each node
is run alone, by onnxruntime without its own rewrites and by onnx's reference; a node is kept where
its value is not a matter of rounding: sums that overflow in float32 alone, and steps of floor or
less after a rounded value, are not. Used by `random_layers`.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]
OPSET = 20
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 13)
FLOATS, INTEGERS = ("float32", "float64"), ("int32", "int64")
DTYPES = {*FLOATS, *INTEGERS, "bool"}
NASTY = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-39, 1e-30, 1e30, 1e38, 1e-3, 255.0, -7.0)
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}
LOOSE = 16.0  # units in the last place that one operator may lose
ILL = 1e-2  # a greater relative error than this by rounding alone is no test
SMALL = 4096  # elements of a value, at most
EXACT = (
    *("Relu", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Clip", "Identity", "Max", "Min"),
    *("Where", "Reshape", "Transpose", "Concat", "Slice", "Pad", "Tile", "Expand", "Split"),
    *("Squeeze", "Unsqueeze", "Flatten", "Gather", "Trilu", "MaxPool", "ReduceMax", "ReduceMin"),
    *("GlobalMaxPool", "DepthToSpace", "SpaceToDepth"),
)
# Of two zeros of other signs these give either.
EXTREMES = ("Max", "Min", "Clip", "Relu", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin")
SUMS = (
    *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"),
    *("ReduceLogSumExp", "ReduceProd", "Softmax", "LogSoftmax", "AveragePool", "Conv", "MatMul"),
    *(
        "GlobalAveragePool",
        "Gemm",
        "BatchNormalization",
        "LayerNormalization",
        "Sum",
        "Mean",
        "LRN",
    ),
    *("InstanceNormalization", "Add", "Sub", "ConvTranspose", "Gelu", "HardSwish", "HardSigmoid"),
)
# Of those the ones that take numbers of any size.
LARGE = (
    *("Add", "Sub", "Softmax", "LogSoftmax", "ReduceLogSumExp", "Gelu", "HardSwish"),
    "HardSigmoid",
)
MOST_IN_SUMS = 1e15
# They have terms of 1 inside, or differences of what is of size 1, or onnxruntime's polynomials are
# only that good.
ABSOLUTE = ("Elu", "Softplus", "LogSoftmax", "Sigmoid", "Tanh", "Erf", "LayerNormalization")
EXACTLY_DEFINED = ("Div", "Pow", "ReduceMean")
NOT_ITS_OWN = (*EXACTLY_DEFINED, "Mod")


@dataclass
class Value:
    """A value of the graph: what it is, and the absolute error that rounding may have made."""

    name: str
    array: Array
    error: Array | None = None  # None: exact; zeros: but for the sign of zeros
    known: bool = False

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    @property
    def exact(self) -> bool:
        return self.error is None or not np.any(self.error)

    @property
    def rank(self) -> int:
        return int(self.array.ndim)

    def moved(self, sign: int) -> Array:
        """The value as far off as rounding may have led, to one side."""
        if self.error is None:
            return self.array
        return np.asarray((self.array + sign * self.error).astype(self.array.dtype))


@dataclass
class Net:
    """A model; `wanted[k]` are the arrays one of which output k is, `errors[k]` how nearly."""

    seed: int
    model: onnx.ModelProto
    feeds: dict[str, Array]
    wanted: list[list[Array]]
    errors: list[Array | None]


@dataclass
class Growing:
    rng: np.random.Generator
    special: float
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    last: dict[str, list[Array]] = field(default_factory=dict)  # disputed values: outputs only
    count: int = 0

    def one(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def pick(self, *dtypes: str, exact: bool = False, rank: int = 0) -> Value:
        """One of the values, the latest ones more often; LookupError where none fits."""
        fitting = [
            v
            for v in self.values
            if v.dtype in dtypes and v.rank >= rank and (v.exact or not exact)
        ]
        if not fitting:
            raise LookupError
        return fitting[max(0, len(fitting) - 1 - int(self.rng.exponential(1.5)))]

    def constant(self, array: Any) -> Value:
        found = Value(self.name("c"), np.asarray(array), known=True)
        self.constants.append(numpy_helper.from_array(found.array, found.name))
        return found

    def ints(self, values: Sequence[int]) -> Value:
        return self.constant(np.asarray(values, np.int64))

    def random(self, shape: Sequence[int], dtype: str) -> Array:
        rng, n = self.rng, tuple(shape)
        if dtype == "bool":
            return np.asarray(rng.random(n) < 0.5)
        odd = rng.random(n) < self.special
        if dtype in INTEGERS:
            info = np.iinfo(dtype)
            ends = np.asarray([info.min, info.max, info.min + 1, 0, -1, 1 << 24, 46341], dtype)
            return np.where(odd, rng.choice(ends, n), rng.integers(-9, 10, n).astype(dtype))
        info = np.finfo(dtype)
        ends = [np.nan, np.inf, -np.inf, 0.0, -0.0, float(info.max), -float(info.max)]
        ends += [float(info.tiny), float(info.tiny) / 8, -float(info.tiny) / 4, 88.8, -104.0, 1e9]
        with np.errstate(all="ignore"):
            plain = rng.standard_normal(n) * self.one((1.0, 1.0, 3.0, 30.0))
            return np.where(odd, rng.choice(np.asarray(ends), n), plain).astype(dtype)

    def like(self, v: Value) -> Value:
        """An operand that broadcasts with v: another value, or a constant."""
        same = [u for u in self.values if u.dtype == v.dtype and broadcasts(u.array, v.array)]
        if same and self.chance(0.5):
            return self.one(same)
        shape = [n if self.chance(0.7) else 1 for n in v.array.shape]
        shape = shape[int(self.rng.integers(len(shape) + 1)) :]
        if v.dtype in FLOATS and self.chance(0.4):
            return self.constant(np.asarray(self.one(NASTY), v.dtype))
        return self.constant(self.random(shape, v.dtype))

    def axes(self, v: Value) -> list[int]:
        some = [d for d in range(v.rank) if self.chance(0.5)]
        return some or [int(self.rng.integers(v.rank))]

    def add(
        self, op: str, operands: Sequence[Value | None], outputs: int = 1, **attrs: Any
    ) -> None:
        """Append the node if its value is beyond dispute; LookupError where it is not."""
        names = [self.name("v") for _ in range(outputs)]
        node = helper.make_node(op, [v.name if v else "" for v in operands], names, **attrs)
        given = [v for v in operands if v is not None]
        feeds = {v.name: v.array for v in given}
        first = by_onnxruntime(node, feeds)
        second = by_reference(node, feeds)
        results = first or second
        if results is None or not {str(r.dtype) for r in results} <= DTYPES:
            raise LookupError
        if sum(r.size for r in results) > SMALL:
            raise LookupError
        errors = [self.error(node, given, r, k) for k, r in enumerate(results)]
        disputed = first is not None and second is not None and not agree(first, second, errors)
        if disputed and outputs > 1:
            raise LookupError
        self.nodes.append(node)
        for name, r, e in zip(names, results, errors, strict=True):
            self.values.append(Value(name, r, e))
        if disputed and second is not None:
            self.last[names[0]] = [results[0], second[0]]

    def error(
        self, node: onnx.NodeProto, given: Sequence[Value], got: Array, k: int
    ) -> Array | None:
        """How far rounding may lead: of this node, and of what it was given."""
        inexact = [v for v in given if not v.exact]
        if got.dtype.kind != "f" or (node.op_type in EXACT and not inexact):
            if inexact:
                raise LookupError
            unsigned = node.op_type in EXTREMES or any(v.error is not None for v in given)
            return np.zeros(got.shape) if unsigned and got.dtype.kind == "f" else None
        feeds = {v.name: v.array for v in given}
        size = np.abs(np.nan_to_num(got.astype(np.float64), posinf=0, neginf=0))
        unit = LOOSE * EPSILON[str(got.dtype)]
        with np.errstate(all="ignore"):
            error = size * unit + float(np.finfo(got.dtype).tiny) * 2.0**-20
            if node.op_type in ABSOLUTE:
                error = error + unit
            if node.op_type in SUMS:
                if node.op_type not in LARGE and any(too_large(v.array) for v in given):
                    raise LookupError
                wide = by_reference(node, {n: as_double(a) for n, a in feeds.items()})
                if wide is None or not same_kind(wide[k].astype(got.dtype), got):
                    raise LookupError
                terms = {n: np.abs(as_double(a)) for n, a in feeds.items()}
                if node.op_type == "BatchNormalization":  # whose mean is subtracted
                    terms[node.input[3]] *= -1
                sums = by_reference(node, terms)
                if sums is not None:
                    error = error + np.abs(np.nan_to_num(sums[k], posinf=0.0)) * unit
                error = error + np.abs(np.nan_to_num(wide[k] - got, posinf=0.0, neginf=0.0)) * 4
            for sign in (1, -1) if inexact else ():
                moved = {v.name: v.moved(sign) for v in given}
                other = by_onnxruntime(node, moved) or by_reference(node, moved)
                if other is None or not same_kind(other[k], got):
                    raise LookupError
                apart = np.abs(other[k].astype(np.float64) - got)
                error = error + 2 * np.nan_to_num(apart, posinf=0.0)
            ill = error > ILL * size + float(np.finfo(got.dtype).tiny)
        if np.any(ill & np.isfinite(got)):
            raise LookupError
        return np.asarray(error)


def too_large(a: Array) -> bool:
    """Whether sums of products of these finite numbers may overflow, in one order or another."""
    if a.dtype.kind != "f":
        return False
    size = np.abs(np.where(np.isfinite(a), a, 0))
    return bool(np.any(size > MOST_IN_SUMS))


def broadcasts(a: Array, b: Array) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a.shape, b.shape))) <= SMALL
    except ValueError:
        return False


def as_double(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind == "f" else a


def same_kind(a: Array, b: Array) -> bool:
    """Whether NaN meets NaN, and infinity infinity of its sign."""
    if a.shape != b.shape:
        return False
    return bool(
        np.array_equal(np.isnan(a), np.isnan(b))
        and np.array_equal(np.where(np.isinf(a), a, 0), np.where(np.isinf(b), b, 0), equal_nan=True)
    )


def sign_of_zeros(a: Array) -> Array:
    return np.asarray((a == 0) & np.signbit(a))


def near(got: Array, want: Array, error: Array | None) -> bool:
    """Whether that is the wanted array: dtype, shape, kinds, and values up to the error."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if got.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    if not same_kind(got, want):
        return False
    if error is None and not np.array_equal(sign_of_zeros(got), sign_of_zeros(want)):
        return False
    with np.errstate(all="ignore"):
        apart = np.abs(got.astype(np.float64) - want)
        fits = ~np.isfinite(want) | (apart <= (0 if error is None else error))
    return bool(np.all(fits))


def agree(first: Sequence[Array], second: Sequence[Array], errors: Sequence[Array | None]) -> bool:
    return all(near(a, b, e) for a, b, e in zip(first, second, errors, strict=True))


def single(node: onnx.NodeProto, feeds: dict[str, Array]) -> onnx.ModelProto:
    def info(name: str, a: Array | None) -> onnx.ValueInfoProto:
        kind = 0 if a is None else helper.np_dtype_to_tensor_dtype(a.dtype)
        if a is None:
            return onnx.ValueInfoProto(name=name)
        return helper.make_tensor_value_info(name, kind, a.shape)

    graph = helper.make_graph(
        [node], "one", [info(n, a) for n, a in feeds.items()], [info(n, None) for n in node.output]
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def by_onnxruntime(node: onnx.NodeProto, feeds: dict[str, Array]) -> list[Array] | None:
    if node.op_type in NOT_ITS_OWN and all(a.dtype.kind == "i" for a in feeds.values()):
        return None  # through float, and integers divided by zero end the process
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        raw = single(node, feeds).SerializeToString()
        session = onnxruntime.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
        return [np.asarray(r) for r in session.run(None, feeds)]
    except Exception:  # whatever it does not support
        return None


def by_reference(node: onnx.NodeProto, feeds: dict[str, Array]) -> list[Array] | None:
    operands = [feeds[n] for n in node.input if n]
    if node.op_type in EXACTLY_DEFINED and all(a.dtype.kind == "i" for a in operands):
        return by_definition(node, operands)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(r) for r in ReferenceEvaluator(single(node, feeds)).run(None, feeds)]
    except Exception:  # whatever it does not support
        return None


def by_definition(node: onnx.NodeProto, operands: list[Array]) -> list[Array] | None:
    """Integers: quotients without their fraction, powers and means that fit; None if undefined."""
    dtype = operands[0].dtype
    info = np.iinfo(dtype)
    if node.op_type == "ReduceMean":
        axes = tuple(operands[1].tolist()) if len(operands) > 1 else None
        keep = any(a.name == "keepdims" and a.i for a in node.attribute)
        total = operands[0].astype(object).sum(axis=axes, keepdims=keep)
        count = operands[0].size // max(1, np.size(total))
        if not count:
            return None
        exact = np.asarray(total, object)
        parts = exact, np.full(exact.shape, count, object)
        if np.any((exact < info.min) | (exact > info.max)):
            return None
    else:
        parts = tuple(np.broadcast_arrays(*(a.astype(object) for a in operands)))
    out = np.zeros(parts[0].shape, dtype)
    for at in np.ndindex(out.shape):
        x, y = int(parts[0][at]), int(parts[1][at])
        if node.op_type == "Pow":
            value = x**y if 0 <= y < 64 else None
        else:
            value = (abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)) if y else None
        if value is None or not info.min <= value <= info.max:
            return None
        out[at] = value
    return [out]
