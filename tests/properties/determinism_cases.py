"""Prints a digest of the compiler's results for some DAGs; the test runs this file as a script.

One line per DAG: its workload key, its sketches, rows drawn with a seed, filled and
specialised programs and their LLVM IR.
"""

import hashlib
import sys

import numpy as np
from random_dags import seeded_dag

from ansorlite.codegen.emit import emit_module
from ansorlite.ir.specialize import specialize
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target


def digest(seed: int) -> str:
    """sha256 of every text."""
    rng = np.random.default_rng(seed)
    dag = seeded_dag(rng, max_stages=4).dag
    texts = [dag.workload_key]
    target = Target.cross("x86-avx2", cores=20)
    found = sketches(dag, target, SpaceOptions(max_sketches=12))
    texts += [f"{s.name} {s.fired} {s.state}" for s in found]
    for sketch in found[:: 1 + len(found) // 6]:
        (row,) = sketch.sample(1, rng)
        ready = specialize(sketch.fill(row))
        texts += [str(sketch), str(row), str(ready), emit_module(ready, target, "kernel")]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


if __name__ == "__main__":
    for k in range(int(sys.argv[1])):
        print(k, digest(k))
