"""Numbers in pairs and fours: numpy, interpreter, dot-product instructions and steps agree."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from forced_targets import TARGETS
from native import run_native

from ansorlite import te
from ansorlite.codegen.build import kernel_assembly
from ansorlite.codegen.dot import INSTRUCTIONS, Instruction, instruction
from ansorlite.codegen.hot_loop import hot_loop, look
from ansorlite.errors import AnsorliteError
from ansorlite.graph.ops.low_precision import BF16, U8S8, Kind, packed_weights
from ansorlite.graph.ops.movement import pad
from ansorlite.ir import packed
from ansorlite.ir.interpret import interpret
from ansorlite.ir.packed import PACKED, bits_of, float_of
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, Reorder, Split
from ansorlite.space.plain import plain_state
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.te.work import pad_of

RNG = np.random.default_rng(0)
ODD = np.float32([0, -0.0, 1, np.nan, np.inf, -np.inf, 1e-40, 3e38, 1.00390625, 1.01171875, -7.5])


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def test_bits_are_those_of_the_nearest_number() -> None:
    got = float_of(bits_of(ODD))
    wanted = np.float32([0, -0.0, 1, np.nan, np.inf, -np.inf, 1e-40, 3e38, 1, 1.015625, -7.5])
    np.testing.assert_allclose(got, wanted, rtol=2**-8, atol=1e-41)
    assert got[8] == 1 and got[9] == 1.015625  # halves go to the even one
    pairs = packed_weights(BF16, float_of(np.uint16([[16, 32], [48, 64]])).reshape(2, 2))
    assert pairs.tolist() == [[16 | 48 << 16, 32 | 64 << 16]]
    assert bits_of(np.float32([3.4e38]))[0] == bits_of(np.float32([np.inf]))[0]


@pytest.mark.parametrize("name", PACKED)
def test_numbers_and_arrays_mean_the_same(name: str) -> None:
    rule = PACKED[name]
    if name == "bf16_bits":
        rows = [(float(x),) for x in ODD if not np.isnan(x)]
    else:
        rows = RNG.integers(-(2**31), 2**31, (50, rule.arity)).tolist()
        rows = [[v & 0xBFFFBFFF for v in row] for row in rows]  # no infinity, no NaN
        rows = [[v - (1 << 32) if v >> 31 else v for v in row] for row in rows]
    got = rule.array(*(np.asarray(c) for c in zip(*rows, strict=True)))
    wanted = [rule.number(*row) for row in rows]
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=1e-6, atol=1e-6)


def product(m: int, n: int, words: int) -> te.Tensor:
    a = te.placeholder((m, 2 * words), "uint16", name="A")
    b = te.placeholder((words, n), "int32", name="B", constant=True)
    k = te.reduce_axis(words, "k")

    def element(i: Any, j: Any) -> Any:
        pair = te.pack(a[i, 2 * k], a[i, 2 * k + 1])
        return te.sum(te.dot_bfloat16(pair, b[k, j]), axis=k)

    return te.compute((m, n), element, "C")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize(("m", "n", "words"), [(1, 1, 1), (3, 5, 4), (7, 37, 11)])
def test_products_of_bfloat16(m: int, n: int, words: int, target: Target) -> None:
    dag = te.ComputeDAG([product(m, n, words)])
    a, b = bits_of(floats(m, 2 * words)), bits_of(floats(2 * words, n))
    inputs = {"A": a, "B": packed_weights(BF16, float_of(b))}
    wanted = float_of(a).astype(np.float64) @ float_of(b)
    np.testing.assert_allclose(dag.evaluate(inputs)["C"], wanted, rtol=1e-5, atol=1e-5)
    programs = [lower(plain_state(dag, target))]
    programs += [s.fill(s.sample(1, RNG)[0]) for s in sketches(dag, target)[:2]]
    for p in programs:
        for got in (interpret(p, inputs)["C"], run_native(p, inputs, target)["C"]):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
def test_products_of_bytes_are_exact(target: Target) -> None:
    a = te.placeholder((5, 28), "uint8", name="A")
    b = te.placeholder((7, 33), "int32", name="B", constant=True)
    k = te.reduce_axis(7, "k")

    def element(i: Any, j: Any) -> Any:
        four = te.pack(*(a[i, 4 * k + d] for d in range(4)))
        return te.sum(te.dot_int8(four, b[k, j]), axis=k)

    dag = te.ComputeDAG([te.compute((5, 33), element, "C")])
    x = RNG.integers(0, 256, (5, 28)).astype(np.uint8)
    y = RNG.integers(-128, 128, (28, 33)).astype(np.int8)
    x[0], y[:, 0] = 255, -128  # the ends
    words = np.ascontiguousarray(y.reshape(7, 4, 33).transpose(0, 2, 1)).view(np.int32)[..., 0]
    inputs = {"A": x, "B": words}
    wanted = x.astype(np.int64) @ y
    np.testing.assert_array_equal(dag.evaluate(inputs)["C"], wanted)
    programs = [lower(plain_state(dag, target))]
    programs += [s.fill(s.sample(1, RNG)[0]) for s in sketches(dag, target)[:2]]
    for p in programs:
        np.testing.assert_array_equal(interpret(p, inputs)["C"], wanted)
        np.testing.assert_array_equal(run_native(p, inputs, target)["C"], wanted)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
def test_there_and_back(target: Target) -> None:
    """Special values too: NaN, infinities, halves, subnormal numbers."""
    x = np.concatenate([ODD, floats(30)])
    a = te.placeholder(x.shape, name="A")
    bits = te.compute(x.shape, lambda i: te.cast(te.bfloat16_bits(a[i]), "uint16"), "bits")
    back = te.compute(x.shape, lambda i: te.bfloat16_value(bits[i]) + 0.0, "back")
    dag = te.ComputeDAG([bits, back])
    wanted = float_of(bits_of(x))
    native = run_native(lower(plain_state(dag, target)), {"A": x}, target)
    for values in (dag.evaluate({"A": x}), native):
        np.testing.assert_array_equal(float_of(values["bits"]), wanted)
        np.testing.assert_array_equal(values["back"], wanted)


@pytest.mark.parametrize("known", INSTRUCTIONS, ids=lambda i: f"{i.op}-{i.feature}-{i.lanes}")
def test_the_instruction_is_in_the_code(known: Instruction) -> None:
    """Of a target that has it, also where it is another machine."""
    arm = known.intrinsic.startswith("llvm.aarch64.")
    wide = replace(Target.cross("x86-avx512"), features="+avx512f,+avx512vl")
    base = Target.cross("cortex-a72") if arm else wide
    target = replace(base, features=f"{base.features},+{known.feature}")
    assert instruction(base, known.op, known.lanes) is None
    assert instruction(target, known.op, known.lanes) is not None
    a = te.placeholder((known.lanes,), "int32", name="A")
    b = te.placeholder((6, known.lanes), "int32", name="B")
    k = te.reduce_axis(6, "k")
    dot = te.dot_bfloat16 if known.op == "dot_bf16" else te.dot_int8
    c = te.compute((known.lanes,), lambda i: te.sum(dot(a[i], b[k, i]), axis=k), "C")
    state = State(te.ComputeDAG([c])).apply(
        Reorder("C", ("k", "i")), Annotate("C", "i", "lanes", known.lanes)
    )
    assert known.name in kernel_assembly(lower(state), target)
    # LLVM itself has vpmaddwd multiply single bytes
    times = [kernel_assembly(lower(state), t).count(known.name) for t in (base, target)]
    assert times[0] == 0 or (known.name == "vpmaddwd" and times[0] > times[1])


def tiled(kind: Kind, m: int, n: int, words: int, rows: int, columns: int, lanes: int) -> State:
    """C[m, n], a sum over words, in register tiles."""
    d = kind.depth
    a = te.placeholder((m, d * words), kind.stored, name="A")
    b = te.placeholder((words, n), "int32", name="B", constant=True)
    k = te.reduce_axis(words, "k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(kind.dot(te.pack(*(a[i, d * k + t] for t in range(d))), b[k, j]), axis=k)

    return State(te.ComputeDAG([te.compute((m, n), element, "C")])).apply(
        Split("C", "i", (rows,)),
        Split("C", "j", (columns,)),
        Reorder("C", ("i.0", "j.0", "k", "i.1", "j.1")),
        *(Annotate("C", name, "register", 1) for name in ("i.1", "j.1")),
        Annotate("C", "j.1", "lanes", lanes),
    )


@pytest.mark.parametrize("preset", ["x86-avx2", "x86-avx512"])
@pytest.mark.parametrize(("kind", "once", "often"), [(BF16, 0, "vfmadd"), (U8S8, 6, "vpmaddwd")])
def test_a_tile_widens_each_operand_once(kind: Kind, once: int, often: str, preset: str) -> None:
    """Without dot-product instructions: four rows, three vectors of columns."""
    target = Target.cross(preset)
    lanes = target.lanes("float32")
    state = tiled(kind, 4, 3 * lanes, 8, 4, 3 * lanes, lanes)
    loop = "\n".join(hot_loop(kernel_assembly(lower(state), target)))
    assert loop.count(often) == 4 * 3 * 2
    shifts = loop.count("vpsraw") if kind is U8S8 else loop.count("vpslld") - 4 - 3
    assert shifts == once


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
def test_random_products_of_bytes_are_exact(target: Target) -> None:
    """Most operands at the ends of their range, where sums of 16 bits would saturate."""
    x = RNG.choice(np.uint8([0, 1, 127, 128, 254, 255]), (24, 32))
    y = RNG.choice(np.int8([-128, -127, 0, 127]), (32, 80))
    inputs = {"A": x, "B": packed_weights(U8S8, y)}
    got = run_native(lower(tiled(U8S8, 24, 80, 8, 4, 40, 8)), inputs, target)["C"]
    np.testing.assert_array_equal(got, x.astype(np.int64) @ y)


@pytest.mark.parametrize(
    ("cpu", "op", "words"),
    [
        ("neoverse-v2", "dot_bf16", r"bfdot\s.*\.2h\[\d\]"),
        ("neoverse-v2", "dot_u8s8", r"sudot\s.*\.4b\[\d\]"),
        ("cortex-a76", "dot_u8s8", r"sdot\s.*\.4b\[\d\]"),
        ("apple-m1", "dot_u8s8", r"sdot\sv\d+, v\d+, v\d+\[\d\]"),
    ],
)
def test_arm_multiplies_by_words_of_a_register(cpu: str, op: str, words: str) -> None:
    """A tile whose rows read one word each: by element, without a copy to all lanes."""
    depth = PACKED[op].depth
    a = te.placeholder((4, 16 * depth), "uint16" if depth == 2 else "uint8", name="A")
    b = te.placeholder((16, 16), "int32", name="B", constant=True)
    k = te.reduce_axis(16, "k")
    dot = te.dot_bfloat16 if op == "dot_bf16" else te.dot_int8

    def element(i: Any, j: Any) -> Any:
        return te.sum(dot(te.pack(*(a[i, depth * k + d] for d in range(depth))), b[k, j]), axis=k)

    state = State(te.ComputeDAG([te.compute((4, 16), element, "C")])).apply(
        Split("C", "i", (4,)),
        Split("C", "j", (16,)),
        Reorder("C", ("i.0", "j.0", "k", "i.1", "j.1")),
        Annotate("C", "i.1", "register", 1),
        Annotate("C", "j.1", "register", 1),
        Annotate("C", "j.1", "lanes", 4),
    )
    text, known = kernel_assembly(lower(state), Target.cross(cpu)), cpu == "neoverse-v2"
    seen = look(text)
    assert len(re.findall(words, text)) >= 16 and "ld1r" not in text and "dup" not in text, text
    assert seen.by_element >= 16 and seen.accumulators >= 16 and seen.spills == 0, seen
    # Without unsigned factors, a sum of its own for each vector of weights.
    assert seen.fma == seen.by_element and text.count("saddlp") == (0 if known else 8), text


def test_wrong_operands() -> None:
    a = te.placeholder((4,), name="A")
    with pytest.raises(AnsorliteError, match="dot_bf16 takes 2 operands of dtype int32, got float"):
        te.dot_bfloat16(a[0], a[1])
    with pytest.raises(AnsorliteError, match="3 numbers do not fill 32 bits"):
        te.pack(1, 2, 3)
    assert packed.DOTS == ("dot_bf16", "dot_u8s8")


def test_padding_of_bits_copies_vectors() -> None:
    """The border is a constant vector beside loaded ones, and the pad is known as a pad."""
    x = te.placeholder((4, 4, 64), "uint16", "x")
    dag = te.ComputeDAG([pad(x, ((1, 1), (1, 1), (0, 0)))])
    target = Target.cross("x86-avx512")
    program = lower(plain_state(dag, target))
    assembly = kernel_assembly(program, target)
    assert "movzwl" not in assembly and "vpinsr" not in assembly
    known = pad_of(dag.outputs[0])
    assert known is not None and known.x.dtype == dag.outputs[0].dtype == "uint16"
    bits = RNG.integers(0, 1 << 16, (4, 4, 64)).astype(np.uint16)
    program = lower(plain_state(dag, Target.detect()))
    got = run_native(program, {"x": bits}, Target.detect())["pad"]
    np.testing.assert_array_equal(got, np.pad(bits, ((1, 1), (1, 1), (0, 0))))
