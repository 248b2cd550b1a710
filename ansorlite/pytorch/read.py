"""A graph of aten operators -> `Graph`.

In: a `torch.fx.Graph` without mutation, tensors that its placeholders stand for (parameters,
buffers) and the names of the others, the inputs. Out: a `Network`. What depends on known tensors
alone is computed by torch. A ModelError names operator and module of every node that has no reader.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ansorlite.errors import AnsorliteError, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.graph.types import TensorType
from ansorlite.names import brief, first_line
from ansorlite.pytorch.context import Context, Value, stored_dtype
from ansorlite.pytorch.table import READERS, advice

MOST_LISTED = 8  # operators in one message, and modules of each
LOCAL = re.compile(r"^L\['\w+'\]\.?")  # how torch.compile calls the module itself
CHECKS = ("aten._assert_tensor_metadata.default",)  # of what torch already knows


@dataclass(frozen=True)
class Network:
    """The graph, and what its inputs and outputs are in torch, in order.

    `inputs` and `outputs` are torch's dtypes. `results` has for each result of the torch graph the
    number of the graph's output, or what else it is: a number, None.
    """

    graph: Graph
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    results: tuple["Output | Literal", ...]


@dataclass(frozen=True)
class Output:
    """Output `index` of the graph."""

    index: int


@dataclass(frozen=True)
class Literal:
    """A result that is no tensor of the graph."""

    value: Any


@dataclass
class _Import:
    torch: Any
    module: Any  # GraphModule: where get_attr nodes find their tensors
    context: Context
    known: dict[Any, Any] = field(default_factory=dict)  # tensors, and lists of them, by node
    values: dict[Any, Any] = field(default_factory=dict)  # values of the graph by node


def read(
    torch: Any,
    module: Any,
    name: str,
    known: Mapping[str, Any],
    names: Mapping[str, str],
) -> Network:
    """The network of the GraphModule `module`.

    `known` has the tensors of placeholders that do not change, by name; `names` the inputs' names.
    """
    module.graph.eliminate_dead_code()
    nodes = list(module.graph.nodes)
    builder = GraphBuilder(name, fold=True)
    state = _Import(torch, module, Context(torch, builder))
    inputs: list[Any] = []
    for node in nodes:
        if node.op == "placeholder" and node.name in known:
            state.known[node] = known[node.name]
        elif node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor):
            fake = node.meta["val"]
            state.context.node = node
            wanted = names.get(node.name, node.name)
            builder.input(wanted, _extents(fake.shape, wanted), stored_dtype(fake.dtype))
            state.values[node] = Value(wanted)
            inputs.append(fake.dtype)
        elif node.op == "placeholder":
            state.known[node] = node.meta.get("val")
    _check_operators(state, nodes, name)
    with np.errstate(all="ignore"), torch.no_grad():
        for node in nodes:
            if node.op == "get_attr":
                state.known[node] = _attribute(module, node.target)
            elif node.op == "call_function":
                _convert(state, node)
    (end,) = (n for n in nodes if n.op == "output")
    return _finished(state, end, tuple(inputs))


def _extents(shape: Any, what: str) -> tuple[int, ...]:
    if any(not isinstance(n, int) for n in shape):
        raise ModelError(f"input {brief(what)} has the dynamic shape {tuple(shape)}: fix its sizes")
    return tuple(shape)


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _finished(state: _Import, end: Any, inputs: tuple[Any, ...]) -> Network:
    """The network whose results are the operands of the node `end`."""
    torch, outputs, dtypes = state.torch, list[str](), list[Any]()
    results: list[Output | Literal] = []
    state.context.node = end
    for found in end.args[0]:
        if not isinstance(found, torch.fx.Node) or not isinstance(
            found.meta.get("val", state.known.get(found)), torch.Tensor
        ):
            results.append(Literal(state.known.get(found) if found in state.known else found))
            continue
        value = _operand(state, found)
        outputs.append(value)
        dtypes.append(found.meta["val"].dtype if "val" in found.meta else state.known[found].dtype)
        results.append(Output(len(outputs) - 1))
    graph = state.context.builder.finish(outputs)
    return Network(graph, inputs, tuple(dtypes), tuple(results))


# ---- operators ----------------------------------------------------------------------------------


def _where(node: Any) -> str:
    """The place of a node in the user's module: "encoder.layers.0 (Linear)"; empty if unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, kind = list(stack.values())[-1][:2]
    kind = kind if isinstance(kind, str) else kind.__name__
    path = LOCAL.sub("", str(path)).replace("_modules.", "")
    return f"{path} ({kind.split('.')[-1]})" if path else kind.split(".")[-1]


