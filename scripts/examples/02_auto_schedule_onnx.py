"""Auto-schedule an ONNX file and compare its outputs with those of onnx's reference.

Usage: python scripts/examples/02_auto_schedule_onnx.py [model.onnx] (needs the extra `onnx`;
without a file a small network is made: some fifteen seconds). Inputs are random float32 arrays.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ansorlite as al


def small_network(path: Path) -> Path:
    """Convolution, ReLU, global average pool, dense layer: x[1, 3, 32, 32] -> logits[1, 10]."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 3, 3, 3)), "d": rng.standard_normal((16, 10))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["logits"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])
    stored = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "small", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def main(folder: Path) -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else small_network(folder / "small.onnx")
    network = al.load_onnx(path)

    # Each subgraph (a convolution with the operators fused into it, say) becomes a task. Trials go
    # to the task that promises the most for the network. A real budget is timeout=60 (seconds) and
    # more, with log="file.jsonl", so that a later run continues.
    module = al.auto_schedule(network, n_trials=12, seed=0, progress=False)
    print(f"{module.report}\n")

    # The module: a function of numpy arrays, in the order of the ONNX file's inputs.
    rng = np.random.default_rng(1)
    inputs = {n: rng.standard_normal(network.types[n].shape, np.float32) for n in network.inputs}
    found = module(*inputs.values())
    (expected,) = ReferenceEvaluator(str(path)).run(None, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    print("agrees with onnx's reference; largest difference", np.abs(found - expected).max())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
