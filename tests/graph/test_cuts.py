"""Cuts of a network with kernels of several anchors: which there are, which is taken, values."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from search_cases import Pretender

from ansorlite import recut as recut_module
from ansorlite.cli.tasks import tuned_network
from ansorlite.graph import cuts
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.choice import Lowering
from ansorlite.graph.cuts import Merge, chosen, kernel_seconds, merges, with_merges
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import Partition, evaluate_partition, partition
from ansorlite.graph.passes import optimize
from ansorlite.pipeline import auto_schedule
from ansorlite.records import read_log
from ansorlite.recut import Cuts, HopefulFirst, cuts_of, kept_in_place, recut
from ansorlite.search.kinship import kinship
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.session import Session
from ansorlite.search.shipped import NONE, Row, ShippedPrograms
from ansorlite.search.shipped import shipped as shipped_programs
from ansorlite.search.tune_tasks import tune_tasks
from ansorlite.shared_tasks import network_tasks, shared_tasks
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.te.access import has_data_reuse

SIZE, HEADS, WIDTH = 24, 2, 8
FEW = EvolutionParams(population=64, generations=1, looked_at_first=8)


def attention(read_twice: bool = False) -> Graph:
    b = GraphBuilder("attention")
    q, k, v = (b.input(x, (1, SIZE, HEADS, WIDTH)) for x in "qkv")

    def turned(x: str, *perm: int) -> str:
        return b.emit("transpose", [x], perm=perm)

    s = b.emit("matmul", [turned(q, 0, 2, 1, 3), turned(k, 0, 2, 3, 1)])
    s = b.emit("mul", [s, b.constant(np.array(0.25, np.float32))])
    p = b.emit("softmax", [s], axes=(3,))
    y = turned(b.emit("matmul", [p, turned(v, 0, 2, 1, 3)]), 0, 2, 1, 3)
    return b.finish([y, p] if read_twice else [y])


def residual(size: int = 16, channels: int = 8) -> Graph:
    """Expand, depthwise and project of an inverted residual."""
    rng, b = np.random.default_rng(1), GraphBuilder("residual")

    def conv(x: str, co: int, kernel: int, groups: int = 1) -> str:
        w = rng.standard_normal((co, b.shape(x)[1] // groups, kernel, kernel)) / 4
        pads = ((kernel // 2,) * 2,) * 2
        window = {"strides": (1, 1), "pads": pads, "dilations": (1, 1)}
        y = [x, b.constant(w.astype(np.float32))]
        return b.emit("conv", y, groups=groups, layout="channels_first", **window)

    x = b.input("x", (1, channels, size, size))
    y = b.emit("relu", [conv(x, 4 * channels, 1)])
    y = b.emit("relu", [conv(y, 4 * channels, 3, 4 * channels)])
    y = b.emit("add", [conv(y, channels, 1), x])
    return b.finish([y])


def cut(graph: Graph, exact: bool = False) -> tuple[Partition, tuple[Merge, ...]]:
    parts = partition(optimize(graph, exact))
    return parts, merges(parts, exact)


def spans(parts: Partition, found: tuple[Merge, ...]) -> list[tuple[int, ...]]:
    names = [s.name for s in parts.subgraphs]
    return [tuple(names.index(n) for n in m.replaces) for m in found]


def test_attention_may_be_one_kernel() -> None:
    parts, (whole,) = cut(attention())
    assert spans(parts, (whole,)) == [(0, 1, 2)]
    assert whole.saved_bytes == 2 * 2 * HEADS * SIZE * SIZE * 4
    quotients = [op for op in whole.subgraph.dag.computes if "/" in str(op.body)]
    assert [len(op.shape) for op in quotients] == [4] and not has_data_reuse(quotients[0])
    assert quotients[0].shape[-1] == WIDTH  # divided after the product


def test_an_exact_network_divides_where_it_says() -> None:
    _, (whole,) = cut(attention(), exact=True)
    quotients = [op for op in whole.subgraph.dag.computes if "/" in str(op.body)]
    assert [op.shape[-1] for op in quotients] == [SIZE]


def test_what_another_kernel_reads_is_stored() -> None:
    assert cut(attention(read_twice=True))[1] == ()


def test_an_inverted_residual_has_three_cuts() -> None:
    parts, found = cut(residual())
    assert len(parts.subgraphs) == 5  # between two transposes
    assert set(spans(parts, found)) == {(1, 2), (1, 2, 3), (2, 3)}


@pytest.mark.parametrize("make", [attention, residual])
def test_every_cut_computes_the_same(make: type) -> None:
    graph = make()
    parts, found = cut(graph)
    rng = np.random.default_rng(0)
    types = [graph.types[v] for v in graph.inputs]
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    (want,) = evaluate(graph, inputs)
    for m in found:
        (got,) = evaluate_partition(with_merges(parts, [m]), inputs)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_fastest_cut_is_taken() -> None:
    parts, found = cut(residual())
    names = [s.name for s in parts.subgraphs]
    a, b, c = names[1:4]
    by_span = {m.replaces: m.subgraph.name for m in found}
    apart = dict.fromkeys(names, 10.0)
    both = {by_span[a, b]: 15.0, by_span[b, c]: 12.0, by_span[a, b, c]: 23.0}

    def taken(latency_s: dict[str, float]) -> list[tuple[str, ...]]:
        return [m.replaces for m in chosen(parts, found, latency_s)]

    assert taken(apart) == []
    assert taken(apart | both) == [(b, c)]
    assert taken(apart | both | {by_span[a, b, c]: 21.0}) == [(a, b, c)]
    assert taken(apart | dict.fromkeys(by_span.values(), 40.0)) == []


def test_a_merge_is_worth_a_search_for_the_bytes_that_it_saves() -> None:
    """At a cache's speed, or memory's for values that no cache holds."""
    parts, found = cut(attention())
    merge = replace(found[-1], between=(8 << 20, 8 << 20))
    times = dict.fromkeys(merge.replaces, 2e-3)
    names = {s.dag.workload_key: 2e-3 for s in parts.subgraphs if s.name in merge.replaces}
    assert kernel_seconds(parts, names).items() >= times.items()

    def hopes(l3: int, speed: float | None, seconds: dict[str, float] = times) -> bool:
        target = Target.cross("x86-avx2", cores=2)
        return merge.is_hopeful(seconds, replace(target, l3_bytes=l3), speed)

    assert not hopes(32 << 20, 2e10)  # 0.34 of 6 ms
    assert hopes(4 << 20, 2e10)  # 1.7 of 6 ms
    assert not hopes(4 << 20, None)
    assert not hopes(4 << 20, 2e10, {})


def test_a_merge_is_worth_a_search_where_similar_ones_were_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And where programs of similar ones are shipped, a short run searches it, too."""
    parts, found = cut(attention())
    target = Target.cross("x86-avx2", cores=2)
    whole, times = found[-1], dict.fromkeys(found[-1].replaces, 1.0)
    known = kinship(SearchTask(whole.subgraph.dag, target))

    def own(share_s: float) -> ShippedPrograms:
        row = Row(known.extents, known.flop, known.to_json(), [(share_s, [], [])])
        return ShippedPrograms({known.kin: [row]}, lambda row: None)

    every = Cuts([found], 0.25, target)
    with Session(8, None, progress=False, runner=Pretender(), builder=Pretender()) as run:
        monkeypatch.setattr(run, "peak", lambda target: None)
        for shipped, hopeful in ((own(2.9), [whole]), (own(3.1), []), (NONE, [])):
            monkeypatch.setattr(recut_module, "shipped", lambda target, known=shipped: known)
            assert list(every.hopeful(run, found, times)) == hopeful
            few = cuts_of(run, [parts], [Lowering()], 1, target)
            assert [list(own) for own in few.merges] == [[whole] if shipped is not NONE else []]
            assert not cuts_of(run, [parts], [Lowering()], 2, target)


