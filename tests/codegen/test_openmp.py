"""The thread pool: regions, environment variables, forks, sleep of idle threads."""

import ctypes
import gc
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from ansorlite.codegen import openmp
from ansorlite.codegen.compile import compile_module, new_jit
from ansorlite.codegen.steps import JOINED, Row
from ansorlite.codegen.threads import MAX_THREADS, SYMBOLS, threads_ir
from ansorlite.settings import settings
from ansorlite.target import Target

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_int64)
RUN = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)


def region(runtime: openmp.Runtime, threads: int) -> list[tuple[int, int]]:
    """(thread, threads) as seen by every thread of a region, sorted."""
    seen: list[tuple[int, int]] = []
    body = BODY(lambda _, me, n: seen.append((me, n)))
    PARALLEL(runtime.addresses["ansorlite_parallel"])(body, None, threads)
    return sorted(seen)


def program(runtime: openmp.Runtime, steps: Sequence[tuple[Any, int, int]], times: int = 1) -> None:
    """Run steps (body(step, first grain, end), units, grains of a unit) `times` times.

    A step of 0 units is serial, one of less runs together with the step before it.
    """
    codes, rows = [BODY(body) for body, _, _ in steps], []
    for k, (_, units, each) in enumerate(steps):
        rest = next((n for n, s in enumerate(steps[k + 1 :], 1) if s[1] >= 0), len(steps) - k)
        together = 0 if units == 0 else rest if units > 0 else JOINED
        code = ctypes.cast(codes[k], ctypes.c_void_p).value or 0
        rows.append(Row(code, k + 1, abs(units) * each or 1, together, each, k, 0, abs(units)))
    table = np.array(rows, np.int64)
    run, start = RUN(runtime.addresses["ansorlite_run"]), table.ctypes.data
    for _ in range(times):
        run(start, start + table.nbytes, None, None)


@pytest.fixture
def four() -> Iterator[openmp.Runtime]:
    """The process's pool with four threads."""
    before = openmp.max_threads()
    openmp.set_num_threads(4)
    yield openmp.runtime()
    openmp.set_num_threads(before)


def whole(n: int) -> list[tuple[int, int]]:
    return [(k, n) for k in range(n)]


def test_a_region_runs_on_the_threads_asked_for(four: openmp.Runtime) -> None:
    assert openmp.runtime() is four and not four.is_serial
    for n in (1, 2, 3, 4, 3, 1, 4):
        assert region(four, n) == whole(n)
    assert region(four, 6) == whole(6)  # more than the usual limit


def test_every_unit_of_every_step_runs_once_and_in_order(four: openmp.Runtime) -> None:
    """Steps of all sizes: a step begins when the one before it is done, serial steps as well."""
    sizes = [3, 0, 64, 1000, 0, 0, 2, 5, 1]
    done = [0] * len(sizes)
    wrong: list[str] = []
    seen: list[list[int]] = [[] for _ in sizes]

    def body(step: int, first: int, end: int) -> None:
        k = step - 1
        if k and len(seen[k - 1]) != max(1, sizes[k - 1]):
            wrong.append(f"step {k} began before step {k - 1} was done")
        seen[k].extend(range(first, end))
        done[k] += 1

    for _ in range(3):
        for own in seen:
            own.clear()
        program(four, [(body, n, 1) for n in sizes])
        assert not wrong
        for n, own in zip(sizes, seen, strict=True):
            assert sorted(own) == list(range(max(1, n)))


def test_no_more_threads_than_a_step_was_made_for(four: openmp.Runtime) -> None:
    seen: set[int] = set()
    together = threading.Barrier(2)

    def body(_: int, first: int, end: int) -> None:
        seen.add(threading.get_native_id())
        if first in (0, 32):  # two threads at once
            together.wait(60)

    code = BODY(body)
    place = ctypes.cast(code, ctypes.c_void_p).value or 0
    table = np.array([Row(place, 1, 64, 1, most=2, units=64)], np.int64)
    start = table.ctypes.data
    region(four, 4)
    RUN(four.addresses["ansorlite_run"])(start, start + table.nbytes, None, None)
    assert len(seen) == 2


