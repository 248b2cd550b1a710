"""The tasks that commands name: one of a network by its number or name, those of a log's records.

In: a graph and the text of `--task`, or records. Out: the `WeightedTask`: `task` is the
computation, `other_forms` are such as Winograd's, `weight` says how often the network has it.
Tasks have the numbers of the table that `ansorlite tune` prints at its end.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

import ansorlite
from ansorlite.errors import ModelError, UsageError
from ansorlite.records import Record

if TYPE_CHECKING:
    from ansorlite.graph.choice import Lowering
    from ansorlite.graph.ir import Graph
    from ansorlite.graph.partition import Partition
    from ansorlite.search.tune_tasks import WeightedTask
    from ansorlite.target import Target
    from ansorlite.task import SearchTask

MOST_NAME, MOST_DIGITS = 64, 6  # characters of a case that a record names, digits of its batch


def task_of(
    graph: "Graph",
    text: str,
    target: "Target | None" = None,
    exact: bool = False,
    precision: str = "float32",
) -> "WeightedTask":
    """The task of that number ("3"), or the one of the subgraph of that name ("conv_relu_3").

    A task that occurs several times has the names of all its subgraphs. `target` is this machine by
    default, `exact` and `precision` as in `auto_schedule`. Raises UsageError, which lists numbers
    and names, where the text is neither.

    >>> task_of(network("resnet18"), "2").task.name
    'max_pool_2'
    """
    from ansorlite.graph.choice import Lowering
    from ansorlite.graph.lower import FORM_RTOL
    from ansorlite.graph.partition import tasks
    from ansorlite.shared_tasks import network_tasks
    from ansorlite.target import Target

    parts = Lowering(exact, precision).partition(graph)
    weighted = network_tasks(parts, target or Target.detect(), 0.0 if exact else FORM_RTOL)
    if text.isascii() and text.isdecimal() and int(text[:9]) < len(weighted):
        return weighted[int(text)]
    for own, distinct in zip(weighted, tasks(parts), strict=True):
        if text in [parts.subgraphs[k].name for k in distinct.subgraphs]:
            return own
    known = ", ".join(f"{k} {w.task.name}" for k, w in enumerate(weighted)) or "it has none"
    raise UsageError(f"{graph.name} has no task {text!r}: give a number or a name of: {known}")


def tasks_of(records: Iterable[Record], networks: Iterable["Graph"]) -> dict[str, "SearchTask"]:
    """Tasks by workload key: those of networks, then what the records name in the suite."""
    tasks = _network_tasks(networks)
    for name in dict.fromkeys(r.task_name for r in records if r.task not in tasks):
        tasks |= _suite_tasks(name)
    return tasks


def _network_tasks(graphs: Iterable["Graph"]) -> dict[str, "SearchTask"]:
    from ansorlite.graph.choice import Lowering
    from ansorlite.shared_tasks import network_tasks
    from ansorlite.target import Target

    machine = Target.detect()
    weighted = [w for g in graphs for w in network_tasks(Lowering().partition(g), machine)]
    return {form.workload_key: form for w in weighted for form in w.forms}


def _suite_tasks(name: str) -> dict[str, "SearchTask"]:
    """The cases of the suite that records call `name` ("C2D:2 batch 1"), by workload key."""
    case, _, batch = name[:MOST_NAME].partition(" batch ")
    if batch and not (batch.isascii() and batch.isdecimal() and len(batch) <= MOST_DIGITS):
        return {}
    tasks: dict[str, SearchTask] = {}
    for constant in (None, True, False):
        try:
            task = ansorlite.workload(case, batch=int(batch or 1), constant_weights=constant)
        except ModelError:
            return {}
        tasks[task.workload_key] = task
    return tasks


class TunedNetwork(NamedTuple):
    """A network as it was tuned: how it was lowered, its kernels and its tasks."""

    way: "Lowering"
    parts: "Partition"
    weighted: "list[WeightedTask]"


def tuned_network(
    graph: "Graph", keys: Collection[str], choices: Iterable[Record] = ()
) -> TunedNetwork:
    """The network, `--exact` or not, in the precision of most `keys`, workload keys of records.

    `choices` are the CHOSEN lines of the log.
    """
    from ansorlite.graph.choice import tuned_ways
    from ansorlite.graph.lower import FORM_RTOL
    from ansorlite.shared_tasks import network_tasks
    from ansorlite.target import Target

    machine = Target.detect()
    found = []
    for way in tuned_ways(graph, choices):
        parts = way.partition(graph)
        tasks = network_tasks(parts, machine, 0.0 if way.exact else FORM_RTOL)
        own = {form.workload_key for w in tasks for form in w.forms}
        found.append((len(own & set(keys)), TunedNetwork(way, parts, tasks)))
        if own >= set(keys):
            break
    known = max(found, key=lambda x: x[0])[1]
    return known._replace(weighted=[*known.weighted, *_merged(known, set(keys), machine)])


def _merged(network: TunedNetwork, keys: set[str], target: "Target") -> "list[WeightedTask]":
    """Kernels in place of several of a network's that some of these workload keys are of."""
    from ansorlite.graph.cuts import merges
    from ansorlite.search.tune_tasks import WeightedTask
    from ansorlite.task import SearchTask

    left = keys - {form.workload_key for w in network.weighted for form in w.forms}
    if network.way.precision != "float32":
        return []
    found: dict[str, WeightedTask] = {}
    for m in merges(network.parts, network.way.exact) if left else ():
        task = SearchTask(m.subgraph.dag, target, m.subgraph.name)
        if task.workload_key in left:
            weight = found[task.workload_key].weight if task.workload_key in found else 0.0
            found[task.workload_key] = WeightedTask(task, weight + m.subgraph.times)
    return [*found.values()]
