"""Local rewrites of operators: identities, arithmetic with constants, batch norm, bias, means.

Each pass is Graph -> Graph and documented as `rewrite: before -> after`. After them a network has
convolutions and matrix products without bias, followed by `add` of a constant; factors that follow
them are in the weights; no "source" operators but those of `layout.channels_last` are left.
Arithmetic is rewritten where `graph.safety` says that the constants allow it.
"""

import math

import numpy as np

from ansorlite.graph import safety
from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.ops.pool import window_counts
from ansorlite.graph.ops.windows import spatial_axes
from ansorlite.graph.types import Array, Attr, broadcast, integer, ints, number, pairs, text


def remove_dead_nodes(graph: Graph) -> Graph:
    """rewrite: v = op(...) that no output depends on -> (nothing)"""
    return rewrite(graph, lambda r, node, xs: None)


def fold_constants(graph: Graph) -> Graph:
    """rewrite: v = op(constants) -> v = constant"""
    return rewrite(graph, lambda r, node, xs: None)


def remove_empty(graph: Graph) -> Graph:
    """rewrite: v of no element -> constant; concat(x, empty) -> concat(x); sums and extremes over
    no element -> constant"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        kind = graph.types[node.output]
        empty = [v for v in xs if r.size(v) == 0]
        if kind.size == 0:
            return r.constant(np.zeros(kind.shape, kind.dtype), node.output)
        if not empty:
            return None
        if node.op == "concat":
            return r.emit("concat", [v for v in xs if v not in empty], node.output, **node.attrs)
        arrays = [r.known(v) for v in xs]
        for k, v in enumerate(xs):
            if v in empty:
                arrays[k] = np.zeros(r.shape(v), r.dtype(v))
        if any(a is None for a in arrays):  # a bias that is not known is split off first
            return None
        result = node.operator.meaning(node.attrs, tuple(arrays))
        return r.constant(np.asarray(result), node.output)

    return rewrite(graph, rule)


MOST_OPERANDS = 32  # of one kernel of a concat


def split_wide(graph: Graph) -> Graph:
    """rewrite: concat(x1, x2, ...) of many operands -> concat(concat(x1, ...), concat(...), ...)"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "concat" or len(xs) <= MOST_OPERANDS:
            return None
        while len(xs) > MOST_OPERANDS:
            parts = [xs[k : k + MOST_OPERANDS] for k in range(0, len(xs), MOST_OPERANDS)]
            xs = [
                r.emit("concat", p, f"{node.output}.part", **node.attrs) if len(p) > 1 else p[0]
                for p in parts
            ]
        return r.emit("concat", xs, node.output, **node.attrs)

    return rewrite(graph, rule)


