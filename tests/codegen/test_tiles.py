"""Register tiles in the assembly of every target: the instructions of the inner loop."""

import re

import numpy as np
import pytest
from native import run_native

from ansorlite import te
from ansorlite.codegen.build import kernel_assembly
from ansorlite.codegen.hot_loop import look
from ansorlite.measure.calibrate import body_state, legal_bodies
from ansorlite.presets import CORES, PRESETS
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, ComputeAt, Reorder, Split
from ansorlite.target import Target

FMA = re.compile(r"\t(vfn?madd|fmla)")
BRANCH = re.compile(r"\tj[a-z]+|\t(b|b\.[a-z]+|cbn?z)\t")
STACK = re.compile(r"\(%rsp|\(%rbp|\[sp")
FULL = 0.7  # of the registers


def inner_loop(text: str) -> list[str]:
    """The instructions between labels or branches that have the most multiply-adds."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if re.match(r"[.\w]+:", line):
            blocks.append([])
        elif re.match(r"\t[a-z]", line):
            blocks[-1].append(line)
            if BRANCH.match(line):
                blocks.append([])
    return max(blocks, key=lambda b: sum(bool(FMA.search(x)) for x in b))


def cases() -> list[tuple[str, int, int]]:
    """The large tiles of each target: those that a schedule would choose.

    Of 32 registers two must be left: LLVM loads ahead, and spills one of 31 now and then; four on
    the A53, whose instructions issue in order.
    """
    out = []
    for preset in (*(p for p in PRESETS if p not in CORES), "cortex-a53", "apple-m1"):
        target = Target.cross(preset)
        spare = 4 if preset == "cortex-a53" else 2
        usable = target.vector_registers - (spare if target.vector_registers > 16 else 0)
        for rows, vectors in legal_bodies(target):
            live = rows * vectors + min(rows, vectors) + 1
            large = rows * vectors >= FULL * target.vector_registers and live <= usable
            if large and min(rows, vectors) > 1:
                out.append((preset, rows, vectors))
    return out


@pytest.mark.parametrize(("preset", "rows", "vectors"), cases())
def test_accumulators_stay_in_registers(preset: str, rows: int, vectors: int) -> None:
    """Nothing but multiply-adds, loads, broadcasts and the loop: no accumulator on the stack."""
    target = Target.cross(preset)
    width = vectors * target.lanes("float32")
    state = body_state(rows, width, 64, 1, 2, True, target)
    loop = inner_loop(kernel_assembly(lower(state), target))
    n = sum(bool(FMA.search(x)) for x in loop)
    assert n >= rows * vectors and n % (rows * vectors) == 0, "\n".join(loop)
    spilled = [x for x in loop if STACK.search(x)]
    assert not spilled, "\n".join(loop)
    # Per step: a load for each vector of one operand (three instructions where it is split), at
    # most a broadcast for each row.
    others, loads = len(loop) - n, 3 if target.reads_halves else 1
    assert others <= (rows + loads * vectors) * (n // (rows * vectors)) + 12, "\n".join(loop)


@pytest.mark.parametrize("cpu", ["cortex-a76", "neoverse-n1", "neoverse-v2", "apple-m1"])
@pytest.mark.parametrize(("rows", "vectors"), [(8, 3), (6, 4), (12, 2), (4, 4)])
def test_arm_multiplies_by_lanes_of_loaded_vectors(cpu: str, rows: int, vectors: int) -> None:
    """8 x 12, 6 x 16, 12 x 8: one load of four scalars, multiply-adds by element, no broadcast."""
    target = Target.cross(cpu)
    state = body_state(rows, 4 * vectors, 64, 1, 2, True, target)
    text = kernel_assembly(lower(state), target)
    loop, found = "\n".join(inner_loop(text)), look(text)
    steps = found.fma // (rows * vectors)
    assert found.fma == found.by_element == steps * rows * vectors, loop
    assert (found.accumulators, found.spills, found.broadcasts) == (rows * vectors, 0, 0), loop
    # A row of 6 has a vector of 4 scalars and one of 2.
    assert found.loads <= steps * (vectors + -(-rows // 4)), loop


def strided_rows(rows: int, columns: int, *, written: bool) -> State:
    """A tile of a matrix product whose rows lie apart; `written`: by an earlier loop of the nest"""
    a, b = te.placeholder((rows, 64), name="A"), te.placeholder((64, columns), name="B")
    k = te.reduce_axis(64, "k")
    twice = te.compute((rows, 64), lambda i, k: a[i, k] + a[i, k], name="T")
    x = twice if written else a
    y = te.compute((rows, columns), lambda i, j: te.sum(x[i, k] * b[k, j], axis=[k]), name="Y")
    state = State(te.ComputeDAG([y])).apply(
        Split("Y", "i", (rows,)),
        Split("Y", "j", (columns,)),
        Reorder("Y", ("i.0", "j.0", "k", "i.1", "j.1")),
        Annotate("Y", "i.1", "register", 1),
        Annotate("Y", "j.1", "register", 1),
        Annotate("Y", "j.1", "lanes", 4),
        Annotate("Y", "k", "unroll", 2 * rows),
    )
    return state.apply(ComputeAt("T", "Y", "i.0")) if written else state


@pytest.mark.parametrize("cpu", ["cortex-a53", "neoverse-v2", "apple-m1"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 16), (4, 24), (3, 17)])
@pytest.mark.parametrize("written", [False, True])
def test_arm_multiplies_by_scalars_of_rows_apart(
    cpu: str, rows: int, columns: int, written: bool
) -> None:
    """Scalars are loaded one by one, none to all lanes of a register, and none twice."""
    text = kernel_assembly(lower(strided_rows(rows, columns, written=written)), Target.cross(cpu))
    loop, found = "\n".join(inner_loop(text)), look(text)
    assert found.fma == found.by_element >= rows * (columns // 4), loop
    assert (found.spills, found.broadcasts) == (0, 0) and "fmov" not in loop, loop


@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a72"])
def test_vectors_are_read_in_halves_where_a_core_reads_no_more(cpu: str) -> None:
    """The A53 issues a multiply-add beside a load of 8 bytes, and nothing beside one of 16."""
    text = kernel_assembly(lower(strided_rows(6, 16, written=False)), Target.cross(cpu))
    loop, seen = "\n".join(inner_loop(text)), look(text)
    whole = len(re.findall(r"\tld(?:u?r|p)\tq", loop))
    upper = len(re.findall(r"\tmov\tv\d+\.d\[1\], x\d+", loop))
    steps = seen.fma // 24
    if cpu == "cortex-a53":
        assert (whole, upper, seen.spills) == (0, 4 * steps, 0), loop
        assert seen.narrow_loads >= (6 + 8) * steps // 2, loop  # some scalars are read in pairs
    else:
        assert whole >= 2 * steps and upper == 0, loop


@pytest.mark.parametrize(("rows", "vectors"), [(6, 2), (4, 3), (3, 4), (2, 6)])
def test_overlapping_windows_are_read_again(rows: int, vectors: int) -> None:
    """Copies of an unrolled window read much the same, more than there are registers for."""
    window, channels, width = 7, 3, 8 * vectors
    x = te.placeholder((2 * rows + window, channels), name="X")
    w = te.placeholder((window, channels, width), name="W")
    k, c = te.reduce_axis(window, "k"), te.reduce_axis(channels, "c")
    y = te.compute(
        (rows, width), lambda i, j: te.sum(x[2 * i + k, c] * w[k, c, j], axis=[k, c]), name="Y"
    )
    dag, target = te.ComputeDAG([y]), Target.cross("x86-avx2")
    state = State(dag).apply(
        Split("Y", "i", (rows,)),
        Split("Y", "j", (width,)),
        Reorder("Y", ("i.0", "j.0", "k", "c", "i.1", "j.1")),
        Annotate("Y", "i.1", "register", 1),
        Annotate("Y", "j.1", "register", 1),
        Annotate("Y", "j.1", "lanes", 8),
        Annotate("Y", "k", "unroll", 1024),
        Annotate("Y", "c", "unroll", 1024),
    )
    body = inner_loop(kernel_assembly(lower(state), target))
    assert sum(bool(FMA.search(x)) for x in body) == window * channels * rows * vectors
    assert not [x for x in body if STACK.search(x)], "\n".join(body)
    rng = np.random.default_rng(0)
    arrays = {"X": rng.random((2 * rows + window, channels), np.float32)}
    arrays["W"] = rng.random((window, channels, width), np.float32)
    got = run_native(lower(state), arrays, Target())["Y"]
    np.testing.assert_allclose(got, dag.evaluate(arrays)["Y"], rtol=1e-5)
