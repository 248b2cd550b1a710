"""Each quantised product of a dynamically quantised model by itself, on a runtime's own values.

Differences of a rounding in one layer of such a network choose other integers in the next, so whole
outputs of two right runtimes are steps apart; single products, given the same floats, are not.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ansorlite as al

FLOAT = 1  # TensorProto.FLOAT


def largest_steps(model: Path, inputs: Sequence[Any]) -> tuple[int, float]:
    """(products, largest difference of one from onnxruntime's), in steps of 255 over its range."""
    import onnx
    import onnxruntime
    from onnx.utils import Extractor

    proto = onnx.shape_inference.infer_shapes(onnx.load(model))
    ends = _ends(proto)
    known = {v.name for v in proto.graph.output}
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    for name in sorted({n for pair in ends for n in pair} - known):
        shown.graph.output.append(onnx.helper.make_tensor_value_info(name, FLOAT, None))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3

    def session(made: Any) -> Any:
        return onnxruntime.InferenceSession(made.SerializeToString(), options)

    whole, worst = session(shown), 0.0
    feed = {i.name: x for i, x in zip(whole.get_inputs(), inputs, strict=True)}
    values = dict(zip((o.name for o in whole.get_outputs()), whole.run(None, feed), strict=True))
    extractor = Extractor(shown)
    for begin, end in ends:
        data = values[begin]
        part = extractor.extract_model([begin], [end])
        given = onnx.helper.make_tensor_value_info(begin, FLOAT, data.shape)
        part.graph.input[0].CopyFrom(given)
        wanted = session(part).run(None, {begin: data})[0]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "product.onnx"
            path.write_bytes(part.SerializeToString())
            made = al.auto_schedule(al.load_onnx(path), n_trials=0, progress=False)(data)
        step = float(wanted.max() - wanted.min()) / 255
        worst = max(worst, float(np.abs(np.reshape(made, wanted.shape) - wanted).max()) / step)
    return len(ends), worst


def _ends(proto: Any) -> list[tuple[str, str]]:
    """(float data, scaled float result) of each DynamicQuantizeLinear with a MatMulInteger."""
    makers = {o: n for n in proto.graph.node for o in n.output}
    constants = {t.name for t in proto.graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    ends = []
    for node in proto.graph.node:
        if node.op_type != "MatMulInteger":
            continue
        at = node.output[0]
        while len(readers.get(at, [])) == 1:
            (reader,) = readers[at]
            bias = reader.op_type == "Add" and constants & {*reader.input}
            if reader.op_type not in ("Cast", "Mul") and not bias:
                break
            at = reader.output[0]
        ends.append((makers[node.input[0]].input[0], at))
    return ends
