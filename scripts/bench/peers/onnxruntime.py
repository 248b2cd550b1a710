"""onnxruntime: a model file with all of its graph optimisations. In: {model, threads}."""

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


def prepare(options: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """(the call on random data, the version)."""
    import onnxruntime

    from bench.peers import random_inputs

    runtime = session(options["model"], options["threads"])
    known = runtime.get_inputs()
    data = random_inputs([i.shape for i in known], ["int" in i.type for i in known])
    feed = {i.name: x for i, x in zip(known, data, strict=True)}
    return lambda: runtime.run(None, feed), f"onnxruntime {onnxruntime.__version__}"
