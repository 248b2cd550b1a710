"""State of an ONNX import: which of our values each ONNX value became.

In: `OnnxNode`s in order. Out: nodes in a folding `GraphBuilder`. A converter asks the context for
operands, static shapes and known constants.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.types import Array, Attr, TensorType


@dataclass(frozen=True)
class OnnxNode:
    """A node of the model: attributes as Python values and arrays, `opset` of the model."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    opset: int


@dataclass
class Context:
    """Values by ONNX name; `dtypes` gives numpy's names of ONNX's dtype numbers."""

    builder: GraphBuilder
    dtypes: dict[int, str]
    values: dict[str, str] = field(default_factory=dict)
    node: OnnxNode | None = None

    def has(self, node: OnnxNode, k: int) -> bool:
        """Whether the optional operand k is there."""
        return k < len(node.inputs) and bool(node.inputs[k])

    def operand(self, node: OnnxNode, k: int) -> str:
        if not self.has(node, k):
            raise ModelError(f"operand {k} is missing")
        return self.values[node.inputs[k]]

    def operands(self, node: OnnxNode) -> list[str]:
        """All operands that are there."""
        return [self.values[v] for v in node.inputs if v]

    def known(self, node: OnnxNode, k: int) -> Array | None:
        """The array of operand k if it is constant."""
        return self.builder.constants.get(self.operand(node, k))

    def required(self, node: OnnxNode, k: int) -> Array:
        """The array of operand k, which must be constant."""
        array = self.known(node, k)
        if array is None:
            raise ModelError(f"operand {node.inputs[k]} must be constant: it depends on the input")
        return array

    def axes(self, node: OnnxNode, k: int) -> list[int]:
        """The attribute `axes`, or operand k, or nothing."""
        if "axes" in node.attrs:
            return [int(a) for a in node.attrs["axes"]]
        return [int(a) for a in self.required(node, k).ravel()] if self.has(node, k) else []

    def type(self, value: str) -> TensorType:
        return self.builder.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        return self.builder.types[value].shape

    def emit(self, op: str, inputs: list[str], **attrs: Attr) -> str:
        """Append a node; its value is called after the ONNX node's first output."""
        assert self.node is not None
        name = next((v for v in self.node.outputs if v), op)
        return self.builder.emit(op, inputs, name, self.node.name, **attrs)

    def constant(self, array: Any, name: str = "") -> str:
        assert self.node is not None
        return self.builder.constant(np.asarray(array), name or self.node.outputs[0])

    def scalar(self, value: float, like: str) -> str:
        """A constant without dimensions, of the dtype of `like`."""
        assert self.node is not None
        array = np.asarray(value, self.type(like).dtype)
        return self.builder.constant(array, f"{self.node.outputs[0]}.scalar")


Converter = Callable[[Context, OnnxNode], str]
