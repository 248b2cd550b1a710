"""Types of graph values and attributes of graph nodes.

A `TensorType` has a static shape (elements per dimension) and a dtype string. Attributes are plain
Python values, so that a graph prints, compares and travels without any library. The functions at
the end check what several operators ask of shapes, dtypes and axes; they raise ModelError.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ModelError

Array = npt.NDArray[np.generic]
DTYPES = (
    *("float32", "float64", "int32", "int64", "bool"),
    *("int8", "uint8", "int16", "uint16", "uint32", "float16"),
)


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a value; every extent is at least 0 and known."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Body(Protocol):
    """What a loop runs at each step: a graph, as operators see it."""

    @property
    def takes(self) -> tuple[TensorType, ...]: ...
    @property
    def gives(self) -> tuple[TensorType, ...]: ...
    @property
    def work(self) -> int:
        """Element operations of one step."""

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]: ...


Attr = int | float | str | bool | tuple[int, ...] | tuple[tuple[int, int], ...] | Body
Attrs = Mapping[str, Attr]


def type_of(array: Array) -> TensorType:
    return TensorType(tuple(int(n) for n in array.shape), str(array.dtype))


def ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """The attribute `name`, a tuple of ints."""
    value = attrs[name]
    assert isinstance(value, tuple), f"{name}={value!r} is no tuple"
    return tuple(v for v in value if isinstance(v, int))


def pairs(attrs: Attrs, name: str) -> tuple[tuple[int, int], ...]:
    """The attribute `name`, a tuple of (before, after) per dimension."""
    value = attrs[name]
    assert isinstance(value, tuple), f"{name}={value!r} is no tuple"
    return tuple(v for v in value if isinstance(v, tuple))


def integer(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    assert isinstance(value, int), f"{name}={value!r} is no integer"
    return value


def number(attrs: Attrs, name: str) -> float:
    value = attrs[name]
    assert isinstance(value, int | float), f"{name}={value!r} is no number"
    return float(value)


def literal(attrs: Attrs, name: str) -> int | float:
    """The attribute `name`, an int or a float as given: a float would round int64."""
    value = attrs[name]
    assert isinstance(value, int | float), f"{name}={value!r} is no number"
    return value


def text(attrs: Attrs, name: str) -> str:
    value = attrs[name]
    assert isinstance(value, str), f"{name}={value!r} is no string"
    return value


def body(attrs: Attrs) -> Body:
    """The attribute `body`."""
    value = attrs["body"]
    assert not isinstance(value, int | float | str | tuple), f"body={value!r} is no graph"
    return value


def same_dtype(types: Sequence[TensorType]) -> str:
    """The dtype that all of `types` have."""
    dtypes = sorted({t.dtype for t in types})
    if len(dtypes) != 1:
        raise ModelError(f"operands have different dtypes {', '.join(dtypes)}: cast one of them")
    return dtypes[0]


def broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape that all of `shapes` broadcast to, as in numpy; of any size."""
    rank = max(map(len, shapes))
    full = [1] * rank
    for shape in shapes:
        for axis, n in enumerate(shape, rank - len(shape)):
            if n != 1 and full[axis] not in (1, n):
                listed = " and ".join(str(list(s)) for s in shapes[:4])
                raise ModelError(f"shapes {listed} do not broadcast")
            full[axis] = n if full[axis] == 1 else full[axis]
    return tuple(full)


def axes_in_range(axes: Sequence[int], rank: int) -> None:
    """Raise a ModelError unless `axes` are distinct and from 0 to rank - 1."""
    if any(not 0 <= a < rank for a in axes) or len(set(axes)) != len(axes):
        raise ModelError(f"axes {tuple(axes)} are not distinct axes of rank {rank}")
