"""Sizes of a model's inputs: by name, place, shape and batch; what is missing or contradicts."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from ansorlite.cli import _parser, main
from ansorlite.errors import ModelError, SizesError
from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.sized import SizedNetwork

Shape = tuple[Any, ...] | None


def model(**inputs: Shape) -> onnx.ModelProto:
    """relu of every input."""
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Relu", [name], [f"y_{name}"]) for name in inputs]
    graph = helper.make_graph(
        nodes,
        "net",
        [info(name, 1, None if s is None else list(s)) for name, s in inputs.items()],
        [info(f"y_{name}", 1, None) for name in inputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def shapes(proto: onnx.ModelProto, **sizes: Any) -> list[tuple[int, ...]]:
    graph = load_onnx(proto, **sizes)
    return [graph.types[v].shape for v in graph.inputs]


def refused(proto: onnx.ModelProto, message: str, **sizes: Any) -> SizesError:
    with pytest.raises(SizesError, match=message) as caught:
        load_onnx(proto, **sizes)
    assert "\n" not in str(caught.value)
    return caught.value


TWO = {"x": ("N", 3, "H"), "state": (2, "N", "H")}


def test_axes_of_one_name_have_one_size() -> None:
    want = [(1, 3, 5), (2, 1, 5)]
    assert shapes(model(**TWO), dims={"N": 1, "H": 5}) == want
    assert shapes(model(**TWO), dims={"x.0": 1, "x.2": 5}) == want
    assert shapes(model(**TWO), shapes={"x": (1, 3, 5)}) == want
    assert shapes(model(**TWO), shapes={"state": [2, None, 5]}, batch=1) == want
    assert shapes(model(**TWO), batch=1, dims={"H": 5}) == want  # the state's first extent stays


def test_axes_without_a_name_are_known_by_place() -> None:
    proto = model(x=("?", "?", "-1", "None", None))
    found = refused(proto, r"0 of input x \(x\.0\), 1 of input x \(x\.1\), 2 .*, 3 .*, 4 of")
    assert found.options[:2] == ("--dim", "x.0=1") and len(found.options) == 10
    sizes = {f"x.{k}": k + 1 for k in range(5)}
    assert shapes(proto, dims=sizes) == [(1, 2, 3, 4, 5)]


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"dims": {"H": 5, "x.2": 6}}, r"axis H is 6 by dims=\{'x\.2': 6\} and 5 by dims=\{'H': 5\}"),
    ({"dims": {"H": 5}, "shapes": {"x": (1, 3, 6)}}, r"axis H is 6 by shapes=\{'x': \(1, 3, 6\)\}"),
    ({"shapes": {"x": (1, 3, 6), "state": (2, 1, 7)}}, "axes of one name have one size"),
    ({"shapes": {"x": (1, 4, 6)}}, r"contradicts the model, in which input x is \[N, 3, H\]"),
    ({"shapes": {"x": (1, 3)}}, "has 2 axes, but input x has 3"),
    ({"shapes": {"z": (1, 3)}}, "shapes names 'z'; the inputs of net: x, state"),
    ({"dims": {"Z": 1}}, "dims names 'Z'; the dynamic dimensions of net: H, N"),
    ({"dims": {"x.1": 4}}, "dims names 'x.1'"),
    ({"dims": {"N": 5, "H": 1}, "batch": 4}, r"axis N is 5 by dims=\{'N': 5\} and 4 by batch=4"),
]


@pytest.mark.parametrize(("sizes", "message"), CONTRADICTIONS)
def test_contradictions_are_told_by_name(sizes: dict[str, Any], message: str) -> None:
    refused(model(**TWO), message, **sizes)


def test_sizes_that_agree_with_the_model() -> None:
    assert shapes(model(x=(2, 3)), shapes={"x": (2, 3)}, batch=2, dims={"x.1": 3}) == [(2, 3)]
    assert shapes(model(x=(0, 3)), dims={"x.0": 4}) == [(4, 3)]  # 0: what old exporters write


def test_an_input_without_a_shape() -> None:
    assert shapes(model(x=None), shapes={"x": (1, 4)}) == [(1, 4)]
    refused(model(x=None), r"input x has no tensor shape: .* shapes=\{'x': ", dims=None)


def test_what_is_no_shape() -> None:
    for wrong in (3, [1, 2.5], "1,3"):
        with pytest.raises(ModelError, match=r"the (shape|extent) "):
            load_onnx(model(**TWO), shapes={"x": wrong})
    with pytest.raises(ModelError, match="shapes is a list: give a mapping"):
        load_onnx(model(**TWO), shapes=[(1, 3)])  # type: ignore[call-overload]


def test_lists_make_a_network_of_several_sizes() -> None:
    proto = model(**TWO)
    net: Any = load_onnx(proto, dims={"N": [1, 8], "H": [4, 5]})
    assert isinstance(net, SizedNetwork)
    assert [g.types["x"].shape for g in net.graphs] == [(1, 3, 4), (1, 3, 5), (8, 3, 4), (8, 3, 5)]
    assert net.labels[1] == "N=1, H=5" and net.inputs == ("x", "state")
    one: Any = load_onnx(proto, shapes={"x": [(1, 3, 4), (2, 3, 4)]}, dims={"H": [4]})
    assert one.labels == ("x=1x3x4", "x=2x3x4")
    assert len(load_onnx(proto, batch=[2], dims={"H": 1}).graphs) == 1  # type: ignore[union-attr]
    other = net.at({"x": (3, 3, 7), "state": (2, 3, 7)})
    assert other.types["state"].shape == (2, 3, 7)
    with pytest.raises(ModelError, match="65 sizes of one network are listed: at most 64"):
        load_onnx(proto, dims={"N": list(range(65)), "H": 1})
    with pytest.raises(ModelError, match="the extent 'N' is an empty list"):
        load_onnx(proto, dims={"N": []})


def test_sizes_share_the_arrays_of_the_model() -> None:
    weight = np.ones((3, 4), np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [info("x", 1, ["N", 3])],
        [info("y", 1, ["N", 4])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    net: Any = load_onnx(helper.make_model(graph), dims={"N": [1, 2]})
    first, second = (g.constants["w"] for g in net.graphs)
    assert first is second
    (y,) = evaluate(net.graphs[1], [np.ones((2, 3), np.float32)])
    np.testing.assert_array_equal(y, np.full((2, 4), 3, np.float32))


def test_names_that_are_computed_from_others() -> None:
    """Decoders have such masks: "past + new" is not asked for, as it follows."""
    proto = model(ids=("n", "new"), past=("n", "past"), mask=("n", "past + new"), z=("2*n // 1",))
    found = refused(proto, r"0 of input ids \(n\), 1 of input ids \(new\), 0 of input past")
    assert found.options == ("--dim", "n=1", "--dim", "new=1", "--dim", "past=1")
    sizes = {"n": 2, "new": 3, "past": 4}
    assert shapes(proto, dims=sizes) == [(2, 3), (2, 4), (2, 7), (4,)]
    text = r"axis past \+ new is 9 by dims=.* and 7 by its name \(new=3, past=4\)"
    refused(proto, text, dims={**sizes, "past + new": 9})
    odd = model(x=("n", "f(n)"), y=("m // 0", "-n", "__import__('os')"))
    assert len(refused(odd, "dynamic dimensions").options) == 10
    given = {"n": 1, "f(n)": 2, "m // 0": 3, "-n": 4, "__import__('os')": 5}
    assert shapes(odd, dims=given) == [(1, 2), (3, 4, 5)]


# ---- the command line ---------------------------------------------------------------------------


def test_missing_sizes_are_told_with_the_line_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a net.onnx"
    onnx.save(model(**TWO), str(path))
    given = ["show", str(path), "--stage", "passes"]
    assert main(given) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "0 of input x (N)" in told and "dims" not in told
    line = shlex.split(told.partition(": type ")[2])
    assert line == ["ansorlite", *given, "--dim", "N=1", "--dim", "H=1"]
    assert main(line[1:]) == 0
    assert "x: float32[1, 3, 1]" in capsys.readouterr().out
    for wrong, message in (
        (("--dim", "Z=1"), "--dim names 'Z'; the dynamic dimensions of a net: H, N"),
        (("--shape", "x=1,4,6"), "--shape x=1,4,6 contradicts the model, in which input x is ["),
        (("--dim", "N=1", "--dim", "N=2"), "--dim N is given twice: --dim N=1,2 is several sizes"),
    ):
        assert main([*given, *wrong]) == 2
        assert message in capsys.readouterr().err
    assert main(["pretrain", str(tmp_path / "m.json"), "--networks", str(path)]) == 2
    assert "this command takes no sizes" in capsys.readouterr().err
    assert main([*given, "--shape", "x=1,3,6", "--shape", "x=2,3,6"]) == 0
    out = capsys.readouterr().out
    assert "# size x=1x3x6" in out and "float32[2, 3, 6]" in out


def test_every_network_command_takes_the_same_sizes() -> None:
    sizes = ["--batch", "2", "--dim", "w=3,4", "--dim", "n=1", "--shape", "x=1,0,3"]
    for command in ("tune", "show", "compare"):
        args = _parser().parse_args([command, "x.onnx", *sizes])
        assert (args.batch, args.dim) == (2, [("w", [3, 4]), ("n", [1])])
        assert args.shape == [("x", [1, 0, 3])]
