"""This project's contender for networks: the model file, compiled from a tuning log."""

from collections.abc import Callable
from typing import Any


def prepare(spec: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """The call of {model, log} on random data, and how many kernels it runs."""
    from ansorlite.graph.inputs import random_inputs
    from ansorlite.graph.onnx.load import load_onnx
    from ansorlite.pipeline import auto_schedule

    graph = load_onnx(spec["model"])
    module = auto_schedule(graph, n_trials=0, log=spec["log"], progress=False)
    inputs = random_inputs(graph)
    return lambda: module(*inputs), f"{len(module.partition.subgraphs)} kernels"
