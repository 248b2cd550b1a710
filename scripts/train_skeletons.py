"""Good structures of generated layers, which come with the package (ten minutes).

Draws --layers layers in the sizes of common networks, tunes them together for --timeout seconds,
and writes the skeletons that were best for each kin of tasks to ansorlite/search/skeletons.json. A
--log that was begun is continued. Structures depend little on the machine; tile sizes are not kept.
Usage: python scripts/train_skeletons.py [--layers N] [--timeout S] [--seed K] [--log F]
       [--output F]
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import ansorlite as al
from ansorlite.cli.options import positive, seconds
from ansorlite.files import write_whole
from ansorlite.graph.choice import Lowering
from ansorlite.pipeline import network_tasks
from ansorlite.records import Record, read_log
from ansorlite.search import skeletons
from ansorlite.target import Target
from ansorlite.task import SearchTask
from bench.drawn_layers import drawn_layer
from bench.experiment import exit_status


def main() -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--layers", type=positive, default=64, metavar="N", help="64")
    p.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="of all (600)")
    p.add_argument("--seed", type=int, default=7, metavar="K", help="of the layers (7)")
    p.add_argument("--log", type=Path, metavar="F", help="tuning log (a temporary one)")
    p.add_argument("--output", type=Path, default=skeletons.SHIPPED, metavar="F")
    args = p.parse_args()
    os.environ["ANSORLITE_KNOWLEDGE"] = "0"  # what this machine learned before does not count
    graphs = [drawn_layer(np.random.default_rng([args.seed, k])) for k in range(args.layers)]
    target, tasks = Target.detect(), dict[str, SearchTask]()
    for graph in graphs:
        weighted = network_tasks(Lowering().partition(graph), target)
        tasks |= {form.workload_key: form for w in weighted for form in w.forms}
    with tempfile.TemporaryDirectory() as folder:
        log = args.log or Path(folder) / "log.jsonl"
        al.auto_schedule(graphs, timeout=args.timeout, log=log)
        records: dict[str, list[Record]] = {}
        for r in read_log(log).records:
            if r.task in tasks and r.target == target.fingerprint:
                records.setdefault(r.task, []).append(r)
    found = skeletons.best_skeletons(records, tasks)
    write_whole(args.output, json.dumps(skeletons.to_json(found), separators=(",", ":")) + "\n")
    print(f"{sum(map(len, found.values()))} skeletons of {len(found)} kin of {len(records)} tasks")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
