"""An int8 network from one in float32, by ranges of values on given inputs: `quantize`.

In: a `Graph` and calibration inputs. Out: a `QuantizedGraph`: the same network with `quantize` and
`dequantize` around products and pools, weights in int8, symmetric, with a scale for each channel,
and a report of what that costs. `graph.quantized` makes integer kernels of it, as of any network
that came quantised.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from ansorlite.errors import ModelError, UsageError
from ansorlite.graph import rewrites as rw
from ansorlite.graph.accuracy import Accuracy, compared
from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.calibration import METHODS, Range, Ranges
from ansorlite.graph.integers import MIDDLE
from ansorlite.graph.ir import Graph, Node, check_inputs, evaluate
from ansorlite.graph.quantized import MOVES
from ansorlite.graph.types import Array, ints
from ansorlite.names import brief

Method = Literal["minmax", "percentile", "entropy"]
assert get_args(Method) == METHODS

# Before calibration: batch norms are in weights, and nothing but products has weights.
PREPARED = (
    rw.remove_dead_nodes,
    rw.fold_constants,
    rw.remove_empty,
    rw.remove_identities,
    rw.lower_batch_norm,
    rw.lower_gemm,
    rw.lower_conv_transpose,
    rw.split_bias,
    rw.fold_pad,
    rw.simplify_arithmetic,
    rw.fold_scales,
    rw.remove_identities,
)
POOLS = ("max_pool", "sum_pool", "avg_pool")
LEVELS = 255  # steps of uint8


@dataclass(frozen=True)
class Layer:
    """A product with constant weights: its node, and whether it runs in int8.

    `error` is the difference that int8 makes to its own result, as the root of the sum of squares,
    divided by that of the result.
    """

    name: str
    op: str
    runs_in: str
    error: float


@dataclass(frozen=True)
class Quantization:
    """What `quantize` did: an `Accuracy` an output over all calibration inputs, and the layers."""

    method: str
    accuracy: tuple[Accuracy, ...] = ()
    layers: tuple[Layer, ...] = ()

    def __str__(self) -> str:
        low = [x for x in self.layers if x.runs_in == "int8"]
        lines = [f"{len(low)} of {len(self.layers)} layers in int8 ({self.method})"]
        lines += [str(a) for a in self.accuracy]
        kept = [x for x in self.layers if x not in low]
        lines += [f"{brief(x.name)} ({x.op}) stays float32: error {x.error:.2g}" for x in kept]
        return "\n".join(lines)


@dataclass(frozen=True)
class QuantizedGraph(Graph):
    """A network that `quantize` made; `quantization` is its report."""

    quantization: Quantization = field(default=Quantization("minmax"), compare=False)


def quantize(
    network: Graph,
    calibration_inputs: Iterable[Any],
    method: Method = "minmax",
    *,
    max_error: float | None = None,
    percentile: float = 99.99,
) -> QuantizedGraph:
    """The network in int8, calibrated by its values on given inputs.

    >>> small = quantize(net, [x1, x2, x3], max_error=0.05)
    >>> print(small.quantization)
    >>> module = auto_schedule(small, timeout=300)

    `calibration_inputs` are sets of inputs as they come in use, some tens: an array each for a
    network of one input, else a sequence in input order or a dict by name. Convolutions and matrix
    products with constant weights compute in int8; what they and pools read is stored as uint8
    whose range is that of the values ("minmax"), without the rarest on both ends (`percentile` of
    the values lie inside), or where a histogram of that range is closest to that of the values
    ("entropy"). All else computes in float32.

    With `max_error`, layers whose own results lose most stay float32 until the largest error of the
    outputs on the calibration inputs, in units of the largest value, is at most that. Everything is
    evaluated in numpy: seconds for each set of inputs of a large network.

    Raises UsageError for arguments without a meaning and where there are no inputs, ModelError for
    inputs that do not fit or are not finite, and for a network without such products.
    """
    samples = _samples(network, calibration_inputs, method, max_error, percentile)
    graph = network
    for step in PREPARED:
        graph = step(graph)
    layers = [n for n in graph.nodes if _is_layer(graph, n)]
    if not layers:
        raise ModelError(
            f"network {brief(network.name)} has no convolution or product with constant weights"
        )
    ranges = _ranges(graph, layers, samples, method, percentile)
    errors = _errors(graph, layers, ranges, samples)
    wanted = [evaluate(graph, s) for s in samples]
    by_error = sorted(layers, key=lambda n: -errors[n.output])

    def with_floats(count: int) -> tuple[Graph, tuple[Accuracy, ...]]:
        low = {n.output for n in by_error[count:]}
        made = _lowered(graph, low, ranges)
        return made, _accuracy(made, samples, wanted)

    floats = 0
    made, accuracy = with_floats(0)
    if max_error is not None and _largest(accuracy) > max_error:
        few, many = 0, len(layers)  # few are too few, with many the network is as it was
        floats, (made, accuracy) = many, with_floats(many)
        while many - few > 1:
            middle = (few + many) // 2
            tried = with_floats(middle)
            if _largest(tried[1]) <= max_error:
                floats, many, (made, accuracy) = middle, middle, tried
            else:
                few = middle
    kept = {n.output for n in by_error[:floats]}
    told = tuple(
        Layer(n.name, n.op, "float32" if n.output in kept else "int8", errors[n.output])
        for n in layers
    )
    parts = (made.name, made.nodes, made.inputs, made.outputs, made.types, made.constants)
    return QuantizedGraph(*parts, Quantization(method, accuracy, told))


def _largest(found: Sequence[Accuracy]) -> float:
    return max((a.largest for a in found), default=0.0)


def _accuracy(
    made: Graph, samples: Sequence[Sequence[Array]], wanted: Sequence[tuple[Array, ...]]
) -> tuple[Accuracy, ...]:
    """One `Accuracy` an output over all samples."""
    got = [evaluate(made, s) for s in samples]
    return tuple(
        compared(v, np.stack([g[k] for g in got]), np.stack([w[k] for w in wanted]))
        for k, v in enumerate(made.outputs)
    )


# ---- arguments ----------------------------------------------------------------------------------


def _samples(
    network: Graph, given: Any, method: str, max_error: float | None, percentile: float
) -> list[list[Array]]:
    """Sets of arrays in input order; errors name the set and the input."""
    if not isinstance(network, Graph):
        raise UsageError(f"{type(network).__name__} is no network of one size: quantise a Graph")
    if method not in METHODS:
        raise UsageError(f"method is {method!r}: choose one of {', '.join(METHODS)}")
    if max_error is not None and not (isinstance(max_error, int | float) and max_error >= 0):
        raise UsageError(f"max_error is {max_error!r}: give a number of at least 0")
    if not (isinstance(percentile, int | float) and 50 < percentile <= 100):
        raise UsageError(f"percentile is {percentile!r}: give a number above 50, at most 100")
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"calibration_inputs is {type(given).__name__}: give a list of inputs")
    out = []
    for k, item in enumerate(given, 1):
        try:
            arrays = check_inputs(network, _in_order(network, item))
        except ModelError as error:
            raise ModelError(f"calibration inputs {k}: {error}") from None
        for name, x in arrays.items():
            if x.dtype.kind == "f" and not np.isfinite(x).all():
                raise ModelError(
                    f"calibration inputs {k}: input {brief(name)} has values that are not finite"
                )
        out.append([arrays[v] for v in network.inputs])
    if not out:
        raise UsageError("there are no calibration inputs: give some tens of the network's inputs")
    return out


def _in_order(network: Graph, item: Any) -> Sequence[Any]:
    """One set of inputs as a sequence."""
    if isinstance(item, Mapping):
        missing = [v for v in network.inputs if v not in item]
        beyond = [v for v in item if v not in network.inputs]
        if missing or beyond:
            word = "has no value" if missing else "is no input of the network"
            raise ModelError(f"{brief(str((missing or beyond)[0]))} {word}")
        return [item[v] for v in network.inputs]
    if isinstance(item, tuple | list):
        return item
    return [item]


# ---- what is quantised --------------------------------------------------------------------------


def _is_layer(graph: Graph, node: Node) -> bool:
    """A convolution, or a product with a matrix, of float32 and finite constant weights."""
    if node.op not in ("conv", "matmul") or len(node.inputs) != 2:
        return False
    w = graph.constants.get(node.inputs[1])
    if w is None or w.dtype != np.float32 or w.ndim < 2 or not w.size:
        return False
    matrix = node.op == "conv" or w.ndim == 2
    return matrix and node.inputs[0] not in graph.constants and bool(np.isfinite(w).all())


def _read_as_bytes(graph: Graph, low: set[str]) -> dict[str, str]:
    """The values that are stored as uint8, each with the value whose range it has.

    What products of `low` read, what pools of pixels between them read, and what is moved there.
    """
    producers, found = graph.producers, dict[str, str]()
    after = set[str]()  # values that come from products by element-wise operators and moves
    for n in graph.nodes:
        if n.output in low or (
            (n.operator.kind == "elementwise" or n.op in (*MOVES, *POOLS, "concat", "pad"))
            and any(v in after for v in n.inputs)
        ):
            after.add(n.output)
        pools = n.op in POOLS
        if n.op in ("reduce_mean", "reduce_sum") and len(graph.types[n.inputs[0]].shape) == 4:
            pools = ints(n.attrs, "axes") == (2, 3)
        reads = n.output in low or (pools and n.inputs[0] in after)
        if reads and graph.types[n.inputs[0]].dtype == "float32":
            found[n.inputs[0]] = n.inputs[0]
    work = list(found)
    while work:
        v = work.pop()
        node = producers.get(v)
        if node is None or node.op not in (*MOVES, "concat", "pad"):
            continue
        for x in node.inputs if node.op == "concat" else node.inputs[:1]:
            known = x in graph.constants or graph.types[x].dtype != "float32"
            if not known and (x in after or x in graph.inputs) and x not in found:
                found[x] = found[v]
                work.append(x)
    return found


def _ranges(
    graph: Graph,
    layers: Sequence[Node],
    samples: Sequence[Sequence[Array]],
    method: str,
    percentile: float,
) -> dict[str, Range]:
    """The range of each value that is stored in bytes."""
    values = set(_read_as_bytes(graph, {n.output for n in layers}).values())
    watched = Ranges(values, method, percentile)
    for _ in range(watched.passes):
        for s in samples:
            evaluate(graph, s, watched.see)
        watched.next_pass()
    return watched.found()


def _errors(
    graph: Graph,
    layers: Sequence[Node],
    ranges: Mapping[str, Range],
    samples: Sequence[Sequence[Array]],
) -> dict[str, float]:
    """How much int8 changes the result of each layer, on the first of the inputs."""
    own = {n.output: n for n in layers}
    source = _read_as_bytes(graph, set(own))
    weights = {n.output: _weights_of(graph, n) for n in layers}
    values = dict(zip(graph.inputs, samples[0], strict=True))
    readers, found = {n.inputs[0] for n in layers}, dict[str, float]()

    def see(v: str, x: Array) -> None:
        if v in readers:
            values[v] = x
        if v in own:
            node = own[v]
            data = ranges[source[node.inputs[0]]].rounded(values[node.inputs[0]])
            stored, scale = weights[v]
            got = node.operator.meaning(node.attrs, (data, stored.astype(np.float32) * scale))
            size = float(np.square(x, dtype=np.float64).sum())
            lost = float(np.square(np.subtract(got, x, dtype=np.float64)).sum())
            found[v] = float(np.sqrt(lost / (size or 1.0)))

    evaluate(graph, samples[0], see)
    return found


def _weights_of(graph: Graph, node: Node) -> tuple[Array, Any]:
    """int8 weights and float32 scales that broadcast to them, one for each output channel."""
    w: Any = graph.constants[node.inputs[1]]
    axis = 0 if node.op == "conv" else w.ndim - 1
    others = tuple(d for d in range(w.ndim) if d != axis)
    most = np.abs(w).max(axis=others, keepdims=True)
    tiny = np.finfo(np.float32).tiny
    scale = np.maximum(most / np.float32(MIDDLE - 1), tiny * MIDDLE).astype(np.float32)
    stored = np.clip(np.round(w / scale), 1 - MIDDLE, MIDDLE - 1).astype(np.int8)
    return stored, scale


def _lowered(graph: Graph, low: set[str], ranges: Mapping[str, Range]) -> Graph:
    """rewrite: product(x, w) -> product(dequantize(quantize(x)), dequantize(int8 w)) for `low`"""
    sources = _read_as_bytes(graph, low)
    scaled: dict[str, str] = {}  # new names: value -> the value as it is read from bytes

    def from_bytes(r: Rewriter, old: str, new: str) -> str:
        if new not in scaled:
            span = ranges[sources[old]]
            step = r.constant(np.asarray(span.step, np.float32), f"{old}.step")
            point = r.constant(np.asarray(span.point, np.float32), f"{old}.point")
            whole = r.constant(np.asarray(span.point, np.uint8), f"{old}.zero")
            stored = r.emit("quantize", [new, step, point], f"{old}.uint8", dtype="uint8")
            scaled[new] = r.emit("dequantize", [stored, step, whole], f"{old}.read")
        return scaled[new]

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        own = [
            from_bytes(r, v, x) if v in sources else x for v, x in zip(node.inputs, xs, strict=True)
        ]
        if node.output in low:
            stored, scale = _weights_of(graph, node)
            w = node.inputs[1]
            parts = [r.constant(stored, f"{w}.int8"), r.constant(scale, f"{w}.scale")]
            zero = r.constant(np.zeros((), np.int8), f"{w}.zero")
            r.builder.fold = False  # the bytes are kept
            own[1] = r.emit("dequantize", [*parts, zero], f"{w}.read")
            r.builder.fold = True
        return None if own == xs else r.emit(node.op, own, node.output, **node.attrs)

    return rewrite(graph, rule)
