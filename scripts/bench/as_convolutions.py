"""ONNX models whose transposed convolutions are convolutions of data with zeros put between.

In: a ModelProto with static shapes and constant weights. Out: one that computes the same. A runtime
that has no transposed convolution of a precision has a convolution of it: so its error is found.
"""

from typing import Any

import numpy as np

from ansorlite.errors import ModelError


def as_convolutions(model: Any) -> Any | None:
    """The model without ConvTranspose, a new ModelProto; None where it has none.

    Raises ModelError for one with groups, dilations or padding of more than the kernel allows.
    """
    import onnx
    from onnx import helper, numpy_helper

    if not any(n.op_type == "ConvTranspose" for n in model.graph.node):
        return None
    model = onnx.shape_inference.infer_shapes(model)
    values = [*model.graph.value_info, *model.graph.input]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.node[:]

    def constant(name: str, array: Any) -> str:
        out.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    for node in model.graph.node:
        if node.op_type != "ConvTranspose":
            out.graph.node.append(node)
            continue
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        weight, name = weights[node.input[1]], node.output[0]
        kernel = weight.shape[2:]
        rank = len(kernel)
        strides = attrs.get("strides", [1] * rank)
        pads = attrs.get("pads", [0] * (2 * rank))
        more = attrs.get("output_padding", [0] * rank)
        lo = [k - 1 - p for k, p in zip(kernel, pads[:rank], strict=True)]
        steps = zip(kernel, pads[rank:], more, strides, strict=True)
        hi = [k - 1 - p + o - (s - 1) for k, p, o, s in steps]  # s - 1 zeros follow the last
        if attrs.get("group", 1) != 1 or {*attrs.get("dilations", [1])} != {1} or min(lo + hi) < 0:
            raise ModelError(f"{node.name}: no convolution of data with zeros between is written")
        batch, channels, *extents = shapes[node.input[0]]
        apart = [batch, channels, *(e for x in extents for e in (x, 1))]
        widths = [0, 0, *(w for s in strides for w in (0, s - 1))]
        whole = [batch, channels, *(x * s for x, s in zip(extents, strides, strict=True))]
        steps_of_data = (
            ("Reshape", "apart", apart),
            ("Pad", "zeros", [0] * len(widths) + widths),
            ("Reshape", "whole", whole),
        )
        data = node.input[0]
        for op, step, how in steps_of_data:
            wanted = constant(f"{name}.{step}.how", np.array(how, np.int64))
            out.graph.node.append(helper.make_node(op, [data, wanted], [f"{name}.{step}"]))
            data = f"{name}.{step}"
        turned = np.flip(weight.swapaxes(0, 1), tuple(range(2, 2 + rank)))
        inputs = [data, constant(f"{name}.turned", turned), *node.input[2:]]
        conv = helper.make_node(
            "Conv", inputs, list(node.output), kernel_shape=kernel, pads=[*lo, *hi]
        )
        out.graph.node.append(conv)
    used = {i for n in out.graph.node for i in n.input}
    kept = [t for t in out.graph.initializer if t.name in used]
    del out.graph.initializer[:]
    out.graph.initializer.extend(kept)
    return out
