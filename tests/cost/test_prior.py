"""The model that is shipped, and rows of programs relative to their target."""

from dataclasses import replace

import numpy as np
import pytest

import ansorlite as al
from ansorlite.cost import prior as module
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.features import FeaturePlan
from ansorlite.cost.losses import Features, TrainingGroup
from ansorlite.cost.names import ARITHMETIC, AT, CYCLES
from ansorlite.cost.prior import (
    Prior,
    Shipped,
    Stage,
    model_bytes,
    parsed_model,
    row_group,
    shipped,
    stages_for,
    tiles_of,
)
from ansorlite.cost.relative import N_RELATIVE, PLACES, RELATIVE_NAMES, no_tiles, relative_rows
from ansorlite.schedule.holes import population_columns
from ansorlite.space.sketch import sketches
from ansorlite.target import Target

AVX512 = Target.cross("x86-avx512", cores=2)


def features(case: str, n: int = 40, target: Target = AVX512) -> Features:
    """Rows of the first sketch of a task."""
    sketch = sketches(al.workload(case, target=target).dag, target)[0]
    rows = sketch.sample(n, np.random.default_rng(0))
    return FeaturePlan(sketch.program)(population_columns(sketch.holes, rows), len(rows), target)


@pytest.mark.parametrize("case", ["C2D:2", "SFM:1", "GMM:0"])
def test_rows_are_finite_and_those_of_a_program_alone(case: str) -> None:
    f = features(case)
    rows = relative_rows(f, AVX512)
    assert rows.shape == (40, N_RELATIVE) and np.isfinite(rows).all()
    assert np.array_equal(relative_rows(f[7:8], AVX512)[0], rows[7])
    assert relative_rows(f[:0], AVX512).shape == (0, N_RELATIVE)


def test_rows_are_relative_to_the_target() -> None:
    """A cache twice as large moves the columns of that cache; features say the rest."""
    f = features("C2D:2")
    larger = replace(AVX512, l2_bytes=2 * AVX512.l2_bytes)
    moved = (relative_rows(f, AVX512) != relative_rows(f, larger)).any(axis=0)
    names = {n for n, m in zip(RELATIVE_NAMES, moved, strict=True) if m}
    assert names and all(n.endswith("_l2") for n in names)
    cores = (relative_rows(f, AVX512) != relative_rows(f, replace(AVX512, cores=8))).any(axis=0)
    names = {n for n, m in zip(RELATIVE_NAMES, cores, strict=True) if m}
    assert names <= {"cycles", "grains", "second_grains", "total_cycles"}


def test_register_tiles_are_looked_up() -> None:
    f = features("GMM:0")
    tiles = no_tiles(AVX512)
    tiles[0] = np.arange(tiles[0].size).reshape(tiles[0].shape)
    column = relative_rows(f, AVX512, tiles)[:, RELATIVE_NAMES.index("tile_l1_packed")]
    first = f[np.arange(len(f)), f[:, :, AT["cycles_all"]].argmax(axis=1)]
    rows, vectors = first[:, AT["rows"]], first[:, AT["vectors"]]
    assert np.array_equal(column, np.minimum(rows, 31) * 32 + np.minimum(vectors, 31))
    assert no_tiles(AVX512).shape == (len(PLACES), 32, 32) and (no_tiles(AVX512) <= 0).all()


def test_the_shipped_model_fits_the_features_of_this_version() -> None:
    """Whoever changes features trains it anew: scripts/train_prior.py."""
    (stage,) = shipped().stages
    assert stage.programs > 4000
    for width in (32, 64):
        tiles = shipped().tiles[width]
        assert tiles.shape == no_tiles(AVX512)[:, : tiles.shape[1], : tiles.shape[2]].shape
        assert tiles.max() <= 0.5


def test_the_correction_counts_by_half_where_nothing_was_measured() -> None:
    f = features("C2D:2")
    x86 = Prior(AVX512, lambda: shipped().stages)
    whole = x86.correction(f)
    assert np.ptp(whole) > 0.1
    assert np.array_equal(x86.correction(f[3:9]), whole[3:9])
    assert not x86.correction(f[:0]).size
    neon = Target.cross("cortex-a76")
    tiles = tiles_of(neon)
    assert np.array_equal(tiles, no_tiles(neon))
    full = module.corrections(shipped().stages, relative_rows(f, neon, tiles))
    assert np.allclose(Prior(neon, lambda: stages_for(neon)).correction(f), 0.5 * full)


def test_files_that_do_not_fit_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    data = model_bytes(shipped().stages[0])
    again = parsed_model(data)
    assert again is not None and again.programs == shipped().stages[0].programs
    assert parsed_model(b"") is None and parsed_model(data[: len(data) // 2]) is None
    broken = bytearray(data)
    broken[len(data) // 3] ^= 255
    assert parsed_model(bytes(broken)) is None
    monkeypatch.setattr(module, "DIGEST", "of other features")
    assert parsed_model(data) is None
    shipped.cache_clear()
    assert shipped() == Shipped()
    monkeypatch.undo()
    shipped.cache_clear()
    assert shipped().stages


def test_a_model_with_a_prior_orders_before_it_learns() -> None:
    """Then it learns what the prior does not know."""
    f = features("C2D:2", 200)
    prior = Prior(AVX512, lambda: shipped().stages)
    model = CorrectionModel()
    assert not model.is_trained and not model.predict(f).any()
    model.begin_with(prior)
    assert model.is_trained
    estimate = -relative_rows(f, AVX512)[:, RELATIVE_NAMES.index("total_cycles")]
    beyond = np.log2(model.predict(f)) - (estimate + prior.correction(f))
    assert np.ptp(beyond) < 0.05  # a constant of the task but for rounding
    rng = np.random.default_rng(1)
    times = 1e-3 * (1.0 + rng.random(len(f)) + 3.0 * (f[:, 0, AT["rows"]] > 4))
    model.update([TrainingGroup("task", list(f), times)])
    scores = model.predict(f, "task")
    assert np.corrcoef(np.log(scores), -np.log(times))[0, 1] > 0.8


def test_rows_of_a_group_keep_the_order_of_programs() -> None:
    one, two = features("GMM:0", 5), features("SFM:1", 5)
    mixed = [one[0], two[0], np.zeros((0, one.shape[2]), np.float32), one[1], two[1]]
    group = row_group(TrainingGroup("task", mixed, np.arange(5.0) + 1.0), AVX512)
    assert group.latency_s.tolist() == [1.0, 2.0, 4.0, 5.0]
    tiles = tiles_of(AVX512)
    assert np.array_equal(group.rows[[0, 2]], relative_rows(one[:2], AVX512, tiles))
    assert np.array_equal(group.rows[[1, 3]], relative_rows(two[:2], AVX512, tiles))
    assert isinstance(shipped().stages[0], Stage)


def test_a_program_that_computes_values_twice_is_half_as_fast() -> None:
    """Cycles an operation are the same, and the operations are twice as many."""
    once = features("C2D:2", 8)
    twice = once.copy()
    for name in (*ARITHMETIC, "executions", *(f"cycles_{k}" for k in (*CYCLES, "all"))):
        twice[:, :, AT[name]] = np.log2(1.0 + 2.0 * (np.exp2(once[:, :, AT[name]]) - 1.0))
    model = CorrectionModel(prior=Prior(AVX512, lambda: ()))
    for _ in range(2):  # whichever is looked at first
        found = model.predict(once, "task") / model.predict(twice, "task")
        assert np.allclose(found, 2.0, rtol=1e-3)
    assert np.allclose(model.predict(twice, "other"), model.predict(once, "task"), rtol=1e-3)
