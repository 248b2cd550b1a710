"""Tunes two light models of the onnx wheel and compares outputs (about 13 minutes for both).

Claim: after `al.load_onnx` and `al.auto_schedule(timeout=180)`, light_resnet50 and light_squeezenet
give the outputs stored beside them (input arange(n)/n), and with random weights they agree with
onnxruntime (extra `bench`). Writes results/light_models.jsonl.
Usage: python scripts/light_models.py [--timeout 180] [--models resnet50,squeezenet]
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

import ansorlite as al

RESULTS = Path(__file__).parent.parent / "results" / "light_models.jsonl"
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

    session = onnxruntime.InferenceSession(proto.SerializeToString())
    known = {i.name for i in proto.graph.initializer}
    name = next(i.name for i in session.get_inputs() if i.name not in known)
    return np.asarray(session.run(None, {name: x})[0])


def relative_error(got: Array, expected: Array) -> float:
    return float(np.abs(got.reshape(expected.shape) - expected).max() / np.abs(expected).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds of tuning a network")
    parser.add_argument("--models", default="resnet50,squeezenet", help="names, comma separated")
    args = parser.parse_args()
    worst = 0.0
    RESULTS.parent.mkdir(exist_ok=True)
    for name in args.models.split(","):
        proto, x, expected = stored(name)
        random = with_random_weights(proto)
        cases = [("stored", proto, expected), ("random", random, onnxruntime_output(random, x))]
        log = f"light-{name}.jsonl"
        for kind, model, wanted in cases:
            # The second case has the same tasks: it continues the first one's log.
            module = al.auto_schedule(al.load_onnx(model), timeout=args.timeout, log=log)
            error = relative_error(np.asarray(module(x)), wanted)
            worst = max(worst, error)
            times = []
            for _ in range(20):
                began = time.perf_counter()
                module(x)
                times.append(time.perf_counter() - began)
            row = {
                "model": name,
                "weights": kind,
                "timeout_s": args.timeout,
                "relative_error": error,
                "latency_s": float(np.median(times)),
                "date": time.strftime("%Y-%m-%d"),
            }
            with RESULTS.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(row)
        Path(log).unlink()
    return 0 if worst < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
