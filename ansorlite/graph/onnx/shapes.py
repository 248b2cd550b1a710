"""Sizes of a model's inputs: what the file declares and what the caller says -> static shapes.

In: the declared inputs, and `batch`, `dims` and `shapes` as a caller gave them. Out: a `Size` for
every combination of the sizes that are listed. Axes of one name have one size, whether the caller
gives the size by name ("N"), by place ("x.2") or with a whole shape; an axis called "?", or not
called at all, is known by its place alone. Raises SizesError, which names every size that is
missing, and the two arguments that contradict each other.
"""

import ast
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from ansorlite.errors import ModelError, SizesError
from ansorlite.names import brief

MOST_LISTED = 12  # names in one message
MOST_SIZES = 64  # of one network
Shape = tuple[int | None, ...]  # None: as the model has it
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Axis:
    """An axis of an input: `place` is input.axis, `name` is empty where the model gives none.

    `fixed` is the extent that the model declares, or None.
    """

    place: str
    name: str
    fixed: int | None

    @property
    def key(self) -> str:
        """What axes of one size have in common."""
        return self.name or self.place


@dataclass(frozen=True)
class Input:
    """An input as the model declares it; `axes` is None where it has no shape."""

    name: str
    axes: tuple[Axis, ...] | None


@dataclass(frozen=True)
class Asked:
    """One size of every axis that a caller speaks of."""

    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """A shape for every input, and what tells this size from the others ("n=1, w=320")."""

    shapes: Shapes
    label: str = ""


def declared_inputs(values: Sequence[Any]) -> list[Input]:
    """Inputs of a graph; a fixed extent below 0 is a free one."""
    found = []
    for value in values:
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            found.append(Input(value.name, None))
            continue
        axes = []
        for k, d in enumerate(kind.shape.dim):
            fixed = int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else None
            axes.append(Axis(f"{value.name}.{k}", _name(d.dim_param), fixed))
        found.append(Input(value.name, tuple(axes)))
    return found


def _name(text: str) -> str:
    """The name of an axis: none for what exporters write where they know none (?, -1, None)."""
    named = any(c.isalpha() or c == "_" for c in text) and text.lower() != "none"
    return text if named else ""


# ---- what callers say ---------------------------------------------------------------------------


def asked(batch: Any, dims: Any, shapes: Any) -> tuple[list[Asked], bool]:
    """Every combination of the sizes that are given, and whether any of them is a list.

    A ModelError names the argument that is no whole number.
    """
    for what, given, example in (
        ("dims", dims, "{'N': 1}"),
        ("shapes", shapes, "{'x': (1, 3, 224, 224)}"),
    ):
        if given is not None and not isinstance(given, Mapping):
            kind = type(given).__name__
            raise ModelError(f"{what} is a {kind}: give a mapping such as {example}")
    batches = [None] if batch is None else _extents("batch", batch)
    extents = {str(k): _extents(str(k), v) for k, v in (dims or {}).items()}
    whole = {str(k): _whole_shapes(str(k), v) for k, v in (shapes or {}).items()}
    listed = [batch, *(dims or {}).values()]
    several = any(isinstance(v, list | tuple) for v in listed) or any(
        _is_list_of_shapes(v) for v in (shapes or {}).values()
    )
    choices = product(batches, product(*extents.values()), product(*whole.values()))
    count = len(batches) * _count(extents) * _count(whole)
    if count > MOST_SIZES:
        raise ModelError(f"{count} sizes of one network are listed: at most {MOST_SIZES} work")
    made = [
        Asked(b, dict(zip(extents, ds, strict=True)), dict(zip(whole, ss, strict=True)))
        for b, ds, ss in choices
    ]
    return made, several


def _count(listed: Mapping[str, Sequence[Any]]) -> int:
    count = 1
    for values in listed.values():
        count *= len(values)
    return count


