"""Programs: how they print, what `verify` refuses, the tidy pass, and the interpreter's checks."""

import pickle
import re
from collections import Counter

import numpy as np
import pytest

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Load, Op, Var, ceildiv
from ansorlite.ir.extremum import maximum, minimum
from ansorlite.ir.interpret import concrete_shape, interpret
from ansorlite.ir.layout import Layout
from ansorlite.ir.program import (
    NO_NOTE,
    Alloc,
    Block,
    Buffer,
    BufferLayout,
    For,
    If,
    Program,
    Stmt,
    Store,
    block,
    map_program,
    stores_under,
    verify,
)
from ansorlite.ir.tidy import tidy

R, J, T = Var("i"), Var("j"), Var("C.i:1", "hole")
N = Const(6)
X = Buffer("X", (N,), "float32", "global", "input", (N,))
Y = Buffer("Y", (N,), "float32", "global", "output", (N,))
TMP = Buffer("tmp", (Const(3),), "float32", "local")


def loop(var: Var, extent: Expr | int, body: Stmt, **more: object) -> For:
    e = extent if isinstance(extent, Expr) else Const(extent)
    return For(var.name, e, e, bool(more.get("reduce")), body, notes=more.get("notes", ()))  # type: ignore[arg-type]


def put(buffer: str, index: Expr, value: Expr, combiner: str | None = None) -> Store:
    return Store(buffer, (index,), value, combiner, buffer, (N,))


def x(index: Expr) -> Load:
    return Load("X", (index,), "float32")


def program(body: Stmt, *buffers: Buffer, columns: tuple[str, ...] = ()) -> Program:
    return Program("kernel", (X, Y, *buffers), body, columns)


COPY = loop(R, 6, put("Y", R, x(R)))


def test_printing() -> None:
    """Every kind of statement, in the words of the grammar."""
    wait = (("parallel", Const(1)),)
    inner = Alloc(TMP, block([put("tmp", Const(0), x(R)), put("Y", R, x(R), "max")]))
    branch = If(Op("lt", (R, Const(3)), "bool"), inner, put("Y", R, x(R), "sum"))
    assert str(program(loop(R, 6, branch, notes=wait))) == (
        "def kernel(X, Y):\n"
        "  X: float32[6] global input\n"
        "  Y: float32[6] global output\n"
        "  for i in range(6):  # parallel=1\n"
        "    if i < 3:\n"
        "      tmp = local[3]\n"
        "      tmp[0] = X[i]\n"
        "      Y[i] = max(Y[i], X[i])\n"
        "    else:\n"
        "      Y[i] += X[i]\n"
    )


def test_packed_buffers_print_their_layout() -> None:
    layout = BufferLayout(((Const(2), Const(3)),), ((0, 1), (0, 0)))
    packed = Buffer("W", layout.shape, "float32", "global", "constant", (N,), layout)
    assert str(packed) == "W: float32[3, 2] global constant  # packed from [6] as d0.1 d0.0"


def test_pickling_and_substitution() -> None:
    symbolic = program(loop(R, T, put("Y", R, x(R))), columns=("C.i:1",))
    assert pickle.loads(pickle.dumps(symbolic)) == symbolic
    filled = map_program(symbolic, {"C.i:1": Const(4)})
    assert filled.columns == () and "range(4)" in str(filled)


ILLEGAL: dict[str, Program] = {
    "store to Y uses j, which no loop or hole defines": program(loop(R, 6, put("Y", J, x(R)))),
    "extent of i uses C.i:1, which no loop or hole defines": program(loop(R, T, put("Y", R, x(R)))),
    "condition uses j, which no loop": program(If(Op("lt", (J, N), "bool"), COPY)),
    "loop i is nested in a loop of the same name": program(loop(R, 2, COPY)),
    "loop j is parallel but is a reduction or not outermost": program(
        loop(R, 6, loop(J, 1, put("Y", R, x(R)), notes=(("parallel", Const(1)),)))
    ),
    "loop i is parallel but is a reduction": program(
        loop(R, 6, put("Y", Const(0), x(R)), notes=(("parallel", Const(1)),), reduce=True)
    ),
    "kernel has two buffers of the same name": program(COPY, X),
    "buffer tmp is allocated twice": program(Alloc(TMP, Alloc(TMP, COPY))),
    "store to tmp: buffer tmp is not allocated here": program(
        block([Alloc(TMP, COPY), put("tmp", Const(0), x(Const(0)))])
    ),
    "buffer Z is not allocated here": program(put("Y", Const(0), Load("Z", (N,), "float32"))),
    "X takes 1 integer indices": program(put("Y", Const(0), Load("X", (N, N), "float32"))),
    "Y takes 1 integer indices": program(put("Y", Const(0.0, "float32"), x(N))),
}


