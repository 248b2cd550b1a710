"""The whole system on one screen: a network in, a native, checked, fast network out.

Each line of `auto_schedule` is a stage of the flow table in the README; the names are those that
debug output, timings and `ansorlite show --stage` use. Open the folder of a stage next.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, overload

from ansorlite.errors import UsageError
from ansorlite.graph.accuracy import Accuracy, accuracy
from ansorlite.graph.arithmetic import Arithmetic, arithmetic
from ansorlite.graph.choice import Lowering, lowerings
from ansorlite.graph.contest import Contender, fastest_in_place
from ansorlite.graph.cuts import Merge, with_merges
from ansorlite.graph.ir import Graph
from ansorlite.graph.kernels import Wanted, compile_tasks, compile_wanted, in_rows, plain_image
from ansorlite.graph.lower import FORM_RTOL
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import DistinctSubgraph, Partition, kernels, tasks
from ansorlite.graph.pool import ConstantPool
from ansorlite.graph.precision import check_precision
from ansorlite.graph.sized import SizedNetwork
from ansorlite.graph.sized_module import SizedModule
from ansorlite.measure.limits import least_seconds, task_peak
from ansorlite.measure.peak import Peak
from ansorlite.measure.processes import started
from ansorlite.measure.runner import LocalRunner, SideBySide
from ansorlite.measure.timing import in_network
from ansorlite.records import Record
from ansorlite.recut import (
    Recut,
    begun_merged,
    cuts_of,
    kept_in_place,
    note_cut,
    recut,
    shared_again,
)
from ansorlite.search.adapt import Known, adapted_results
from ansorlite.search.arguments import (
    check_callable,
    check_names,
    check_number,
    check_whole,
    target_of,
)
from ansorlite.search.clock import PhaseClock
from ansorlite.search.early import plain_ahead
from ansorlite.search.estimate import TRIALS, estimating
from ansorlite.search.forms import Forms
from ansorlite.search.objectives import Objective, OverNetworks
from ansorlite.search.result import ESTIMATE, TuneResult, why_above_limit
from ansorlite.search.retarget import Retargeted, counts, retargeted
from ansorlite.search.session import Session, TuneOptions, few_collections
from ansorlite.search.settle import link_s
from ansorlite.search.task_scheduler import SCHEDULERS
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.shared_tasks import SharedTasks, network_tasks, placed, shared_tasks
from ansorlite.tables import TaskRow, task_table, time_table
from ansorlite.target import Target
from ansorlite.task import SearchTask


@dataclass(frozen=True)
class NetworkReport:
    """What tuning a network gave: one result a task, and where the wall time went."""

    results: tuple[TuneResult, ...]
    weights: tuple[float, ...]
    seconds: dict[str, float]
    wall_s: float
    peak: Peak | None
    interrupted: bool = False
    arithmetic: Arithmetic | None = None
    compared: Callable[[], tuple[Accuracy, ...]] | None = None

    @cached_property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """The error of each output against float32, on random inputs or those of `error_inputs`.

        Found on the first use, which evaluates the network in numpy; empty for networks that are
        wholly float32 or cannot be run here.
        """
        return () if self.compared is None else self.compared()

    @property
    def precision(self) -> Arithmetic | None:
        """What each kernel computes in, bytes moved, and `accuracy`; None for several sizes."""
        known = self.arithmetic
        return None if known is None else known.with_errors(self.accuracy)

    @property
    def rows(self) -> tuple[TaskRow, ...]:
        out = []
        for r, w in zip(self.results, self.weights, strict=True):
            latency_s = None if r.best is None else r.best.latency_s
            least_s = None if self.peak is None else least_seconds(r.task, self.peak)
            above = why_above_limit(r.task)
            peak = None if self.peak is None else task_peak(r.task, self.peak)
            row = TaskRow(r.task.name, r.task.flop, w, latency_s, r.trials, least_s, above, peak)
            out.append(row)
        return tuple(out)

    @property
    def latency_s(self) -> float | None:
        """The tasks' latencies times their weights; None while a task has none."""
        rows = self.rows
        known = [row.weight * row.latency_s for row in rows if row.latency_s is not None]
        return sum(known) if rows and len(known) == len(rows) else None

    def __str__(self) -> str:
        text = f"{task_table(self.rows)}\n{time_table(self.seconds, self.wall_s)}"
        if self.arithmetic is not None and self.arithmetic.precision != "float32":
            text = f"{text}\n{self.precision}"
        told = f"latencies are {ESTIMATE}, for {self.results[0].task.target}\n"
        return f"{told}{text}" if any(r.estimated for r in self.results) else text


