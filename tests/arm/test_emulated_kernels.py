"""Kernels of Arm targets under emulation: the operator suite, vector math, random candidates.

Programs of one test are linked into one emulated process. Emulated times mean nothing: only numbers
are compared.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from candidates import Candidate, draw_candidates
from emulated import needs_emulator, run_kernels
from function_cases import UNARY, module_text, sample, ulps
from random_dags import seeded_dag
from small_cases import SMALL

from ansorlite import te
from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.build import SYMBOL, build_program
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.functions import FUNCTIONS
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.errors import BuildError
from ansorlite.graph.ops.low_precision import BF16, U8S8, Kind, packed_weights
from ansorlite.ir.packed import bits_of
from ansorlite.ir.program import Program
from ansorlite.measure.inputs import random_inputs
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.space.legality import legal
from ansorlite.space.plain import plain_state
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.workloads.ops import define

pytestmark = needs_emulator
VECTOR = 16


def programs(task: SearchTask, n: int, rng: np.random.Generator) -> list[Program]:
    """The plain program and one legal row each of n random sketches."""
    found = [lower(plain_state(task.dag, task.target))]
    space = sketches(task.dag, task.target)
    for k in rng.permutation(len(space))[:n]:
        rows = space[k].sample(256, rng)
        columns = population_columns(space[k].holes, rows)
        mask = legal(space[k].program, columns, len(rows), task.target)
        found += [space[k].fill(row) for row in rows[mask][:1]]
    return found


def check_operators(cpu: str, n: int, folder: Path) -> None:
    """n random programs and the plain one of every operator of the suite."""
    rng, cases, wanted = np.random.default_rng(1), [], []
    target = Target.named(cpu)
    for name, parameters in SMALL.items():
        task = SearchTask([define(name, parameters)], target, name)
        inputs = random_inputs(task.dag, 0)
        want = task.dag.evaluate(inputs)
        for program in programs(task, n, rng):
            cases.append((build_program(program, target), inputs))
            wanted.append((program, want))
    emulated = cpu if cpu in ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1") else "max"
    for got, (program, want) in zip(
        run_kernels(cases, folder, emulated, threads=3), wanted, strict=True
    ):
        for output, x in want.items():
            np.testing.assert_allclose(
                got[output], x, rtol=1e-4, atol=1e-4, err_msg=f"{cpu}\n{program}"
            )


def test_programs_of_every_operator_are_right(tmp_path: Path) -> None:
    check_operators("cortex-a53", 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1"])
def test_many_programs_of_every_operator_are_right(tmp_path: Path, cpu: str) -> None:
    check_operators(cpu, 12, tmp_path)


@pytest.mark.slow
def test_many_programs_for_the_largest_core_are_right(tmp_path: Path) -> None:
    check_operators("neoverse-v2", 12, tmp_path)


# ---- sums of products of packed numbers ---------------------------------------------------------


def product(kind: Kind, m: int, n: int, words: int) -> te.ComputeDAG:
    """Data [m, words * depth] times packed weights [words, n]."""
    a = te.placeholder((m, kind.depth * words), kind.stored, name="A")
    b = te.placeholder((words, n), "int32", name="B", constant=True)
    k = te.reduce_axis(words, "k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(kind.dot(kind.words(a, (i,), k), b[k, j]), axis=k)

    return te.ComputeDAG([te.compute((m, n), element, "C")])


def drawn(kind: Kind, dag: te.ComputeDAG, rng: np.random.Generator) -> dict[str, Any]:
    """Data and weights; bytes at the ends of their range, too."""
    (m, depth), (_, n) = (p.shape for p in dag.inputs)
    if kind is BF16:
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((m, depth), (depth, n)))
        return {"A": bits_of(x), "B": packed_weights(kind, w)}
    x, w = rng.integers(0, 256, (m, depth)), rng.integers(-128, 128, (depth, n))
    x[0], w[:, 0] = 255, -128
    return {"A": x.astype(np.uint8), "B": packed_weights(kind, w)}


def check_products(n: int, cpus: Sequence[str], folder: Path) -> None:
    """n random programs of products for cores with each of the instructions, and with none.

    bfdot adds two exact products, then their sum to the total; it rounds to odd both times, and
    subnormal numbers are zero: less than 2 ** -23 of each sum, where a multiply-add rounds by half
    of that.
    """
    rng, cases, wanted = np.random.default_rng(2), [], []
    for cpu in cpus:
        target = Target.named(cpu)
        for kind, size in itertools.product((BF16, U8S8), ((5, 23, 9), (8, 32, 16), (1, 7, 3))):
            dag = product(kind, *size)
            inputs = drawn(kind, dag, rng)
            for p in programs(SearchTask(dag, target, "product"), n, rng):
                cases.append((build_program(p, target), inputs))
                wanted.append((kind, cpu, p, dag.evaluate(inputs)["C"], size[2]))
    found = run_kernels(cases, folder, "max", threads=2)
    for got, (kind, cpu, program, want, words) in zip(found, wanted, strict=True):
        bound = 2.0**-23 * 2 * words * 20 if kind is BF16 else 0.0
        np.testing.assert_allclose(got["C"], want, rtol=0, atol=bound, err_msg=f"{cpu}\n{program}")


def test_products_of_packed_numbers_are_right(tmp_path: Path) -> None:
    check_products(1, ["cortex-a76", "neoverse-v2"], tmp_path)


@pytest.mark.slow
def test_many_products_of_packed_numbers_are_right(tmp_path: Path) -> None:
    check_products(12, ["cortex-a72", "cortex-a76", "neoverse-v2"], tmp_path)


# ---- vector math --------------------------------------------------------------------------------


def function_kernel(name: str, n: int, lanes: int) -> KernelImage:
    target = Target.cross("cortex-a53")
    params = (Param("x", (n,), "float32", "input"), Param("y", (n,), "float32", "output"))
    text = module_text(name, ir.FLOAT, lanes, n).replace('@"kernel"', f'@"{SYMBOL}"')
    return KernelImage(compile_module(text, target), SYMBOL, params, target.triple, target.cpu)


def test_errors_of_functions_are_below_the_stated_bounds(tmp_path: Path) -> None:
    """Each function on uniform numbers and on any bit patterns, in vectors and one by one."""
    cases, wanted = [], []
    for name, exact, low, high, bound in UNARY:
        assert FUNCTIONS[name][1] == 1
        x = np.concatenate([sample(low, high)[::16], sample(-1.5, 1.5, 1)[::16]])
        with np.errstate(all="ignore"):
            expected = exact(x.astype(np.float64))
        for lanes in (VECTOR, 4, 1):
            cases.append((function_kernel(name, x.size, lanes), {"x": x}))
            wanted.append((name, lanes, expected, bound))
    found = run_kernels(cases, tmp_path, "cortex-a53")
    for got, (name, lanes, expected, bound) in zip(found, wanted, strict=True):
        assert ulps(got["y"], expected) <= bound, (name, lanes)


# ---- random programs ----------------------------------------------------------------------------


def random_candidates(seeds: Iterable[int]) -> list[Candidate]:
    found = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        case = seeded_dag(rng, max_stages=int(rng.choice([1, 2, 3, 3, 5])))
        preset = str(rng.choice(["cortex-a53", "cortex-a76", "neoverse-v2"]))
        found += draw_candidates(case, rng, host=Target.cross(preset))
    return found


def check_random(seeds: Iterable[int], folder: Path) -> int:
    cases: list[tuple[KernelImage, Any]] = []
    used = []
    for c in random_candidates(seeds):
        try:
            image = build_program(c.program, c.target)
        except BuildError as error:  # as for the host: a huge index, say
            assert "no code" in str(error), error
            continue
        cases.append((image, c.inputs))
        used.append(c)
    for got, c in zip(run_kernels(cases, folder), used, strict=True):
        c.case.check(got, c.expected, f"{c}\n{c.program}")
    return len(used)


def test_random_candidates_are_right(tmp_path: Path) -> None:
    """The last seed has a tile of half vectors with rows that read scalars side by side: LLVM joins
    the wrong lanes where these are loaded as one vector.
    """
    assert check_random([*range(4), 199], tmp_path) > 6


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_candidates_are_right(tmp_path: Path, part: int) -> None:
    assert check_random(range(100 + 60 * part, 160 + 60 * part), tmp_path) > 60
