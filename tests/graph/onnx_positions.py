"""Cases of gathers, scatters, rankings, samplings, contractions and transforms of ONNX.

Positions are constants here; test_onnx_positions has those that are inputs.
"""

import numpy as np
from onnx_cases import Case

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: object) -> np.ndarray:
    return np.asarray(values, np.int64)


SHAPE = (3, 4, 5)
GRID = RNG.uniform(-1.4, 1.4, (2, 3, 4, 2)).astype(np.float32)
WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2]}
PLACES = ints(5, 7, 13, 15, 16, 18, 24, 31).reshape(1, 2, 2, 2)
TABLE = {1: floats(2, 5, 3), 2: floats(2, 5, 3)}

CASES = [
    Case("GatherElements", (SHAPE,), {"axis": 1}, {1: RNG.integers(-4, 4, (3, 2, 5))}),
    Case("GatherND", (SHAPE,), {}, {1: ints([0, -1], [2, 1])}, note="rows"),
    Case("GatherND", (SHAPE,), {"batch_dims": 1}, {1: ints([1], [-1], [0])}),
    Case(
        "ScatterElements",
        (SHAPE,),
        {"axis": 2},
        {1: RNG.integers(-5, 5, (3, 4, 3)), 2: floats(3, 4, 3)},
        opset=18,
    ),
    Case("ScatterND", (SHAPE,), {}, {1: ints([1, 2], [-3, 0]), 2: floats(2, 5)}, opset=18),
    Case("ReverseSequence", ((4, 3, 2),), {}, {1: ints(1, 4, 3)}),
    Case("ReverseSequence", ((3, 4),), {"time_axis": 1, "batch_axis": 0}, {1: ints(1, 4, 0)}),
    Case("TensorScatter", ((2, 3, 6, 4), (2, 3, 2, 4)), {}, {2: ints(1, 4)}, opset=24),
    Case("GridSample", ((2, 3, 4, 5),), {"align_corners": 1}, {1: GRID}, opset=20),
    Case(
        "RoiAlign",
        ((2, 3, 6, 7),),
        {"output_height": 2, "output_width": 3, "spatial_scale": 0.5, "sampling_ratio": 2},
        {1: np.float32([[0, 1, 7, 9], [2, 2, 5, 4], [-9, 0, 30, 3]]), 2: ints(1, 0, 1)},
    ),
    Case("MaxUnpool", ((1, 2, 2, 2),), WINDOW, {1: PLACES}),
    Case(
        "Col2Im",
        ((1, 8, 6),),
        {"pads": [0, 1, 1, 0], "strides": [2, 2]},
        {1: ints(3, 5), 2: ints(2, 2)},
        opset=18,
    ),
    Case("AffineGrid", ((2, 2, 3),), {"align_corners": 1}, {1: ints(2, 1, 3, 4)}, opset=20),
    Case("AffineGrid", ((1, 3, 4),), {}, {1: ints(1, 1, 2, 3, 4)}, opset=20),
    Case(
        "DeformConv",
        ((1, 4, 5, 6), (6, 2, 2, 3), (1, 24, 4, 3), (6,), (1, 12, 4, 3)),
        {
            "group": 2,
            "offset_group": 2,
            "pads": [0, 1, 1, 0],
            "strides": [1, 2],
            "dilations": [2, 1],
        },
        opset=19,
    ),
    Case("CenterCropPad", ((4, 5, 6),), {}, {1: ints(7, 2, 3)}, opset=18),
    Case("CenterCropPad", ((4, 5, 6),), {"axes": [-1, 0]}, {1: ints(9, 1)}, opset=18),
    Case(
        "CausalConvWithState",
        ((2, 3, 5), (3, 1, 4), (3,), (2, 3, 3)),
        {"activation": "silu"},
        outputs=2,
        opset=27,
    ),
    Case("LpPool", ((1, 2, 5, 6),), {"kernel_shape": [2, 3], "p": 3}, opset=18),
    Case("LpPool", ((1, 2, 5, 6),), {"kernel_shape": [2, 3], "strides": [2, 1]}, opset=18),
    Case("Einsum", ((2, 3, 4), (2, 4, 5)), {"equation": "bij, bjk -> bik"}),
    Case("DFT", ((2, 6, 1),), {"axis": 1, "onesided": 1}),
    Case("STFT", ((2, 9, 1),), {}, {1: ints(2)[0], 2: floats(4), 3: ints(4)[0]}),
    Case("Attention", ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6)), {"is_causal": 1}, opset=23),
    Case("RotaryEmbedding", ((2, 4, 5, 6),), {}, TABLE, opset=23),
]
ELSEWHERE = {"BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"}
ELSEWHERE |= {
    "GlobalLpPool",
    "NonMaxSuppression",
    "Scatter",
    "TopK",
}  # of constants, several results, no reference
