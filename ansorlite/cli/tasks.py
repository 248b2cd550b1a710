"""One task of a network by its number or name: `--task` of the commands `tune` and `compare`.

In: a graph and the text of the option. Out: the `WeightedTask`: `task` is the computation,
`other_forms` are Winograd's, `weight` says how often the network has it. Tasks have the numbers
of the table that `ansorlite tune` prints at its end.
"""

from typing import TYPE_CHECKING

from ansorlite.errors import UsageError

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.search.tune_tasks import WeightedTask
    from ansorlite.target import Target


def task_of(
    graph: "Graph", text: str, target: "Target | None" = None, exact: bool = False
) -> "WeightedTask":
    """The task of that number ("3"), or the one of the subgraph of that name ("conv_relu_3").

    A task that occurs several times has the names of all its subgraphs. `target` is this machine by
    default, `exact` as in `auto_schedule`. Raises UsageError, which lists numbers and names, where
    the text is neither.

    >>> task_of(network("resnet18"), "2").task.name
    'max_pool_2'
    """
    from ansorlite.graph.partition import partition, tasks
    from ansorlite.graph.passes import optimize
    from ansorlite.pipeline import FORM_RTOL, network_tasks
    from ansorlite.target import Target

    parts = partition(optimize(graph, exact))
    weighted = network_tasks(parts, target or Target.detect(), 0.0 if exact else FORM_RTOL)
    if text.isascii() and text.isdecimal() and int(text[:9]) < len(weighted):
        return weighted[int(text)]
    for own, distinct in zip(weighted, tasks(parts), strict=True):
        if text in [parts.subgraphs[k].name for k in distinct.subgraphs]:
            return own
    known = ", ".join(f"{k} {w.task.name}" for k, w in enumerate(weighted)) or "it has none"
    raise UsageError(f"{graph.name} has no task {text!r}: give a number or a name of: {known}")
