"""A schedule template of one's own (AutoTVM's way) against Ansor's search, under one budget.

A template is a schedule written by hand with its numbers left open. Ansor's search derives the
schedules from the expression. Both run on the same builder, runner and code generator.
Usage: python scripts/examples/05_template_against_ansor.py (some ten seconds; no extras).
"""

import ansorlite as al
from ansorlite import te
from ansorlite.baselines.config_space import ConfigSpace
from ansorlite.baselines.templates import register

TRIALS = 6


# The condition says which computations the template is for: here, one reduction axis.
@register("rows_times_columns", lambda cfg: len(cfg.reduction(cfg.main)) == 1)
def rows_times_columns(cfg: ConfigSpace) -> None:
    """Blocks of columns inside of each row; the row loop is parallel, a block is a vector."""
    i, j = cfg.spatial(cfg.main)
    (k,) = cfg.reduction(cfg.main)
    outer, inner = cfg.define_split(cfg.main, j, 2)  # the factor is a number to be searched
    # Two orders, and so two structures: the reduction outside of the vector, or around blocks.
    cfg.define_reorder(cfg.main, [i, outer, k, inner], [i, k, outer, inner])
    cfg.define_annotate(cfg.main, [i], "parallel")
    cfg.define_annotate(cfg.main, [inner], "vectorize")


def matmul(n: int) -> al.SearchTask:
    A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, name="k")
    product = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return al.SearchTask([product], name=f"matmul_{n}")


def main() -> None:
    task = matmul(96)
    for policy in ("template-random", "evolutionary"):
        result = al.tune(task, n_trials=TRIALS, policy=policy, seed=0, progress=False)
        assert result.best is not None
        best, right = result.best, sum(r.ok for r in result.records)
        print(f"{policy:16} {best.latency_s * 1e6:7.1f} us  {best.gflops:6.1f} GFLOP/s", end="")
        print(f"  {right} of {result.trials} programs right, best of sketch {best.record.sketch}")
    # `ansorlite compare C2D:2 --searchers ansor,template-xgb --seeds 3` does that for the operator
    # suite and the built-in templates; `ansorlite compare --searchers list` names all searchers.


if __name__ == "__main__":
    main()
