"""Calibration: the register tiles compute right values, and figures are cached."""

from pathlib import Path

import numpy as np
import pytest
from native import run_native

from ansorlite.measure import calibrate as module
from ansorlite.measure.calibrate import (
    BodySpeed,
    Calibration,
    LevelSpeed,
    body_state,
    calibrate,
    calibration,
    legal_bodies,
    level_bytes,
    tile_run,
)
from ansorlite.measure.machine_cache import cache_file
from ansorlite.measure.peak import Peak
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.target import Target

PEAK = Peak(2e11, 1e11, 2e10)


def computes_its_product(state: State, target: Target) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        p.name: rng.standard_normal([int(str(e)) for e in p.shape]).astype(np.float32)
        for p in state.dag.inputs
    }
    got = run_native(lower(state), arrays, target)["C"]
    np.testing.assert_allclose(got, state.dag.evaluate(arrays)["C"], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tile", [(1, 1), (4, 3), (6, 2)])
def test_a_tile_computes_its_product(tile: tuple[int, int], packed: bool) -> None:
    target = Target.detect()
    computes_its_product(body_state(tile[0], tile[1] * 8, 12, 3, 2, packed, target), target)


def test_a_tile_runs_on_all_cores() -> None:
    target = Target.detect()
    run, flop = tile_run(target, 1e-4)
    run()
    assert flop > 0
    computes_its_product(body_state(4, 16, 12, 1, 2, True, target, cores=2), target)


def test_legal_tiles_fit_the_registers() -> None:
    avx2 = legal_bodies(Target.cross("x86-avx2"))
    assert {(6, 2), (4, 3), (14, 1), (1, 14)} <= set(avx2)
    assert not {(7, 2), (4, 4), (15, 1)} & set(avx2)
    assert (12, 2) in legal_bodies(Target.cross("x86-avx512"))


def test_figures_are_measured_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "measure_peak", lambda target: PEAK)
    monkeypatch.setattr(module, "legal_bodies", lambda target: [(2, 1)])
    monkeypatch.setattr(module, "BODY_S", 1e-5)
    monkeypatch.setattr(module, "COPY_S", 1e-5)
    monkeypatch.setattr(module, "uncached_bytes", lambda target: 512 * 1024)
    target = Target(l3_bytes=256 * 1024)
    assert calibration(target) is None
    measured = calibrate(target)
    assert calibration(target) == measured
    assert calibration(Target(cores=77)) is None
    assert [c.level for c in measured.levels] == ["l1", "l2", "l3", "memory"]
    assert {(b.level, b.packed) for b in measured.bodies} == {
        ("l1", True),
        ("l1", False),
        ("l2", True),
        ("l2", False),
    }
    assert all(b.flops > 0 for b in measured.bodies)
    text = cache_file("calibration").read_text()
    cache_file("calibration").write_text(text.replace('"levels"', '"kevels"'))
    assert calibration(target) is None


def test_data_that_fits_a_level_moves_at_its_speed() -> None:
    target = Target.cross("x86-avx2", cores=2)
    speeds = tuple(LevelSpeed(level, 1.0, 2.0, 2.0, 4.0) for level in ("l1", "l2", "l3", "memory"))
    c = Calibration(PEAK, speeds, (BodySpeed(6, 2, "l1", True, 1e11),), "2026-01-01")
    assert level_bytes(target)["l1"] == 2 * 32 * 1024
    assert c.level_of(1000, target).level == "l1"
    assert c.level_of(1 << 19, target).level == "l2"
    assert c.level_of(1 << 24, target).level == "l3"
    assert c.level_of(1 << 30, target).level == "memory"
    assert speeds[0].least_seconds(8.0, 0.0) == 2.0  # read alone
    assert speeds[0].least_seconds(8.0, 2.0) == 2.0 + 1.5  # two copied, six read
    assert speeds[0].least_seconds(2.0, 8.0) == 2.0 + 3.0
