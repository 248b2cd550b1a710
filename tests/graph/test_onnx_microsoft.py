"""Operators of `com.microsoft` that onnxruntime's optimiser and quantiser write, as it has them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import helper
from onnx_runtime_cases import I32, U8, U16, F, check, expected, model_of, weights

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.onnx.table import READERS

RNG = np.random.default_rng(3)
F32, U, S, INTS = np.float32, np.uint8, np.int8, np.int32
SIMPLIFIED = "SimplifiedLayerNormalization"  # which onnxruntime has in ONNX's own domain


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def bytes_of(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def signed(*shape: int) -> Any:
    return RNG.integers(-128, 128, shape).astype(np.int8)


class Row(NamedTuple):
    """Operands in order: an array is an input, (array,) a constant, None is left out."""

    operands: list[Any]
    attrs: Mapping[str, Any] = {}
    outputs: Sequence[int] = (F,)  # dtypes; 0 is left out
    steps: int = 0  # by which integers may differ
    rtol: float = 2e-5


X, HEADS = floats(2, 5, 8), {"num_heads": 2}
QKV = [(floats(8, 24),), (floats(24),)]
MASK = INTS([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
NARROW, AT = (floats(10, 2),), np.int64([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]])
WORDS = RNG.integers(0, 11, (2, 5)).astype(np.int32)
UNARY = [(F32(0.05),), (U(120),), (F32(0.04),), (U(30),)]
SHARE = [*UNARY[:2], (F32(1 / 256),), (U(0),)]
PAIR = [(F32(0.3),), (U(7),)]
GEMM = [
    bytes_of(3, 6), (F32(0.03),), (U(7),), (signed(4, 6),), (F32([0.1, 0.2, 0.3, 0.4]),),
    (S([0] * 4),), (INTS([50, -60, 7, 0]),),
]  # fmt: skip
ROWS: dict[str, Row] = {
    "Gelu": Row([X]),
    "BiasGelu": Row([X, (floats(8),)]),
    "FastGelu": Row([X, (floats(8),)]),
    "QuickGelu": Row([X], {"alpha": 1.5}),
    "FusedMatMul": Row([floats(2, 3, 4, 5), floats(2, 3, 6, 5)], {"transB": 1, "alpha": 0.5}),
    "FusedMatMul of turned": Row([floats(2, 5, 4), floats(2, 5, 6)], {"transA": 1}),
    "FusedMatMul by batch": Row([floats(4, 2, 3, 5), floats(2, 3, 5, 7)], {"transBatchA": 1}),
    "FusedConv": Row(
        [floats(1, 3, 7, 7), (floats(4, 3, 3, 3),), (floats(4),), floats(1, 4, 7, 7)],
        {"activation": "Clip", "activation_params": [-0.5, 0.5], "pads": [1] * 4},
    ),
    "FusedConv to HardSigmoid": Row(
        [floats(1, 3, 7, 7), (floats(4, 3, 3, 3),)],
        {"activation": "HardSigmoid", "activation_params": [0.2, 0.4]},
    ),
    "FusedGemm": Row(
        [floats(3, 5), (floats(4, 5),), (floats(4),)],
        {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.3},
    ),
    "SkipLayerNormalization": Row(
        [X, floats(2, 5, 8), (floats(8),), (floats(8),), (floats(8),)],
        {"epsilon": 1e-5},
        [F, 0, 0, F],
    ),
    "SkipLayerNormalization of rows": Row([X, floats(5, 8), (floats(8),)]),
    "SkipSimplifiedLayerNormalization": Row(
        [X, floats(2, 5, 8), (floats(8),)], {"epsilon": 1e-5}, [F, 0, 0, F]
    ),
    "SimplifiedLayerNormalization": Row([X, (floats(8),)], {"axis": -1}),
    "EmbedLayerNormalization": Row(
        [
            WORDS, WORDS % 2, (floats(11, 8),), (floats(6, 8),), (floats(2, 8),),
            (floats(8),), (floats(8),), MASK,
        ],
        {"epsilon": 1e-5},
        [F, I32],
    ),
    "EmbedLayerNormalization of words": Row(
        [WORDS, None, (floats(11, 8),), (floats(6, 8),), None, (floats(8),), (floats(8),)],
        {},
        [F, I32],
    ),
    "Attention": Row([X, *QKV], HEADS),
    "Attention to the past": Row(
        [X, *QKV, None, floats(2, 2, 2, 3, 4)], {**HEADS, "unidirectional": 1}, [F, F]
    ),
    "Attention by mask": Row([X, *QKV, MASK], HEADS),
    "Attention by length": Row([X, *QKV, INTS([3, 5])], HEADS),
    "Attention by matrix": Row([X, *QKV, RNG.integers(0, 2, (2, 5, 5)).astype(np.int32)], HEADS),
    "Attention with bias": Row([X, *QKV, None, None, floats(1, 2, 5, 5)], HEADS),
    "MultiHeadAttention": Row([X, floats(2, 7, 8), floats(2, 7, 8), (floats(24),)], HEADS),
    "MultiHeadAttention by mask": Row([X, floats(2, 5, 8), floats(2, 5, 8), None, MASK], HEADS),
    "MultiHeadAttention to the past": Row(
        [X, X + 1, X - 1, None, None, None, floats(2, 2, 3, 4), floats(2, 2, 3, 4)], HEADS, [F] * 3
    ),
    "MultiHeadAttention across": Row([X, floats(2, 2, 7, 4), floats(2, 2, 7, 4)], HEADS),
    "RotaryEmbedding": Row([X, AT, NARROW, NARROW]),
    "RotaryEmbedding of pairs": Row(
        [floats(2, 3, 5, 8), np.int64([2]), NARROW, NARROW],
        {"interleaved": 1, "rotary_embedding_dim": 4, "num_heads": 3},
    ),
    "DynamicQuantizeMatMul": Row(
        [floats(3, 6), (signed(6, 4),), GEMM[4], (S([1, -2, 3, 0]),), (floats(4),)]
    ),
    "DynamicQuantizeLSTM": Row(
        [
            floats(5, 1, 6), (weights(signed(1, 6, 12)),), (weights(signed(1, 3, 12)),),
            (floats(1, 24),), *[None] * 4, (F32([0.01]),), (S([0]),), (F32([0.02]),), (S([3]),),
        ],
        {"hidden_size": 3}, [F, F, F], rtol=1e-4,
    ),
    "DynamicQuantizeLSTM both ways": Row(
        [
            floats(4, 2, 6), (weights(signed(2, 6, 12)),), (weights(signed(2, 3, 12)),), None, None,
            floats(2, 2, 3), floats(2, 2, 3), None, (np.abs(floats(2, 12)) / 50,),
            (S([[0] * 12] * 2),), (np.abs(floats(2, 12)) / 50,), (S([[0] * 12] * 2),),
        ],
        {"hidden_size": 3, "direction": "bidirectional"}, [F, F, F], rtol=1e-4,
    ),
    "DynamicQuantizeLSTM of lengths": Row(
        [
            floats(4, 2, 6), (weights(signed(1, 6, 12)),), (weights(signed(1, 3, 12)),),
            None, INTS([4, 2]), *[None] * 3, (F32([0.01]),), (S([0]),), (F32([0.02]),), (S([3]),),
        ],
        {"hidden_size": 3}, [F, F, F], rtol=1e-4,
    ),
    "MatMulIntegerToFloat": Row(
        [bytes_of(3, 6), (signed(6, 4),), (F32(0.3),), GEMM[4], (U(7),), (S([1, 2, 3, 4]),)]
    ),
    "MatMulNBits": Row(
        [floats(3, 50), (bytes_of(6, 4, 8),), (floats(24),), (bytes_of(12),)],
        {"K": 50, "N": 6, "bits": 4, "block_size": 16},
    ),
    "QGemm": Row([*GEMM, (F32(2),), (U(99),)], {"transB": 1}, [U8], rtol=0),
    "QGemm to floats": Row(GEMM, {"transB": 1, "alpha": 0.5}),
    "QLinearAdd": Row(
        [bytes_of(2, 5), *PAIR, bytes_of(2, 5), (F32(0.1),), (U(99),), (F32(0.4),), (U(50),)],
        {}, [U8], 1,
    ),
    "QLinearMul": Row(
        [bytes_of(2, 5), *PAIR, bytes_of(2, 5), (F32(0.1),), (U(99),), (F32(3),), (U(50),)],
        {}, [U8], 1,
    ),
    "QLinearLeakyRelu": Row([bytes_of(2, 9), *UNARY], {"alpha": 0.2}, [U8], 1),
    "QLinearSigmoid": Row([bytes_of(2, 9), *SHARE], {}, [U8], 1),
    "QLinearSoftmax": Row([bytes_of(2, 9), *SHARE], {"axis": -1, "opset": 13}, [U8], 1),
    "QLinearGlobalAveragePool": Row(
        [bytes_of(1, 6, 6, 3), *UNARY], {"channels_last": 1}, [U8], 1
    ),
    "QLinearAveragePool": Row(
        [bytes_of(1, 3, 6, 6), *UNARY], {"kernel_shape": [3, 3], "pads": [1] * 4}, [U8], 1
    ),
    "QLinearConcat": Row(
        [(F32(0.2),), (U(3),), bytes_of(2, 3), *PAIR, bytes_of(2, 5), (F32(0.1),), (U(9),)],
        {"axis": 1}, [U8], 1,
    ),
    "QuantizeLinear": Row([floats(3, 9), (F32(0.01),), (np.uint16(1000),)], {}, [U16], rtol=0),
    "DequantizeLinear": Row([bytes_of(3, 9), (F32(0.01),), (U(9),)], rtol=0),
}  # fmt: skip


def _model(name: str) -> tuple[Any, dict[str, Any]]:
    row, op = ROWS[name], name.split()[0]
    names = ["" if v is None else f"v{k}" for k, v in enumerate(row.operands)]
    parts = list(zip(names, row.operands, strict=True))
    constants = {k: v[0] for k, v in parts if isinstance(v, tuple)}
    inputs = {k: v for k, v in parts if isinstance(v, np.ndarray)}
    outputs = [f"y{k}" if t else "" for k, t in enumerate(row.outputs)]
    domain = "" if op == SIMPLIFIED else "com.microsoft"
    node = helper.make_node(op, names, outputs, "the_node", domain=domain, **row.attrs)
    dtypes = {k: t for k, t in zip(outputs, row.outputs, strict=True) if t}
    return model_of([node], inputs, dtypes, constants), inputs


@pytest.mark.parametrize("name", ROWS)
def test_operator_agrees_with_onnxruntime(name: str) -> None:
    model, inputs = _model(name)
    check(model, inputs, expected(model, inputs), ROWS[name].steps, ROWS[name].rtol)


def test_every_reader_has_a_row() -> None:
    mine = {k.removeprefix("com.microsoft.") for k in READERS if k.startswith("com.microsoft.")}
    assert mine | {SIMPLIFIED} == {k.split()[0] for k in ROWS}


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "text"),
    [
        ("Attention", [X, *QKV, INTS([[1, 2, 3]])], HEADS, r"the mask int32\[1, 3\]"),
        ("Attention", [X, *QKV], {"num_heads": 3}, "no 3 heads"),
        ("FusedConv", [floats(1, 3, 7, 7), floats(4, 3, 3, 3)], {"activation": "Mish"}, "Mish"),
        ("QLinearConcat", [(F32(1),), (U(1),), bytes_of(2, 3)], {"axis": 1}, "3 operands"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_operator(
    op: str, operands: list[Any], attrs: dict[str, Any], text: str
) -> None:
    named = {f"v{k}": v[0] if isinstance(v, tuple) else v for k, v in enumerate(operands)}
    node = helper.make_node(op, [*named], ["y"], "the_node", domain="com.microsoft", **attrs)
    with pytest.raises(ModelError, match=rf"^node the_node \(com.microsoft.{op}\): .*{text}"):
        load_onnx(model_of([node], {"v0": named.pop("v0")}, {"y": F}, named))
