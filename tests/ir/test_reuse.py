"""Local buffers that take the place of others."""

import numpy as np
import pytest

from ansorlite import te
from ansorlite.codegen.build import build_program
from ansorlite.codegen.loader import load_image
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import Alloc, Program, verify, walk
from ansorlite.ir.reuse import reuse_buffers
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import ComputeAt
from ansorlite.target import Target

ROWS, COLUMNS = 5, 19


def locals_of(p: Program) -> list[str]:
    return [s.buffer.name for s in walk(p.body) if isinstance(s, Alloc)]


def chain(shift: int = 0, again: bool = False) -> te.Tensor:
    """P = 2 X; Q = P + 1, of an element `shift` to the right; Y = the sum of Q, and of P."""
    x = te.placeholder((ROWS, COLUMNS), name="X")
    p = te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] * 2.0, name="P")
    q = te.compute((ROWS, COLUMNS), lambda i, j: p[i, (j + shift) % COLUMNS] + 1.0, name="Q")
    r = te.reduce_axis(COLUMNS, "r")
    return te.compute(
        (ROWS,), lambda i: te.sum(q[i, r] * p[i, r] if again else q[i, r], axis=r), name="Y"
    )


def program(y: te.Tensor, stages: str = "QP") -> Program:
    state = State(te.ComputeDAG([y]))
    return lower(state.apply(*(ComputeAt(s, "Y", "i") for s in stages)))


def run(p: Program, x: np.ndarray) -> np.ndarray:
    y = np.zeros(ROWS, np.float32)
    load_image(build_program(p, Target.detect())).run([x, y])
    return y


def data() -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    x[1, 3], x[2, 4], x[3, 5] = np.nan, np.inf, -3e38
    return x


@pytest.mark.parametrize(
    ("shift", "again", "left"),
    [(0, False, ["P"]), (1, False, ["Q", "P"]), (0, True, ["Q", "P"])],
    ids=["in place", "other elements", "read again"],
)
def test_what_is_read_once_more_keeps_its_memory(shift: int, again: bool, left: list[str]) -> None:
    before = program(chain(shift, again))
    after = reuse_buffers(before)
    verify(after)
    assert sorted(locals_of(after)) == sorted(left)
    x = data()
    want = interpret(before, {"X": x})["Y"]
    np.testing.assert_array_equal(interpret(after, {"X": x})["Y"], want)
    np.testing.assert_allclose(run(before, x), want, rtol=1e-5)


def test_a_chain_of_maps_has_one_buffer() -> None:
    x = te.placeholder((ROWS, COLUMNS), name="X")
    p = te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] * 2.0, name="P")
    q = te.compute((ROWS, COLUMNS), lambda i, j: te.exp(p[i, j]), name="Q")
    z = te.compute((ROWS, COLUMNS), lambda i, j: q[i, j] + q[i, j] * 3.0, name="Z")
    r = te.reduce_axis(COLUMNS, "r")
    y = te.compute((ROWS,), lambda i: te.sum(z[i, r], axis=r), name="Y")
    own = program(y, "ZQP")
    assert locals_of(reuse_buffers(own)) == ["P"]
    np.testing.assert_allclose(run(own, data()), interpret(own, {"X": data()})["Y"], rtol=1e-5)
