"""PyTorch as a peer: each case of the operator suite in its best mode.

In: {name, params, threads} as in workloads/ops.toml. Modes tried for convolutions: eager,
frozen and optimised for inference (weights reordered ahead of time), MKL-DNN modules with reordered
weights; each contiguous and channels-last. The data is in the mode's own layout before timing.
Imports nothing of this package's dependencies but numpy's equal, torch.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

Call = Callable[[], Any]
TRIAL_S = 0.15


def prepare(spec: dict[str, Any]) -> tuple[Call, str]:
    """(the call of the fastest mode, the mode's name)."""
    import torch

    from ansorlite.bench.serve import timed

    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    found: list[tuple[float, str, Call]] = []
    for label, call in _modes(spec["name"], spec["params"]):
        with suppress(RuntimeError):  # not every mode exists for every case
            found.append((timed(call, TRIAL_S)[0], label, call))
    if not found:
        raise ValueError(f"no mode of {spec['name']} runs")
    _, label, call = min(found, key=lambda f: f[0])
    return call, f"torch {torch.__version__} {label}"


def _modes(name: str, p: dict[str, int]) -> Iterator[tuple[str, Call]]:
    import torch

    match name:
        case "GMM":
            a, b = torch.randn(p["B"], p["N"], p["K"]), torch.randn(p["B"], p["K"], p["M"])
            out = torch.empty(p["B"], p["N"], p["M"])
            yield "bmm", lambda: torch.bmm(a, b, out=out)
            if p["B"] == 1:
                a2, b2, out2 = a[0], b[0], out[0]
                yield "mm", lambda: torch.mm(a2, b2, out=out2)
        case "NRM":
            a = torch.randn(p["B"], p["M"], p["N"])
            yield "norm", lambda: torch.linalg.vector_norm(a, dim=(1, 2))
            yield "matrix norm", lambda: torch.linalg.matrix_norm(a)
            flat = a.reshape(p["B"], -1)
            yield "flat norm", lambda: torch.linalg.vector_norm(flat, dim=1)
            yield "dot", lambda: torch.linalg.vecdot(flat, flat).sqrt()
        case "SFM":
            a = torch.randn(p["M"], p["N"])
            out = torch.empty_like(a)
            yield "softmax", lambda: torch.softmax(a, 1, out=out)
            yield "softmax, fresh output", lambda: torch.softmax(a, 1)
        case "TBG" | "TBS":
            yield from _attention(name, p)
        case _:
            yield from _convolutions(name, p)


def _attention(name: str, p: dict[str, int]) -> Iterator[tuple[str, Call]]:
    import torch

    query, value = (torch.randn(p["N"], p["L"], p["H"], p["D"]) for _ in range(2))

    def scores() -> Any:
        return torch.matmul(query.permute(0, 2, 1, 3), value.permute(0, 2, 3, 1))

    if name == "TBG":
        yield "matmul of views", scores
        yield "einsum", lambda: torch.einsum("blhd,bmhd->bhlm", query, value)
    else:
        yield "matmul, softmax", lambda: torch.softmax(scores(), -1)

        def in_place() -> Any:
            s = scores()
            return torch.softmax(s, -1, out=s)

        yield "matmul, softmax in place", in_place


def _convolutions(name: str, p: dict[str, int]) -> Iterator[tuple[str, Call]]:
    """A module and its input in every mode."""
    import torch

    base, x = _module(name, p)
    base = base.eval()
    formats: dict[str, Any] = {"contiguous": torch.contiguous_format}
    if x.dim() == 4:
        formats["channels-last"] = torch.channels_last
    if x.dim() == 5:
        formats["channels-last"] = torch.channels_last_3d
    for label, kept in formats.items():
        module = deepcopy(base).to(memory_format=kept)
        data = x.contiguous(memory_format=kept)
        yield f"eager {label}", partial(module, data)
        with suppress(Exception):
            frozen = torch.jit.freeze(torch.jit.trace(module, data))
            traced = torch.jit.optimize_for_inference(frozen)
            for _ in range(3):
                traced(data)
            yield f"frozen {label}", partial(traced, data)
    with suppress(Exception):
        from torch.utils import mkldnn

        reordered, blocked = mkldnn.to_mkldnn(deepcopy(base)), x.contiguous().to_mkldnn()
        reordered(blocked)
        yield "mkldnn", lambda: reordered(blocked)


def _module(name: str, p: dict[str, int]) -> tuple[Any, Any]:
    """(module, input): channels first."""
    import torch
    from torch import nn

    n, k, stride, pad = p["N"], p["k"], p["s"], p["p"]
    if name == "C1D":
        module = nn.Conv1d(p["CI"], p["CO"], k, stride, pad, bias=False)
        return module, torch.randn(n, p["CI"], p["L"])
    h, w = p["H"], p["W"]
    if name == "C3D":
        return (
            nn.Conv3d(p["CI"], p["CO"], k, stride, pad, bias=False),
            torch.randn(n, p["CI"], p["D"], h, w),
        )
    if name == "CAP":
        # Rows of the matrices become images, their columns output channels.
        size = 4
        layer = nn.Conv2d(size * p["CI"], size * p["CO"], k, stride, pad, bias=False)
        return layer, torch.randn(n * size, size * p["CI"], h, w)
    if name == "DEP":
        deep = nn.Conv2d(p["C"], p["C"], k, stride, pad, groups=p["C"], bias=False)
        return deep, torch.randn(n, p["C"], h, w)
    x = torch.randn(n, p["CI"], h, w)
    if name == "T2D":
        return nn.ConvTranspose2d(p["CI"], p["CO"], k, stride, pad, bias=False), x
    more = {"dilation": p.get("d", 1), "groups": p.get("g", 1)}
    layer = nn.Conv2d(p["CI"], p["CO"], k, stride, pad, bias=name == "ConvLayer", **more)
    if name != "ConvLayer":
        return layer, x
    norm = nn.BatchNorm2d(p["CO"])
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return nn.Sequential(layer, norm, nn.ReLU()), x
