"""Which size of a network a call is for: the shapes of its arrays, and what is told of others.

In: a call's arguments in input order. Out: their shapes, by which modules of several sizes choose;
the error for shapes that no size has. It needs numpy alone, as saved networks do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite.errors import ModelError, SizesError
from ansorlite.names import brief, first_line

MOST_LISTED = 12  # sizes in one message
Shape = tuple[int, ...]


def shapes_of(names: Sequence[str], given: Sequence[Any]) -> tuple[Shape, ...]:
    """The shapes of arrays; a ModelError for what is no array."""
    found = []
    for name, x in zip(names, given, strict=True):
        try:
            found.append(x.shape if type(x) is np.ndarray else np.shape(x))
        except (ValueError, TypeError) as error:
            raise ModelError(f"input {brief(name)} is no array: {first_line(error)}") from None
    return tuple(found)


def unlisted(
    names: Sequence[str], shapes: Sequence[Shape], listed: Sequence[Sequence[Shape]]
) -> SizesError:
    """The error for shapes that are none of those listed: it tells the inputs that differ."""
    varying = [k for k in range(len(names)) if len({size[k] for size in listed}) > 1]
    odd = [k for k in range(len(names)) if all(size[k] != shapes[k] for size in listed)]
    told = sorted({*varying, *odd}) or list(range(len(names)))

    def text(size: Sequence[Shape]) -> str:
        return ", ".join(f"{brief(names[k])} {list(size[k])}" for k in told)

    known = "; ".join(map(text, listed[:MOST_LISTED]))
    more = f"; and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return SizesError(
        f"the network is not compiled for {text(shapes)}; its sizes are {known}{more}: list the "
        'size when the network is loaded, or compile it with on_new_shape="compile"'
    )
