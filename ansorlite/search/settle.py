"""The end of a search: the last contenders of every task race, and the winner is the result.

In: the `TaskTuner`s of a run. Out: a winner a task, noted in the log; rivals, for a second race
inside the network; `TuneResult`s. A run that was cut off before the race has it when it goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ansorlite.codegen.image import KernelImage
from ansorlite.ir.program import Program
from ansorlite.measure.peak import Peak
from ansorlite.records import Record
from ansorlite.search.forms import Forms
from ansorlite.search.history import Guess
from ansorlite.search.result import BestProgram, Rival, TuneResult
from ansorlite.search.session import Session
from ansorlite.search.shipped import shipped
from ansorlite.search.tuner import TaskTuner
from ansorlite.space.plain import PLAIN

RIVALS = 2  # programs of a task that go with the best one into the race inside the network
BUILD_S = 0.05  # seconds to build a kernel, as long as none was built
BUILDS_TOLD = 64  # so many of the last builds tell how long one takes
RACED_SHARE = 0.01  # of a network's time: the programs of a task that takes less do not race in it
LINK_S = 0.005  # seconds to load a kernel into a network
PACK_S = 3e-9  # seconds a byte of constants, which are packed into memory that is new
SLOW_S = 1e-3  # a plain schedule that takes less stays what a run ended with
FAR_BEHIND = 2.0  # times as long: the layers were measured on another machine
CLOSE = 1.15  # another form takes part if its best is within this factor of the fastest form's


class Winner(NamedTuple):
    """The program that a task is settled with: its tuner, its record, seconds in the race."""

    tuner: TaskTuner
    record: Record
    latency_s: float


@dataclass(frozen=True)
class Race:
    """The race of the last contenders of a task.

    It takes `seconds` at most, and `trial_s` for every trial of the task; none begins when
    `reserve_s` or less is left of the run.
    """

    contenders: int
    seconds: float
    trial_s: float = float("inf")
    reserve_s: float = 0.0


def settle_all(
    session: Session,
    found: Sequence[Forms],
    rules: Race,
    winners: dict[int, Winner],
    race_follows: bool = False,
) -> None:
    """Race the contenders of every task while there is time, where most is at stake first.

    Puts winners by number of the task into `winners`; where a race inside the network follows, the
    fastest of a task for which no time is left. Where nothing was measured since the log was begun,
    only tasks without an earlier winner race.
    """
    if session.estimated:  # the same again
        return
    measured = any(f.measured for f in found)
    for k in map(int, np.argsort([-f.stake_s for f in found])):
        if not measured and earlier_winner(session, found[k]) is not None:
            continue
        best = found[k].best_latency_s
        for tuner in found[k].tuners:
            close = best and (tuner.best_latency_s or float("inf")) < CLOSE * best
            left_s = session.budget.search_left_s()
            if left_s <= rules.reserve_s or tuner.trials <= 1 or not close:
                continue
            won = tuner.settle(rules.contenders, min(rules.seconds, rules.trial_s * tuner.trials))
            if won is not None and (k not in winners or won[1] < winners[k].latency_s):
                winners[k] = Winner(tuner, *won)
        fastest = found[k].fastest
        if race_follows and k not in winners and fastest.trials > 1 and fastest.best is not None:
            winners[k] = Winner(fastest, fastest.best, float(fastest.best_latency_s or 0.0))


def closing_s(
    found: Sequence[Forms],
    race_follows: bool,
    placed: Mapping[str, int] | None = None,
    builders: int = 1,
) -> float:
    """Seconds that the end of a run takes: kernels that are still to be built, and linking.

    Builds take as long as those that the records tell of, on average. Where `race_follows`, the
    network is linked for the race of the rivals that there are by now, too, with kernels built for
    where operands lie, so many of each task as `placed` says by workload key: of those that win
    there is object code then. So many `builders` work side by side.
    """
    known = [r.build_s for f in found for t in f.tuners for r in t.records if r.build_s > 0]
    each_s = fmean(known[-BUILDS_TOLD:]) if known else BUILD_S
    missing = sum(not f.fastest.has_image for f in found)
    racing = _racing(found) if race_follows else []
    rivals = _most_rivals(racing)
    builds = missing + sum(
        (placed or {}).get(f.task.workload_key, 0) * (1 + (rivals if f in racing else 0))
        for f in found
    )
    networks = 2 + rivals if rivals else 1
    packing_s = PACK_S * sum(f.constants_bytes for f in found)
    return builds * each_s / builders + networks * link_s(len(found)) + packing_s


def _racing(found: Sequence[Forms]) -> list[Forms]:
    """The tasks whose programs may race inside the network: those that take some of its time."""
    least_s = RACED_SHARE * sum(f.stake_s for f in found)
    return [f for f in found if f.stake_s >= least_s]


def _most_rivals(racing: Sequence[Forms]) -> int:
    """Rivals of the task that has most of them."""
    most = 0
    for f in racing:
        limit_s = CLOSE * (f.best_latency_s or 0.0)
        times = (r.latency_s for t in f.tuners for r in reversed(t.records) if r.ok)
        near = islice((s for s in times if s and s < limit_s), 1 + RIVALS)
        most = max(most, sum(1 for _ in near) - 1)
        if most == RIVALS:
            break
    return most


def link_s(n_tasks: int) -> float:
    """Seconds that linking a network of so many kernels takes, about."""
    return n_tasks * LINK_S


def earlier_winner(session: Session, found: Forms) -> Winner | None:
    """The winner of an earlier run by its log, if nothing was measured since."""
    if found.measured:
        return None
    by_key = {t.task.workload_key: t for t in found.tuners}
    target = found.task.target.fingerprint
    known = session.store.earlier_winner(by_key, target, lambda r: by_key[r.task].fits(r))
    if known is None:
        return None
    return Winner(by_key[known.task], known, float(known.latency_s or 0.0))


def settled_results(
    session: Session,
    found: Sequence[Forms],
    winners: dict[int, Winner],
    peak: Peak | None,
    race_follows: bool,
) -> list[TuneResult]:
    """The results of all tasks, with the winners noted in the log.

    Where `race_follows`, results with rivals are not noted yet: the caller races the rivals.
    """
    out = []
    for k, f in enumerate(found):
        winner = winners.get(k) or earlier_winner(session, f)
        out.append(_result(session, f, winner, peak, len(found)))
    if (untuned := session.untuned) is not None:
        with session.budget.clock.phase("building"):
            images = [r.image if r.predicted is None else untuned.image(r.task) for r in out]
        out = [replace(r, image=i) for r, i in zip(out, images, strict=True)]
    racing = _racing(found) if race_follows else []
    try:
        for k, w in sorted(winners.items()) if not session.interrupted else ():
            if found[k] in racing:
                out[k] = replace(out[k], rivals=_rivals(session, found[k], w))
            if not out[k].rivals:
                session.store.append_winner(w.record, w.latency_s)
    except KeyboardInterrupt:
        session.interrupted = True
    return out


def _rivals(session: Session, found: Forms, winner: Winner) -> tuple[Rival, ...]:
    """The fastest programs of all forms but the winner, as far as they are close to it.

    The first is of another form or structure, if there is one: programs of one structure fare alike
    inside the network, where weights lie farther away than they do alone. Where no time is left to
    build them, only those whose object code was kept.
    """
    own = winner.record.task, winner.record.sketch

    def is_other(r: Record) -> bool:
        return (r.task, r.sketch) != own

    near: dict[tuple[int, int], tuple[float, int, Record]] = {}
    for n, tuner in enumerate(found.tuners):
        best = tuner.contenders(RIVALS + 1)
        best += tuner.contenders(1, [r for r in tuner.records if is_other(r)])
        for r in best:
            if (tuner, r.trial) != (winner.tuner, winner.record.trial):
                near[n, r.trial] = r.latency_s or 0.0, n, r
    most_s = CLOSE * (found.best_latency_s or 0.0)
    nearest = sorted((x for x in near.values() if x[0] < most_s), key=lambda x: x[:2])
    other = next((x for x in nearest if is_other(x[2])), None)
    if other is not None:
        nearest = [other, *(x for x in nearest if x is not other)]
    nearest = nearest[:RIVALS]
    out = []
    for t, record in ((found.tuners[n], record) for _, n, record in nearest):
        kept = t.measuring.kept_image(record)
        if kept or session.budget.search_left_s() > BUILD_S:
            out.append(Rival(t.task, record, kept or t.measuring.image(record, t.space), t.space))
    return tuple(out)


def _result(
    session: Session, found: Forms, winner: Winner | None, peak: Peak | None, n_tasks: int
) -> TuneResult:
    """The result of a task: of its winner, else its best record, else the model's prediction."""
    tuner = found.fastest if winner is None else winner.tuner
    if winner is None and (best := tuner.contenders(1)):
        winner = Winner(tuner, best[0], float(best[0].latency_s or 0.0))
    chosen = _unmeasured(session, found, winner, n_tasks)
    if chosen is not None:
        tuner, winner = chosen.tuner, None
    program = None
    if winner is not None:
        session.run.trace.best(tuner.task, tuner.space.state(winner.record))
        program = BestProgram(
            tuner.task, winner.record, winner.latency_s, peak, tuner.space, session.estimated
        )
    image = None if winner is None else tuner.measuring.kept_image(winner.record)
    return TuneResult(
        tuner.task,
        program,
        tuple(tuner.records),
        session.budget.clock.seconds,
        session.budget.elapsed_s,
        session.interrupted,
        None if chosen is None else chosen.program,
        guess=None if chosen is None else chosen.guess,
        image=image if chosen is None else chosen.image,
        of_all_forms=found.trials,
        problems=session.store.problems,
        estimated=session.estimated,
    )


