"""Each value is emitted once, in the outermost block that knows its operands."""

import re

import numpy as np
import pytest
from native import run_native

import ansorlite as al
from ansorlite import te
from ansorlite.codegen.build import llvm_ir, passes_for
from ansorlite.ir.program import Program
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, Reorder, Split
from ansorlite.space.legality import legal
from ansorlite.space.sketch import sketches
from ansorlite.target import Target


def functions(text: str) -> list[str]:
    return re.findall(r"^define .*?^}", text, re.DOTALL | re.MULTILINE)


def candidates(case: str, n: int) -> list[Program]:
    """Some legal programs of a case, of several sketches."""
    task, rng = al.workload(case), np.random.default_rng(0)
    found = []
    for s in sketches(task.dag, Target())[:n]:
        rows = s.sample(64, rng)
        good = legal(s.program, population_columns(s.holes, rows), len(rows), Target())
        found += [s.fill(row) for row in rows[good][:1]]
    return found


@pytest.mark.parametrize("case", ["C2D:1", "DEP:1", "GMM:1", "T2D:0"])
def test_no_product_is_computed_twice(case: str) -> None:
    for program in candidates(case, 4):
        for function in functions(llvm_ir(program, Target(), optimized=False)):
            products = re.findall(r"= (mul .*)", function)
            assert len(set(products)) == len(products)


def tiled() -> State:
    """relu(x * w + b) with a register tile and loops inside of others."""
    x, w = te.placeholder((12, 40), name="x"), te.placeholder((40, 32), name="w")
    k = te.reduce_axis(40, "k")
    y = te.compute((12, 32), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="y")
    steps = (
        Split("y", "i", (4,)),
        Split("y", "j", (16,)),
        Reorder("y", ("i.0", "j.0", "k", "i.1", "j.1")),
        Annotate("y", "i.1", "register", 1),
        Annotate("y", "j.1", "register", 1),
        Annotate("y", "j.1", "lanes", 8),
    )
    return State(te.ComputeDAG([y])).apply(*steps)


def test_few_passes_do_for_sums_in_registers() -> None:
    state = tiled()
    assert passes_for(specialize(lower(state))) == "few"
    assert passes_for(specialize(lower(State(state.dag)))) == "all"


def test_loads_from_constant_buffers_are_shared() -> None:
    """Four rows and two vectors: two loads of w and four of x for each k."""
    text = llvm_ir(lower(tiled()), Target(), optimized=False)
    (inner,) = [b for b in re.split(r"^\S+:$", text, flags=re.MULTILINE) if b.count("fmul") == 8]
    assert len(re.findall(r"= load <8 x float>.*align 4", inner)) - 8 == 2  # 8 of the sums
    assert len(re.findall(r"= load float,", inner)) == 4


def test_a_loop_that_may_not_run_reads_nothing() -> None:
    """The last tile ends before the loop over j begins; w[j] is then beyond the end."""
    x, w = te.placeholder((10, 6), name="x"), te.placeholder((10,), name="w")
    y = te.compute((10, 6), lambda i, j: x[i, j] * w[i], name="y")
    program = lower(State(te.ComputeDAG([y])).apply(Split("y", "i", (4,))))
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (10, 6)), ("w", 10))}
    got = run_native(program, arrays, Target())["y"]
    np.testing.assert_array_equal(got, arrays["x"] * arrays["w"][:, None])
