"""Calls of a compiled network with tensors: `FlatCall` in the graph's order, `TorchModule` as
the user's module is called.

In: tensors, or numpy arrays, of the shapes and dtypes of the example. Out: tensors in the memory of
the network's results, or arrays where all inputs were arrays. Nothing is copied but what has other
strides, or a dtype that is computed in float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.ir import Graph
from ansorlite.graph.module import CompiledModule
from ansorlite.names import brief
from ansorlite.pytorch.context import imported_torch, stored_dtype
from ansorlite.pytorch.read import Network, Output


class FlatCall:
    """A network as a function of its input tensors in order, to the list of its results."""

    def __init__(self, module: CompiledModule, network: Network) -> None:
        self.torch = imported_torch()
        self.module, self.network = module, network
        names = network.graph.inputs
        self._inputs = [
            (name, dtype, stored_dtype(dtype))
            for name, dtype in zip(names, network.inputs, strict=True)
        ]
        self._casts = [
            None if str(dtype) == f"torch.{stored_dtype(dtype)}" else dtype
            for dtype in network.outputs
        ]

    def __call__(self, tensors: Sequence[Any], as_arrays: bool = False) -> list[Any]:
        arrays = [self._array(x, *row) for x, row in zip(tensors, self._inputs, strict=True)]
        found = self.module(*arrays)
        outputs: list[Any] = [found] if isinstance(found, np.ndarray) else list(found)
        if not as_arrays:
            outputs = [self.torch.from_numpy(x) for x in outputs]
            pairs = zip(outputs, self._casts, strict=True)
            outputs = [x if dtype is None else x.to(dtype) for x, dtype in pairs]
        return [
            outputs[r.index] if isinstance(r, Output) else r.value for r in self.network.results
        ]

    def _array(self, x: Any, name: str, dtype: Any, stored: str) -> Any:
        """The tensor as an array of the dtype that the network stores."""
        torch = self.torch
        if not isinstance(x, torch.Tensor):
            array = np.asarray(x)
            same = f"torch.{array.dtype}" == str(dtype)
            return array.astype(stored) if same and str(array.dtype) != stored else array
        if x.device.type != "cpu":
            raise ModelError(f"input {brief(name)} is on {x.device}: move it to the CPU")
        if x.dtype != dtype:
            raise ModelError(f"input {brief(name)} has dtype {x.dtype}, expected {dtype}")
        if str(dtype) != f"torch.{stored}":
            x = x.to(getattr(torch, stored))
        return x.detach().resolve_conj().resolve_neg().numpy()


@dataclass(frozen=True)
class Signature:
    """How the user's module is called: the trees of arguments and results.

    `leaves` has for each leaf of the arguments the number of the graph's input, or a Literal that
    the example gave; `names` are the module's positional parameters.
    """

    arguments: Any
    results: Any
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    keywords: tuple[str, ...]


@dataclass(frozen=True)
class TorchNetwork(Graph):
    """A `Graph` that remembers the module it comes from: compiled, it is called as that module."""

    network: Network
    signature: Signature

    def bound(self, module: Any) -> Any:
        return TorchModule(module, self.network, self.signature)


class TorchModule:
    """A compiled network that is called as the module it comes from, with tensors or arrays.

    `module` is the network on flat arrays; all of its attributes (`report`, `save`, `profile`, ...)
    are attributes of this object, too.
    """

    def __init__(self, module: CompiledModule, network: Network, signature: Signature) -> None:
        self.module, self.signature = module, signature
        self._flat = FlatCall(module, network)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("module", "signature", "_flat"):
            raise AttributeError(name)
        return getattr(self.module, name)

    def __str__(self) -> str:
        return str(self.module)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results in the module's own tree; ModelError for arguments unlike the example's."""
        torch, signature = self._flat.torch, self.signature
        leaves = self._leaves(args, kwargs)
        tensors = [None] * len(self._flat.network.inputs)
        for k, (leaf, wanted) in enumerate(zip(leaves, signature.leaves, strict=True)):
            if isinstance(wanted, Output):
                tensors[wanted.index] = leaf
            elif not _same(leaf, wanted.value):
                raise ModelError(
                    f"argument {k} is {brief(repr(leaf))}, the example had "
                    f"{brief(repr(wanted.value))}: import the module again for other values"
                )
        as_arrays = bool(tensors) and not any(isinstance(t, torch.Tensor) for t in tensors)
        results = self._flat(tensors, as_arrays)
        return torch.utils._pytree.tree_unflatten(results, signature.results)

    def _leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of the arguments, in the example's order."""
        signature, named = self.signature, dict(kwargs)
        positional = list(args)
        for name in signature.names[len(args) :]:
            if name not in named or name in signature.keywords:
                break
            positional.append(named.pop(name))
        ordered = {k: named[k] for k in signature.keywords if k in named} | named
        pytree = self._flat.torch.utils._pytree
        leaves, tree = pytree.tree_flatten((tuple(positional), ordered))
        if tree != signature.arguments:
            raise ModelError(
                f"the arguments have the structure {tree}, the example had {signature.arguments}"
            )
        return list(leaves)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)
