"""Merged kernels of networks: which chains are searched, and the cut that is fastest as measured.

In: the partitions of networks, with what their tasks were found to take. Out: partitions in which
one kernel stands where it is faster than the several that it computes (`graph.cuts`), with their
tasks and results. Attention of which programs are shipped is one kernel from the start
(`begun_merged`). Other merged kernels are searched once all tasks are, with a part of the budget.
Which of them stay is measured in the network (`kept_in_place`); a CHOSEN line of the log, whose
task is the network's digest, keeps it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from ansorlite.graph.choice import Lowering
from ansorlite.graph.contest import timed_in_turn
from ansorlite.graph.cuts import (
    NEAR,
    Merge,
    chosen,
    is_often_merged,
    is_softmax,
    kernel_seconds,
    merges,
    with_merges,
)
from ansorlite.graph.ir import Node
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import Partition
from ansorlite.records import Record
from ansorlite.records import choice as chosen_line
from ansorlite.search.budget import Budget
from ansorlite.search.forms import Forms
from ansorlite.search.result import TuneResult
from ansorlite.search.session import Session
from ansorlite.search.shipped import shipped
from ansorlite.search.task_scheduler import GradientScheduler
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.shared_tasks import SharedTasks, network_tasks, shared_tasks
from ansorlite.space.sketch import fuses_anchors
from ansorlite.target import Target
from ansorlite.task import SearchTask

# Merged kernels are searched with a share of a budget of at least so many trials or seconds a task.
SHARE, TRIALS, SECONDS = 0.25, 32, 4.0
# Those that programs of similar chains are shipped of need less.
KNOWN_SHARE, KNOWN_TRIALS, KNOWN_SECONDS = 0.125, 8, 1.0
# Where there are half as many of these as tasks, or more, all gain most so.
MANY_SHARE, MANY_TRIALS, MANY_SECONDS = 0.4, 48, 1.5
# (trials, times the separate kernels' time) by their number: merged ones that take longer after so
# many wait until no other gains. Two took 1.3 to 2.7 times as long at first, 1.2 or less after 48.
BEHIND = {2: (48, 1.2), 3: (8, 1.5)}
# Share of a network's time that fewer bytes may cost: what one run of it hardly tells from another.
LOST = 0.015
MOST_CUTS = 3  # of a network, of which all merges are measured in their place
WORTHS = 48  # values of a saved byte that are tried, each three quarters of the last one
PREFIX, SKETCH, ENDS, LENGTHS = "cut:", "merged", "ends", "lengths"  # of the CHOSEN line


@dataclass(frozen=True)
class Cuts:
    """The merges of each network that are worth a search, and the share of the budget for them.

    Those that are `predicted` are taken unmeasured: nothing is searched, and no log tells.
    """

    merges: Sequence[Sequence[Merge]]
    share: float
    target: Target
    predicted: bool = False

    def __bool__(self) -> bool:
        return any(self.merges)

    def are_hopeful(self, run: Session, parts: Sequence[Partition], found: Sequence[Forms]) -> bool:
        """Is any merge still worth a search, as far as the tasks were searched?"""
        if not self:
            return False
        known = {f.task.workload_key: t for f in found if (t := f.best_latency_s) is not None}
        rows = zip(self.merges, (kernel_seconds(p, known) for p in parts), strict=True)
        return any(True for own, times in rows for _ in self.hopeful(run, own, times))

    def hopeful(
        self, run: Session, own: Sequence[Merge], seconds: Mapping[str, float]
    ) -> Iterator[Merge]:
        """The merges of a network that promise to be faster; `seconds` by name of a subgraph.

        Those that save much traffic, and those of which similar ones were faster where programs
        were made that are shipped.
        """
        peak = run.peak(self.target)
        speed = None if peak is None else peak.copy_bytes_per_s
        for m in own:
            apart_s = m.apart_s(seconds)
            expected_s = shipped(self.target).latency_s(_task(m, self.target))
            if m.is_hopeful(seconds, self.target, speed) or expected_s < apart_s:
                yield m


def _task(m: Merge, target: Target) -> SearchTask:
    return SearchTask(m.subgraph.dag, target, m.subgraph.name)


def cuts_of(
    run: Session, parts: Sequence[Partition], ways: Sequence[Lowering], n_tasks: int, target: Target
) -> Cuts:
    """The merges that the budget of a run of so many tasks is large enough for.

    A kernel that has hardly been searched says little about a cut, unless similar ones are known.
    Without a search the log tells; without a log those are taken that begin with programs of
    similar chains: attention was never slower so, 1.03 to 1.3 times as fast.
    """
    none = Cuts([()] * len(parts), 0.0, target)
    if not _may_merge(run, target):
        return none
    share, untuned = SHARE, None if run.store.history else run.untuned
    if run.searches:
        share = SHARE if _is_enough(run, n_tasks, TRIALS, SECONDS) else KNOWN_SHARE
        if not _is_enough(run, n_tasks, KNOWN_TRIALS, KNOWN_SECONDS):
            return none
    elif untuned is not None:
        share = 0.0
    elif not any(fuses_anchors(r.sketch) for r in run.store.history):
        return none
    through = None if share >= SHARE else is_softmax if untuned is not None else is_often_merged
    found = _merges(parts, ways, through)
    similar = shipped(target)
    known = [tuple(m for m in own if similar.has_kin(_task(m, target))) for own in found]
    if share < SHARE:
        found = known
    n_known = len({m.subgraph.dag.workload_key for own in known for m in own})
    many = run.searches and 2 * n_known >= n_tasks
    if many and _is_enough(run, n_tasks, MANY_TRIALS, MANY_SECONDS):
        share = MANY_SHARE
    if untuned is not None:
        found = [tuple(m for m in own if untuned.has_kin(_task(m, target))) for own in found]
    return Cuts(found, share, target, predicted=untuned is not None)


def begun_merged(
    run: Session, parts: Sequence[Partition], ways: Sequence[Lowering], target: Target
) -> list[Partition]:
    """The partitions with attention as one kernel, where programs of its kin are shipped.

    That was never slower than kernels of its own for products and softmax; 1.03 to 1.3 times as
    fast. These are not searched then. Where the log has programs of them, it says which is faster.
    """
    if not _may_merge(run, target):
        return list(parts)
    similar, known = shipped(target), run.store.has_answer
    out = []
    for p, own in zip(parts, _merges(parts, ways, is_softmax), strict=True):
        apart = {s.name: SearchTask(s.dag, target, s.name) for s in p.subgraphs}
        taken = []
        for m in own:
            task = _task(m, target)
            hopeful = run.searches and similar.has_kin(task)
            if (hopeful or known(task)) and not all(known(apart[n]) for n in m.replaces):
                taken.append(m)
        ones = dict.fromkeys([n for m in taken for n in (*m.replaces, m.subgraph.name)], 1.0)
        cut = chosen(p, taken, ones)  # each kernel fewer counts as one gained
        run.merged.update(m.subgraph.dag.workload_key for m in cut)
        out.append(with_merges(p, cut) if cut else p)
    return out


def _may_merge(run: Session, target: Target) -> bool:
    """Whether kernels may be merged: what is not timed here, and templates, have none."""
    return not (run.estimated or target.is_foreign or run.searcher.template)


def _merges(
    parts: Sequence[Partition],
    ways: Sequence[Lowering],
    through: Callable[[Node], bool] | None,
) -> list[tuple[Merge, ...]]:
    """The merges of each network; none for elements other than float32, which are packed apart."""
    return [
        merges(p, way.exact, through) if way.precision == "float32" else ()
        for p, way in zip(parts, ways, strict=True)
    ]


def shared_again(parts: Sequence[Partition], shared: SharedTasks, target: Target) -> SharedTasks:
    """The tasks of networks that were cut again, with the forms that they had before."""
    again = shared_tasks([network_tasks(p, target, 0.0) for p in parts])
    forms = {w.task.workload_key: w.other_forms for w in shared.tasks}
    tasks = [replace(w, other_forms=forms.get(w.task.workload_key, ())) for w in again.tasks]
    return again._replace(tasks=tasks)


class HopefulFirst(GradientScheduler):
    """Tasks that are slower than a limit after some trials wait until no other has anything left.

    Nothing is gained where a merged kernel that takes far longer than the separate ones becomes a
    little faster.
    """

    def __init__(self, *args: Any, limits: Sequence[tuple[int, float]], **options: Any) -> None:
        """`limits[i]`: trials and seconds of task i; the rest is `GradientScheduler`'s."""
        super().__init__(*args, **options)
        self._limits = limits

    def _choose(self, live: list[int]) -> int | None:
        latency_s, trials = self.latency_s, self.trials
        hopeful = [
            i for i in live if trials[i] < self._limits[i][0] or latency_s[i] <= self._limits[i][1]
        ]
        return super()._choose(hopeful or live)


