"""The search loop: the tasks of networks, or one task, under one budget (paper section 6).

In: weighted `SearchTask`s, each maybe in several forms, and a `Session`. Out: a `TuneResult` a
task, of its fastest form. Tuning one task is tuning a network of one; a `Manner` says what differs.
The task scheduler sees computations; `search.forms` decides which form of one measures next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ansorlite.measure.limits import least_seconds, task_peak
from ansorlite.measure.peak import Peak
from ansorlite.measure.runner import SideBySide
from ansorlite.records import Record
from ansorlite.search.budget import MIN_ROUND, SMALL_ROUND_TASKS, Budget, grown
from ansorlite.search.families import (
    FAMILY_ROUND,
    continue_from_kin,
    continue_from_shipped,
    not_far,
    start_from_family,
    start_from_structures,
)
from ansorlite.search.forms import Forms
from ansorlite.search.objectives import Objective
from ansorlite.search.progress import Progress, Snapshot
from ansorlite.search.promise import by_promise, promising
from ansorlite.search.result import TuneResult
from ansorlite.search.session import Session
from ansorlite.search.settle import (
    Race,
    Winner,
    closing_s,
    earlier_winner,
    settle_all,
    settled_results,
)
from ansorlite.search.shipped import shipped
from ansorlite.search.shrink_task import shrunk
from ansorlite.search.task_scheduler import (
    GradientScheduler,
    RoundRobinScheduler,
    TaskScheduler,
    equal_rounds,
)
from ansorlite.search.transfer import start_from_others
from ansorlite.search.tuner import TaskTuner
from ansorlite.search.windows import Windows, next_task
from ansorlite.tables import joint_peak
from ansorlite.task import SearchTask

PRACTICE = 0.5  # share of the budget of a heavy task, for a short version of it
# Seconds a form that waits for its first round, below which known programs come before all search.
SHORT_FIRST_S = 0.5
NARROW_ROUNDS = 3  # of a task against the clock that search among the sketches of its kin alone
FIRST_TRIAL_S = 0.3  # seconds that a program of a first round takes, about
PROMISE_S = 0.7  # seconds a task, from which on the form with the best prediction comes first
SAME_ERRORS = 16  # identical failures in a row that end a task with a diagnosis
ALL_STRUCTURES_S = 2.5  # seconds a form
NEVER = 1 << 62  # rounds


@dataclass(frozen=True)
class WeightedTask:
    """A task of a network and how often it occurs; `other_forms` compute the same otherwise."""

    task: SearchTask
    weight: float
    similarity: str = ""
    other_forms: tuple[SearchTask, ...] = ()

    @property
    def forms(self) -> tuple[SearchTask, ...]:
        """All forms, the plain one first."""
        return (self.task, *self.other_forms)


@dataclass(frozen=True)
class Manner:
    """How tasks are searched: the tasks of networks together, or one task alone.

    `growing` rounds begin small and grow with the trials of the task. With `plain_first` every
    task has its plain schedule measured before the first round of any. With `practice` a heavy
    task is searched in a short version first. With `ends_stuck` a task ends the search when it
    fails with one error again and again.
    """

    race: Race
    growing: bool = False
    plain_first: bool = False
    practice: bool = False
    ends_stuck: bool = False


TOGETHER = Manner(Race(3, 0.15, 0.01, reserve_s=1.0), plain_first=True)
ALONE = Manner(Race(10, 2.5), growing=True, practice=True, ends_stuck=True)
# One task has all rounds, also at the machine's limit and where nothing valid was found so far.
ONE_TASK = partial(equal_rounds, max_failed_rounds=NEVER)


def tune_tasks(
    session: Session,
    weighted: Sequence[WeightedTask],
    scheduler: Callable[..., TaskScheduler] = GradientScheduler,
    objective: Objective | None = None,
    early_stop_trials: int | None = None,
    on_round: Callable[[Sequence[Forms]], None] | None = None,
    race_follows: bool = False,
    manner: Manner = TOGETHER,
    other_tasks: Sequence[SearchTask] = (),
    go_on: Callable[[Sequence[Forms]], Budget | None] = lambda found: None,
) -> list[TuneResult]:
    """Tune tasks together under the session's budget; a result a task, in order.

    Winners are noted in the log at the end. Where `race_follows`, results with rivals are not:
    whoever races them does so, and a run that is cut off before that race has both again. The log's
    records of `other_tasks` train the model, too. Once the budget is spent, `go_on` may give a
    larger one, with which the search goes on. Ctrl-C ends the search with the best so far.
    """
    found = [_forms(session, w, len(weighted)) for w in weighted]
    practice = _practice(session, weighted) if manner.practice else None
    counted = [t for f in (*found, *([practice] if practice else [])) for t in f.tuners]
    session.budget.trials_before = sum(t.trials for t in counted)
    peak: Peak | None = None
    winners: dict[int, Winner] = {}
    try:
        every = [form for w in weighted for form in w.forms]
        peak = session.peak(every[0].target, every) if every else None
        known = _known(session, weighted, other_tasks)
        rounds = Rounds(
            session, session.budget, manner, counted, known, on_round, race_follows=race_follows
        )
        with session.show(None if peak is None else _joint_peak(weighted, peak)) as show:
            if session.searches:
                plan = _plan(session, weighted, scheduler, objective, early_stop_trials, peak)
                _replay(plan, found, session.store.history)
                if practice:
                    rounds = _practised(rounds, practice, found[0].tuners[0], show)
                rounds.run(weighted, found, plan, show)
                if session.budget is not (more := go_on(found) or session.budget):
                    session.budget = more
                    replace(rounds, budget=more).run(weighted, found, plan, show)
                peak = session.peak(every[0].target) if every else None  # as it is known by now
                settle_all(session, found, manner.race, winners, race_follows)
            for f in found:  # looked at while problems can be told
                _ = earlier_winner(session, f) or f.fastest.best
    except KeyboardInterrupt:
        session.interrupted = True
    results = settled_results(session, found, winners, peak, race_follows)
    if session.budget.search_left_s() <= 0:
        session.run.measuring.forget()
    return [_with_practice(results[0], found[0].tuners[0], practice)] if practice else results


def _forms(session: Session, weighted: WeightedTask, n_tasks: int = 1) -> Forms:
    """Tuners of the promising forms of a task, and of those that the log answers for.

    With little time for each task the plain form is first: it takes the least time to search. But
    what earlier runs measured, or what layers of their kin took, tells more.
    """
    # Templates are written for the plain form.
    every = session.searches and not session.searcher.template
    forms = weighted.forms
    hopeful = promising(forms) if every else _expected_best(session, forms)
    own = [f for f in forms if f in hopeful or session.answered(f)]
    limit_s = session.budget.timeout
    in_time = limit_s is None or limit_s >= PROMISE_S * n_tasks
    order = sorted(range(len(own)), key=lambda k: own[k] not in hopeful)
    if every and in_time:
        order = by_promise(own)
    expected: Sequence[float] = ()
    if every:
        target = weighted.task.target
        times = [session.known(target).latency_s(f) or float("inf") for f in own]
        if limit_s is not None and min(times) == float("inf"):
            times = [shipped(target).latency_s(f) for f in own]
        order = sorted(order, key=lambda k: times[k])
        expected = times if limit_s is not None else ()
    return Forms([session.tuner(f) for f in own], order, weighted.weight, expected)


def _expected_best(session: Session, forms: Sequence[SearchTask]) -> Sequence[SearchTask]:
    """Of forms of which nothing will be measured: the one that similar layers were fastest in."""
    if session.untuned is None or len(forms) < 2:
        return forms[:1]
    layers = shipped(forms[0].target)
    times = [layers.latency_s(f) for f in forms]
    best = int(np.argmin(times))
    return forms[best : best + 1]


def _plan(
    session: Session,
    weighted: Sequence[WeightedTask],
    scheduler: Callable[..., TaskScheduler],
    objective: Objective | None,
    early_stop_trials: int | None,
    peak: Peak | None,
) -> TaskScheduler:
    return scheduler(
        weights=[w.weight for w in weighted],
        flops=[min(f.dag.run_flop for f in w.forms) for w in weighted],
        similarity_keys=[w.similarity or w.task.workload_key for w in weighted],
        objective=objective,
        rng=np.random.default_rng(session.options.seed),
        early_stop_trials=early_stop_trials,
        bounds_s=None if peak is None else [_least_s(w, peak) for w in weighted],
    )


def _joint_peak(weighted: Sequence[WeightedTask], peak: Peak) -> float | None:
    """Operations per second at which all tasks, one after the other, are at their peaks."""
    return joint_peak([(w.weight * w.task.flop, task_peak(w.task, peak)) for w in weighted])


def _least_s(weighted: WeightedTask, peak: Peak) -> float:
    """Seconds that no program of any form can beat."""
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


# ---- rounds -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounds:
    """The round loop; `counted` are all tuners whose trials count, `known` those of other tasks.

    `largest` bounds the candidates of a round, which by default the budget gives.
    """

    session: Session
    budget: Budget
    manner: Manner
    counted: Sequence[TaskTuner]
    known: Sequence[TaskTuner] = ()
    on_round: Callable[[Sequence[Forms]], None] | None = None
    largest: int | None = None
    neighbours: bool = True
    race_follows: bool = False

    def run(
        self,
        weighted: Sequence[WeightedTask],
        found: Sequence[Forms],
        plan: TaskScheduler,
        show: Progress,
    ) -> None:
        """Rounds of the tasks that the plan names, until the budget or the plan ends."""
        session = self.session
        windows = Windows(self, weighted, found, plan, show) if self._hurried(found) else None
        # Every task first gets its valid answer, the plain schedule, so that any end has a network.
        if windows:
            plan.start([w.weight * w.task.flop for w in weighted])
            windows.plain()
        elif self.manner.plain_first and session.searcher.plain:
            for f in found:
                self.keep_time(found)
                if f.tuners[0].rounds == 0 and self.budget.search_left_s() > 0:
                    f.tuners[0].round(1)
        plain_s = np.array([_plain_s(f) for f in found])
        if windows:  # a copy that is at the machine's limit can wait
            plain_s = np.maximum(0.0, plain_s - plan.bounds_s)
        plan.start([w.weight * float(t) for w, t in zip(weighted, plain_s, strict=True)])
        if windows:
            windows.run()
            return
        while True:
            self.look_again(weighted, plan, show)
            if (k := next_task(weighted, found, plan)) is None:
                if self.look_again(weighted, plan, show, over=True):
                    continue
                break
            tuner = found[k].next()
            self.keep_time(found)
            n = self.candidates(tuner, found)
            if n == 0:
                break
            began_s = self.budget.elapsed_s
            session.train([*self.counted, *self.known])
            if session.searcher.neighbours and self.neighbours:
                n = self.begun(tuner, found, n)
            used = tuner.round(n)
            self.budget.round_took(self.budget.elapsed_s - began_s)
            found[k].told(tuner, used)
            if used or found[k].exhausted:  # no trials: nothing is left of any form
                plan.tell(k, found[k].best_latency_s, used)
            if not used and found[k].exhausted and self.budget.left_s() > 0:
                show.note(f"{found[k].task.name}: no candidate is left to measure")
            show.update(self.snapshot(weighted, found, tuner))
            if self.on_round is not None:
                self.on_round(found)
            stuck = same_failures(tuner.records) if self.manner.ends_stuck else ""
            if stuck:
                show.note(f"{tuner.task.name}: {SAME_ERRORS} failures alike in a row: {stuck}")
                break

    def look_again(
        self,
        weighted: Sequence[WeightedTask],
        plan: TaskScheduler,
        show: Progress,
        over: bool = False,
    ) -> bool:
        """Tell the plan if the machine's limits are seen to be higher than they were known.

        Looks now and then, or at once where the plan is `over`, maybe for limits that are too low.
        """
        if over and not any(map(plan.is_at_limit, range(len(weighted)))):
            return False
        every = [form for w in weighted for form in w.forms]
        peak = self.session.look_again(every[0].target, every, over) if every else None
        if peak is None:
            return False
        plan.bound([_least_s(w, peak) for w in weighted])
        show.limit(_joint_peak(weighted, peak))
        return True

    def _hurried(self, found: Sequence[Forms]) -> bool:
        """Are several tasks searched against the clock, on this machine?"""
        here = not isinstance(self.session.run.measuring.runner, SideBySide)
        limited = self.budget.timeout is not None and self.manner.plain_first
        return here and limited and len(found) > 1

    def begun(self, tuner: TaskTuner, found: Sequence[Forms], n: int) -> int:
        """Suggest programs of other tasks; the candidates of the round, n or fewer.

        Against the clock, the first round of one of many tasks is what its family found, adapted,
        and nothing else: searching for more takes longer than measuring, and each task is to have
        one good program before any has a second round. Of few tasks it begins with that.
        """
        known, everyone = self.session.known(tuner.task.target), _tuners(found)
        limited = self.budget.timeout is not None
        hurried = limited and len(found) >= SMALL_ROUND_TASKS
        if hurried and tuner.rounds > 1:  # others seldom have the same steps
            if tuner.rounds > NARROW_ROUNDS:
                tuner.widen()
            if tuner.rounds == 2 and self.has_time(found):
                continue_from_shipped(tuner, shipped(tuner.task.target), n)
            continue_from_kin(tuner, everyone)
            return n
        layers = shipped(tuner.task.target)
        if hurried and not tuner.pending:
            if self.is_known(tuner.task):
                n = min(n, self.first_programs(found))
            ready = start_from_family(tuner, everyone, known, layers, n)
            # One program that fits, of kin that was hardly searched, tells little of a form.
            if ready >= min(n, FAMILY_ROUND) or (ready and self.is_short(found)):
                return ready
            if ready := start_from_structures(tuner, layers, n):
                return ready
            if self.budget.n_trials is None:  # others of the family begin with what is found here
                n = max(n, FAMILY_ROUND)
        elif limited and tuner.rounds <= 1 and not tuner.pending and layers.has_kin(tuner.task):
            start_from_family(tuner, everyone, known, layers, n)
            tuner.widen()
        start_from_others(tuner, everyone, self.session.store.history, n, known)
        return n

    def is_known(self, task: SearchTask) -> bool:
        """Is there a program of the task, or of its kin, before anything is searched?"""
        known = self.session.known(task.target)
        return known.latency_s(task) is not None or shipped(task.target).has_kin(task)

    def first_programs(self, found: Sequence[Forms]) -> int:
        """How many known programs of a task are measured first: all that wait have time for them.

        These are the tasks of which no form was searched, or where there are none, forms.
        """
        forms = [[t.rounds <= 1 for t in f.tuners] for f in found]
        waiting = sum(map(all, forms)) or sum(map(sum, forms))
        each = self.budget.search_left_s() / max(1, waiting) / FIRST_TRIAL_S
        return int(min(max(each, 1), FAMILY_ROUND))

    def is_short(self, found: Sequence[Forms]) -> bool:
        """Is there too little time to search all tasks that wait before anything is measured?"""
        waiting = sum(t.rounds <= 1 for t in _tuners(found))
        return self.budget.search_left_s() < SHORT_FIRST_S * waiting

    def has_time(self, found: Sequence[Forms]) -> bool:
        """Is there time to measure, of each form, a program of all structures that kin have?"""
        return self.budget.search_left_s() > ALL_STRUCTURES_S * len(_tuners(found))

    def keep_time(self, found: Sequence[Forms]) -> None:
        """Keep free what the end of the run takes as things are now, where its time is limited."""
        if self.budget.timeout is not None and self.manner.plain_first:
            session = self.session
            end_s = closing_s(found, self.race_follows, session.placed, session.builders)
            session.budget.closing_s = end_s + session.later_s

    def candidates(self, tuner: TaskTuner, found: Sequence[Forms], open_: int = 0) -> int:
        """Candidates of the next round of a tuner beside `open_` that wait; 0 to end."""
        budget, done = self.budget, sum(t.trials for t in self.counted)
        everyone, n_tasks = _tuners(found), len(found)
        wanted = self.largest or budget.largest_round(n_tasks, len(everyone), tuner.trials)
        if self.manner.growing and not budget.round_size:
            wanted = grown(wanted, tuner.trials - tuner.pending)
        elif tuner.rounds <= 1 and n_tasks >= SMALL_ROUND_TASKS:
            # Many tasks: a small first round of each brings the whole down soonest.
            waiting = sum(t.rounds <= 1 for t in everyone)
            wanted = min(wanted, budget.first_round(done - tuner.pending, len(everyone), waiting))
        return budget.round_of(wanted, done, tuner.pending, open_)

    def snapshot(
        self, weighted: Sequence[WeightedTask], found: Sequence[Forms], current: TaskTuner
    ) -> Snapshot:
        """Where the run stands; the latency is the weighted sum over the tasks."""
        times = [f.best_latency_s for f in found]
        total = None
        if all(t is not None for t in times):
            total = sum(w.weight * (t or 0.0) for w, t in zip(weighted, times, strict=True))
        return Snapshot(
            trials=sum(t.trials for t in self.counted),
            elapsed_s=self.budget.elapsed_s,
            latency_s=total,
            flop=sum(w.weight * w.task.flop for w in weighted),
            task=current.task.name,
            round=current.rounds,
            failures={k: n for k, n in self.session.run.counts.items() if k != "OK"},
            trials_before=self.budget.trials_before,
        )


def _tuners(found: Sequence[Forms]) -> list[TaskTuner]:
    return [t for f in found for t in f.tuners]


def same_failures(records: Sequence[Record]) -> str:
    """The error text if the last `SAME_ERRORS` trials all failed with one error; else empty."""
    last = records[-SAME_ERRORS:]
    if len(last) < SAME_ERRORS or any(r.ok for r in last):
        return ""
    first = last[0]
    alike = all(r.status == first.status and r.error[:80] == first.error[:80] for r in last)
    return f"{first.status} {first.error[:200]}" if alike else ""


# ---- other tasks of a task alone ----------------------------------------------------------------


def _known(
    session: Session, weighted: Sequence[WeightedTask], other_tasks: Sequence[SearchTask]
) -> list[TaskTuner]:
    """Tuners of those other tasks that the log holds something of, which their policies know."""
    if not session.searches:
        return []
    logged = {(r.task, r.target) for r in session.store.history}
    own = {w.task.workload_key for w in weighted}
    distinct = {t.workload_key: t for t in other_tasks if t.workload_key not in own}
    return [session.tuner(t) for k, t in distinct.items() if (k, t.target.fingerprint) in logged]


def _practice(session: Session, weighted: Sequence[WeightedTask]) -> Forms | None:
    """The short version of a heavy task that is searched alone, if no program of its kin is near.

    Against the clock the search begins with what is shipped.
    """
    task = weighted[0].task
    near = session.budget.timeout is not None and not_far(shipped(task.target).of_kin(task, 1))
    short = shrunk(task) if session.searches and not near else None
    return None if short is None else Forms([session.tuner(short)])


def _practised(rounds: Rounds, practice: Forms, tuner: TaskTuner, show: Progress) -> Rounds:
    """Search the short version of a task; the best of that is measured first on the task itself.

    Returns the round loop of the task.
    """
    largest = min(rounds.budget.largest_round(1, 1), 2 * MIN_ROUND)
    part = rounds.budget.part(PRACTICE)
    first = replace(rounds, budget=part, largest=largest, neighbours=False)
    plan = RoundRobinScheduler(1, max_failed_rounds=NEVER)
    first.run([WeightedTask(practice.task, 1.0)], [practice], plan, show)
    tuner.suggest(practice.tuners[0].fastest(MIN_ROUND))
    return replace(rounds, largest=MIN_ROUND, neighbours=False)


def _with_practice(result: TuneResult, tuner: TaskTuner, practice: Forms) -> TuneResult:
    """The result of a heavy task; its program is the practice's best one if none was measured."""
    if result.best is None and result.predicted is None:
        tuner.suggest(practice.tuners[0].fastest(1))
        result = replace(result, predicted=tuner.suggested())
    return replace(result, practised=practice.trials)
