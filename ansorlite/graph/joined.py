"""Which nests of neighbouring kernels run together, unit by unit, without a barrier between them.

In: a partition, the images of its calls in running order, and what each call reads. Out: runs of
nests (`Together`), found by `codegen.spans`. Values count as memories of their own here: the memory
plan keeps all that such a run touches apart (`calls_together`). Calls of loops stay alone.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.loader import Together
from ansorlite.codegen.spans import Spans, together
from ansorlite.graph.partition import Partition
from ansorlite.graph.places import Place

WORKSPACE = 0
Nest = tuple[Spans, Sequence[tuple[int, int]]]


def joined_nests(
    parts: Partition, images: Sequence[KernelImage], inputs: Sequence[Sequence[str]]
) -> tuple[Together, ...]:
    """The runs of two or more nests that may run together, in running order."""
    numbers: dict[str, int] = {}
    found, run, begin, units = list[Together](), list[Nest](), (0, 0), 0

    def close() -> None:
        if len(run) > 1:
            found.append(Together(*begin, len(run), units))
        run.clear()

    for call, (image, read) in enumerate(zip(images, inputs, strict=True)):
        subgraph = parts.subgraphs[call]
        where = _memories(parts, image, read, subgraph.outputs, numbers)
        for nest, spans in enumerate(image.spans):
            if spans is None or subgraph.loop:
                close()
                continue
            fits = together([*run, (spans, where)]) if run else 0
            if not fits:
                close()
                begin = call, nest
            run.append((spans, where))
            units = fits or spans.units
        if not image.spans:
            close()
    close()
    return tuple(found)


def calls_together(
    joined: Sequence[Together], nests: Sequence[int]
) -> Mapping[int, tuple[int, int]]:
    """(first, last) call of the run that a call is part of; `nests` is the number of each call."""
    ends: dict[int, tuple[int, int]] = {}
    for run in joined:
        last, left = run.call, run.rows - (nests[run.call] - run.nest)
        while left > 0:
            last += 1
            left -= nests[last]
        for call in range(run.call, last + 1):
            first = ends.get(call, (run.call, 0))[0]
            for k in range(first, last + 1):
                ends[k] = first, last
    return ends


def _memories(
    parts: Partition,
    image: KernelImage,
    read: Sequence[str],
    written: Sequence[str],
    numbers: dict[str, int],
) -> list[tuple[int, int]]:
    """(number of a memory, first byte) of each parameter of a kernel."""
    inputs, outputs = iter(read), iter(written)
    found: list[tuple[int, int]] = []
    for p in image.params:
        if p.role == "workspace":
            found.append((WORKSPACE, 0))
            continue
        if p.role == "derived":
            found.append((-1 - len(found), 0))  # a constant: nobody writes it
            continue
        value = next(outputs) if p.role == "output" else next(inputs)
        place = parts.places.get(value, Place(value))
        kind = parts.graph.types[place.owner]
        wide = np.dtype(kind.dtype).itemsize
        number = numbers.setdefault(place.owner, len(numbers) + 1)
        whole = math.prod(p.shape) == kind.size
        found.append((number, 0 if whole else place.start * wide))
    return found
