"""Skeletons: what of a program's steps other tasks of its kin can use."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_families import product, record

from ansorlite.records import Record
from ansorlite.schedule.naming import canonical_names
from ansorlite.search import skeletons
from ansorlite.search.families import kin_patterns
from ansorlite.search.roles import kin_of, recorded_roles
from ansorlite.search.skeletons import (
    best_skeletons,
    from_json,
    kin_key,
    patterns_of,
    shipped,
    skeleton_of,
    to_json,
)
from ansorlite.space.sketch import sketches, sketches_alike
from ansorlite.target import Target
from ansorlite.task import SearchTask

ENDS = [(), ("bias",), ("bias", "relu"), ("residual", "half", "half"), ("bias", "half", "residual")]


@pytest.mark.parametrize("source", ENDS[1:])
@pytest.mark.parametrize("ends", ENDS[1:])
def test_kin_have_sketches_of_a_skeleton(source: tuple[str, ...], ends: tuple[str, ...]) -> None:
    one, other = product(32, 32, *source), product(48, 16, *ends)
    assert kin_of(one) == kin_of(other)
    for k in range(3):
        known = record(one, k)
        wanted = patterns_of(other, skeleton_of(one.dag, known))
        found = [s for s in sketches_alike(other.dag, other.target, wanted) if s is not None]
        assert len(found) == 1
    assert kin_patterns(other, [(recorded_roles(one.dag), record(one, k)) for k in range(3)])


def test_what_is_no_kin_has_no_pattern() -> None:
    plain, other = product(32, 32), product(32, 32, "bias")
    found = patterns_of(other, skeleton_of(plain.dag, record(plain, 0)))
    assert not any(sketches_alike(other.dag, other.target, found))


def two_structures(task: SearchTask) -> list[Record]:
    """Records of the first two sketches that differ by more than the epilogue."""
    names = canonical_names(task.dag)
    found: dict[object, Record] = {}
    for s in sketches(task.dag, task.target):
        r = record(task, 0, steps=names.frozen(s.state.to_json()))
        found.setdefault(skeleton_of(task.dag, r), r)
    return list(found.values())[:2]


def test_good_programs_vote() -> None:
    """Two tasks of a kin agree on the second structure, though the first one is faster for one."""
    tasks = {t.workload_key: t for t in (product(32, 32, "bias"), product(48, 16, "relu"))}
    records = {}
    for times, (key, t) in zip(((1.0, 1.05), (3.0, 1.0)), tasks.items(), strict=True):
        rows = zip(two_structures(t), times, strict=True)
        records[key] = [replace(r, round=1, latency_s=s) for r, s in rows]
    found = best_skeletons(records, tasks)
    first = next(iter(tasks.values()))
    one, other = (skeleton_of(first.dag, r) for r in two_structures(first))
    assert one != other and found == {kin_key(first): [other, one]}
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


def test_the_shipped_ones_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = shipped()
    assert len(known) > 10 and all(0 < len(own) <= skeletons.MOST for own in known.values())
    assert skeletons.SHIPPED.stat().st_size < 1 << 20
    shipped.cache_clear()
    monkeypatch.setattr(skeletons, "SHIPPED", tmp_path / "none.json")
    try:
        assert shipped() == {} and skeletons.known_patterns(product(32, 32, "bias")) == []
    finally:
        monkeypatch.undo()
        shipped.cache_clear()


def test_shipped_skeletons_fit_common_layers() -> None:
    """Convolutions with bias and relu have sketches of those that are shipped."""
    import numpy as np

    from ansorlite.graph.build import GraphBuilder
    from ansorlite.graph.choice import Lowering
    from ansorlite.pipeline import network_tasks

    b = GraphBuilder("layers")
    x = b.input("x", (1, 32, 14, 14))
    for k in (1, 3):
        w = b.constant(np.ones((48, b.shape(x)[1], k, k), np.float32))
        y = b.emit("conv", [x, w], groups=1, layout="channels_first", strides=(1, 1),
                   pads=((k // 2, k // 2),) * 2, dilations=(1, 1))  # fmt: skip
        bias = b.constant(np.arange(48, dtype=np.float32).reshape(48, 1, 1))
        x = b.emit("relu", [b.emit("add", [y, bias])])
    fitting = 0
    for w in network_tasks(Lowering().partition(b.finish([x])), Target.detect()):
        for form in w.forms:
            patterns = skeletons.known_patterns(form)
            fitting += any(sketches_alike(form.dag, form.target, patterns)) if patterns else 0
    assert fitting >= 3
