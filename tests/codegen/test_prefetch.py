"""Software prefetch, and stores past the caches: visible in the program and in native code."""

import numpy as np
import pytest
from native import run_native

from ansorlite import te
from ansorlite.codegen.build import llvm_ir
from ansorlite.ir.interpret import interpret
from ansorlite.ir.prefetch import NEXT_BLOCK
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, LayoutRewrite, Reorder, Split, Step
from ansorlite.space.sketch import sketches
from ansorlite.target import Target

HOST = Target.detect()


def product(n: int, m: int, k: int, constant: bool = True) -> te.ComputeDAG:
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B", constant=constant)
    r = te.reduce_axis(k, "k")
    return te.ComputeDAG(
        [te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")]
    )


def tiled(*more: Step) -> State:
    """Tiles of 4 by 16, B packed in the order in which it is read."""
    return State(product(8, 48, 40)).apply(
        Split("C", "i", (4,)),
        Split("C", "j", (16,)),
        Split("C", "k", (20,)),
        Reorder("C", ("i.0", "j.0", "k.0", "k.1", "i.1", "j.1")),
        LayoutRewrite("B", "C"),
        Annotate("C", "i.1", "register", 1),
        Annotate("C", "j.1", "register", 1),
        Annotate("C", "j.1", "lanes", 8),
        *more,
    )


def check(state: State) -> str:
    """The specialised program, which computes what numpy computes, in both ways."""
    program = lower(state)
    rng = np.random.default_rng(0)
    arrays = {
        p.name: rng.standard_normal([int(str(e)) for e in p.shape]).astype(np.float32)
        for p in state.dag.inputs
    }
    want = state.dag.evaluate(arrays)["C"]
    ready = specialize(program)
    np.testing.assert_allclose(interpret(ready, arrays)["C"], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run_native(program, arrays, HOST)["C"], want, rtol=1e-5, atol=1e-5)
    return str(ready)


@pytest.mark.parametrize("unroll", [0, 64])
def test_a_tile_asks_for_the_packed_operand(unroll: int) -> None:
    """One line of 16 floats an iteration; the rows of A, which move by one, are left alone."""
    text = check(tiled(Annotate("C", "k.1", "prefetch", 8), Annotate("C", "k.1", "unroll", unroll)))
    asked = [x.strip() for x in text.splitlines() if "prefetch" in x]
    assert len(asked) == 1 and asked[0].startswith("prefetch B[") and "+ 8" in asked[0]
    program = lower(tiled(Annotate("C", "k.1", "prefetch", 8)))
    assert 'call void @"llvm.prefetch' in llvm_ir(program, HOST, optimized=False)
    assert "prefetch" not in check(tiled(Annotate("C", "k.1", "prefetch", 0)))


@pytest.mark.parametrize("preset", ["x86-avx2", "x86-avx512", "aarch64-neon"])
def test_other_machines_have_the_instruction(preset: str) -> None:
    from ansorlite.codegen.build import kernel_assembly

    program = lower(tiled(Annotate("C", "k.1", "prefetch", 8)))
    text = kernel_assembly(program, Target.cross(preset))
    assert ("prfm" if "neon" in preset else "prefetcht0") in text


def test_stores_past_the_caches_are_aligned_vectors() -> None:
    state = tiled(Annotate("C", "j.1", "stream", 1))
    assert "stream for" in check(state)
    assert llvm_ir(lower(state), HOST, optimized=False).count("!nontemporal") == 4 * 2
    if HOST.arch == "x86_64":
        from ansorlite.codegen.build import kernel_assembly

        text = kernel_assembly(lower(state), HOST)
        assert "movntps" in text and ("mfence" in text or "lock" in text)


def test_unaligned_rows_use_ordinary_stores() -> None:
    a = te.placeholder((6, 13), name="A")
    dag = te.ComputeDAG([te.compute((6, 13), lambda i, j: a[i, j] * 2.0, name="C")])
    state = State(dag).apply(Annotate("C", "j", "lanes", 8), Annotate("C", "j", "stream", 1))
    assert "stream for" in check(state)
    assert "!nontemporal" not in llvm_ir(lower(state), HOST, optimized=False)


def test_the_space_has_both() -> None:
    """Streams where the output is larger than the caches, prefetches where a reduction is long."""
    small = Target.cross("x86-avx2")
    kinds = {h.kind for s in sketches(product(64, 64, 64), small) for h in s.holes}
    assert "prefetch" in kinds and "stream" not in kinds
    tiny = Target(triple=small.triple, cpu=small.cpu, features=small.features, l3_bytes=4096)
    kinds = {h.kind for s in sketches(product(64, 64, 8), tiny) for h in s.holes}
    assert "stream" in kinds and "prefetch" not in kinds


@pytest.mark.parametrize("unroll", [0, 64])
def test_passes_over_a_block_ask_for_the_next_one(unroll: int) -> None:
    """Two passes of 20 iterations over 20 rows of 16: eight elements of the next block in each."""
    order = Reorder("C", ("j.0", "k.0", "i.0", "k.1", "i.1", "j.1"))
    more = [Annotate("C", "k.1", "prefetch", NEXT_BLOCK), Annotate("C", "k.1", "unroll", unroll)]
    state = tiled(*more)
    text = check(state)
    assert "prefetch" not in text  # tiles of rows are the outermost loop: no pass reads B again
    steps = [order if isinstance(s, Reorder) else s for s in state.steps]
    text = check(State(state.dag).apply(*steps))
    (asked,) = {x.strip() for x in text.splitlines() if "prefetch" in x}
    assert asked.startswith("prefetch B[")
    assert "C.i.0*160" in asked and "*8" in asked and "+ 320" in asked


def test_an_operand_with_other_rows_between_has_no_next_block() -> None:
    order = Reorder("C", ("j.0", "k.0", "i.0", "k.1", "i.1", "j.1"))
    steps = [
        order if isinstance(s, Reorder) else s
        for s in tiled(Annotate("C", "k.1", "prefetch", NEXT_BLOCK)).steps
        if not isinstance(s, LayoutRewrite)
    ]
    assert "prefetch" not in check(State(product(8, 48, 40)).apply(*steps))
