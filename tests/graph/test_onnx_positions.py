"""Positions that are inputs, against onnx's reference: all stages and native kernels."""

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_backend import compiled
from onnx_cases import check_stages

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.target import Target

RNG = np.random.default_rng(5)
REDUCTIONS = ("none", "add", "mul", "max", "min")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    op: str,
    inputs: list[Any],
    attrs: Any = None,
    known: Any = (),
    outputs: int = 1,
    opset: int = 18,
) -> onnx.ModelProto:
    """One node; operands of the numbers `known` are constants, None is left out."""
    make, names = onnx.helper, [f"x{k}" if v is not None else "" for k, v in enumerate(inputs)]
    infos, arrays = [], []
    for k, v in enumerate(inputs):
        if v is not None and k in known:
            arrays.append(onnx.numpy_helper.from_array(np.asarray(v), f"x{k}"))
        elif v is not None:
            kind = make.np_dtype_to_tensor_dtype(v.dtype)
            infos.append(make.make_tensor_value_info(f"x{k}", kind, v.shape))
    outs = [f"y{k}" for k in range(outputs)]
    node = make.make_node(op, names, outs, "the_node", **(attrs or {}))
    results = [make.make_tensor_value_info(o, 0, None) for o in outs]
    for r in results:
        r.ClearField("type")
    graph = make.make_graph([node], "net", infos, results, arrays)
    return make.make_model(graph, opset_imports=[make.make_opsetid("", opset)], ir_version=10)


def native(model: onnx.ModelProto) -> Any:
    return compiled(partition(optimize(load_onnx(model))), Target.detect())


