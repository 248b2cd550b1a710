"""Good programs of generated layers, which come with the package (twenty minutes a CPU).

Draws --layers layers in the sizes of common networks, tunes them in groups of similar size for
--seconds each, and adds the fastest programs of all their forms to ansorlite/search/programs.json,
for vectors of this machine's length or of --target's, whose code this machine runs. Groups whose
logs are in --folder are not tuned again; --add takes files that other machines made, --large and
--long draw layers that the others are far from, --without leaves out layers that networks have
(names or ONNX files), so that these can be measured, --other-forms takes layers alone that have
promising forms beside the plain one, --projections draws queries, keys and values as one product,
--signals convolutions over time, --chains attention, --residuals depthwise convolutions with what
is before or after them: chains of kernels that one kernel may compute, each of which is tuned
alone. --numbers takes these layers of all that may be drawn, in place of the first ones.
results/README.md says which layers and machines were used.
Usage: python scripts/train_programs.py [--layers N] [--first K] [--numbers K ...]
       [--kinds KIND ...] [--large | --long | --projections | --signals | --chains |
       --residuals] [--other-forms] [--seconds S] [--target NAME] [--folder DIR] [--output F]
       [--add F ...] [--without NETWORK ...]
"""

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

import ansorlite as al
from ansorlite.cli.inputs import network
from ansorlite.cli.options import positive, seconds
from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.files import write_whole
from ansorlite.graph.choice import Lowering
from ansorlite.graph.cuts import merges
from ansorlite.graph.ir import Graph
from ansorlite.graph.partition import Partition
from ansorlite.records import Record, distill, read_log
from ansorlite.search import shipped
from ansorlite.search.arguments import target_of
from ansorlite.search.kinship import Kinship, kinship, octaves
from ansorlite.search.promise import promising
from ansorlite.search.tune_tasks import WeightedTask
from ansorlite.shared_tasks import network_tasks
from ansorlite.space.sketch import SpaceOptions
from ansorlite.target import Target
from ansorlite.task import SearchTask
from bench.drawn_layers import (
    CHAINS,
    LARGE_LAYERS,
    LAYERS,
    LONG_LAYERS,
    PROJECTIONS,
    RESIDUALS,
    SIGNALS,
    Layer,
    drawn_layer,
)
from bench.experiment import exit_status, kept_folder

MERGED = {"chains": CHAINS, "residuals": RESIDUALS}  # whose kernels are one
LONG = {"long": LONG_LAYERS, "projections": PROJECTIONS, "signals": SIGNALS}
DRAWN = {"large": LARGE_LAYERS, **LONG, **MERGED}
KINDS = tuple(make.__name__ for own in (LAYERS, *DRAWN.values()) for make, _ in own)
SEED = 7
LARGEST_FLOP, LONGEST_FLOP = 1.3e9, 4e9  # of a layer, so that a trial takes milliseconds
GROUP = 12  # layers that are tuned together
# So many layers tell of all that differ from them by so many octaves of extents.
ENOUGH, CLOSE_BY = 4, 1.0


def drawn(
    numbers: Iterable[int],
    kinds: Collection[str],
    target: Target,
    layers: Sequence[tuple[Layer, float]] = LAYERS,
    formed: bool = False,
) -> dict[int, tuple[Graph, Sequence[WeightedTask]]]:
    """Layers of these kinds (of any without) that are not too large, and their tasks, by number.

    The smallest ones come first. `formed` ones have promising forms beside the plain one. Of
    `MERGED` ones the tasks are those of kernels in place of several.
    """
    out: dict[int, tuple[Graph, Sequence[WeightedTask]]] = {}
    for k in numbers:
        rng = np.random.default_rng([SEED, k])
        graph = drawn_layer(rng, layers)
        if kinds and graph.name not in kinds:
            continue
        try:
            parts = Lowering().partition(graph)
            whole = any(layers is own for own in MERGED.values())
            weighted = merged(parts, target) if whole else network_tasks(parts, target)
        except AnsorliteError:  # a layer that no form computes
            continue
        if formed and not any(len(promising(w.forms)) > 1 for w in weighted):
            continue
        long = any(layers is own for own in LONG.values())
        most_flop = LONGEST_FLOP if long else LARGEST_FLOP
        if weighted and sum(w.task.flop for w in weighted) <= most_flop:
            out[k] = graph, weighted
    return dict(sorted(out.items(), key=lambda row: sum(w.task.flop for w in row[1][1])))


def merged(parts: Partition, target: Target) -> Sequence[WeightedTask]:
    """The tasks of a network's merged kernels."""
    found = [m.subgraph for m in merges(parts)]
    return [WeightedTask(SearchTask(s.dag, target, s.name), 1.0) for s in found]


def tuned_alone(weighted: Sequence[WeightedTask], limit_s: float, log: Path) -> None:
    """Tune tasks with the sketches alone that fuse their anchors; a log that is there is whole."""
    if log.exists():
        return
    part = log.with_suffix(".part")
    part.unlink(missing_ok=True)
    for w in weighted:
        space = SpaceOptions(apart=False)
        al.tune(w.task, None, limit_s, log=part, space=space, progress=False)
    part.rename(log)