class ScheduledModule(CompiledModule):
    """A compiled network that remembers how it was found (`report`).

    `logged` are the log's records of its tasks for other targets.
    """

    report: NetworkReport
    logged: tuple[Record, ...] = ()

    def programs_for(self, target: Target) -> list[Retargeted] | None:
        """The programs that the module was compiled from; None in a copy that was pickled."""
        report = getattr(self, "report", None)
        if report is None:
            return None
        found = [retargeted(r, target, self.logged) for r in report.results]
        forms = self._forms or (0,) * len(found)
        own = [(found[k.task], k.widths(self.partition, forms[k.task])) for k in self.kernels]
        return [Retargeted(in_rows(r.program, w), r.how) for r, w in own]

    @property
    def found(self) -> dict[str, int]:
        """How many kernels were measured, predicted and plain."""
        report = getattr(self, "report", None)
        if report is None:
            return {"tuned": len(self.images)}
        return counts(retargeted(r, r.task.target) for r in report.results)


class SizedScheduledModule(SizedModule):
    """A network compiled for several sizes; `report` is of the tasks of all of them."""

    report: NetworkReport


@overload
def auto_schedule(network: Graph, *args: Any, **options: Any) -> ScheduledModule: ...


@overload
def auto_schedule(network: SizedNetwork, *args: Any, **options: Any) -> SizedScheduledModule: ...


@overload
def auto_schedule(
    network: Graph | SizedNetwork, *args: Any, **options: Any
) -> ScheduledModule | SizedScheduledModule: ...


@overload
def auto_schedule(
    network: Sequence[Graph], *args: Any, **options: Any
) -> list[ScheduledModule]: ...