def test_steps_that_run_together_follow_one_another_in_each_unit(four: openmp.Runtime) -> None:
    events: list[tuple[int, int, int]] = []

    def body(step: int, first: int, end: int) -> None:
        events.append((step, first, end))

    program(four, [(body, 40, 3), (body, -40, 1), (body, -40, 2), (body, 7, 1)])
    for step, each in ((1, 3), (2, 1), (3, 2)):
        grains = sorted(g for s, a, b in events if s == step for g in range(a, b))
        assert grains == list(range(40 * each))
    for unit in range(40):
        places = [
            next(n for n, (s, a, b) in enumerate(events) if s == step and a <= unit * each < b)
            for step, each in ((1, 3), (2, 1), (3, 2))
        ]
        assert places == sorted(places)
    last = [n for n, (s, _, _) in enumerate(events) if s == 4]
    assert min(last) > max(n for n, (s, _, _) in enumerate(events) if s < 4)


ARITHMETIC = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @set(ptr %word) {
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}
; y[k] = x[0] * x[1]
define void @product(ptr %args, i64 %first, i64 %end) {
entry:
  br label %loop
loop:
  %k = phi i64 [ %first, %entry ], [ %next, %loop ]
  %b_at = getelementptr float, ptr %args, i64 1
  %a = load volatile float, ptr %args
  %b = load volatile float, ptr %b_at
  %value = fmul float %a, %b
  %shift = add i64 %k, 2
  %place = getelementptr float, ptr %args, i64 %shift
  store float %value, ptr %place
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


@pytest.mark.skipif(Target.detect().arch != "x86_64", reason="sets the register of x86-64")
def test_all_threads_treat_subnormal_numbers_as_the_caller_does(four: openmp.Runtime) -> None:
    jit = new_jit()
    library = llvm.JITLibraryBuilder().add_ir(ARITHMETIC)
    for name in ("set", "product"):
        library.export_symbol(name)
    tracker = library.link(jit, "arithmetic")
    use = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(tracker["set"])
    usual, flushing = (ctypes.c_int32(word) for word in (0x1F80, 0x9FC0))
    region(four, 4)  # the threads are there, with the usual state
    numbers = np.zeros(2 + 400, np.float32)
    numbers[:2] = 1e-30, 1e-10
    code, args = tracker["product"], numbers.ctypes.data
    table = np.array([Row(code, args, 400, 1, 1, 0, 0, 400), Row(code, args, 400)], np.int64)
    run, start = RUN(four.addresses["ansorlite_run"]), table.ctypes.data
    for serial in (0, 1):  # parallel, then behind a parallel step
        for state, zero in ((flushing, True), (usual, False)):
            for _ in range(20):
                numbers[2:] = 7
                use(ctypes.addressof(state))
                run(start, start + (1 + serial) * table.strides[0], None, None)
                use(ctypes.addressof(usual))
                assert np.all((numbers[2:].view(np.int32) == 0) == zero)


def test_a_thread_that_does_not_come_is_not_waited_for(four: openmp.Runtime) -> None:
    """One thread holds a unit until all others are done: the rest of the step goes on."""
    taken: list[int] = []
    go = threading.Event()

    def body(_: int, first: int, end: int) -> None:
        taken.extend(range(first, end))
        if first == 0:
            assert go.wait(60)
        elif len(taken) == 64:
            go.set()

    program(four, [(body, 64, 1)])
    assert sorted(taken) == list(range(64))


def test_regions_inside_of_regions_and_beside_them_run_on_their_own_thread(
    four: openmp.Runtime,
) -> None:
    inner: list[list[tuple[int, int]]] = []
    body = BODY(lambda _, me, n: inner.append(region(four, 4)))
    PARALLEL(four.addresses["ansorlite_parallel"])(body, None, 3)
    assert inner == [[(0, 1)]] * 3
    results: list[bool] = []

    def caller() -> None:
        counted = [0] * 3
        lock = threading.Lock()

        def count(step: int, first: int, end: int) -> None:
            with lock:
                counted[step - 1] += end - first

        program(four, [(count, 9, 1), (count, 0, 1), (count, 5, 1)], times=30)
        results.append(counted == [270, 30, 150])

    callers = [threading.Thread(target=caller) for _ in range(6)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert results == [True] * 6


def test_a_child_of_a_fork_starts_new_threads(four: openmp.Runtime) -> None:
    assert region(four, 4) == whole(4)
    child = os.fork()
    if child == 0:
        os._exit(0 if region(four, 4) == whole(4) and region(four, 2) == whole(2) else 1)
    for _ in range(20):
        assert region(four, 4) == whole(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_pool_that_forks_still_call_is_not_freed() -> None:
    openmp.runtime()
    openmp.runtime.cache_clear()
    gc.collect()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_stop_on_request_and_start_again(four: openmp.Runtime) -> None:
    region(four, 4)
    before = len(os.listdir("/proc/self/task"))
    ctypes.CFUNCTYPE(None)(four.addresses["ansorlite_stop_threads"])()
    assert len(os.listdir("/proc/self/task")) <= before - 3
    assert region(four, 4) == whole(4)


def test_idle_threads_sleep(four: openmp.Runtime) -> None:
    """A thread that looks for work is running; one that waits to be woken is not."""
    region(four, 4)
    own = str(threading.get_native_id())
    others = [t for t in os.listdir("/proc/self/task") if t != own]
    assert len(others) >= 3
    end, quiet = time.monotonic() + 60, 0
    while quiet < 10:  # looks in a row
        quiet = quiet + 1 if all(sleeps(t) for t in others) else 0
        assert time.monotonic() < end
        time.sleep(0.001)


def sleeps(thread: str) -> bool:
    try:
        stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "S"


def test_numbers_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = openmp.max_threads()
    try:
        openmp.set_num_threads(3)
        assert openmp.max_threads() == 3
        openmp.set_num_threads(10**6)
        assert openmp.max_threads() == MAX_THREADS
    finally:
        openmp.set_num_threads(before)
    with pytest.raises(ValueError, match="cannot use 0 threads: at least 1"):
        openmp.set_num_threads(0)


@pytest.mark.parametrize(
    ("env", "threads"),
    [
        ({}, 6),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": " 2,4 "}, 2),
        ({"OMP_NUM_THREADS": "many"}, 6),
        ({"OMP_NUM_THREADS": "8", "OMP_THREAD_LIMIT": "5"}, 5),
        ({"OMP_THREAD_LIMIT": "4"}, 4),
        ({"OMP_NUM_THREADS": "999999"}, MAX_THREADS),
    ],
)
def test_openmp_variables(
    env: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANSORLITE_NUM_THREADS", raising=False)
    settings.cache_clear()
    assert openmp.default_threads(env, Target(cores=6)) == threads
    monkeypatch.setenv("ANSORLITE_NUM_THREADS", "7")
    settings.cache_clear()
    assert openmp.default_threads({"OMP_NUM_THREADS": "3"}, Target(cores=6)) == 7
    monkeypatch.undo()
    settings.cache_clear()


def test_a_system_without_threads_runs_regions_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(target: Target) -> bytes:
        raise ValueError("no threads on plan9")

    monkeypatch.setattr(openmp, "pool_object", none)
    openmp.runtime.cache_clear()
    try:
        with pytest.warns(UserWarning, match="kernels run on one thread: no threads on plan9"):
            serial = openmp.runtime()
    finally:
        openmp.runtime.cache_clear()
    assert serial.is_serial and set(serial.addresses) == set(SYMBOLS)
    assert region(serial, 4) == [(0, 1)]


@pytest.mark.parametrize(
    "triple",
    ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-darwin23.0.0"],
)
def test_the_pool_compiles_for_other_machines(triple: str) -> None:
    target = Target(triple=triple, cpu="generic", features="")
    assert compile_module(threads_ir(target), target)


def test_unknown_systems_have_no_pool() -> None:
    with pytest.raises(ValueError, match="no threads on x86_64-pc-windows-msvc"):
        threads_ir(Target(triple="x86_64-pc-windows-msvc"))
