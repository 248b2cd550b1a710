"""Networks in low precision against OpenVINO: rows, their table, what counts as measured."""

import sys
from dataclasses import replace
from pathlib import Path

import bf16
import numpy as np
import pytest

from ansorlite.workloads.networks import NETWORKS, dcgan
from bench import low_precision
from bench.experiment import exit_status
from bench.low_precision import FLOAT32, LowPrecisionOptions, LowPrecisionRow, measured
from bench.low_precision import OURS as OWN

TURNS = {OWN: [1.0, 1.0], FLOAT32: [2.0, 1.8], "openvino-default": [1.2, 1.0]}
ROW = LowPrecisionRow(
    "dcgan",
    "bf16",
    60.0,
    {OWN: 1e-3, FLOAT32: 1.9e-3, "openvino-default": 1.1e-3},
    {OWN: 2e-3, FLOAT32: 1e-7, "openvino-default": 3e-3},
    {},
    {"bf16": 5, "float32": 3},
    {},
    TURNS,
    {"fingerprint": "here"},
)


def test_the_table_has_ratios_and_errors(tmp_path: Path) -> None:
    experiment = low_precision.experiment(tmp_path / "bf16.jsonl")
    experiment.add(ROW)
    experiment.add(replace(ROW, network="resnet50", turns={**TURNS, FLOAT32: [4.0, 4.0]}))
    experiment.finish()
    head, *lines = (tmp_path / "bf16.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["resnet50", "dcgan"]
    assert "1.000 ms" in lines[1] and "2.0e-03" in lines[1] and "3.0e-03" in lines[1]
    assert lines[1].endswith("5 bf16, 3 float32") and head.endswith("kernels")
    assert "geometric mean of 2 ratios 1.100, least 1.100" in lines[2]
    assert "least 1.900" in lines[3]
    options = LowPrecisionOptions(timeout=60.0)
    assert measured(ROW, options, "here") and not measured(ROW, options, "there")
    assert not measured(ROW, replace(options, timeout=61.0), "here")


def test_bad_arguments_end_it_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, text in (
        (["--only", "x"], "no network 'x'"),
        (["--max-error", "1e-3"], "goes with --precision auto"),
    ):
        rows = str(tmp_path / "rows.jsonl")
        monkeypatch.setattr(sys, "argv", ["bf16.py", "--output", rows, *arguments])
        assert exit_status(bf16.main) == 2
        assert text in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.slow
def test_a_small_network_against_openvino(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setitem(
        NETWORKS, "dcgan", lambda name, batch=1, seed=0: dcgan(name, batch, seed, 8)
    )
    options = LowPrecisionOptions(timeout=30.0, trials=4, turns=2, logs=tmp_path, precision="auto")
    row = low_precision.bench_network("dcgan", options)
    assert set(row.latency_s) == set(row.error) == set(low_precision.CONTENDERS)
    assert 0 < row.error[OWN] <= 1e-2 and row.error[FLOAT32] < 1e-5
    assert np.isfinite(row.ratio("openvino-default")) and row.moved[OWN] < row.moved[FLOAT32]
