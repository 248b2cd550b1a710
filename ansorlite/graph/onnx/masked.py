"""x[condition] = number, as PyTorch exports it, becomes a choice that has a known size.

In: the nodes in order. Out: the same, where `NonZero`, `Transpose` and `ScatterND` of one repeated
number are a `Where`. Done only where the condition depends on inputs: the positions of a constant
condition are constants, of which `ScatterND` may write different numbers.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode

REPEATS = ("Expand", "Identity", "Reshape", "Tile", "Unsqueeze")  # by which one number is many


@dataclass(frozen=True)
class _Write:
    """The node that writes, the condition, the number, and the nodes that are then not needed."""

    node: OnnxNode
    condition: str
    number: str
    spared: tuple[OnnxNode, ...]


def with_choices(
    c: Context, nodes: Sequence[OnnxNode], outputs: Iterable[str]
) -> Iterator[OnnxNode]:
    """The nodes to read, in order; what is yielded must be read before the next is asked for."""
    writes = _writes(nodes, outputs)
    spared: set[int] = set()
    for node in nodes:
        if node.op == "NonZero":
            own = [w for w in writes.values() if w.spared[0] is node]
            if own and c.builder.constants.get(c.values.get(node.inputs[0], "")) is None:
                spared |= {id(n) for w in own for n in w.spared}
        if id(node) in spared:
            continue
        write = writes.get(id(node))
        yield node if write is None or id(write.spared[0]) not in spared else _choice(c, write)


def _choice(c: Context, write: _Write) -> OnnxNode:
    """The `Where`; its operands get the ranks at which the condition broadcasts from the front."""
    c.node = node = write.node
    missing = [v for v in (write.condition, write.number, node.inputs[0]) if v not in c.values]
    own = node.name, node.op
    if missing:
        return OnnxNode(node.name, "Where", tuple(missing), node.outputs, {}, node.opset, None, own)
    condition, number, data = (c.values[v] for v in (write.condition, write.number, node.inputs[0]))
    shape, full = c.shape(condition), c.shape(data)
    if c.type(number).size != 1 or shape != full[: len(shape)]:
        raise ModelError(
            f"{node.where} writes {c.type(number)} where {c.type(condition)} holds into "
            f"{c.type(data)}: only one number is supported where the condition depends on inputs"
        )
    front = c.emit("reshape", [condition], shape=(*shape, *(1,) * (len(full) - len(shape))))
    if c.type(front).dtype != "bool":
        front = c.emit("cast", [front], dtype="bool")
    names = (f"{node.outputs[0]}.condition", f"{node.outputs[0]}.number", node.inputs[0])
    c.values[names[0]], c.values[names[1]] = front, c.emit("reshape", [number], shape=())
    return OnnxNode(node.name, "Where", names, node.outputs, {}, node.opset, None, own)


def _writes(nodes: Sequence[OnnxNode], outputs: Iterable[str]) -> dict[int, _Write]:
    """The writes by the `id` of their nodes."""
    if not any(n.op == "NonZero" for n in nodes):
        return {}
    makers = {v: n for n in nodes for v in n.outputs}
    uses = Counter([*outputs, *(v for n in nodes for v in n.inputs)])
    found = {}
    for node in nodes:
        if node.op != "ScatterND" or node.attrs.get("reduction", "none") != "none":
            continue
        turned = makers.get(node.inputs[1])
        if turned is None or turned.op != "Transpose" or uses[node.inputs[1]] != 1:
            continue
        if list(turned.attrs.get("perm", (1, 0))) != [1, 0]:
            continue
        places = makers.get(turned.inputs[0])
        if places is None or places.op != "NonZero" or uses[turned.inputs[0]] != 1:
            continue
        repeats, number = list[OnnxNode](), node.inputs[2]
        while number in makers and makers[number].op in REPEATS and uses[number] == 1:
            repeats.append(makers[number])
            number = repeats[-1].inputs[0]
        spared = (places, turned, *repeats)
        found[id(node)] = _Write(node, places.inputs[0], number, spared)
    return found