def test_merges_that_are_far_behind_wait_for_those_that_are_near() -> None:
    latency_s = (4.5, 9.0, 4.1)
    plan = HopefulFirst(
        [1.0] * 3,
        [1.0] * 3,
        ["a", "b", "c"],
        limits=[(16, 5.0)] * 3,
        epsilon=0.0,
        rng=np.random.default_rng(0),
    )
    rounds: list[int | None] = []
    for _ in range(12):
        rounds.append(k := plan.next_task())
        assert k is not None
        plan.tell(k, latency_s[k], 8)
    assert rounds.count(1) == 2 and {0, 2} == set(rounds[-4:])
    for k in (0, 2):
        plan.tell(k, None, 0)  # used up
    assert plan.next_task() == 1


def test_without_a_measurement_chains_begin_with_programs_of_similar_ones(tmp_path: Path) -> None:
    """As one kernel; a log of separate kernels is compiled as it is."""
    graph = attention()
    with Session(0, None, progress=False) as run:
        parts = Lowering().partition(graph)
        some = cuts_of(run, [parts], [Lowering()], 3, Target.detect())
    made = auto_schedule(graph, n_trials=0, progress=False)
    whole = bool(shipped_programs(Target.detect()).has_kin(made.report.results[0].task))
    assert some.predicted and bool(some) == (len(made.partition.subgraphs) == 1) == whole
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal((1, SIZE, HEADS, WIDTH), np.float32) for _ in range(3)]
    (want,) = evaluate(graph, inputs)
    np.testing.assert_allclose(made(*inputs), want, rtol=1e-4, atol=1e-5)
    log = tmp_path / "log.jsonl"
    auto_schedule(graph, n_trials=4, log=log, progress=False, params=FEW)
    again = auto_schedule(graph, n_trials=0, log=log, progress=False)
    assert len(again.partition.subgraphs) == 3