def join_slices(graph: Graph) -> Graph:
    """rewrite: concat(slice(x, ..a), slice(x, a..b), y) -> concat(slice(x, ..b), y)"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "concat":
            return None
        axis = integer(node.attrs, "axis")
        kept: list[str] = []
        for v in xs:
            joined = _joined_slices(r, kept[-1], v, axis) if kept else None
            kept[-1:] = [*kept[-1:], v] if joined is None else [joined]
        if len(kept) == len(xs):
            return None
        return kept[0] if len(kept) == 1 else r.emit("concat", kept, node.output, **node.attrs)

    return remove_identities(rewrite(graph, rule))


def _joined_slices(r: Rewriter, one: str, other: str, axis: int) -> str | None:
    """The slice of what two slices have in turn along an axis; None where they do not fit."""
    a, b = (r.builder.producers.get(v) for v in (one, other))
    if a is None or b is None or a.op != "slice" or b.op != "slice" or a.inputs != b.inputs:
        return None
    if {*ints(a.attrs, "steps"), *ints(b.attrs, "steps")} != {1}:
        return None
    starts, sizes = ints(a.attrs, "starts"), ints(a.attrs, "sizes")
    after = (*starts[:axis], starts[axis] + sizes[axis], *starts[axis + 1 :])
    if ints(b.attrs, "starts") != after:
        return None
    both = (*sizes[:axis], sizes[axis] + ints(b.attrs, "sizes")[axis], *sizes[axis + 1 :])
    return r.emit("slice", a.inputs, one, starts=starts, sizes=both, steps=(1,) * len(both))


def view_slices(graph: Graph) -> Graph:
    """rewrite: slice(x) of elements that lie side by side -> part(x), which copies nothing

    A slice stays where a chain of element-wise operators joins it and computes no other element.
    Integers stay: they may be indices, which are checked value by value.
    """

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "slice" or r.dtype(xs[0]).startswith(("int", "uint")):
            return None
        inner, shape = r.sole(xs[0]), r.shape(xs[0])
        if inner is not None and inner.operator.kind == "elementwise":
            return None
        start = _first_of_run(node, shape)
        if start is None:
            return None
        return r.emit("part", xs, node.output, start=start, shape=ints(node.attrs, "sizes"))

    return rewrite(graph, rule)


def _first_of_run(node: Node, shape: tuple[int, ...]) -> int | None:
    """The first element of a slice whose elements lie side by side; None for any other."""
    starts, sizes, steps = (ints(node.attrs, k) for k in ("starts", "sizes", "steps"))
    cut = next((d for d, n in enumerate(sizes) if n != 1), len(sizes))
    if cut < len(sizes) and (steps[cut] != 1 or sizes[cut + 1 :] != shape[cut + 1 :]):
        return None
    if any(n > 1 and step != 1 for n, step in zip(sizes[cut:], steps[cut:], strict=True)):
        return None
    return sum(at * math.prod(shape[d + 1 :]) for d, at in enumerate(starts))


def remove_identities(graph: Graph) -> Graph:
    """rewrite: identity(x), reshape(x, x.shape), transpose(x, 0..n) ... -> x;
    a reduction over axes of extent 1 -> reshape; those axes leave softmax"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        operator, result = node.operator, graph.types[node.output]
        if operator.identity(node.attrs, tuple(r.type(v) for v in xs), result):
            return xs[0]
        if operator.combiner and r.size(xs[0]) == result.size:
            return r.emit("reshape", xs, node.output, shape=result.shape)
        if node.op == "softmax":
            axes, shape = ints(node.attrs, "axes"), r.shape(xs[0])
            real = tuple(a for a in axes if shape[a] > 1) or axes[:1]
            return r.emit("softmax", xs, node.output, axes=real) if real != axes else None
        return None

    return rewrite(graph, rule)


def merge_duplicates(graph: Graph) -> Graph:
    """rewrite: u = op(x), v = op(x) -> u = op(x), and u for v"""
    seen: dict[tuple[object, ...], str] = {}

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        key = (node.op, *xs, *sorted(node.attrs.items()))
        if key not in seen:
            seen[key] = r.builder.emit(node.op, xs, node.output, node.name, **node.attrs)
        return seen[key]

    return rewrite(graph, rule)