@pytest.mark.parametrize("message", ILLEGAL)
def test_illegal_programs(message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        verify(ILLEGAL[message])


def test_legal_programs() -> None:
    verify(program(COPY))
    verify(program(block([COPY, COPY])))
    outer = (("parallel", Const(1)),)
    verify(program(loop(R, 2, loop(J, 3, put("Y", R * 3 + J, x(R)), notes=outer), notes=outer)))
    verify(program(loop(R, T, put("Y", R, x(R))), columns=("C.i:1",)))


# ---- tidy ---------------------------------------------------------------------------------------


def test_unit_loops_vanish_and_ranges_decide() -> None:
    clamp = minimum(3, 6 - R * 3)
    inside = Op("and", (Op("lt", (R, N), "bool"), Op("le", (Const(0), R * 3 + J), "bool")), "bool")
    guarded = put("Y", minimum(R * 3 + J, 100), x(maximum(0, R * 3 + J)))
    body = loop(R, 2, loop(J, clamp, loop(Var("k"), ceildiv(3, 3), If(inside, guarded))))
    assert str(tidy(program(body))).splitlines()[3:] == [
        "  for i in range(2):",
        "    for j in range(3):",
        "      Y[i*3 + j] = X[i*3 + j]",
    ]


def test_clamps_that_matter_stay() -> None:
    body = loop(R, 2, loop(J, minimum(4, 6 - R * 4), put("Y", R * 4 + J, x(R * 4 + J))))
    assert "range(min(-i*4 + 6, 4))" in str(tidy(program(body)))


def test_branches_that_never_run_vanish() -> None:
    never = Op("lt", (R, Const(0)), "bool")
    kept = loop(R, 6, If(never, COPY, put("Y", R, x(R))))
    assert str(tidy(program(kept))) == str(program(loop(R, 6, put("Y", R, x(R)))))
    assert str(tidy(program(loop(R, 6, If(never, put("Y", R, x(R))))))).count("Y[") == 0


def test_annotations_without_effect_are_dropped() -> None:
    no = (("parallel", Const(0)), ("lanes", Const(1)), ("register", Const(0)), ("unroll", Const(0)))
    yes = (("parallel", Const(1)), ("lanes", Const(4)), ("unroll", Const(16)))
    assert "#" not in str(tidy(program(loop(R, 6, put("Y", R, x(R)), notes=no))))
    text = str(tidy(program(loop(R, 6, put("Y", R, x(R)), notes=yes))))
    assert "# parallel=1, lanes=4, unroll=16" in text


# ---- the interpreter ----------------------------------------------------------------------------

DATA = {"X": np.arange(6, dtype="float32")}


def test_interpreting_and_counting() -> None:
    counts: Counter[str] = Counter()
    out = interpret(program(loop(R, 6, put("Y", R, x(5 - R)))), DATA, counts)
    assert out["Y"].tolist() == [5, 4, 3, 2, 1, 0] and counts == {"Y": 6}


def test_unwritten_elements_hold_poison() -> None:
    out = interpret(program(loop(R, 5, put("Y", R, x(R)))), DATA)["Y"]
    assert np.isnan(out[5]) and not np.isnan(out[:5]).any()


def test_indices_outside_of_a_buffer_are_errors() -> None:
    with pytest.raises(ScheduleError, match="index 6 of dimension 0 of X is outside of extent 6"):
        interpret(program(loop(R, 6, put("Y", R, x(R + 1)))), DATA)
    with pytest.raises(ScheduleError, match="index -1 of dimension 0 of Y is outside of extent 6"):
        interpret(program(loop(R, 6, put("Y", R - 1, x(R)))), DATA)


def test_only_the_branch_taken_is_read() -> None:
    guarded = Op("select", (Op("lt", (R, Const(5)), "bool"), x(R + 1), x(R * 0)), "float32")
    out = interpret(program(loop(R, 6, put("Y", R, guarded))), DATA)
    assert out["Y"].tolist() == [1, 2, 3, 4, 5, 0]


def test_open_holes_and_missing_inputs() -> None:
    symbolic = program(loop(R, T, put("Y", R, x(R))), columns=("C.i:1",))
    with pytest.raises(ScheduleError, match=r"kernel has open holes: C\.i:1"):
        interpret(symbolic, DATA)
    with pytest.raises(ScheduleError, match="no value is given for X"):
        interpret(program(COPY), {})
    with pytest.raises(ScheduleError, match=r"buffer tmp has shape .*C\.i:1.*: not concrete"):
        concrete_shape(Buffer("tmp", (T,), "float32"))


def test_stores_round_to_the_buffer() -> None:
    third = Const(1.0, "float64")
    wide = Op("div", (third, Const(3.0, "float64")), "float64")
    out = interpret(program(loop(R, 6, put("Y", R, wide))), DATA)["Y"]
    assert out.dtype == np.float32 and out[0] == np.float32(1 / 3)


def test_stores_and_their_loops() -> None:
    nest = loop(R, 2, Block((put("Y", R, x(R)), loop(J, 3, put("Y", J, x(J))))))
    found = [(s.indices[0], [lp.var for lp in loops]) for s, loops in stores_under(nest)]
    assert found == [(R, ["i"]), (J, ["i", "j"])]


# ---- layouts ------------------------------------------------------------------------------------


def test_packing() -> None:
    """Tiles of 2 x 3 out of 3 x 5, the second dimension's tiles outermost, padded with zeros."""
    data = np.arange(15.0).reshape(3, 5)
    layout = Layout(((2, 2), (2, 3)), ((1, 0), (0, 0), (0, 1), (1, 1)))
    packed = layout.pack(data)
    assert packed.shape == layout.shape == (2, 2, 2, 3)
    assert packed[0, 0].tolist() == [[0, 1, 2], [5, 6, 7]]
    assert packed[1, 1].tolist() == [[13, 14, 0], [0, 0, 0]]


def test_a_note_of_nothing_is_none() -> None:
    """Also where a hole was filled with 0, or came from another process."""
    notes = (("unroll", Const(0)), ("parallel", Const(2)))
    lp = pickle.loads(
        pickle.dumps(loop(R, 6, Store("Y", (R,), Const(0.0), None, "Y"), notes=notes))
    )
    assert lp.note("unroll") is NO_NOTE and lp.note("stream") is NO_NOTE
    assert lp.note("parallel") == Const(2)