def test_attention_with_shipped_kin_is_one_kernel_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is searched, and its log says so; a log of separate kernels stays with these."""
    kin = SimpleNamespace(has_kin=lambda task: True, latency_s=lambda task: float("inf"))
    own, apart = tmp_path / "own", tmp_path / "apart"
    options: dict[str, Any] = {"progress": False, "params": FEW}

    def kernels(log: Path, n_trials: int, known: object) -> int:
        monkeypatch.setattr(recut_module, "shipped", lambda target: known)
        made = auto_schedule(attention(), n_trials=n_trials, log=log, **options)
        return len(made.partition.subgraphs)

    assert kernels(own, 8, kin) == 1
    (name,) = {r.task_name for r in read_log(own).records}
    assert "_to_" in name
    assert kernels(own, 0, NONE) == 1  # the log tells
    assert kernels(own, 12, kin) == 1  # continued
    assert kernels(apart, 8, NONE) == 3
    assert kernels(apart, 0, kin) == 3
    exact = auto_schedule(attention(), n_trials=4, exact=True, **options)
    rng = np.random.default_rng(4)
    inputs = [rng.standard_normal((1, SIZE, HEADS, WIDTH), np.float32) for _ in range(3)]
    (want,) = evaluate(attention(), inputs)
    np.testing.assert_allclose(exact(*inputs), want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_network_takes_the_cut_that_measures_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pretended latencies one kernel always beats three; a log alone gives the same cut."""
    parts, found = cut(attention())
    target, both = Target.detect(), Pretender()
    shared = shared_tasks([network_tasks(parts, target)])
    every = Cuts([found], 0.25, target)
    monkeypatch.setattr(recut_module, "shipped", lambda target: NONE)
    for gain, kernels in ((1e9, 3), (1e-9, 1)):
        monkeypatch.setattr(cuts, "GAIN", gain)
        options = {"log": tmp_path / f"{kernels}", "progress": False, "params": FEW}
        with Session(16, None, builder=both, runner=both, **options) as run:
            budget = run.budget
            run.budget = budget.part(0.75)
            results = tune_tasks(run, shared.tasks)
            (now,), tasks, best, *_ = recut(run, [parts], shared, results, every, budget)
        assert len(now.subgraphs) == len(best) == len(tasks.tasks) == kernels
        assert all(r.best is not None for r in best)
    names = {r.task_name for r in read_log(tmp_path / "1").records}
    assert found[0].subgraph.name in names and len(names) == 4
    with Session(0, None, **options) as run:
        results = tune_tasks(run, shared.tasks)
        (again,), *_ = recut(run, [parts], shared, results, every, run.budget)
    assert [s.name for s in again.subgraphs] == [found[0].subgraph.name]
    keys = {r.task for r in read_log(tmp_path / "1").records}
    shown = tuned_network(attention(), keys).weighted
    assert [w.task.name for w in shown][3:] == [found[0].subgraph.name]


