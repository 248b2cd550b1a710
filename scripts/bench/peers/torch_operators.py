"""The operator suite in PyTorch: each case as a call, or as a module (convolutions).

In: {name, params} as in workloads/ops.toml, and the modes to try. Out: (label, call) of each way to
compute the case. Operators that are no module run eagerly, some in several ways.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

Call = Callable[[], Any]


def calls(name: str, p: dict[str, int], modes: Sequence[str]) -> Iterator[tuple[str, Call]]:
    """(label, call) of a case; empty for cases without a module in modes that need one."""
    if name in ("GMM", "NRM", "SFM", "TBG", "TBS"):
        yield from _plain(name, p) if "eager" in modes else ()
        return
    from bench.peers.torch import layouts

    module, x = _module(name, p)
    module = module.eval()
    yield from layouts(module, [x], modes)
    if "mkldnn" in modes:
        with suppress(Exception):
            from torch.utils import mkldnn

            reordered, blocked = mkldnn.to_mkldnn(deepcopy(module)), x.contiguous().to_mkldnn()
            reordered(blocked)
            yield "mkldnn", lambda: reordered(blocked)


def _plain(name: str, p: dict[str, int]) -> Iterator[tuple[str, Call]]:
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
        case _:
            yield from _attention(name, p)


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
