"""The script that runs PyTorch's exports: outcomes of its rows, the table, the networks."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch_exports
from torch_exports import difference, table_line

from bench.experiment import exit_status

OF_TORCH_ALONE = {
    "lstm tagger",
    "lstm tagger, packed",
    "gru keywords",
    "u-net",
    "diffusion block",
}


def test_a_difference_is_a_share_of_what_is_allowed() -> None:
    wanted = np.float32([0, 10, np.nan])
    assert difference(wanted, wanted) == 0
    assert difference(wanted + np.float32(1e-3), wanted) == pytest.approx(1, rel=1e-2)
    assert difference(np.nan_to_num(wanted), wanted) == np.inf
    assert difference(wanted.astype(np.float64), wanted) == np.inf
    assert difference(np.float32([1]), np.float32([0])) == np.inf


def test_only_what_torch_cannot_export_counts_as_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    rows = [
        {"network": "u-net", "way": way, "outcome": outcome, "why": ""}
        for way, outcome in zip(torch_exports.WAYS, ("right", "torch", "right"), strict=False)
    ]
    monkeypatch.setattr(sys, "argv", ["torch_exports.py", "--table", "--output", str(out)])
    out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert exit_status(torch_exports.main) == 0
    assert "2 of 3 are right, 1 torch itself cannot export" in capsys.readouterr().out
    out.write_text(json.dumps(rows[0] | {"outcome": "eager", "why": "a reason"}))
    assert exit_status(torch_exports.main) == 1
    assert table_line(rows[0] | {"why": "a reason"}).endswith("right\n    a reason")


def test_each_network_takes_its_inputs_of_both_sizes() -> None:
    torch = pytest.importorskip("torch", reason="needs ansorlite[torch]")
    for name, network in importlib.import_module("bench.torch_models").ARCHITECTURES.items():
        if name not in OF_TORCH_ALONE:
            continue
        module = network.module()
        for sizes in (network.example, network.other):
            values = network.values(sizes, 0)
            with torch.no_grad():
                found = module(*values.values())
            count = len(found) if isinstance(found, tuple) else 1
            assert count == len(network.outputs), name
