"""Kernels whose operands are parts of larger tensors: the same numbers, nothing between rows."""

from typing import Any

import numpy as np
import pytest
from sampled import sampled
from small_cases import SMALL

from ansorlite import te
from ansorlite.calls import aligned_empty
from ansorlite.codegen.build import build_program
from ansorlite.codegen.kernel import derive
from ansorlite.codegen.loader import load_image
from ansorlite.ir.interpret import concrete_shape, interpret
from ansorlite.ir.pitch import pitched
from ansorlite.ir.program import Buffer, For, Program, walk
from ansorlite.measure.inputs import random_inputs
from ansorlite.search.history import History
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG
from ansorlite.workloads.ops import define

MORE = (1, 16, 7)  # elements between the rows
POISON = -77.0


def apart(b: Buffer, x: np.ndarray, more: int) -> np.ndarray:
    """A larger array with `x` at the beginning of each row of the last axis, poison between."""
    *rows, n = concrete_shape(b)
    whole = aligned_empty((*rows, n + more), b.dtype)
    whole[...] = POISON
    whole[..., :n] = x
    return whole


def programs(name: str, seed: int) -> list[Program]:
    """Two programs of different sketches."""
    rng = np.random.default_rng(seed)
    space = sketches(ComputeDAG([define(name, SMALL[name])]), Target.detect())
    history, found = History(space, Target.detect()), list[Program]()
    for k in rng.permutation(len(space)):
        found += [space[k].fill(row) for row in history.sample(space[k].name, 32, 4, rng)[:1]]
        if len(found) == 2:
            break
    return found


@pytest.mark.parametrize("name", sampled(sorted(SMALL), 3))
@pytest.mark.parametrize("more", MORE)
def test_rows_apart(name: str, more: int) -> None:
    dag, target = ComputeDAG([define(name, SMALL[name])]), Target.detect()
    values: dict[str, Any] = random_inputs(dag, 0)
    for p in programs(name, more):
        wanted = interpret(p, values)
        moved = [b for b in p.params if b.role in ("input", "output") and b.layout is None]
        widths = {b.name: (len(b.shape) - 1, concrete_shape(b)[-1] + more) for b in moved}
        image = build_program(pitched(p, widths), target)
        known = {**values, **(derive(p.bound, target, values) if p.bound else {})}
        arrays = dict[str, np.ndarray]()
        for b in p.params:
            if b in moved:
                x = known[b.name] if b.role == "input" else np.full(concrete_shape(b), POISON)
                arrays[b.name] = apart(b, x, more)
        pointers: list[Any] = []
        kept = []
        for q in image.params:
            if q.name in arrays:
                pointers.append(arrays[q.name].ctypes.data)
                continue
            x = known.get(q.name, np.zeros(q.shape, q.dtype))
            packed = q.layout.pack(x) if q.layout else x
            own = aligned_empty(packed.shape, q.dtype)
            own[...] = packed
            kept.append(own)
            pointers.append(own.ctypes.data)
        load_image(image).run(pointers)
        for b in moved:
            n = concrete_shape(b)[-1]
            assert (arrays[b.name][..., n:] == POISON).all(), f"{b.name} between the rows"
            if b.role == "output":
                got = arrays[b.name][..., :n]
                np.testing.assert_allclose(got, wanted[b.name], rtol=1e-4, atol=1e-4)


def test_rows_that_share_cache_lines_are_written_through_the_caches() -> None:
    """A non-temporal store writes whole lines, which rows of 17 elements do not have."""
    dag = ComputeDAG([te.relu(te.placeholder((4096, 1 << 14), name="X"))])  # too large for caches
    for s in sketches(dag, Target.cross("x86-avx512")):
        holes = [k for k, h in enumerate(s.holes) if h.kind == "stream"]
        if not holes:
            continue
        row = s.sample(1, np.random.default_rng(0))[0]
        row[holes] = [len(s.holes[k].options) - 1 for k in holes]
        p = s.fill(row)
        (out,) = [b for b in p.params if b.role == "output"]
        axis, n = len(out.shape) - 1, concrete_shape(out)[-1]
        for more, streams in ((16, True), (1, False)):
            moved = pitched(p, {out.name: (axis, n + more)})
            noted = [x for x in walk(moved.body) if isinstance(x, For)]
            found = any(key == "stream" for x in noted for key, _ in x.notes)
            assert found == streams
        return
    pytest.skip("no sketch has non-temporal stores")
