"""Networks against peers: one small network tuned, checked and timed; the table of results."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ansorlite.errors import AnsorliteError
from ansorlite.graph.inputs import random_inputs
from ansorlite.workloads.networks import NETWORKS, dcgan
from bench import networks
from bench.networks import NetworkRow, bench_network
from bench.options import BenchOptions

ROW = NetworkRow(
    "resnet50",
    1,
    {"ansorlite": 0.04, "onnxruntime": 0.05},
    {"ansorlite": "", "onnxruntime": ""},
    1.25,
    0.9,
    100,
    60.0,
    3,
    1e-6,
)


@pytest.mark.slow
def test_a_small_network_against_onnxruntime(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(NETWORKS, "dcgan", lambda name, batch, seed: dcgan(name, batch, seed, 8))
    options = BenchOptions(
        timeout=None, trials=6, peers=("onnxruntime",), turns=2, log=tmp_path / "log.jsonl"
    )
    row = bench_network("dcgan", options)
    assert set(row.latency_s) == {"ansorlite", "onnxruntime"} == set(row.turns)
    assert row.ratio is not None and row.ratio > 0
    assert row.error is not None and row.error < 1e-4
    assert row.trials >= 6 and row.curve and row.curve[-1][1] < float("inf")


def test_rows_replace_older_ones_and_end_in_means(tmp_path: Path) -> None:
    experiment = networks.experiment(tmp_path / "networks.jsonl", ["onnxruntime", "openvino"])
    for row in (ROW, replace(ROW, network="dcgan", ratio=2.0), replace(ROW, ratio=1.5)):
        experiment.add(row)
    assert [(r.network, r.ratio) for r in experiment.rows()] == [("resnet50", 1.5), ("dcgan", 2.0)]
    experiment.finish()
    head, line, *_ = text = (tmp_path / "networks.txt").read_text().splitlines()
    assert "batch 1: geometric mean of 2 ratios 1.732" in text
    assert head.index("ratio") == line.index("1.50") - 1  # there is a blank for OpenVINO


def test_wrong_outputs_are_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from bench.onnx_export import export_onnx

    graph = dcgan("dcgan", 1, 0, 8)
    model = tmp_path / "net.onnx"
    model.write_bytes(export_onnx(graph).SerializeToString())
    inputs = random_inputs(graph)
    for value in (0.0, np.nan):
        got = np.full((1, 3, 8, 8), value, np.float32)
        with pytest.raises(AnsorliteError, match="outputs differ from onnxruntime's by"):
            networks.output_error(got, model, inputs, 1)
