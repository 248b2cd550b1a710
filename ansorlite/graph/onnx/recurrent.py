"""Readers of recurrent layers: LSTM, GRU, RNN, in both directions.

The products of all inputs with the weights are one matrix product ahead of the loop. A step is the
product of the state with its weights, and gates. Gates lie one after the other, [gate, batch,
hidden], so that each is a `part` of the product. Shorter sequences keep their state: backwards
that starts them at their own end. Defaults and order of activations follow onnxruntime.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Step
from ansorlite.graph.onnx.context import Context, OnnxNode

StepFn = Callable[[Context, list[str], list[str], list[str]], list[str]]
Function = Callable[[Context, str], str]


def recur(
    c: Context, times: int, reverse: bool, states: Sequence[str], fixed: Sequence[str],
    scanned: Sequence[str], step: StepFn,
) -> list[str]:  # fmt: skip
    """The history [times, *result] of each result of `step`.

    `step(context, states, fixed, elements)` emits the states that follow, and possibly more values.
    `fixed` values are the same at each step, of `scanned` each step sees an element [...] of
    [times, ...]. A history that is made in `reverse` begins with the last step. Raises ModelError
    for a body that no `loop` can have.
    """
    assert c.node is not None
    if times == 1:
        rows = [c.emit("reshape", [v], shape=c.shape(v)[1:]) for v in scanned]
        made = step(c, list(states), list(fixed), rows)
        return [c.emit("reshape", [v], shape=(1, *c.shape(v))) for v in made]
    inside = replace(c, builder=GraphBuilder(f"step of {c.node.name}", fold=True), values={})
    b, given = inside.builder, [*states, *(v for v in fixed if v not in c.builder.constants)]
    names: dict[str, str] = {}
    if any(v in c.sequences for v in states):
        raise ModelError("a state of a loop is a sequence")
    own = [b.input(f"state{k}", c.shape(v), c.type(v).dtype) for k, v in enumerate(states)]
    for k, v in enumerate(fixed):
        known = c.builder.constants.get(v)
        if v in c.sequences:
            raise ModelError("the body of a loop reads a sequence")
        if known is not None:
            names[v] = b.constant(known, f"fixed{k}")
        else:
            names[v] = b.input(f"fixed{k}", c.shape(v), c.type(v).dtype)
    rows = [b.input(f"row{k}", c.shape(v)[1:], c.type(v).dtype) for k, v in enumerate(scanned)]
    made = step(inside, own, [names[v] for v in fixed], rows)
    _check_body(b)
    results = [b.types[v] for v in made]
    if any(kind.size == 0 for kind in results):
        raise ModelError("the body of a loop makes a value without elements")
    if any(kind.dtype.startswith(("int", "uint")) for kind in results):
        raise ModelError("the body of a loop makes integers, which may be indices")
    flat = c.emit(
        "loop",
        [*given, *scanned],
        body=Step(b.finish(made)),
        times=times,
        states=len(states),
        scanned=len(scanned),
        reverse=reverse,
    )
    out, at = [], 0
    for kind in results:
        out.append(c.emit("part", [flat], start=at, shape=(times, *kind.shape)))
        at += times * kind.size
    return out


def _check_body(b: GraphBuilder) -> None:
    """Raise a ModelError for nodes that no body of a `loop` may have."""
    for node in b.producers.values():
        if node.operator.kind == "loop":
            raise ModelError(f"node {node.name} is a loop inside of a loop")
        if b.has_computed_indices(node):
            raise ModelError(f"node {node.name} takes elements at computed indices in a loop")


# ---- activations --------------------------------------------------------------------------------

# (alpha, beta) of the activations that have them, where the model gives none; NaN: it has to.
DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "affine": (math.nan, math.nan),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (math.nan, None),
    "scaledtanh": (math.nan, math.nan),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "relu": (None, None),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
}

CLIPPED = 2  # activations of a direction whose operand is clipped: not that of an LSTM's cell


def _activation(kind: str, alpha: float, beta: float) -> Function:
    def apply(c: Context, x: str) -> str:
        def scaled(v: str, factor: float) -> str:
            return c.emit("mul", [v, c.scalar(factor, v)])

        match kind:
            case "affine":
                return c.emit("add", [scaled(x, alpha), c.scalar(beta, x)])
            case "leakyrelu":
                return c.emit("leaky_relu", [x], alpha=alpha)
            case "thresholdedrelu":
                over = c.emit("less", [c.scalar(alpha, x), x])
                return c.emit("where", [over, x, c.scalar(0, x)])
            case "scaledtanh":
                return scaled(c.emit("tanh", [scaled(x, beta)]), alpha)
            case "hardsigmoid":
                line = c.emit("add", [scaled(x, alpha), c.scalar(beta, x)])
                return c.emit("clip", [line], min=0.0, max=1.0)
            case "elu":
                e = c.emit("exp", [c.emit("minimum", [x, c.scalar(0, x)])])
                low = scaled(c.emit("sub", [e, c.scalar(1, x)]), alpha)
                return c.emit("add", [c.emit("relu", [x]), low])
            case "softplus":
                e = c.emit("exp", [c.emit("neg", [c.emit("abs", [x])])])
                rest = c.emit("log", [c.emit("add", [e, c.scalar(1, x)])])
                return c.emit("add", [c.emit("relu", [x]), rest])
            case "softsign":
                size = c.emit("add", [c.emit("abs", [x]), c.scalar(1, x)])
                return c.emit("div", [x, size])
        return c.emit(kind, [x])

    return apply


def _activations(n: OnnxNode, usual: Sequence[str], directions: int) -> list[list[Function]]:
    """The activations of each direction. alpha and beta are told for those that have them."""
    given = [str(v) for v in n.attrs.get("activations", [*usual] * directions)]
    if len(given) != len(usual) * directions:
        raise ModelError(
            f"{len(given)} activations for {directions} directions of {len(usual)} each: give "
            f"{len(usual) * directions}"
        )
    clip = float(n.attrs.get("clip", 0.0))
    rest = [iter(map(float, n.attrs.get(k, ()))) for k in ("activation_alpha", "activation_beta")]
    found: list[Function] = []
    for name in given:
        kind = name.lower()
        if kind not in DEFAULTS:
            known = ", ".join(DEFAULTS)
            raise ModelError(f"activation {name!r} is none of {known}")
        numbers = [
            0.0 if default is None else next(values, default)
            for default, values in zip(DEFAULTS[kind], rest, strict=True)
        ]
        if any(map(math.isnan, numbers)):
            raise ModelError(
                f"activation {name} needs its own activation_alpha and activation_beta"
            )
        limited = len(found) % len(usual) < CLIPPED
        found.append(_clipped(_activation(kind, *numbers), clip if limited else 0.0))
    return [found[k : k + len(usual)] for k in range(0, len(found), len(usual))]


def _clipped(function: Function, clip: float) -> Function:
    """The function of its operand limited to -clip .. clip; no limit where clip is not positive."""
    if clip <= 0:
        return function
    return lambda c, x: function(c, c.emit("clip", [x], min=-clip, max=clip))


# ---- layers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """The operands of a recurrent node, by direction, time first: X is [times, batch, features]."""

    c: Context
    n: OnnxNode
    gates: int
    states: int

    @property
    def batch_first(self) -> bool:
        layout = int(self.n.attrs.get("layout", 0))
        if layout not in (0, 1):
            raise ModelError(f"layout {layout} is neither 0 nor 1")
        return layout == 1

    @property
    def reversed(self) -> list[bool]:
        """For each direction whether it runs from the end."""
        found = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        direction = str(self.n.attrs.get("direction", "forward"))
        if direction not in found:
            raise ModelError(f"direction {direction!r} is none of {', '.join(found)}")
        return found[direction]

    def check(self) -> None:
        """Raise a ModelError for operands whose shapes do not fit together."""
        c, n, g = self.c, self.n, self.gates
        x, w, r = (c.type(c.operand(n, k)) for k in range(3))
        if x.rank != 3 or w.rank != 3 or r.rank != 3:
            raise ModelError(f"X {x}, W {w} and R {r} need three axes each")
        _, batch = self.extents
        d, hidden = len(self.reversed), self.hidden
        if int(n.attrs.get("hidden_size", hidden)) != hidden:
            raise ModelError(f"hidden_size is {n.attrs['hidden_size']}, R is {r}")
        state = (batch, d, hidden) if self.batch_first else (d, batch, hidden)
        wanted = self.weight_shapes(d, x.shape[2])
        wanted |= {3: (d, 2 * g * hidden), 4: (batch,), 5: state, 6: state, 7: (d, 3 * hidden)}
        for k, shape in wanted.items():
            if c.has(n, k) and c.shape(c.operand(n, k)) != shape:
                raise ModelError(
                    f"operand {k} is {c.type(c.operand(n, k))}, the others want {list(shape)}"
                )

    def weight_shapes(self, directions: int, features: int) -> dict[int, tuple[int, ...]]:
        """What the operands that are weights have to be, by their place."""
        rows = self.gates * self.hidden
        return {1: (directions, rows, features), 2: (directions, rows, self.hidden)}

    @property
    def extents(self) -> tuple[int, int]:
        """(times, batch)."""
        first, second, _ = self.c.shape(self.c.operand(self.n, 0))
        return (second, first) if self.batch_first else (first, second)

    @property
    def hidden(self) -> int:
        return self.c.shape(self.c.operand(self.n, 2))[2]

    def piece(self, value: str, axis: int, start: int, size: int) -> str:
        """Elements start .. start + size - 1 of an axis."""
        shape = self.c.shape(value)
        if (start, size) == (0, shape[axis]):
            return value
        starts = tuple(start if d == axis else 0 for d in range(len(shape)))
        sizes = tuple(size if d == axis else e for d, e in enumerate(shape))
        ones = (1,) * len(shape)
        return self.c.emit("slice", [value], starts=starts, sizes=sizes, steps=ones)

    def of(self, k: int, direction: int) -> str:
        """Operand k of a direction, without the axis of directions."""
        one = self.piece(self.c.operand(self.n, k), 0, direction, 1)
        return self.c.emit("reshape", [one], shape=self.c.shape(one)[1:])

    def turned(self, weight: str, first: int, count: int) -> str:
        """Rows of `count` gates of a weight [gates * hidden, n], for products from the left.

        [n, count * hidden]; for several gates and batches [count, n, hidden].
        """
        c, h, columns = self.c, self.hidden, self.c.shape(weight)[1]
        part = self.piece(weight, 0, first * h, count * h)
        if count == 1 or self.extents[1] == 1:
            return c.emit("transpose", [part], perm=(1, 0))
        part = c.emit("reshape", [part], shape=(count, h, columns))
        return c.emit("transpose", [part], perm=(0, 2, 1))

    def initial(self, k: int, direction: int) -> str:
        """The state before the first step: operand k, or zeros."""
        c, (_, batch) = self.c, self.extents
        if not c.has(self.n, k):
            x = c.type(c.operand(self.n, 0))
            return c.constant(np.zeros((batch, self.hidden), x.dtype), "initial")
        axis = 1 if self.batch_first else 0
        one = self.piece(c.operand(self.n, k), axis, direction, 1)
        return c.emit("reshape", [one], shape=(batch, self.hidden))

    def products(self, direction: int, bias: str | None) -> str:
        """X @ W + bias for all times: [times, gates, batch, hidden]."""
        c, (times, batch), h, g = self.c, self.extents, self.hidden, self.gates
        x = c.operand(self.n, 0)
        if self.batch_first:
            x = c.emit("transpose", [x], perm=(1, 0, 2))
        x = c.emit("reshape", [x], shape=(times * batch, c.shape(x)[2]))
        out = self.input_product(x, direction)
        out = out if bias is None else c.emit("add", [out, bias])
        out = c.emit("reshape", [out], shape=(times, batch, g, h))
        return c.emit("transpose", [out], perm=(0, 2, 1, 3))

    def input_product(self, x: str, direction: int) -> str:
        """x [times * batch, features] times the weights of a direction: [.., gates * hidden]."""
        w = self.c.emit("transpose", [self.of(1, direction)], perm=(1, 0))
        return self.c.emit("matmul", [x, w])

    def state_weights(self, direction: int) -> list[str]:
        """The fixed values that `state_product` needs."""
        return [self.turned(self.of(2, direction), 0, self.gates)]

    def state_product(self, c: Context, state: str, weights: Sequence[str], more: str) -> str:
        """state [batch, hidden] times the weights, and `more`: [gates, batch, hidden]."""
        return _gates(c, state, weights[0], self.gates, more)

    def biases(self, direction: int) -> tuple[str, str] | None:
        """The biases of W and of R, [gates * hidden] each."""
        if not self.c.has(self.n, 3):
            return None
        both, size = self.of(3, direction), self.gates * self.hidden
        return self.piece(both, 0, 0, size), self.piece(both, 0, size, size)

    def masks(self) -> list[str]:
        """[times, batch, 1]: whether a step lies inside of its sequence; none where all do."""
        c, (times, batch) = self.c, self.extents
        if not c.has(self.n, 4):
            return []
        known, lengths = c.known(self.n, 4), c.operand(self.n, 4)
        if known is not None:
            if any(not 0 <= int(v) <= times for v in known.tolist()):
                raise ModelError(f"sequence_lens {known.tolist()} are not from 0 to {times}")
            if np.all(known == times):
                return []
        at = np.arange(times, dtype=c.type(lengths).dtype).reshape(times, 1, 1)
        lengths = c.emit("reshape", [lengths], shape=(1, batch, 1))
        return [c.emit("less", [c.constant(at), lengths])]

    def run(
        self, direction: int, fixed: Sequence[str], bias: str | None, cell: StepFn
    ) -> list[str]:
        """[times, batch, hidden] of each state. The element that the cell sees is of `products`."""
        c, (times, _) = self.c, self.extents
        masks = self.masks()

        def step(c: Context, states: list[str], own: list[str], rows: list[str]) -> list[str]:
            made = cell(c, states, own, rows[:1])
            if not masks:
                return made
            return [c.emit("where", [rows[1], v, w]) for v, w in zip(made, states, strict=True)]

        start = [self.initial(5 + k, direction) for k in range(self.states)]
        rows = [self.products(direction, bias), *masks]
        return recur(c, times, self.reversed[direction], start, fixed, rows, step)

    def results(self, histories: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Y and the last value of each state, from the histories by direction and state."""
        c, (times, batch), h = self.c, self.extents, self.hidden
        d, masks = len(histories), self.masks()
        rows = []
        for own in histories:
            row = own[0]
            if masks:
                row = c.emit("where", [masks[0], row, c.scalar(0, row)])
            rows.append(c.emit("reshape", [row], shape=(times, 1, batch, h)))
        out = [rows[0] if d == 1 else c.emit("concat", rows, axis=1)]
        if self.batch_first:
            out[0] = c.emit("transpose", out, perm=(2, 0, 1, 3))
        for k in range(self.states):
            ends = []
            for own, backwards in zip(histories, self.reversed, strict=True):
                start = 0 if backwards else (times - 1) * batch * h
                ends.append(c.emit("part", [own[k]], start=start, shape=(1, batch, h)))
            last = ends[0] if d == 1 else c.emit("concat", ends, axis=0)
            if masks:  # a sequence without steps ends in zeros
                some = c.emit("part", [masks[0]], start=0, shape=(1, batch, 1))
                last = c.emit("where", [some, last, c.scalar(0, last)])
            out.append(c.emit("transpose", [last], perm=(1, 0, 2)) if self.batch_first else last)
        return tuple(out)

    def empty(self) -> tuple[str, ...]:
        """The results of no steps, or of no sequences: the states as they were."""
        c, (times, batch), h = self.c, self.extents, self.hidden
        d = len(self.reversed)
        y = (batch, times, d, h) if self.batch_first else (times, d, batch, h)
        state = (batch, d, h) if self.batch_first else (d, batch, h)
        dtype = c.type(c.operand(self.n, 0)).dtype
        out = [c.constant(np.zeros(y, dtype))]
        for k in range(5, 5 + self.states):
            out.append(
                c.operand(self.n, k) if c.has(self.n, k) else c.constant(np.zeros(state, dtype))
            )
        return tuple(out)


