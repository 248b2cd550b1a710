"""OpenVINO: a model file on the CPU. In: {model, threads, precision}.

Without `precision` the plugin chooses: bfloat16 on processors that have it, which is no float32.
"""

import json
import sys
from collections.abc import Callable
from typing import Any


def _compiled(options: dict[str, Any]) -> Any:
    import openvino

    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": options["threads"]}
    if "precision" in options:
        hints["INFERENCE_PRECISION_HINT"] = options["precision"]
    return openvino.Core().compile_model(options["model"], "CPU", hints)


def main() -> None:
    """OPTIONS as JSON, with "inputs" and "outputs", files of numpy arrays: what a call gives."""
    import numpy as np

    options = json.loads(sys.argv[1])
    with np.load(options["inputs"]) as given:
        data = [given[name] for name in given.files]
    results = _compiled(options).create_infer_request().infer(data)
    np.savez(options["outputs"], *[results[k] for k in range(len(results))])


def prepare(options: dict[str, Any]) -> tuple[Callable[[], Any], str]:
    """(the call on random data, the version and the precision)."""
    import openvino

    from bench.peers import random_inputs

    compiled = _compiled(options)
    request = compiled.create_infer_request()
    integers = [not i.element_type.is_real() for i in compiled.inputs]
    data = random_inputs([list(i.shape) for i in compiled.inputs], integers)
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    version = openvino.__version__.partition("-")[0]
    return lambda: request.infer(data), f"openvino {version} {precision}"


if __name__ == "__main__":
    main()
