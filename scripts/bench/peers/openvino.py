"""OpenVINO: a model file on the CPU. In: {model, threads, precision}.

Without `precision` the plugin chooses: bfloat16 on processors that have it, which is no float32.
"""

from collections.abc import Callable
from typing import Any


def prepare(options: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """(the call on random data, the version and the precision)."""
    import openvino

    from bench.peers import random_inputs

    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": options["threads"]}
    if "precision" in options:
        hints["INFERENCE_PRECISION_HINT"] = options["precision"]
    compiled = openvino.Core().compile_model(options["model"], "CPU", hints)
    request = compiled.create_infer_request()
    integers = [not i.element_type.is_real() for i in compiled.inputs]
    data = random_inputs([list(i.shape) for i in compiled.inputs], integers)
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    version = openvino.__version__.partition("-")[0]
    return lambda: request.infer(data), f"openvino {version} {precision}"