def _gates(c: Context, state: str, weight: str, count: int, more: str = "") -> str:
    """state [batch, hidden] times the weight by `Layer.turned`, and `more`: [gate, batch, hidden].

    The sum stands in the product's own shape, so that the two are one kernel.
    """
    batch, hidden = c.shape(state)
    if len(c.shape(weight)) == 3:
        state = c.emit("reshape", [state], shape=(1, batch, hidden))
    out = c.emit("matmul", [state, weight])
    if more:
        out = c.emit("add", [out, c.emit("reshape", [more], shape=c.shape(out))])
    return c.emit("reshape", [out], shape=(count, batch, hidden))


def _gate(c: Context, gates: str, k: int) -> str:
    """Gate k: [batch, hidden]."""
    _, batch, hidden = c.shape(gates)
    return c.emit("part", [gates], start=k * batch * hidden, shape=(batch, hidden))


def _layer(
    c: Context, n: OnnxNode, gates: int, states: int,
    cell: Callable[[Layer, int], list[str]], kind: type[Layer] = Layer,
) -> tuple[str, ...]:  # fmt: skip
    layer = kind(c, n, gates, states)
    layer.check()
    if 0 in layer.extents or layer.hidden == 0:
        return layer.empty()
    return layer.results([cell(layer, d) for d in range(len(layer.reversed))])