def auto_schedule(
    network: Graph | SizedNetwork | Sequence[Graph],
    n_trials: int | None = None,
    timeout: float | None = None,
    *,
    log: str | Path | None = None,
    seed: int = 0,
    target: Target | str | None = None,
    objective: Objective | None = None,
    scheduler: str = "gradient",
    early_stop_trials: int | None = None,
    form_rtol: float = FORM_RTOL,
    exact: bool = False,
    precision: str = "float32",
    max_error: float | None = None,
    error_inputs: Sequence[Any] | None = None,
    progress: bool = True,
    on_round: Callable[[Sequence[Forms]], None] | None = None,
    on_new_shape: Literal["refuse", "compile"] = "refuse",
    **session: Any,
) -> ScheduledModule | SizedScheduledModule | list[ScheduledModule]:
    """Tune all subgraphs of a network, or of several, together and compile them.

    >>> module = auto_schedule(load_onnx("model.onnx"), n_trials=800, log="model.jsonl")
    >>> y = module(x)

    `n_trials` counts measured programs over all tasks, those of the log included; `timeout` is
    wall-clock seconds for everything. Without either, 64 trials a task. With `n_trials=0` nothing
    is measured: programs are the log's, or the model's where the log has none. Ctrl-C compiles the
    best so far.

    `target` is a `Target` or the name of a preset ("cortex-a76", "neoverse-n1:16"), by default this
    machine. For a machine that cannot be run here, and without a `runner` that reaches one, nothing
    is measured: `n_trials` programs, 16 a task by default, are built and ranked by estimates
    (`search.estimate`), and the module can be saved, not called.

    `objective` is a function of float64[m], the networks' latencies in seconds, to be minimised
    (see `search.objectives`); by default their sum. `scheduler` is a name of
    `search.task_scheduler.SCHEDULERS`; a task without gain for `early_stop_trials` gets no more.
    `form_rtol` bounds the relative error, in units of the largest result, of other forms than the
    plain one; 0 rules them out. Winograd's adds and subtracts the elements of a tile, Strassen's of
    two or four rows, so an outlier, infinity or NaN spreads over these: one of 1e8 costs its
    neighbours their digits. Forms that round to bfloat16 on the way may lose 32 times as much. With
    `exact` each operator of the network is computed as it is written: there are no other forms, and
    no rewrite that rounds otherwise, such as batch norm folded into weights. With
    `precision="bf16"` products and convolutions compute in bfloat16 with sums in float32, and what
    no reader needs in float32 is stored as bfloat16; all else stays float32. With
    `precision="auto"` each of them computes in whichever is measured faster, and as many as it
    takes stay in float32 for an error of at most `max_error` (1e-2) of the largest value of each
    output, on the arrays `error_inputs` or random ones; the log keeps which.
    `on_round` is called after each round with the tuners of each task.

    A network of several sizes (`load_onnx` with lists) becomes one module, which runs the size that
    a call's arrays have. Other shapes are an error; with `on_new_shape="compile"` they are compiled
    when they first come, from the programs found here and in the log, adapted to the new extents.

    More keyword arguments are those of `search.session.TuneOptions`. Returns one module a network.
    Raises UsageError for an argument without a meaning.
    """
    if scheduler not in SCHEDULERS:
        raise UsageError(f"no scheduler is called {scheduler!r}: choose {', '.join(SCHEDULERS)}")
    check_names(session, [f.name for f in fields(TuneOptions)])
    machine = target_of(target)
    check_number("form_rtol", form_rtol)
    check_precision(precision)
    check_callable("objective", objective)
    check_callable("on_round", on_round)
    if early_stop_trials is not None:
        check_whole("early_stop_trials", early_stop_trials, 1)
    graphs = _graphs(network)
    _check_new_shape(on_new_shape, network)
    bound = 0.0 if exact else form_rtol
    session.setdefault("clock", PhaseClock())  # passes and partition take of the time, too
    # passes, partition, expression
    together = isinstance(network, SizedNetwork)
    wanted = exact, precision, max_error, error_inputs
    options = {"seed": seed, "log": log, "progress": progress, **session}
    if n_trials is not None or timeout is not None:
        TuneOptions(n_trials=n_trials, timeout=timeout, **options).check()
    with ExitStack() as stack:
        options |= started(stack, n_trials, machine, in_network(timeout), session)
        stack.enter_context(few_collections())
        ways, notes = lowerings(graphs, *wanted, log, machine.fingerprint, together)
        begin = plain_ahead(stack, timeout, machine, options)
        parts = [way.partition(g, bound, begin) for way, g in zip(ways, graphs, strict=True)]
        shared = shared_tasks([network_tasks(p, machine, bound) for p in parts])
        if n_trials is None and timeout is None:
            n_trials = (TRIALS if machine.is_foreign else 64) * len(shared.tasks)
        run = stack.enter_context(_session(n_trials, timeout, machine, **options))
        for line in notes:
            run.store.note(line)
        begun = parts if together else begun_merged(run, parts, ways, machine)
        if begun != parts:
            parts, shared = begun, shared_again(begun, shared, machine)
        run.placed = placed(parts, shared)
        budget = run.budget
        cuts = cuts_of(run, () if together else parts, ways, len(shared.tasks), machine)
        if cuts and run.searches:
            run.budget = budget.part(1 - cuts.share)
        # sketch, lower, sample, evolve, features, score, build, run, record, schedule tasks
        results = tune_tasks(
            run,
            shared.tasks,
            SCHEDULERS[scheduler],
            OverNetworks(shared.weights, objective) if objective else None,
            early_stop_trials,
            on_round,
            race_follows=not isinstance(run.options.runner, SideBySide),  # races are run here
            go_on=lambda found: None if cuts.are_hopeful(run, parts, found) else budget,
        )
        peak = run.peak(machine)
        apart = parts, shared, results
        cut = recut(run, *apart, cuts, budget)
        parts, shared, results = cut.parts, cut.shared, cut.results
        pool = ConstantPool() if isinstance(network, SizedNetwork) else None
        modules = [
            _module(run, p, shared, m, results, peak, pool) for m, p in enumerate(parts)
        ]  # compile
        for m, own in enumerate(cut.cuts):
            if own and run.searches:
                old = _module(run, apart[0][m], apart[1], m, apart[2], peak, pool)
                parts[m], modules[m] = _cut_in_place(run, cut, m, apart[0][m], old, modules[m])
        for made, p, g, way in zip(modules, parts, graphs, ways, strict=True):
            made.report = _with_precision(made, p, g, way, error_inputs)
        if not isinstance(network, SizedNetwork):
            modules = [g.bound(m) for g, m in zip(graphs, modules, strict=True)]
            return modules[0] if isinstance(network, Graph) else modules
        assert pool is not None
        pool.forget_sources()
        found = _all_results(shared, modules)
        new = None
        if on_new_shape == "compile":
            known = [Known(w.similarity, r) for w, r in zip(shared.tasks, found, strict=True)]
            kept = {
                k: v for k, v in session.items() if k in ("policy", "params", "space", "pretrained")
            }
            again = {"seed": seed, "log": log, "progress": False, **kept}
            new = NewSizes(network, known, machine, bound, ways[0], pool, again).compile
        sized = SizedScheduledModule(modules, network.labels, new)
        whole, first = (
            _report(run, found, [w.weight for w in shared.tasks], peak),
            modules[0].report,
        )
        sized.report = replace(whole, arithmetic=first.arithmetic, compared=first.compared)
        return sized