def in_place(lost: Sequence[float], replaced: int = 2) -> Callable[..., list[np.ndarray]]:
    """A measurement in which kernels take 1 s and merged ones so much longer than the `replaced`.

    `lost` is by their place in the running order; what is not told is slow.
    """

    def timed(networks: Sequence[CompiledModule], left_s: object) -> list[np.ndarray]:
        out = []
        for module in networks:
            names, left = [s.name for s in module.partition.subgraphs], iter((*lost, *[9.0] * 9))
            own = [replaced + next(left) if "_to_" in name else 1.0 for name in names]
            out.append(np.array([own] * 5))
        return out

    return timed


def search_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All merges are worth a search of any budget."""
    monkeypatch.setattr(recut_module, "shipped", lambda target: NONE)
    monkeypatch.setattr(recut_module, "KNOWN_TRIALS", 1)
    monkeypatch.setattr(recut_module, "TRIALS", 1)
    monkeypatch.setattr(cuts, "GAIN", 1e-9)


@pytest.mark.parametrize(("lost", "kernels"), [(-0.1, 1), (0.02, 1), (0.1, 3), (None, 1)])
def test_what_is_faster_in_its_place_stays_and_the_log_tells(
    lost: float | None, kernels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone the one kernel is faster; in the network, it is, hardly is not, is not; no time."""
    log = tmp_path / "log"
    search_all(monkeypatch)
    timed = (lambda *args: None) if lost is None else in_place([lost], 3)
    monkeypatch.setattr(recut_module, "timed_in_turn", timed)
    options = {"log": log, "progress": False, "params": FEW}
    made = auto_schedule(attention(), n_trials=16, runner=Pretender(), **options)
    assert len(made.partition.subgraphs) == len(made.report.results) == kernels
    lines = [c for c in read_log(log).choices if c.task.startswith("cut:")]
    assert [c.holes for c in lines] == (
        [] if lost is None else [{"ends": [2][kernels // 2 :], "lengths": [3][kernels // 2 :]}]
    )
    again = auto_schedule(attention(), n_trials=0, log=log, progress=False)
    assert len(again.partition.subgraphs) == kernels
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal((1, SIZE, HEADS, WIDTH), np.float32) for _ in range(3)]
    for module in (made, again):
        got, (want,) = module(*inputs), evaluate(attention(), inputs)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("lost", "stay"),
    [
        ([-0.1, 0.3, -0.2], [0, 2]),  # the second one is slower
        ([-0.1, 0.05, -0.2], [0, 1, 2]),  # but hardly, for the network
        ([0.06, 0.06, 0.06], [2]),  # the last one saves most
        ([0.05, 0.2, 0.3], [0]),
        ([0.6, 0.6, 0.6], []),
    ],
)
def test_merges_may_cost_little(lost: list[float], stay: list[int]) -> None:
    """A network is slowed down by a little at most, for the fewest bytes."""
    graph, taken = pairs()
    parts = partition(optimize(graph))
    apart, merged = (SimpleNamespace(partition=with_merges(parts, some)) for some in ([], taken))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recut_module, "timed_in_turn", in_place(lost))
        cuts: Any = [(taken, merged)]
        kept = kept_in_place(parts, cast(Any, apart), cuts, lambda: 60.0)
        patch.setattr(recut_module, "timed_in_turn", lambda *args: None)
        assert kept_in_place(parts, cast(Any, apart), cuts, lambda: 60.0) is None
    assert kept is not None
    assert [m.subgraph.name for m in kept] == [taken[k].subgraph.name for k in stay]


def test_merges_of_several_cuts_are_measured() -> None:
    """What is slow in the first cut gives way to a merge of the second with the same kernel."""
    parts, found = cut(residual())
    first, second = ([m] for m in found if len(m.replaces) == 2)
    modules = [SimpleNamespace(partition=with_merges(parts, some)) for some in ([], first, second)]
    with pytest.MonkeyPatch.context() as patch:
        every = {first[0].subgraph.name: 0.5, second[0].subgraph.name: -0.5}

        def timed(networks: Sequence[CompiledModule], left_s: object) -> list[np.ndarray]:
            rows = [[2 + every.get(s.name, -1.0) for s in m.partition.subgraphs] for m in networks]
            return [np.array([own] * 5) for own in rows]

        patch.setattr(recut_module, "timed_in_turn", timed)
        made: Any = list(zip((first, second), modules[1:], strict=True))
        kept = kept_in_place(parts, cast(Any, modules[0]), made, lambda: 60.0)
    assert kept is not None and [m.subgraph.name for m in kept] == [second[0].subgraph.name]


