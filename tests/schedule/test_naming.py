"""Canonical names in steps, holes and sketches, case by case (random cases: tests/properties)."""

import pytest

from ansorlite import te
from ansorlite.errors import ModelError, ScheduleError
from ansorlite.schedule.naming import canonical_names
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG


def matmul(names: str = "ABCk", n: int = 24) -> ComputeDAG:
    a = te.placeholder((n, n), name=names[0])
    b = te.placeholder((n, n), name=names[1])
    k = te.reduce_axis(n, name=names[3])
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=names[2])
    return te.ComputeDAG([te.relu(product, name="relu")])


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("C.i", "T2.a0"),
        ("C.k", "T2.a2"),
        ("C.rf.k", "T2.rf.a2"),
        ("C.rf.k_o", "T2.rf.a2_o"),
        ("C.lanes", "T2.lanes"),
        ("C.rf.parallel", "T2.rf.parallel"),
        ("B.packed.lanes", "T1.packed.lanes"),
        ("B.packed.d1", "T1.packed.d1"),
        ("relu.i0", "T3.a0"),
        ("a.users.hole", "a.users.hole"),
    ],
)
def test_holes(own: str, expected: str) -> None:
    names = canonical_names(matmul())
    assert names.hole(own) == expected
    assert names.inverse.hole(expected) == own


def test_factors() -> None:
    names = canonical_names(matmul())
    factors = [4, "C.i:2", "C.parallel:1>3"]
    assert [names.factor(f) for f in factors] == [4, "T2.a0:2", "T2.parallel:1>3"]


def test_sketch_names() -> None:
    names = canonical_names(matmul("ABPk"))
    steps = [
        {"step": "compute_at", "stage": "B.packed", "target": "P", "iterator": "k.0"},
        {"step": "compute_at", "stage": "P.rf", "target": "relu", "iterator": "i1"},
    ]
    own = "s12+A.packed+B.packed@B.packed:k.0@P.rf:i1"
    assert names.sketch(own, steps) == "s12+T0.packed+T1.packed@T1.packed:a2.0@T2.rf:a1"
    assert names.sketch("plain", []) == "plain"
    with pytest.raises(ScheduleError, match=r"no step that computes P at i\.0"):
        names.sketch("s1@P:i.0", steps)


def test_names_that_contain_each_other() -> None:
    """T1 is the first operation here, T0 the last; `C` is a part of `C.out`."""
    a = te.placeholder((8,), name="T1")
    out = te.compute((8,), lambda i: a[i] * 2, name="C.out")
    c = te.compute((8,), lambda i: out[i] + 1, name="C")
    names = canonical_names(te.ComputeDAG([te.compute((8,), lambda a1: c[a1] + a[a1], name="T0")]))
    own = ["T1", "C.out", "C", "C.rf", "C.out.rf", "T0"]
    canonical = ["T0", "T1", "T2", "T2.rf", "T1.rf", "T3"]
    assert [names.stage(n) for n in own] == canonical
    assert [names.inverse.stage(n) for n in canonical] == own
    assert names.hole("C.out.i") == "T1.a0" and names.hole("T0.a1") == "T3.a0"
    assert names.inverse.hole("T1.a0") == "C.out.i"


def test_unknown_names_are_errors() -> None:
    names = canonical_names(matmul())
    with pytest.raises(ScheduleError, match=r"D\.cache is no operation of this DAG"):
        names.stage("D.cache")
    with pytest.raises(ScheduleError, match="stage C has no axis x"):
        names.iterator("C", "x.1")
    with pytest.raises(ScheduleError, match="stage A has no axis i"):
        names.axis("A", "i")
    step = {"step": "split", "stage": "C", "axis": "i", "factors": [2]}
    with pytest.raises(ScheduleError, match="no operation"):
        names.inverse.steps([step])  # not canonical
    for odd in ({"step": "split", "stage": 5}, {"step": "split", "axis": "i"}, "split"):
        with pytest.raises(ScheduleError, match="lacks a field, or has a number"):
            names.inverse.steps([odd])  # type: ignore[list-item]


def test_names_that_would_be_ambiguous_are_not_given() -> None:
    """`C>x.parallel:1>0` and a tile hole `C.unroll` could not be told from others."""
    with pytest.raises(ModelError, match="'C>x' is no valid tensor name"):
        te.placeholder((4,), name="C>x")
    with pytest.raises(ModelError, match="'lanes' is a reserved name"):
        te.reduce_axis(4, name="lanes")
    a, b = te.placeholder((32, 32), name="A"), te.placeholder((32, 32), name="B")
    k = te.reduce_axis(32, name="k")
    c = te.compute((32, 32), lambda unroll, j: te.sum(a[unroll, k] * b[k, j], axis=k), name="C")
    dag = te.ComputeDAG([c])
    assert [axis.name for axis in dag.computes[0].axes] == ["unroll_1", "j"]
    kinds = {h.name: h.kind for s in sketches(dag, Target.cross("x86-avx2")) for h in s.holes}
    assert kinds["C.unroll_1"] == "tile" and kinds["C.unroll"] == "unroll"
