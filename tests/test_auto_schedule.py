"""Networks from end to end: tuned, compiled and compared with the graph's meaning in numpy."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sampled import sampled
from search_cases import Pretender

import ansorlite as al
from ansorlite.errors import AnsorliteError, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.memory import Lifetime, plan_arena
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.pipeline import compile_plain
from ansorlite.records import Record, RecordLog, read_log
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.session import Session
from ansorlite.search.tune_tasks import tune_tasks
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target

FEW = EvolutionParams(population=64, generations=1, looked_at_first=8)


def small_net() -> Graph:
    """A residual block between a strided convolution and a classifier, all of odd sizes."""
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal(shape) / 4).astype(np.float32)

    def conv(x: str, co: int, stride: int) -> str:
        w = b.constant(weight(co, b.shape(x)[1], 3, 3))
        window = {"strides": (stride, stride), "pads": ((1, 1), (1, 1)), "dilations": (1, 1)}
        return b.emit("conv", [x, w], groups=1, layout="channels_first", **window)

    b = GraphBuilder("small")
    y = b.emit("relu", [conv(b.input("x", (1, 3, 17, 19)), 10, 2)])
    y = b.emit("relu", [b.emit("add", [conv(y, 10, 1), y])])
    y = b.emit(
        "max_pool",
        [y],
        kernel=(3, 3),
        strides=(2, 2),
        pads=((1, 1), (1, 1)),
        dilations=(1, 1),
        ceil_mode=False,
        layout="channels_first",
    )
    y = b.emit("reduce_mean", [y], axes=(2, 3), keepdims=True)
    y = b.emit("reshape", [y], shape=(1, 10))
    params = [b.constant(weight(7, 10)), b.constant(weight(7))]
    y = b.emit("gemm", [y, *params], trans_a=False, trans_b=True, alpha=1.0, beta=1.0)
    return b.finish([b.emit("softmax", [y], axes=(1,))])


def picture(net: Graph, seed: int = 0) -> npt.NDArray[Any]:
    shape = net.types[net.inputs[0]].shape
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def relative_error(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Any, Path]:
    net = small_net()
    log = tmp_path_factory.mktemp("net") / "net.jsonl"
    module = al.auto_schedule(net, n_trials=12, log=log, seed=1, params=FEW, progress=False)
    return net, module, log


def test_plain_network_is_right() -> None:
    net = small_net()
    x = picture(net)
    assert relative_error(compile_plain(net)(x), evaluate(net, [x])[0]) < 1e-5


def test_tuned_network_is_right_on_other_data(tuned: tuple[Graph, Any, Path]) -> None:
    net, module, _ = tuned
    for seed in (1, 2):
        x = picture(net, seed)
        assert relative_error(module(x), evaluate(net, [x])[0]) < 1e-4


def test_report_has_every_task_and_every_trial(tuned: tuple[Graph, Any, Path]) -> None:
    _, module, log = tuned
    rows = module.report.rows
    assert sum(r.trials for r in rows) == 12 == len(read_log(log).records)
    assert all(r.latency_s is not None for r in rows)
    assert "conv" in str(module.report) and "measuring" in str(module.report)


def test_what_the_run_settled_on_is_compiled_again(tuned: tuple[Graph, Any, Path]) -> None:
    """Not what one lucky measurement seemed to be."""
    net, module, log = tuned
    chosen = {(r.task, r.trial) for r in read_log(log).choices}
    again = al.auto_schedule(net, n_trials=0, log=log, progress=False)
    both = zip(module.report.results, again.report.results, strict=True)
    assert chosen
    for first, second in both:
        assert first.best is not None and second.best is not None
        assert first.best.record.holes == second.best.record.holes
        assert first.best.record.sketch == second.best.record.sketch


def test_constants_are_kept_once(tuned: tuple[Graph, Any, Path]) -> None:
    _, module, _ = tuned
    assert not module.partition.graph.constants
    assert module.weights_bytes > 0


def test_the_arena_is_hardly_larger_than_what_lives_at_once() -> None:
    net = al.network("resnet18")
    parts = partition(optimize(net))
    module = compile_plain(net)
    graph, owner = parts.graph, parts.aliases
    life: dict[str, list[int]] = {v: [-1, -1] for v in graph.inputs}
    for k, s in enumerate(parts.subgraphs):
        for v in (*s.inputs, *s.outputs):
            if owner.get(v, v) not in graph.constants:
                life.setdefault(owner.get(v, v), [k, k])[1] = k
    most = max(
        sum(4 * graph.types[v].size for v, (a, b) in life.items() if a <= k <= b)
        for k in range(-1, len(parts.subgraphs))
    )
    assert module.arena_bytes <= 1.3 * most


def test_other_forms_can_be_ruled_out() -> None:
    tasks = network_tasks(partition(optimize(al.network("resnet18"))), Target.detect(), 0.0)
    assert not any(w.other_forms for w in tasks)


def test_log_is_used_before_anything_is_measured(tuned: tuple[Graph, Any, Path]) -> None:
    net, _, log = tuned
    before = log.read_bytes()
    module = al.auto_schedule(net, n_trials=0, log=log, progress=False)
    assert log.read_bytes() == before
    x = picture(net, 5)
    assert relative_error(module(x), evaluate(net, [x])[0]) < 1e-4


def test_without_log_and_trials_the_model_decides() -> None:
    net = small_net()
    module = al.auto_schedule(net, n_trials=0, params=FEW, progress=False)
    x = picture(net)
    assert relative_error(module(x), evaluate(net, [x])[0]) < 1e-4
    assert all(r.best is None and r.predicted is not None for r in module.report.results)


def _dense(name: str, seed: int, *widths: int) -> Graph:
    """Fully connected layers of these widths."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(name)
    y = b.input("x", (4, widths[0]))
    for k, n in pairwise(widths):
        params = [b.constant(rng.standard_normal(s).astype(np.float32)) for s in ((k, n), (n,))]
        y = b.emit("gemm", [y, *params], trans_a=False, trans_b=False, alpha=1.0, beta=1.0)
        y = b.emit("relu", [y])
    return b.finish([y])


