"""The tables of limits and the roofline."""

import math

import pytest

import ansorlite as al
from ansorlite import te
from ansorlite.measure.calibrate import BodySpeed, Calibration, LevelSpeed
from ansorlite.measure.limits import least_seconds, task_bytes, task_roofs
from ansorlite.measure.peak import Peak
from ansorlite.report.limits import calibration_text, program_roofs, roofline_text
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state

LIMITS = Calibration(
    Peak(2e11, 1e11, 2e10),
    tuple(
        LevelSpeed(level, v / 2, v, v, 2 * v)
        for level, v in (("l1", 2e11), ("l2", 1e11), ("l3", 5e10), ("memory", 2e10))
    ),
    (BodySpeed(6, 2, "l1", True, 9.9e10), BodySpeed(1, 1, "l1", True, 1.2e10)),
    "2026-01-01",
)


def test_a_product_is_bound_by_arithmetic_and_a_norm_by_its_data() -> None:
    product, norm = al.workload("GMM", 2), al.workload("NRM", 1)
    assert task_bytes(product) == (2 * 512 * 512 * 4, 512 * 512 * 4)
    flops, data = task_roofs(product, LIMITS)
    assert flops.seconds == pytest.approx(2 * 512**3 / 2e11) and flops.seconds > data.seconds
    flops, data = task_roofs(norm, LIMITS)
    assert data.seconds > flops.seconds


def test_without_a_calibration_caches_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansorlite.measure.limits.calibration", lambda target: None)
    product, pool = al.workload("GMM", 2), al.workload("NRM", 3, batch=16)
    assert least_seconds(product, LIMITS.peak) == pytest.approx(2 * 512**3 / 2e11)
    small = least_seconds(al.workload("NRM", 0), LIMITS.peak)
    assert small == pytest.approx(al.workload("NRM", 0).flop / 2e11)
    monkeypatch.setattr("ansorlite.measure.limits.level_bytes", lambda target: {"l1": 1024})
    assert least_seconds(pool, LIMITS.peak) == pytest.approx(sum(task_bytes(pool)) / 2e10)


def test_what_is_computed_once_is_no_limit_of_a_run() -> None:
    """Twice the weights is known before any run; twice the input is not."""
    a, w = te.placeholder((64, 32), name="a"), te.placeholder((32, 16), name="w", constant=True)
    twice = te.compute((32, 16), lambda i, j: w[i, j] * 2.0, name="twice")
    double = te.compute((64, 32), lambda i, j: a[i, j] * 2.0, name="double")
    k = te.reduce_axis(32, name="k")
    out = te.compute((64, 16), lambda i, j: te.sum(double[i, k] * twice[k, j], axis=k), name="o")
    task = al.SearchTask(out)
    product = 2 * 64 * 32 * 16
    assert task.dag.flop == product + 64 * 32 + 32 * 16
    assert task.dag.run_flop == product + 64 * 32
    assert task_roofs(task, LIMITS)[0].amount == task.dag.run_flop
    only = al.SearchTask(te.compute((32, 16), lambda i, j: w[i, j] * 2.0, name="only"))
    assert only.dag.run_flop == only.dag.flop == 32 * 16  # a result is computed in every run


def test_the_roofline_of_a_program() -> None:
    task = al.workload("GMM", 0)
    program = lower(plain_state(task.dag, task.target))
    assert all(math.isfinite(r.seconds) for r in program_roofs(task, program, LIMITS))
    text = roofline_text(task, program, LIMITS)
    assert "multiply-adds" in text and "this program, memory" in text and "measured" not in text
    text = roofline_text(task, program, LIMITS, task.flop / 1e11)
    assert "50 % of what that limit allows, 100.0 GFLOP/s" in text


def test_the_table_of_a_calibration() -> None:
    lines = calibration_text(LIMITS).splitlines()
    assert lines[0] == "measured 2026-01-01"
    assert any(x.split() == ["6", "x", "2", "99", "%", "-", "-", "-"] for x in lines)
    assert lines.index(next(x for x in lines if x.startswith("6 x"))) < lines.index(
        next(x for x in lines if x.startswith("1 x"))
    )
