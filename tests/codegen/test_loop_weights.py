"""How often loops run is told to LLVM, which keeps in registers what is used most often."""

import re

from ansorlite import te
from ansorlite.codegen.build import kernel_assembly
from ansorlite.codegen.emit import emit_module
from ansorlite.codegen.hot_loop import hot_loop
from ansorlite.graph.ops.strassen import fast_dense
from ansorlite.ir.expr import Expr
from ansorlite.ir.program import Program
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.holes import values_row
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.space.sketch import CHANNELS, SpaceOptions, sketches
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG

TARGET = Target.cross("x86-avx512", cores=2)
TILE = {"dense_products.i": (1, 5, 5), "dense_products.j": (1, 1, 64), "dense_products.c": (192,)}
WEIGHTS = re.compile(r'!{!"branch_weights", i32 (\d+), i32 1}')


def product_and_activation() -> Program:
    """Sums in register tiles of 5 x 64, then a GELU, in blocks of one loop nest."""
    x, w = te.placeholder((1500, 384), name="x"), te.placeholder((384, 1536), "float32", name="w")
    y = fast_dense(x, w)

    def gelu(*at: Expr) -> Expr:
        v = y[at]
        return v * (te.erf(v * 0.70710677) + 1.0) * 0.5

    dag = ComputeDAG([te.compute(y.shape, gelu, name="out")])
    found = sketches(dag, TARGET, SpaceOptions(max_sketches=8))
    sketch = next(s for s in found if s.name.endswith(CHANNELS))
    values = {h.name: TILE.get(h.name, h.options[0]) for h in sketch.holes}
    values |= {h.name: (16,) for h in sketch.holes if h.kind == "lanes"}
    return sketch.fill(values_row(sketch.holes, values))


def test_sums_stay_in_registers_beside_constants_of_an_activation() -> None:
    loop = hot_loop(kernel_assembly(product_and_activation(), TARGET))
    sums = [line for line in loop if "vfmadd" in line]
    assert len(sums) >= 20
    assert not [line for line in loop if "(%rsp)" in line or "(%rbp)" in line]


def test_loops_tell_how_often_they_go_back() -> None:
    x = te.placeholder((9, 7, 33), name="x")
    dag = ComputeDAG([te.compute((9, 33, 7), lambda i, j, k: x[i, k, j], name="y")])
    text = str(emit_module(specialize(lower(State(dag))), TARGET, "kernel"))
    assert {int(n) + 1 for n in WEIGHTS.findall(text)} == {9, 33, 7}
