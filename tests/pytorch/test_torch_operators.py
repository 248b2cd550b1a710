"""Every aten operator of the table: the imported graph's meaning is torch's result."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs ansorlite[torch]")

from torch_cases import Case, Lambda, check_meaning, fn, nn, rand  # noqa: E402

from ansorlite.graph.onnx.table import READERS as ONNX_READERS  # noqa: E402

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.5, 1e-9, 88.0, -88.0, INF, -INF, NAN])
WHOLE = torch.tensor([[7, -7, 3], [-3, 0, 5]])


def case(name: str, function: Any, *args: Any) -> Case:
    return Case(name, lambda: Lambda(function), lambda: args)


def layer(name: str, module: Any, *shape: int) -> Case:
    return Case(name, module, lambda: (rand(*shape),))


UNARY = (
    *("abs", "exp", "sqrt", "tanh", "sigmoid", "erf", "sign", "neg", "relu", "reciprocal"),
    *("rsqrt", "log", "log1p", "expm1", "exp2", "log2", "log10", "floor", "ceil", "round"),
    *("trunc", "isnan", "logical_not", "square", "frac"),
)
FUNCTIONS = (
    *("silu", "gelu", "mish", "softplus", "elu", "selu", "celu", "leaky_relu", "hardsigmoid"),
    *("hardtanh", "hardswish", "relu6", "softsign", "logsigmoid", "tanhshrink", "hardshrink"),
)
CASES = (
    *(case(name, getattr(torch, name), SPECIAL) for name in UNARY),
    *(case(name, getattr(fn, name), rand(4, 5) * 3) for name in FUNCTIONS),
    case("gelu_tanh", lambda x: fn.gelu(x, approximate="tanh"), rand(9)),
    case("softplus_beta", lambda x: fn.softplus(x, 2.0, 3.0), rand(9) * 4),
    case(
        "clamp", lambda x, y: (x.clamp(-1, 2), x.clamp(min=0.5), x.clamp(max=y)), rand(9), -rand(9)
    ),
    case("add_alpha", lambda a, b: torch.add(a, b, alpha=3), rand(3, 4), rand(4)),
    case("promoted", lambda a, b: (a + b, a * 2.5, b // 2, b / 2), rand(2, 3), WHOLE),
    case("integers", lambda a: (a % 3, a // 3, a * a, -a, a.abs(), 2 - a), WHOLE),
    case("trunc_div", lambda a: torch.div(a, 4, rounding_mode="trunc"), WHOLE),
    case("bits", lambda a: ((a > 0) & (a < 6), (a > 0) | (a == 0), (a > 0) ^ (a > 3)), WHOLE),
    case("pow", lambda a: (a**2, a**3, a.abs() ** 0.5, a.abs() ** 1.7, 2**a), rand(9)),
    case("compare", lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != 0.5), WHOLE, rand(3)),
    case("extremes", lambda a, b: (torch.maximum(a, b), torch.minimum(a, b)), SPECIAL, rand(11)),
    case("where", lambda a: torch.where(a > 0, a, -1.0), rand(9)),
    case("masked_fill", lambda a: a.masked_fill(a < 0, -INF), rand(9)),
    case("sums", lambda a: (a.sum(), a.sum(1), a.sum((0, 2), keepdim=True)), rand(3, 4, 5)),
    case("means", lambda a: (a.mean(), a.mean(-1, keepdim=True)), rand(3, 4, 5)),
    case("extreme", lambda a: (a.amax(1), a.amin(), a.max(2), a.min(0), a.max()), rand(3, 4, 5)),
    case("arg", lambda a: (a.argmax(), a.argmin(1), a.argmax(0, keepdim=True)), rand(3, 4)),
    case("any", lambda a: ((a > 1).any(), (a > 1).any(1), (a > -1).all(0)), rand(3, 4)),
    case("var", lambda a: (a.var(), a.std(1), torch.var_mean(a, 0, correction=0)), rand(3, 4)),
    case("norm", lambda a: (a.norm(), a.norm(1, dim=1), a.norm(INF, dim=0)), rand(3, 4)),
    case("prod", lambda a: (a.prod(1), a.prod()), rand(3, 5)),
    case("logsumexp", lambda a: a.logsumexp(1), rand(3, 5)),
    case("softmax", lambda a: (a.softmax(1), a.log_softmax(-1)), rand(3, 5)),
    case(
        "views", lambda a: (a.view(4, 3), a.T, a.unsqueeze(1), a.flatten(), a[:, None]), rand(3, 4)
    ),
    case("permute", lambda a: a.permute(2, 0, 1).reshape(5, -1), rand(3, 4, 5)),
    case("squeeze", lambda a: (a.squeeze(), a.squeeze(1)), rand(3, 1, 4)),
    case("expand", lambda a: a.expand(5, 3, 4) + 1, rand(3, 1)),
    case("slices", lambda a: (a[1:, ::2], a[-1], a[..., 2], a[:0], a[5:2]), rand(3, 6)),
    case("split", lambda a: (a.split(2), a.chunk(3, 1), a.unbind(1), a.split([1, 3])), rand(4, 3)),
    case(
        "cat", lambda a, b: (torch.cat([a, b, a]), torch.stack([a, b], 1)), rand(3, 4), rand(3, 4)
    ),
    case("repeat", lambda a: (a.repeat(2, 1, 3), a.repeat_interleave(2, 1)), rand(3, 2)),
    case("flip", lambda a: (a.flip(0, 1), a.roll(2, 1)), rand(3, 4)),
    case("pad", lambda a: (fn.pad(a, (1, 2), value=3.0), fn.pad(a, (1, -1, 0, 1))), rand(3, 4)),
    case(
        "pad_modes",
        lambda a: (fn.pad(a, (2, 1), "reflect"), fn.pad(a, (1, 2), "replicate")),
        rand(2, 3, 5),
    ),
    case("tri", lambda a: (a.tril(), a.triu(1)), rand(4, 4)),
    case(
        "likes",
        lambda a: (torch.zeros_like(a), torch.ones_like(a) + a, a.new_full((2,), 3)),
        rand(3),
    ),
    case(
        "embedding",
        lambda w, i: (fn.embedding(i, w), w.index_select(1, i[0])),
        rand(5, 4),
        torch.tensor([[0, 3], [2, 1]]),
    ),
    case(
        "index",
        lambda a, i: (a[i], a[:, i], a[:, i[:, None], i], a[i, :, i]),
        rand(4, 5, 6),
        torch.tensor([0, -1, 2]),
    ),
    case("constant_index", lambda a: (a[[2, 0]], a[:, torch.tensor([0, 2])]), rand(4, 3)),
    case("put", lambda a: a.masked_fill(a > 0, 2.0), rand(4, 3)),
    case(
        "products",
        lambda a, b: (a @ b, a[0] @ b, a[0] @ b[:, 0], b.T @ a.T),
        rand(3, 4),
        rand(4, 5),
    ),
    case(
        "batched",
        lambda a, b: (a @ b, torch.bmm(a, b), torch.einsum("bij,bjk->bik", a, b)),
        rand(2, 3, 4),
        rand(2, 4, 5),
    ),
    case(
        "addmm",
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        rand(5),
        rand(3, 4),
        rand(4, 5),
    ),
    layer("linear", lambda: nn.Linear(4, 3), 2, 5, 4),
    layer("conv1d", lambda: nn.Conv1d(4, 6, 3, padding="same"), 2, 4, 9),
    layer("conv2d", lambda: nn.Conv2d(4, 6, 3, 2, 1, 2, groups=2), 2, 4, 9, 8),
    layer("conv3d", lambda: nn.Conv3d(2, 3, 2), 1, 2, 4, 5, 3),
    layer("transposed", lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), 2, 4, 5, 4),
    layer("max_pool", lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), 2, 3, 8, 8),
    layer("max_pool1d", lambda: nn.MaxPool1d(3), 2, 3, 9),
    layer("avg_pool", lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), 2, 3, 8, 8),
    layer("avg_pool_inside", lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), 2, 3, 8, 8),
    layer("avg_pool1d", lambda: nn.AvgPool1d(2), 2, 3, 9),
    layer("avg_pool_divisor", lambda: nn.AvgPool2d(2, divisor_override=3), 3, 8, 8),
    layer("adaptive", lambda: nn.AdaptiveAvgPool2d((3, 5)), 2, 3, 7, 10),
    layer("adaptive_one", lambda: nn.AdaptiveAvgPool2d(1), 2, 3, 7, 10),
    layer("adaptive_max", lambda: nn.AdaptiveMaxPool2d((2, 5)), 2, 3, 8, 10),
    layer("batch_norm", lambda: nn.BatchNorm2d(4), 2, 4, 5, 5),
    layer("instance_norm", lambda: nn.InstanceNorm2d(4, affine=True), 2, 4, 5, 5),
    layer("group_norm", lambda: nn.GroupNorm(2, 4), 2, 4, 5, 5),
    layer("layer_norm", lambda: nn.LayerNorm((4, 5)), 2, 4, 5),
    layer("layer_norm_plain", lambda: nn.LayerNorm(5, elementwise_affine=False), 2, 5),
    layer("rms_norm", lambda: nn.RMSNorm(5), 2, 5),
    layer("prelu", lambda: nn.PReLU(3), 2, 3, 4),
    layer("glu", lambda: nn.GLU(1), 2, 6),
    layer("nearest", lambda: nn.Upsample(scale_factor=2), 1, 2, 3, 5),
    layer("nearest_to", lambda: nn.Upsample((5, 7)), 1, 2, 3, 5),
    layer("nearest1d", lambda: nn.Upsample(7), 1, 2, 3),
    layer("nearest_exact", lambda: nn.Upsample((5, 7), mode="nearest-exact"), 1, 2, 3, 5),
    layer("bilinear", lambda: nn.Upsample(scale_factor=1.6, mode="bilinear"), 1, 2, 5, 4),
    layer(
        "bilinear_corners",
        lambda: nn.Upsample((7, 3), mode="bilinear", align_corners=True),
        1,
        2,
        5,
        4,
    ),
    layer("bicubic", lambda: nn.Upsample((7, 3), mode="bicubic"), 1, 2, 5, 4),
    layer("trilinear", lambda: nn.Upsample(scale_factor=2, mode="trilinear"), 1, 2, 2, 3, 2),
    case(
        "antialias",
        lambda a: fn.interpolate(a, (3, 2), mode="bilinear", antialias=True),
        rand(1, 2, 7, 6),
    ),
    layer("pixel_shuffle", lambda: nn.PixelShuffle(2), 1, 8, 2, 3),
    layer("pixel_unshuffle", lambda: nn.PixelUnshuffle(2), 1, 2, 4, 6),
    case("attention", fn.scaled_dot_product_attention, *(rand(1, 2, 3, 4) for _ in range(3))),
    case(
        "attention_masked",
        lambda q, m: (
            fn.scaled_dot_product_attention(q, q, q, is_causal=True),
            fn.scaled_dot_product_attention(q, q, q, attn_mask=m),
            fn.scaled_dot_product_attention(q, q, q, attn_mask=torch.where(m, 0.0, -INF)),
        ),
        rand(1, 2, 3, 4),
        torch.tensor([[True, False, True], [False, False, False], [True, True, True]]),
    ),
    case("half", lambda a: (a * 2).half().float() > 1, rand(5)),
    case("half_input", lambda a: a * 3, rand(5).half()),
    case("bytes", lambda a: a.float() / 255, torch.tensor([0, 7, 255], dtype=torch.uint8)),
    case("casts", lambda a: (a.int(), a.long(), a.double() * 2, a.bool()), rand(9) * 3),
    case("positions", lambda a: a + torch.arange(4) * torch.tensor(2.0), rand(3, 4)),
)

PLACES = torch.tensor([[0, 2, 1], [1, 0, 2]])


def put(a: Any, places: Any, value: Any) -> Any:
    a = a.clone()
    a[places] = value
    return a


def assigned(a: Any) -> Any:
    b = a.clone()
    b[1] = 0
    b[:, 2] = b[:, 1] * 2
    b[b > 1] = 7
    return b


def attend_in_groups(q: Any, k: Any) -> Any:
    return fn.scaled_dot_product_attention(q, k, k, enable_gqa=True)


MORE = (
    case("groups_of_heads", attend_in_groups, rand(1, 4, 3, 4), rand(1, 2, 5, 4)),
    case("assigned", assigned, rand(3, 4)),
    case("unfold", lambda a: (a.unfold(1, 3, 2), fn.unfold(a, 3)), rand(1, 7, 7)),
)
SQUARES, BOUNDS = rand(2, 4, 4), torch.tensor([-1.0, 0.0, 1.0, 2.0])
LIKE = ((2, 4, 4), (16, 4, 1))
MORE += tuple(
    layer(f"{make.__name__}{layers}{both}", lambda m=make, o=options: m(4, 6, **o), 3, 2, 4)
    for make in (nn.LSTM, nn.GRU, nn.RNN)
    for layers, both in ((1, False), (2, True))
    for options in [{"num_layers": layers, "bidirectional": both, "batch_first": both}]
)
MORE += (
    case("diagonal", lambda a: (a.diagonal(1, 1, 2), a.diagonal(-1, 0, 2), a.diagonal(7)), SQUARES),
    case("einsum-diagonal", lambda a: torch.einsum("bii->bi", a), SQUARES),
    case("as_strided", lambda a: (a.as_strided((2, 3), (1, 4), 2), a.as_strided(*LIKE)), SQUARES),
    case("pool-last", lambda a: fn.adaptive_avg_pool2d(a.permute(0, 3, 1, 2), 1), rand(2, 3, 3, 4)),
    case(
        "fold",
        lambda a: fn.fold(fn.unfold(a, 3, padding=1), (4, 5), 3, padding=1),
        rand(1, 2, 4, 5),
    ),
    case(
        "index_put-axes",
        lambda a, b, i: (
            put(a, (slice(None), i[0]), b[:, [0, 1, 1]]),
            put(a, (slice(None), i[0], i[1]), b[:, 0]),
            put(a, (i[0], slice(None), i[1]), b[0, 0]),
        ),
        *(rand(3, 3, 3), rand(3, 2, 3), PLACES),
    ),
    case("masked-rows", lambda a: a.index_put((a.sum(1) > 0,), torch.arange(4.0)), rand(3, 4)),
    case("masked-columns", lambda a: put(a, (slice(None), a[0] > 0), 7.0), rand(3, 4)),
    case("cumprod", lambda a: a.cumprod(1), rand(3, 4)),
    case(
        "cdist",
        lambda a, b: (torch.cdist(a, b), torch.cdist(a, b, 1)),
        rand(2, 3, 4),
        rand(2, 5, 4),
    ),
    case(
        "bucketize",
        lambda a: (torch.bucketize(a, BOUNDS), torch.bucketize(a, BOUNDS, right=True)),
        torch.tensor([[-3.0, -1.0, 0.5], [1.0, 2.0, 9.0]]),
    ),
)
# By the operator of ONNX whose reader writes them.
BY_ONNX = {
    "Sin": [case(n, getattr(torch, n), SPECIAL) for n in ("sin", "cos")],
    "CumSum": [case("cumsum", lambda a: (a.cumsum(1), (a > 0).cumsum(0)), rand(3, 4))],
    "TopK": [case("topk", lambda a: (a.topk(2, 1), a.sort(0), a.argsort(1)), rand(3, 4))],
    "GatherElements": [case("gather", lambda a, i: a.gather(1, i), rand(2, 3), PLACES)],
    "ScatterElements": [
        case(
            "scatter",
            lambda a, i: (a.scatter(1, i, 3.0), a.scatter_add(1, i, a)),
            *(rand(2, 3), PLACES),
        )
    ],
    "ScatterND": [
        case(
            "index_put",
            lambda a, i: (a.index_put((i[0],), a), a.index_put((i[0],), a, accumulate=True)),
            *(rand(3, 4), PLACES),
        )
    ],
    "BitwiseAnd": [case("bitwise", lambda a: (a & 3, a | 8, a ^ 5, ~a), WHOLE)],
    "IsInf": [case("isinf", lambda a: (a.isinf(), a.isfinite()), SPECIAL)],
    "GridSample": [
        case(
            "grid_sample",
            lambda a, g: fn.grid_sample(a, g, "bilinear", "border", align_corners=True),
            *(rand(1, 2, 4, 4), rand(1, 3, 3, 2)),
        )
    ],
}
CASES += (*MORE, *(c for op, cases in BY_ONNX.items() if op in ONNX_READERS for c in cases))


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.name)
def test_meaning(one: Case) -> None:
    torch.manual_seed(0)
    check_meaning(one.module(), one.args())
