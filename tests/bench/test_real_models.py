"""The scripts that run public files and ONNX's tests: sizes, inputs, comparison, tables."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_node_tests
import pytest
import real_models
from real_models import difference, free_axes, rule_of, values

from ansorlite.errors import UsageError
from bench.experiment import exit_status

info, FLOAT = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT


def model(*shape: object) -> onnx.ModelProto:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph(
        [node], "g", [info("x", FLOAT, shape)], [info("y", FLOAT, shape)]
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)


def test_free_axes_get_the_sizes_of_their_rule() -> None:
    rule = real_models.Rule("*", {"w": 320, "x.3": 5})
    assert free_axes(model("n", 3, "w", None), rule) == {"x.0": 1, "x.2": 320, "x.3": 5}
    with pytest.raises(UsageError, match=r"no size for axis x.1 \(h\)"):
        free_axes(model(1, "h"), rule)
    assert rule_of("nudenet/320n.onnx").sizes == {"height": 320, "width": 320}


@pytest.mark.parametrize("kind", sorted({k for r in real_models.RULES for k in r.kinds.values()}))
def test_each_kind_of_input_has_its_shape_and_is_finite(kind: str) -> None:
    for shape in ((2, 3, 33, 40), (1, 500)):
        x = values(kind, shape, "float32", np.random.default_rng(0))
        assert x.shape == shape and x.dtype == np.float32 and np.isfinite(x).all()


def test_a_difference_is_a_share_of_what_is_allowed() -> None:
    wanted = np.float32([0, 10, np.nan])
    assert difference(wanted, wanted, False) == 0
    assert difference(wanted + np.float32(1e-3), wanted, False) == pytest.approx(1, rel=1e-2)
    assert difference(wanted[:2], wanted, False) == np.inf
    assert difference(np.nan_to_num(wanted), wanted, False) == np.inf
    assert difference(np.int64([3]), np.int64([4]), False) == np.inf
    assert difference(np.float32([0, 10.03]), np.float32([0, 10]), True) < 1


def test_a_file_is_right_and_the_table_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own==1" / "own"
    folder.mkdir(parents=True)
    onnx.save(model("n", 4), folder / "right.onnx")
    onnx.save(model("n", "m"), folder / "unsized.onnx")
    (tmp_path / "own==1" / "complete").touch()
    out = tmp_path / "rows.jsonl"
    arguments = ["--packages", "own==1", "--cache", str(tmp_path), "--output", str(out)]
    monkeypatch.setattr(sys, "argv", ["real_models.py", *arguments])
    assert exit_status(real_models.main) == 1
    rows = {r["file"]: r for r in map(json.loads, out.read_text().splitlines())}
    assert rows["own/right.onnx"]["outcome"] == "right"
    assert rows["own/right.onnx"]["peak_mb"] > 0
    assert "no size for axis x.1 (m)" in rows["own/unsized.onnx"]["why"]
    assert "1 of 2 files are right" in capsys.readouterr().out
    assert "no size for axis" in out.with_suffix(".txt").read_text()


def test_the_table_of_onnx_tests_counts_by_reason() -> None:
    found = [
        ("test_a", "passed", ""),
        ("test_b", "refused", "g uses 2 unsupported operators: Abs (node a); Erf (node b)"),
        ("test_c", "refused", "g uses 1 unsupported operator: Abs (node c)"),
        ("test_d", "refused", "node n_7 (Cast): operand 0 (x) may not be of dtype float8e5m2"),
        ("test_e", "wrong", "3 is not 4"),
    ]
    rows = onnx_node_tests.rows_of("node", found)
    text = onnx_node_tests.table(rows).splitlines()
    assert text[0] == "node: 5 cases, 1 passed, 3 refused, 1 wrong, 0 crashed"
    assert text[1:3] == ["     2 refused: unsupported operator", "       Abs 2, Erf 1"]
    assert "     1 wrong: 3 is not 4" in text
    assert any("dtype float8e5m2" in line for line in text)
