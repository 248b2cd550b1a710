"""Graphs: printing, what is legal, evaluation, and the meaning of windows."""

from dataclasses import replace

import numpy as np
import pytest

from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, Node, evaluate
from ansorlite.graph.ops.pool import window_counts
from ansorlite.graph.ops.table import OPERATORS
from ansorlite.graph.ops.windows import window_extent
from ansorlite.graph.types import TensorType


def small() -> Graph:
    b = GraphBuilder("small")
    x = b.input("x", (2, 3))
    w = b.constant(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    y = b.emit("matmul", [x, w], "y")
    return b.finish([b.emit("relu", [y], "z")])


def test_a_graph_reads_like_python() -> None:
    assert str(small()) == (
        "graph small(x: float32[2, 3]):\n"
        "    w = constant float32[3, 2]\n"
        "    y = matmul(x, w)  # float32[2, 2]\n"
        "    z = relu(y)  # float32[2, 2]\n"
        "    return z\n"
    )


def test_evaluate_takes_a_sequence_or_names() -> None:
    x = np.asarray([[1, 0, 0], [0, -1, 0]], np.float32)
    expected = [[0, 1], [0, 0]]
    assert evaluate(small(), [x])[0].tolist() == expected
    assert evaluate(small(), {"x": x})[0].tolist() == expected


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], r"takes 1 inputs \(x\), got 0"),
        ([np.zeros((2, 4), np.float32)], r"input x is float32\[2, 4\], expected float32\[2, 3\]"),
        ([np.zeros((2, 3))], r"input x is float64\[2, 3\], expected float32\[2, 3\]"),
        ({"y": 1.0}, "no value is given for input x of graph small"),
    ],
)
def test_wrong_inputs_are_named(inputs: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        evaluate(small(), inputs)  # type: ignore[arg-type]


def test_verify_finds_each_kind_of_damage() -> None:
    g = small()
    y, z = g.nodes
    damaged = {
        "before it is computed": replace(g, nodes=(z, y)),
        "defined twice": replace(g, nodes=(y, y, z)),
        "output q of graph small is never computed": replace(g, outputs=("q",)),
        "y of node y .matmul. is float32.2, 2., declared float32.9.": replace(
            g, types={**g.types, "y": TensorType((9,))}
        ),
        "constant w is float32.1.": replace(g, constants={"w": np.zeros(1, np.float32)}),
        "is no operator": replace(g, nodes=(replace(y, op="fly"), z)),
        "has 1 operands, not 2 to 2": replace(g, nodes=(replace(y, inputs=("x",)), z)),
        "has attributes a, not none": replace(g, nodes=(replace(y, attrs={"a": 1}), z)),
        "defines an input or constant twice": replace(g, inputs=("x", "w")),
    }
    g.verify()
    for message, graph in damaged.items():
        with pytest.raises(ModelError, match=message):
            graph.verify()


CONV = {
    "strides": (1, 1),
    "pads": ((0, 0), (0, 0)),
    "dilations": (1, 1),
    "groups": 1,
    "layout": "channels_first",
}


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("add", [(2, 3), (2, 4)], {}, r"shapes \[2, 3\] and \[2, 4\] do not broadcast"),
        ("matmul", [(2, 3), (4, 5)], {}, "inner extents differ"),
        ("conv", [(1, 3, 5, 5), (4, 2, 3, 3)], CONV, "with 1 groups wants 2 input channels"),
        ("conv", [(1, 3, 5, 5), (4, 3, 7, 7)], CONV, "window of 7 .* does not fit extent 5"),
        ("conv", [(1, 3, 5, 5), (4, 3, 3, 3), (3,)], CONV, r"bias .* must have 4 elements"),
        ("conv", [(1, 3, 5, 5), (4, 3, 3)], CONV, "same rank"),
        ("reshape", [(2, 3)], {"shape": (7,)}, r"\(6 elements\) to \[7\]"),
        ("transpose", [(2, 3)], {"perm": (0, 0)}, "no permutation"),
        ("concat", [(2, 3), (3, 4)], {"axis": 0}, "cannot concatenate"),
        ("slice", [(4,)], {"starts": (2,), "sizes": (3,), "steps": (1,)}, "leaves extent 4"),
        ("softmax", [(2, 3)], {"axes": (2,)}, "are not distinct axes of rank 2"),
        ("pad", [(2, 3)], {"pads": ((0, -1), (0, 0)), "value": 0.0}, "negative"),
        ("expand", [(2, 3)], {"shape": (2, 4)}, "do not broadcast"),
    ],
)
def test_shape_errors_name_the_node(op: str, shapes: list, attrs: dict, message: str) -> None:
    b = GraphBuilder("wrong")
    operands = [b.input(f"x{k}", s) for k, s in enumerate(shapes)]
    with pytest.raises(ModelError, match=rf"node here \({op}\): .*{message}"):
        b.emit(op, operands, node="here", **attrs)


