"""Candidates that features cannot tell apart."""

import numpy as np
from sampled import some_or_all

from ansorlite import te
from ansorlite.codegen.build import build_program
from ansorlite.ir.program import Program
from ansorlite.search.history import Candidate, History
from ansorlite.search.policy import RandomPolicy
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.task import SearchTask


def matmul(n: int = 48) -> SearchTask:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, name="k")
    return SearchTask([te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))])


TASK = matmul()
TARGET = Target.detect()
SPACE = sketches(TASK.dag, TARGET)


@some_or_all(16)
def test_what_features_cannot_tell_apart_is_the_same_code(every: int) -> None:
    history = History(SPACE, TARGET)
    rng = np.random.default_rng(0)
    programs: dict[bytes, list[Program]] = {}
    for name, sketch in list(history.sketches.items())[::every]:
        rows = history.sample(name, 24, 8, rng)
        annotations = [k for k, h in enumerate(sketch.holes) if h.kind in ("parallel", "unroll")]
        others = np.repeat(rows[:4], 3, axis=0)
        for k in annotations:  # the same tiles, other depths and limits
            others[:, k] = rng.integers(len(sketch.holes[k].options), size=len(others))
        rows = np.concatenate([rows, others[history.legal(name, others)]])
        for row, own in zip(rows, history.signatures(name, rows), strict=True):
            programs.setdefault(own, []).append(sketch.fill(row))
    # Signatures of one program each need no build.
    codes = [
        {build_program(p, TARGET).object_bytes for p in same}
        for same in programs.values()
        if len(same) > 1
    ]
    assert len(codes) > 3
    assert sum(len(c) > 1 for c in codes) <= len(programs) // 50


def test_tiles_and_vectors_make_another_program() -> None:
    history = History(SPACE, TARGET)
    rng = np.random.default_rng(1)
    for name, sketch in history.sketches.items():
        rows = history.sample(name, 64, 8, rng)
        tiles = [k for k, h in enumerate(sketch.holes) if h.kind == "tile"]
        found = history.signatures(name, rows)
        for a in range(0, len(rows), 8):
            for b in range(a):
                if (rows[a][tiles] != rows[b][tiles]).sum() > 1:
                    assert found[a] != found[b] or np.array_equal(
                        history.features(name, rows[[a]]), history.features(name, rows[[b]])
                    )


@some_or_all(16)
def test_a_prefetch_that_has_nothing_to_ask_for_changes_nothing(every: int) -> None:
    """Its operand is made in the same program."""
    a, b, c = (te.placeholder((64, 64), name=name) for name in "ABC")
    k, m = te.reduce_axis(64, name="k"), te.reduce_axis(64, name="m")
    first = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="first")
    last = te.compute((64, 64), lambda i, j: te.sum(c[i, m] * first[m, j], axis=m), name="last")
    task = SearchTask([last])
    history = History(sketches(task.dag, TARGET), TARGET)
    rng, changed = np.random.default_rng(0), 0
    for name, sketch in list(history.sketches.items())[::every]:
        holes = {h.name: k for k, h in enumerate(sketch.holes) if h.kind == "prefetch"}
        for k in holes.values():
            rows = history.sample(name, 2, 8, rng)
            count = len(sketch.holes[k].options)
            rows = np.repeat(rows, count, axis=0)
            rows[:, k] = np.arange(len(rows)) % count
            for row, other in zip(rows[::count], rows[2::count], strict=True):
                alike = history.signatures(name, [row])[0] == history.signatures(name, [other])[0]
                if alike:
                    code, same = (build_program(sketch.fill(r), TARGET) for r in (row, other))
                    assert code.object_bytes == same.object_bytes
                if sketch.holes[k].name == "last.prefetch":
                    assert alike
                changed += not alike
    assert changed  # where there is something to ask for


def test_signatures_of_nothing() -> None:
    history = History(SPACE, TARGET)
    name = SPACE[0].name
    assert history.signatures(name, np.empty((0, len(SPACE[0].holes)), np.int32)) == []
    assert not history.is_new(name, np.empty((0, len(SPACE[0].holes)), np.int32)).any()


def test_copies_of_what_was_told_are_not_new() -> None:
    history = History(SPACE, TARGET)
    name, sketch = SPACE[0].name, SPACE[0]
    rows = history.sample(name, 8, 8, np.random.default_rng(2))
    history.tell([Candidate(sketch, tuple(int(v) for v in rows[0]))], [1e-3])
    new = history.is_new(name, rows)
    assert not new[0]
    own = history.signatures(name, rows)
    assert [bool(n) for n in new] == [s != own[0] for s in own]


def test_a_round_asks_for_no_copies() -> None:
    policy = RandomPolicy(SPACE, TARGET, 0, TASK.workload_key)
    seen: set[bytes] = set()
    for number in range(1, 4):
        asked = policy.ask(24, number)
        assert asked
        for c in asked:
            (own,) = policy.history.signatures(c.sketch.name, [c.row])
            assert own not in seen
            seen.add(own)
        policy.tell(asked, [1e-3] * len(asked))
