"""Loop-context features of AutoTVM (NeurIPS'18, section 3.2 and supplement): one row a program.

In: a sketch and rows. Out: float32[P, W]. The main statement's loops are described from the
innermost on: extent, annotations, the product of extents outside (top-down) and inside (bottom-up),
and for each buffer the elements touched inside, how often each is reused, and the stride. The
relation features say how large one of these gets as another stays below a threshold, which does
not depend on how many loops there are. Magnitudes are log2(1 + x).
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.cost.accesses import accesses
from ansorlite.cost.footprint import Levels, elements_inside
from ansorlite.cost.sheet import PlannedStatement, Shape, Sheet
from ansorlite.cost.statement import Statement, described
from ansorlite.ir.evaluation import Candidates, Evaluation
from ansorlite.ir.program import For, Program, Store, all_buffers, stores_under
from ansorlite.ir.tape import Tape, Values
from ansorlite.schedule.holes import population_columns
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target

MAX_LOOPS = 14  # the innermost ones; deeper nests lose their outermost loops
MAX_BUFFERS = 4
NOTES = ("parallel", "lanes", "unroll", "register")
OF_LOOP = 4 + len(NOTES)  # extent, reduction, top-down, bottom-up, notes
OF_BUFFER = 3  # touched, reused, stride
WIDTH = OF_LOOP + OF_BUFFER * MAX_BUFFERS
THRESHOLDS = tuple(range(0, 25, 2))  # log2 of elements


class _Main(NamedTuple):
    """The statement that does most of the work, and its loops.

    `notes`: numbers of the values of `NOTES` by loop, 0 where there is none.
    """

    statement: PlannedStatement
    loops: tuple[For, ...]
    notes: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=256)
def _main(program: Program) -> _Main:
    def depth(found: tuple[Store, tuple[For, ...]]) -> tuple[int, int, int]:
        store, loops = found
        reduces = sum(lp.reduce for lp in loops)
        return sum(n for _, n in store.ops), reduces, len(loops)

    combining = [f for f in stores_under(program.body) if f[0].combiner]
    store, loops = max(combining or list(stores_under(program.body)), key=depth)
    buffers = {b.name: b for b in all_buffers(program)}
    main = Statement(store, loops, accesses(store, loops, buffers), (), False, None)
    tape = Tape()
    numbers = described(tape, main, Target.detect(), [1] * len(main.accesses))
    notes = tuple(tuple(tape.of(lp.note(note)) for note in NOTES) for lp in loops)
    shape = Shape(len(loops), len(main.accesses))
    return _Main(PlannedStatement(shape, tape.arrays(), numbers), loops, notes)


def _loops(sketch: Sketch, rows: npt.NDArray[np.int32]) -> Values:
    """float64[MAX_LOOPS, WIDTH, P], the innermost loop first, zeros where there is none."""
    main, n = _main(sketch.program), len(rows)
    out = np.zeros((MAX_LOOPS, WIDTH, n))
    if not n:
        return out
    candidates = Candidates(population_columns(sketch.holes, rows), n)
    values = Evaluation([main.statement.tape], [candidates])
    sheet = Sheet(main.statement.shape, [(0, main.statement)], values)
    levels, touched = Levels(sheet), elements_inside(sheet)[..., :n]
    inside, outside = levels.inside[:, :n], levels.outside[:, :n]
    for slot in range(min(MAX_LOOPS, levels.depth)):
        k = levels.depth - 1 - slot
        f = out[slot]
        f[0], f[1] = levels.extents[k, :n], float(main.loops[k].reduce)
        f[2], f[3] = outside[k], inside[k]
        for d, number in enumerate(main.notes[k]):
            f[4 + d] = np.maximum(values.of(0, number), 0.0)
        for b in range(min(MAX_BUFFERS, sheet.accesses)):
            at = OF_LOOP + OF_BUFFER * b
            f[at] = touched[k, b]
            f[at + 1] = inside[k] / np.maximum(touched[k, b], 1.0)
            f[at + 2] = sheet["steps"][k, b, :n]
    return np.log2(1.0 + out)


def loop_context(sketch: Sketch, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """float32[P, MAX_LOOPS * WIDTH]."""
    found = _loops(sketch, rows)
    return found.reshape(MAX_LOOPS * WIDTH, len(rows)).T.astype(np.float32)


def loop_relation(sketch: Sketch, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """float32[P, ...]: of each buffer the greatest reuse, stride, top-down and bottom-up of the
    loops inside of which no more elements than a threshold are touched; and what is annotated."""
    found = _loops(sketch, rows)
    exists = found[:, 0] > 0
    columns = []
    for b in range(MAX_BUFFERS):
        at = OF_LOOP + OF_BUFFER * b
        size = np.where(exists, found[:, at], np.inf)
        for limit in THRESHOLDS:
            below = size <= limit
            for j in (at + 1, at + 2, 2, 3):
                columns.append(np.where(below, found[:, j], 0.0).max(axis=0))
    for d in range(len(NOTES)):
        noted = found[:, 4 + d] > 0
        columns.append(np.where(noted, found[:, 0], 0.0).sum(axis=0))
    columns.append(np.where(found[:, 1] > 0, found[:, 0], 0.0).sum(axis=0))
    return np.stack(columns, axis=1).astype(np.float32)
