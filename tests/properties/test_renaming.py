"""Records of random rows fit the same DAG under other names."""

from dataclasses import replace

import numpy as np
import pytest
from random_dags import seeded_dag

from ansorlite import te
from ansorlite.ir.expr import Var
from ansorlite.ir.traverse import rename_loads, substitute
from ansorlite.schedule.lower import lower
from ansorlite.schedule.naming import Renaming, canonical_names
from ansorlite.schedule.state import complete_state
from ansorlite.space.plain import plain_state
from ansorlite.space.sketch import Sketch, sketches
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import Axis, ComputeOp, Operation

# Many cores, so that reductions are worth factoring even where there is little else to share.
TARGET = Target.cross("x86-avx2", cores=20)
AXES = ("x", "y_o", "i0", "q", "zz", "k", "d0", "a1", "long_name", "s")


def renamed(dag: ComputeDAG, prefix: str = "op.", axes: tuple[str, ...] = AXES) -> ComputeDAG:
    """The same computation; operation k is called `<prefix><k>`, its axis d `axes[d]`."""
    names = {op.name: f"{prefix}{len(dag.ops) - k}" for k, op in enumerate(dag.ops)}

    def one(op: Operation) -> Operation:
        if not isinstance(op, ComputeOp):
            return replace(op, name=names[op.name])
        own = {a.name: axes[d] for d, a in enumerate(op.axes + op.reduce_axes)}
        body = substitute(op.body, {old: Var(new, "axis") for old, new in own.items()})
        return replace(
            op,
            name=names[op.name],
            axes=tuple(Axis(own[a.name], a.extent) for a in op.axes),
            reduce_axes=tuple(Axis(own[a.name], a.extent) for a in op.reduce_axes),
            body=rename_loads(body, names),
        )

    return ComputeDAG.from_ops([one(op) for op in dag.ops], [names[n] for n in dag.output_names])


def canonical(s: Sketch, names: Renaming) -> tuple[object, ...]:
    steps = s.state.to_json()
    return names.sketch(s.name, steps), names.steps(steps), [names.hole(h.name) for h in s.holes]


def check_serves_a_renamed_dag(dag: ComputeDAG, rng: np.random.Generator, most: int = 6) -> int:
    """Random rows of some sketches, recorded canonically, are programs of the renamed DAG."""
    other = renamed(dag)
    assert other.workload_key == dag.workload_key
    names, others = canonical_names(dag), canonical_names(other)
    space, other_space = sketches(dag, TARGET), sketches(other, TARGET)
    assert len(space) == len(other_space)
    for k in np.unique(np.linspace(0, len(space) - 1, most).astype(int)):
        s, o = space[k], other_space[k]
        sketch, steps, holes = canonical(s, names)
        assert canonical(o, others) == (sketch, steps, holes)
        assert names.inverse.sketch(sketch, steps) == s.name
        assert names.inverse.steps(steps) == s.state.to_json()
        row = s.sample(1, rng)[0]
        values = names.holes(s.values(row))
        assert names.inverse.holes(values) == {n: list(v) for n, v in s.values(row).items()}
        state = complete_state(other, others.inverse.steps(steps), others.inverse.holes(values))
        assert str(lower(state)) == str(o.fill(row))
    plain = names.steps(plain_state(dag, TARGET).to_json())
    assert others.inverse.steps(plain) == plain_state(other, TARGET).to_json()
    return len(space)


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 5])
def test_records_of_random_rows_serve_a_renamed_dag(seed: int) -> None:
    dag = seeded_dag(np.random.default_rng([seed, 1]), max_stages=2).dag
    check_serves_a_renamed_dag(dag, np.random.default_rng(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_records_of_many_dags_serve_a_renamed_dag(seed: int) -> None:
    dag = seeded_dag(np.random.default_rng([seed, 2]), max_stages=3).dag
    check_serves_a_renamed_dag(dag, np.random.default_rng(seed), most=20)


def test_every_kind_of_step_and_stage_is_renamed() -> None:
    """A padded convolution with a constant, and a small matrix product that is factored."""
    x = te.placeholder((1, 6, 6, 8), name="X")
    w = te.placeholder((3, 3, 8, 8), name="W", constant=True)
    inside = lambda h, v: te.all(h >= 1, h < 7, v >= 1, v < 7)  # noqa: E731
    pad = te.compute(
        (1, 8, 8, 8),
        lambda n, h, v, c: te.select(inside(h, v), x[n, h - 1, v - 1, c], 0.0),
        name="pad",
    )
    kh, kw, ci = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw"), te.reduce_axis(8, "ci")
    conv = te.compute(
        (1, 6, 6, 8),
        lambda n, h, v, co: te.sum(pad[n, h + kh, v + kw, ci] * w[kh, kw, ci, co], [kh, kw, ci]),
        name="conv",
    )
    a, b = te.placeholder((4, 256), name="A"), te.placeholder((256, 4), name="B")
    k = te.reduce_axis(256, "k")
    product = te.compute((4, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    rng = np.random.default_rng(0)
    texts = []
    for dag in (te.ComputeDAG([conv]), te.ComputeDAG([product])):
        check_serves_a_renamed_dag(dag, rng, most=24)
        names = canonical_names(dag)
        texts += [str(canonical(s, names)) for s in sketches(dag, TARGET)]
    text = "".join(texts)
    tags = ("split", "follow_split", "reorder", "compute_at", "cache_write", "cache_read")
    for tag in (*tags, "rfactor", "layout_rewrite", "annotate"):
        assert f"'step': '{tag}'" in text
    for ending in (".cache'", ".rf'", ".packed'", "a2_o", "a2_i", ".rf.a2:1", ".lanes:1", ":1>2"):
        assert ending in text
