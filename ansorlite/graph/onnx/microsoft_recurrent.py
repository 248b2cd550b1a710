"""The recurrent layer of `com.microsoft` that onnxruntime's quantiser writes.

An LSTM whose weights are integers of 8 bits, with scales and zero points, transposed. The inputs of
all steps together are quantised by their range, and so is the state of each step; products are
integers, gates float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ansorlite.graph.onnx import conditions, recurrent
from ansorlite.graph.onnx import quantization as q
from ansorlite.graph.onnx.context import Context, OnnxNode

SCALES = {1: 8, 2: 10}  # the operand that scales a weight; the next one is its zero point


@dataclass(frozen=True)
class QuantisedLayer(recurrent.Layer):
    """W is [directions, features, gates * hidden], R [directions, hidden, gates * hidden]."""

    @property
    def hidden(self) -> int:
        return self.c.shape(self.c.operand(self.n, 2))[1]

    def weight_shapes(self, directions: int, features: int) -> dict[int, tuple[int, ...]]:
        columns = self.gates * self.hidden
        return {1: (directions, features, columns), 2: (directions, self.hidden, columns)}

    def input_product(self, x: str, direction: int) -> str:
        return _product(self.c, x, self._weights(1, direction))

    def state_weights(self, direction: int) -> list[str]:
        return self._weights(2, direction)

    def state_product(self, c: Context, state: str, weights: Sequence[str], more: str) -> str:
        batch, hidden = c.shape(state)
        out = _product(c, state, weights)
        out = c.emit("reshape", [out], shape=(batch, self.gates, hidden))
        out = c.emit("transpose", [out], perm=(1, 0, 2))
        return c.emit("add", [out, more])

    def _weights(self, k: int, direction: int) -> list[str]:
        """Integers [n, gates * hidden], their scale and their zero point, of a direction."""
        found = [self.of(k, direction)]
        columns = (self.gates * self.hidden,)
        for at in (SCALES[k], SCALES[k] + 1):
            one = self.of(at, direction)
            many = self.c.type(one).size > 1
            found.append(self.c.emit("reshape", [one], shape=columns if many else ()))
        return found


def _product(c: Context, x: str, weights: Sequence[str]) -> str:
    """x [m, n], quantised by its range, times integers [n, columns], in float32."""
    w, scale_w, zero_w = weights
    a, scale, zero = q.dynamically(c, x)
    total = conditions.cast_to(c, q.product(c, a, w, zero, zero_w), "float32")
    return c.emit("mul", [total, c.emit("mul", [scale, scale_w])])


def dynamic_quantize_lstm(c: Context, n: OnnxNode) -> tuple[str, ...]:
    return recurrent.lstm(c, n, QuantisedLayer)


READERS: dict[str, Any] = {"com.microsoft.DynamicQuantizeLSTM": dynamic_quantize_lstm}