def _is_enough(run: Session, n_tasks: int, trials: int, seconds: float) -> bool:
    n_trials, timeout = run.options.n_trials, run.options.timeout
    enough = n_trials is None or n_trials >= trials * n_tasks
    return enough and (timeout is None or timeout >= seconds * n_tasks)


class Recut(NamedTuple):
    """Networks cut again: partitions, tasks and their results, and what was merged in each.

    `cuts[m]` are cuts of network m that may be faster than it is, first that of its partition, each
    of other merges; some of these are slower alone than what they replace, not those that are
    `surely` faster. `by_key` has the results of all tasks by workload key.
    """

    parts: list[Partition]
    shared: SharedTasks
    results: list[TuneResult]
    cuts: Sequence[Sequence[Sequence[Merge]]]
    surely: Sequence[Sequence[Merge]]
    by_key: Mapping[str, TuneResult]


def recut(
    run: Session,
    parts: list[Partition],
    shared: SharedTasks,
    results: list[TuneResult],
    cuts: Cuts,
    budget: Budget,
) -> Recut:
    """The cut of the networks that is fastest as measured, or may be so in its place.

    Chains of kernels that one kernel may compute are searched with the rest of the budget, those
    first that promise most; of a log alone those that it has records of, and those are taken that
    it says were fastest in their place. The race of all kernels in their places keeps its time.
    Those that are predicted are all taken, the longest ones first.
    """
    keys = [w.task.workload_key for w in shared.tasks]
    by_key = dict(zip(keys, results, strict=True))
    none = [()] * len(parts)
    as_they_are = Recut(parts, shared, results, none, none, by_key)
    searched, later_s = run.budget is not budget, run.budget.closing_s
    run.budget = budget
    if run.interrupted or not cuts:
        return as_they_are
    known = {k: r.best.latency_s for k, r in zip(keys, results, strict=True) if r.best is not None}
    seconds = [kernel_seconds(p, known) for p in parts]
    tasks_of: dict[str, WeightedTask] = {}
    limits: dict[str, tuple[int, float]] = {}
    for own, times in zip(cuts.merges, seconds, strict=True):
        wanted: Iterable[Merge] = own
        if not cuts.predicted:
            known_apart = (m for m in own if m.apart_s(times))
            wanted = cuts.hopeful(run, own, times) if searched else known_apart
        for m in wanted:
            task = _task(m, cuts.target)
            if not (searched or cuts.predicted or run.answered(task)):
                continue
            kinds = "+".join(op.combiner or "map" for op in task.dag.computes)
            w = tasks_of.get(task.workload_key, WeightedTask(task, 0.0, kinds))
            tasks_of[task.workload_key] = replace(w, weight=w.weight + m.subgraph.times)
            trials, near = BEHIND[len(m.replaces)]
            limits[task.workload_key] = trials, near * m.apart_s(times)
    if not tasks_of:
        return as_they_are
    run.merged.update(tasks_of)
    if searched and budget.n_trials is not None:
        run.budget = budget.part(1.0)
        run.budget.n_trials = int(cuts.share * budget.n_trials)
    run.later_s = later_s
    hopeful = partial(HopefulFirst, limits=[limits[k] for k in tasks_of])
    merged = tune_tasks(run, list(tasks_of.values()), hopeful)
    run.budget, run.later_s = budget, 0.0
    by_key |= zip(tasks_of, merged, strict=True)
    ways, surely = list[list[Sequence[Merge]]](), list[Sequence[Merge]]()
    for p, own, times in zip(parts, cuts.merges, seconds, strict=True):
        if cuts.predicted:  # each kernel fewer counts as one gained
            times |= dict.fromkeys(
                [name for m in own for name in (*m.replaces, m.subgraph.name)], 1.0
            )
        for m in own:
            best = by_key[k].best if (k := m.subgraph.dag.workload_key) in tasks_of else None
            if best is not None:
                times[m.subgraph.name] = best.latency_s
        told = None if searched else _noted(run, p, own, times, cuts.target)
        found = chosen(p, own, times) if told is None else told
        surely.append(found)
        ways.append(list(_near(p, own, times)) if searched else [found] if found else [])
    first = [own[0] if own else () for own in ways]
    cut = [with_merges(p, own) if own else p for p, own in zip(parts, first, strict=True)]
    again = shared_again(cut, shared, cuts.target)
    results = [by_key[w.task.workload_key] for w in again.tasks]
    return Recut(cut, again, results, ways, surely, by_key)


