"""Random ONNX graphs of all operators, with NaN, infinities and extremes among their values.

In: a seed. Out: a `Net`: the model, its inputs, and for each output the results that are right and
how nearly. A layer adds one node, or a few that belong together, and gives up (LookupError) where
no value fits; `LAYERS` lists them, the frequent ones several times. Used by random_graphs.py.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from random_onnx import EXTENTS, FLOATS, INTEGERS, NASTY, OPSET, Growing, Net, Value, broadcasts

SMOOTH = ("Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Erf", "Softplus", "Reciprocal", "Elu")
STEPS = ("Floor", "Ceil", "Round", "Sign")


def unary(g: Growing) -> None:
    op = g.one(SMOOTH)
    g.add(op, [g.pick("float32") if op == "Erf" else g.pick(*FLOATS)])  # theirs is float32's


def plain_unary(g: Growing) -> None:
    g.add(g.one(("Relu", "Neg", "Abs", "Identity")), [g.pick(*FLOATS, *INTEGERS)])


def step(g: Growing) -> None:
    g.add(g.one(STEPS), [g.pick(*FLOATS, exact=True)])


def curve(g: Growing) -> None:
    op = g.one(("LeakyRelu", "HardSigmoid", "HardSwish", "Gelu", "Elu"))
    attrs: dict[str, Any] = {}
    if op in ("LeakyRelu", "Elu"):
        attrs["alpha"] = g.one((0.0, 0.1, 1.0, 2.0))
    if op == "Gelu":
        attrs["approximate"] = g.one(("none", "tanh"))
    g.add(op, [g.pick("float32")], **attrs)


def prelu(g: Growing) -> None:
    x = g.pick("float32", rank=1)
    g.add("PRelu", [x, g.constant(g.random(x.array.shape[-1:], x.dtype))])


def clip(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS)
    bounds = [g.constant(g.random((), x.dtype)) if g.chance(0.7) else None for _ in range(2)]
    g.add("Clip", [x, *bounds])


def binary(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS)
    pair = [x, g.like(x)]
    if g.chance(0.3):
        pair.reverse()
    g.add(g.one(("Add", "Sub", "Mul", "Div", "Max", "Min", "Mul", "Div")), pair)


def chained(g: Growing) -> None:
    """Two or three constants after another, as scales and shifts are."""
    x = g.pick(*FLOATS)
    for _ in range(int(g.rng.integers(2, 4))):
        g.add(
            g.one(("Mul", "Div", "Add", "Mul")), [x, g.constant(np.asarray(g.one(NASTY), x.dtype))]
        )
        x = g.values[-1]


def power(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS)
    if x.dtype in INTEGERS:
        exponent = g.constant(g.rng.integers(0, 5, x.array.shape).astype(x.dtype))
    else:
        exponent = g.constant(np.asarray(g.one((0.5, 2.0, -1.0, 3.0, 0.0, 1.0, 1.7)), x.dtype))
    g.add("Pow", [x, exponent])


def modulo(g: Growing) -> None:
    x = g.pick(*INTEGERS)
    other = np.where(r := g.random(x.array.shape, x.dtype), r, 3).astype(x.dtype)
    g.add("Mod", [x, g.constant(other)], fmod=int(g.chance(0.5)))


def compare(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS, exact=True)
    other = g.like(x)
    if not other.exact:
        raise LookupError
    g.add(g.one(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")), [x, other])


def logic(g: Growing) -> None:
    x = g.pick("bool")
    if g.chance(0.3):
        g.add("Not", [x])
    else:
        g.add(g.one(("And", "Or", "Xor")), [x, g.like(x)])


def where(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS)
    fitting = [v for v in g.values if v.dtype == "bool" and broadcasts(v.array, x.array)]
    mask = g.one(fitting) if fitting else g.constant(g.random(x.array.shape, "bool"))
    g.add("Where", [mask, x, g.like(x)])


def cast(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS, "bool", exact=True)
    to = g.one((*FLOATS, *INTEGERS, "bool"))
    if x.dtype in FLOATS and to in INTEGERS:
        with np.errstate(all="ignore"):
            if not np.all(np.abs(x.array) < 2.0**31):
                raise LookupError
    g.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def wide(g: Growing) -> None:
    x = g.pick(*FLOATS)
    g.add(g.one(("Sum", "Mean", "Max", "Min")), [x, *(g.like(x) for _ in range(g.one((0, 1, 3))))])


def reduction(g: Growing) -> None:
    ops = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"]
    x = g.pick(*FLOATS, *INTEGERS, rank=1)
    if x.dtype in FLOATS:
        ops += ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"]
    operands = [x] if g.chance(0.2) else [x, g.ints(g.axes(x))]
    op = g.one(ops)
    if op == "ReduceProd" and not np.all(np.abs(x.array.astype(float)) < 100):
        raise LookupError  # the order of the factors decides what overflows
    g.add(op, operands, keepdims=int(g.chance(0.5)))


def place(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS, exact=True, rank=1)
    flags = {"keepdims": int(g.chance(0.5)), "select_last_index": int(g.chance(0.5))}
    axis = int(g.rng.integers(-x.rank, x.rank))
    if not x.array.size:
        raise LookupError
    g.add(g.one(("ArgMax", "ArgMin")), [x], axis=axis, **flags)


def softmax(g: Growing) -> None:
    x = g.pick(*FLOATS, rank=1)
    g.add(g.one(("Softmax", "LogSoftmax")), [x], axis=int(g.rng.integers(-x.rank, x.rank)))


def image(g: Growing) -> Value:
    x = g.pick("float32", rank=3)
    if x.rank > 4:
        raise LookupError
    return x


def pool(g: Growing) -> None:
    x = image(g)
    if 0 in x.array.shape[2:]:
        raise LookupError
    kernel = [int(g.rng.integers(1, min(3, n) + 1)) for n in x.array.shape[2:]]
    pads = [int(g.rng.integers(0, (k + 1) // 2)) for k in kernel] * 2
    attrs = {"kernel_shape": kernel, "pads": pads, "strides": [g.one((1, 2)) for _ in kernel]}
    op = g.one(("MaxPool", "AveragePool"))
    if op == "MaxPool" and not np.all(x.array > -np.inf):
        raise LookupError  # theirs starts from the least finite number and drops NaN
    if op == "AveragePool":
        attrs["count_include_pad"] = int(g.chance(0.5))
    g.add(op, [x], ceil_mode=int(g.chance(0.3)), **attrs)


def global_pool(g: Growing) -> None:
    x = image(g)
    ops = ("GlobalAveragePool", "GlobalMaxPool")
    g.add(g.one(ops if np.all(x.array > -np.inf) else ops[:1]), [x])


def conv(g: Growing) -> None:
    x = image(g)
    channels, kernel = x.array.shape[1], [g.one((1, 2, 3)) for _ in x.array.shape[2:]]
    if any(k > n for k, n in zip(kernel, x.array.shape[2:], strict=True)):
        raise LookupError
    groups = channels if channels and g.chance(0.3) else 1
    out = groups * g.one((1, 2, 3))
    weights = g.rng.standard_normal((out, channels // groups, *kernel)).astype(np.float32)
    pads = [int(g.rng.integers(0, 2)) for _ in kernel] * 2
    operands = [x, g.constant(weights)]
    if g.chance(0.5):
        operands.append(g.constant(g.rng.standard_normal(out).astype(np.float32)))
    g.add("Conv", operands, group=groups, pads=pads, strides=[g.one((1, 2)) for _ in kernel])
    if g.chance(0.5):
        normalise(g, g.values[-1])


def normalise(g: Growing, x: Value) -> None:
    c = x.array.shape[1]
    scale, bias, mean = (g.rng.standard_normal(c) * g.one((1, 1, 1e-5, 100)) for _ in range(3))
    rows = (scale, bias, mean, g.rng.random(c) * g.one((1, 1, 1e-6)) + 1e-7)
    operands = [g.constant(v.astype(x.dtype)) for v in rows]
    g.add("BatchNormalization", [x, *operands], epsilon=g.one((1e-5, 1e-3)))


def batch_norm(g: Growing) -> None:
    normalise(g, g.pick("float32", rank=2))


def other_norm(g: Growing) -> None:
    if g.chance(0.5):
        x = g.pick("float32", rank=1)
        n = x.array.shape[-1:]
        operands = [g.constant(g.rng.standard_normal(n).astype(np.float32)) for _ in range(2)]
        g.add("LayerNormalization", [x, *operands], axis=-1)
    else:
        x = image(g)
        n = x.array.shape[1:2]
        operands = [g.constant(g.rng.standard_normal(n).astype(np.float32)) for _ in range(2)]
        g.add("InstanceNormalization", [x, *operands])


def matmul(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS, rank=1)
    k, n = x.array.shape[-1], g.one((1, 3, 8))
    g.add("MatMul", [x, g.constant(g.random((k, n) if g.chance(0.8) else (k,), x.dtype))])


def gemm(g: Growing) -> None:
    x = g.pick("float32", rank=2)
    if x.rank > 2:
        raise LookupError
    m, k = x.array.shape
    w = g.constant(g.rng.standard_normal((5, k)).astype(np.float32))
    c = g.constant(g.random(g.one(((5,), (1, 5), (m, 1), ())), "float32"))
    g.add("Gemm", [x, w, c], transB=1, alpha=g.one((1.0, 0.5)), beta=g.one((1.0, 2.0)))


def movement(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS, "bool")
    shape, rank, rng = x.array.shape, x.rank, g.rng
    match g.one(("flat", "flip", "slice", "pad", "tile", "expand", "squeeze", "split", "join")):
        case "flat":
            g.add("Reshape", [x, g.ints([x.array.size] if g.chance(0.5) else [1, x.array.size, 1])])
        case "flip" if rank:
            g.add("Transpose", [x], perm=[int(p) for p in rng.permutation(rank)])
        case "slice" if rank:
            axis = int(rng.integers(rank))
            first, last, by = (
                int(rng.integers(-9, 9)),
                int(rng.integers(-9, 9)),
                g.one((1, 2, -1)),
            )
            g.add("Slice", [x, *(g.ints([v]) for v in (first, last, axis, by))])
        case "pad" if rank:
            widths = g.ints([int(v) for v in rng.integers(0, 3, 2 * rank)])
            fill = g.constant(g.random((), x.dtype))
            g.add("Pad", [x, widths, fill], mode="constant")
        case "tile" if rank:
            least = 0 if g.chance(0.1) else 1
            g.add("Tile", [x, g.ints([int(v) for v in rng.integers(least, 3, rank)])])
        case "expand":
            g.add("Expand", [x, g.ints([g.one((1, 2)), *shape])])
        case "squeeze":
            g.add("Unsqueeze", [x, g.ints([g.one((0, -1))])])
        case "split" if rank and shape[-1] > 1:
            sizes = [1, shape[-1] - 1] if g.chance(0.8) else [0, shape[-1]]
            g.add("Split", [x, g.ints(sizes)], 2, axis=-1)
        case "join" if rank:
            axis = int(rng.integers(rank))
            other = (*shape[:axis], g.one((0, 1, 3)), *shape[axis + 1 :])
            parts = [x, g.constant(g.random(other, x.dtype)), x]
            g.add("Concat", parts[: int(rng.integers(1, 4))], axis=axis)
        case _:
            raise LookupError


def gather(g: Growing) -> None:
    x = g.pick(*FLOATS, *INTEGERS, rank=1)
    axis = int(g.rng.integers(x.rank))
    n = x.array.shape[axis]
    if not n:
        raise LookupError
    held = [v for v in g.values if v.dtype in INTEGERS and v.array.size and not v.known]
    held = [v for v in held if v.rank < 3 and v.array.min() >= -n and v.array.max() < n]
    index = g.rng.integers(-n, n, g.one(((), (1,), (2, 3), (0,))))
    g.add("Gather", [x, g.one(held) if held else g.constant(np.asarray(index))], axis=axis)


def triangle(g: Growing) -> None:
    k = g.constant(np.asarray(g.rng.integers(-2, 3), np.int64))
    g.add("Trilu", [g.pick(*FLOATS, *INTEGERS, rank=2), k], upper=int(g.chance(0.5)))


LAYERS: tuple[Callable[[Growing], None], ...] = (
    *(unary, unary, plain_unary, step, curve, curve, prelu, clip, clip, binary, binary, binary),
    *(chained, chained, power, modulo, compare, logic, where, cast, cast, wide, reduction),
    *(reduction, reduction, place, softmax, pool, global_pool, conv, batch_norm, other_norm),
    *(matmul, gemm, movement, movement, movement, gather, triangle),
)


def random_net(seed: int) -> Net:
    """The graph of that seed."""
    for attempt in range(100):
        with suppress(LookupError):  # no value of its inputs is beyond dispute
            return _net(seed, np.random.default_rng([seed, attempt] if attempt else seed))
    raise LookupError(f"no graph of seed {seed}")


def _net(seed: int, rng: np.random.Generator) -> Net:
    g = Growing(rng, float(rng.choice([0.0, 0.05, 0.3, 0.6])))
    kinds = ("float32", "float32", "float32", "float64", "int32", "int64", "bool")
    empty = rng.random() < 0.12
    for _ in range(int(rng.integers(1, 4))):
        rank = int(rng.choice([0, 1, 2, 3, 4], p=[0.1, 0.2, 0.25, 0.2, 0.25]))
        shape = [g.one(EXTENTS) for _ in range(rank)]
        if empty and shape and g.chance(0.6):
            shape[int(rng.integers(len(shape)))] = 0
        g.values.append(Value(g.name("x"), g.random(shape, g.one(kinds))))
    inputs = list(g.values)
    for v in inputs[1:]:
        if g.chance(0.3):
            v.known = True
            g.constants.append(numpy_helper.from_array(v.array, v.name))
    wanted_nodes = int(rng.integers(1, 10))
    for _ in range(4 * wanted_nodes):
        if len(g.nodes) >= wanted_nodes or g.last:
            break
        try:
            g.one(LAYERS)(g)
        except LookupError:
            continue
    if not g.nodes:
        g.add("Identity", [inputs[0]])
    made = {name for n in g.nodes for name in n.output}
    outputs = [v for v in g.values if v.name in made][-1:]
    others = [v for v in g.values if v.name in made and v not in outputs]
    if others and g.chance(0.3):
        outputs.append(g.one(others))
    feeds = {v.name: v.array for v in inputs if not v.known}

    def info(v: Value) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(v.array.dtype)
        return helper.make_tensor_value_info(v.name, kind, v.array.shape)

    graph = helper.make_graph(
        g.nodes,
        f"seed{seed}",
        [info(v) for v in inputs if not v.known],
        [info(v) for v in outputs],
        g.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    wanted = [g.last.get(v.name, [v.array]) for v in outputs]
    return Net(seed, model, feeds, wanted, [v.error for v in outputs])