@dataclass(frozen=True)
class NewSizes:
    """Makes modules for sizes that were not tuned, of the programs that are `known`."""

    network: SizedNetwork
    known: Sequence[Known]
    target: Target
    form_rtol: float
    lowering: Lowering
    pool: ConstantPool
    session: Mapping[str, Any]

    def compile(self, shapes: Mapping[str, tuple[int, ...]]) -> CompiledModule:
        """The network for inputs of these shapes; ModelError for those that it cannot have."""
        parts = self.lowering.partition(self.network.at(shapes), self.form_rtol)
        weighted = network_tasks(parts, self.target, self.form_rtol)
        with _session(0, None, self.target, **self.session) as run:
            results = adapted_results(run, weighted, self.known)
        forms = [form_of(t, r.task) for t, r in zip(tasks(parts), results, strict=True)]
        made = CompiledModule(parts, compile_tasks(parts, results, forms), forms, self.pool)
        self.pool.forget_sources()
        return made


def _check_new_shape(on_new_shape: str, network: Any) -> None:
    if on_new_shape not in ("refuse", "compile"):
        raise UsageError(f"on_new_shape is {on_new_shape!r}: choose 'refuse' or 'compile'")
    if on_new_shape == "compile" and not isinstance(network, SizedNetwork):
        raise UsageError(
            "on_new_shape='compile' needs a network of sizes: load it with a list, such as "
            "dims={'N': [1]}"
        )


def _all_results(shared: SharedTasks, modules: Sequence[ScheduledModule]) -> list[TuneResult]:
    """The result of each shared task, from the first network that has it."""
    found: dict[int, TuneResult] = {}
    for own, module in zip(shared.places, modules, strict=True):
        for k, result in zip(own, module.report.results, strict=True):
            found.setdefault(k, result)
    return [found[k] for k in range(len(shared.tasks))]