def lower_batch_norm(graph: Graph) -> Graph:
    """rewrite: batch_norm(x, scale, bias, mean, var) -> x * s + (bias - mean * s),
    s = scale / sqrt(var + epsilon), where that cannot cancel; else as it is written"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "batch_norm":
            return None
        known = [array for v in xs[1:] if (array := r.known(v)) is not None]
        rounded, epsilon = safety.is_sum(r, xs[0]), number(node.attrs, "epsilon")
        if len(known) < 4 or not safety.folds_norm(tuple(known), epsilon, rounded):
            return _norm_as_written(r, node, xs)
        x, scale, bias, mean, var = xs
        column = (*r.shape(scale), *(1,) * (len(r.shape(x)) - 2))
        small = r.constant(np.asarray(epsilon, r.dtype(x)), "epsilon")
        root = r.emit("sqrt", [r.emit("add", [var, small])])
        s = r.emit("div", [scale, root])
        t = r.emit("sub", [bias, r.emit("mul", [mean, s])])
        s = r.emit("reshape", [s], f"{node.output}.scale", shape=column)
        t = r.emit("reshape", [t], f"{node.output}.shift", shape=column)
        out = r.emit("mul", [x, s], f"{node.output}.scaled")
        return r.emit("add", [out, t], node.output)

    return rewrite(graph, rule)


def batch_norm_as_written(graph: Graph) -> Graph:
    """rewrite: batch_norm(x, scale, bias, mean, var)
    -> (x - mean) / sqrt(var + epsilon) * scale + bias"""
    return rewrite(
        graph,
        lambda r, node, xs: _norm_as_written(r, node, xs) if node.op == "batch_norm" else None,
    )


def _norm_as_written(r: Rewriter, node: Node, xs: list[str]) -> str:
    x = xs[0]
    column = (*r.shape(xs[1]), *(1,) * (len(r.shape(x)) - 2))
    scale, bias, mean, var = (r.emit("reshape", [v], v, shape=column) for v in xs[1:])
    epsilon = r.constant(np.asarray(number(node.attrs, "epsilon"), r.dtype(x)), "epsilon")
    root = r.emit("sqrt", [r.emit("add", [var, epsilon])])
    out = r.emit("div", [r.emit("sub", [x, mean]), root], f"{node.output}.normal")
    return r.emit("add", [r.emit("mul", [out, scale], f"{node.output}.scaled"), bias], node.output)


def lower_gemm(graph: Graph) -> Graph:
    """rewrite: gemm(a, b, c) -> a @ b + c, with constants transposed and scaled ahead of time"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "gemm":
            return None
        a, b = xs[0], xs[1]
        alpha, beta = number(node.attrs, "alpha"), number(node.attrs, "beta")
        a = r.emit("transpose", [a], perm=(1, 0)) if node.attrs["trans_a"] else a
        b = r.emit("transpose", [b], f"{b}.t", perm=(1, 0)) if node.attrs["trans_b"] else b
        last = alpha == 1.0 and (len(xs) < 3 or beta == 0.0)
        out = r.emit("matmul", [a, b], node.output if last else f"{node.output}.product")
        if alpha != 1.0:
            out = r.emit("mul", [out, r.constant(np.asarray(alpha, r.dtype(a)), "alpha")])
        if len(xs) > 2 and beta != 0.0:
            c = xs[2]
            if beta != 1.0:
                c = r.emit("mul", [c, r.constant(np.asarray(beta, r.dtype(c)), "beta")])
            out = r.emit("add", [out, c], node.output)
        return out

    return rewrite(graph, rule)


def lower_conv_transpose(graph: Graph) -> Graph:
    """rewrite: conv_transpose of one pixel -> matmul; of stride 1 -> conv, the kernel reversed"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "conv_transpose" or text(node.attrs, "layout") != "channels_first":
            return None
        (n, ci, *spatial), (_, co, *kernel) = r.shape(xs[0]), r.shape(xs[1])
        widths, rank = pairs(node.attrs, "pads"), len(kernel)
        if {*spatial} == {1} and not any(map(any, widths)):
            x = r.emit("reshape", [xs[0]], shape=(n, ci))
            w = r.emit("reshape", [xs[1]], f"{xs[1]}.matrix", shape=(ci, co * math.prod(kernel)))
            out = r.emit("matmul", [x, w], f"{node.output}.product")
            return r.emit("reshape", [out], node.output, shape=(n, co, *kernel))
        pads = tuple((k - 1 - lo, k - 1 - hi) for k, (lo, hi) in zip(kernel, widths, strict=True))
        if max(ints(node.attrs, "strides")) > 1 or min(map(min, pads)) < 0:
            return None
        known = r.known(xs[1])
        if known is None or not np.isfinite(known).all():  # the zeros of a border would be NaN
            return None
        starts = (0, 0, *(k - 1 for k in kernel))
        steps = (1, 1, *(-1,) * rank)
        w = r.emit("slice", [xs[1]], starts=starts, sizes=r.shape(xs[1]), steps=steps)
        w = r.emit("transpose", [w], f"{xs[1]}.reversed", perm=(1, 0, *range(2, 2 + rank)))
        ones = (1,) * rank
        attrs: dict[str, Attr] = {"strides": ones, "dilations": ones, "pads": pads, "groups": 1}
        return r.emit("conv", [xs[0], w], node.output, layout="channels_first", **attrs)

    return rewrite(graph, rule)


def split_bias(graph: Graph) -> Graph:
    """rewrite: conv(x, w, b) -> conv(x, w) + b"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "conv" or len(xs) < 3:
            return None
        x, w, b = xs
        first = text(node.attrs, "layout") == "channels_first"
        shape = (*r.shape(b), *(1,) * (len(r.shape(x)) - 2)) if first else r.shape(b)
        out = r.emit("conv", [x, w], node.name, **node.attrs)
        return r.emit("add", [out, r.emit("reshape", [b], b, shape=shape)], node.output)

    return rewrite(graph, rule)


ARITHMETIC = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")


