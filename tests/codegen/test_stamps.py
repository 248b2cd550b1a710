"""The clock around calls and in parallel regions: every event once, in order, on every thread."""

import numpy as np

from ansorlite import te
from ansorlite.calls import aligned_copy, aligned_empty
from ansorlite.codegen import openmp
from ansorlite.codegen.build import build_program
from ansorlite.codegen.loader import Loop, load_image
from ansorlite.codegen.stamps import REGION, StampedCalls, StampedRegions
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate
from ansorlite.target import Target

N = 4096


def doubled() -> tuple[object, list[np.ndarray]]:
    """A kernel with one region, and its arrays."""
    x = te.placeholder((8, N // 8), name="X")
    dag = te.ComputeDAG([te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="Y")])
    program = lower(State(dag).apply(Annotate("Y", "i", "parallel", 1)))
    arrays = [aligned_copy(np.ones((8, N // 8), np.float32)), aligned_empty((8, N // 8), "float32")]
    return build_program(program, Target.detect()), arrays


def test_calls_are_noted_in_order_and_those_of_loops_a_row_a_step() -> None:
    image, arrays = doubled()
    kernel = load_image(image)  # type: ignore[arg-type]
    calls = [(kernel, kernel.pointer_array(arrays)) for _ in range(4)]
    stamped = StampedCalls(calls, [Loop(1, 2, 3, ())])
    for _ in range(2):  # the notes are those of the last run
        stamped.run()
        rows = stamped.rows
        assert rows[:, 0].tolist() == [0, 1, 2, 1, 2, 1, 2, 3]
        times = rows[:, 1:].reshape(-1)
        assert np.all(np.diff(times) >= 0)
        np.testing.assert_array_equal(arrays[1], 2.0)


def test_pointers_of_loops_move_as_without_the_clock() -> None:
    x = te.placeholder((2,), name="X")
    dag = te.ComputeDAG([te.compute((2,), lambda i: x[i] * 2.0, name="Y")])
    kernel = load_image(build_program(lower(State(dag)), Target.detect()))
    given, got = aligned_copy(np.arange(6, dtype=np.float32)), aligned_empty((6,), "float32")
    args = kernel.pointer_array([int(given.ctypes.data), int(got.ctypes.data)])
    before = list(args)
    StampedCalls([(kernel, args)], [Loop(0, 1, 3, ((0, 0, 8), (0, 1, 8)))]).run()
    np.testing.assert_array_equal(got, 2 * given)
    assert list(args) == before


def test_no_calls() -> None:
    stamped = StampedCalls([])
    stamped.run()
    assert stamped.rows.shape == (0, 3)


def test_regions_are_counted_first_and_noted_where_there_is_room() -> None:
    image, arrays = doubled()
    regions = StampedRegions()
    noted = load_image(image, regions.threads)  # type: ignore[arg-type]
    args = noted.pointer_array(arrays)
    noted.repeat(args, 3)
    parallel = Target.detect().cores > 1
    assert regions.count == 3 * parallel and len(regions.rows) == 0
    regions.allow(2)
    regions.clear()
    noted.repeat(args, 3)
    rows = regions.rows
    assert regions.count == 3 * parallel and len(rows) == 2 * parallel
    for size, begin, end, _, *stamps in rows.tolist():
        assert 1 <= size <= openmp.max_threads() and begin <= end
        assert len(stamps) == 2 * regions.slots
        assert stamps[0], "the caller takes part"
        for first, last in zip(stamps[::2], stamps[1::2], strict=True):
            assert first == last == 0 or begin <= first <= last <= end
    np.testing.assert_array_equal(arrays[1], 2.0)


def test_untouched_kernels_note_nothing() -> None:
    image, arrays = doubled()
    regions = StampedRegions()
    load_image(image).run(arrays)  # type: ignore[arg-type]
    assert regions.count == 0
    assert REGION + 2 * regions.slots == regions.width