def _check_operators(state: _Import, nodes: Sequence[Any], name: str) -> None:
    """Raise a ModelError that lists every operator without a reader and the modules that use it."""
    fixed = {n for n in nodes if n in state.known or n.op == "get_attr"}
    users: dict[str, list[str]] = {}
    for node in nodes:
        if node.op != "call_function":
            continue
        target = str(node.target)
        if _is_fixed(state, node, fixed):
            fixed.add(node)
        elif target not in READERS and node.target is not operator.getitem and target not in CHECKS:
            users.setdefault(target, []).append(_where(node) or node.name)
    if not users:
        return
    named = {t: places for t, places in users.items() if "." in t}  # no Python on sizes
    users = named or users
    found = []
    for target, places in sorted(users.items())[:MOST_LISTED]:
        listed = ", ".join(map(brief, list(dict.fromkeys(places))[:MOST_LISTED]))
        help_ = advice(target)
        found.append(f"{target} (in {listed})" + f" - {help_}" * bool(help_))
    more = f"; and {len(users) - MOST_LISTED} more" if len(users) > MOST_LISTED else ""
    raise ModelError(
        f"{brief(name)} uses {len(users)} unsupported operator{'s' * (len(users) > 1)}: "
        + "; ".join(found)
        + more
    )


def _is_fixed(state: _Import, node: Any, fixed: Any) -> bool:
    """Whether a node depends on known tensors alone, and not on chance."""
    tags = getattr(node.target, "tags", ())
    if state.torch.Tag.nondeterministic_seeded in tags:
        return False
    return isinstance(node.target, state.torch._ops.OpOverload | type(operator.getitem)) and all(
        n in fixed for n in node.all_input_nodes
    )


def _convert(state: _Import, node: Any) -> None:
    """Compute the node, or emit it by its reader; errors name operator and module."""
    target = str(node.target)
    if target in CHECKS:
        return
    if node.target is operator.getitem and node.args[0] not in state.known:
        state.values[node] = state.values[node.args[0]][node.args[1]]
        return
    place = _where(node)
    where = f"node {brief(node.name)} ({target}{', in ' * bool(place)}{brief(place)})"
    context = state.context
    context.node = node
    try:
        if _is_fixed(state, node, state.known):
            state.known[node] = _computed(state, node, where)
            return
        arguments = state.torch.fx.node.map_arg(_bound(node), lambda n: _operand(state, n))
        state.values[node] = READERS[target](context, *arguments)
    except ModelError as error:
        text = str(error)
        start = f"node {brief(node.name)} ("
        text = text.split("): ", 1)[-1] if text.startswith(start) else text
        raise ModelError(f"{where}: {text}") from None
    except AnsorliteError:
        raise
    except MemoryError as error:
        raise ModelError(f"{where} needs more memory than there is") from error
    except Exception as error:  # arguments that no reader expects
        raise ModelError(f"{where} cannot be read: {first_line(error)}") from error


def _bound(node: Any) -> list[Any]:
    """All arguments in the order of the operator's schema."""
    found = []
    for k, argument in enumerate(node.target._schema.arguments):
        if k < len(node.args):
            found.append(node.args[k])
        else:
            found.append(node.kwargs.get(argument.name, argument.default_value))
    return found


def _computed(state: _Import, node: Any, where: str) -> Any:
    """The tensors that torch computes for a node of known ones."""
    fake = node.meta.get("val")
    for one in fake if isinstance(fake, tuple | list) else [fake]:
        if isinstance(one, state.torch.Tensor):
            kind = TensorType(_extents(one.shape, node.name), "float64")
            state.context.builder.room.another(where, kind)
            state.context.builder.room.compute(where, kind.size)
    given = state.torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: state.known[n])
    return node.target(*given[0], **given[1])


def _operand(state: _Import, node: Any) -> Any:
    """The value of a node, a constant where its tensor is known."""
    if node in state.values:
        found = state.values[node]
        if found is None:
            raise ModelError(f"{node.name} is a result that only training needs")
        return found
    tensor = state.known[node]
    if not isinstance(tensor, state.torch.Tensor):
        return tensor
    return state.values.setdefault(node, _constant(state, node, tensor))


def _constant(state: _Import, node: Any, tensor: Any) -> Value:
    dtype = stored_dtype(tensor.dtype)
    if tensor.device.type != "cpu" or tensor.layout != state.torch.strided:
        raise ModelError(
            f"{brief(node.name)} is a tensor on {tensor.device} ({tensor.layout}): move the module "
            "to the CPU, as dense tensors"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    if str(plain.dtype) != f"torch.{dtype}":
        plain = plain.to(getattr(state.torch, dtype))
    given = node.op in ("placeholder", "get_attr")
    array = plain.numpy()
    return Value(state.context.builder.constant(array, node.name, computed=not given))