def _all(array: Array | None, value: float) -> bool:
    return array is not None and bool(np.all(array == value))


def simplify_arithmetic(graph: Graph) -> Graph:
    """rewrite: c + x -> x + c; x - c -> x + (-c); x / c -> x * (1/c); x * 1, x + 0 -> x;
    x ** 2 -> x * x; x ** 0.5 -> sqrt(x); clip(x, 0, inf) -> relu(x)"""
    return _simplified(graph, exact=False)


def simplify_exactly(graph: Graph) -> Graph:
    """rewrite: the same as simplify_arithmetic, but x / c -> x * (1/c) for powers of two alone"""
    return _simplified(graph, exact=True)


def _simplified(graph: Graph, exact: bool) -> Graph:
    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op == "clip" and (node.attrs["min"], node.attrs["max"]) == (0.0, math.inf):
            return r.emit("relu", xs, node.output)
        op, known = node.op, [r.known(v) is not None for v in xs]
        if op not in ARITHMETIC:
            return None
        if known == [True, False] and "commutative" in node.operator.traits:
            return commuted(r, node, [xs[1], xs[0]])
        return commuted(r, node, xs) if known == [False, True] else None

    def commuted(r: Rewriter, node: Node, xs: list[str]) -> str:
        op, x, c = node.op, xs[0], r.known(xs[1])
        assert c is not None
        floating = c.dtype.kind == "f"
        if op == "sub":
            op, c = "add", np.negative(c)
        elif op == "div" and floating and (inverse := safety.reciprocal(c, exact)) is not None:
            op, c = "mul", inverse
        same = r.shape(x) == graph.types[node.output].shape
        if same and (_nothing(r, x, c) if op == "add" else op in ("mul", "pow") and _all(c, 1)):
            return x
        if op == "pow" and same and _all(c, 2):
            return r.emit("mul", [x, x], node.output)
        if op == "pow" and same and floating and _all(c, 0.5) and safety.never_negative(r, x):
            return r.emit("sqrt", [x], node.output)
        constant = xs[1] if op == node.op else r.constant(c, f"{node.output}.{op}")
        return r.emit(op, [x, constant], node.output)

    return rewrite(graph, rule)


def _nothing(r: Rewriter, x: str, c: Array) -> bool:
    """Whether x + c is x: c is -0.0, or 0 where x is never -0.0."""
    if not _all(c, 0):
        return False
    return bool(c.dtype.kind == "f" and np.all(np.signbit(c))) or safety.never_minus_zero(r, x)


def _per_channel(factor: tuple[int, ...], rank: int, axis: int) -> bool:
    """Whether a constant of shape `factor` varies along `axis` of `rank` axes only, or not."""
    full = (1,) * (rank - len(factor)) + factor
    return len(full) == rank and all(n == 1 for d, n in enumerate(full) if d != axis)


def _scaled(r: Rewriter, value: str, factor: str, name: str) -> str | None:
    """`value` * `factor` without a multiplication at run time, if there is such a form."""
    node = r.sole(value)
    if node is None or len(node.inputs) != 2:  # a bias is an addition of its own, see split_bias
        return None
    x, w = node.inputs
    weight, scale = r.known(w), r.known(factor)
    if weight is None or scale is None:
        return None
    if node.op == "add":
        if r.shape(x) != r.shape(value) or not safety.scales_term(weight, scale):
            return None
        inner = _scaled(r, x, factor, f"{name}.scaled")
        if inner is None:
            return None
        return r.emit("add", [inner, r.emit("mul", [w, factor], f"{name}.shift")], name)
    axes = node.operator.scaled_by and node.operator.scaled_by(node.attrs, (r.type(x), r.type(w)))
    if not axes or not _per_channel(r.shape(factor), len(r.shape(value)), axes[0]):
        return None
    shape = tuple(r.size(factor) if d == axes[1] else 1 for d in range(weight.ndim))
    if not safety.scales_weight(weight, scale.reshape(shape)):
        return None
    column = r.emit("reshape", [factor], shape=shape)
    out = name if node.op == "matmul" else f"{value}.scaled"
    return r.emit(node.op, [x, r.emit("mul", [w, column], f"{w}.scaled")], out, **node.attrs)


