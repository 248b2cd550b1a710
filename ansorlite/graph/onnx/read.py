"""Reading ONNX: a path, bytes or a ModelProto -> a checked ModelProto with all its data inside.

The file is not trusted: nesting and counts are bounded, tensors are compared with
their shapes, data in files of its own is read only from regular files inside the model's folder.
Raises ModelError, one line that names the tensor, the numbers and what to do.
"""

import math
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.limits import MOST_AXES, megabytes, most_bytes
from ansorlite.graph.types import Array
from ansorlite.names import brief, first_line

MOST_NODES = 100_000  # of a network, its functions written out
MOST_OPERANDS = 1 << 16  # of one node
MOST_NESTED = 20  # graphs within nodes within graphs
LITTLE = sys.byteorder == "little"  # as files are
PACKED_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def read_model(onnx: Any, model: Any) -> tuple[Any, str]:
    """The ModelProto and a name for messages."""
    proto, name, folder = _parse(onnx, model)
    count = 0
    for part in _parts(proto, name):
        count += len(part.node)
        if count > MOST_NODES:
            raise ModelError(f"{name} has {count} nodes, more than the limit of {MOST_NODES}")
        _check_counts(part, name)
        _check_text(part, name)
    _load_external(onnx, proto, folder, name)
    return proto, name


def _parse(onnx: Any, model: Any) -> tuple[Any, str, Path | None]:
    if isinstance(model, onnx.ModelProto):
        name = model.graph.name
        return model, (brief(name) if isinstance(name, str) else "") or "model", None
    if isinstance(model, bytes | bytearray | memoryview):
        data, folder = bytes(model), None
        name = title = f"model of {len(data)} bytes"
    elif isinstance(model, str | os.PathLike):
        path = Path(model)
        name, title = brief(str(path)), brief(path.stem)
        try:
            found = path.is_file()
        except OSError as error:  # a name that is too long, a folder that may not be read
            raise ModelError(f"cannot read {name}: {error.strerror}") from None
        if not found:
            raise ModelError(f"there is no file {name}: give the path of an ONNX model")
        if path.stat().st_size > most_bytes():
            raise ModelError(
                f"{name} has {megabytes(path.stat().st_size)}, more than the limit of "
                f"{megabytes(most_bytes())}: set ANSORLITE_MAX_BYTES to allow it"
            )
        folder = path.parent
    else:
        raise ModelError(f"a {type(model).__name__} is no ONNX model: give a path or a ModelProto")
    try:
        if folder is None:
            proto = onnx.load_model_from_string(data)
        else:
            proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf and onnx raise their own kinds
        raise ModelError(f"{name} is no readable ONNX model: {first_line(error)}") from error
    if not proto.graph.node:
        raise ModelError(f"{name} is no ONNX model, or one without nodes")
    return proto, title, folder


def _parts(proto: Any, name: str) -> Iterator[Any]:
    """The graph, the functions, and all graphs inside of their nodes."""
    waiting = [(proto.graph, 0), *((f, 0) for f in proto.functions)]
    while waiting:
        part, depth = waiting.pop()
        if depth > MOST_NESTED:
            raise ModelError(f"{name} has graphs nested more than {MOST_NESTED} deep")
        yield part
        waiting += [(g, depth + 1) for a in _attributes(part) for g in (*a.graphs, a.g) if g.node]


def _check_counts(part: Any, name: str) -> None:
    """Raise a ModelError for more of anything than a network has."""
    for field in ("initializer", "sparse_initializer", "input", "output", "value_info"):
        if len(getattr(part, field, ())) > MOST_NODES:
            raise ModelError(f"{name} has more than {MOST_NODES} of the kind {field}")
    for k, node in enumerate(part.node):
        count = max(len(node.input), len(node.output), len(node.attribute))
        if count > MOST_OPERANDS:
            raise ModelError(
                f"{name}: node {k} has {count} operands, outputs or attributes, more than the "
                f"limit of {MOST_OPERANDS}"
            )


def _check_text(part: Any, name: str) -> None:
    """Raise a ModelError for a name that is no text: protobuf gives its bytes then."""
    names = [part.name]
    for field in ("input", "output", "value_info", "initializer", "attribute"):
        values = getattr(part, field, ())
        names += [v if isinstance(v, str | bytes) else v.name for v in values]
    for value in getattr(part, "input", ()):
        if not isinstance(value, str | bytes):
            names += [d.dim_param for d in value.type.tensor_type.shape.dim]
    if any(isinstance(v, bytes) for v in names):
        raise ModelError(f"{name} is damaged: a name is no UTF-8 text")
    for k, node in enumerate(part.node):
        texts = [node.name, node.op_type, node.domain, *node.input, *node.output]
        texts += [v for a in node.attribute for v in (a.name, a.ref_attr_name)]
        if any(isinstance(v, bytes) for v in texts):
            raise ModelError(f"{name}: node {k} is damaged: a name is no UTF-8 text")