def check(
    op: str,
    inputs: list[Any],
    attrs: Any = None,
    known: Any = (),
    outputs: int = 1,
    opset: int = 18,
    expected: list[Any] | None = None,
) -> None:
    model = model_of(op, inputs, attrs, known, outputs, opset)
    given = {f"x{k}": v for k, v in enumerate(inputs) if v is not None and k not in known}
    if expected is None:
        expected = ReferenceEvaluator(model).run(None, given)
    check_stages(model, list(given.values()), expected)
    got = native(model)(*given.values())
    for x, want in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        assert (x.dtype, x.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(x, want, rtol=2e-5, atol=2e-5)


def scattered(x: Any, places: Any, updates: Any, reduction: str) -> Any:
    """numpy's meaning: updates one after the other."""
    out = x.copy()
    for at in np.ndindex(*updates.shape):
        place = places(at)
        match reduction:
            case "none":
                out[place] = updates[at]
            case "add":
                out[place] += updates[at]
            case "mul":
                out[place] *= updates[at]
            case "max":
                out[place] = np.maximum(out[place], updates[at])
            case "min":
                out[place] = np.minimum(out[place], updates[at])
    return out


@pytest.mark.parametrize("known", [(), (1,)], ids=["input", "constant"])
def test_gathers(known: tuple[int, ...]) -> None:
    x = floats(3, 4, 5)
    check("GatherElements", [x, RNG.integers(-4, 4, (3, 6, 5))], {"axis": 1}, known)
    at = RNG.integers(-4, 4, (2, 6, 3))
    want = np.take_along_axis(x[:2, :, :3], at, 1)
    check("GatherElements", [x, at], {"axis": 1}, known, expected=[want])
    check("GatherND", [x, RNG.integers(-3, 3, (2, 1, 2))], {}, known)
    check("GatherND", [x, RNG.integers(-4, 4, (3, 2, 2))], {"batch_dims": 1}, known)
    check("GatherND", [x.astype(np.int64), RNG.integers(-3, 3, (2, 3))], {}, known)
    lengths = np.asarray([5, 1, 3], np.int64)
    check("ReverseSequence", [floats(5, 3, 2), lengths], {}, known)


@pytest.mark.parametrize("known", [(), (1,)], ids=["input", "constant"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_scatters(reduction: str, known: tuple[int, ...], dtype: str) -> None:
    """Positions repeat: without a reduction the last update counts."""
    x, updates = (floats(3, 4, 2) * 4).astype(dtype), (floats(2, 7, 2) * 4).astype(dtype)
    at = RNG.integers(-4, 4, (2, 7, 2))
    want = scattered(x, lambda i: (i[0], at[i], i[2]), updates, reduction)
    attrs = {"reduction": reduction}
    check("ScatterElements", [x, at, updates], {"axis": 1, **attrs}, known, expected=[want])
    at, updates = RNG.integers(-3, 3, (7, 2)), (floats(7, 2) * 4).astype(dtype)
    want = scattered(x, lambda i: (*at[i[0]], i[1]), updates, reduction)
    check("ScatterND", [x, at, updates], attrs, known, expected=[want])


def test_the_older_scatter() -> None:
    x, at, updates = floats(3, 4), RNG.integers(-3, 3, (2, 2)), floats(2, 2)
    want = scattered(x, lambda i: (at[i], i[1]), updates, "none")
    check("Scatter", [x, at, updates], {}, opset=9, expected=[want])


def test_one_update_and_none() -> None:
    x = floats(4, 3)
    for reduction in REDUCTIONS:
        at, one = np.asarray([[2]], np.int64), floats(1, 3)
        want = scattered(x, lambda i, at=at: (at[i[0], 0], i[1]), one, reduction)
        check("ScatterND", [x, at, one], {"reduction": reduction}, expected=[want])
    none = [x, np.zeros((0, 1), np.int64), np.zeros((0, 3), np.float32)]
    check("ScatterND", none, {}, known=(1, 2), expected=[x])


def test_a_cache_around_its_end() -> None:
    cache, new, at = floats(2, 3, 6, 4), floats(2, 3, 3, 4), np.asarray([1, 4], np.int64)
    check("TensorScatter", [cache, new, at], {"mode": "circular"}, opset=24)


@pytest.mark.parametrize("known", [(), (1,)], ids=["input", "constant"])
@pytest.mark.parametrize(
    ("op", "shape"), [("GatherElements", (2, 1)), ("GatherND", (2, 1)), ("ScatterND", (1, 1))]
)
def test_an_index_outside_is_an_error(op: str, shape: tuple[int, int], known: Any) -> None:
    x, at = floats(3, 4), np.full(shape, -4, np.int64)
    inputs = [x, at, floats(1, 4)] if op == "ScatterND" else [x, at]
    with pytest.raises(ModelError, match=r"the_node.*-4.*from -3 to 2"):
        native(model_of(op, inputs, {}, known))(
            *(v for k, v in enumerate(inputs) if k not in known)
        )


def test_what_would_take_hours_is_refused() -> None:
    at = np.zeros((1 << 17, 1), np.int64)
    with pytest.raises(ModelError, match=r"the_node.*131072 updates of 131072 rows.*limit"):
        load_onnx(model_of("ScatterND", [floats(1 << 17), at, floats(1 << 17)]))
    inputs = [floats(1 << 17), np.asarray([1 << 16])]
    with pytest.raises(ModelError, match=r"the_node.*the first 65536 elements.*limit"):
        load_onnx(model_of("TopK", inputs, known=(1,), outputs=2))


# ---- rankings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_the_first_elements_in_order(largest: int, dtype: str) -> None:
    """Equal elements stay in order; NaN is greater than every number, and zeros are equal."""
    x = np.asarray([[3, 1, 3, 2, 1, 3], [0, -5, 2, 2, 7, -5]], dtype)
    if dtype == "float32":
        x = np.stack([*x, [np.nan, np.inf, -0.0, 0.0, np.nan, -np.inf]]).astype(dtype)
    order = np.argsort(x[:, ::-1], kind="stable")[:, ::-1]
    places = x.shape[1] - 1 - order if largest else np.argsort(x, kind="stable")
    for count, axis in ((4, 1), (1, -1)):
        at = np.ascontiguousarray(places[:, :count])
        want = [np.take_along_axis(x, at, 1), at]
        attrs = {"largest": largest, "axis": axis}
        check("TopK", [x, np.asarray([count])], attrs, (1,), outputs=2, expected=want)


@pytest.mark.parametrize(("largest", "count"), [(1, 5), (0, 5), (1, 1), (0, 1)])
def test_the_first_of_many_elements(largest: int, count: int) -> None:
    """An axis that is ranked in blocks; the last block is short, equal elements are everywhere."""
    x = RNG.integers(-40, 40, (2, 700)).astype(np.float32)
    x[0, [3, 690]], x[1] = np.nan, np.where(RNG.random(700) < 0.6, np.nan, x[1])
    x[1, 5:] = np.nan
    order = np.argsort(x[:, ::-1], kind="stable")[:, ::-1]
    at = (699 - order if largest else np.argsort(x, kind="stable"))[:, :count].copy()
    want = [np.take_along_axis(x, at, 1), at]
    check("TopK", [x, np.asarray([count])], {"largest": largest}, (1,), outputs=2, expected=want)


def test_no_first_elements() -> None:
    for out in load_onnx(
        model_of("TopK", [floats(2, 3), np.asarray([0])], {}, (1,), 2)
    ).types.items():
        assert out[0].startswith("x") or 0 in out[1].shape


def test_norms_of_whole_images() -> None:
    x = floats(2, 3, 4, 5)
    for p in (1, 2, 3):
        want = (np.abs(x) ** p).sum(axis=(2, 3), keepdims=True) ** (1 / p)
        check("GlobalLpPool", [x], {"p": p}, expected=[want.astype(np.float32)])


def test_both_outputs_of_a_max_pool() -> None:
    x = floats(2, 3, 7, 6)
    x[0, 0, :3, :3] = np.nan, 1, 1
    for attrs in (
        {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]},
        {"kernel_shape": [3, 2], "dilations": [2, 1], "storage_order": 1},
    ):
        clean = np.nan_to_num(x)
        check("MaxPool", [np.round(clean)], attrs, outputs=2, opset=17)
    got, at = native(model_of("MaxPool", [x], {"kernel_shape": [2, 2]}, outputs=2))(x)
    np.testing.assert_array_equal(x.ravel()[at], got)


# ---- contractions and transforms ----------------------------------------------------------------

EQUATIONS = [
    ("ij->ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij->j", [(3, 3, 2)]),
    ("iii", [(3, 3, 3)]),
    ("...ij->...ji", [(2, 5, 3, 4)]),
    ("...", [(2, 3)]),
    ("i,j->ij", [(2,), (3,)]),
    ("i,i", [(3,), (3,)]),
    ("bij,bjk", [(2, 3, 4), (2, 4, 5)]),
    ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("i...,...->i...", [(3, 2, 4), (2, 4)]),
    ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
    ("ab,ab,ab->a", [(2, 3)] * 3),
    ("ai,bj,ck->abc", [(2, 3), (3, 2), (2, 2)]),
    ("ij,kj->i", [(2, 3), (4, 3)]),
    ("A,a->Aa", [(2,), (3,)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[e for e, _ in EQUATIONS])
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [floats(*s) for s in shapes]
    want = np.asarray(np.einsum(equation, *arrays), np.float32)
    check("Einsum", arrays, {"equation": equation}, expected=[want])


@pytest.mark.parametrize(("inverse", "onesided"), list(itertools.product((0, 1), (0, 1))))
def test_transforms(inverse: int, onesided: int) -> None:
    attrs = {"inverse": inverse, "onesided": onesided}
    x = floats(2, 5, 3, 2) if inverse else floats(2, 5, 3, 1)
    for length in (None, np.asarray(8), np.asarray(4)):
        want = transformed(x, 1, length, inverse, onesided)
        check("DFT", [x, length, np.asarray(1)], attrs, (1, 2), opset=20, expected=[want])


def transformed(x: Any, axis: int, length: Any, inverse: int, onesided: int) -> Any:
    numbers = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    size = x.shape[axis] if length is None else int(length)
    if inverse and onesided:
        size = 2 * (x.shape[axis] - 1) if length is None else size
        return np.fft.irfft(numbers, size, axis)[..., None].astype(np.float32)
    full = (np.fft.ifft if inverse else np.fft.fft)(numbers, size, axis)
    full = full[:, : size // 2 + 1] if onesided else full
    return np.stack([full.real, full.imag], -1).astype(np.float32)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op: str, periodic: int) -> None:
    model = model_of(op, [np.asarray(10)], {"periodic": periodic}, (0,))
    (got,) = load_onnx(model).constants.values()
    (want,) = ReferenceEvaluator(model).run(None, {})
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_mel_bands() -> None:
    values = [np.asarray(v) for v in (8, 64, 8192, np.float32(0), np.float32(4096))]
    model = model_of("MelWeightMatrix", values, {}, range(5))
    (got,) = load_onnx(model).constants.values()
    (want,) = ReferenceEvaluator(model).run(None, {})
    np.testing.assert_allclose(got, want, atol=1e-6)


# ---- sampling -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "padding"), list(enumerate(("zeros", "border", "reflection"))))
@pytest.mark.parametrize(("k", "mode"), list(enumerate(("linear", "nearest", "cubic"))))
def test_grids(k: int, mode: str, p: int, padding: str) -> None:
    align = (k + p) % 2
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    grid = RNG.uniform(-2.3, 2.3, (2, 3, 4, 2)).astype(np.float32)
    check("GridSample", [floats(2, 2, 4, 5), grid], attrs, opset=20)
    if mode != "cubic" and padding != "border":
        grid = RNG.uniform(-1.5, 1.5, (1, 2, 3, 2, 3)).astype(np.float32)
        check("GridSample", [floats(1, 2, 3, 4, 5), grid], attrs, opset=20)


def test_positions_that_are_no_numbers_read_nothing_else() -> None:
    x, grid = floats(1, 1, 3, 3), np.zeros((1, 1, 4, 2), np.float32)
    grid[0, 0, :, 0] = np.nan, np.inf, -np.inf, 3e38
    for mode, padding in itertools.product(("linear", "nearest", "cubic"), ("zeros", "border")):
        attrs = {"mode": mode, "padding_mode": padding}
        got = native(model_of("GridSample", [x, grid], attrs, opset=20))(x, grid)
        if padding == "zeros":
            assert not np.any(got[..., 1:])
        else:
            assert np.all(np.isfinite(got[..., 1:]))


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_boxes(mode: str, ratio: int) -> None:
    boxes = np.asarray([[0, 1, 7, 9], [2, 2, 5, 4], [1, 0, 9, 3]], np.float32)
    attrs = {"output_height": 2, "output_width": 3, "spatial_scale": 0.75, "mode": mode}
    for spelled in ("half_pixel", "output_half_pixel"):
        attrs |= {"sampling_ratio": ratio, "coordinate_transformation_mode": spelled}
        inputs = [floats(2, 3, 6, 7), boxes, np.asarray([1, 0, 1], np.int64)]
        check("RoiAlign", inputs, attrs, () if ratio else (1,), opset=16)


def test_boxes_of_unknown_sizes_are_refused() -> None:
    inputs = [floats(1, 1, 4, 4), floats(1, 4), np.zeros(1, np.int64)]
    with pytest.raises(ModelError, match=r"the_node.*set sampling_ratio"):
        load_onnx(model_of("RoiAlign", inputs, {}))


def test_unpooling() -> None:
    x, at = floats(1, 2, 2, 2), np.asarray([5, 7, 13, 15, 16, 18, 24, 31]).reshape(1, 2, 2, 2)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check("MaxUnpool", [x, at], attrs)
    check("MaxUnpool", [x, at, np.asarray([1, 2, 5, 6])], attrs, (2,))
    with pytest.raises(ModelError, match="the_node"):
        native(model_of("MaxUnpool", [x, at], attrs))(x, at[:, ::-1].copy())


def test_suppression_of_constants() -> None:
    boxes = np.asarray(
        [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 5, 1, 6], [1, 6.02, 0, 5]]], np.float32
    )
    scores = np.asarray([[[0.9, 0.95, 0.5, 0.4], [0.1, 0.8, 0.8, 0.2]]], np.float32)
    limits = [np.asarray([3]), np.float32([0.5]), np.float32([0.15])]
    model = model_of("NonMaxSuppression", [boxes, scores, *limits], {}, range(5))
    (got,) = load_onnx(model).constants.values()
    (want,) = ReferenceEvaluator(model).run(None, {})
    np.testing.assert_array_equal(got, want)
    with pytest.raises(ModelError, match=r"the_node.*depends on the input"):
        load_onnx(model_of("NonMaxSuppression", [boxes, scores, *limits], {}, (2, 3, 4)))


# ---- attention ----------------------------------------------------------------------------------


def masks() -> list[Any]:
    whole = RNG.random((3, 5)) < 0.6
    whole[1] = False  # a query that may attend nothing
    bias = floats(2, 1, 3, 5)
    bias[0, 0, 2] = -np.inf
    return [None, whole, bias, RNG.random((2, 4, 3, 4)) < 0.7]


@pytest.mark.parametrize(
    ("heads", "mask", "causal"), [(1, 0, 1), (2, 1, 0), (4, 1, 1), (2, 2, 1), (1, 3, 0), (4, 3, 1)]
)
def test_attention(heads: int, mask: int, causal: int) -> None:
    """Heads with keys of their own, in groups, and one key for all; masks, also short ones."""
    inputs = [floats(2, 4, 3, 6), floats(2, heads, 5, 6), floats(2, heads, 5, 4), masks()[mask]]
    check("Attention", inputs, {"is_causal": causal}, opset=24)


def test_attention_with_a_past_and_all_outputs() -> None:
    inputs = [floats(2, 3, 8), floats(2, 3, 4), floats(2, 3, 4), None]
    inputs += [floats(2, 1, 2, 4), floats(2, 1, 2, 4)]
    for mode in range(1, 4):
        attrs = {"q_num_heads": 2, "kv_num_heads": 1, "is_causal": 1, "softcap": 2.0}
        attrs |= {"qk_matmul_output_mode": mode, "scale": 0.3}
        check("Attention", inputs, attrs, outputs=4, opset=24)


def test_attention_in_a_padded_cache() -> None:
    lengths = np.asarray([2, 5], np.int64)
    inputs = [floats(2, 2, 3, 4), floats(2, 2, 6, 4), floats(2, 2, 6, 4), None, None, None, lengths]
    check("Attention", inputs, {"is_causal": 1}, opset=24)
    check("Attention", inputs, {}, opset=24)


@pytest.mark.parametrize("mixed", [0, 1])
def test_rotary_positions(mixed: int) -> None:
    ids, attrs = RNG.integers(0, 9, (2, 3)), {"interleaved": mixed}
    cos, sin = floats(9, 4), floats(9, 4)
    check("RotaryEmbedding", [floats(2, 4, 3, 8), cos, sin, ids], attrs, opset=23)
    attrs |= {"num_heads": 2, "rotary_embedding_dim": 8}
    check("RotaryEmbedding", [floats(2, 3, 20), cos, sin, ids], attrs, opset=23)
    check("RotaryEmbedding", [floats(2, 3, 20), cos[ids], sin[ids]], attrs, opset=23)