def rnn(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """h' = f(x W + h R + b)."""

    def direction(layer: Layer, d: int) -> list[str]:
        (f,) = _activations(n, ["Tanh"], len(layer.reversed))[d]
        biases = layer.biases(d)
        bias = c.emit("add", [*biases]) if biases else None

        def cell(c: Context, states: list[str], own: list[str], rows: list[str]) -> list[str]:
            product = c.emit("matmul", [states[0], own[0]])
            x = c.emit("reshape", rows, shape=c.shape(product))
            return [f(c, c.emit("add", [product, x]))]

        return layer.run(d, [layer.turned(layer.of(2, d), 0, 1)], bias, cell)

    return _layer(c, n, 1, 1, direction)


def gru(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """h' = (1 - z) * n + z * h; the reset gate before the product with R, or after it."""
    after = bool(n.attrs.get("linear_before_reset", 0))

    def direction(layer: Layer, d: int) -> list[str]:
        f, g = _activations(n, ["Sigmoid", "Tanh"], len(layer.reversed))[d]
        h, bias, last = layer.hidden, None, list[str]()
        if biases := layer.biases(d):
            added = biases[1]
            if after:  # the last third belongs to the product that is reset
                zeros = c.constant(np.zeros(h, c.type(added).dtype), "zeros")
                last = [layer.piece(added, 0, 2 * h, h)]
                added = c.emit("concat", [layer.piece(added, 0, 0, 2 * h), zeros], axis=0)
            bias = c.emit("add", [biases[0], added])
        r = layer.of(2, d)

        def before(c: Context, states: list[str], own: list[str], rows: list[str]) -> list[str]:
            (state,), (x,) = states, rows
            two = (2, *c.shape(state))
            first = c.emit("part", [x], start=0, shape=two)
            zr = _gates(c, state, own[0], 2, first)
            z = f(c, _gate(c, zr, 0))
            reset = c.emit("mul", [f(c, _gate(c, zr, 1)), state])
            new = g(c, c.emit("add", [c.emit("matmul", [reset, own[1]]), _gate(c, x, 2)]))
            return [_mixed(c, z, new, state)]

        def behind(c: Context, states: list[str], own: list[str], rows: list[str]) -> list[str]:
            (state,), (x,) = states, rows
            made = _gates(c, state, own[0], 3)
            z, reset = (f(c, c.emit("add", [_gate(c, made, k), _gate(c, x, k)])) for k in (0, 1))
            inner = _gate(c, made, 2)
            inner = c.emit("add", [inner, own[1]]) if len(own) > 1 else inner
            new = g(c, c.emit("add", [c.emit("mul", [reset, inner]), _gate(c, x, 2)]))
            return [_mixed(c, z, new, state)]

        if after:
            return layer.run(d, [layer.turned(r, 0, 3), *last], bias, behind)
        return layer.run(d, [layer.turned(r, 0, 2), layer.turned(r, 2, 1)], bias, before)

    return _layer(c, n, 3, 1, direction)


def _mixed(c: Context, z: str, new: str, old: str) -> str:
    """(1 - z) * new + z * old."""
    left = c.emit("mul", [c.emit("sub", [c.scalar(1, z), z]), new])
    return c.emit("add", [left, c.emit("mul", [z, old])])


def lstm(c: Context, n: OnnxNode, kind: type[Layer] = Layer) -> tuple[str, ...]:
    """c' = f * c + i * g, h' = o * h(c'); gates in the order i, o, f, g."""
    coupled = bool(n.attrs.get("input_forget", 0))

    def direction(layer: Layer, d: int) -> list[str]:
        f, g, last = _activations(n, ["Sigmoid", "Tanh", "Tanh"], len(layer.reversed))[d]
        biases, h = layer.biases(d), layer.hidden
        bias = c.emit("add", [*biases]) if biases else None
        holes = [layer.piece(layer.of(7, d), 0, k * h, h) for k in range(3)] if c.has(n, 7) else []

        def cell(c: Context, states: list[str], own: list[str], rows: list[str]) -> list[str]:
            state, memory = states
            gates = layer.state_product(c, state, own[len(holes) :], rows[0])
            i, o, forget, new = (_gate(c, gates, k) for k in range(4))

            def seen(gate: str, k: int, memory: str) -> str:
                if not holes:
                    return gate
                return c.emit("add", [gate, c.emit("mul", [memory, own[k]])])

            i = f(c, seen(i, 0, memory))
            if coupled:
                forget = c.emit("sub", [c.scalar(1, i), i])
            else:
                forget = f(c, seen(forget, 2, memory))
            kept = c.emit("mul", [forget, memory])
            now = c.emit("add", [kept, c.emit("mul", [i, g(c, new)])])
            return [c.emit("mul", [f(c, seen(o, 1, now)), last(c, now)]), now]

        return layer.run(d, [*holes, *layer.state_weights(d)], bias, cell)

    return _layer(c, n, 4, 2, direction, kind)
