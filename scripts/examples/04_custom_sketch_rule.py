"""A sketch rule of one's own: what the search may do to a stage, beside Ansor's rules.

A rule is a function (state, position of a stage, target). It returns None where its condition does
not hold, else an `Outcome`: the states that it makes. Numbers that it leaves open are holes.
Usage: python scripts/examples/04_custom_sketch_rule.py (some ten seconds; no extras).
"""

import numpy as np

import ansorlite as al
from ansorlite import te
from ansorlite.schedule.holes import Hole, tile_options
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, Reorder, Split
from ansorlite.space.rules import SKETCH_RULES, Outcome
from ansorlite.space.sketch import sketches
from ansorlite.te.access import extent


def square_blocks(state: State, position: int, target: al.Target) -> Outcome | None:
    """An element-wise stage of two axes: blocks of rows and columns, as a transpose wants them."""
    stage = state.schedule.stages[position]
    if not stage.has_loops or stage.compute.combiner or len(stage.compute.axes) != 2:
        return None
    for axis in stage.compute.axes:
        options = tile_options(extent(axis), 1)  # block sizes that leave a small rest or none
        hole = Hole(f"{stage.name}.{axis.name}", stage.name, "tile", options)
        state = state.open(hole).apply(Split(stage.name, axis.name, hole.columns))
    i, j = (axis.name for axis in stage.compute.axes)
    order = (f"{i}.0", f"{j}.0", f"{i}.1", f"{j}.1")
    state = state.apply(Reorder(stage.name, order), Annotate(stage.name, order[0], "parallel", 1))
    # Next comes the stage before this one; the other rules may make their own states of this one.
    return Outcome(((state, position - 1),))


def main() -> None:
    A = te.placeholder((64, 64), name="A")
    task = al.SearchTask([te.compute((64, 64), lambda i, j: A[j, i] * 2.0, name="B")])

    # The rules of a space are a tuple: put the new one first, and it is asked first.
    space = al.SpaceOptions(rules=(square_blocks, *SKETCH_RULES))
    found = sketches(task.dag, task.target, space)
    for s in found:
        print(f"sketch {s.name}: rules {', '.join(s.fired) or 'none'}; {len(s.holes)} holes")
    own = [s for s in found if "square_blocks" in s.fired]
    print(f"\n{own[0]}")

    # The holes of that sketch are sampled, scored and tuned like all others.
    result = al.tune(task, n_trials=8, space=space, seed=0, progress=False)
    print(result.best)
    a = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    np.testing.assert_array_equal(result.kernel(a), a.T * 2)
    tried = sum(r.sketch in {s.name for s in own} for r in result.records)
    print(f"{tried} of {len(result.records)} programs are of the new rule")


if __name__ == "__main__":
    main()
