"""State of an ONNX import: the graph's value for each ONNX value.

In: `OnnxNode`s in order. Out: nodes in a folding `GraphBuilder`. A reader asks the context for
operands, static shapes and known constants.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.types import Array, Attr, TensorType
from ansorlite.names import brief

LOWS = ("float16", "bfloat16")  # of numbers that the graph has in float32
PACKED = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}


class Unsupported(ModelError):
    """A body has an operator that no reader is for, whatever the sizes are."""


@dataclass(frozen=True)
class OnnxNode:
    """A node of the model: attributes as Python values and arrays, `opset` of the model.

    `schema` is ONNX's schema of the operator, or None. `origin` is the model's own node, as (name,
    operator), where this one was written out for it.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    opset: int
    schema: Any = None
    origin: tuple[str, str] | None = None

    @property
    def where(self) -> str:
        """The model's own node, for messages."""
        return where(*(self.origin or (self.name, self.op)))


def where(name: str, op: str) -> str:
    """A node of the model, for messages."""
    return f"node {brief(name)} ({brief(op)})"


@dataclass
class Context:
    """Values by ONNX name; `dtypes` gives numpy's names of ONNX's dtype numbers.

    `absent` says why outputs are not computed, `later` has the results of all nodes. `lows` has
    the dtype of the values that the model has in float16 or bfloat16, and the graph in float32.
    `inside` reads the body of a node: (context, GraphProto, values of its inputs) -> values of its
    outputs. `sequences` has the elements of values that are sequences. `scaled` has integers, scale
    and zero point of constants that were made of them.
    """

    builder: GraphBuilder
    dtypes: dict[int, str]
    values: dict[str, str] = field(default_factory=dict)
    node: OnnxNode | None = None
    absent: dict[str, str] = field(default_factory=dict)
    later: set[str] = field(default_factory=set)
    lows: dict[str, str] = field(default_factory=dict)
    inside: "Callable[[Context, Any, Sequence[str]], Sequence[str]]" = lambda c, g, values: ()
    sequences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    scaled: dict[str, tuple[str, str, str]] = field(default_factory=dict)

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
            raise ModelError(
                f"operand {brief(node.inputs[k])} must be constant: it depends on the input's "
                "values; export the model with that operand fixed"
            )
        return array

    def numbers(self, node: OnnxNode, k: int) -> list[int]:
        """The whole numbers of operand k, a constant."""
        array = self.required(node, k)
        if array.dtype.kind not in "iu":
            raise ModelError(f"operand {brief(node.inputs[k])} has dtype {array.dtype}, not int64")
        return [int(v) for v in array.ravel()]

    def number(self, node: OnnxNode, k: int) -> int:
        """The one whole number of operand k."""
        found = self.numbers(node, k)
        if len(found) != 1:
            raise ModelError(f"operand {brief(node.inputs[k])} has {len(found)} elements, not one")
        return found[0]

    def axes(self, node: OnnxNode, k: int, rank: int) -> list[int]:
        """The attribute `axes`, or operand k, or nothing: distinct axes, counted from the front."""
        if "axes" in node.attrs:
            given = [int(a) for a in node.attrs["axes"]]
        else:
            given = self.numbers(node, k) if self.has(node, k) else []
        return axes_of(given, rank)

    def room(self, extents: Sequence[int], dtype: Any = np.int64, cost: int = 1) -> None:
        """Raise a ModelError where there is no room for a constant of that shape.

        `cost` is how many operations an element takes to compute.
        """
        self.builder.room.another("this constant", TensorType(tuple(extents), str(np.dtype(dtype))))
        self.builder.room.compute("this constant", prod(extents) * cost)

    def same_shape(self, value: str, like: str) -> None:
        """Raise a ModelError where broadcasting made more than the operand `like` is."""
        if self.shape(value) != self.shape(like):
            raise ModelError(f"the other operands do not broadcast to {self.type(like)}")

    def declared(self, name: str) -> str:
        """The dtype that the model's value `name` has in the model."""
        return self.lows.get(name) or self.type(self.values[name]).dtype

    def store(self, array: Array, name: str) -> str:
        """The constant that the model calls `name`; floats of 16 bits become float32.

        Raises ModelError for an element type that the graph lacks.
        """
        dtype = str(array.dtype)
        if dtype in LOWS:
            self.lows[name], array = dtype, array.astype(np.float32)
        elif dtype in PACKED:
            array = array.astype(PACKED[dtype])
        return self.builder.constant(array, name)

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
        return self.builder.constant(np.asarray(array), name or self.node.outputs[0], computed=True)

    def listed(self, items: Sequence[str]) -> str:
        """A sequence of values, as a value."""
        name = f"sequence {len(self.sequences)}"
        while name in self.builder.types:
            name += "_"
        self.sequences[name] = tuple(items)
        return name

    def scalar(self, value: float, like: str) -> str:
        """A constant without dimensions, of the dtype of `like`."""
        assert self.node is not None
        array = np.asarray(value, self.type(like).dtype)
        return self.builder.constant(array, f"{self.node.outputs[0]}.scalar")


def axis_of(axis: int, rank: int) -> int:
    """The axis counted from the front; a ModelError if there is none."""
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is none of the {rank} axes of the operand")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> list[int]:
    """The axes counted from the front; a ModelError for one that is none, or there twice."""
    found = [axis_of(int(a), rank) for a in axes]
    if len({*found}) != len(found):
        raise ModelError(f"axes {found} name an axis twice")
    return found


Reader = Callable[[Context, OnnxNode], str]
