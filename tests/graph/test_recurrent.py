"""LSTM, GRU and RNN: import, passes and partition against onnxruntime, and native loops.

A table of variants of ONNX's operators; the compiled module is called twice, saved and loaded.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx_backend import compiled
from onnx_cases import check_stages

import ansorlite as al
from ansorlite.errors import ModelError
from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.target import Target

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FLOAT, INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32


class Variant(NamedTuple):
    """One recurrent node; `lens` are constant lengths, or of `ask` those of an input."""

    op: str
    attrs: Mapping[str, Any] = {}
    times: int = 5
    batch: int = 2
    hidden: int = 4
    bias: bool = True
    initial: bool = False
    peepholes: bool = False
    lens: tuple[int, ...] = ()
    ask: bool = False
    weights_given: bool = False

    def __str__(self) -> str:
        told = [f"{k}={v}" for k, v in self._asdict().items() if v not in ({}, (), False)]
        return ",".join(told).replace(" ", "")


def model_of(v: Variant, wanted: tuple[int, ...] = (0, 1, 2)) -> tuple[onnx.ModelProto, Any]:
    """The model and its inputs; `wanted` are the outputs that it has."""
    rng = np.random.default_rng(0)
    info, features = onnx.helper.make_tensor_value_info, 3
    directions = 2 if v.attrs.get("direction") == "bidirectional" else 1
    first = bool(v.attrs.get("layout"))
    gates, h = GATES[v.op] * v.hidden, v.hidden
    state = (v.batch, directions, h) if first else (directions, v.batch, h)
    x = (v.batch, v.times, features) if first else (v.times, v.batch, features)
    shapes: dict[str, tuple[int, ...]] = {"x": x, "w": (directions, gates, features)}
    shapes["r"] = (directions, gates, h)
    shapes |= {"b": (directions, 2 * gates)} if v.bias else {}
    shapes |= {"h0": state} if v.initial else {}
    shapes |= {"c0": state} if v.initial and v.op == "LSTM" else {}
    shapes |= {"p": (directions, 3 * h)} if v.peepholes else {}
    arrays: dict[str, Any] = {
        k: (rng.standard_normal(s) * (2 if k == "x" else 0.5)).astype(np.float32)
        for k, s in shapes.items()
    }
    if v.lens:
        arrays["lens"] = np.asarray(v.lens, np.int32)
    fed = ["x", "h0", "c0", *(["w", "r", "b"] if v.weights_given else ())]
    fed += ["lens"] if v.ask else []
    names = [k if k in arrays else "" for k in ("x", "w", "r", "b", "lens", "h0", "c0", "p")]
    while not names[-1]:
        names.pop()
    count = 3 if v.op == "LSTM" else 2
    outs = [f"y{k}" if k in wanted else "" for k in range(count)]
    node = onnx.helper.make_node(v.op, names, outs, "the_node", hidden_size=h, **v.attrs)
    graph = onnx.helper.make_graph(
        [node],
        "recurrent",
        [info(k, INT32 if k == "lens" else FLOAT, a.shape) for k, a in arrays.items() if k in fed],
        [info(o, FLOAT, None) for o in outs if o],
        [onnx.numpy_helper.from_array(a, k) for k, a in arrays.items() if k not in fed],
    )
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return model, {k: a for k, a in arrays.items() if k in fed}


def expected(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def check(model: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    check_stages(model, list(feeds.values()), expected(model, feeds))


TWO = {"direction": "bidirectional"}
BACK = {"direction": "reverse"}
KINDS = ("Relu", "LeakyRelu", "HardSigmoid", "Elu", "Softsign", "Affine", "ScaledTanh")
NUMBERS = {"activation_alpha": [0.3, 0.2, 0.5], "activation_beta": [0.6, 0.4, 0.7]}
VARIANTS = [
    *(Variant(op, d, initial=True) for op in GATES for d in ({}, BACK, TWO)),
    *(Variant(op, d, batch=1) for op in GATES for d in ({}, BACK, TWO)),
    *(Variant(op, d, lens=(2, 5), initial=True) for op in GATES for d in ({}, BACK, TWO)),
    *(Variant(op, TWO, lens=(1, 4, 5), batch=3, ask=True) for op in GATES),
    *(Variant(op, TWO, times=1, initial=True) for op in GATES),
    *(Variant(op, times=2, hidden=1, bias=False) for op in GATES),
    *(Variant(op, {"clip": 0.3}) for op in GATES),
    *(Variant(op, lens=(0, 3), initial=True) for op in GATES),
    *(Variant(op, TWO, weights_given=True) for op in GATES),
    *(Variant("RNN", {"activations": [k], **NUMBERS}) for k in (*KINDS, "ThresholdedRelu")),
    Variant("RNN", {"activations": ["LeakyRelu"]}),
    Variant("RNN", {"activations": ["HardSigmoid"]}),
    Variant("RNN", {"activations": ["Elu"]}),
    Variant("GRU", {"activations": ["HardSigmoid", "Relu"], **NUMBERS}),
    *(Variant("GRU", {"linear_before_reset": 1, **d}, initial=True) for d in ({}, TWO)),
    *(Variant("GRU", {"linear_before_reset": 1}, batch=b, bias=b > 1) for b in (1, 2)),
    *(Variant("GRU", {"linear_before_reset": k, "clip": 0.4, **TWO}) for k in (0, 1)),
    *(Variant("LSTM", d, peepholes=True, batch=b) for d in ({}, TWO) for b in (1, 2)),
    Variant("LSTM", {"input_forget": 1}, peepholes=True),
    Variant("LSTM", {"clip": 0.2}, peepholes=True),
    Variant(
        "LSTM",
        {
            "activations": ["HardSigmoid", "LeakyRelu", "Tanh", "Sigmoid", "ScaledTanh", "Elu"],
            "activation_alpha": [0.3, 0.2, 0.5, 0.7],
            "activation_beta": [0.4, 0.9],
            **TWO,
        },
    ),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_variants_agree_with_onnxruntime(variant: Variant) -> None:
    check(*model_of(variant))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 2)])
def test_outputs_may_be_left_out(op: str, wanted: tuple[int, ...]) -> None:
    check(*model_of(Variant(op, TWO), wanted))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("attrs", [{}, TWO], ids=str)
def test_layout_1_is_layout_0_transposed(op: str, attrs: Mapping[str, Any]) -> None:
    """onnxruntime has no layout 1."""
    first, feeds = model_of(Variant(op, {**attrs, "layout": 1}, initial=True))
    last, _ = model_of(Variant(op, attrs, initial=True))
    order = {"x": (1, 0, 2), "h0": (1, 0, 2), "c0": (1, 0, 2)}
    moved = {k: np.ascontiguousarray(x.transpose(order[k])) for k, x in feeds.items()}
    y, *ends = expected(last, moved)
    wanted = [y.transpose(2, 0, 1, 3), *(e.transpose(1, 0, 2) for e in ends)]
    check_stages(first, list(feeds.values()), wanted)


NATIVE = [
    Variant("LSTM", batch=1, initial=True),
    Variant("LSTM", TWO, times=2),
    Variant("GRU", {**BACK}, times=7, lens=(3, 7), ask=True),
    Variant("RNN", times=3),
]


@pytest.mark.parametrize("variant", NATIVE, ids=str)
def test_native_loops(variant: Variant, tmp_path: Path) -> None:
    model, feeds = model_of(variant)
    wanted, inputs = expected(model, feeds), list(feeds.values())
    module = compiled(partition(optimize(load_onnx(model))), Target.detect())

    def holds(call: Any) -> None:
        for got, want in zip(call(*inputs), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    holds(module)
    module.timed_calls(inputs)  # leaves the pointers where they were
    holds(module)
    saved = al.load_module(module.save(tmp_path / "net"))
    holds(saved)
    holds(saved)


def test_a_step_is_three_kernels_however_many_there_are() -> None:
    """Of an LSTM: the product with the state, the cell, the output; tasks and calls do not grow."""
    few, many = (
        partition(optimize(load_onnx(model_of(Variant("LSTM", times=t))[0]))) for t in (3, 300)
    )
    assert len(few.subgraphs) == len(many.subgraphs) == 2 + 2 * 3
    assert [s.times for s in many.subgraphs[-3:]] == [299] * 3
    assert [t.weight for t in tasks(many)] == [1, 1, 300, 300, 300]
    assert sum(x.nbytes for x in many.graph.constants.values()) == sum(
        x.nbytes for x in few.graph.constants.values()
    )


@pytest.mark.parametrize("times", [0, 5])
def test_nothing_to_do(times: int) -> None:
    """No steps, or no sequences: the states are what they were."""
    model, feeds = model_of(Variant("LSTM", times=times, batch=2 * (times == 0), initial=True))
    y, h, c = evaluate(load_onnx(model), list(feeds.values()))
    assert y.size == 0 and y.shape[0] == times
    np.testing.assert_array_equal(h, feeds["h0"])
    np.testing.assert_array_equal(c, feeds["c0"])


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"activations": ["Tanh", "Tanh"]}, "2 activations for 1 directions of 1 each"),
        ({"activations": ["Swish"]}, "activation 'Swish' is none of"),
        ({"activations": ["Affine"]}, "Affine needs its own activation_alpha"),
        ({"direction": "sideways"}, "direction 'sideways' is none of"),
        ({"layout": 2}, "layout 2"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_named(attrs: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as error:
        load_onnx(model_of(Variant("RNN", attrs))[0])
    assert str(error.value).startswith("node the_node (RNN)")


def test_the_graph_prints_the_body_of_its_loop() -> None:
    text = str(load_onnx(model_of(Variant("RNN"))[0]))
    assert "= loop(" in text and "    graph step of the_node(state0: float32[2, 4]" in text
