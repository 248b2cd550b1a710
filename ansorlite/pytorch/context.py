"""State of an import from PyTorch: the graph so far, and the aten node that is read.

In: arguments of aten operators, tensors as `Value`s and the rest as Python values. Out: nodes in a
folding `GraphBuilder`. Operators that ONNX has, too, are emitted by the readers of `graph.onnx`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ansorlite.errors import MissingExtra, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.onnx.context import Context as OnnxContext
from ansorlite.graph.onnx.context import OnnxNode
from ansorlite.graph.onnx.table import READERS as ONNX_READERS
from ansorlite.graph.types import Attr, TensorType

OPSET = 21  # whose rules the readers of ONNX's operators follow
# Graph's dtypes of torch's. Floating-point numbers of 16 bits are computed in float32.
DTYPES = {
    "torch.float32": "float32",
    "torch.float64": "float64",
    "torch.float16": "float32",
    "torch.bfloat16": "float32",
    "torch.int64": "int64",
    "torch.int32": "int32",
    "torch.bool": "bool",
}
NARROW = ("torch.uint8", "torch.int8", "torch.int16")  # read and moved as int32, never computed


class Value(str):
    """The name of a value of the graph; a plain `str` among arguments is an option."""

    __slots__ = ()


Result = Value | tuple[Value | None, ...]


def imported_torch() -> Any:
    """The module torch, or a MissingExtra."""
    try:
        import torch
        import torch.export
        import torch.fx
    except ImportError:
        raise MissingExtra("torch", "torch") from None
    return torch


def stored_dtype(dtype: Any) -> str:
    """The graph's dtype of tensors of this torch dtype; a ModelError where there is none."""
    name = str(dtype)
    if name not in DTYPES and name not in NARROW:
        raise ModelError(f"{name} is not supported: convert the tensor to float32")
    return DTYPES.get(name, "int32")


@dataclass
class Context:
    """What a reader of an aten operator may ask for; `node` is the `torch.fx.Node` that is read."""

    torch: Any
    builder: GraphBuilder
    node: Any = None

    @property
    def meta(self) -> Any:
        """The fake tensor, or the tuple of them, that torch computed for the node."""
        return self.node.meta.get("val")

    def dtype(self) -> str:
        """The dtype in which the node computes: that of its (first) result."""
        first = self.meta[0] if isinstance(self.meta, tuple | list) else self.meta
        if str(first.dtype) not in DTYPES:
            raise ModelError(
                f"results of {first.dtype} are not supported: convert the operands to int32"
            )
        return DTYPES[str(first.dtype)]

    def result_shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.meta.shape)

    def common_dtype(self) -> str:
        """The dtype to which torch promotes the node's first two operands."""
        a, b = (x.meta["val"] if hasattr(x, "meta") else x for x in self.node.args[:2])
        return stored_dtype(self.torch.result_type(a, b))

    def type(self, value: str) -> TensorType:
        return self.builder.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        return self.builder.types[value].shape

    def rank(self, value: str) -> int:
        return len(self.shape(value))

    def known(self, value: str) -> Any:
        """The array of a constant value, or None."""
        return self.builder.constants.get(value)

    def emit(self, op: str, inputs: Sequence[str], **attrs: Attr) -> Value:
        """Append a node; value and node are called after the node of torch."""
        return Value(self.builder.emit(op, inputs, self.node.name, self.node.name, **attrs))

    def constant(self, array: Any) -> Value:
        name = f"{self.node.name}.constant"
        return Value(self.builder.constant(np.asarray(array), name, computed=True))

    def room(self, shape: Sequence[int], dtype: str) -> None:
        """Raise a ModelError where there is no room for a constant of that shape."""
        self.builder.room.another("this constant", TensorType(tuple(shape), dtype))

    def cast(self, x: Any, dtype: str) -> Value:
        """An operand in this dtype; a number becomes a constant without dimensions."""
        if not isinstance(x, Value):
            return self.constant(np.asarray(x).astype(dtype))
        return x if self.type(x).dtype == dtype else self.emit("cast", [x], dtype=dtype)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(int(n) for n in shape)
        return x if self.shape(x) == shape else self.emit("reshape", [x], shape=shape)

    def axis(self, dim: int, rank: int) -> int:
        """The axis counted from the front; a tensor without dimensions has one, as torch has it."""
        if not -max(rank, 1) <= dim < max(rank, 1):
            raise ModelError(f"axis {dim} is none of the {rank} axes of the operand")
        return dim % max(rank, 1)

    def onnx(self) -> OnnxContext:
        """A context for functions of `graph.onnx`, in which values go by the graph's names."""
        context = OnnxContext(self.builder, {})
        context.node = self._node("", (), {}, 1)
        return context

    def by_onnx(self, op: str, *inputs: str | None, **attrs: Any) -> Value:
        """The operator `op` of ONNX; operands that are None are left out."""
        return self.several_by_onnx(op, 1, *inputs, **attrs)[0]

    def several_by_onnx(
        self, op: str, outputs: int, *inputs: str | None, **attrs: Any
    ) -> tuple[Value, ...]:
        if op not in ONNX_READERS:
            raise ModelError(f"it needs ONNX's {op}, which is not supported")
        context = self.onnx()
        context.values.update({v: v for v in inputs if v})
        given = tuple(v or "" for v in inputs)
        node = context.node = self._node(op, given, attrs, outputs)
        result = ONNX_READERS[op](context, node)
        return tuple(map(Value, (result,) if isinstance(result, str) else result))

    def _node(
        self, op: str, inputs: tuple[str, ...], attrs: dict[str, Any], outputs: int
    ) -> OnnxNode:
        name = self.node.name
        names = (name, *(f"{name}.{k}" for k in range(1, outputs)))
        return OnnxNode(name, op, inputs, names, attrs, OPSET)