def _report(
    run: Session, results: Sequence[TuneResult], weights: Sequence[float], peak: Peak | None
) -> NetworkReport:
    clock = run.budget.clock.seconds
    known = tuple(results), tuple(weights), clock, run.budget.elapsed_s
    return NetworkReport(*known, peak, run.interrupted)


def _with_precision(
    module: ScheduledModule,
    parts: Partition,
    graph: Graph,
    way: Lowering,
    inputs: Sequence[Any] | None,
) -> NetworkReport:
    """The module's report with what its kernels compute in, and how its error is found."""
    results = module.report.results
    dags = [r.task.dag for r in results]
    found = arithmetic(parts, dags, way.precision, way.max_error)
    foreign = any(r.task.target.is_foreign for r in results)
    here = way.precision != "float32" and not foreign
    return replace(
        module.report,
        arithmetic=found,
        compared=(lambda: accuracy(module, graph, inputs)) if here else None,
    )


@contextmanager
def _session(
    n_trials: int | None, timeout: float | None, target: Target, **options: Any
) -> Iterator[Session]:
    """A session whose own runner measures as in a network: weights come from memory.

    For a foreign target it estimates.
    """
    with ExitStack() as stack:
        options["runner"] = options.get("runner") or estimating(target)
        if options.get("runner") is None:
            options["runner"] = LocalRunner(policy=in_network(timeout), at_once=n_trials != 0)
            stack.callback(options["runner"].close)
        yield stack.enter_context(Session(n_trials, timeout, **options))


def _module(
    run: Session,
    parts: Partition,
    shared: SharedTasks,
    network: int,
    results: Sequence[TuneResult],
    peak: Peak | None,
    pool: ConstantPool | None,
) -> ScheduledModule:
    """The compiled network of that number, from the results of all tasks."""
    own = shared.places[network]
    weighted = [shared.tasks[k] for k in own]
    tuned = raced_in_place(run, parts, weighted, [results[k] for k in own])
    return _compiled(run, parts, tuned, peak, pool)


def _compiled(
    run: Session,
    parts: Partition,
    tuned: Sequence[TuneResult],
    peak: Peak | None,
    pool: ConstantPool | None,
) -> ScheduledModule:
    """A network from the results of its tasks."""
    known = tasks(parts)
    forms = [form_of(t, r.task) for t, r in zip(known, tuned, strict=True)]
    images = compile_tasks(parts, tuned, forms, run.compile_all)
    module = ScheduledModule(parts, images, forms, pool)
    module.report = _report(run, tuned, [float(t.weight) for t in known], peak)
    keys = {r.task.workload_key for r in tuned}
    here = tuned[0].task.target.fingerprint if tuned else ""
    module.logged = tuple(
        r for r in run.store.of_all_targets if r.task in keys and r.target != here
    )
    return module


def _cut_in_place(
    run: Session,
    cut: Recut,
    network: int,
    apart: Partition,
    old: ScheduledModule,
    first: ScheduledModule,
) -> tuple[Partition, ScheduledModule]:
    """The network with those of the merged kernels that are fastest in their place, as logged.

    Where there is no time to measure that, or Ctrl-C ends it, with those that are faster alone. The
    `old` module is that of the kernels `apart`, the `first` one that of the network's first cut.
    """
    cuts, peak = cut.cuts[network], first.report.peak
    raced = {**cut.by_key}
    for module in (old, first):  # whose last contenders have raced
        found = module.report.results
        raced |= zip((t.dag.workload_key for t in tasks(module.partition)), found, strict=True)

    def compiled(merges: Sequence[Merge]) -> tuple[Partition, ScheduledModule]:
        parts = with_merges(apart, merges) if merges else apart
        results = [raced[t.dag.workload_key] for t in tasks(parts)]
        return parts, _compiled(run, parts, results, peak, None)

    made, kept = [(cuts[0], first)], None
    try:
        if not run.interrupted:
            for own in cuts[1:]:
                if run.budget.left_s() > 2 * link_s(len(first.report.results)):
                    made.append((own, compiled(own)[1]))
            with run.budget.clock.phase("measuring"):
                kept = kept_in_place(apart, old, made, run.budget.left_s)
    except KeyboardInterrupt:
        run.interrupted = True
    parts, module = compiled(cut.surely[network] if kept is None else kept)
    if kept is not None and (latency_s := module.report.latency_s) is not None:
        note_cut(run, apart, kept, module.report.results[0].task.target, latency_s)
    return parts, module


