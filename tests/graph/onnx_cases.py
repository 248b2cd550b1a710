"""Small ONNX models of one operator, and the check that all stages agree with onnx's reference."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import evaluate_partition, partition
from ansorlite.graph.passes import optimize


@dataclass(frozen=True)
class Case:
    """One node: `inputs` are shapes of data, `constants` arrays by operand position."""

    op: str
    inputs: tuple[tuple[int, ...], ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    positive: bool = False
    note: str = ""
    then: str = ""  # makes floats of an integer or a condition: Cast, Where, or logic of signs

    def __str__(self) -> str:
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op}-{self.opset}-{self.note or attrs}".replace(" ", "")


def model_of(case: Case) -> onnx.ModelProto:
    count = len(case.inputs) + len(case.constants)
    data = iter(range(len(case.inputs)))
    names = [
        ("" if case.constants[k] is None else f"c{k}") if k in case.constants else f"x{next(data)}"
        for k in range(count)
    ]
    infos = [
        onnx.helper.make_tensor_value_info(f"x{k}", onnx.TensorProto.FLOAT, shape)
        for k, shape in enumerate(case.inputs)
    ]
    outs = [f"y{k}" for k in range(case.outputs)]
    results = [onnx.helper.make_tensor_value_info(o, onnx.TensorProto.FLOAT, None) for o in outs]
    given = {f"c{k}": np.asarray(v) for k, v in case.constants.items() if v is not None}
    init = [onnx.numpy_helper.from_array(v, k) for k, v in given.items()]
    nodes = [onnx.helper.make_node(case.op, names, outs, "the_node", **case.attrs)]
    if case.then:
        init.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
        nodes = _as_floats(case, names)
    graph = onnx.helper.make_graph(nodes, "case", infos, results, init)
    opset = onnx.helper.make_opsetid("", case.opset)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def _as_floats(case: Case, names: list[str]) -> list[onnx.NodeProto]:
    """The node with conditions as operands or results, between nodes of floats."""
    make, logic = onnx.helper.make_node, case.then == case.op
    nodes = []
    operands = names[:1] if case.op == "Not" else names
    for name in operands if logic else ():
        nodes.append(make("Greater", [name, "half"], [f"{name}.sign"]))
    inputs = [f"{v}.sign" for v in operands] if logic else names
    nodes.append(make(case.op, inputs, ["t"], "the_node", **case.attrs))
    if case.then == "Where":
        return [*nodes, make("Where", ["t", names[0], "half"], ["y0"])]
    return [*nodes, make("Cast", ["t"], ["y0"], to=onnx.TensorProto.FLOAT)]


def random_inputs(shapes: Any, seed: int = 0, positive: bool = False) -> list[Any]:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    return [np.abs(a) + np.float32(0.1) for a in arrays] if positive else arrays


def check_stages(
    model: onnx.ModelProto, inputs: list[Any], expected: list[Any] | None = None
) -> None:
    """Import, passes and partition give what onnx's reference evaluator gives."""
    if expected is None:
        names = [v.name for v in model.graph.input]
        expected = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    graph = load_onnx(model)
    graph.verify()
    best = optimize(graph)
    stages = {
        "import": evaluate(graph, inputs),
        "passes": evaluate(best, inputs),
        "partition": evaluate_partition(partition(best), inputs),
    }
    for stage, results in stages.items():
        for got, want in zip(results, expected, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape, (stage, got.shape)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=stage)
