"""Tuning the tasks of networks together, under one task scheduler (paper section 6).

In: weighted `SearchTask`s, each maybe in several forms, and a `Session`. Out: a `TuneResult` a
task, of its fastest form. The scheduler sees computations; which form of one measures next is
decided by `search.forms`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ansorlite.measure.limits import least_seconds
from ansorlite.measure.peak import Peak
from ansorlite.records import Record
from ansorlite.search.forms import Forms
from ansorlite.search.objectives import Objective
from ansorlite.search.progress import Progress, Snapshot
from ansorlite.search.result import Rival, TuneResult
from ansorlite.search.task_scheduler import GradientScheduler, TaskScheduler
from ansorlite.search.transfer import start_from_others
from ansorlite.search.tune import MANY, Session, round_size, snapshot, task_result
from ansorlite.search.tuner import TaskTuner
from ansorlite.task import SearchTask

SETTLE = 3  # contenders of a task raced at the end
SETTLE_S, SETTLE_TRIAL_S = 0.15, 0.01  # seconds of the race, at most and for every trial
# Candidates of a task's first round where there are `MANY`. Half of it are similar tasks' best;
# the next four gained less (1.5 %) than rounds where most is at stake
FIRST_ROUND = 4
RIVALS = 2  # programs of a task that go with the best one into the race inside the network
CLOSE = 1.15  # another form is settled too if its best is within this factor


@dataclass(frozen=True)
class WeightedTask:
    """A task of a network and how often it occurs in it; `others` are more forms of it."""

    task: SearchTask
    weight: float
    similarity: str = ""
    others: tuple[SearchTask, ...] = ()

    @property
    def forms(self) -> tuple[SearchTask, ...]:
        return (self.task, *self.others)


def tune_tasks(
    session: Session,
    weighted: Sequence[WeightedTask],
    scheduler: Callable[..., TaskScheduler] = GradientScheduler,
    objective: Objective | None = None,
    early_stop_trials: int | None = None,
    on_round: Callable[[Sequence[Forms]], None] | None = None,
    race_follows: bool = False,
) -> list[TuneResult]:
    """Tune the tasks of networks together under the session's budget (paper section 6).

    What is settled on is noted in the log at the end. Where `race_follows`, results with rivals are
    not: whoever races them does so, and a run that is cut off before that race has both again.
    """
    searched = session.n_trials != 0
    # Templates are written for the plain form.
    every = searched and not session.searcher.template
    found = [
        Forms([session.tuner(f) for f in w.forms if f is w.task or every or session.answered(f)])
        for w in weighted
    ]
    session.trials_before = sum(f.trials for f in found)
    peak: Peak | None = None
    winners: dict[int, tuple[TaskTuner, tuple[Record, float] | None]] = {}
    try:
        if weighted:
            peak = session.peak(weighted[0].task.target)
        plan = scheduler(
            weights=[w.weight for w in weighted],
            flops=[min(f.dag.run_flop for f in w.forms) for w in weighted],
            similarity_keys=[w.similarity or w.task.workload_key for w in weighted],
            objective=objective,
            rng=np.random.default_rng(session.seed),
            early_stop_trials=early_stop_trials,
            bounds_s=None if peak is None else [_least_s(w, peak) for w in weighted],
        )
        _replay(plan, found, session.history)
        with session.show(peak) as show:
            if searched:
                _rounds(session, weighted, found, plan, show, on_round)
                _settle_all(session, weighted, found, winners)
            for f in found:  # looked at while problems can be told
                _ = session.chosen(f.tuners) or f.fastest.best
    except KeyboardInterrupt:
        session.interrupted = True
    results = []
    for k, f in enumerate(found):
        tuner, winner = winners.get(k) or session.chosen(f.tuners) or (f.fastest, None)
        results.append(task_result(session, tuner, winner, peak, f.trials))
    try:
        for k, (_, winner) in () if session.interrupted else sorted(winners.items()):
            results[k] = replace(results[k], rivals=_rivals(found[k], results[k]))
            if winner is not None and not (race_follows and results[k].rivals):
                session.choose(winner)
    except KeyboardInterrupt:
        session.interrupted = True
    return results


def _rivals(found: Forms, result: TuneResult) -> tuple[Rival, ...]:
    """The fastest programs of all forms but the result, as far as they are close to it."""
    assert result.best is not None
    winner = result.task.workload_key, result.best.record.trial
    near = [
        (record.latency_s or 0.0, n, record)
        for n, tuner in enumerate(found.tuners)
        for record in tuner.contenders(RIVALS + 1)
        if (tuner.task.workload_key, record.trial) != winner
    ]
    most_s = CLOSE * (found.best_latency_s or 0.0)
    chosen = sorted((x for x in near if x[0] < most_s), key=lambda x: x[:2])[:RIVALS]
    return tuple(
        Rival(t.task, record, t.image(record), t.space)
        for _, t, record in ((s, found.tuners[n], r) for s, n, r in chosen)
    )


def _settle_all(
    session: Session,
    weighted: Sequence[WeightedTask],
    found: Sequence[Forms],
    winners: dict[int, tuple[TaskTuner, tuple[Record, float] | None]],
) -> None:
    """Race the contenders of every task while there is time, where most is at stake first.

    Where nothing was measured since the log was begun, those that had no race yet have it.
    """
    measured = sum(f.trials for f in found) > session.trials_before
    stake = [-w.weight * (f.best_latency_s or 0.0) for w, f in zip(weighted, found, strict=True)]
    for k in np.argsort(stake):
        if not measured and session.chosen(found[k].tuners) is not None:
            continue
        best = found[k].best_latency_s
        for tuner in found[k].tuners:
            close = best and (tuner.best_latency_s or float("inf")) < CLOSE * best
            if session.left_s() <= 1.0 or tuner.trials <= 1 or not close:
                continue
            winner = tuner.settle(SETTLE, min(SETTLE_S, SETTLE_TRIAL_S * tuner.trials))
            known = winners.get(int(k), (None, None))[1]
            if winner is not None and (known is None or winner[1] < known[1]):
                winners[int(k)] = tuner, winner


def _least_s(weighted: WeightedTask, peak: Peak) -> float:
    """What no program of any form can beat."""
    return min(least_seconds(form, peak) for form in weighted.forms)


def _replay(plan: TaskScheduler, found: Sequence[Forms], history: Sequence[Record]) -> None:
    """Tell the scheduler the complete rounds of a log, in the order in which they ended."""
    place = {id(r): n for n, r in enumerate(history)}
    ended = [
        (max(place[id(r)] for r in records), k, records)
        for k, f in enumerate(found)
        for t in f.tuners
        for records in t.rounds_told
    ]
    best = {k: _plain_latency_s(f) for k, f in enumerate(found)}
    for _, k, records in sorted(ended, key=lambda e: e[0]):
        best[k] = min(best[k], _fastest(records))
        plan.tell(k, best[k], len(records))


def _plain_latency_s(found: Forms) -> float:
    return _fastest([r for r in found.tuners[0].records if not r.round])


def _plain_s(found: Forms) -> float:
    """Seconds of the plain schedule; a guess, and a high one, for tasks too heavy to run it."""
    known = _plain_latency_s(found)
    return known if known < float("inf") else found.task.flop * 1e-9


def _fastest(records: Sequence[Record]) -> float:
    return min((r.latency_s for r in records if r.ok and r.latency_s), default=float("inf"))


def _rounds(
    session: Session,
    weighted: Sequence[WeightedTask],
    found: Sequence[Forms],
    plan: TaskScheduler,
    show: Progress,
    on_round: Callable[[Sequence[Forms]], None] | None,
) -> None:
    everyone = [t for f in found for t in f.tuners]
    size = round_size(session, len(found), len(everyone))
    # Every task first gets its valid answer, the plain schedule, so that any end has a network.
    for f in found if session.searcher.plain else ():
        if f.tuners[0].rounds == 0:
            f.tuners[0].round(1)
    plan.start([w.weight * _plain_s(f) for w, f in zip(weighted, found, strict=True)])
    while session.left_s() > 0:
        k = _next_task(weighted, found, plan)
        if k is None:
            break
        tuner = found[k].next()
        done = sum(t.trials for t in everyone)
        # Many tasks: a small first round of each brings the whole down soonest.
        first = tuner.rounds <= 1 and len(found) >= MANY
        wanted = size
        if first:
            wanted = min(size, FIRST_ROUND, _fair(session, done - tuner.pending, everyone))
        n = session.round_of(wanted, done, tuner.pending)
        if n == 0:
            break
        session.train(everyone)
        if session.searcher.neighbours:
            start_from_others(tuner, everyone, session.history, n)
        used = tuner.round(n)
        found[k].told(tuner, used)
        if used or found[k].exhausted:  # no trials: nothing is left of any form
            plan.tell(k, found[k].best_latency_s, used)
        show.update(_network_snapshot(session, weighted, found, tuner))
        if on_round is not None:
            on_round(found)


def _next_task(
    weighted: Sequence[WeightedTask], found: Sequence[Forms], plan: TaskScheduler
) -> int | None:
    """The plan's task; but before any has a second round, all forms have their first.

    One may be twice as fast as another, which nothing that was measured of the other tells. The
    order depends on what the plan was told alone, so a resumed run has the same.
    """
    live = [k for k in range(len(found)) if not plan.stop_reason(k)]
    untried = [k for k in live if found[k].untried]
    if untried and all(plan.rounds[k] for k in live):
        at_stake = plan.latency_s * [w.weight for w in weighted]
        return max(untried, key=lambda k: float(at_stake[k]))
    return plan.next_task()


def _fair(session: Session, done: int, everyone: Sequence[TaskTuner]) -> int:
    """Candidates of a first round that leave as many for the first rounds of all others."""
    left = session.round_of(done + FIRST_ROUND * len(everyone), done, 0)
    return max(1, left // max(1, sum(t.rounds <= 1 for t in everyone)))


def _network_snapshot(
    session: Session, weighted: Sequence[WeightedTask], found: Sequence[Forms], current: TaskTuner
) -> Snapshot:
    times = [f.best_latency_s for f in found]
    total = None
    if all(t is not None for t in times):
        total = sum(w.weight * (t or 0.0) for w, t in zip(weighted, times, strict=True))
    now = snapshot(session, [t for f in found for t in f.tuners], current)
    flop = sum(w.weight * w.task.flop for w in weighted)
    return Snapshot(
        trials=now.trials,
        elapsed_s=now.elapsed_s,
        latency_s=total,
        flop=flop,
        task=now.task,
        round=now.round,
        failures=now.failures,
        trials_before=now.trials_before,
    )