def _extents(name: str, value: Any) -> list[int]:
    """One extent, or those of a list."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    if not listed:
        raise ModelError(f"the extent {name!r} is an empty list: give a whole number or some")
    return list(dict.fromkeys(_extent(name, v) for v in listed))


def _extent(name: str, value: Any) -> int:
    if not hasattr(value, "__index__") or isinstance(value, bool) or np.ndim(value):
        raise ModelError(f"the extent {name!r} is {value!r}: give a whole number")
    return operator.index(value)


def _is_list_of_shapes(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, list | tuple) for v in value)


def _whole_shapes(name: str, value: Any) -> list[Shape]:
    """One shape, or those of a list."""
    listed = list(value) if _is_list_of_shapes(value) else [value]
    found: list[Shape] = []
    for shape in listed:
        if not isinstance(shape, list | tuple):
            raise ModelError(
                f"the shape of {brief(name)} is {shape!r}: give a tuple such as (1, 3, 224, 224)"
            )
        found.append(tuple(None if v is None else _extent(name, v) for v in shape))
    return list(dict.fromkeys(found))


class _Said:
    """An argument as Python has it, and as the command line has it."""

    def __init__(self, python: str, shell: str) -> None:
        self.python, self.shell = python, shell


BATCH = _Said("batch", "--batch")


def _dim(name: str, extent: int) -> _Said:
    return _Said(f"dims={{{brief(name)!r}: {extent}}}", f"--dim {brief(name)}={extent}")


def _shape(name: str, shape: Shape) -> _Said:
    listed = ",".join("" if n is None else str(n) for n in shape)
    return _Said(f"shapes={{{brief(name)!r}: {shape}}}", f"--shape {brief(name)}={listed}")


def _refused(text: str, **said: _Said) -> SizesError:
    """An error whose text names arguments, in both languages."""
    python, shell = (
        text.format(**{k: getattr(s, words) for k, s in said.items()})
        for words in ("python", "shell")
    )
    return SizesError(python, shell)


def _plain(text: str) -> str:
    """Text inside of a form."""
    return text.replace("{", "{{").replace("}", "}}")


# ---- shapes -------------------------------------------------------------------------------------


def sizes(inputs: Sequence[Input], wanted: Sequence[Asked], name: str) -> list[Size]:
    """The static shapes of all inputs for each of `wanted`, without repetition."""
    found: dict[tuple[Any, ...], Size] = {}
    for one in wanted:
        shapes = static_shapes(inputs, one, name)
        found.setdefault(tuple(shapes.values()), Size(shapes, _label(one, wanted)))
    return list(found.values())


def _label(one: Asked, wanted: Sequence[Asked]) -> str:
    """What differs between this and the others."""
    parts = []
    if len({w.batch for w in wanted}) > 1:
        parts.append(f"batch={one.batch}")
    parts += [
        f"{brief(k)}={n}" for k, n in one.dims.items() if len({w.dims[k] for w in wanted}) > 1
    ]
    parts += [
        f"{brief(k)}={'x'.join(str(n or '?') for n in s)}"
        for k, s in one.shapes.items()
        if len({w.shapes[k] for w in wanted}) > 1
    ]
    return ", ".join(parts)


def static_shapes(inputs: Sequence[Input], wanted: Asked, name: str) -> Shapes:
    """The shape of each input by its name; a SizesError names all extents that are missing."""
    _check_names(inputs, wanted, name)
    known: dict[str, tuple[int, _Said]] = {}
    for value in inputs:
        _take_shape(value, wanted, known)
    axes = [(k, a) for v in inputs for k, a in enumerate(v.axes or ())]
    for _, axis in axes:
        for said in dict.fromkeys((axis.place, axis.name)):
            if said in wanted.dims and (axis.fixed is None or said == axis.place):
                size = wanted.dims[said]
                _note(known, axis, size, _dim(said, size))
    if wanted.batch is not None:
        _take_batch(axes, wanted.batch, known)
    _take_sums([a for _, a in axes], known)
    shapes: Shapes = {}
    missing: list[tuple[str, int, Axis]] = []
    for value in inputs:
        shape: list[int] = []
        for k, axis in enumerate(value.axes or ()):
            extent = axis.fixed
            if axis.key in known and not axis.fixed:
                extent = known[axis.key][0]
            if extent is None:
                missing.append((value.name, k, axis))
            elif extent < 0:
                what = f"dimension {k} of input {brief(value.name)}"
                raise ModelError(f"{what} is {extent}: none is below 0")
            shape.append(extent or 0)
        whole = wanted.shapes.get(value.name)
        if value.axes is None and whole is not None:
            shape = [n or 0 for n in whole]
        elif value.axes is None:
            raise _no_shape(value.name)
        shapes[value.name] = tuple(shape)
    if missing:
        raise _what_is_missing(missing, [v for v in inputs if v.axes is not None], known)
    return shapes


def _no_shape(name: str) -> SizesError:
    said = _Said(
        f"shapes={{{brief(name)!r}: (1, 3, 224, 224)}}", f"--shape {brief(name)}=1,3,224,224"
    )
    return _refused(
        _plain(f"input {brief(name)} has no tensor shape: export the model with shapes, or give ")
        + "one such as {said}",
        said=said,
    )


def _check_names(inputs: Sequence[Input], wanted: Asked, name: str) -> None:
    """Raise a SizesError for a name in `dims` or `shapes` that the model does not have."""
    axes = [a for v in inputs for a in v.axes or ()]
    names = list(dict.fromkeys(a.key for a in axes if a.fixed is None))
    places = {a.place for a in axes if not a.fixed}
    agreeing = {a.place for a in axes if a.fixed == wanted.dims.get(a.place)}
    unknown = [s for s in wanted.dims if s not in {*names, *places, *agreeing}]
    if unknown:
        listed = _plain(_listed([brief(s) for s in sorted(names)]) or "none")
        raise _refused(
            f"{{what}} names {_plain(repr(brief(unknown[0])))}; the dynamic dimensions of "
            f"{_plain(name)}: {listed}",
            what=_Said("dims", "--dim"),
        )
    odd = [s for s in wanted.shapes if s not in {v.name for v in inputs}]
    if odd:
        listed = _plain(_listed([brief(v.name) for v in inputs]) or "none")
        raise _refused(
            f"{{what}} names {_plain(repr(brief(odd[0])))}; the inputs of {_plain(name)}: {listed}",
            what=_Said("shapes", "--shape"),
        )


def _take_shape(value: Input, wanted: Asked, known: dict[str, tuple[int, _Said]]) -> None:
    """Note the extents of a whole shape; a SizesError where it contradicts the declared one."""
    given = wanted.shapes.get(value.name)
    if given is None:
        return
    if value.axes is None:
        if None in given:
            raise _no_shape(value.name)
        return
    said = _shape(value.name, given)
    if len(given) != len(value.axes):
        raise _refused(
            f"{{said}} has {len(given)} axes, but input {_plain(brief(value.name))} has "
            f"{len(value.axes)}: {_plain(_declared(value))}",
            said=said,
        )
    for axis, extent in zip(value.axes, given, strict=True):
        if extent is None:
            continue
        if axis.fixed and axis.fixed != extent:
            raise _refused(
                f"{{said}} contradicts the model, in which input {_plain(brief(value.name))} is "
                f"{_plain(_declared(value))}",
                said=said,
            )
        _note(known, axis, extent, said)


def _declared(value: Input) -> str:
    axes = value.axes or ()
    return f"[{', '.join(str(a.fixed) if a.fixed else brief(a.name or '?') for a in axes)}]"


def _note(known: dict[str, tuple[int, _Said]], axis: Axis, extent: int, said: _Said) -> None:
    """Note the size of an axis; a SizesError where another argument says another size."""
    before, first = known.setdefault(axis.key, (extent, said))
    if before != extent:
        raise _refused(
            f"axis {_plain(brief(axis.key))} is {before} by {{first}} and {extent} by {{second}}: "
            "axes of one name have one size",
            first=first,
            second=said,
        )


def _take_batch(
    axes: Sequence[tuple[int, Axis]], batch: int, known: dict[str, tuple[int, _Said]]
) -> None:
    """Give the batch to free first axes of which nothing else was said."""
    first = [a for k, a in axes if k == 0]
    said = _Said(f"batch={batch}", f"--batch {batch}")
    taken = [a for a in first if not a.fixed and a.key not in known]
    for axis in taken:
        known.setdefault(axis.key, (batch, said))
    if taken or not first:
        return
    other = [(a, known.get(a.key)) for a in first]
    if any(a.fixed == batch or (k and k[0] == batch) for a, k in other):
        return
    for axis, noted in other:
        if noted is not None:
            _note(known, axis, batch, said)
    found = ", ".join(f"{a.fixed} of {a.place.rpartition('.')[0]}" for a in first[:MOST_LISTED])
    raise _refused(
        f"{{said}} finds no free first extent, all are fixed ({_plain(brief(found))}): leave it "
        "out, or export the model with a free one",
        said=said,
    )


# ---- names that are computed from others --------------------------------------------------------

OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _take_sums(axes: Sequence[Axis], known: dict[str, tuple[int, _Said]]) -> None:
    """Give axes that exporters call "past + new" or "2*n" the size that follows from the others."""
    for axis in axes:
        if axis.fixed or axis.name.isidentifier():
            continue
        names = {k: n for k, (n, _) in known.items()}
        extent = _computed(axis.name, names)
        if extent is not None:
            used = ", ".join(f"{k}={n}" for k, n in names.items() if k in _words(axis.name))
            _note(known, axis, extent, _Said(f"its name ({used})", f"its name ({used})"))


def _words(text: str) -> set[str]:
    """The names in a text such as "past + 2*new"; empty where it is no such text."""
    try:
        tree = ast.parse(text[:200].strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} if len(text) < 200 else set()


def _computed(text: str, names: Mapping[str, int]) -> int | None:
    """The value of sums, differences, products and quotients (//) of names and whole numbers."""
    if not _words(text) or not _words(text) <= names.keys():
        return None

    def value(node: ast.expr) -> int | None:
        match node:
            case ast.Constant(value=int(n)) if not isinstance(n, bool):
                return n
            case ast.Name(id=name):
                return names[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
                a, b = value(left), value(right)
                if a is None or b is None or (b == 0 and isinstance(op, ast.FloorDiv)):
                    return None
                return OPERATIONS[type(op)](a, b)
        return None

    return value(ast.parse(text.strip(), mode="eval").body)


def _follows(axis: Axis, keys: Collection[str]) -> bool:
    """Whether the size of an axis follows when those of all `keys` are given."""
    words = _words(axis.name) - {axis.name}
    return (
        bool(words)
        and words <= set(keys)
        and _computed(axis.name, dict.fromkeys(keys, 1)) is not None
    )


def _what_is_missing(
    missing: Sequence[tuple[str, int, Axis]],
    inputs: Sequence[Input],
    known: Mapping[str, tuple[int, _Said]],
) -> SizesError:
    """All extents that are missing, with what to write in Python and on the command line."""
    named = {axis.key for _, _, axis in missing if axis.name.isidentifier()} | known.keys()
    missing = [row for row in missing if not _follows(row[2], named)] or missing
    keys = list(dict.fromkeys(axis.key for _, _, axis in missing))
    wanted = ", ".join(f"{brief(key)!r}: 1" for key in keys[:MOST_LISTED])
    more = ", ..." * (len(keys) > MOST_LISTED)
    hint = f"pass dims={{{wanted}{more}}}" + " or batch=1" * all(k == 0 for _, k, _ in missing)
    if any(k for _, k, _ in missing):
        own = next(v for v in inputs if v.name in {name for name, _, _ in missing})
        shape = tuple(a.fixed or (known[a.key][0] if a.key in known else 1) for a in own.axes or ())
        hint += f" or shapes={{{brief(own.name)!r}: {shape}}}"
    places = [(f"input {brief(name)}", k, brief(axis.key)) for name, k, axis in missing]
    if len(missing) == 1:
        what, k, key = places[0]
        found = f"{what} has the dynamic dimension {k} ({key})"
    else:
        listed = _listed([f"{k} of {what} ({key})" for what, k, key in places])
        found = f"the model has the dynamic dimensions {listed}"
    options = tuple(part for key in keys for part in ("--dim", f"{key}=1"))
    return SizesError(f"{found}: {hint}", found, options)


def _listed(names: Sequence[str], comma: str = ", ") -> str:
    more = [f"and {len(names) - MOST_LISTED} more"] if len(names) > MOST_LISTED else []
    return comma.join([*names[:MOST_LISTED], *more])