def test_different_dtypes_are_refused() -> None:
    b = GraphBuilder("dtypes")
    x, y = b.input("x", (2,)), b.input("y", (2,), "float64")
    with pytest.raises(ModelError, match="different dtypes float32, float64"):
        b.emit("add", [x, y])


def test_names_that_are_taken_get_a_number() -> None:
    b = GraphBuilder("names")
    x = b.input("x", (2,))
    assert [b.emit("relu", [x], "x"), b.emit("relu", [x], "x")] == ["x.1", "x.2"]
    g = b.finish(["x.2"])
    assert [n.name for n in g.nodes] == ["x.2"]


def test_a_node_is_printed_with_its_attributes() -> None:
    node = Node("n", "concat", ("a", "b"), ("c",), {"axis": 1})
    assert str(node) == "c = concat(a, b, axis=1)"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((7, 3, 2, 1, (1, 1)), 4),
        ((7, 3, 2, 1, (0, 0)), 3),
        ((8, 3, 2, 1, (0, 0)), 3),
        ((8, 3, 2, 1, (0, 0), True), 4),
        ((7, 2, 1, 3, (0, 0)), 4),
        # The last window would start in the padding after the data.
        ((4, 1, 3, 1, (0, 1), True), 2),
    ],
)
def test_window_extent(arguments: tuple, expected: int) -> None:
    assert window_extent(*arguments) == expected


def test_window_counts_with_and_without_padding() -> None:
    attrs = {
        "kernel": (3,),
        "strides": (2,),
        "dilations": (1,),
        "pads": ((1, 1),),
        "ceil_mode": True,
        "layout": "channels_first",
    }
    # Data 0..3 with one element of padding on both sides; the third window overhangs by one.
    counts = [
        window_counts({**attrs, "count_include_pad": flag}, [4], [3]).tolist()
        for flag in (False, True)
    ]
    assert counts == [[2, 3, 1], [3, 3, 2]]


def test_a_window_in_the_padding_averages_to_zero() -> None:
    b = GraphBuilder("corner")
    y = b.emit(
        "avg_pool",
        [b.input("x", (1, 1, 2))],
        kernel=(1,),
        strides=(1,),
        dilations=(1,),
        pads=((1, 0),),
        ceil_mode=False,
        count_include_pad=False,
        layout="channels_first",
    )
    assert evaluate(b.finish([y]), [np.ones((1, 1, 2), np.float32)])[0].tolist() == [[[0, 1, 1]]]


def test_sums_accumulate_in_float64() -> None:
    x = np.full((1, 1, 1, 1 << 20), 0.1, np.float32)
    total = OPERATORS["reduce_sum"].meaning({"axes": (3,), "keepdims": False}, (x,))
    assert total.dtype == np.float32
    np.testing.assert_allclose(total, np.float64(np.float32(0.1)) * (1 << 20), rtol=1e-7)


def test_a_dead_constant_is_not_kept_but_inputs_are() -> None:
    b = GraphBuilder("dead")
    x, _unused = b.input("x", (2,)), b.input("unused", (3,))
    b.constant(np.zeros(2, np.float32), "c")
    g = b.finish([b.emit("relu", [x])])
    assert g.inputs == ("x", "unused") and not g.constants