def tuned(graphs: Sequence[Graph], limit_s: float, log: Path, target: Target) -> None:
    """Tune layers together; a log that is there is whole."""
    if log.exists():
        return
    part = log.with_suffix(".part")
    part.unlink(missing_ok=True)
    al.auto_schedule(graphs, timeout=limit_s, log=part, progress=False, target=target)
    part.rename(log)


def programs(
    weighted: Sequence[WeightedTask], records: dict[str, list[Record]]
) -> Iterator[shipped.Programs]:
    """The fastest programs of each form of each task."""
    for form in (form for w in weighted for form in w.forms):
        own = [r for r in records.get(form.workload_key, ()) if r.ok]
        # Other forms than the plain one have no plain schedule.
        plain_s = min((r.lowest_s for r in own if not r.round), default=float("inf"))
        found = distill([r for r in own if r.round], shipped.KEPT)
        if found and found[0].lowest_s < plain_s:
            most_s = shipped.CLOSE * found[0].lowest_s
            yield kinship(form), [r for r in found if r.lowest_s <= most_s]


def thinned(rows: Iterable[shipped.Programs]) -> list[shipped.Programs]:
    """Without those that have `ENOUGH` others of their kin within `CLOSE_BY` octaves of extents."""
    kept: dict[str, list[Kinship]] = {}
    out = []
    for known, records in rows:
        others = kept.setdefault(known.kin, [])
        near = (
            octaves(known.extents, k.extents)
            for k in others
            if len(k.extents) == len(known.extents)
        )
        if sum(distance <= CLOSE_BY for distance in near) < ENOUGH:
            others.append(known)
            out.append((known, records))
    return out


def cores_of(networks: Iterable[str], target: Target) -> set[tuple[str, tuple[int, ...]]]:
    """What the layers of networks compute up to their last sums, in all their forms."""
    known = set()
    for name in networks:
        parts = Lowering().partition(network(name))
        for w in (*network_tasks(parts, target), *merged(parts, target)):
            known |= {(k.core, k.extents) for k in map(kinship, w.forms)}
    return known


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--layers", type=positive, default=160, metavar="N", help="160")
    p.add_argument("--first", type=int, default=0, metavar="K", help="number of the first (0)")
    p.add_argument("--numbers", type=int, nargs="+", metavar="K", help="of the layers to take")
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=(), metavar="KIND", help="all")
    p.add_argument("--large", action="store_true", help="layers that others are far from")
    p.add_argument("--other-forms", action="store_true", help="those with promising forms alone")
    p.add_argument("--long", action="store_true", help="products of many rows")
    p.add_argument("--projections", action="store_true", help="queries, keys, values as one")
    p.add_argument("--signals", action="store_true", help="convolutions over time")
    p.add_argument("--chains", action="store_true", help="attention as one kernel")
    p.add_argument("--residuals", action="store_true", help="inverted residuals, likewise")
    p.add_argument("--seconds", type=seconds, default=7.0, metavar="S", help="a layer (7)")
    p.add_argument("--target", metavar="NAME", help="a preset; this machine")
    p.add_argument("--folder", type=Path, default=kept_folder("train_programs"), help="of logs")
    p.add_argument("--output", type=Path, default=shipped.SHIPPED, metavar="F")
    p.add_argument("--without", nargs="+", default=[], metavar="NETWORK", help="'s layers")
    p.add_argument("--add", type=Path, nargs="+", default=[], metavar="F", help="files made before")
    args = p.parse_args()
    os.environ["ANSORLITE_KNOWLEDGE"] = "0"  # what this machine learned before does not count
    args.folder.mkdir(parents=True, exist_ok=True)
    target = target_of(args.target)
    if target.is_foreign:
        raise UsageError(f"this machine cannot run the code of {args.target}")
    wanted = args.numbers or range(args.first, args.first + args.layers)
    which = next((k for k in DRAWN if getattr(args, k)), "")
    drawn_of = DRAWN.get(which, LAYERS)
    layers = drawn(wanted, args.kinds, target, drawn_of, args.other_forms)
    numbers = list(layers)
    for k in range(0, len(numbers), GROUP):
        own = numbers[k : k + GROUP]
        part = f"{which}." if which else ""
        log = args.folder / f"{target.vector_bytes}.{part}{wanted[0]}.{k // GROUP}.jsonl"
        if which in MERGED:
            tuned_alone([w for n in own for w in layers[n][1]], args.seconds, log)
        else:
            tuned([layers[n][0] for n in own], args.seconds * len(own), log, target)
    records: dict[str, list[Record]] = {}
    for log in sorted(args.folder.glob(f"{target.vector_bytes}.*.jsonl")):
        for r in read_log(log).records:
            records.setdefault(r.task, []).append(r)
    found = [p for _, weighted in layers.values() for p in programs(weighted, records)]
    known = [shipped.layers(f) for f in (args.output, *args.add)]
    every = shipped.merged(*known, {target.vector_bytes: found})
    taken = cores_of(args.without, target)
    for n, rows in every.items():
        every[n] = thinned(p for p in rows if (p[0].core, p[0].extents) not in taken)
    told = shipped.to_json(every)
    write_whole(args.output, json.dumps(told, separators=(",", ":")) + "\n")
    sizes = ", ".join(f"{len(own)} of {8 * n} bits" for n, own in every.items())
    print(f"forms of layers: {sizes}; {args.output.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
