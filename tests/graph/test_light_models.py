"""Networks of the onnx wheel with expected outputs: import, passes and numpy meaning agree.

The weights of most light models make all classes equal; those of densenet121 do not.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
QUICK = ("resnet50", "squeezenet")
LONG = (
    "densenet121",
    "shufflenet",
    "bvlc_alexnet",
    "inception_v1",
    "inception_v2",
    "vgg19",
    "zfnet512",
)


def check(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    if not path.is_file():
        pytest.skip(f"this onnx has no {path.name}")
    graph = load_onnx(path)
    (shape,) = (graph.types[v].shape for v in graph.inputs)
    n = int(np.prod(shape))
    x = (np.arange(n) / n).reshape(shape).astype(np.float32)
    expected = onnx.TensorProto()
    expected.ParseFromString((LIGHT / f"light_{name}_output_0.pb").read_bytes())
    best = optimize(graph)
    want = onnx.numpy_helper.to_array(expected)
    np.testing.assert_allclose(evaluate(best, [x])[0], want, rtol=1e-3, atol=1e-6)
    assert sum(n.op == "transpose" for n in best.nodes) <= 1 + 16 * (name == "shufflenet")
    parts = partition(best)
    assert len(tasks(parts)) < len(parts.subgraphs) or len(parts.subgraphs) < 16


@pytest.mark.parametrize("name", QUICK)
def test_light_model(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_more_light_models(name: str) -> None:
    check(name)
