"""Kernels that run together, unit by unit: the same numbers, memory that is kept apart."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ansorlite.codegen import openmp
from ansorlite.codegen.build import build_program
from ansorlite.codegen.loader import Together
from ansorlite.deployed import load_module
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.joined import calls_together
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state
from ansorlite.target import Target

ROWS, WIDE = 64, 16
several = pytest.mark.skipif(Target.detect().cores < 2, reason="one core has no barriers")


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    """Maxima and softmaxes of rows, then maxima over all rows."""
    b = GraphBuilder("rows")
    rows = b.emit("reduce_max", [b.input("x", (ROWS, WIDE, 3))], axes=(2,), keepdims=False)
    rows = b.emit(
        "reduce_max", [b.emit("reshape", [rows], shape=(ROWS, WIDE, 1))], axes=(2,), keepdims=False
    )
    soft = b.emit("softmax", [rows], axes=(1,))
    mixed = b.emit("reduce_max", [soft], "mixed", axes=(0,), keepdims=False)
    target, parts = Target.detect(), partition(optimize(b.finish([mixed, soft])))
    images = [build_program(lower(plain_state(t.dag, target)), target) for t in tasks(parts)]
    return CompiledModule(parts, images)


def inputs() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, WIDE, 3)).astype(np.float32)


@several
def test_kernels_of_rows_run_together_and_one_that_mixes_rows_does_not(
    module: CompiledModule,
) -> None:
    joined = module.linked().memory.together
    assert joined, "some run together"
    nests = [len(module.images[k].spans) for k, _ in module.linked().memory.calls]
    ends = calls_together(joined, nests)
    assert ends[0][1] >= 1, "two calls at least"
    mixing = next(k for k, s in enumerate(module.partition.subgraphs) if "mixed" in s.outputs)
    assert ends.get(mixing, (mixing, mixing))[0] == mixing


@several
def test_numbers_are_those_of_kernels_one_after_another(
    module: CompiledModule, tmp_path: Path
) -> None:
    apart = CompiledModule.__new__(CompiledModule)
    state = pickle.loads(pickle.dumps(module.__getstate__()))
    apart.restore({**state, "images": tuple(replace(i, spans=()) for i in module.images)}, {})
    assert not apart.linked().memory.together
    copied = pickle.loads(pickle.dumps(module))
    assert copied.linked().memory.together == module.linked().memory.together
    before = openmp.max_threads()
    nets = [module, copied]
    if shutil.which("cc"):
        nets.append(load_module(module.save(tmp_path / "net")))
    try:
        for threads in (1, 2, 5):
            openmp.set_num_threads(threads)
            nets[-1].threads = threads
            for k in range(20):
                x = inputs() + np.float32(k)
                for own in nets:
                    for a, b in zip(own(x), apart(x), strict=True):
                        np.testing.assert_array_equal(a, b)
    finally:
        openmp.set_num_threads(before)


@several
def test_a_profile_shares_the_time_of_kernels_that_run_together(module: CompiledModule) -> None:
    profile = module.profile(inputs(), repeats=2, alone=False)
    rows = profile.rows
    assert all(row.in_place_s > 0 and 0 <= row.late_s <= row.in_place_s for row in rows)
    calls = profile.calls
    assert calls[:, 0].tolist() == list(range(len(rows)))
    assert np.all(calls[1:, 1] >= calls[:-1, 2] - 1), "one after another"


def test_the_calls_of_a_run() -> None:
    runs = [Together(0, 1, 4, 8), Together(2, 1, 2, 8), Together(5, 0, 2, 8)]
    # nests: 0: a, [b   1: c, d   2: e], [f   3: g]   5: [h, i]
    ends = calls_together(runs, [2, 2, 2, 1, 1, 2])
    assert ends == {0: (0, 3), 1: (0, 3), 2: (0, 3), 3: (0, 3), 5: (5, 5)}
