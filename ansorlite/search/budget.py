"""The budget of a run: trials, wall-clock seconds and the number of candidates of each round.

In: `n_trials` (those of the log included), `timeout` in seconds, either may be None. Out: how many
candidates the next round has, 0 where the budget is spent. One `Budget` owns the clock of a run;
`part` gives a share of it, for a search that must leave the rest. What follows the rounds (builds,
linking, races) has its time kept free: `closing_s`, from what such work took so far in the run.
"""

from collections import deque
from statistics import median

import numpy as np

from ansorlite.search.clock import PhaseClock

ROUND_SIZE = 64
MIN_ROUND = 8
# With less than so many seconds for each form of a task, rounds are smaller: the best of the first
# five of eight candidates reaches 98 % of the best of all (190 rounds of six networks).
UNHURRIED_S = 4.0
HURRIED_ROUND = 5
HURRIED_TRIALS = 16  # tasks with so many have larger rounds: a search takes as long and finds less
# From so many tasks on, all have small rounds: in rounds of 8 ResNet-50's tasks were after 1,000
# trials where rounds of 13 had them after 2,000, in half the time.
SMALL_ROUND_TASKS = 8
# Candidates of the first round of each of so many tasks. Half of them are the best programs of
# similar tasks; the next four gained less (1.5 %) than rounds of the tasks with most at stake.
FIRST_ROUND = 4
RESERVED_SHARE = 0.06  # of the time budget, for the race of the last contenders and for compiling
LAST_ROUNDS = 8  # so many rounds tell how long the next one takes


class Budget:
    """What a run may spend, and what is left of it."""

    def __init__(
        self,
        n_trials: int | None,
        timeout: float | None,
        clock: PhaseClock | None = None,
        round_size: int | None = None,
    ) -> None:
        """`round_size` fixes the candidates of a round, which otherwise depend on the budget."""
        self.n_trials, self.timeout, self.round_size = n_trials, timeout, round_size
        self.clock = clock or PhaseClock()
        self.trials_before = 0  # trials of the log: the pace is that of the others
        self.closing_s = 0.0  # seconds to keep for what comes after rounds and races
        self._rounds_s: deque[float] = deque(maxlen=LAST_ROUNDS)
        self._pace_s: deque[float] = deque(maxlen=LAST_ROUNDS)

    def part(self, share: float) -> "Budget":
        """The first `share` (0 to 1) of the trials and of the seconds, on the same clock."""
        n_trials = None if self.n_trials is None else int(share * self.n_trials)
        timeout = None if self.timeout is None else share * self.timeout
        out = Budget(n_trials, timeout, self.clock, self.round_size)
        out.trials_before, out.closing_s = self.trials_before, self.closing_s
        return out

    def round_took(self, seconds: float) -> None:
        """Note the seconds of a round, its search and builds included."""
        self._rounds_s.append(seconds)

    def window_took(self, seconds: float, trials: int) -> None:
        """Note the seconds of some rounds that were searched, built and measured together."""
        self._pace_s.append(seconds / trials)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self.clock.elapsed_s

    def left_s(self) -> float:
        """Seconds left, negative after the end; inf without a time budget."""
        return float("inf") if self.timeout is None else self.timeout - self.elapsed_s

    def search_left_s(self) -> float:
        """Seconds left for rounds and races: the end of the run needs `closing_s`."""
        return self.left_s() - self.closing_s

    def round_of(self, size: int, done: int, pending: int, waiting: int = 0) -> int:
        """Candidates of the next round: `size`, or what trials and time are left for; 0 to end.

        `pending` of the `done` trials belong to that round already (see `TaskTuner.pending`);
        beside them `waiting` candidates of other rounds are still to be measured.
        """
        spent = self.n_trials is not None and done + waiting >= self.n_trials
        if spent or self.search_left_s() <= 0:
            return 0
        n = size if self.n_trials is None else min(size, self.n_trials - done - waiting + pending)
        new = max(0, n - pending)
        affordable = self._affordable(new, done, waiting)
        if affordable == new:
            return n
        return pending + affordable if affordable else 0

    def _affordable(self, n: int, done: int, waiting: int) -> int:
        """At most n trials, fewer where the time left is too short for them at the pace so far.

        Those that are `waiting` come before them.
        """
        new = done - self.trials_before
        if self.timeout is None:
            return n
        # A round cannot be cut short while it searches and builds, whatever its size.
        if self._rounds_s and self.search_left_s() < median(self._rounds_s):
            return 0
        if self._pace_s:
            pace_s = median(self._pace_s)
        elif new < MIN_ROUND:
            return n
        else:
            pace_s = self.elapsed_s / new
        left_s = self.left_s() - max(RESERVED_SHARE * self.timeout, self.closing_s)
        return max(0, min(n, int(left_s / pace_s) - waiting))

    def largest_round(self, n_tasks: int, n_forms: int, known: int = 0) -> int:
        """Candidates of a round, at most: each form of a task gets some four rounds of the trials.

        `n_forms` counts the forms of all tasks; `known` trials are those of the task's own form.
        """
        if self.round_size is not None:
            return self.round_size
        if n_tasks >= SMALL_ROUND_TASKS:
            hurried = self.timeout is not None and self.timeout < UNHURRIED_S * n_forms
            return HURRIED_ROUND if hurried and known < HURRIED_TRIALS else MIN_ROUND
        if self.n_trials is None:
            return 16
        return int(np.clip(self.n_trials // (4 * max(1, n_forms)), MIN_ROUND, ROUND_SIZE))

    def first_round(self, done: int, n_forms: int, n_waiting: int) -> int:
        """Candidates of one of the first rounds of many tasks: all that wait get as many.

        `n_waiting` of the `n_forms` forms of all tasks had no round yet.
        """
        left = self.round_of(done + FIRST_ROUND * n_forms, done, 0)
        return min(FIRST_ROUND, max(1, left // max(1, n_waiting)))


def grown(most: int, known: int) -> int:
    """Candidates of the next round of a task with `known` trials: half as many, `most` at most.

    A round of nothing but guesses is as good as its guesses; feedback after a few improves the
    rest. Later rounds are larger, since each costs the time of searching and training.
    """
    return min(most, max(MIN_ROUND, known // 2))