def _attributes(part: Any) -> Iterator[Any]:
    for node in part.node:
        yield from node.attribute
    yield from getattr(part, "attribute_proto", ())


def _tensors(proto: Any, name: str) -> Iterator[Any]:
    """Every tensor of the model, wherever it stands."""
    for part in _parts(proto, name):
        yield from getattr(part, "initializer", ())
        sparse = list(getattr(part, "sparse_initializer", ()))
        for a in _attributes(part):
            if a.HasField("t"):
                yield a.t
            yield from a.tensors
            sparse += [
                *a.sparse_tensors,
                *([a.sparse_tensor] if a.HasField("sparse_tensor") else []),
            ]
        for s in sparse:
            yield from (s.values, s.indices)


# ---- data in files of its own -------------------------------------------------------------------


def _load_external(onnx: Any, proto: Any, folder: Path | None, name: str) -> None:
    """Replace references of tensors to other files by the data of those files."""
    total = 0
    for tensor in _tensors(proto, name):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        what = f"tensor {brief(tensor.name)}"
        if folder is None:
            raise ModelError(
                f"{name}: {what} keeps its data in another file, which only a path leads to: give "
                "the path of the model, or load the data first (onnx.load_external_data_for_model)"
            )
        size = _stored_bytes(onnx, tensor, what)
        total += size
        if total > most_bytes():
            raise ModelError(
                f"{name}: tensors up to {brief(tensor.name)} take {megabytes(total)}, more than "
                f"the limit of {megabytes(most_bytes())}: set ANSORLITE_MAX_BYTES to allow it"
            )
        try:
            data = _external_data(tensor, folder, what, size)
        except OSError as error:
            raise ModelError(f"{name}: the data of {what}: {error.strerror or error}") from error
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from None
        tensor.raw_data = data
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _external_data(tensor: Any, folder: Path, what: str, size: int) -> bytes:
    entries = {e.key: e.value for e in tensor.external_data}
    if any(isinstance(v, bytes) for v in (*entries, *entries.values())):
        raise ModelError(f"{what} says in no UTF-8 text where its data is")
    location = entries.get("location", "")
    where = f"{what} names the file {brief(location)!r}"
    parts = Path(location).parts
    if not parts or Path(location).is_absolute() or ".." in parts or "\0" in location:
        raise ModelError(f"{where}, which is not below the model's folder")
    path = folder / location
    if not path.exists():
        raise ModelError(f"{where}, which does not exist: put it beside the model")
    real = path.resolve()
    if not path.is_file():
        raise ModelError(f"{where}, which is no regular file")
    if not real.is_relative_to(folder.resolve()):
        raise ModelError(f"{where}, a link out of the model's folder: copy the file to its place")
    offset = _number(entries.get("offset", "0"), "offset", what)
    length = _number(entries.get("length", str(size)), "length", what)
    if length != size:
        raise ModelError(f"{what} needs {size} bytes, its entry in {brief(location)} has {length}")
    handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{where}, which is no regular file")
        if offset + size > status.st_size:
            raise ModelError(
                f"{what} needs bytes {offset} to {offset + size} of {brief(location)}, which has "
                f"{status.st_size}"
            )
        file.seek(offset)
        data = file.read(size)
    if len(data) != size:
        raise ModelError(f"{what}: {brief(location)} was cut while it was read")
    return data


