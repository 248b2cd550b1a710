"""Cold constants: each call reads another copy, and results do not change."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from ansorlite import te
from ansorlite.calls import Array, aligned_copy, aligned_empty
from ansorlite.codegen.build import build_program
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.loader import NativeFunction, load_image
from ansorlite.measure import rotation
from ansorlite.measure.rotation import MOST_BYTES, MOST_COPIES, POOL_BYTES, _numbers, _pool, rotated
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state
from ansorlite.target import Target

N = 1024


def kernel(constant: bool, dtype: str = "float32") -> tuple[NativeFunction, KernelImage]:
    """y = x + w, once with w constant and once with w an input like x."""
    x = te.placeholder((N,), dtype, name="x")
    w = te.placeholder((N,), dtype, name="w", constant=constant)
    dag = te.ComputeDAG([te.compute((N,), lambda i: x[i] + w[i], "y")])
    target = Target.detect()
    image = build_program(lower(plain_state(dag, target)), target)
    return load_image(image), image


def arrays_of(dtype: str) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    drawn = {name: aligned_copy(rng.integers(-99, 99, N).astype(dtype)) for name in "xw"}
    return {**drawn, "y": aligned_empty((N,), dtype)}


def test_every_call_has_its_own_copy_and_integers_their_values() -> None:
    function, image = kernel(constant=True, dtype="int32")
    arrays = arrays_of("int32")
    want = arrays["x"] + arrays["w"]
    args = function.pointer_array([arrays[p.name] for p in image.params])
    turns = rotated(function, args, image)
    assert turns is not None and turns.lists == min(MOST_COPIES, _pool().nbytes // (4 * N))
    arrays["w"][...] = 0  # the copies are what is read
    for n in (1, 3, turns.lists - 1, 2 * turns.lists + 5):
        arrays["y"][...] = -1
        turns.run(n)
        np.testing.assert_array_equal(arrays["y"], want)
    assert turns.next == (1 + 3 + turns.lists - 1 + 2 * turns.lists + 5) % turns.lists


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_are_any_normal_numbers_of_each_call_its_own(dtype: str) -> None:
    function, image = kernel(constant=True, dtype=dtype)
    arrays = arrays_of(dtype)
    kept = arrays["w"].copy()
    args = function.pointer_array([arrays[p.name] for p in image.params])
    turns = rotated(function, args, image)
    assert turns is not None
    place = [p.name for p in image.params].index("w")
    pool, seen = _numbers(), set[int]()
    for own in turns.pointers:
        at = int(own[place]) - pool.ctypes.data
        assert 0 <= at <= pool.nbytes - arrays["w"].nbytes and at % 64 == 0
        seen.add(at)
    assert len(seen) == turns.lists
    arrays["x"][...] = 0
    turns.run(1)
    read = arrays["y"]
    if dtype == "float32":
        assert not np.floor(read).any() and not np.rint(read).any() and not read.astype(int).any()
    assert (np.abs(read) < 1).all() and (np.abs(read) >= np.finfo(dtype).tiny).all()
    np.testing.assert_array_equal(arrays["w"], kept)


def test_nothing_to_rotate() -> None:
    function, image = kernel(constant=False)
    args = (ctypes.c_void_p * len(image.params))()
    assert rotated(function, args, image) is None


@pytest.mark.parametrize(
    ("l3_mib", "want"),
    [(0, POOL_BYTES), (16, POOL_BYTES), (48, 96 << 20), (480, MOST_BYTES)],
)
def test_copies_are_twice_the_last_cache_but_no_more_than_networks_weigh(
    monkeypatch: pytest.MonkeyPatch, l3_mib: int, want: int
) -> None:
    """To fill a gigabyte for each program took longer than all else on a CPU with such a cache."""
    machine = replace(Target.detect(), l3_bytes=l3_mib << 20)
    monkeypatch.setattr(rotation.Target, "detect", staticmethod(lambda: machine))
    monkeypatch.setattr(rotation, "resident_empty", lambda shape, dtype: np.empty(shape, dtype))
    assert _pool.__wrapped__().nbytes == want
