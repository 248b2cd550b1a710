"""`READERS`: one reader for each aten operator. A new operator is a line here.

A reader gets the `Context` and all arguments of the operator's schema in order, defaults included,
emits nodes and returns its value, or a tuple where the operator has several results. What has no
reader is decomposed by torch first; what has one is left whole. Nodes of constants alone (arange,
full, tables of positions) are computed by torch itself and need no reader.
"""

from collections.abc import Callable

from ansorlite.graph.onnx.table import READERS as ONNX_READERS
from ansorlite.pytorch import elementwise as ew
from ansorlite.pytorch import layers, movement
from ansorlite.pytorch.context import Result
from ansorlite.pytorch.recurrent import one_direction, recurrent

Reader = Callable[..., Result]


def _all(names: str, reader: Reader) -> dict[str, Reader]:
    return {f"aten.{name}": reader for name in names.split()}


def _tensor_and_scalar(name: str, reader: Reader) -> dict[str, Reader]:
    return _all(f"{name}.Tensor {name}.Scalar", reader)


UNARY = {
    **{n: n.capitalize() for n in ("abs", "exp", "log", "sqrt", "tanh", "sigmoid", "erf")},
    **{n: n.capitalize() for n in ("neg", "relu", "reciprocal", "sin", "cos", "tan", "sinh")},
    **{n: n.capitalize() for n in ("cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "hardswish": "HardSwish",
}

READERS: dict[str, Reader] = {
    **{f"aten.{name}.default": ew.unary(op) for name, op in UNARY.items()},
    "aten.rsqrt.default": ew.rsqrt,
    **_all("sign.default sgn.default", ew.sign),
    "aten.silu.default": ew.silu,
    "aten.gelu.default": ew.gelu,
    "aten.mish.default": ew.mish,
    "aten.softplus.default": ew.softplus,
    "aten.elu.default": ew.elu,
    "aten.leaky_relu.default": ew.leaky_relu,
    "aten.hardsigmoid.default": ew.hard_sigmoid,
    "aten.hardtanh.default": ew.clamp,
    "aten.log1p.default": ew.log1p,
    "aten.expm1.default": ew.expm1,
    "aten.exp2.default": ew.exp2,
    "aten.log2.default": ew.log_to(2),
    "aten.log10.default": ew.log_to(10),
    "aten.floor.default": ew.rounding("floor"),
    "aten.ceil.default": ew.rounding("ceil"),
    "aten.round.default": ew.rounding("round"),
    "aten.trunc.default": ew.trunc,
    "aten.isnan.default": ew.special("IsNaN"),
    "aten.isinf.default": ew.special("IsInf"),
    "aten.bitwise_not.default": ew.bitwise_not,
    "aten.logical_not.default": ew.logical_not,
    "aten._to_copy.default": ew.to_copy,
    **_all("clamp.default clamp.Tensor", ew.clamp),
    # two operands
    **_tensor_and_scalar("add", ew.summed("add")),
    **_tensor_and_scalar("sub", ew.summed("sub")),
    **_tensor_and_scalar("rsub", ew.summed("sub", swapped=True)),
    **_tensor_and_scalar("mul", ew.mul),
    **_all("div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode", ew.div),
    **_all("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar", ew.pow_),
    **_tensor_and_scalar("remainder", ew.remainder(False)),
    **_tensor_and_scalar("fmod", ew.remainder(True)),
    "aten.maximum.default": ew.binary("maximum"),
    "aten.minimum.default": ew.binary("minimum"),
    **_tensor_and_scalar("eq", ew.compare("equal")),
    **_tensor_and_scalar("ne", ew.compare("equal", inverted=True)),
    **_tensor_and_scalar("lt", ew.compare("less")),
    **_tensor_and_scalar("le", ew.compare("less_equal")),
    **_tensor_and_scalar("gt", ew.compare("less", swapped=True)),
    **_tensor_and_scalar("ge", ew.compare("less_equal", swapped=True)),
    "aten.logical_and.default": ew.logical("And"),
    "aten.logical_or.default": ew.logical("Or"),
    "aten.logical_xor.default": ew.logical("Xor"),
    **_tensor_and_scalar("bitwise_and", ew.bitwise("And")),
    **_tensor_and_scalar("bitwise_or", ew.bitwise("Or")),
    **_tensor_and_scalar("bitwise_xor", ew.bitwise("Xor")),
    "aten.where.self": ew.where,
    # reductions
    "aten.sum.dim_IntList": ew.reduction("reduce_sum"),
    "aten.sum.default": ew.whole("reduce_sum"),
    "aten.mean.dim": ew.reduction("reduce_mean"),
    "aten.mean.default": ew.whole("reduce_mean"),
    "aten.amax.default": ew.reduction("reduce_max"),
    "aten.amin.default": ew.reduction("reduce_min"),
    "aten.max.default": ew.whole("reduce_max"),
    "aten.min.default": ew.whole("reduce_min"),
    "aten.max.dim": ew.extreme("reduce_max", "ArgMax"),
    "aten.min.dim": ew.extreme("reduce_min", "ArgMin"),
    "aten.argmax.default": ew.place_of("ArgMax"),
    "aten.argmin.default": ew.place_of("ArgMin"),
    **_all("any.default any.dim any.dims", ew.condition("reduce_max")),
    **_all("all.default all.dim all.dims", ew.condition("reduce_min")),
    "aten.var.correction": ew.var,
    "aten.std.correction": ew.std,
    "aten.var_mean.correction": ew.var_mean,
    "aten.linalg_vector_norm.default": ew.vector_norm,
    "aten.prod.dim_int": ew.product,
    "aten.prod.default": ew.whole_product,
    "aten.cumsum.default": ew.running("CumSum"),
    "aten.cumprod.default": ew.running("CumProd"),
    "aten.topk.default": ew.top_k,
    "aten.sort.default": ew.sort,
    "aten.sort.stable": ew.stable_sort,
    # movement
    **_all("clone.default alias.default detach.default lift_fresh_copy.default", movement.same),
    **_all("view.default reshape.default _unsafe_view.default unsqueeze.default", movement.view),
    **_all("squeeze.default squeeze.dim squeeze.dims", movement.view),
    "aten.permute.default": movement.permute,
    "aten.transpose.int": movement.transpose,
    "aten.t.default": movement.matrix_transpose,
    "aten.expand.default": movement.expand,
    "aten.copy.default": movement.copied,
    "aten.slice.Tensor": movement.slice_,
    "aten.select.int": movement.select,
    "aten.unbind.int": movement.unbind,
    "aten.split.Tensor": movement.split,
    "aten.split_with_sizes.default": movement.split_sizes,
    "aten.cat.default": movement.cat,
    "aten.stack.default": movement.stack,
    "aten.repeat.default": movement.repeat,
    "aten.flip.default": movement.flip,
    "aten.constant_pad_nd.default": movement.constant_pad,
    **{f"aten.reflection_pad{k}d.default": movement.pad_by("reflect") for k in (1, 2, 3)},
    **{f"aten.replication_pad{k}d.default": movement.pad_by("edge") for k in (1, 2, 3)},
    "aten.slice_scatter.default": movement.slice_scatter,
    "aten.select_scatter.default": movement.select_scatter,
    "aten.full_like.default": movement.full_like,
    "aten.embedding.default": movement.embedding,
    "aten.index_select.default": movement.index_select,
    **_all("index.Tensor _unsafe_index.Tensor", movement.index),
    "aten.unfold.default": movement.unfold,
    "aten.diagonal.default": movement.diagonal,
    "aten.as_strided.default": movement.as_strided,
    "aten.index_put.default": movement.index_put,
    "aten.gather.default": movement.gather,
    **_all("scatter.src scatter.value", movement.scatter()),
    "aten.scatter_add.default": movement.scatter("add"),
    # layers
    **_all("mm.default bmm.default matmul.default mv.default dot.default", layers.matmul),
    "aten.addmm.default": layers.addmm,
    "aten.baddbmm.default": layers.baddbmm,
    "aten.linear.default": layers.linear,
    "aten.convolution.default": layers.convolution,
    **{f"aten.max_pool{k}d_with_indices.default": layers.max_pool(k) for k in (2, 3)},
    **{f"aten.avg_pool{k}d.default": layers.avg_pool(k) for k in (1, 2, 3)},
    **_all("_adaptive_avg_pool2d.default", layers.adaptive_avg_pool(2)),
    **_all("_adaptive_avg_pool3d.default", layers.adaptive_avg_pool(3)),
    **{f"aten.adaptive_max_pool{k}d.default": layers.adaptive_max_pool(k) for k in (2, 3)},
    "aten._native_batch_norm_legit_no_training.default": layers.batch_norm,
    "aten._native_batch_norm_legit.no_stats": layers.batch_norm_of_data,
    "aten.native_layer_norm.default": layers.layer_norm,
    "aten.native_group_norm.default": layers.group_norm,
    "aten._softmax.default": layers.softmax,
    "aten._log_softmax.default": layers.log_softmax,
    "aten._safe_softmax.default": layers.safe_softmax,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": layers.attention,
    **_all("grid_sampler_2d.default grid_sampler_3d.default", layers.grid_sample),
    "aten.pixel_shuffle.default": layers.pixel_shuffle,
    "aten.pixel_unshuffle.default": layers.pixel_unshuffle,
    **{
        f"aten.{name}{rank}d.{form}": layers.upsample(rank, exact=True)
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (1, 2, 3)
        for form in ("default", "vec")
    },
    **{
        f"aten.{name}.{form}": layers.upsample(rank, corners=True)
        for name, rank in (
            ("upsample_linear1d", 1),
            ("upsample_bilinear2d", 2),
            ("upsample_trilinear3d", 3),
            ("upsample_bicubic2d", 2),
            ("_upsample_bilinear2d_aa", 2),
            ("_upsample_bicubic2d_aa", 2),
        )
        for form in ("default", "vec")
    },
}

# Where ONNX's layers have no readers, torch writes every step out.
RECURRENT = {
    "aten.lstm.input": ("LSTM", ""),
    "aten.gru.input": ("GRU", ""),
    "aten.rnn_tanh.input": ("RNN", "Tanh"),
    "aten.rnn_relu.input": ("RNN", "Relu"),
}
READERS |= {k: recurrent(*v) for k, v in RECURRENT.items() if v[0] in ONNX_READERS}
READERS["aten.mkldnn_rnn_layer.default"] = one_direction

_EVAL = "call eval() of the module first"
# What helps where an operator has no reader, by the start of its name.
ADVICE = {
    "aten.native_dropout": _EVAL,
    "aten.bernoulli": _EVAL,
    "aten._native_batch_norm_legit": _EVAL,
    "aten.native_batch_norm": _EVAL,
    "aten.rand": "draw random numbers outside of the network",
    "aten.nonzero": "its size depends on data: use torch.where with three arguments",
    "aten.masked_select": "its size depends on data: use torch.where with three arguments",
    "aten.sym_size": "a size depends on data: use torch.where with three arguments",
    "aten._assert_": "remove the assertion, or run that part outside of the network",
    "aten._unique": "its size depends on data: compute it outside of the network",
    "aten._local_scalar_dense": "keep numbers that depend on data as tensors: do not call item()",
}


def advice(target: str) -> str:
    """What the user may do about an operator without a reader; empty if nothing is known."""
    return next((text for start, text in ADVICE.items() if target.startswith(start)), "")
