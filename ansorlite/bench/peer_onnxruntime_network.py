"""onnxruntime as a peer: a model file with all of its graph optimisations."""

from collections.abc import Callable
from typing import Any


def session(model: str, threads: int) -> Any:
    """An inference session on the CPU with so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def prepare(spec: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """The call of {model, threads} on random data, and the version."""
    import numpy as np
    import onnxruntime

    runtime = session(spec["model"], spec["threads"])
    rng = np.random.default_rng(0)
    feed = {}
    for i in runtime.get_inputs():
        if "int" in i.type:
            feed[i.name] = rng.integers(0, 1000, i.shape).astype(np.int64)
        else:
            feed[i.name] = rng.standard_normal(i.shape).astype(np.float32)
    return lambda: runtime.run(None, feed), f"onnxruntime {onnxruntime.__version__}"
