"""Every imported operator against onnx's reference evaluator: import, passes and partition."""

import math
from typing import Any

import numpy as np
import onnx
import onnx_positions
import pytest
from onnx_cases import Case, check_stages, model_of, random_inputs
from typed_cases import IN_OTHER_TYPES

from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx import (
    control,
    microsoft,
    quantization,
    sequences,
)
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.onnx.table import READERS

RNG = np.random.default_rng(7)


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(n: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.5, n).astype(np.float32)


def int64(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


IMAGE = (2, 4, 7, 9)

CONVOLUTIONS = [
    Case("Conv", (IMAGE,), {}, {1: weights(5, 4, 3, 3)}, note="plain"),
    Case("Conv", (IMAGE,), {}, {1: weights(6, 4, 1, 1), 2: weights(6)}, note="pointwise"),
    Case("Conv", (IMAGE,), {"strides": [2, 2]}, {1: weights(5, 4, 1, 1)}, note="pointwise2"),
    Case("Conv", (IMAGE,), {"pads": [1, 2, 0, 1]}, {1: weights(5, 4, 3, 2), 2: weights(5)}),
    Case("Conv", (IMAGE,), {"strides": [2, 3], "pads": [1, 1, 1, 1]}, {1: weights(3, 4, 3, 3)}),
    Case("Conv", (IMAGE,), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}, {1: weights(3, 4, 3, 3)}),
    Case("Conv", (IMAGE,), {"group": 2, "pads": [1, 1, 1, 1]}, {1: weights(6, 2, 3, 3)}),
    Case("Conv", (IMAGE,), {"group": 2}, {1: weights(6, 2, 1, 1), 2: weights(6)}),
    Case("Conv", (IMAGE,), {"group": 4, "strides": [2, 2]}, {1: weights(4, 1, 3, 3)}),
    Case("Conv", (IMAGE,), {"group": 4}, {1: weights(8, 1, 3, 3), 2: weights(8)}),
    Case("Conv", (IMAGE,), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {1: weights(3, 4, 2, 3)}),
    Case("Conv", (IMAGE,), {"auto_pad": "SAME_LOWER"}, {1: weights(3, 4, 2, 4)}),
    Case("Conv", (IMAGE,), {"auto_pad": "VALID", "strides": [3, 1]}, {1: weights(3, 4, 3, 3)}),
    Case("Conv", ((2, 3, 11),), {"pads": [2, 1], "strides": [2]}, {1: weights(4, 3, 3)}, note="1d"),
    Case("Conv", ((1, 2, 5, 4, 6),), {"pads": [1] * 6}, {1: weights(3, 2, 3, 3, 2)}, note="3d"),
    Case("Conv", (IMAGE, (3, 4, 3, 3)), {}, note="weights-as-input"),
]
POOLS = [
    Case("MaxPool", (IMAGE,), {"kernel_shape": [2, 3]}),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [2, 2], "dilations": [3, 2]}),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER"}),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 1]}),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    Case(
        "AveragePool",
        (IMAGE,),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1, "strides": [2, 2]},
    ),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [4, 4], "strides": [2, 2], "ceil_mode": 1}),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [2, 3], "dilations": [2, 2]}, opset=19),
    Case("AveragePool", ((1, 3, 8),), {"kernel_shape": [3], "auto_pad": "SAME_LOWER"}, note="1d"),
    Case("GlobalAveragePool", (IMAGE,)),
    Case("GlobalMaxPool", (IMAGE,)),
]
MATRICES = [
    Case("Gemm", ((3, 5),), {}, {1: weights(5, 4), 2: weights(4)}, note="plain"),
    Case("Gemm", ((5, 3),), {"transA": 1, "transB": 1, "alpha": 0.5}, {1: weights(4, 5)}),
    Case("Gemm", ((3, 5), (4, 5)), {"transB": 1, "alpha": 2.0, "beta": 0.5}, {2: weights(3, 1)}),
    Case("MatMul", ((3, 5),), {}, {1: weights(5, 4)}, note="2d"),
    Case("MatMul", ((2, 3, 5),), {}, {1: weights(5, 4)}, note="3d-by-2d"),
    Case("MatMul", ((2, 3, 4, 5), (2, 3, 5, 6)), note="4d"),
    Case("MatMul", ((2, 1, 4, 5), (3, 5, 6)), note="broadcast"),
    Case("MatMul", ((5,), (2, 5, 3)), note="vector-left"),
    Case("MatMul", ((2, 4, 5), (5,)), note="vector-right"),
    Case("MatMul", ((5,), (5,)), note="dot"),
]
NORMS = [
    Case(
        "BatchNormalization",
        (IMAGE,),
        {"epsilon": 1e-3},
        {1: weights(4), 2: weights(4), 3: weights(4), 4: positive(4)},
    ),
    Case("BatchNormalization", ((3, 4),), {}, dict(enumerate(positive(16).reshape(4, 4), 1))),
    Case("InstanceNormalization", (IMAGE,), {}, {1: weights(4), 2: weights(4)}),
    Case("LayerNormalization", ((2, 5, 6),), {}, {1: weights(6), 2: weights(6)}),
    Case("LayerNormalization", ((2, 5, 6),), {"axis": 1}, {1: weights(5, 6)}),
    # onnx's reference takes the number of channels from axis 0.
    Case("LRN", ((4, 4, 3, 2),), {"size": 3, "alpha": 0.3, "beta": 0.6, "bias": 1.5}),
    Case("LRN", ((5, 5, 3, 2),), {"size": 4, "alpha": 0.5}),
    Case("Softmax", ((3, 7),), {}),
    Case("Softmax", (IMAGE,), {"axis": 1}),
    Case("LogSoftmax", ((3, 7),), {"axis": 1}),
]
ACTIVATIONS = [
    *(Case(op, (IMAGE,)) for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Neg", "Abs")),
    *(Case(op, (IMAGE,), positive=True) for op in ("Sqrt", "Log", "Reciprocal")),
    *(Case(op, ((3, 5),)) for op in ("Floor", "Softplus", "Elu", "HardSigmoid", "HardSwish")),
    Case("LeakyRelu", (IMAGE,), {"alpha": 0.2}),
    Case("LeakyRelu", (IMAGE,), {"alpha": 1.5}),
    Case("Elu", ((3, 5),), {"alpha": 0.7}),
    Case("PRelu", (IMAGE,), {}, {1: weights(4, 1, 1)}),
    Case("Gelu", ((3, 5),), {}, opset=20),
    Case("Gelu", ((3, 5),), {"approximate": "tanh"}, opset=20),
    Case("Clip", ((3, 5),), {"min": -0.5, "max": 0.5}, opset=6 + 1),
    Case("Clip", ((3, 5),), {}, {1: np.float32(-0.2), 2: np.float32(0.3)}),
    Case("Clip", ((3, 5),), {}, {1: None, 2: np.float32(0.3)}, note="max"),
    Case("Clip", ((3, 5),), {}, {1: np.float32(0)}, note="relu"),
    Case("Clip", ((3, 5), (), ()), note="limits-as-inputs"),
]
ARITHMETIC = [
    *(Case(op, ((2, 3, 4), (3, 1))) for op in ("Add", "Sub", "Mul", "Max", "Min")),
    *(Case(op, ((3, 4),), {}, {0: weights(4)}, note="left") for op in ("Add", "Sub", "Mul")),
    *(Case(op, ((3, 4),), {}, {1: weights(3, 1)}, note="right") for op in ("Add", "Sub", "Div")),
    Case("Div", ((2, 3), (2, 3)), positive=True),
    Case("Pow", ((3, 4),), {}, {1: np.float32(2.0)}, note="square"),
    Case("Pow", ((3, 4),), {}, {1: np.float32(0.5)}, positive=True, note="root"),
    Case("Pow", ((3, 4),), {}, {1: np.int64(3)}, note="integer-exponent"),
    Case("Pow", ((3, 4), (4,)), positive=True, note="both"),
    Case("Sum", ((2, 3), (3,), (2, 1))),
    Case("Mean", ((2, 3), (3,), (2, 1))),
    Case("Max", ((2, 3), (3,), (2, 1)), note="three"),
]
REDUCTIONS = [
    Case("ReduceMean", (IMAGE,), {"axes": [2, 3]}),
    Case("ReduceMean", (IMAGE,), {"axes": [1], "keepdims": 0}),
    Case("ReduceMean", (IMAGE,), {}, {1: int64(-1, 0)}, opset=18),
    Case("ReduceSum", (IMAGE,), {"keepdims": 0}, {1: int64(1, 3)}),
    Case("ReduceSum", (IMAGE,), {"axes": [0, 1], "keepdims": 0}, opset=11),
    Case("ReduceSum", ((3, 4),), {}, note="all"),
    Case("ReduceSum", ((3, 4),), {"noop_with_empty_axes": 1}),
    Case("ReduceMax", (IMAGE,), {"axes": [-2]}),
    Case("ReduceMin", ((3, 4),), {"keepdims": 0}, note="scalar"),
    Case("ReduceMax", ((3, 1, 4),), {"axes": [1]}, note="extent-1"),
    Case("ReduceL2", ((3, 4),), {"axes": [1]}),
    Case("ReduceSumSquare", ((3, 4),), {"axes": [0]}),
]
MOVEMENT = [
    Case("Reshape", ((2, 3, 4),), {}, {1: int64(0, -1)}),
    Case("Reshape", ((2, 3, 4),), {}, {1: int64(4, 3, 2)}, note="mix"),
    Case("Flatten", (IMAGE,), {"axis": 2}),
    Case("Flatten", ((2, 3),), {"axis": 0}),
    Case("Transpose", ((2, 3, 4),)),
    Case("Transpose", (IMAGE,), {"perm": [0, 2, 3, 1]}),
    Case("Concat", ((2, 3, 4), (2, 1, 4), (2, 2, 4)), {"axis": -2}),
    Case("Concat", ((2, 3),), {"axis": 0}, {1: weights(1, 3)}, note="constant"),
    Case("Squeeze", ((1, 3, 1, 4),), {}, {1: int64(0, -2)}),
    Case("Squeeze", ((1, 3, 1, 4),), {"axes": [2]}, opset=11),
    Case("Squeeze", ((1, 3, 1, 4),), note="all"),
    Case("Unsqueeze", ((3, 4),), {}, {1: int64(0, -1)}),
    Case("Unsqueeze", ((3, 4),), {"axes": [1, 2]}, opset=11),
    Case("Pad", ((2, 3, 4),), {}, {1: int64(0, 1, 2, 0, 2, 0), 2: np.float32(1.5)}),
    Case("Pad", ((3, 4),), {"pads": [1, 0, 0, 2], "value": 2.0}, opset=9),
    Case("Pad", ((2, 3, 4),), {}, {1: int64(1, 2), 2: None, 3: int64(-1)}, opset=18),
    Case("Slice", ((5, 6),), {"starts": [1, -3], "ends": [4, 100], "axes": [0, 1]}, opset=9),
    Case(
        "Slice", ((5, 6),), {}, {1: int64(4, 0), 2: int64(-100, 5), 3: int64(0, 1), 4: int64(-2, 2)}
    ),
    Case("Slice", ((5, 6),), {}, {1: int64(0), 2: int64(9)}, note="nothing"),
    Case("Split", ((2, 7),), {"axis": 1}, {1: int64(2, 4, 1)}, outputs=3),
    Case("Split", ((2, 7),), {"axis": -1, "num_outputs": 3}, opset=18, outputs=3),
    Case("Split", ((6, 2),), {"split": [1, 5]}, opset=11, outputs=2),
    Case("Expand", ((3, 1),), {}, {1: int64(2, 1, 4)}),
    Case("Gather", ((3, 5),), {"axis": 1}, {1: np.int64(2)}, note="scalar"),
    Case("Gather", ((3, 5),), {"axis": 1}, {1: int64(4, 2, 0)}, note="stepping"),
    Case("Gather", ((3, 5),), {}, {1: np.asarray([[1], [2]], np.int64)}, note="2d"),
    Case("Identity", ((3, 5),)),
    Case("Dropout", ((3, 5),), {"ratio": 0.4}, opset=11),
    Case("Dropout", ((3, 5),), {}, {1: np.float32(0.4), 2: np.bool_(False)}),
    Case("Cast", ((3, 5),), {"to": 1}),
]
TRANSPOSED = [
    Case("ConvTranspose", (IMAGE,), {}, {1: weights(4, 5, 3, 3)}, note="stride1"),
    Case("ConvTranspose", (IMAGE,), {"strides": [2, 3]}, {1: weights(4, 5, 3, 4), 2: weights(5)}),
    Case("ConvTranspose", (IMAGE,), {"strides": [2, 2], "pads": [1] * 4}, {1: weights(4, 3, 4, 4)}),
    Case("ConvTranspose", (IMAGE,), {"pads": [2, 0, 1, 3]}, {1: weights(4, 3, 3, 2)}, note="cut"),
    Case(
        "ConvTranspose",
        (IMAGE,),
        {"strides": [3, 2], "output_padding": [2, 1]},
        {1: weights(4, 3, 3, 3)},
    ),
    Case("ConvTranspose", (IMAGE,), {"dilations": [2, 2]}, {1: weights(4, 3, 3, 3)}),
    Case(
        "ConvTranspose",
        (IMAGE,),
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {1: weights(4, 3, 3, 3)},
    ),
    Case("ConvTranspose", (IMAGE,), {"strides": [2, 2]}, {1: weights(4, 3, 1, 1)}, note="gaps"),
    Case("ConvTranspose", ((2, 5, 1, 1),), {}, {1: weights(5, 6, 4, 4)}, note="one-pixel"),
    Case("ConvTranspose", ((2, 3, 5),), {"strides": [2]}, {1: weights(3, 4, 3)}, note="1d"),
    Case("ConvTranspose", ((1, 2, 3, 4, 3),), {"strides": [2] * 3}, {1: weights(2, 3, 3, 3, 2)}),
]
SMALL = (1, 2, 5, 4)
FLOORED = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
SCALES = {1: None, 2: np.asarray([1, 1, 2, 1.5], np.float32)}
DOWN = {1: None, 2: np.asarray([1, 1, 0.6, 0.5], np.float32)}
SIZES = {1: None, 2: None, 3: int64(1, 2, 7, 3)}
RESIZES = [
    *(
        Case("Resize", (SMALL,), {"mode": mode, "coordinate_transformation_mode": at}, SCALES)
        for mode in ("nearest", "linear", "cubic")
        for at in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    *(
        Case("Resize", (SMALL,), {"nearest_mode": mode}, SIZES)
        for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    *(
        Case("Resize", (SMALL,), {"mode": mode, "antialias": 1}, DOWN, opset=18)
        for mode in ("linear", "cubic")
    ),
    Case("Resize", (SMALL,), {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}, DOWN),
    Case("Upsample", (SMALL,), {}, {1: np.asarray([1, 1, 2, 3], np.float32)}, 9),
    Case("Resize", (SMALL,), FLOORED, {1: None, 2: np.float32([2, 3, 1, 0.5])}, note="mixed"),
]
CONDITIONS = [
    *(Case(op, ((3, 5), (5,)), {}, then="Where") for op in ("Less", "Greater", "Equal")),
    *(Case(op, ((3, 5), (3, 1)), {}, then="Cast") for op in ("LessOrEqual", "GreaterOrEqual")),
    *(Case(op, ((3, 5), (5,)), {}, then=op) for op in ("And", "Or", "Xor", "Not")),
    Case("Where", ((3, 1), (4,)), {}, {0: np.asarray([True, False, True])[:, None]}),
    Case("ArgMax", (IMAGE,), {"axis": 2}, then="Cast"),
    Case("ArgMin", (IMAGE,), {"axis": -1, "keepdims": 0, "select_last_index": 1}, then="Cast"),
    Case("Trilu", ((2, 4, 5),), {"upper": 0}, {1: np.int64(1)}),
    Case("CastLike", ((3, 5),), {}, {1: np.float32(0)}),
    *(Case(op, ((3, 5),)) for op in ("Ceil", "Round", "Sign")),
]
WIDER = [
    Case("GroupNormalization", (IMAGE,), {"num_groups": 2}, {1: weights(4), 2: weights(4)}, 21),
    Case("DepthToSpace", ((2, 8, 3, 4),), {"blocksize": 2}),
    Case("DepthToSpace", ((2, 8, 3, 4),), {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", ((2, 3, 4, 6),), {"blocksize": 2}),
    Case("Tile", ((2, 3),), {}, {1: int64(2, 3)}),
    *(Case("Pad", ((3, 4),), {"mode": m}, {1: int64(1, 2, 2, 0)}, 19) for m in ("reflect", "edge")),
    Case("Gather", ((5, 3),), {}, {1: int64(0, 3, -1, 3)}, note="any"),
    *(Case(op, ((3, 4),), {"axes": [1]}) for op in ("ReduceL1", "ReduceLogSumExp", "ReduceProd")),
    Case("ReduceProd", ((3, 5, 2),), {"keepdims": 0}, note="all"),
    Case("ReduceLogSum", ((3, 4),), {"axes": [0], "keepdims": 0}, positive=True),
    # written out from what onnx defines them by
    *(Case(op, ((3, 5),)) for op in ("Selu", "Celu", "Softsign", "ThresholdedRelu")),
    Case("Mish", ((3, 5),), opset=18),
]
ELEMENTARY = [
    *(Case(op, ((3, 5),)) for op in ("Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh")),
    Case("Acosh", ((3, 5),), positive=True),
]
SETS = [
    Case("CumSum", ((2, 9),), {}, {1: np.int64(1)}),
    Case("CumSum", ((2, 9),), {"exclusive": 1}, {1: np.int32(-1)}),
    Case("CumSum", ((9, 2),), {"reverse": 1}, {1: np.int64(0)}),
    Case("CumSum", ((2, 70, 3),), {"exclusive": 1, "reverse": 1}, {1: np.int64(1)}),
    Case("CumSum", ((2, 70),), {}, {1: np.int64(-1)}, note="blocks"),
    Case("CumProd", ((2, 9),), {}, {1: np.int64(1)}, opset=26),
    Case("CumProd", ((2, 9),), {"exclusive": 1, "reverse": 1}, {1: np.int64(1)}, opset=26),
    Case("Hardmax", (IMAGE,), {"axis": 1}),
    Case("LpNormalization", ((3, 5),), {"p": 2}),
    Case("LpNormalization", ((3, 5),), {"p": 1, "axis": 0}, positive=True),
    Case("RMSNormalization", ((2, 3, 5),), {}, {1: weights(5)}, 23),
    Case("RMSNormalization", ((2, 3, 5),), {"axis": 1, "epsilon": 0.1}, {1: weights(3, 5)}, 23),
    Case("MeanVarianceNormalization", (IMAGE,)),
    Case("Shrink", ((3, 5),), {"bias": 0.1, "lambd": 0.4}),
    Case("Swish", ((3, 5),), {"alpha": 1.5}, opset=24),
    Case("Compress", ((3, 5),), {"axis": 1}, {1: np.asarray([True, False, True])}),
    Case("Compress", ((3, 5),), {}, {1: np.asarray([False, True, True])}, note="flat"),
]
CASES = [
    *ELEMENTARY,
    *SETS,
    *TRANSPOSED,
    *RESIZES,
    *CONDITIONS,
    *WIDER,
    *CONVOLUTIONS,
    *POOLS,
    *MATRICES,
    *NORMS,
    *ACTIVATIONS,
    *ARITHMETIC,
    *REDUCTIONS,
    *MOVEMENT,
    *onnx_positions.CASES,
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_agrees_with_the_reference(case: Case) -> None:
    check_stages(model_of(case), random_inputs(case.inputs, positive=case.positive))


@pytest.mark.parametrize(("shape", "attrs"), [((2, 5, 1, 1), {}), (IMAGE, {"axis": 2})])
def test_softmax_before_opset_13_sees_a_matrix(
    shape: tuple[int, ...], attrs: dict[str, int]
) -> None:
    (x,) = random_inputs([shape])
    rows = x.reshape(math.prod(shape[: attrs.get("axis", 1)]), -1).astype(np.float64)
    e = np.exp(rows - rows.max(axis=1, keepdims=True))
    expected = (e / e.sum(axis=1, keepdims=True)).reshape(shape).astype(np.float32)
    check_stages(model_of(Case("Softmax", (shape,), attrs, opset=11)), [x], [expected])


def test_negative_padding_cuts() -> None:
    (x,) = random_inputs([(3, 5)])
    expected = np.pad(x[:-1, 2:], ((1, 0), (0, 1)))
    check_stages(model_of(Case("Pad", ((3, 5),), {}, {1: int64(1, -2, -1, 1)})), [x], [expected])


def test_every_importer_has_a_case() -> None:
    of_constants = {"Constant", "ConstantOfShape", "Range", "Shape", "Size"}
    others = {op for op in READERS if "." in op}  # in test_onnx_microsoft
    others |= {*quantization.READERS, *microsoft.READERS}  # in test_onnx_quantization, and there
    others |= {"LSTM", "GRU", "RNN", *control.READERS, *sequences.READERS}  # files of their own
    of_constants |= onnx_positions.ELSEWHERE
    elsewhere = of_constants | others | {op for op, *_ in IN_OTHER_TYPES}
    assert set(READERS) - {c.op for c in CASES} == elsewhere - {c.op for c in CASES}


def test_transposed_windows_that_leave_the_end_out() -> None:
    """As onnxruntime 1.31 has it: an extent beyond the last window is filled with zeros."""
    x, w = random_inputs([(1, 1, 3), (1, 1, 2)])
    want = np.zeros((1, 1, 11), np.float32)
    for k in range(3):
        want[..., 3 * k : 3 * k + 2] += x[..., k, None] * w[0]
    for auto in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
        attrs = {"strides": [3], "output_shape": [11], "auto_pad": auto}
        check_stages(model_of(Case("ConvTranspose", ((1, 1, 3),), attrs, {1: w})), [x], [want])


def test_transposed_convolution_by_groups() -> None:
    """onnx's reference has none: each group of channels is a convolution of its own."""
    x, w = random_inputs([IMAGE, (4, 3, 3, 3)])
    strides = {"strides": [2, 1], "dilations": [1, 2]}
    single = model_of(Case("ConvTranspose", ((2, 2, 7, 9), (2, 3, 3, 3)), strides))
    parts = [evaluate(load_onnx(single), [x[:, k : k + 2], w[k : k + 2]])[0] for k in (0, 2)]
    both = Case("ConvTranspose", (IMAGE,), {"group": 2, **strides}, {1: w})
    check_stages(model_of(both), [x], [np.concatenate(parts, axis=1)])


def test_resize_before_opset_11() -> None:
    """Positions are places divided by the scale, without a half pixel."""
    (x,) = random_inputs([(1, 2, 5, 4)])
    scales = {1: np.asarray([1, 1, 2, 3], np.float32)}
    rows = np.minimum(np.arange(10) / 2, 4)
    low, rest = np.floor(rows).astype(int), (rows % 1)[:, None]
    tall = x[:, :, low] * (1 - rest) + x[:, :, np.minimum(low + 1, 4)] * rest
    columns = np.minimum(np.arange(12) / 3, 3)
    low, rest = np.floor(columns).astype(int), columns % 1
    wide = tall[..., low] * (1 - rest) + tall[..., np.minimum(low + 1, 3)] * rest
    case = Case("Resize", ((1, 2, 5, 4),), {"mode": "linear"}, scales, 10)
    check_stages(model_of(case), [x], [wide.astype(np.float32)])


def test_padding_with_the_edge_may_cut() -> None:
    (x,) = random_inputs([(3, 4)])
    case = Case("Pad", ((3, 4),), {"mode": "edge"}, {1: int64(-1, 2, 2, -1)}, 19)
    expected = np.pad(x[1:, :-1], ((0, 2), (2, 0)), mode="edge")
    check_stages(model_of(case), [x], [expected])


def test_rows_by_ids_that_are_known_at_run_time_only() -> None:
    """An embedding: ids are an input of their own."""
    node = onnx.helper.make_node("Gather", ["table", "ids"], ["y"])
    info, table = onnx.helper.make_tensor_value_info, weights(7, 4)
    graph = onnx.helper.make_graph(
        [node],
        "embedding",
        [info("ids", onnx.TensorProto.INT64, (2, 3))],
        [info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(table, "table")],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    check_stages(model, [np.asarray([[0, 6, -1], [3, 3, -7]])])


def constants_model(op: str, *values: object, **attrs: object) -> onnx.ModelProto:
    """y = x + float(op(constants)), so that the result is visible."""
    names = [f"c{k}" for k in range(len(values))]
    nodes = [
        onnx.helper.make_node(op, names, ["t"], **attrs),
        onnx.helper.make_node("Cast", ["t"], ["f"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "folded",
        [info("x", onnx.TensorProto.FLOAT, (2, 3))],
        [info("y", onnx.TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.asarray(v), n)
            for v, n in zip(values, names, strict=True)
        ],
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


A, B = int64(1, 5, 3), int64(2, 5, 1)
TRUE, FALSE = np.asarray([True, False, True]), np.asarray([True, True, False])
FOLDED = [
    *((op, (A, B)) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod")),
    *((op, (TRUE, FALSE)) for op in ("And", "Or")),
    ("Not", (TRUE,)),
    ("Where", (TRUE, A, B)),
    ("Ceil", (np.asarray([0.2, 1.0, -0.5], np.float32),)),
    ("Range", (np.int64(2), np.int64(7), np.int64(2))),
    ("Tile", (int64(4), int64(3))),
    ("Size", (weights(2, 5),)),
    ("Shape", (weights(4, 5, 6),)),
    ("Gather", (A, int64(2, 0, 1))),
    ("ConstantOfShape", (int64(2, 3),)),
    ("Div", (int64(-7, 7, 9), int64(2, 2, 3))),
    ("Concat", (A[:1], B[:2])),
]


@pytest.mark.parametrize(("op", "values"), FOLDED, ids=[op for op, _ in FOLDED])
def test_arithmetic_of_constants_is_folded(op: str, values: tuple[np.ndarray, ...]) -> None:
    model = constants_model(op, *values, **({"axis": 0} if op == "Concat" else {}))
    assert [n.op for n in load_onnx(model).nodes] == ["add"]
    check_stages(model, random_inputs([(2, 3)]))


@pytest.mark.parametrize(
    "attrs",
    [
        {"value": onnx.numpy_helper.from_array(np.asarray([1, 2, 3], np.int64))},
        {"value_float": 0.5},
        {"value_floats": [0.5, 1.0, 2.0]},
        {"value_int": 3},
        {"value_ints": [1, 2, 3]},
    ],
    ids=lambda a: next(iter(a)),
)
def test_constant_node(attrs: dict[str, object]) -> None:
    check_stages(constants_model("Constant", **attrs), random_inputs([(2, 3)]))


def test_reshape_to_a_computed_shape_needs_no_node() -> None:
    """Shape -> Gather -> Unsqueeze -> Concat -> Reshape, as exporters write a flatten."""
    nodes = [
        onnx.helper.make_node("Shape", ["x"], ["s"]),
        onnx.helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        onnx.helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        onnx.helper.make_node("Concat", ["n1", "minus"], ["shape"], axis=0),
        onnx.helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    arrays = {"zero": np.int64(0), "axes": int64(0), "minus": int64(-1)}
    graph = onnx.helper.make_graph(
        nodes,
        "flatten",
        [info("x", onnx.TensorProto.FLOAT, ("N", 3, 4))],
        [info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    loaded = load_onnx(model, batch=5)
    assert [n.op for n in loaded.nodes] == ["reshape"]
    (x,) = random_inputs([(5, 3, 4)])
    np.testing.assert_array_equal(evaluate(loaded, [x])[0], x.reshape(5, 12))


def resized(n: int, scale: float = 0.0, size: int = 0, opset: int = 18, **attrs: Any) -> list[int]:
    """The elements 0..n-1 resized to their nearest."""
    given = {"s": np.asarray([scale], np.float32)} if scale else {"z": int64(size)}
    inputs = ["x", "s"] if opset < 11 else ["x", "", "s"] if scale else ["x", "", "", "z"]
    node = onnx.helper.make_node("Resize", inputs, ["y"], mode="nearest", **attrs)
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "net",
        [info("x", onnx.TensorProto.FLOAT, [n])],
        [info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(v, k) for k, v in given.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    (out,) = evaluate(load_onnx(model), [np.arange(n, dtype=np.float32)])
    return [int(v) for v in out]


def test_extents_come_from_scales_of_single_precision() -> None:
    """20 * float32(0.7) is 14 in float32, 13.99... in float64; what onnxruntime has is 14."""
    for n, scale, out in ((20, 0.7, 14), (10, 1.3, 13), (30, 0.1, 3), (7, 1 / 7, 1), (9, 0.3, 2)):
        assert len(resized(n, scale)) == out


def test_positions_are_rounded_in_single_precision() -> None:
    """All as onnxruntime 1.31 has them; exact or float64 positions differ in the last cases."""
    half = {"coordinate_transformation_mode": "half_pixel"}
    plain = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    assert resized(6, 0.6, **plain) == [0, 1, 3]
    assert resized(26, size=7, nearest_mode="round_prefer_ceil", **half) == [
        1,
        5,
        9,
        13,
        16,
        20,
        24,
    ]
    up = resized(28, 0.3, nearest_mode="round_prefer_ceil", **half)
    assert up == [1, 5, 8, 11, 15, 18, 21, 24]
    assert resized(8, 0.4, opset=10) == [0, 3, 5]
    torch = {"coordinate_transformation_mode": "pytorch_half_pixel"}
    assert resized(7, 0.2, nearest_mode="round_prefer_ceil", **torch) == [0]
