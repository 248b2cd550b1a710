"""x[condition] = number as PyTorch exports it: positions by NonZero, written by ScatterND."""

import numpy as np
import onnx
import pytest
from onnx_cases import check_stages, random_inputs

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.load import load_onnx

OPSET = '<ir_version: 8, opset_import: ["" : 18]>'


def model(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{OPSET} g {graph}")


def written(mask: str, number: str = "{7}", count: str = "1") -> onnx.ModelProto:
    """y is x with a number where the mask, computed by the nodes `mask` from x, holds."""
    return model(
        f"""(float[3,4] x) => (float[3,4] y)
        <float[{count}] number = {number}, float zero = {{0}}, int64[1] all = {{-1}}> {{
            {mask}
            places = NonZero(mask)
            rows = Transpose<perm = [1, 0]>(places)
            flat = Reshape(mask, all)
            ones = Cast<to = 7>(flat)
            many = ReduceSum(ones)
            repeated = Expand(number, many)
            updates = Reshape(repeated, all)
            y = ScatterND(x, rows, updates)
        }}"""
    )


WHOLE = "mask = Greater(x, zero)"


def test_elements_under_a_condition() -> None:
    check_stages(written(WHOLE), random_inputs([(3, 4)]))
    kinds = {n.op for n in load_onnx(written(WHOLE)).nodes}
    assert "where" in kinds and "scatter_nd" not in kinds


def test_rows_under_a_condition() -> None:
    proto = model(
        """(float[3,4] x) => (float[3,4] y)
        <float[1,1] number = {7}, float zero = {0}, int64[2] shape = {-1, 4}, int64[1] axis = {1}> {
            sum = ReduceSum<keepdims = 0>(x, axis)
            mask = Greater(sum, zero)
            places = NonZero(mask)
            rows = Transpose<perm = [1, 0]>(places)
            kept = Cast<to = 7>(mask)
            many = ReduceSum(kept)
            four = Constant<value_ints = [4]>()
            size = Concat<axis = 0>(many, four)
            updates = Expand(number, size)
            y = ScatterND(x, rows, updates)
        }"""
    )
    x = np.float32([[1, 2, 3, 4], [-1, -2, -3, -4], [1, -2, 0, 3]])
    check_stages(proto, [x], [np.where(x.sum(1, keepdims=True) > 0, np.float32(7), x)])


def test_constant_conditions_may_write_different_numbers() -> None:
    proto = model(
        """(float[3] x) => (float[3] y) <bool[3] mask = {1, 0, 1}, float[2] numbers = {5, 6}> {
            places = NonZero(mask)
            rows = Transpose<perm = [1, 0]>(places)
            y = ScatterND(x, rows, numbers)
        }"""
    )
    check_stages(proto, [np.float32([1, 2, 3])])


def test_different_numbers_under_a_condition_are_refused() -> None:
    with pytest.raises(ModelError, match=r"\(ScatterND\).*float32\[2\].*only one number"):
        load_onnx(written(WHOLE, "{1, 2}", "2"))
