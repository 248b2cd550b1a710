"""`from_torch`: a module of PyTorch with example inputs -> a `Graph`, by `torch.export`.

Parameters and buffers become constants, shapes those of the example. Operators without a reader in
`table.READERS` are decomposed by torch. Raises ModelError with one line that names operator and
module, and MissingExtra without torch.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from ansorlite.errors import ModelError, UsageError
from ansorlite.names import brief, first_line
from ansorlite.pytorch import decompose
from ansorlite.pytorch.calls import Signature, TorchNetwork
from ansorlite.pytorch.context import imported_torch
from ansorlite.pytorch.read import Literal, Output, read


def from_torch(
    module: Any, example_inputs: Any, example_keywords: Mapping[str, Any] | None = None
) -> TorchNetwork:
    """The network that a `torch.nn.Module` in evaluation mode computes for such inputs.

    >>> net = from_torch(model.eval(), (x,))
    >>> module = auto_schedule(net, n_trials=800)
    >>> y = module(x)

    `example_inputs` is a tuple of the arguments (or a single tensor): tensors, numpy arrays, and
    trees of them; their shapes, dtypes and other values are fixed. The compiled network is called
    with tensors, or with arrays, as the module is, and returns what the module returns, without
    gradients. A `torch.export.ExportedProgram` is taken, too, with its own example.
    """
    torch = imported_torch()
    if isinstance(module, torch.export.ExportedProgram):
        return _network(torch, module, "exported", ())
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"a {type(module).__name__} is no torch.nn.Module")
    given = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    args, keywords = torch.utils._pytree.tree_map(
        lambda x: torch.from_numpy(x) if type(x).__module__ == "numpy" else x,
        (tuple(given), dict(example_keywords or {})),
    )
    name = type(module).__name__
    try:
        with torch.no_grad():
            program = torch.export.export(module, args, keywords)
    except Exception as error:  # torch's own kinds
        raise ModelError(
            f"PyTorch cannot export {name}: {first_line(error)}; torch.compile(model, "
            'backend="ansorlite") compiles the parts around such code'
        ) from error
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(p.name for p in parameters if p.kind in kinds)
    return _network(torch, program, name, names)


def _network(torch: Any, program: Any, name: str, names: tuple[str, ...]) -> TorchNetwork:
    try:
        with torch.no_grad():
            table = decompose.table(torch, torch.export.default_decompositions())
            program = program.run_decompositions(table)
    except Exception as error:  # torch's own kinds
        raise ModelError(f"PyTorch cannot decompose {name}: {first_line(error)}") from error
    signature, kinds = program.graph_signature, torch.export.graph_signature.InputKind
    known, leaves, count = dict[str, Any](), list[Output | Literal](), 0
    for spec in signature.input_specs:
        if spec.kind == kinds.USER_INPUT:
            if isinstance(spec.arg, torch.export.graph_signature.ConstantArgument):
                leaves.append(Literal(spec.arg.value))
            else:
                leaves.append(Output(count))
                count += 1
        elif spec.kind in (kinds.PARAMETER, kinds.BUFFER) and spec.target in program.state_dict:
            known[spec.arg.name] = program.state_dict[spec.target]
        elif spec.target in program.constants:
            known[spec.arg.name] = program.constants[spec.target]
        else:
            raise ModelError(f"{name} has the input {brief(spec.arg.name)} of the kind {spec.kind}")
    for spec in signature.output_specs:
        if spec.kind != torch.export.graph_signature.OutputKind.USER_OUTPUT:
            what = spec.target or spec.arg.name
            raise ModelError(
                f"{name} changes {brief(str(what))} while it runs: call eval() of the module, or "
                "return the new value instead"
            )
    net = read(torch, program.graph_module, name, known, {})
    trees, (_, keywords) = program.call_spec, program.example_inputs
    called = Signature(trees.in_spec, trees.out_spec, tuple(leaves), names, tuple(keywords))
    g = net.graph
    return TorchNetwork(g.name, g.nodes, g.inputs, g.outputs, g.types, g.constants, net, called)
