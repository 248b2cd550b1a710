"""Rounds of many tasks against the clock: one window searches and builds, the next one measures.

In: the round loop of `search.tune_tasks`, tasks and the task scheduler. Kernels are measured with
the machine to themselves; in between, the rounds of several other tasks are searched here while the
candidates of the rounds before are built by the builder's processes, so that no core waits. What is
asked of a task depends on what was told before its window: tasks in work are busy, and so are those
that wait for the first program of their family. Without a time limit rounds come one by one
(`Rounds.run`), and a log is resumed as it was begun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ansorlite.search.budget import MIN_ROUND
from ansorlite.search.forms import Forms
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.progress import Progress
from ansorlite.search.roles import family_of, kin_of
from ansorlite.search.spaces import SpacesAhead
from ansorlite.search.task_scheduler import TaskScheduler
from ansorlite.search.tuner import Round, TaskTuner

if TYPE_CHECKING:
    from ansorlite.search.tune_tasks import Rounds, WeightedTask

# What a round finds with twice the effort is worth less than another round of another task.
HURRIED = EvolutionParams(population=384, generations=2, looked_at=2)
LOOK_S = 0.03  # seconds to make a sketch and to look at it
LOOKS_SHARE = 0.15  # of the time left, to look at sketches in the first rounds of all families
NEWS = 0.15  # share of new results from which the models are trained again
FEWEST_LOOKS, MOST_LOOKS = 6, 48
LOOKS_AHEAD = 16  # sketches that are looked at in the background, at most
LOOKS_A_SECOND = 0.8  # of the time budget: as many sketches are looked at
WINDOW_S = 0.4  # of search at a time: what was searched is measured soon
KNOWN_S = 0.03  # more for each program that is known before
WINDOW = MIN_ROUND  # candidates of a window, at least, while there are tasks to take them of


@dataclass(frozen=True)
class _Open:
    """A round of a task that is searched or built, and not measured yet."""

    place: int  # of the task
    tuner: TaskTuner
    round: Round

    def wait(self) -> None:
        """Until the builds have ended."""
        if self.round.batch is not None:
            self.round.batch.outcomes()


@dataclass
class Windows:
    """The windows of one run."""

    rounds: "Rounds"
    weighted: "Sequence[WeightedTask]"
    found: Sequence[Forms]
    plan: TaskScheduler
    show: Progress
    _spaces: SpacesAhead | None = None
    _plain_s: float = 0.0  # that the last plain schedule took, with all that precedes it
    _over: bool = False  # is no time left, or no trial?
    _first: list[_Open] = field(default_factory=list)  # the first window

    def plain(self) -> None:
        """The plain schedule of every task, built ahead; its latency is that of the checks.

        Meanwhile the first window is searched, where most operations are.
        """
        tuners = [f.tuners[0] for f in self.found]
        for tuner in tuners:
            tuner.begin_plain_round()
        self._want_spaces({})
        self._first = self._asked([], self._known_first(), at_once=True)
        searched = [one.tuner for one in self._first]
        for tuner in sorted(tuners, key=lambda t: t not in searched):
            self.rounds.keep_time(self.found)
            began_s = self.rounds.budget.elapsed_s
            if self.rounds.budget.search_left_s() <= self._plain_s:
                return
            tuner.plain_round()
            if self._spaces is not None:
                self._spaces.step()
            self._plain_s = self.rounds.budget.elapsed_s - began_s

    def run(self) -> None:
        """Windows until the budget or the plan ends."""
        try:
            self._want_spaces(self._stakes)
            self._windows()
        finally:
            if self._spaces is not None:
                self._spaces.close()

    def _measure(self, built: Sequence[_Open]) -> int:
        """Measure rounds while nothing else goes on; their trials."""
        trials = 0
        with self.rounds.budget.clock.phase("building"):
            for one in built:
                one.wait()
            self.rounds.session.run.measuring.builds.settle()
        if self._spaces is not None:
            self._spaces.pause()
        for one in built:
            left_s = self.rounds.budget.search_left_s()
            if left_s <= 0:
                break
            if one.tuner.trials or left_s > self._plain_s:  # else its first check ends too late
                self._end(one)
                trials += len(one.round.missing)
        if self._spaces is not None:
            self._spaces.resume()
        return trials

    def _windows(self) -> None:
        session, budget = self.rounds.session, self.rounds.budget
        built, self._first = self._first, []
        while True:
            self._looked_again()
            began_s = budget.elapsed_s
            session.train([*self.rounds.counted, *self.rounds.known], NEWS)
            asked = self._asked(built)
            if not asked and not built:
                if not self._over and self._spaces is not None and self._spaces.in_work is not None:
                    self._spaces.wait()
                elif self._over or not self._looked_again(over=True):
                    return
                continue
            trials = self._measure(built)
            for one in asked if budget.search_left_s() > 0 else ():
                one.tuner.begin(one.round)
            if trials:
                budget.window_took(budget.elapsed_s - began_s, trials)
            built = asked

    def _looked_again(self, over: bool = False) -> bool:
        return self.rounds.look_again(self.weighted, self.plan, self.show, over)

    def _known_first(self) -> int:
        """Programs that need no search and that the first window measures, where time is short."""
        if not self.rounds.is_short(self.found):
            return 0
        return sum(self.rounds.is_known(f.next().task) for f in self.found)

    def _asked(self, built: Sequence[_Open], known: int = 0, at_once: bool = False) -> list[_Open]:
        """The rounds of the next window, while those of the last one are being built.

        They are larger for so many programs that are `known`, which take no search. Where no window
        is measured before them, they are built `at_once`.
        """
        asked: list[_Open] = []
        budget = self.rounds.budget
        end_s = budget.elapsed_s + WINDOW_S + known * KNOWN_S
        waiting = sum(len(one.round.missing) for one in built)
        while (n_asked := sum(len(one.round.missing) for one in asked)) < max(WINDOW, known):
            if self._spaces is not None:
                self._spaces.step()
            busy = self._busy([*built, *asked])
            k = next_task(self.weighted, self.found, self.plan, busy)
            if k is None:
                break
            tuner = self.found[k].next()
            self.rounds.keep_time(self.found)
            n = self.rounds.candidates(tuner, self.found, waiting + n_asked)
            if n == 0:
                self._over = True
                break
            if not tuner.has_begun:
                self._hurry(tuner)
            if self.rounds.session.searcher.neighbours and self.rounds.neighbours:
                with budget.clock.phase("search"):
                    n = self.rounds.begun(tuner, self.found, n)
            asked.append(_Open(k, tuner, tuner.asked(n)))
            if not asked[-1].round.asked:  # nothing is left of this form
                self._end(asked.pop())
            elif at_once:
                tuner.begin(asked[-1].round)
            if asked and self.rounds.budget.elapsed_s > end_s:
                break
        return asked

    def _want_spaces(self, stakes: Mapping[str, float]) -> None:
        """Have the spaces of families made in the background, those with most at stake first.

        What is at stake in a family is its operations, or `stakes` where they are known. Families
        that begin with known programs need theirs last.
        """
        self._spaces = self.rounds.session.spaces_ahead()
        if self._spaces is None:
            return
        families: dict[str, TaskTuner] = {}
        size: dict[str, float] = {}
        for w, f in zip(self.weighted, self.found, strict=True):
            for t in f.tuners:
                name = family_of(t.task)
                size[name] = size.get(name, 0.0) + w.weight * f.task.flop
                families.setdefault(name, t)
        size |= stakes
        limit_s = self.rounds.budget.timeout or 0.0
        looks = min(max(int(LOOKS_A_SECOND * limit_s), FEWEST_LOOKS), LOOKS_AHEAD)
        kin = dict[str, str]()  # the largest family of each: others begin with its programs
        for name in sorted(families, key=lambda k: -size[k]):
            kin.setdefault(kin_of(families[name].task), name)

        def turn(name: str) -> tuple[bool, bool, float]:
            known = self.rounds.is_known(families[name].task)
            return known, name not in kin.values(), -size[name]

        for name in sorted(families, key=turn):
            self._spaces.forget(name)
            if name not in (*self._known, self._spaces.in_work):
                request = self.rounds.session.space_request(families[name].task, looks)
                self._spaces.want(name, request)
        self._spaces.step()

    def _hurry(self, tuner: TaskTuner) -> None:
        """Bound the effort of a task's searches; a family with much at stake is looked at more."""
        session = self.rounds.session
        if self._spaces is not None and not self.rounds.is_known(tuner.task):
            self._spaces.forget(family_of(tuner.task))  # it is made here
        if session.options.params is not None:
            return
        stakes = self._stakes
        share = stakes[family_of(tuner.task)] / max(sum(stakes.values()), 1e-12)
        looks = LOOKS_SHARE * self.rounds.budget.search_left_s() * share / LOOK_S
        looked = int(min(max(looks, FEWEST_LOOKS), MOST_LOOKS))
        session.params = replace(HURRIED, looked_at_first=looked)

    @cached_property
    def _stakes(self) -> dict[str, float]:
        """What is at stake before the first round in each family: weight times seconds."""
        stakes: dict[str, float] = {}
        for w, f in zip(self.weighted, self.found, strict=True):
            for t in f.tuners:
                name, own = family_of(t.task), w.weight * (f.best_latency_s or 0.0)
                stakes[name] = stakes.get(name, 0.0) + own / len(f.tuners)
        return stakes

    def _busy(self, open_: Sequence[_Open]) -> frozenset[int]:
        """Tasks that are to wait: in work, or before a first round for which their family is."""
        busy = {one.place for one in open_}
        first = {kin_of(one.tuner.task) for one in open_ if one.tuner.rounds <= 1}
        first -= {kin_of(t.task) for f in self.found for t in f.tuners if t.rounds > 1}
        making = None if self._spaces is None else self._spaces.in_work
        if making in self._known:
            making = None
        for k, f in enumerate(self.found) if first or making else ():
            tuner = f.next()
            if self.rounds.is_known(tuner.task):  # begins with what others found
                continue
            if tuner.rounds <= 1 and (
                kin_of(tuner.task) in first or family_of(tuner.task) == making
            ):
                busy.add(k)
        return frozenset(busy)

    @property
    def _known(self) -> set[str]:
        """The families of which a task was searched."""
        return {family_of(t.task) for f in self.found for t in f.tuners if t.rounds > 1}

    def _end(self, one: _Open) -> None:
        """Measure a round, and tell what came of it."""
        k, tuner, found = one.place, one.tuner, self.found
        used = tuner.end(one.round)
        found[k].told(tuner, used)
        if used or found[k].exhausted:  # no trials: nothing is left of any form
            self.plan.tell(k, found[k].best_latency_s, used)
        if not used and found[k].exhausted and self.rounds.budget.left_s() > 0:
            self.show.note(f"{found[k].task.name}: no candidate is left to measure")
        self.show.update(self.rounds.snapshot(self.weighted, found, tuner))
        if self.rounds.on_round is not None:
            self.rounds.on_round(found)


def next_task(
    weighted: "Sequence[WeightedTask]",
    found: Sequence[Forms],
    plan: TaskScheduler,
    busy: frozenset[int] = frozenset(),
) -> int | None:
    """The plan's task; but before any has a second round, all forms have their first.

    One form may be twice as fast as another, and no measurement of the other tells. The order
    depends on what the plan was told alone, so a resumed run has the same. Tasks that are `busy`
    are not chosen.
    """
    live = [k for k in range(len(found)) if k not in busy and not plan.stop_reason(k)]
    untried = [k for k in live if found[k].untried]
    if untried and all(plan.rounds[k] for k in live):
        at_stake = plan.latency_s * [w.weight for w in weighted]
        return max(untried, key=lambda k: float(at_stake[k]))
    return plan.next_task(busy)
