"""Nodes with operands of other types than float32 data, with extremes, or of constants alone."""

from typing import Any

import numpy as np
import onnx


def int64(*values: int) -> Any:
    return np.asarray(values, np.int64)


def weights(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


NAN, INF = np.nan, np.inf
ODD = np.float32([[0.0, -0.0, NAN, INF, -INF], [0.5, -1.0, 1.0, 3e38, -1e-45]])
WHOLE = np.int32([[7, -7, 2**31 - 1], [-(2**31), 0, 5]])
LONG = np.int64([[2**62, -5, 9], [-(2**63), 0, 2**40 + 1]])
# operator, attributes, operands (an input each unless in the set), positions of constants, opset
IN_OTHER_TYPES: list[tuple[str, dict[str, Any], list[Any], set[int], int]] = [
    ("IsNaN", {}, [ODD], set(), 20),
    ("IsInf", {}, [ODD], set(), 20),
    ("IsInf", {"detect_negative": 0}, [ODD], set(), 10),
    ("IsInf", {"detect_positive": 0}, [ODD], set(), 20),
    ("IsInf", {"detect_positive": 0, "detect_negative": 0}, [ODD], set(), 20),
    ("IsNaN", {}, [ODD.astype(np.float64)], set(), 20),
    *((op, {}, [ODD], set(), 22) for op in ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan")),
    *((op, {}, [ODD], set(), 22) for op in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")),
    ("Sin", {}, [np.float64([1e5, NAN, INF])], set(), 22),
    ("Cos", {}, [np.zeros((0, 3), np.float32)], set(), 22),
    ("Mod", {"fmod": 1}, [ODD, np.float32([[2, 2, 2, 2, 2], [0.3, 0.7, 0, 7, INF]])], set(), 13),
    ("Mod", {"fmod": 1}, [np.float64([5.5, -5.5]), np.float64([-2, 2])], {1}, 13),
    ("Mod", {}, [np.float32([5.5, -5.5, 5.5, -4, 0]), np.float32([2, 2, -2, 2, 3])], set(), 13),
    ("Mod", {}, [ODD, np.float32([[2, 2, -2, 2, 2], [-0.3, 0.7, 0, 7, INF]])], set(), 13),
    ("Mod", {}, [WHOLE, np.int32([[2, 2, -3], [7, 3, -5]])], set(), 13),
    ("BitwiseAnd", {}, [WHOLE, np.int32([[3], [-2]])], set(), 18),
    ("BitwiseOr", {}, [LONG, np.int64([1, -1, 6])], set(), 18),
    ("BitwiseXor", {}, [WHOLE, WHOLE[::-1].copy()], {1}, 18),
    ("BitwiseNot", {}, [LONG], set(), 18),
    ("BitwiseNot", {}, [WHOLE], set(), 18),
    ("BitShift", {"direction": "LEFT"}, [WHOLE, np.int32([1, 31, 40])], set(), 28),
    ("BitShift", {"direction": "RIGHT"}, [LONG, np.int64([1, 63, 2])], set(), 28),
    ("CumSum", {}, [WHOLE, np.int64(1)], {1}, 14),
    ("CumSum", {}, [ODD, np.int64(1)], {1}, 14),
    ("CumSum", {"exclusive": 1}, [np.ones((1,), np.float32), np.int64(0)], {1}, 14),
    ("CumSum", {"reverse": 1}, [np.ones((0, 2), np.float32), np.int64(0)], {1}, 14),
    ("Hardmax", {"axis": 1}, [np.float32([[1, 3, 3], [NAN, 1, 2], [-INF] * 3])], set(), 13),
    ("OneHot", {}, [int64(1, -2, 9, -9), np.int64(4), np.float32([2, 5])], {1, 2}, 11),
    ("OneHot", {"axis": 0}, [int64(1, 0).reshape(1, 2), np.int64(3), np.int32([0, 1])], {1}, 11),
    ("OneHot", {"axis": 1}, [np.float32([1, 3]), np.float32(4), np.float32([0, 1])], {1, 2}, 11),
    ("EyeLike", {"k": 1}, [np.ones((3, 4), np.float32)], set(), 9),
    ("EyeLike", {"dtype": onnx.TensorProto.INT64, "k": -9}, [weights(3, 4)], set(), 9),
    ("NonZero", {}, [np.float32([[0, 1], [2, 0]])], {0}, 13),
    ("Compress", {"axis": 0}, [LONG, np.asarray([False, True])], {1}, 11),
    ("Unique", {}, [np.float32([2, 1, 1, 3, 4, 3])], {0}, 11),
    ("Unique", {"sorted": 0}, [np.float32([2, 1, 1, 3, 4, 3])], {0}, 11),
    ("Unique", {"axis": 0}, [np.float32([[1, 0], [1, 0], [0, 2]])], {0}, 11),
    ("Shape", {"start": -2, "end": -1}, [weights(2, 3, 4)], set(), 15),
    ("Shape", {"start": -9, "end": 9}, [weights(2, 3, 4)], set(), 15),
    # nothing, and one element
    ("Compress", {"axis": 0}, [LONG, np.asarray([False, False])], {1}, 11),
    ("NonZero", {}, [np.zeros((2, 2), np.int64)], {0}, 13),
    ("OneHot", {}, [int64(), np.int64(3), np.float32([0, 1])], {1, 2}, 11),
    ("Hardmax", {}, [np.zeros((2, 0), np.float32)], set(), 13),
    ("Hardmax", {}, [np.float32([NAN])], set(), 13),
    ("IsInf", {}, [np.zeros((0,), np.float32)], set(), 20),
    ("BitwiseNot", {}, [np.asarray(7, np.int32)], set(), 18),
    ("CumProd", {"exclusive": 1}, [np.float32([5]), np.int64(0)], {1}, 26),
    ("CumProd", {}, [WHOLE, np.int64(1)], {1}, 26),
    ("LpNormalization", {"p": 2}, [np.float32([[0, 0], [3, -4]])], set(), 22),
]