def _merged(r: Rewriter, op: str, value: str, other: str, name: str) -> str | None:
    """(x op c) op `other` as x op (c op `other`), where the result is the same to rounding."""
    inner, right = r.sole(value, op), r.known(other)
    left = None if inner is None else r.known(inner.inputs[1])
    if inner is None or left is None or right is None:
        return None
    x = inner.inputs[0]
    if r.shape(x) != r.shape(value):
        return None
    if op == "mul" and safety.merges_factors(left, right):
        return r.emit(op, [x, r.emit(op, [inner.inputs[1], other], f"{name}.factor")], name)
    if op == "add" and safety.merges_terms(left, right, safety.is_sum(r, x)):
        return r.emit(op, [x, r.emit(op, [inner.inputs[1], other], f"{name}.bias")], name)
    return None


def fold_scales(graph: Graph) -> Graph:
    """rewrite: conv(x, w) * s -> conv(x, w * s), transposed or not; (y + b) * s -> y * s + b * s;
    (y + b) + c -> y + (b + c); the same for matmul. Batch norm ends up in the weights."""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op not in ("mul", "add") or r.known(xs[1]) is None or r.known(xs[0]) is not None:
            return None
        if r.shape(xs[0]) != graph.types[node.output].shape:
            return None
        scaled = _scaled(r, xs[0], xs[1], node.output) if node.op == "mul" else None
        return scaled or _merged(r, node.op, xs[0], xs[1], node.output)

    return rewrite(graph, rule)


def drop_expands(graph: Graph) -> Graph:
    """rewrite: op(x, expand(s)) -> op(x, s) for element-wise op that broadcasts s itself"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.operator.kind != "elementwise" or len(xs) < 2:
            return None
        full, own = graph.types[node.output].shape, list(xs)
        for k, v in enumerate(xs):
            inner = r.builder.producers.get(v)
            if inner is None or inner.op != "expand":
                continue
            others = [r.shape(other) for i, other in enumerate(own) if i != k]
            if broadcast([*others, r.shape(inner.inputs[0])]) == full:
                own[k] = inner.inputs[0]
        return None if own == xs else r.emit(node.op, own, node.output, **node.attrs)

    return rewrite(graph, rule)


def lower_means(graph: Graph) -> Graph:
    """rewrite: avg_pool(x) -> sum_pool(x) / counts; reduce_mean(x) -> reduce_sum(x) / n"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        shape = r.shape(xs[0])
        match node.op:
            case "avg_pool":
                attrs = {k: v for k, v in node.attrs.items() if k != "count_include_pad"}
                total = r.emit("sum_pool", xs, f"{node.output}.sum", **attrs)
                axes = spatial_axes(attrs, len(shape))
                out = [r.shape(total)[a] for a in axes]
                counts = window_counts(node.attrs, [shape[a] for a in axes], out)
                if text(attrs, "layout") == "channels_last":
                    counts = counts[..., None]
                if np.all(counts == counts.flat[0]):
                    counts = counts.ravel()[0]
            case "reduce_mean":
                total = r.emit("reduce_sum", xs, f"{node.output}.sum", **node.attrs)
                counts = np.asarray(math.prod(shape[a] for a in ints(node.attrs, "axes")))
            case _:
                return None
        count = r.constant(np.asarray(counts, r.dtype(xs[0])), f"{node.output}.count")
        return r.emit("div", [total, count], node.output)

    return rewrite(graph, rule)


