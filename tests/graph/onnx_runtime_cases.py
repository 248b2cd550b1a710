"""Models whose results onnxruntime knows, and the check that all levels agree with it.

Levels: the imported graph, the passes, the partition and native code of each kernel.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_backend import compiled

from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import Partition, partition
from ansorlite.graph.passes import optimize
from ansorlite.target import Target

HOST = Target.detect()
F, U8, I8, U16, I16, I32 = (TensorProto.DataType.Value(k) for k in (
    "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32"
))  # fmt: skip
F16, BF16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
Arrays = Mapping[str, Any]
# Does onnxruntime add pairs of products of bytes in 16 bits, where large ones saturate? It does so
# on x86 without an instruction for sums of four.
SATURATES = HOST.arch == "x86_64" and not re.search(r"\+avx(512)?vnni", HOST.features)


def weights(bytes_: Any) -> Any:
    """Signed bytes; of seven bits where onnxruntime would else be wrong."""
    return bytes_ // 2 if SATURATES else bytes_


def type_of(array: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype))


def model_of(
    nodes: list[Any],
    inputs: Arrays,
    outputs: Mapping[str, int],
    constants: Arrays | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of nodes; inputs and constants are arrays by name, outputs have a dtype."""
    given = {k: np.asarray(v) for k, v in (constants or {}).items()}
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(k, type_of(x), x.shape) for k, x in inputs.items()],
        [helper.make_tensor_value_info(k, t, None) for k, t in outputs.items()],
        [numpy_helper.from_array(v, k) for k, v in given.items()],
    )
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


def expected(model: onnx.ModelProto, inputs: Arrays) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = ["CPUExecutionProvider"]
    session = ort.InferenceSession(model.SerializeToString(), options, providers=names)
    return list(session.run(None, dict(inputs)))


def run_kernels(parts: Partition, inputs: list[Any]) -> tuple[Any, ...]:
    """The outputs by native code of each kernel's plain schedule."""
    out = compiled(parts, HOST)(*inputs)
    return out if isinstance(out, tuple) else (out,)


def check(
    model: onnx.ModelProto, inputs: Arrays, wanted: list[Any], steps: int = 0, rtol: float = 0.0
) -> None:
    """All levels give what is wanted: to the bit, within steps of integers or a relative error."""
    graph = load_onnx(model)
    arrays = [inputs[v] for v in graph.inputs]
    best = optimize(graph)
    levels = {
        "import": evaluate(graph, arrays),
        "passes": evaluate(best, arrays),
        "native": run_kernels(partition(best), arrays),
    }
    for level, results in levels.items():
        for got, want in zip(results, wanted, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), level
            if not steps and not rtol:
                np.testing.assert_array_equal(got, want, err_msg=level)
                continue
            wide = got.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(*wide, rtol=rtol, atol=steps or rtol, err_msg=level)
