"""The light models of the onnx wheel, natively, against stored outputs and onnxruntime.

Claim: after `al.load_onnx` and `al.auto_schedule`, by default without any measurement
(`n_trials=0`, about five minutes for all nine), every model gives the output stored beside it
(input arange(n)/n), and with random weights it agrees with onnxruntime (extra `bench`). Writes
results/light_models.jsonl.
Usage: python scripts/light_models.py [--timeout 180] [--models resnet50,squeezenet]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

import ansorlite as al
from bench.experiment import RESULTS, Experiment, Row, exit_status
from bench.serve import timed

CALLS_S = 1.0  # of calls of a network
MODELS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
MOST_ERROR = 1e-3
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
Array = npt.NDArray[Any]


def stored(model: str) -> tuple[onnx.ModelProto, Array, Array]:
    """(model, its input, the expected output)."""
    proto = onnx.load(DATA / f"light_{model}.onnx")
    tensor = onnx.TensorProto()
    tensor.ParseFromString((DATA / f"light_{model}_output_0.pb").read_bytes())
    return proto, picture(proto), numpy_helper.to_array(tensor)


def picture(proto: onnx.ModelProto) -> Array:
    """arange(n) / n in the shape of the graph input that is no initializer."""
    known = {i.name for i in proto.graph.initializer}
    value = next(i for i in proto.graph.input if i.name not in known)
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    n = int(np.prod(shape))
    return (np.arange(n, dtype=np.float32) / n).reshape(shape)


def with_random_weights(proto: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The model with every ConstantOfShape weight replaced by random numbers of fitting scale."""
    rng = np.random.default_rng(seed)
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    shapes = {i.name: numpy_helper.to_array(i) for i in out.graph.initializer}
    positive = {n.input[4] for n in out.graph.node if n.op_type == "BatchNormalization"}
    kept = []
    for node in out.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(n) for n in shapes[node.input[0]])
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        scale = np.sqrt(2 / fan_in) if len(shape) > 1 else 0.1
        x = rng.standard_normal(shape) * scale
        if len(shape) == 1:
            x = x + 1 if node.output[0] in positive else x + 0.5
        x = np.abs(x) if node.output[0] in positive else x
        tensor = numpy_helper.from_array(x.astype(np.float32), node.output[0])
        out.graph.initializer.append(tensor)
    del out.graph.node[:]
    out.graph.node.extend(kept)
    return out


def onnxruntime_output(proto: onnx.ModelProto, x: Array) -> Array:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no word on what it leaves out
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    known = {i.name for i in proto.graph.initializer}
    name = next(i.name for i in session.get_inputs() if i.name not in known)
    return np.asarray(session.run(None, {name: x})[0])


def relative_error(got: Array, expected: Array) -> float:
    return float(np.abs(got.reshape(expected.shape) - expected).max() / np.abs(expected).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeout", type=float, help="seconds of tuning a network (none)")
    parser.add_argument("--models", default=",".join(MODELS), help="names, comma separated")
    args = parser.parse_args()
    experiment = Experiment[Row](
        RESULTS / "light_models.jsonl", key=lambda r: (r["model"], r["weights"]), line=str
    )
    right = True
    for name in args.models.split(","):
        for row in rows_of(name, args.timeout):
            experiment.add(row)
            right = right and row["relative_error"] < MOST_ERROR
    return 0 if right else 1


def rows_of(name: str, timeout: float | None) -> Iterator[Row]:
    """With the stored weights, all of which are equal, and with random ones."""
    proto, x, expected = stored(name)
    random = with_random_weights(proto)
    cases = [("stored", proto, expected), ("random", random, onnxruntime_output(random, x))]
    with tempfile.TemporaryDirectory() as folder:
        for kind, model, wanted in cases:
            # The second case has the same tasks: it continues the first one's log.
            budget: dict[str, Any] = {"timeout": timeout} if timeout else {"n_trials": 0}
            module = al.auto_schedule(
                al.load_onnx(model), log=Path(folder) / "log.jsonl", progress=False, **budget
            )
            yield {
                "model": name,
                "weights": kind,
                "timeout_s": timeout or 0,
                "relative_error": relative_error(np.asarray(module(x)), wanted),
                "latency_s": timed(partial(module, x), CALLS_S)[0],
                "date": time.strftime("%Y-%m-%d"),
            }


if __name__ == "__main__":
    sys.exit(exit_status(main))
