"""Sums of products by a matrix unit: the code for it, and its numbers on a machine in numpy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tile_machine import TileMachine

import ansorlite as al
from ansorlite import te
from ansorlite.codegen.build import SYMBOL, kernel_assembly
from ansorlite.codegen.emit import emit_module
from ansorlite.codegen.hot_loop import hot_loop, look
from ansorlite.cost.analytic import analytic_score
from ansorlite.cost.fast_analytic import fast_analytic_score
from ansorlite.cost.features import FeaturePlan, features
from ansorlite.graph.ops.low_precision import BF16, OPS, U8S8, Kind, packed_weights
from ansorlite.ir.packed import bits_of
from ansorlite.ir.program import Program
from ansorlite.ir.specialize import specialize
from ansorlite.matrix_units import UNITS, unit_of
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, Reorder, Split
from ansorlite.space.legality import legal
from ansorlite.space.sketch import sketches
from ansorlite.target import Target

XEON = Target.cross("sapphirerapids")
RNG = np.random.default_rng(0)


def product(kind: Kind, m: int, n: int, words: int, *, turned: bool = False) -> te.Tensor:
    """A @ B; `turned`: (A @ B).T, so that the data are the columns of a tile."""
    d = kind.depth
    a = te.placeholder((d * words, m) if turned else (m, d * words), kind.stored, name="A")
    b = te.placeholder((n, words) if turned else (words, n), "int32", name="B", constant=True)
    k = te.reduce_axis(words, "k")
    if turned:
        # packed data, as a stage before would write it
        p = te.compute(
            (words, m), lambda w, i: te.pack(*(a[d * w + t, i] for t in range(d))), name="P"
        )
        return te.compute((n, m), lambda j, i: te.sum(kind.dot(p[k, i], b[j, k]), axis=k), "C")

    def element(i: Any, j: Any) -> Any:
        return te.sum(kind.dot(te.pack(*(a[i, d * k + t] for t in range(d))), b[k, j]), axis=k)

    return te.compute((m, n), element, "C")


def tiled(out: te.Tensor, rows: int, columns: int, words: int) -> Program:
    """Register tiles of `rows` by `columns`, within parts of `words` of the sum."""
    first, second = (a.name for a in out.op.axes)
    return lower(
        State(te.ComputeDAG([out])).apply(
            Split("C", first, (rows,)),
            Split("C", second, (columns,)),
            Split("C", "k", (words,)),
            Reorder("C", (f"{first}.0", f"{second}.0", "k.0", "k.1", f"{first}.1", f"{second}.1")),
            *(Annotate("C", f"{name}.1", "register", 1) for name in (first, second)),
            Annotate("C", f"{second}.1", "lanes", 16),
        )
    )


def numbers(kind: Kind, m: int, n: int, words: int) -> tuple[dict[str, Any], Any]:
    """Inputs of `product`, and what it is in exact arithmetic."""
    k = kind.depth * words
    if kind is BF16:
        x = bits_of(RNG.standard_normal((m, k)).astype(np.float32))
        w = RNG.standard_normal((k, n)).astype(np.float32)
        packed = packed_weights(BF16, w)
    else:
        x = RNG.choice(np.uint8([0, 1, 127, 128, 255]), (m, k))
        w = RNG.choice(np.int8([-128, -1, 0, 1, 127]), (k, n))
        packed = packed_weights(U8S8, w)
    wanted = kind.data(x).astype(np.float64) @ kind.unpacked(packed).astype(np.float64)
    return {"A": x, "B": packed}, wanted


SHAPES = {
    "whole": ((32, 32, 64), (32, 32, 32)),
    "several": ((64, 64, 48), (32, 32, 16)),
    "rows": ((28, 16, 16), (28, 16, 16)),  # 16 rows and 12
    "columns": ((16, 40, 24), (16, 40, 24)),  # 16, 16 and 8; 12 words at a time
    "rest": ((40, 24, 16), (16, 16, 16)),  # tiles that the edges cut
    "joined": ((16, 32, 48), (16, 32, 3)),  # two loops over one row of words
}


@pytest.mark.parametrize("kind", [BF16, U8S8], ids=lambda k: k.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_by_tiles(kind: Kind, shape: str) -> None:
    (m, n, words), tile = SHAPES[shape]
    inputs, wanted = numbers(kind, m, n, words)
    machine = TileMachine()
    got = machine.run(tiled(product(kind, m, n, words), *tile), XEON, inputs)
    if kind is BF16:
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, wanted)
    unit = unit_of(XEON, f"dot_{kind.name}")
    assert unit is not None
    done = {k: v for k, v in machine.executed.items() if k[0] == unit.name}
    summed = sum(
        times * rows * row_bytes * k // 16 for (_, rows, row_bytes, k), times in done.items()
    )
    assert summed == m * n * words  # all of the work


@pytest.mark.parametrize("kind", [BF16, U8S8], ids=lambda k: k.name)
def test_rows_may_be_the_second_operand(kind: Kind) -> None:
    """Of bytes the signed ones are then the rows: another instruction."""
    inputs, wanted = numbers(kind, 32, 32, 16)
    inputs = {"A": np.ascontiguousarray(inputs["A"].T), "B": np.ascontiguousarray(inputs["B"].T)}
    machine = TileMachine()
    got = machine.run(tiled(product(kind, 32, 32, 16, turned=True), 32, 32, 16), XEON, inputs)
    np.testing.assert_allclose(got, wanted.T, rtol=1e-5, atol=1e-4)
    unit = unit_of(XEON, f"dot_{kind.name}")
    assert unit is not None and (unit.swapped, 16, 64, 64) in machine.executed


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_sums_stay_in_tile_registers(unit: Any) -> None:
    """The hot loop reads two tiles of each operand and executes four instructions, no more."""
    kind = {"dot_bf16": BF16, "dot_u8s8": U8S8}[unit.op]
    assembly = kernel_assembly(tiled(product(kind, 64, 64, 256), 32, 32, 64), XEON)
    loop = [line.split() for line in hot_loop(assembly)]
    names = [words[0] for words in loop if words]
    assert names.count(unit.name) == 4 and names.count("tileloadd") + names.count("tileload") == 4
    assert not {"tilestored", "tilezero", "ldtilecfg"} & set(names)
    sums = {words[-1] for words in loop if words and words[0] == unit.name}
    assert len(sums) == 4
    # configured once, released at the end, permitted by Linux
    assert assembly.count("\tldtilecfg") == 1 and "\ttilerelease" in assembly
    assert "syscall" in assembly


def test_other_nests_are_left_to_vectors() -> None:
    """Too many tiles, sums of too few words, no register tile, and a target without tiles."""
    for words, tile in ((48, (48, 48, 16)), (3, (16, 16, 3)), (48, (8, 1, 16))):
        program = tiled(product(BF16, 48, 48, words), *tile)
        assert "tdpbf16ps" not in emit_module(specialize(program), XEON, SYMBOL)
    program = tiled(product(BF16, 32, 32, 32), 32, 32, 32)
    text = emit_module(specialize(program), XEON, SYMBOL)
    assert text.count('call i64 (i64, ...) @"syscall"(i64 158, i64 4131, i64 18)') == 1
    none = replace(XEON, features=XEON.features.replace(",+amx-bf16", ""))
    assert "amx" not in emit_module(specialize(program), none, SYMBOL)
    assert "tdpbusd" in emit_module(
        specialize(tiled(product(U8S8, 32, 32, 32), 32, 32, 32)), none, SYMBOL
    )


def best_of_sketches(dag: te.ComputeDAG, samples: int, n: int) -> list[Program]:
    """Of each of the first sketches, the legal candidate that the analytic score prefers."""
    found = []
    for s in sketches(dag, XEON)[:n]:
        rows = s.sample(samples, np.random.default_rng(0))
        columns = population_columns(s.holes, rows)
        score = fast_analytic_score(FeaturePlan(s.program), columns, samples, XEON)
        same = analytic_score(features(s.program, columns, samples, XEON))
        np.testing.assert_allclose(score, same, atol=1e-4)
        ok = legal(s.program, columns, samples, XEON)
        found.append(s.fill(rows[int(np.argmax(np.where(ok, score, -np.inf)))]))
    return found


@pytest.mark.parametrize("kind", [BF16, U8S8], ids=lambda k: k.name)
def test_the_space_and_the_score_know_tiles(kind: Kind) -> None:
    """What the score prefers of each sketch has tiles in its hot loop, and the right numbers."""
    dag = te.ComputeDAG([product(kind, 64, 64, 64)])
    inputs, wanted = numbers(kind, 64, 64, 64)
    unit = unit_of(XEON, f"dot_{kind.name}")
    assert unit is not None
    for program in best_of_sketches(dag, 2000, 2):
        assert unit.name in "\n".join(hot_loop(kernel_assembly(program, XEON)))
        machine = TileMachine()
        got = machine.run(program, XEON, inputs)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


def test_a_convolution_by_tiles() -> None:
    """3 x 3 with padding and a stride, channels last, of bfloat16: nothing names the operator."""
    x = te.placeholder((1, 9, 16, 32), "uint16", name="x")
    w = te.placeholder((3, 3, 16, 32), "int32", name="w", constant=True)
    op = next(o for o in OPS if o.name == "conv_bf16")
    attrs = {
        "border": 0,
        "strides": (1, 1),
        "pads": ((1, 1), (1, 1)),
        "dilations": (1, 1),
        "layout": "channels_last",
    }
    assert op.tensor is not None
    out = op.tensor(attrs, (x, w))
    data = bits_of(RNG.standard_normal((1, 9, 16, 32)).astype(np.float32))
    weights = packed_weights(BF16, RNG.standard_normal((3, 3, 32, 32)).astype(np.float32))
    wanted = op.meaning(attrs, (data, weights))
    machine = TileMachine()
    dag = te.ComputeDAG([out])
    assert dag.by_name["pad"].dtype == "uint16"  # the padded data are words, too
    for program in best_of_sketches(dag, 1000, 1):
        got = machine.run(program, XEON, {"x": data, "w": weights})
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
    assert any(name == "tdpbf16ps" for name, *_ in machine.executed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [BF16, pytest.param(U8S8, marks=pytest.mark.slow)])
def test_a_product_tuned_for_a_machine_with_tiles(kind: Kind) -> None:
    """Nothing is measured: estimates know tiles, and the best program has them."""
    task = al.SearchTask(product(kind, 128, 128, 128), XEON)
    result = al.tune(task, n_trials=16, progress=False)
    unit = unit_of(XEON, f"dot_{kind.name}")
    assert result.estimated and result.best is not None and unit is not None
    lines = hot_loop(kernel_assembly(result.best.program, XEON))
    seen = look("\n".join(lines), "x86_64")
    assert seen.matrix == seen.accumulators > 1 and seen.spills == 0
    assert seen.tile_loads <= 1.5 * seen.matrix  # of operands alone
    assert any(unit.name in line for line in lines)


def test_the_score_knows_what_computes_a_product() -> None:
    """In multiply-adds of vectors: an instruction, two halves, steps, a part of a tile."""
    xeon_without = replace(XEON, features=XEON.features.replace("+amx-tile", "-amx-tile"))
    cases = {
        ("bf16", Target.cross("x86-avx2")): 2.0,
        ("u8s8", Target.cross("x86-avx2")): 2.0,  # vpmaddwd
        ("u8s8", replace(Target.cross("x86-avx2"), features="+sse2")): 12.0,
        ("bf16", xeon_without): None,
        ("bf16", XEON): 16 * 2 / 256,
        ("u8s8", XEON): 16 * 2 / 256,
    }
    for (name, target), wanted in cases.items():
        kind = {"bf16": BF16, "u8s8": U8S8}[name]
        effort = FeaturePlan(tiled(product(kind, 32, 32, 32), 32, 32, 32)).effort({}, 1, target)
        assert (None if effort is None else effort.prod()) == wanted  # 1 for other statements