def _near(
    parts: Partition, found: Sequence[Merge], seconds: Mapping[str, float]
) -> Iterator[Sequence[Merge]]:
    """Cuts that may be faster than the partition in its place, each of merges of its own."""
    left = list(found)
    for _ in range(MOST_CUTS):
        cut = chosen(parts, left, seconds, NEAR)
        if not cut:
            return
        yield cut
        left = [m for m in left if m not in cut]


def kept_in_place(
    parts: Partition,
    apart: CompiledModule,
    cuts: Sequence[tuple[Sequence[Merge], CompiledModule]],
    left_s: Callable[[], float],
) -> Sequence[Merge] | None:
    """The merges that stay, by what they take in their place; None if time is short.

    `apart` is the network without merges, with each of the `cuts` is the network that has them. Of
    all these merges those stay that give the fastest network, or of those that are slower by at
    most `LOST`, the one that moves the fewest bytes.
    """
    times = timed_in_turn([apart, *(module for _, module in cuts)], left_s)
    if times is None:
        return None
    before = {s.name: times[0][:, k] for k, s in enumerate(parts.subgraphs)}
    seconds = {name: float(np.median(t)) for name, t in before.items()}
    lost_s = dict[str, float]()
    for (own, module), turns in zip(cuts, times[1:], strict=True):
        place = {s.name: k for k, s in enumerate(module.partition.subgraphs)}
        for m in own:
            name = m.subgraph.name
            replaced = sum(before[n] for n in m.replaces)
            lost_s[name] = float(np.median(turns[:, place[name]] - replaced))
    found = [m for own, _ in cuts for m in own]
    return _fewest_bytes(parts, found, seconds, lost_s)


