"""Families of tasks that differ by extents or by what follows the sum."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from log_cases import record

from ansorlite import te
from ansorlite.records import Record
from ansorlite.search.families import continue_from_kin, of_kin
from ansorlite.search.history import Candidate
from ansorlite.search.roles import family_of, kin_of, recorded_roles, role_names
from ansorlite.space.sketch import Pattern, Sketch, sketches
from ansorlite.task import SearchTask

Epilogue = Callable[[Any], Any]


def product(m: int, n: int, *ends: str) -> SearchTask:
    """A product of matrices, m x 24 x n, with what follows it."""
    a, b = te.placeholder((m, 24), name="A"), te.placeholder((24, n), name="B", constant=True)
    k = te.reduce_axis(24, name="k")
    x = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    for at, end in enumerate(ends):
        x = _followed(x, end, f"E{at}", m, n)
    return SearchTask([x])


def _followed(x: Any, end: str, name: str, m: int, n: int) -> Any:
    match end:
        case "bias":
            other = te.placeholder((n,), name=f"{name}b", constant=True)
            return te.compute((m, n), lambda i, j: x[i, j] + other[j], name=name)
        case "residual":
            more = te.placeholder((m, n), name=f"{name}r")
            return te.compute((m, n), lambda i, j: more[i, j] + x[i, j], name=name)
        case "half":
            return te.compute((m, n), lambda i, j: x[i, j] * 0.5, name=name)
    return te.relu(x)


def test_kin_differ_by_extents_or_epilogue() -> None:
    one = product(32, 32, "bias", "relu")
    for other in (
        product(48, 16, "bias", "relu"),
        product(32, 32, "bias"),
        product(40, 64, "bias", "residual", "relu"),
        product(40, 64, "residual", "half", "half"),
    ):
        assert kin_of(one) == kin_of(other)
    assert family_of(one) != family_of(product(32, 32, "bias"))
    alone = product(32, 32)
    assert kin_of(alone) == family_of(alone) != kin_of(one)  # its loops are others
    x = te.placeholder((32, 32), name="X")
    assert kin_of(SearchTask([te.relu(x)])) == family_of(SearchTask([te.relu(x)]))


@pytest.mark.parametrize("ends", [("bias",), ("residual", "relu"), ("bias", "half", "residual")])
def test_programs_of_kin_fit(ends: tuple[str, ...]) -> None:
    """Steps are the same but for what is inlined; values are those of the other task."""
    source, task = product(32, 32, "bias", "relu"), product(32, 32, *ends)
    space = sketches(task.dag, task.target)
    records = [record(source, k) for k in range(4)]
    found = of_kin(task, space, [(recorded_roles(source.dag), r) for r in records], 4)
    assert len(found) == len({tuple(r.holes.items()) for r in map(_frozen, records)})
    theirs, mine = role_names(source.dag), role_names(task.dag)
    names = {h.name for s in sketches(source.dag, source.target) for h in s.holes}
    for c, r in zip(found, records, strict=True):
        holes = {mine.hole(k): list(v) for k, v in c.values.items()}
        wanted = {theirs.hole(h): h for h in names}
        assert set(holes) <= set(wanted)
        assert sorted(map(str, holes.values())) == sorted(map(str, map(list, r.holes.values())))
        program = c.sketch.fill(np.asarray(c.row, np.int32))
        assert program.body


class Searched:
    """As much of a `TaskTuner` as families look at, with a best program."""

    def __init__(self, task: SearchTask, best: Record | None, rounds: int = 2) -> None:
        self.task, self.best, self.rounds = task, best, rounds
        self.sketches = sketches(task.dag, task.target)
        self.suggested: list[Candidate] = []
        self.seen: list[Record] = []

    def suggest(self, found: Sequence[Candidate], most: int) -> None:
        self.suggested += found[:most]

    def sees(self, record: Record) -> bool:
        self.seen.append(record)
        return all(r is not record for r in self.seen[:-1])

    def alike(self, patterns: Sequence[Pattern]) -> Sequence[Sketch]:
        assert patterns
        return self.sketches


def test_later_rounds_try_the_best_of_kin() -> None:
    own = Searched(product(32, 32, "bias"), None)
    near, far = product(32, 32, "bias", "relu"), product(64, 64, "residual")
    others = [
        Searched(far, record(far, 1, round=1)),
        Searched(near, record(near, 0, round=1)),
        Searched(product(32, 32), record(product(32, 32), 2, round=1)),  # no kin
        Searched(product(32, 40, "bias"), None),  # nothing found
        Searched(product(32, 48, "bias"), record(near, 0, round=1), rounds=1),  # not searched
    ]
    everyone: Any = [own, *others]
    continue_from_kin(everyone[0], everyone)
    wanted = of_kin(
        own.task,
        own.sketches,
        [
            (recorded_roles(others[k].task.dag), r)
            for k in (1, 0)
            if (r := others[k].best) is not None
        ],
        2,
    )
    assert [c.key for c in own.suggested] == [c.key for c in wanted]
    assert len(wanted) == 2
    continue_from_kin(everyone[0], everyone)  # nothing new
    assert len(own.suggested) == 2
    alone: Any = Searched(product(32, 32, "bias"), None)
    continue_from_kin(alone, [alone])
    assert alone.suggested == []


def _frozen(r: Any) -> Any:
    r.holes.update({k: tuple(v) for k, v in r.holes.items()})
    return r


def test_what_is_no_kin_is_left_out() -> None:
    source, task = product(32, 32), product(32, 32, "relu")
    space = sketches(task.dag, task.target)
    assert (
        of_kin(task, space, [(recorded_roles(source.dag), record(source, k)) for k in range(3)], 3)
        == []
    )
    other = product(32, 32, "bias")
    odd = record(other, 1, steps=({"step": "split", "stage": "T77"},))
    failed = record(other, 2, status="RUN_ERROR", latency_s=None)
    roles = recorded_roles(other.dag)
    assert of_kin(task, space, [(roles, odd), (roles, failed)], 3) == []
    assert len(of_kin(task, space, [(roles, record(other, k)) for k in range(9)], 2)) == 2