@pytest.mark.parametrize(
    "scheduler", sampled(["gradient", "ucb", "round-robin-limits", "round-robin"], 2)
)
def test_networks_share_their_tasks(scheduler: str, tmp_path: Path) -> None:
    """The layers of 24 by 24 are tuned once, and count for both networks."""
    nets = [_dense("one", 0, 16, 24, 24), _dense("two", 1, 24, 24, 24, 8)]
    modules = al.auto_schedule(
        nets,
        n_trials=9,
        log=tmp_path / "log",
        scheduler=scheduler,
        objective=lambda g: float(g.max()),
        progress=False,
    )
    assert [len(m.report.results) for m in modules] == [2, 2]
    assert [m.report.weights for m in modules] == [(1.0, 1.0), (2.0, 1.0)]
    records = read_log(tmp_path / "log").records
    assert len(records) == 9 and len({r.task for r in records}) == 3
    for net, module in zip(nets, modules, strict=True):
        x = picture(net, 7)
        assert relative_error(module(x), evaluate(net, [x])[0]) < 1e-4


def _tuned(net: Graph, n_trials: int, log: Path) -> list[Record]:
    """The records of a network's tasks, of which nothing is built or run."""
    pretender = Pretender()
    options: dict[str, Any] = {"builder": pretender, "runner": pretender, "params": FEW}
    with Session(n_trials, None, log=log, progress=False, **options) as session:
        tune_tasks(session, network_tasks(partition(optimize(net)), Target.detect()))
    return list(read_log(log).records)


def test_a_small_budget_is_shared_by_all_tasks(tmp_path: Path) -> None:
    """Two of each of nine tasks, beside the plain schedule, rather than eight of a few."""
    net = _dense("nine", 0, *range(8, 17), 24)
    records = _tuned(net, 27, tmp_path / "log")
    assert list(Counter(r.task for r in records).values()) == [3] * 9
    # A run that was torn apart in the first of those rounds goes on with as many of each.
    torn = tmp_path / "torn"
    with RecordLog(torn) as log:
        for r in records[:10]:
            log.append(r)
    assert list(Counter(r.task for r in _tuned(net, 27, torn)).values()) == [3] * 9


def test_many_tasks_have_small_rounds(tmp_path: Path) -> None:
    """Each has the plain schedule and four more, then one of them eight."""
    net = _dense("nine", 0, *range(48, 120, 8), 144)
    records = _tuned(net, 9 * (1 + 4) + 8, tmp_path / "log")
    sizes = Counter((r.round, r.task) for r in records)
    by_round = sorted((number, n) for (number, _), n in sizes.items())
    assert by_round == [(0, 1)] * 9 + [(1, 4)] * 9 + [(2, 8)]


