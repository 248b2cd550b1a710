"""Generated code reads and writes inside its buffers: every buffer ends at a guard page.

Batches of 16 make the sizes of most buffers multiples of 64 bytes, so they end exactly at the guard
page. The other extents are odd, so remainders after whole vectors are read with masks.
"""

import multiprocessing
from collections.abc import Callable

import numpy as np
import pytest
from native import run_native
from sampled import some_or_all

from ansorlite import te
from ansorlite.ir.inside import verify_inside
from ansorlite.measure.inputs import random_inputs
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target
from ansorlite.te.tensor import Tensor
from ansorlite.workloads.ops import define

ROWS = 1  # candidates of each program
OPERATORS: dict[str, dict[str, int]] = {
    "C1D": {"N": 16, "L": 13, "CI": 3, "CO": 7, "k": 3, "s": 2, "p": 1},
    "C2D": {"N": 16, "H": 7, "W": 5, "CI": 3, "CO": 13, "k": 3, "s": 1, "p": 1},
    "C3D": {"N": 16, "D": 3, "H": 5, "W": 5, "CI": 1, "CO": 7, "k": 3, "s": 1, "p": 1},
    "GMM": {"B": 16, "N": 7, "M": 13, "K": 9},
    "GRP": {"N": 16, "H": 5, "W": 7, "CI": 6, "CO": 14, "k": 3, "s": 1, "p": 1, "d": 1, "g": 2},
    "DIL": {"N": 16, "H": 7, "W": 7, "CI": 3, "CO": 7, "k": 3, "s": 1, "p": 2, "d": 2},
    "DEP": {"N": 16, "H": 7, "W": 7, "C": 13, "k": 3, "s": 2, "p": 1},
    "T2D": {"N": 16, "H": 3, "W": 5, "CI": 3, "CO": 7, "k": 4, "s": 2, "p": 1},
    "NRM": {"B": 16, "M": 7, "N": 13},
    "TBG": {"N": 16, "L": 7, "H": 1, "D": 13},
    "TBS": {"N": 16, "L": 7, "H": 1, "D": 13},
    "SFM": {"M": 16, "N": 97},
}


def _placeholder(*shape: int, dtype: str = "float32") -> Tensor:
    return te.placeholder(shape, dtype, "X")


def _relu(dtype: str = "float32") -> Tensor:
    return te.relu(_placeholder(16, 97, dtype=dtype))


def _booleans() -> Tensor:
    x = _placeholder(64, 13, dtype="bool")
    return te.compute((64, 13), lambda i, j: te.logical_not(x[i, j]), name="Y")


def _transposed() -> Tensor:
    x = _placeholder(16, 13)
    return te.compute((13, 16), lambda i, j: x[j, i], name="Y")


def _pool() -> Tensor:
    x, k = _placeholder(16, 13), te.reduce_axis(3, "k")
    return te.compute((16, 7), lambda i, j: te.max(x[i, te.minimum(j * 2 + k, 12)], axis=k))


def _padded() -> Tensor:
    x = _placeholder(16, 7)
    inside = lambda j: te.all(j >= 3, j < 10)  # noqa: E731
    return te.compute((16, 13), lambda i, j: te.select(inside(j), x[i, j - 3], 0.0), name="Y")


def _gathered() -> Tensor:
    x, at = _placeholder(16, 97), te.placeholder((16,), "int32", "at")
    row = lambda i: te.minimum(te.maximum(at[i], 0), 15)  # noqa: E731
    return te.compute((16, 97), lambda i, j: x[row(i), 96 - j], name="Y")


MORE: dict[str, Callable[[], Tensor]] = {
    "relu": _relu,
    "relu of doubles": lambda: _relu("float64"),
    "relu of integers": lambda: _relu("int64"),
    "booleans": _booleans,
    "transposed": _transposed,
    "pool": _pool,
    "padded": _padded,
    "gathered": _gathered,
}


def _run(name: str) -> None:
    out = MORE[name]() if name in MORE else define(name, OPERATORS[name])
    dag, target = te.ComputeDAG([out]), Target.detect()
    rng = np.random.default_rng(len(name))
    inputs = random_inputs(dag, 0)
    expected = dag.evaluate(inputs)
    programs = [lower(plain_state(dag, target))]
    found = sketches(dag, target, SpaceOptions(max_sketches=6))
    for k in rng.integers(0, len(found), ROWS):
        programs.append(found[k].fill(found[k].sample(1, rng)[0]))
    for program in programs:
        verify_inside(program)
        got = run_native(program, inputs, target)
        for output, value in expected.items():
            tolerance = {"rtol": 2e-3, "atol": 2e-4} if value.dtype.kind == "f" else {}
            np.testing.assert_allclose(got[output], value, **tolerance)


def _run_all(names: list[str]) -> None:
    for name in names:
        print(name, flush=True)
        _run(name)


@pytest.mark.parametrize("names", [list(OPERATORS), list(MORE)], ids=["operators", "others"])
@some_or_all(3)
def test_kernels_stay_inside_of_their_buffers(names: list[str], every: int) -> None:
    """In a process of its own, which a read or write outside would kill."""
    child = multiprocessing.get_context("spawn").Process(target=_run_all, args=(names[::every],))
    child.start()
    child.join(240)
    child.kill()
    assert child.exitcode == 0