def pairs(channels: Sequence[int] = (8, 12, 16)) -> tuple[Graph, list[Merge]]:
    """Expansions and depthwise convolutions of as many inputs, and each two as one kernel."""
    rng, b = np.random.default_rng(1), GraphBuilder("pairs")
    window = {"strides": (1, 1), "dilations": (1, 1), "layout": "channels_first"}
    out = []
    for c in channels:
        y = b.emit("transpose", [b.input(f"x{c}", (1, 16, 16, c))], perm=(0, 3, 1, 2))
        w = b.constant(rng.standard_normal((3 * c, c, 1, 1)).astype(np.float32))
        y = b.emit("conv", [y, w], groups=1, pads=((0, 0),) * 2, **window)
        w = b.constant(rng.standard_normal((3 * c, 1, 3, 3)).astype(np.float32))
        y = b.emit("relu", [y])
        y = b.emit("conv", [y, w], groups=3 * c, pads=((1, 1),) * 2, **window)
        out.append(b.emit("transpose", [y], perm=(0, 2, 3, 1)))
    graph = b.finish(out)
    return graph, [m for m in merges(partition(optimize(graph))) if len(m.replaces) == 2]


def test_some_merged_kernels_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three pairs one is one kernel; weights are packed for kernels of either kind."""
    graph, _ = pairs()
    log = tmp_path / "log"
    search_all(monkeypatch)
    monkeypatch.setattr(recut_module, "timed_in_turn", in_place([0.5, -0.5, 0.5]))
    options = {"log": log, "progress": False, "params": FEW}
    made = auto_schedule(graph, n_trials=64, runner=Pretender(), **options)
    again = auto_schedule(graph, n_trials=0, log=log, progress=False)
    names = [[s.name for s in m.partition.subgraphs] for m in (made, again)]
    assert names[0] == names[1] and ["_to_" in name for name in names[0]].count(True) == 1
    assert len(names[0]) == 5
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal((1, 16, 16, c), np.float32) for c in (8, 12, 16)]
    for module in (made, again):
        for got, want in zip(module(*inputs), evaluate(graph, inputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_lines_of_the_log_without_a_cut_are_left_out() -> None:
    """Of merges that replace the same kernel, or half of a line, nothing is believed."""
    parts, found = cut(residual())
    place = {s.name: k for k, s in enumerate(parts.subgraphs)}
    pair, other = (m for m in found if len(m.replaces) == 2)
    seconds = {m.subgraph.name: 1.0 for m in found}
    ends = [place[m.replaces[-1]] for m in (pair, other)]
    told: list[tuple[dict[str, list[int]], list[Merge] | None]] = [
        ({"ends": ends[:1], "lengths": [2]}, [pair]),
        ({"ends": [99, *ends[1:]], "lengths": [2, 2]}, [other]),
        ({"ends": [], "lengths": []}, []),
        ({"ends": ends, "lengths": [2, 2]}, None),
        ({"ends": ends}, None),
        ({"lengths": [2]}, None),
    ]
    for holes, want in told:
        line = SimpleNamespace(holes=holes)
        run: Any = SimpleNamespace(store=SimpleNamespace(noted=lambda *args, line=line: line))
        assert recut_module._noted(run, parts, found, seconds, Target.detect()) == want


def test_ctrl_c_in_the_race_keeps_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those stay that are faster alone, and the log tells of no cut."""

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    log = tmp_path / "log"
    search_all(monkeypatch)
    monkeypatch.setattr(recut_module, "timed_in_turn", interrupted)
    options = {"log": log, "progress": False, "params": FEW}
    made = auto_schedule(attention(), n_trials=16, runner=Pretender(), **options)
    assert len(made.partition.subgraphs) == 1
    assert not any(c.task.startswith("cut:") for c in read_log(log).choices)
