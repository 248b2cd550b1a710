"""Good programs of generated layers, which come with the package (twenty minutes a CPU).

Draws --layers layers in the sizes of common networks, tunes them in groups of similar size for
--seconds each, and adds the fastest programs of all their forms to ansorlite/search/programs.json,
for vectors of this machine's length. Groups whose logs are in --folder are not tuned again; --add
takes files that other machines made. results/README.md says which layers and machines were used.
Usage: python scripts/train_programs.py [--layers N] [--first K] [--kinds KIND ...] [--seconds S]
       [--folder DIR] [--output F] [--add F ...]
"""

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

import ansorlite as al
from ansorlite.cli.options import positive, seconds
from ansorlite.errors import AnsorliteError
from ansorlite.files import write_whole
from ansorlite.graph.choice import Lowering
from ansorlite.graph.ir import Graph
from ansorlite.pipeline import network_tasks
from ansorlite.records import Record, distill, read_log
from ansorlite.search import shipped
from ansorlite.search.kinship import kinship
from ansorlite.search.tune_tasks import WeightedTask
from ansorlite.target import Target
from bench.drawn_layers import LAYERS, drawn_layer
from bench.experiment import exit_status, kept_folder

KINDS = tuple(make.__name__ for make, _ in LAYERS)
SEED = 7
LARGEST_FLOP = 1.3e9  # of a layer, so that a trial takes milliseconds
GROUP = 12  # layers that are tuned together


def drawn(
    numbers: Iterable[int], kinds: Collection[str], target: Target
) -> dict[int, tuple[Graph, Sequence[WeightedTask]]]:
    """Layers of these kinds (of any without) that are not too large, and their tasks, by number.

    The smallest ones come first.
    """
    out: dict[int, tuple[Graph, Sequence[WeightedTask]]] = {}
    for k in numbers:
        graph = drawn_layer(np.random.default_rng([SEED, k]))
        if kinds and graph.name not in kinds:
            continue
        try:
            weighted = network_tasks(Lowering().partition(graph), target)
        except AnsorliteError:  # a layer that no form computes
            continue
        if sum(w.task.flop for w in weighted) <= LARGEST_FLOP:
            out[k] = graph, weighted
    return dict(sorted(out.items(), key=lambda row: sum(w.task.flop for w in row[1][1])))


def tuned(graphs: Sequence[Graph], limit_s: float, log: Path) -> None:
    """Tune layers together; a log that is there is whole."""
    if log.exists():
        return
    part = log.with_suffix(".part")
    part.unlink(missing_ok=True)
    al.auto_schedule(graphs, timeout=limit_s, log=part, progress=False)
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


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--layers", type=positive, default=160, metavar="N", help="160")
    p.add_argument("--first", type=int, default=0, metavar="K", help="number of the first (0)")
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=(), metavar="KIND", help="all")
    p.add_argument("--seconds", type=seconds, default=7.0, metavar="S", help="a layer (7)")
    p.add_argument("--folder", type=Path, default=kept_folder("train_programs"), help="of logs")
    p.add_argument("--output", type=Path, default=shipped.SHIPPED, metavar="F")
    p.add_argument("--add", type=Path, nargs="+", default=[], metavar="F", help="files made before")
    args = p.parse_args()
    os.environ["ANSORLITE_KNOWLEDGE"] = "0"  # what this machine learned before does not count
    args.folder.mkdir(parents=True, exist_ok=True)
    target = Target.detect()
    layers = drawn(range(args.first, args.first + args.layers), args.kinds, target)
    numbers = list(layers)
    for k in range(0, len(numbers), GROUP):
        own = numbers[k : k + GROUP]
        log = args.folder / f"{target.vector_bytes}.{args.first}.{k // GROUP}.jsonl"
        tuned([layers[n][0] for n in own], args.seconds * len(own), log)
    records: dict[str, list[Record]] = {}
    for log in sorted(args.folder.glob(f"{target.vector_bytes}.*.jsonl")):
        for r in read_log(log).records:
            records.setdefault(r.task, []).append(r)
    found = [p for _, weighted in layers.values() for p in programs(weighted, records)]
    known = [shipped.layers(f) for f in (args.output, *args.add)]
    every = shipped.merged(*known, {target.vector_bytes: found})
    told = shipped.to_json(every)
    write_whole(args.output, json.dumps(told, separators=(",", ":")) + "\n")
    sizes = ", ".join(f"{len(own)} of {8 * n} bits" for n, own in every.items())
    print(f"forms of layers: {sizes}; {args.output.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