def test_a_convolution_is_tuned_in_every_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Direct and Winograd's: the log has both, and compiles to what was found.

    Three tasks have plain schedules, and rounds of three: the convolution's forms and the others.
    """
    monkeypatch.setattr("ansorlite.search.tune_tasks.promising", lambda forms: list(forms[:3]))
    b = GraphBuilder("forms")
    rng = np.random.default_rng(5)
    weight = b.constant((rng.standard_normal((16, 16, 3, 3)) / 8).astype(np.float32))
    window = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1)}
    x = b.input("x", (1, 16, 12, 12))
    net = b.finish([b.emit("conv", [x, weight], groups=1, layout="channels_first", **window)])
    options = {"log": tmp_path / "log", "progress": False, "round_size": 3, "params": FEW}
    module = al.auto_schedule(net, n_trials=18, **options)
    image = picture(net)
    want = evaluate(net, [image])[0]
    assert relative_error(module(image), want) < 1e-4
    parts = partition(optimize(net))
    forms = next(s for s in parts.subgraphs if s.others).forms[:3]
    logged = {r.task for r in read_log(tmp_path / "log").records}
    assert len(forms) == 3 and {f.dag.workload_key for f in forms} <= logged
    again = al.auto_schedule(net, n_trials=0, **options)
    assert relative_error(again(image), want) < 1e-4
    assert sum(r.trials for r in again.report.rows) == 18
    resumed = al.auto_schedule(net, n_trials=19, **options)
    assert len(read_log(tmp_path / "log").records) == 19
    assert relative_error(resumed(image), want) < 1e-4


def test_the_same_network_twice_and_none_at_all() -> None:
    net = _dense("one", 0, 16, 24)
    modules = al.auto_schedule([net, net], n_trials=0, progress=False)
    assert [m.report.weights for m in modules] == [(1.0,), (1.0,)]
    assert al.auto_schedule([], n_trials=0, progress=False) == []
    assert al.auto_schedule([], timeout=5, progress=False) == []


def test_an_objective_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="the objective is nan"):
        al.auto_schedule(
            _dense("one", 0, 16, 24), 6, objective=lambda g: float("nan"), progress=False
        )


def test_unknown_schedulers_are_refused() -> None:
    with pytest.raises(AnsorliteError, match="no scheduler is called 'best': choose gradient"):
        al.auto_schedule(small_net(), n_trials=0, scheduler="best")


def test_wrong_inputs_are_named() -> None:
    module = compile_plain(small_net())
    with pytest.raises(ModelError, match="expected"):
        module(np.zeros((1, 3, 17, 18), np.float32))
    with pytest.raises(ModelError, match="expected"):
        module(np.zeros((1, 3, 17, 19), np.float64))
    with pytest.raises(ModelError, match="takes 1 inputs"):
        module()
    with pytest.raises(ModelError, match="has no input nonsense"):
        module(nonsense=np.zeros(1))


def test_named_inputs_outputs_and_repeated_calls() -> None:
    b = GraphBuilder("two")
    x, y = b.input("x", (2, 5)), b.input("y", (2, 5))
    total = b.emit("add", [x, y])
    graph = b.finish([total, b.emit("mul", [total, total])])
    module = CompiledModule(*_plain(graph))
    rng = np.random.default_rng(0)
    for _ in range(3):
        p, q = rng.standard_normal((2, 2, 5)).astype(np.float32)
        first, second = module(y=q, x=p)
        np.testing.assert_allclose(first, p + q, rtol=1e-6)
        np.testing.assert_allclose(second, (p + q) ** 2, rtol=1e-5)


def _plain(graph: Graph) -> Any:
    from ansorlite.graph.kernels import plain_image
    from ansorlite.shared_tasks import network_tasks
    from ansorlite.target import Target

    parts = partition(optimize(graph))
    return parts, [plain_image(w.task) for w in network_tasks(parts, Target.detect())]


def test_arena_never_overlaps_values_that_live_together() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = {}
        for k in range(12):
            first = int(rng.integers(0, 10))
            size = int(rng.integers(1, 500))
            values[f"v{k}"] = Lifetime(size, first, first + int(rng.integers(0, 5)))
        offsets, total = plan_arena(values)
        for a in values:
            assert offsets[a] % 64 == 0 and offsets[a] + values[a].size_bytes <= total
            for b in values:
                if a < b and values[a].overlaps(values[b]):
                    end_a = offsets[a] + values[a].size_bytes
                    end_b = offsets[b] + values[b].size_bytes
                    assert end_a <= offsets[b] or end_b <= offsets[a]
