"""The operator benchmark: cases, results on disk, contenders that take turns or fail."""

import sys
from pathlib import Path

import pytest

from ansorlite.bench import ops
from ansorlite.bench.serve import timed
from ansorlite.errors import AnsorliteError, ModelError


def row(case: str, ratio: float | None = 1.5) -> ops.BenchRow:
    latency = {"ansorlite": 1e-3} | ({} if ratio is None else {"torch": 1e-3 * ratio})
    return ops.BenchRow(case, 1, latency, {}, ratio, 100.0, 0.5, 64, 9.0, machine={"cpu": "x"})


def test_the_suite_and_parts_of_it() -> None:
    assert len(ops.suite()) == 56 and ops.suite()[0] == "C1D:0"
    assert ops.suite(["c2d:3", "SFM"]) == ["C2D:3", "SFM:0", "SFM:1", "SFM:2", "SFM:3"]
    with pytest.raises(ModelError, match="unknown workload 'C9D'"):
        ops.suite(["C9D"])


def test_rows_replace_older_ones_of_their_case(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ops.jsonl"
    ops.merge_rows(path, [row("SFM:0"), row("C1D:0", 1.0)])
    merged = ops.merge_rows(path, [row("SFM:0", 4.0)])
    assert [(r.case, r.ratio) for r in merged] == [("C1D:0", 1.0), ("SFM:0", 4.0)]
    assert ops.read_rows(path) == merged
    text = path.with_suffix(".txt").read_text()
    assert "geometric mean of 2 ratios: 2.000; the lowest: 1.00" in text
    assert ops.table([]) == "no cases\n" and "ratios" not in ops.table([row("C1D:0", None)])


def test_the_ratio_is_that_of_neighbouring_turns() -> None:
    """Both slow down half-way: the ratio of the medians would say something else."""
    turns = {"ansorlite": [1.0, 1.0, 1.0, 4.0, 4.0], "torch": [2.0, 2.0, 8.0, 8.0, 8.0]}
    assert ops.paired_ratio(turns, "torch") == 2.0


def test_timed_counts_calls() -> None:
    calls = []
    latency, n = timed(lambda: calls.append(0), 0.01)
    assert 0 < latency < 0.01 and 0 < n < len(calls)


def test_contenders_that_fail_are_named() -> None:
    with pytest.raises(AnsorliteError, match=r"contender ansorlite: .*C9D"):
        ops.take_turns({"ansorlite": (sys.executable, {"case": "C9D", "batch": 1})}, 1, 0.01)
    with pytest.raises(AnsorliteError, match="no interpreter with torch"):
        ops.peer_interpreter("torch", "/nowhere/python")
