"""The operator suite: every case builds; FLOP formulas agree with the DAGs, values with loops."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.target import Target
from ansorlite.te.tensor import Placeholder
from ansorlite.workloads.ops import (
    DEFINITIONS,
    arithmetic,
    define,
    find,
    operators,
    parse_case,
    workload,
)

Array = npt.NDArray[np.float64]
Params = Mapping[str, int]
HOST = Target.cross("x86-avx2")
CASES = [(name, i) for name, op in operators().items() for i in range(len(op.cases))]


# ---- shapes -------------------------------------------------------------------------------------


def test_the_suite_is_complete() -> None:
    names = "C1D C2D C3D GMM GRP DIL DEP T2D CAP NRM ConvLayer TBG TBS SFM"
    assert " ".join(operators()) == " ".join(DEFINITIONS) == names
    assert all(len(op.cases) == 4 for op in operators().values())
    assert all(op.cases[0][0] == 1 for op in operators().values() if op.batch)
    assert all(op.batch in ("", op.parameters[0]) for op in operators().values())


@pytest.mark.parametrize(("name", "index"), CASES, ids=[f"{n}:{i}" for n, i in CASES])
def test_every_case_builds_and_counts_as_its_formula(name: str, index: int) -> None:
    op = operators()[name]
    for batch in (1, 16) if op.batch else (1,):
        params = op.case(index, batch)
        task = workload(name, index, batch, target=HOST)
        assert task.flop == op.count_flop(params)
        assert task.dag.outputs[0].dtype == "float32"


@pytest.mark.parametrize(
    ("case", "flop"),
    [
        # By hand from the shapes; they also give the rates published beside Ansor's logs.
        ("C1D:0", 2 * 128 * 128 * 3 * 64),
        ("C2D:0", 2 * 112 * 112 * 64 * 49 * 3),
        ("C3D:3", 2 * 16 * 49 * 512 * 27 * 512),
        ("GMM:1", 2 * 512 * 512 * 32),
        ("GRP:0", 2 * 28 * 28 * 128 * 9 * 16),
        ("DIL:0", 2 * 109 * 109 * 64 * 49 * 3),
        ("DEP:1", 2 * 56 * 56 * 64 * 9),
        ("T2D:0", 2 * 16 * 16 * 256 * 512),
        ("CAP:2", 2 * 64 * 16 * 16 * 9 * 4 * 8),
        ("NRM:3", 2 * 4096 * 1024 + 1),
        ("ConvLayer:2", 14 * 14 * 256 * (2 * 128 + 4)),
        ("TBG:3", 2 * 12 * 128 * 128 * 128),
        ("TBS:2", 12 * 64 * 64 * (2 * 128 + 5)),
        ("SFM:0", 5 * 256 * 256),
    ],
)
def test_flop(case: str, flop: int) -> None:
    name, index = parse_case(case)
    op = operators()[name]
    assert op.count_flop(op.case(index)) == flop


def test_batch_replaces_the_first_number() -> None:
    assert workload("C2D", 2, batch=16, target=HOST).inputs[0].shape == (16, 14, 14, 256)
    one, many = (workload("TBG:0", batch=b, target=HOST) for b in (1, 16))
    assert one.flop * 16 == many.flop
    assert one.workload_key != many.workload_key


def _inputs(case: str, **options: Any) -> dict[str, Placeholder]:
    return {x.name: x for x in workload(case, target=HOST, **options).inputs}


def test_which_inputs_are_constant() -> None:
    for name in operators():
        constant = {n for n, x in _inputs(name).items() if x.constant}
        wanted = {"weight"} if "weight" in _inputs(name) else set()
        if name == "ConvLayer":
            wanted |= {"bias", "scale", "offset"}
        assert constant == wanted, name
        assert not any(x.constant for x in _inputs(name, constant_weights=False).values())
    assert set(_inputs("GMM")) == {"A", "B"}
    assert {n for n, x in _inputs("GMM", constant_weights=True).items() if x.constant} == {"B"}
    assert list(_inputs("TBS")) == ["query", "value"]


def test_workload_keys_differ() -> None:
    keys = [workload(n, i, target=HOST).workload_key for n, i in CASES]
    assert len(set(keys)) == len(keys)
    assert len({workload("C2D", 1, constant_weights=c).workload_key for c in (True, False)}) == 2


def test_stages() -> None:
    """Padding, element-wise stages and softmax are stages of their own."""

    def names(case: str) -> list[str]:
        return [op.name for op in workload(case, target=HOST).dag.computes]

    assert names("C2D:0") == ["pad", "conv"]
    assert names("C2D:1") == ["conv"]
    assert names("ConvLayer:0") == ["pad", "conv", "biased", "scaled", "moved", "relu"]
    assert names("NRM") == ["squares", "norm"]
    assert names("SFM") == ["softmax_max", "softmax_exp", "softmax_sum", "softmax"]
    assert names("TBS") == ["query_t", "value_t", "matmul", *names("SFM")]
    assert names("T2D") == ["pad", "weight_phases", "conv_phases", "conv"]
    conv = workload("T2D", target=HOST).dag.computes[2]
    assert " ".join(a.name for a in conv.axes + conv.reduce_axes) == "n h ph w pw co kh kw ci"
    (cap,) = workload("CAP", target=HOST).dag.outputs
    assert [a.name for a in cap.reduce_axes] == ["kh", "kw", "cap_k", "ci"]


# ---- names and errors ---------------------------------------------------------------------------


def test_names_in_any_case() -> None:
    assert find("convlayer").name == "ConvLayer"
    assert parse_case("c2d:3") == ("C2D", 3)
    assert parse_case("gmm") == ("GMM", 0)
    assert workload("gmm:1", target=HOST) == workload("GMM", 1, target=HOST)
    assert workload("sfm:1", target=HOST).name == "SFM:1"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: workload("C4D"), "unknown workload 'C4D': choose one of C1D, C2D"),
        (lambda: workload("C2D", 4), "C2D has no case 4: choose one of C2D:0 to C2D:3"),
        (lambda: workload("C2D:7"), "C2D has no case 7"),
        (lambda: workload("C2D", -1), "no case -1"),
        (lambda: workload("C2D:x"), "'C2D:x' is no case: write C2D:0 to C2D:3"),
        (lambda: workload("C2D:-1"), "is no case"),
        (lambda: workload("C2D", batch=0), "batch of C2D is 0: give at least 1"),
        (lambda: workload("SFM", batch=16), "batch of SFM is 16: SFM has no batch"),
        (lambda: define("GMM", {"B": 1}), "GMM takes the parameters B, N, M, K"),
        (lambda: define("GRP", _grp(CI=6, g=4)), "4 groups do not divide 6"),
        (lambda: define("T2D", _conv(k=2, p=4)), "its padding is too much"),
    ],
)
def test_errors(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()


def test_arithmetic() -> None:
    names = {"a": 7, "b": 2}
    assert arithmetic("(a + b) * -3 - a // b", names) == -30
    assert arithmetic(" 12 ", names) == 12


@pytest.mark.parametrize(
    "formula",
    ["__import__('os')", "a.real", "a ** b", "c + 1", "a if b else 1", "'a'", "1.5", "a[0]", "True",
     "a +", "a; b", "a / b", "[a]", "lambda: 1", ""],
)  # fmt: skip
def test_arithmetic_is_only_arithmetic(formula: str) -> None:
    with pytest.raises(ModelError):
        arithmetic(formula, {"a": 7, "b": 2})


# ---- values -------------------------------------------------------------------------------------


def _conv(**changes: int) -> dict[str, int]:
    return {"N": 2, "H": 5, "W": 4, "CI": 3, "CO": 2, "k": 3, "s": 1, "p": 1} | changes


def _dep(**changes: int) -> dict[str, int]:
    return {"N": 2, "H": 5, "W": 4, "C": 3, "k": 3, "s": 1, "p": 1} | changes


def _grp(**changes: int) -> dict[str, int]:
    return _conv(CI=4, CO=6, g=2, d=1) | changes


TINY: list[tuple[str, dict[str, int]]] = [
    ("C1D", {"N": 2, "L": 7, "CI": 3, "CO": 4, "k": 3, "s": 2, "p": 1}),
    ("C1D", {"N": 1, "L": 6, "CI": 2, "CO": 2, "k": 1, "s": 2, "p": 0}),
    ("C1D", {"N": 1, "L": 6, "CI": 2, "CO": 2, "k": 5, "s": 1, "p": 2}),
    ("C2D", _conv()),
    ("C2D", _conv(s=2, p=0)),
    ("C2D", _conv(k=4, s=3, p=2)),
    ("C3D", _conv(D=3, N=1)),
    ("C3D", _conv(D=4, s=2)),
    ("GMM", {"B": 2, "N": 3, "M": 5, "K": 4}),
    ("GRP", _grp()),
    ("GRP", _grp(s=2, d=2, p=2)),
    ("DIL", _conv(d=2, p=1, H=6, W=5)),
    ("DIL", _conv(d=2, s=2, p=3)),
    ("DEP", _dep()),
    ("DEP", _dep(s=2)),
    *(
        ("T2D", _conv(H=3, W=2, k=k, s=s, p=p))
        for k, s, p in [(4, 2, 1), (3, 2, 0), (3, 1, 1), (2, 3, 0), (5, 3, 2), (3, 2, 2), (1, 2, 0)]
    ),
    ("CAP", _conv(H=3, W=3, CI=2, CO=2, s=2)),
    ("CAP", _conv(H=3, W=2, CI=2, CO=1)),
    ("NRM", {"B": 3, "M": 4, "N": 5}),
    ("ConvLayer", _conv(s=2)),
    ("TBG", {"N": 2, "L": 3, "H": 2, "D": 4}),
    ("TBS", {"N": 1, "L": 4, "H": 3, "D": 2}),
    ("SFM", {"M": 3, "N": 6}),
]


def _convolve(x: Array, w: Array, p: Params) -> Array:
    """[N, *s, CI] with [*k, CI, CO], a product at a time over the positions of the kernel."""
    rank, s, q, d = x.ndim - 2, p["s"], p["p"], p.get("d", 1)
    wide = np.pad(x, [(0, 0), *[(q, q)] * rank, (0, 0)])
    out = [(n - d * (p["k"] - 1) - 1) // s + 1 for n in wide.shape[1:-1]]
    y = np.zeros((x.shape[0], *out, w.shape[-1]))
    for at in itertools.product(*(range(n) for n in out)):
        for kernel in itertools.product(range(p["k"]), repeat=rank):
            pixel = wide[(slice(None), *(a * s + k * d for a, k in zip(at, kernel, strict=True)))]
            y[(slice(None), *at)] += pixel @ w[kernel]
    return y


def _t2d(x: Array, w: Array, p: Params) -> Array:
    """Each element of x adds a kernel to the result, which then loses its padding."""
    k, s, q = p["k"], p["s"], p["p"]
    full = np.zeros((p["N"], (p["H"] - 1) * s + k, (p["W"] - 1) * s + k, p["CO"]))
    for h, v, kh, kw in itertools.product(range(p["H"]), range(p["W"]), range(k), range(k)):
        full[:, h * s + kh, v * s + kw] += x[:, h, v] @ w[kh, kw]
    return full[:, q : full.shape[1] - q, q : full.shape[2] - q]


def _cap(x: Array, w: Array, p: Params) -> Array:
    """For each pair of capsule rows and columns, and each step of their product, a convolution."""
    y = [[sum(_convolve(x[:, :, :, i, c], w[:, :, c, j], p) for c in range(4)) for j in range(4)]
         for i in range(4)]  # fmt: skip
    return np.moveaxis(np.array(y), (0, 1), (3, 4))


def _grouped(x: Array, w: Array, p: Params) -> Array:
    parts = [
        _convolve(part, w[:, :, :, g], p) for g, part in enumerate(np.split(x, p["g"], axis=-1))
    ]
    return np.stack(parts, axis=-2)


def _depthwise(x: Array, w: Array, p: Params) -> Array:
    each = [_convolve(x[..., [c]], w[..., [c], None], p) for c in range(p["C"])]
    return np.concatenate(each, axis=-1)


def _layer(x: Array, w: Array, b: Array, scale: Array, offset: Array, p: Params) -> Array:
    return np.maximum((_convolve(x, w, p) + b) * scale + offset, 0)


def _scores(q: Array, v: Array, p: Params) -> Array:
    y = np.zeros((p["N"], p["H"], p["L"], p["L"]))
    for n, h, i, j in np.ndindex(y.shape):
        y[n, h, i, j] = sum(q[n, i, h, d] * v[n, j, h, d] for d in range(p["D"]))
    return y


def _softmax(x: Array) -> Array:
    y = np.empty_like(x)
    for at in np.ndindex(x.shape[:-1]):
        e = [math.exp(v) for v in x[at]]
        y[at] = [v / sum(e) for v in e]
    return y


REFERENCES: dict[str, Callable[..., Array]] = {
    **dict.fromkeys(["C1D", "C2D", "C3D", "DIL"], _convolve),
    "GMM": lambda a, b, p: np.array([x @ y for x, y in zip(a, b, strict=True)]),
    "GRP": _grouped,
    "DEP": _depthwise,
    "T2D": _t2d,
    "CAP": _cap,
    "NRM": lambda a, p: np.array([math.sqrt(sum(v * v for v in m.reshape(-1))) for m in a]),
    "ConvLayer": _layer,
    "TBG": _scores,
    "TBS": lambda q, v, p: _softmax(_scores(q, v, p)),
    "SFM": lambda a, p: _softmax(a),
}


@pytest.mark.parametrize(
    ("name", "params"), TINY, ids=[f"{n}-{'-'.join(map(str, p.values()))}" for n, p in TINY]
)
def test_values(name: str, params: dict[str, int]) -> None:
    dag = te.ComputeDAG([define(name, params)])
    rng = np.random.default_rng(3)
    arrays = {
        x.name: rng.standard_normal([int(str(n)) for n in x.shape]).astype(np.float32)
        for x in dag.inputs
    }
    (got,) = dag.evaluate(arrays).values()
    want = REFERENCES[name](*(a.astype(np.float64) for a in arrays.values()), params)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_tiny_shapes_cover_the_suite() -> None:
    assert {name for name, _ in TINY} == set(operators())
