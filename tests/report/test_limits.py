"""The tables of limits and the roofline."""

import math
from dataclasses import replace
from typing import Any

import pytest
from log_cases import record

import ansorlite as al
from ansorlite import te
from ansorlite.measure.calibrate import BodySpeed, Calibration, LevelSpeed
from ansorlite.measure.limits import least_seconds, task_bytes, task_peak, task_roofs
from ansorlite.measure.peak import Peak
from ansorlite.report.limits import calibration_text, program_roofs, roofline_text
from ansorlite.schedule.lower import lower
from ansorlite.search.result import BestProgram
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


@pytest.mark.parametrize("kind", ["bf16", "u8s8"])
def test_packed_products_have_the_limit_of_their_instruction(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured, from the table where nothing was measured, that of multiply-adds without one."""
    monkeypatch.setattr("ansorlite.measure.limits.calibration", lambda target: None)
    dtype, depth, dot = {
        "bf16": ("uint16", 2, te.dot_bfloat16),
        "u8s8": ("uint8", 4, te.dot_int8),
    }[kind]
    a = te.placeholder((256, 512), dtype, name="a")
    w = te.placeholder((512 // depth, 256), "int32", name="w", constant=True)
    k = te.reduce_axis(512 // depth, name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(dot(te.pack(*(a[i, depth * k + d] for d in range(depth))), w[k, j]), axis=k)

    product = te.compute((256, 256), element, name="o")
    twice = te.compute((256, 256), lambda i, j: te.cast(product[i, j], "float32") * 2.0, name="t")
    flop = 2 * 256 * 256 * 512
    base = replace(al.Target.cross("x86-avx512", cores=2), features="+avx512f,+avx512vl")
    features = f"{base.features},+avx512bf16,+avx512vnni"
    task = al.SearchTask(twice, replace(base, features=features))
    assert task.dag.run_flop == flop + 256 * 256
    peak = LIMITS.peak
    measured = replace(peak, dots_all={f"dot_{kind}": 3e11}, dots_one={f"dot_{kind}": 2e11})
    name = {"bf16": "vdpbf16ps", "u8s8": "vpdpbusd"}[kind]
    for limits, rate in ((measured, 3e11), (peak, depth * 2e11)):
        dots, rest, _ = task_roofs(task, limits)
        assert (dots.name, dots.amount, dots.seconds) == (name, flop, flop / rate)
        assert (rest.name, rest.amount) == ("multiply-adds", 256 * 256)
        assert least_seconds(task, limits) == flop / rate
        assert task_peak(task, limits) == pytest.approx(rate, rel=0.01)
    plain = al.SearchTask(twice, base)
    (whole, _), speed = task_roofs(plain, measured), task_peak(plain, measured)
    assert (whole.name, whole.amount, speed) == ("multiply-adds", flop + 256 * 256, 2e11)
    xeon = al.SearchTask(twice, al.Target.cross("sapphirerapids", cores=2))
    tiles, _, _ = task_roofs(xeon, measured)  # 16 times the rate of multiply-adds, or 32 times
    assert tiles.name == {"bf16": "tdpbf16ps", "u8s8": "tdpbusd"}[kind]
    assert tiles.seconds == pytest.approx(flop / (8 * depth * 2e11))
    halves = al.SearchTask(twice, replace(base, features=f"{base.features},+avx512bw"))
    known = [r.name for r in task_roofs(halves, peak)]
    assert known[0] == {"bf16": "multiply-adds", "u8s8": "vpmaddwd"}[kind]
    best = BestProgram(task, record(task), 1e-3, measured)
    assert f"% of the {name} limit" in best.summary
    assert best.share_of_peak == pytest.approx(flop / 1e-3 / 3e11, rel=0.01)


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