def fold_pad(graph: Graph) -> Graph:
    """rewrite: conv(pad(x, zeros around the spatial axes)) -> conv(x) with more padding"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        inner = r.builder.producers.get(xs[0]) if node.op == "conv" else None
        if inner is None or inner.op != "pad" or number(inner.attrs, "value") != 0.0:
            return None
        widths = pairs(inner.attrs, "pads")
        axes = spatial_axes(node.attrs, len(widths))
        if any(w != (0, 0) for d, w in enumerate(widths) if d not in axes):
            return None
        added = [widths[a] for a in axes]
        own = pairs(node.attrs, "pads")
        both = tuple((a + c, b + d) for (a, b), (c, d) in zip(own, added, strict=True))
        attrs: dict[str, Attr] = {**node.attrs, "pads": both}
        return r.emit("conv", [inner.inputs[0], *xs[1:]], node.output, **attrs)

    return rewrite(graph, rule)


def drop_taps(graph: Graph) -> Graph:
    """rewrite: conv(x, w), outer taps of w reading padding only -> conv(x, w without these taps)

    So a dilation of at least the extent of x leaves one tap of three.
    """

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "conv" or text(node.attrs, "layout") != "channels_first":
            return None
        n, out, kernel = (
            s[2:] for s in (r.shape(xs[0]), graph.types[node.output].shape, r.shape(xs[1]))
        )
        strides, dilations, pads = ints(node.attrs, "strides"), [], []
        starts, sizes = [0, 0], [*r.shape(xs[1])[:2]]
        for i, (d, (lo, hi)) in enumerate(
            zip(ints(node.attrs, "dilations"), pairs(node.attrs, "pads"), strict=True)
        ):
            at = np.arange(out[i]) * strides[i] - lo + d * np.arange(kernel[i])[:, None]
            read = np.flatnonzero(((at >= 0) & (at < n[i])).any(axis=1)).tolist()
            first, last = (read[0], read[-1]) if read else (0, kernel[i] - 1)
            left, right = lo - first * d, hi - (kernel[i] - 1 - last) * d
            if min(left, right) < min(lo, hi, 0):  # the window would begin inside of x
                first, last, left, right = 0, kernel[i] - 1, lo, hi
            starts.append(first)
            sizes.append(last + 1 - first)
            pads.append((left, right))
            dilations.append(d if last > first else 1)
        if tuple(sizes) == r.shape(xs[1]):
            return None
        steps = (1,) * len(sizes)
        taps = r.emit(
            "slice", [xs[1]], f"{xs[1]}.taps", starts=tuple(starts), sizes=tuple(sizes), steps=steps
        )
        attrs: dict[str, Attr] = {"dilations": tuple(dilations), "pads": tuple(pads)}
        return r.emit("conv", [xs[0], taps, *xs[2:]], node.output, **{**node.attrs, **attrs})

    return rewrite(graph, rule)


def merge_views(graph: Graph) -> Graph:
    """rewrite: reshape(reshape(x)) -> reshape(x); transpose(transpose(x)) -> transpose(x);
    a transpose that moves only axes of extent 1 -> reshape"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        inner = r.builder.producers.get(xs[0]) if xs else None
        if node.op == "reshape" and inner is not None and inner.op == "reshape":
            return r.emit("reshape", inner.inputs, node.output, **node.attrs)
        if node.op != "transpose":
            return None
        perm, x = ints(node.attrs, "perm"), xs[0]
        if inner is not None and inner.op == "transpose":
            perm, x = tuple(ints(inner.attrs, "perm")[p] for p in perm), inner.inputs[0]
        if only_ones_move(r.shape(x), perm):
            return r.emit("reshape", [x], node.output, shape=tuple(r.shape(x)[p] for p in perm))
        return r.emit("transpose", [x], node.output, perm=perm)

    return rewrite(graph, rule)


def only_ones_move(shape: tuple[int, ...], perm: tuple[int, ...]) -> bool:
    """Whether transposing leaves the elements where they are in memory."""
    moved = [p for p in perm if shape[p] != 1]
    return moved == sorted(moved)


def fold_flatten(graph: Graph) -> Graph:
    """rewrite: reshape(transpose(x)) @ w -> reshape(x) @ w', the rows of constant w in the order
    of x (a dense layer that reads channels-last data)"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "matmul" or len(r.shape(xs[1])) != 2 or r.known(xs[1]) is None:
            return None
        view = r.builder.producers.get(xs[0])
        move = r.builder.producers.get(view.inputs[0]) if view and view.op == "reshape" else None
        if move is None or move.op != "transpose":
            return None
        perm, shape = ints(move.attrs, "perm"), r.shape(move.output)
        rows, columns = r.shape(xs[1])
        lead = next((d for d in range(len(shape)) if math.prod(shape[d:]) == rows), None)
        if lead is None or perm[:lead] != tuple(range(lead)):
            return None
        order = [perm.index(d) - lead for d in range(lead, len(shape))]
        w = r.emit("reshape", [xs[1]], shape=(*shape[lead:], columns))
        w = r.emit("transpose", [w], perm=(*order, len(order)))
        w = r.emit("reshape", [w], f"{xs[1]}.rows", shape=(rows, columns))
        x = r.emit("reshape", [move.inputs[0]], shape=r.shape(xs[0]))
        return r.emit("matmul", [x, w], node.output)

    return rewrite(graph, rule)
