"""Finding an OpenMP runtime, and the serial one that stands in for it."""

import ctypes
import warnings
from pathlib import Path

import pytest

from ansorlite.codegen import openmp

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def parallel(runtime: openmp.OpenMP, threads: int) -> list[tuple[int, int]]:
    """(thread, threads) as seen by every thread of a parallel region, sorted."""
    thread_num = ctypes.CFUNCTYPE(ctypes.c_int)(runtime.addresses["omp_get_thread_num"])
    num_threads = ctypes.CFUNCTYPE(ctypes.c_int)(runtime.addresses["omp_get_num_threads"])
    prototype = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    seen: list[tuple[int, int]] = []
    body = BODY(lambda _: seen.append((thread_num(), num_threads())))
    prototype(runtime.addresses["GOMP_parallel"])(body, None, threads, 0)
    return sorted(seen)


def test_the_runtime_starts_the_threads_asked_for() -> None:
    runtime = openmp.runtime()
    if runtime.is_serial:
        pytest.skip("no OpenMP runtime on this machine")
    assert parallel(runtime, 3) == [(0, 3), (1, 3), (2, 3)]
    assert openmp.runtime() is runtime


def test_number_of_threads_can_be_set() -> None:
    before = openmp.max_threads()
    try:
        openmp.set_num_threads(3)
        assert openmp.max_threads() == (1 if openmp.runtime().is_serial else 3)
    finally:
        openmp.set_num_threads(before)
    with pytest.raises(ValueError, match="cannot use 0 threads"):
        openmp.set_num_threads(0)


def test_serial_runtime_runs_the_body_once_on_this_thread() -> None:
    serial = openmp.serial_runtime()
    assert serial.is_serial and set(serial.addresses) == set(openmp.SYMBOLS)
    assert parallel(serial, 8) == [(0, 1)]


def test_no_library_means_serial_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "LIBRARY_NAMES", ("libnothing.so.1",))
    monkeypatch.setattr(openmp, "_system_libraries", lambda: iter(()))
    monkeypatch.setattr(openmp, "_site_packages", list)
    openmp.runtime.cache_clear()
    try:
        with pytest.warns(UserWarning, match="install libgomp"):
            assert openmp.runtime().is_serial
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert openmp.runtime().is_serial
    finally:
        openmp.runtime.cache_clear()


def test_a_library_without_the_functions_is_refused() -> None:
    assert openmp.load("libnothing.so.1") is None
    assert openmp.load("libc.so.6") is None


def test_runtimes_inside_wheels_are_found(tmp_path: Path) -> None:
    names = ["scikit_learn.libs/libgomp-a34b3233.so.1.0.0", "torch/lib/libiomp5.so"]
    for name in [*names, "numpy.libs/libopenblas.so"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert list(openmp._wheel_libraries([tmp_path])) == [str(tmp_path / n) for n in names]
    assert any(p.name == "site-packages" for p in openmp._site_packages())
