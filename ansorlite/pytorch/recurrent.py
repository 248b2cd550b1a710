"""Readers of aten's recurrent layers, by ONNX's: all steps of a layer are one native loop.

torch has the gates of an LSTM in the order i, f, g, o and ONNX in i, o, f, g; of a GRU torch has
r, z, n and ONNX z, r, n. Layers follow each other, directions lie side by side.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansorlite.errors import ModelError
from ansorlite.pytorch.context import Context, Result, Value

GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}  # ONNX's in torch's order


def recurrent(op: str, activation: str = "") -> Callable[..., Result]:
    """lstm, gru and rnn of torch, `op` of ONNX: (results of all steps, last states)."""

    def convert(
        c: Context,
        x: Value,
        state: Any,
        params: Sequence[Value],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Result:
        if train and dropout:
            raise ModelError("dropout between layers is for training: call eval() of the module")
        states = list(state) if isinstance(state, list | tuple) else [state]
        sides = 2 if bidirectional else 1
        each = len(params) // (layers * sides)
        hidden, per = c.shape(states[0])[2], (4 if has_biases else 2)
        if each != per:
            raise ModelError("projections of the state are not supported")
        x = c.emit("transpose", [x], perm=(1, 0, 2)) if batch_first else x
        ends: list[list[Value]] = [[] for _ in states]
        for layer in range(layers):
            at = layer * sides
            rows = [params[(at + k) * per : (at + k + 1) * per] for k in range(sides)]
            weights = [_stacked(c, op, [row[k] for row in rows], hidden) for k in range(2)]
            bias = None
            if has_biases:
                halves = [_stacked(c, op, [row[k] for row in rows], hidden) for k in (2, 3)]
                bias = c.by_onnx("Concat", *halves, axis=1)
            first = [_layers_of(c, s, at, sides) for s in states]
            options: dict[str, Any] = {
                "hidden_size": hidden,
                "direction": "bidirectional" if bidirectional else "forward",
            }
            if op == "GRU":
                options["linear_before_reset"] = 1
            if activation:
                options["activations"] = [activation] * sides
            operands = [x, *weights, bias, None, *first]
            out, *last = c.several_by_onnx(op, 1 + len(states), *operands, **options)
            times, _, batch, _ = c.shape(out)
            side = c.emit("transpose", [out], perm=(0, 2, 1, 3)) if sides == 2 else out
            x = c.reshape(side, (times, batch, sides * hidden))
            for found, end in zip(ends, last, strict=True):
                found.append(end)
        out = c.emit("transpose", [x], perm=(1, 0, 2)) if batch_first else x
        return out, *(c.by_onnx("Concat", *found, axis=0) for found in ends)

    return convert


def one_direction(
    c: Context,
    x: Value,
    weight: Value,
    recurrence: Value,
    bias: Value,
    recurrence_bias: Value,
    hidden: Value,
    cell: Value,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    size: int,
    layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Result:
    """A layer of an LSTM in one direction, as `torch.compile` splits it."""
    if batch_sizes or mode != 2 or layers != 1 or bidirectional or batch_first:
        raise ModelError("it is supported for one layer of an LSTM in one direction, time first")
    weights = [_stacked(c, "LSTM", [w], size) for w in (weight, recurrence)]
    both = None
    if has_biases:
        halves = [_stacked(c, "LSTM", [b], size) for b in (bias, recurrence_bias)]
        both = c.by_onnx("Concat", *halves, axis=1)
    operands = [x, *weights, both, None, hidden, cell]
    direction = "reverse" if reverse else "forward"
    out, *last = c.several_by_onnx("LSTM", 3, *operands, hidden_size=size, direction=direction)
    return c.reshape(out, (*c.shape(x)[:2], size)), *last, None


def _stacked(c: Context, op: str, each: Sequence[Value], hidden: int) -> Value:
    """[directions, gates * hidden, ...] of ONNX from a weight or bias of each direction."""
    out = []
    for w in each:
        rest = c.shape(w)[1:]
        gates = c.reshape(w, (len(GATES[op]), hidden, *rest))
        order = [_row(c, gates, g) for g in GATES[op]]
        joined = c.by_onnx("Concat", *order, axis=0)
        out.append(c.reshape(joined, (1, len(order) * hidden, *rest)))
    return c.by_onnx("Concat", *out, axis=0)


def _row(c: Context, x: Value, k: int) -> Value:
    return _layers_of(c, x, k, 1)


def _layers_of(c: Context, x: Value, start: int, count: int) -> Value:
    """`count` elements of the first axis from `start` on."""
    shape = c.shape(x)
    zeros = (0,) * (len(shape) - 1)
    sizes = (count, *shape[1:])
    return c.emit("slice", [x], starts=(start, *zeros), sizes=sizes, steps=(1,) * len(shape))
