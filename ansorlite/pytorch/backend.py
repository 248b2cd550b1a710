"""`torch_backend`: `torch.compile(model, backend="ansorlite")`, for inference with fixed shapes.

In: the graphs that torch captures. Out: callables on tensors. A graph is compiled at its first call
for the shapes of that call; parameters and buffers become constants, and a change of one has the
graph compiled again. What cannot be compiled runs in torch's eager mode, with one warning a graph.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansorlite.errors import ModelError, UsageError
from ansorlite.names import brief, first_line
from ansorlite.pipeline import auto_schedule
from ansorlite.pytorch import decompose
from ansorlite.pytorch.calls import FlatCall
from ansorlite.pytorch.context import imported_torch
from ansorlite.pytorch.read import Network, Output, read

MOST_VARIANTS = 16  # of one graph: shapes, and values of its parameters


def torch_backend(
    graph_module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A backend of `torch.compile`: `torch.compile(model, backend="ansorlite", options={...})`.

    `options` are arguments of `auto_schedule`. By default nothing is tuned: programs are those of
    the log, if one is given, or the model's.
    """
    if mode is not None:
        raise UsageError(f"mode={mode!r} is not for this backend: give options={{'n_trials': 64}}")
    chosen = {"progress": False, **(options or {})}
    if chosen.get("n_trials") is None and chosen.get("timeout") is None:
        chosen["n_trials"] = 0
    return _Compiled(graph_module, chosen)


class _Compiled:
    """One captured graph: a variant for each combination of shapes and of parameters' values."""

    def __init__(self, graph_module: Any, options: dict[str, Any]) -> None:
        self._torch = imported_torch()
        self._module, self._options = graph_module, options
        self._variants: dict[Any, list[_Variant]] = {}
        self._count, self._eager = 0, False

    def __call__(self, *args: Any) -> Any:
        if self._eager:
            return self._module.forward(*args)
        torch = self._torch
        if torch.is_grad_enabled() and any(
            x.requires_grad for x in args if isinstance(x, torch.Tensor)
        ):
            return self._in_eager_mode(
                args, "gradients are wanted: call the model inside torch.no_grad()"
            )
        key = tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in args)
        found = self._variants.setdefault(key, [])
        for variant in found:
            if variant.fits(args):
                return variant.call(*args)
        if self._count == MOST_VARIANTS:
            return self._in_eager_mode(
                args, f"more than {MOST_VARIANTS} shapes or changes of parameters"
            )
        self._count += 1
        try:
            variant = _compiled(torch, self._module, args, self._options)
            result = variant.call(*args)
        except UsageError:
            raise
        except Exception as error:  # torch's own kinds, too
            return self._in_eager_mode(args, first_line(error))
        found.append(variant)
        return result

    def _in_eager_mode(self, args: tuple[Any, ...], why: str) -> Any:
        self._eager = True
        calls = sum(n.op.startswith("call") for n in self._module.graph.nodes)
        warnings.warn(
            f"ansorlite: a graph of {calls} operators runs in torch's eager mode: {why}",
            stacklevel=2,
        )
        return self._module.forward(*args)


class _Variant:
    """A compiled graph, and the state of the parameters that became constants."""

    def __init__(self, call: Callable[..., Any], fixed: dict[int, Any], own: Sequence[Any]) -> None:
        self.call = call
        self._fixed = [(k, x, _version(x)) for k, x in fixed.items()]
        self._own = [(x, _version(x)) for x in own]

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether the parameters are the same tensors, unchanged."""
        return all(args[k] is x and _version(x) == v for k, x, v in self._fixed) and all(
            _version(x) == v for x, v in self._own
        )


def _version(x: Any) -> int:
    """A number that changes with every write into the tensor; inference tensors have none."""
    return 0 if x.is_inference() else int(x._version)


def _compiled(
    torch: Any, module: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> _Variant:
    """The graph for these arguments, functional and decomposed by torch, compiled."""
    from torch._decomp import core_aten_decompositions
    from torch._functorch.aot_autograd import aot_module_simplified

    attributes = [
        *dict(module.named_parameters(remove_duplicate=False)).values(),
        *dict(module.named_buffers(remove_duplicate=False)).values(),
    ]
    flat = [*attributes, *args]
    constant = {
        k: x
        for k, x in enumerate(flat)
        if isinstance(x, torch.Tensor) and (k < len(attributes) or _is_parameter(torch, x))
    }

    def compiler(graph: Any, fakes: Sequence[Any]) -> Callable[..., list[Any]]:
        with torch.utils._python_dispatch._disable_current_modes():  # tensors are real from here on
            return native(graph)

    def native(graph: Any) -> Callable[..., list[Any]]:
        nonlocal constant
        places = [n for n in graph.graph.nodes if n.op == "placeholder"]
        if len(places) != len(flat):
            raise ModelError("inputs share memory: clone one of them")
        written = _writes(torch, graph)
        constant = {k: x for k, x in constant.items() if places[k] not in written}
        known = {places[k].name: x for k, x in constant.items()}
        network = read(torch, graph, "graph", known, {})
        call = _call_of(network, options, graph)
        inputs = [
            k
            for k, n in enumerate(places)
            if k not in constant and isinstance(n.meta.get("val"), torch.Tensor)
        ]
        count = len(network.results) - len(written)
        targets = [places.index(n) for n in written]

        def run(*given: Any) -> list[Any]:
            results = call([given[k] for k in inputs])
            for k, value in zip(targets, results[count:], strict=True):
                given[k].copy_(value)
            return results[:count]

        return run

    table = decompose.table(torch, dict(core_aten_decompositions()))
    with torch.no_grad():
        call = aot_module_simplified(
            module,
            args,
            fw_compiler=compiler,
            inference_compiler=compiler,
            decompositions=table,
            keep_inference_input_mutations=True,
        )
    shift = len(attributes)
    fixed = {k - shift: x for k, x in constant.items() if k >= shift}
    return _Variant(call, fixed, [x for k, x in constant.items() if k < shift])


def _is_parameter(torch: Any, x: Any) -> bool:
    """Whether torch hands over a module's parameter or buffer, rather than an input of a call."""
    return isinstance(x, torch.nn.Parameter) or bool(getattr(x, "_dynamo_static_input_type", None))


def _writes(torch: Any, graph: Any) -> list[Any]:
    """The placeholders into which the graph copies results; these become results at the end."""
    written, values = [], []
    copies = [n for n in graph.graph.nodes if str(n.target) == "aten.copy_.default"]
    for node in copies:
        target, value = node.args[:2]
        if target.op != "placeholder":
            raise ModelError(f"it changes {brief(target.name)}, which is no input")
        written.append(target)
        values.append(value)
        node.replace_all_uses_with(value)
    if copies:
        (end,) = (n for n in graph.graph.nodes if n.op == "output")
        end.args = ((*end.args[0], *values),)
        for node in copies:
            graph.graph.erase_node(node)
    return written


def _call_of(
    network: Network, options: Mapping[str, Any], graph: Any
) -> Callable[[list[Any]], list[Any]]:
    """The network on tensors; in torch's eager mode where no result needs a kernel."""
    if not any(isinstance(r, Output) for r in network.results):
        return lambda tensors: [getattr(r, "value", None) for r in network.results]
    if not network.graph.nodes:
        raise ModelError("it computes nothing")
    return FlatCall(auto_schedule(network.graph, **options), network)
