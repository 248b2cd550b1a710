"""The clock around calls and in parallel regions: every event once, in order, on every thread."""

import numpy as np

from ansorlite import te
from ansorlite.calls import aligned_copy, aligned_empty
from ansorlite.codegen import openmp
from ansorlite.codegen.build import build_program
from ansorlite.codegen.loader import CallSequence, Loop, load_image
from ansorlite.codegen.stamps import StampedCalls, shared_out, work_of
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
    stamped = StampedCalls(CallSequence(calls, [Loop(1, 2, 3, ())]))
    for _ in range(2):  # the notes are those of the last run
        stamped.run()
        rows = stamped.rows
        assert rows[:, 0].tolist() == [0, 1, 2, 1, 2, 1, 2, 3]
        times = rows[:, 1:].reshape(-1)
        assert np.all(np.diff(times) >= 0)
        np.testing.assert_array_equal(arrays[1], 2.0)


def test_no_calls() -> None:
    stamped = StampedCalls(CallSequence([]), threads=True)
    stamped.run()
    assert stamped.rows.shape == (0, 3) and len(stamped.regions) == 0


def test_threads_are_noted_within_their_region() -> None:
    image, arrays = doubled()
    kernel = load_image(image)  # type: ignore[arg-type]
    args = kernel.pointer_array(arrays)
    stamped = StampedCalls(CallSequence([(kernel, args)] * 3), threads=True)
    stamped.run()
    stamped.run()
    regions = stamped.regions
    assert len(regions) == 3 * (Target.detect().cores > 1)
    for size, begin, end, number, *stamps in regions.tolist():
        assert 1 <= size <= openmp.max_threads() and begin <= end and number in (0, 1, 2)
        assert len(stamps) == 2 * stamped.slots
        assert any(stamps), "somebody takes part"
        for first, last in zip(stamps[::2], stamps[1::2], strict=True):
            assert first == last == 0 or begin <= first <= last <= end
    calls = stamped.rows
    assert np.all(calls[regions[:, 3], 1] <= regions[:, 1])
    assert np.all(regions[:, 2] <= calls[regions[:, 3], 2])
    np.testing.assert_array_equal(arrays[1], 2.0)


def test_steps_that_ran_together_share_their_time_by_the_work_on_each() -> None:
    rows = np.array(  # parts, begin, end, call; begin, end, work of two threads
        [
            [0, 0, 50, 0, 10, 50, 40, 0, 0, 0],
            [2, 100, 200, 1, 110, 170, 20, 100, 190, 10],
            [2, 100, 200, 2, 120, 190, 40, 105, 200, 20],
        ]
    )
    own = shared_out(rows, np.array([False, False, True]))
    assert own[0].tolist() == rows[0].tolist()
    assert own[1, :4].tolist() == [2, 100, 133, 1] and own[2, :4].tolist() == [2, 133, 200, 2]
    late, waiting = 10, 10  # of the first thread, split 1 to 2
    assert own[1, 4:6].tolist() == [100 + round(late / 3), 133 - round(waiting / 3)]
    assert own[2, 4:6].tolist() == [133 + round(2 * late / 3), 200 - round(2 * waiting / 3)]
    assert own[1, 7:9].tolist() == [100, 133] and own[2, 7:9].tolist() == [133, 200]


def test_without_threads_they_share_it_by_the_work_of_another_run() -> None:
    rows = np.array([[0, 100, 200, 1], [0, 100, 200, 2], [0, 200, 210, 3]])
    joined = np.array([False, True, False])
    assert shared_out(rows, joined)[:, 1:3].tolist() == [[100, 150], [150, 200], [200, 210]]
    noted = np.array([[2, 0, 9, 1, 0, 9, 30], [2, 0, 9, 2, 0, 9, 10], [2, 9, 9, 3, 9, 9, 1]])
    assert work_of(noted).tolist() == [30, 10, 1]
    own = shared_out(rows, joined, work_of(noted))
    assert own[:, 1:3].tolist() == [[100, 175], [175, 200], [200, 210]]
