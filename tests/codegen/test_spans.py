"""What units of parallel nests touch, and which nests may run together."""

from collections.abc import Callable

import numpy as np
import pytest

from ansorlite import te
from ansorlite.codegen.emit import argument_slots
from ansorlite.codegen.spans import Access, Spans, spans, together
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate

ROWS, WIDE = 8, 16
ROW_BYTES = 4 * WIDE


def spans_of(y: te.Tensor, parallel: str = "i") -> Spans:
    state = State(te.ComputeDAG([y])).apply(Annotate("Y", parallel, "parallel", 1))
    program = specialize(lower(state))
    (found,) = spans(program, argument_slots(program), 1)
    assert found is not None
    return found


def doubled() -> te.Tensor:
    x = te.placeholder((ROWS, WIDE), name="X")
    return te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="Y")


def neighbours() -> te.Tensor:
    """Each row reads the row behind it."""
    x = te.placeholder((ROWS + 1, WIDE), name="X")
    return te.compute((ROWS, WIDE), lambda i, j: x[i, j] + x[i + 1, j], name="Y")


def sums() -> te.Tensor:
    """Each unit reads a row and writes a number."""
    x = te.placeholder((ROWS, WIDE), name="X")
    j = te.reduce_axis(WIDE, name="j")
    return te.compute((ROWS,), lambda i: te.sum(x[i, j], axis=j), name="Y")


def test_the_bytes_of_a_unit() -> None:
    found = spans_of(doubled())
    assert (found.units, found.grains) == (ROWS, 1)
    size = ROWS * ROW_BYTES
    assert set(found.accesses) == {
        Access(0, False, 0, ROW_BYTES, ROW_BYTES, size),
        Access(1, True, 0, ROW_BYTES, ROW_BYTES, size),
    }
    wide = next(a for a in spans_of(neighbours()).accesses if not a.written)
    assert wide.of_units(ROWS, 1).tolist()[2] in ([128, 192], [192, 256], [128, 256])


@pytest.mark.parametrize(("second", "units"), [(doubled, ROWS), (sums, ROWS), (neighbours, 0)])
def test_a_reader_of_its_own_rows_runs_together_with_their_writer(
    second: Callable[[], te.Tensor], units: int
) -> None:
    first, then = spans_of(doubled()), spans_of(second())
    assert together([(first, [(1, 0), (2, 0)]), (then, [(2, 0), (3, 0)])]) == units


def test_what_is_still_read_is_not_written() -> None:
    own = spans_of(doubled())
    over = spans_of(neighbours())
    # the second one writes where the first one reads rows of other units
    assert together([(over, [(1, 0), (2, 0)]), (own, [(2, 0), (1, 0)])]) == 0
    # in place, each unit its own row
    assert together([(own, [(1, 0), (2, 0)]), (own, [(2, 0), (1, 0)])]) == ROWS
    # rows one further on
    assert together([(own, [(1, 0), (2, 0)]), (own, [(2, ROW_BYTES), (3, 0)])]) == 0


def test_columns_are_no_rows() -> None:
    x = te.placeholder((WIDE, ROWS), name="X")
    turned = spans_of(te.compute((ROWS, WIDE), lambda i, j: x[j, i], name="Y"))
    assert together([(spans_of(doubled()), [(1, 0), (2, 0)]), (turned, [(2, 0), (3, 0)])]) == 0


def test_units_are_those_that_both_have() -> None:
    def of(units: int, rows: int) -> Spans:
        step = rows * ROW_BYTES
        kinds = [Access(k, bool(k), 0, step, step, units * step) for k in range(2)]
        return Spans(units, 3, 4, tuple(kinds))

    where = [(1, 0), (2, 0)], [(2, 0), (3, 0)]
    assert together(list(zip((of(16, 1), of(8, 2)), where, strict=True))) == 8
    assert together(list(zip((of(8, 2), of(16, 1)), where, strict=True))) == 8
    assert together(list(zip((of(12, 4), of(16, 3)), where, strict=True))) == 0  # 4: too few
    assert together(list(zip((of(7, 1), of(8, 1)), where, strict=True))) == 0
    ends = Access(0, False, 0, 64, 64, 100).of_units(2, 2)
    np.testing.assert_array_equal(ends, [[0, 100], [100, 100]])
