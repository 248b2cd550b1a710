"""The thread pool: regions, environment variables, forks, sleep of idle threads."""

import ctypes
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansorlite.codegen import openmp
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.threads import MAX_THREADS, SYMBOLS, threads_ir
from ansorlite.settings import settings
from ansorlite.target import Target

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
ALL = 1  # exactly so many threads


def region(runtime: openmp.Runtime, threads: int, mode: int = ALL) -> list[tuple[int, int]]:
    """(thread, threads) as seen by every thread of a region, sorted."""
    prototype = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    seen: list[tuple[int, int]] = []
    body = BODY(lambda _, me, n: seen.append((me, n)))
    prototype(runtime.addresses["ansorlite_parallel"])(body, None, threads, mode)
    return sorted(seen)


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
    assert max(n for _, n in region(four, 6, mode=0)) == 4  # where none is asked to be there


def test_threads_that_are_late_are_not_waited_for(four: openmp.Runtime) -> None:
    for _ in range(50):
        seen = region(four, 4, mode=0)
        assert seen[0] == (0, 4) and len(seen) <= 4  # each at most once, and the caller
        assert len({me for me, _ in seen}) == len(seen)


def test_regions_inside_of_regions_and_beside_them_run_on_their_own_thread(
    four: openmp.Runtime,
) -> None:
    prototype = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    parallel = prototype(four.addresses["ansorlite_parallel"])
    inner: list[list[tuple[int, int]]] = []
    body = BODY(lambda _, me, n: inner.append(region(four, 4)))
    parallel(body, None, 3, ALL)
    assert inner == [[(0, 1)]] * 3
    results: list[bool] = []

    def caller() -> None:
        results.append(all(region(four, 4, mode=0)[0][0] == 0 for _ in range(100)))

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
