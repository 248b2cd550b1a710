"""Modules of PyTorch with example inputs, and the comparison with torch's eager mode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs ansorlite[torch]")

import ansorlite as al  # noqa: E402 (after the skip)
from ansorlite.graph.ir import evaluate  # noqa: E402

nn, fn = torch.nn, torch.nn.functional
RTOL = 1e-4  # of the largest output


@dataclass(frozen=True)
class Case:
    """A function of tensors, or a maker of a module, and makers of its arguments."""

    name: str
    module: Callable[[], Any]
    args: Callable[[], tuple[Any, ...]]


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def leaves(tree: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(tree))


def assert_equal(got: Any, wanted: Any) -> None:
    """Trees alike, numbers within RTOL of the largest, the same NaNs and infinities."""
    spec = torch.utils._pytree.tree_structure
    assert spec(got) == spec(wanted)
    for a, b in zip(leaves(got), leaves(wanted), strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        x, y = a.double().numpy(), b.detach().double().numpy()
        finite = np.isfinite(y)
        assert np.array_equal(np.where(finite, 0, x), np.where(finite, 0, y), equal_nan=True)
        scale = max(np.abs(y[finite]).max(initial=0), 1e-30)
        assert np.abs(x[finite] - y[finite]).max(initial=0) <= RTOL * scale, (x, y)


def check_meaning(module: Any, args: tuple[Any, ...]) -> al.Graph:
    """The imported graph, whose meaning is compared with torch's eager mode."""
    module = module.eval()
    net = al.from_torch(module, args)
    with torch.no_grad():
        wanted = leaves(module(*args))
    tensors = [x for x in leaves(args) if isinstance(x, torch.Tensor)]
    arrays = [
        x.numpy().astype(net.types[v].dtype) for v, x in zip(net.inputs, tensors, strict=True)
    ]
    got = evaluate(net, arrays)
    wanted = [w for w in wanted if isinstance(w, torch.Tensor)]
    for x, w in zip(got, wanted, strict=True):
        assert_equal(torch.from_numpy(np.array(x)).to(w.dtype), w)
    return net


def compiled(module: Any, args: tuple[Any, ...]) -> Any:
    """The module as a native network, with programs that nothing has searched for."""
    from ansorlite.pipeline import compile_plain

    return compile_plain(al.from_torch(module.eval(), args))
