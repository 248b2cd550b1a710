"""The nodes of an ONNX file as a PyTorch module, for the networks of `bench.networks`.

In: the path of a model file. Out: the module in evaluation mode and random inputs. Needs the
packages torch, numpy and onnx.
"""

from collections.abc import Callable
from typing import Any


def network(path: str) -> tuple[Any, list[Any]]:
    """(module, random inputs) of an ONNX file."""
    import numpy as np
    import onnx
    import torch

    model = onnx.load(path)
    graph, rng = model.graph, np.random.default_rng(0)
    constants = {
        t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in graph.initializer
    }
    attrs = [{a.name: onnx.helper.get_attribute_value(a) for a in n.attribute} for n in graph.node]

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.places = {}
            for k, (name, value) in enumerate(constants.items()):
                self.register_buffer(f"c{k}", value)
                self.places[name] = f"c{k}"
            self.eval()

        def forward(self, *xs: Any) -> Any:
            values = dict(zip(names, xs, strict=True))

            def value(name: str) -> Any:
                return getattr(self, self.places[name]) if name in self.places else values[name]

            for node, given in zip(graph.node, attrs, strict=True):
                operands = [value(v) if v else None for v in node.input]
                values[node.output[0]] = OPERATORS[node.op_type](given, *operands)
            return values[graph.output[0].name]

    names, inputs = [], []
    for i in graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        names.append(i.name)
        if i.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            inputs.append(torch.from_numpy(rng.integers(0, 1000, shape)))
        else:
            inputs.append(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)))
    return Network(), inputs


def _conv(a: dict[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    import torch.nn.functional as f

    rank = x.dim() - 2
    pads = a.get("pads", [0] * 2 * rank)
    op = (f.conv1d, f.conv2d, f.conv3d)[rank - 1]
    if pads[:rank] != pads[rank:]:
        raise ValueError(f"padding {pads} is not symmetric")
    return op(x, w, b, tuple(a["strides"]), tuple(pads[:rank]), tuple(a["dilations"]), a["group"])


def _conv_transpose(a: dict[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    import torch.nn.functional as f

    rank = x.dim() - 2
    op = (f.conv_transpose1d, f.conv_transpose2d, f.conv_transpose3d)[rank - 1]
    extra = tuple(a.get("output_padding", [0] * rank))
    return op(x, w, b, tuple(a["strides"]), tuple(a["pads"][:rank]), extra)


def _batch_norm(a: dict[str, Any], x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    import torch.nn.functional as f

    return f.batch_norm(x, mean, var, scale, bias, False, 0.0, a["epsilon"])


def _max_pool(a: dict[str, Any], x: Any) -> Any:
    import torch.nn.functional as f

    rank = x.dim() - 2
    op = (f.max_pool1d, f.max_pool2d, f.max_pool3d)[rank - 1]
    return op(x, a["kernel_shape"], a["strides"], a["pads"][:rank], a["dilations"])


def _gemm(a: dict[str, Any], x: Any, w: Any, c: Any = None) -> Any:
    import torch.nn.functional as f

    if a.get("transA", 0) or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0:
        raise ValueError(f"Gemm with {a}")
    return f.linear(x, w if a.get("transB", 0) else w.t(), c)


def _global_mean(a: dict[str, Any], x: Any) -> Any:
    return x.mean(dim=tuple(range(2, x.dim())), keepdim=True)


def _softmax(a: dict[str, Any], x: Any) -> Any:
    return x.softmax(a["axis"])


def _gather(a: dict[str, Any], x: Any, index: Any) -> Any:
    return x.index_select(a["axis"], index) if index.dim() == 1 else x[index]


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": lambda a, x, y: x + y,
    "BatchNormalization": _batch_norm,
    "Clip": lambda a, x, low, high: x.clamp(float(low), float(high)),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": lambda a, x, y: x / y,
    "Erf": lambda a, x: x.erf(),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_mean,
    "MatMul": lambda a, x, y: x @ y,
    "MaxPool": _max_pool,
    "Mul": lambda a, x, y: x * y,
    "Pow": lambda a, x, y: x.pow(float(y)),
    "ReduceMean": lambda a, x: x.mean(dim=tuple(a["axes"]), keepdim=bool(a["keepdims"])),
    "Relu": lambda a, x: x.relu(),
    "Reshape": lambda a, x, shape: x.reshape(tuple(int(n) for n in shape)),
    "Softmax": _softmax,
    "Sqrt": lambda a, x: x.sqrt(),
    "Sub": lambda a, x, y: x - y,
    "Tanh": lambda a, x: x.tanh(),
    "Transpose": lambda a, x: x.permute(tuple(a["perm"])),
}
