"""Profiles of networks: figures that agree with each other, bytes, limits, waiting, traces."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ansorlite.codegen.openmp import max_threads
from ansorlite.errors import MachineError, ModelError, UsageError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.profile import Moved, Profile
from ansorlite.graph.profile_runs import idle
from ansorlite.graph.trace import trace_events
from ansorlite.measure import limits
from ansorlite.measure.peak import Peak
from ansorlite.pipeline import compile_plain
from ansorlite.target import Target

PEAK = Peak(1e12, 5e11, 1e10)


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "calibration", lambda target: None)
    monkeypatch.setattr(limits, "measure_peak", lambda target: PEAK)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def looked_up() -> Graph:
    """Three rows of a table of 1,000, then a product."""
    b = GraphBuilder("rows")
    ids = b.input("ids", (3,), "int64")
    rows = b.emit("take", [b.constant(normal(1000, 16)), ids], axis=0)
    return b.finish([b.emit("matmul", [b.emit("relu", [rows]), b.constant(normal(16, 40))])])


INPUTS = [np.array([1, 999, 0])]


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    return compile_plain(looked_up())


@pytest.fixture
def profile(module: CompiledModule) -> Profile:
    return module.profile(*INPUTS, repeats=3)


def test_figures_agree_with_each_other(module: CompiledModule, profile: Profile) -> None:
    subgraphs = module.partition.subgraphs
    assert [row.name for row in profile.rows] == [s.name for s in subgraphs]
    assert [row.nodes for row in profile.rows] == [s.nodes for s in subgraphs]
    assert sum(row.flop for row in profile.rows) == module.partition.flop
    assert (profile.threads, profile.rounds) == (max_threads(), 3)
    assert profile.kernels_s == sum(row.in_place_s for row in profile.rows)
    assert profile.network_s == pytest.approx(profile.round_s + profile.between_s)
    assert 0 < profile.round_s <= profile.stamped_s
    for row in profile.rows:
        assert row.in_place_s > 0 and row.alone_s is not None and row.alone_s > 0
        assert row.share_of_limit == row.least_s / row.in_place_s
        assert 0 <= row.late_s <= row.in_place_s and 0 <= row.waiting_s <= row.in_place_s
        assert row.late_s + row.waiting_s <= row.in_place_s * 1.0001
        assert 1 <= row.threads <= max_threads()
        assert row.regions == 0 or Target.detect().cores > 1
    assert min(profile.call_s, profile.stamped_s, profile.regions_s) > 0


def test_bytes_are_of_each_operand_once_and_of_what_is_looked_up(profile: Profile) -> None:
    read = sum(row.moved.read for row in profile.rows)
    constants = sum(row.moved.constants for row in profile.rows)
    written = sum(row.moved.written for row in profile.rows)
    between = 4 * 3 * 16 * (len(profile.rows) - 1)  # written by one kernel, read by the next
    assert written == 4 * 3 * 40 + between
    assert read == 8 * 3 + between
    assert 4 * (3 * 16 + 16 * 40) <= constants < 4 * 1000 * 16, "the table is not read whole"


def test_the_limit_is_the_slower_of_arithmetic_and_data(
    module: CompiledModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = module.profile(*INPUTS, repeats=1).rows[-1]
    assert product.bound_by == "multiply-adds"
    assert product.least_s == pytest.approx(2 * 3 * 40 * 16 / PEAK.flops_all, rel=0.3)
    monkeypatch.setattr(limits, "level_bytes", lambda target: {"l1": 16})
    product = module.profile(*INPUTS, repeats=1).rows[-1]
    assert product.bound_by == "memory"
    assert product.least_s == product.moved.total / PEAK.copy_bytes_per_s


def test_results_are_what_they_were(module: CompiledModule) -> None:
    (want,) = evaluate(looked_up(), INPUTS)
    module.profile(*INPUTS, repeats=1)
    np.testing.assert_allclose(module(*INPUTS), want, rtol=1e-5, atol=1e-5)


def test_kernels_of_a_loop_are_sums_over_steps_and_leave_its_state() -> None:
    pytest.importorskip("onnx")
    from test_recurrent import Variant, expected, model_of

    from ansorlite.graph.onnx.load import load_onnx

    model, feeds = model_of(Variant("LSTM", times=7, initial=True))
    wanted, inputs = expected(model, feeds), list(feeds.values())
    module = compile_plain(load_onnx(model))
    found = module.profile(*inputs, repeats=1)
    looped = [row for row in found.rows if row.times > 1]
    (times,) = {row.times for row in looped}
    numbers, counts = np.unique(found.calls[:, 0], return_counts=True)
    assert counts.tolist() == [found.rows[k].times for k in numbers]
    assert all(row.moved.total % times == 0 for row in looped)
    for got, want in zip(module(*inputs), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_wrong_arguments(module: CompiledModule, profile: Profile, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="takes 1 input"):
        module.profile()
    with pytest.raises(ModelError, match="indices are from"):
        module.profile(np.array([0, 1000, 0]))
    with pytest.raises(UsageError, match="repeats"):
        module.profile(*INPUTS, repeats=0)
    with pytest.raises(MachineError, match="cannot write"):
        profile.save_trace(tmp_path / "none" / "t.json")
    assert module(*INPUTS).shape == (3, 40)


def test_other_calls_wait_and_are_right(module: CompiledModule) -> None:
    ids = [np.array([k, 2 * k, 3 * k]) for k in range(8)]
    wanted = [module(x) for x in ids]
    with ThreadPoolExecutor(3) as pool:
        profiles = [pool.submit(module.profile, *INPUTS, repeats=2, alone=True) for _ in range(2)]
        calls = [pool.submit(module, x) for x in ids * 4]
        for call, want in zip(calls, wanted * 4, strict=True):
            np.testing.assert_array_equal(call.result(), want)
        assert all(len(p.result().rows) == len(module.partition.subgraphs) for p in profiles)


def test_without_kernels() -> None:
    b = GraphBuilder("same")
    x = b.input("x", (4,))
    module = compile_plain(b.finish([b.emit("reshape", [x], shape=(2, 2))]))
    found = module.profile(normal(4), repeats=1)
    assert found.rows == () and found.kernels_s == 0 and "0 kernels" in str(found)
    assert [e["ph"] for e in found.trace()["traceEvents"]] == ["M", "M"]


def test_text_and_json(profile: Profile) -> None:
    lines = str(profile).splitlines()
    assert lines[0].startswith(f"rows: {len(profile.rows)} kernels, {profile.threads} thread")
    assert lines[1].split()[:4] == ["ID", "Kernel", "In", "place"]
    total = next(line for line in lines if line.split()[:1] == ["total"])
    assert "100 %" in total
    assert any(line.startswith("kernels ") and "untouched" in line for line in lines)
    read = json.loads(profile.to_json())
    assert read["network_s"] == profile.network_s and read["between_s"] == profile.between_s
    for own, row in zip(read["kernels"], profile.rows, strict=True):
        assert own["in_place_s"] == row.in_place_s and own["moved"]["total"] == row.moved.total
        assert Moved(*(own["moved"][k] for k in ("read", "constants", "written", "scratch"))) == (
            row.moved
        )


def test_json_is_a_profile_again(profile: Profile) -> None:
    read = json.loads(profile.to_json())
    again = Profile.from_dict(read)
    assert again == profile and str(again) == str(profile)
    for wrong in ([], {}, {**read, "kernels": 3}, {**read, "peak": {}}, {**read, "call_s": "x"}):
        with pytest.raises(ValueError, match="no profile"):
            Profile.from_dict(wrong)  # type: ignore[arg-type]


def test_notes_lie_within_each_other_and_within_the_run(profile: Profile) -> None:
    calls, regions = profile.calls, profile.regions
    assert np.all(np.diff(calls[:, 1:].reshape(-1)) >= 0)
    assert 0 < (calls[-1, 2] - calls[0, 1]) / 1e9 <= profile.regions_s, "the fastest round"
    for begin, end in regions[:, 1:3]:
        assert any(first <= begin <= end <= last for _, first, last in calls)
    assert sum(row.regions for row in profile.rows) == len(regions)


def test_alone_only_where_it_is_asked_for(module: CompiledModule) -> None:
    found = module.profile(*INPUTS, repeats=1, alone=False)
    assert {row.alone_s for row in found.rows} == {None} and " - " in str(found)


def test_the_faster_half_of_the_rounds_counts(
    module: CompiledModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = iter([9.0, 5.0, 7.0, 1.0, 2.0, 3.0, 30.0, 20.0, 70.0, 1.5, 2.5, 3.5])
    monkeypatch.setattr("ansorlite.graph.profile_runs._seconds", lambda run: (run(), next(each))[1])
    found = module.profile(*INPUTS, repeats=3, alone=False)
    assert found.call_s == 6.0
    assert (found.network_s, found.stamped_s, found.regions_s) == (1.25, 2.25, 3.25)
    assert found.slower_rounds == 120 / 6.75
    told = replace(found, round_s=found.kernels_s)
    assert "up to 17.78 times as long" in str(told) and "as long" in str(replace(told, round_s=1.0))
    assert "as long" not in str(replace(told, slower_rounds=1.0))


# ---- notes --------------------------------------------------------------------------------------

CALLS = np.array([[0, 100, 200], [1, 210, 400], [0, 400, 500]])
REGIONS = np.array(
    [  # size, begin, end, 0, then begin and end of three threads
        [2, 110, 190, 0, 112, 180, 120, 188, 0, 0],
        [3, 220, 320, 0, 220, 320, 0, 0, 250, 300],
        [1, 330, 390, 0, 330, 390, 0, 0, 0, 0],
        [2, 410, 490, 0, 410, 490, 0, 0, 0, 0],
    ]
)


def test_late_work_and_waiting_add_up_to_the_region() -> None:
    late, waiting = idle(REGIONS)
    np.testing.assert_allclose(late, [(2 + 10) / 2, (0 + 100 + 30) / 3, 0, (0 + 80) / 2])
    np.testing.assert_allclose(waiting, [(10 + 2) / 2, (0 + 20) / 3, 0, 0])
    work = (REGIONS[:, 5::2] - REGIONS[:, 4::2]).sum(axis=1) / REGIONS[:, 0]
    np.testing.assert_allclose(late + waiting + work, REGIONS[:, 2] - REGIONS[:, 1])
    assert [x.tolist() for x in idle(REGIONS[:0])] == [[], []]


def test_a_trace_has_every_call_and_share_within_each_other() -> None:
    told: list[dict[str, Any]] = [{"flop": 1.0}, {"flop": 2.0}]
    trace = trace_events("net", ["a", "b\n"], told, CALLS, REGIONS)
    events = [e for e in json.loads(json.dumps(trace))["traceEvents"] if e["ph"] == "X"]
    kernels = [e for e in events if e["cat"] == "kernel"]
    assert [(e["name"], e["ts"], e["dur"]) for e in kernels] == [
        ("a", 0.0, 0.1),
        ("b\\n", 0.11, 0.19),
        ("a", 0.3, 0.1),
    ]
    assert kernels[1]["args"] == {"flop": 2.0}
    shares = [e for e in events if e["cat"] == "share"]
    assert len(shares) == np.count_nonzero(REGIONS[:, 4::2])
    waiting = [(e["tid"], e["ts"], e["dur"]) for e in events if e["cat"] == "waiting"]
    assert waiting == [(0, 0.08, 0.01), (1, 0.088, 0.002), (2, 0.2, 0.02)]
    for e in [*shares, *(x for x in events if x["cat"] == "waiting")]:
        inside = [k for k in kernels if k["ts"] <= e["ts"] < k["ts"] + k["dur"]]
        assert len(inside) == 1
    named = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert named == {"net", "thread 0: kernels", "thread 1", "thread 2"}


def test_the_trace_of_a_network(profile: Profile, tmp_path: Path) -> None:
    file = profile.save_trace(tmp_path / "trace.json")
    events = json.loads(file.read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert [e["name"] for e in kernels] == [row.name for row in profile.rows]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in events if e["ph"] == "X")
    assert [e["args"]["bytes"] for e in kernels] == [row.moved.total for row in profile.rows]