def _fewest_bytes(
    parts: Partition,
    found: Sequence[Merge],
    seconds: Mapping[str, float],
    lost_s: Mapping[str, float],
) -> Sequence[Merge]:
    """The cut that saves most of all that are slower than the fastest one by at most `LOST`.

    `seconds` are those of the kernels by name, `lost_s` what a merged one takes more than those
    that it replaces. A saved byte is worth some time; the more, the slower the cut may be.
    """

    def cut_for(worth_s: float) -> tuple[Sequence[Merge], float]:
        times = {**seconds}
        for m in found:
            own = lost_s[m.subgraph.name] - worth_s * m.saved_bytes
            times[m.subgraph.name] = m.apart_s(seconds) + own
        cut = chosen(parts, found, times)
        return cut, sum(lost_s[m.subgraph.name] for m in cut)

    fastest, least_s = cut_for(0.0)
    allowed_s = LOST * (sum(seconds.values()) + least_s)
    worth_s = allowed_s / max(1, min((m.saved_bytes for m in found), default=1))
    for _ in range(WORTHS):
        cut, lost = cut_for(worth_s)
        if lost - least_s <= allowed_s:
            return cut
        worth_s *= 0.75
    return fastest


# ---- in a log -----------------------------------------------------------------------------------


def note_cut(
    run: Session, parts: Partition, kept: Sequence[Merge], target: Target, latency_s: float
) -> None:
    """Have the log tell which merges of a partition stand in the network of that latency."""
    place = {s.name: k for k, s in enumerate(parts.subgraphs)}
    line = Record(
        target=target.fingerprint,
        task=_digest(parts),
        task_name="merged kernels",
        sketch=SKETCH,
        steps=(),
        holes={
            ENDS: [place[m.replaces[-1]] for m in kept],
            LENGTHS: [len(m.replaces) for m in kept],
        },
        status="OK",
    )
    run.store.note(chosen_line(line, latency_s))


def _digest(parts: Partition) -> str:
    """The task of the CHOSEN line of a partition: what its kernels compute, in running order."""
    keys = " ".join(s.dag.workload_key for s in parts.subgraphs)
    return f"{PREFIX}{blake2b(keys.encode()).hexdigest()[:32]}"


def _noted(
    run: Session,
    parts: Partition,
    found: Sequence[Merge],
    seconds: Mapping[str, float],
    target: Target,
) -> list[Merge] | None:
    """The merges that the log says were kept in their place; None where it does not say.

    `seconds` are those of the kernels, by name, that the log has a program of.
    """
    line = run.store.noted(_digest(parts), target.fingerprint)
    if line is None or not {ENDS, LENGTHS} <= {*line.holes}:
        return None
    kept = set(zip(line.holes[ENDS], line.holes[LENGTHS], strict=False))
    place = {s.name: k for k, s in enumerate(parts.subgraphs)}
    known = [m for m in found if m.subgraph.name in seconds]
    told = [m for m in known if (place[m.replaces[-1]], len(m.replaces)) in kept]
    replaced = [name for m in told for name in m.replaces]
    return told if len({*replaced}) == len(replaced) else None  # or the line is damaged