def _graphs(network: Graph | SizedNetwork | Sequence[Graph]) -> list[Graph]:
    if isinstance(network, SizedNetwork):
        return list(network.graphs)
    found: list[Any] = list(network) if isinstance(network, list | tuple) else [network]
    for thing in found:
        if not isinstance(thing, Graph):
            raise UsageError(
                f"{type(thing).__name__} is no network: give what load_onnx or network returns, or "
                "a list of them"
            )
    return found


def raced_in_place(
    run: Session, parts: Partition, weighted: Sequence[WeightedTask], results: list[TuneResult]
) -> list[TuneResult]:
    """The results with whichever of the last contenders runs fastest inside the network."""
    if run.interrupted or not any(r.rivals for r in results):
        return results
    known, distinct = tasks(parts), kernels(parts)

    racing = [[r, *(r.with_rival(n) for n in range(len(r.rivals)))] for r in results]
    forms = [[form_of(known[k], r.task) for r in own] for k, own in enumerate(racing)]
    # The kernels of each contender, in order of tasks and contenders.
    wanted = [
        [Wanted(r, kernel.widths(parts, form)) for kernel in distinct if kernel.task == k]
        for k, own in enumerate(racing)
        for r, form in zip(own, forms[k], strict=True)
    ]
    try:
        images = iter(compile_wanted([w for own in wanted for w in own], run.compile_all))
        every = iter([tuple(islice(images, len(own))) for own in wanted])
        contenders = [[Contender(next(every), form) for form in own] for own in forms]
        with run.budget.clock.phase("measuring"):
            run.budget.closing_s = link_s(len(weighted))
            picks = fastest_in_place(parts, contenders, run.budget.search_left_s)
    except KeyboardInterrupt:
        run.interrupted = True
        return results
    found = []
    for result, pick in zip(results, picks, strict=True):
        found.append(result.with_rival(pick - 1) if pick else result)
        if result.rivals and (best := found[-1].best) is not None:
            run.store.append_winner(best.record, best.latency_s)
    return found


def form_of(known: DistinctSubgraph, task: SearchTask) -> int:
    """Which of the forms of a network's computation that is."""
    return [dag.workload_key for dag in (known.dag, *known.others)].index(task.workload_key)


@overload
def compile_plain(
    network: Graph,
    target: Target | str | None = None,
    exact: bool = False,
    precision: str = "float32",
    max_error: float | None = None,
) -> CompiledModule: ...


@overload
def compile_plain(
    network: Graph,
    target: Target | str | None = None,
    exact: bool = False,
    precision: str = "float32",
    max_error: float | None = None,
    *,
    left_s: Callable[[], float],
) -> CompiledModule | None: ...


def compile_plain(
    network: Graph,
    target: Target | str | None = None,
    exact: bool = False,
    precision: str = "float32",
    max_error: float | None = None,
    *,
    left_s: Callable[[], float] = lambda: float("inf"),
) -> CompiledModule | None:
    """The network with the plain schedule everywhere: valid, unsearched, the thing to beat.

    `exact`, `precision`, `max_error` as in `auto_schedule`. None where the seconds left end before
    all kernels are built.
    """
    machine = target_of(target)
    (way,), _ = lowerings([network], exact, precision, max_error)
    parts = way.partition(network)
    images, own = [], network_tasks(parts, machine)
    for kernel in kernels(parts):
        if left_s() <= 0:
            return None
        images.append(plain_image(own[kernel.task].task, kernel.widths(parts)))
    plain: CompiledModule = network.bound(CompiledModule(parts, images))
    return plain