class _Unmeasured(NamedTuple):
    """A program that is taken without a measurement."""

    tuner: TaskTuner
    program: Program
    guess: Guess | None
    image: KernelImage | None = None


def _unmeasured(
    session: Session, found: Forms, winner: Winner | None, n_tasks: int
) -> _Unmeasured | None:
    """What is taken in place of nothing, or of a plain schedule that is clearly slower.

    Where nothing is measured, what is predicted; else what was built when the time was over. A
    model that was to learn first predicts nothing.
    """
    if winner is not None and not _is_far_behind(winner, found):
        return None
    if session.searches and session.searcher.plain:
        if (built := found.built) is None:
            return None
        tuner, candidate, image = built
        return _Unmeasured(tuner, *tuner.program(candidate), image)
    if session.searches and session.budget.left_s() <= 0:
        return None
    tuner = found.expected
    return _Unmeasured(tuner, *session.predicted(tuner, n_tasks))


def _is_far_behind(winner: Winner, found: Forms) -> bool:
    """Is it a plain schedule that took much longer than similar layers do?"""
    if winner.record.round or winner.record.sketch != PLAIN or winner.latency_s < SLOW_S:
        return False
    layers = shipped(found.task.target)
    least_s = min(layers.latency_s(t.task) for t in found.tuners)
    return FAR_BEHIND * least_s < winner.latency_s