def _number(text: str, key: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ModelError(f"{what}: the {key} {brief(text)!r} of its data is no whole number")
    return int(text)


# ---- tensors ------------------------------------------------------------------------------------


def array_of(onnx: Any, tensor: Any, what: str) -> Array:
    """The array of a TensorProto; conditions are 0 or 1 whatever the bytes are."""
    raw = _checked_data(onnx, tensor, what)
    try:
        if raw is not None and (dtype := _plain_dtype(onnx, tensor)) is not None:
            array = np.frombuffer(raw, dtype).reshape(tuple(tensor.dims))
        else:
            array = np.asarray(onnx.numpy_helper.to_array(tensor))
    except Exception as error:  # onnx's and numpy's own kinds
        raise ModelError(f"{what} is damaged: {first_line(error)}") from error
    if array.shape != tuple(tensor.dims):
        raise ModelError(f"{what} has {array.size} elements for dimensions {list(tensor.dims)}")
    return (array.view(np.uint8) != 0) if array.dtype == np.bool_ else array


def dense_of(onnx: Any, sparse: Any, what: str) -> Array:
    """The array of a SparseTensorProto: zeros, and `values` at `indices`.

    Indices are [count] places in row-major order, or [count, rank].
    """
    values = array_of(onnx, sparse.values, what)
    at: Any = array_of(onnx, sparse.indices, f"the indices of {what}")
    dims = tuple(sparse.dims)
    size = math.prod(dims) * values.itemsize
    if any(d < 0 for d in dims) or len(dims) > MOST_AXES or size > most_bytes():
        raise ModelError(
            f"{what} with dimensions {_listed(dims)} takes {megabytes(size)}: too much"
        )
    if (
        values.ndim != 1
        or at.dtype != np.int64
        or at.shape
        not in (
            (len(values),),
            (len(values), len(dims)),
        )
    ):
        raise ModelError(f"{what}: indices {list(at.shape)} are no places of {values.size} values")
    rows = at if at.ndim == 1 else np.zeros(len(values), np.int64)
    limits = (math.prod(dims),) if at.ndim == 1 else dims
    columns = at[:, None] if at.ndim == 1 else at
    if np.any(columns < 0) or np.any(columns >= np.asarray(limits)):
        raise ModelError(f"{what}: an index is outside of the dimensions {_listed(dims)}")
    if at.ndim == 2:
        for axis, n in enumerate(dims):
            rows = rows * n + at[:, axis]
    dense = np.zeros(math.prod(dims), values.dtype)
    dense[rows] = values
    return dense.reshape(dims)


def _plain_dtype(onnx: Any, tensor: Any) -> np.dtype[Any] | None:
    """The dtype of elements that numpy reads as a file holds them; None for all others."""
    found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return found if found.isbuiltin == 1 and found.kind in "fiub" and LITTLE else None


def _checked_data(onnx: Any, tensor: Any, what: str) -> bytes | None:
    """The bytes of the data, a copy that is made once; None where fields hold numbers.

    Raises a ModelError unless the data is here and as long as the dimensions say.
    """
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ModelError(f"{what} keeps its data in another file")
    if tensor.HasField("segment"):
        raise ModelError(f"{what} is a segment of a tensor: join its parts")
    size = _stored_bytes(onnx, tensor, what)
    if tensor.HasField("raw_data"):
        raw: bytes = tensor.raw_data
        if len(raw) != size:
            raise ModelError(
                f"{what} with dimensions {_listed(tensor.dims)} needs {size} bytes, the file has "
                f"{len(raw)}"
            )
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        return None if kind in PACKED_BITS else raw
    kind = onnx.TensorProto.DataType.Name(tensor.data_type)
    held = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
    count = math.prod(tensor.dims)
    count = count * 2 if kind.startswith("COMPLEX") else size if kind in PACKED_BITS else count
    if held != count:
        raise ModelError(
            f"{what} with dimensions {_listed(tensor.dims)} needs {count} numbers, the file has "
            f"{held}"
        )
    return None


def _stored_bytes(onnx: Any, tensor: Any, what: str) -> int:
    """Bytes of the data as a file holds them."""
    numbers = onnx.TensorProto.DataType
    if tensor.data_type not in numbers.values() or tensor.data_type == numbers.UNDEFINED:
        raise ModelError(f"{what} has the unknown element type {tensor.data_type}")
    kind = numbers.Name(tensor.data_type)
    if kind == "STRING":
        raise ModelError(f"{what} holds strings, which are not supported")
    if len(tensor.dims) > MOST_AXES:
        raise ModelError(f"{what} has {len(tensor.dims)} axes, more than the {MOST_AXES} possible")
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"{what} has the negative dimensions {_listed(tensor.dims)}")
    count = math.prod(tensor.dims)
    bits = PACKED_BITS.get(kind) or (
        8 * np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
    )
    size: int = -(-count * bits // 8)
    if size > most_bytes():
        raise ModelError(
            f"{what} with dimensions {_listed(tensor.dims)} takes {megabytes(size)}, more than the "
            f"limit of {megabytes(most_bytes())}: set ANSORLITE_MAX_BYTES to allow it"
        )
    return size


def _listed(dims: Any) -> str:
    return str(list(dims)) if len(dims) <= 16 else f"{str(list(dims[:16]))[:-1]}, ...]"
