"""The operator benchmark: cases, results on disk, contenders that take turns or fail."""

from pathlib import Path

import pytest

from ansorlite.errors import AnsorliteError, ModelError, UsageError
from bench import ops, suite
from bench.contest import Contender, Spec, in_turn, paired_ratio, take_turns
from bench.peers import OPERATORS, PEERS, interpreter, peers_of
from bench.serve import timed


def row(case: str, ratio: float | None = 1.5) -> ops.BenchRow:
    latency = {"ansorlite": 1e-3} | ({} if ratio is None else {"torch": 1e-3 * ratio})
    return ops.BenchRow(case, 1, latency, {}, ratio, 100.0, 0.5, 64, 9.0, machine={"cpu": "x"})


def test_the_suite_and_parts_of_it() -> None:
    assert len(suite.cases()) == 56 and suite.cases()[0] == "C1D:0"
    assert suite.cases(["c2d:3", "SFM"]) == ["C2D:3", "SFM:0", "SFM:1", "SFM:2", "SFM:3"]
    with pytest.raises(ModelError, match="unknown workload 'C9D'"):
        suite.cases(["C9D"])


def test_rows_replace_older_ones_of_their_case(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ops.jsonl"
    experiment = ops.experiment(path, ["torch"])
    assert experiment.table() == f"{experiment.head}\n"
    for new in (row("SFM:0"), row("C1D:0", 1.0), row("SFM:0", 4.0)):
        experiment.add(new)
    assert [(r.case, r.ratio) for r in experiment.rows()] == [("C1D:0", 1.0), ("SFM:0", 4.0)]
    experiment.finish()
    text = path.with_suffix(".txt").read_text()
    assert "geometric mean of 2 ratios: 2.000; the lowest: 1.00" in text
    assert "ratios" not in ops.experiment(path).table([row("C1D:0", None)])


def test_the_ratio_is_that_of_neighbouring_turns() -> None:
    """Both slow down half-way: the ratio of the medians would say something else."""
    turns = {"ansorlite": [1.0, 1.0, 1.0, 4.0, 4.0], "torch": [2.0, 2.0, 8.0, 8.0, 8.0]}
    assert paired_ratio(turns, "torch") == 2.0


def test_timed_counts_calls() -> None:
    calls = []
    latency, n = timed(lambda: calls.append(0), 0.01)
    assert 0 < latency < 0.01 and 0 < n < len(calls)


def test_calls_in_turn() -> None:
    order: list[str] = []
    turns = in_turn([lambda: order.append("a"), lambda: order.append("b")], 2, 0.001)
    assert [len(t) for t in turns] == [2, 2] and all(0 < t < 0.01 for pair in turns for t in pair)
    changes = [a for a, b in zip(order, [*order[1:], ""], strict=True) if a != b]
    assert changes == ["a", "b", "a", "b"]


def test_contenders_that_fail_are_named() -> None:
    ours = Spec("ours", {"case": "C9D", "batch": 1, "trial": 0})
    with pytest.raises(AnsorliteError, match=r"contender ansorlite: .*C9D"):
        take_turns({"ansorlite": ours}, 1, 0.01)
    with pytest.raises(AnsorliteError, match="contender x: ModuleNotFoundError"):
        take_turns({"x": Spec("nothing")}, 1, 0.01)
    with pytest.raises(UsageError, match="no interpreter with torch"):
        interpreter("torch", "/nowhere/python")


def test_a_contender_tells_medians_and_every_call() -> None:
    size = {"B": 1, "N": 8, "M": 8, "K": 8}
    with Contender("numpy", Spec("numpy", {"name": "GMM", "params": size})) as contender:
        assert contender.mode.startswith("numpy ") and 0 < contender.turn(0.001) < 1
        times = contender.calls(0.001)
        assert times and all(0 < t < 1 for t in times)


def test_peers_have_adapters() -> None:
    folder = Path(ops.__file__).parent / "peers"
    assert all((folder / f"{peer.module}.py").exists() for peer in PEERS.values())
    assert "numpy" in peers_of(OPERATORS) and "onnxruntime" not in peers_of(OPERATORS)
