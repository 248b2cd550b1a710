"""The clock around kernels and on each of their threads, noted by native code.

In: a `CallSequence` of this process. Out: `StampedCalls`, which runs the same program with a log:
begin and end of each call, and with `threads` of each parallel step and of each thread in it.
Code, buffers and order are those of a run without a log. Steps that run together, unit by unit,
share their time by the time that threads worked on each, in this run or in another one (`work`).
Times are nanoseconds of the system's monotonic clock.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ansorlite.codegen import openmp
from ansorlite.codegen.loader import CallSequence
from ansorlite.codegen.steps import JOINED, LOG_HEAD, LOG_ROW, LOG_THREAD, Row

Stamps = npt.NDArray[np.int64]
CALL = 3  # columns: number, begin, end
REGION = (
    4  # columns: largest number of threads, begin, end, call; then begin and end of each thread
)
PARTS, BEGIN, END, NUMBER = range(LOG_ROW)


class StampedCalls:
    """A call sequence that notes the times of its last `run`.

    `rows` is int64[events, 3]: number of the call, begin, end, in running order; a call in a loop
    has one a step. With `threads`, `regions` is int64[regions, 4 + 2 * slots]: (most threads,
    begin, end, call), then begin and end of each thread, 0 for those that came too late; `slots`
    threads are told apart, as many as a region can have now.
    """

    def __init__(self, sequence: CallSequence, threads: bool = False) -> None:
        self._sequence = sequence
        self.slots = openmp.max_threads() if threads else 0
        times = np.ones(len(sequence.counts), np.intp)
        order = list(range(len(sequence.counts)))
        for x in reversed(sequence.loops):
            times[x.first : x.first + x.calls] = x.times
            order[x.first : x.first + x.calls] = order[x.first : x.first + x.calls] * x.times
        self._order = np.array(order, np.int64)  # calls as they run
        self._counts = np.array(sequence.counts, np.int64)[self._order]  # rows of each
        room = int(self._counts.sum())
        self._width = LOG_ROW + LOG_THREAD * self.slots
        self._log = np.zeros(LOG_HEAD + room * self._width, np.int64)
        self._log[1:3] = room, self.slots
        column = Row._fields.index
        kernels = sequence.rows[sequence.rows[:, column("code")] != 0]
        joined = kernels[:, column("together")] == JOINED
        of_call = np.split(joined, np.cumsum(sequence.counts)[:-1])
        # of the rows as they run: does one run together with the row before it?
        self._joined = np.concatenate([np.zeros(0, bool), *(of_call[k] for k in order)])

    def run(self) -> None:
        """Run all calls once; what was noted before is gone."""
        self._log[0] = 0
        self._log[LOG_HEAD:] = 0
        self._sequence.run(log=self._log)

    @property
    def _log_rows(self) -> Stamps:
        n = min(int(self._log[0]), int(self._log[1]))
        return self._log[LOG_HEAD : LOG_HEAD + n * self._width].reshape(n, self._width)

    @property
    def work(self) -> Stamps:
        """int64[steps]: nanoseconds that threads worked on each step; 0 without `threads`."""
        return work_of(self._log_rows)

    def _noted(self, work: Stamps | None = None) -> Stamps:
        """The rows of the log, with times of their own for steps that ran together."""
        rows = self._log_rows
        joined = self._joined[: len(rows)]
        return shared_out(rows, joined, work) if joined.any() else rows

    @property
    def rows(self) -> Stamps:
        return self.rows_by(None)

    def rows_by(self, work: Stamps | None) -> Stamps:
        """`rows`, where steps that ran together share their time by the `work` of another run."""
        noted, counts = self._noted(work), self._counts
        kept = counts > 0
        last = np.cumsum(counts[kept])
        begin, end = noted[last - counts[kept], BEGIN], noted[last - 1, END]
        return np.stack([self._order[kept], begin, end], axis=1)

    @property
    def regions(self) -> Stamps:
        noted = self._noted()
        noted = noted[noted[:, PARTS] > 0]
        threads = noted[:, LOG_ROW:].reshape(len(noted), self.slots, LOG_THREAD)[:, :, :2]
        return np.concatenate(
            [noted[:, :LOG_ROW], threads.reshape(len(noted), 2 * self.slots)], axis=1
        )


def work_of(rows: Stamps) -> Stamps:
    """int64[rows]: nanoseconds that threads worked on each row of a log."""
    return np.asarray(rows[:, LOG_ROW + 2 :: LOG_THREAD].sum(axis=1), np.int64)


def shared_out(rows: Stamps, joined: npt.NDArray[np.bool_], work: Stamps | None = None) -> Stamps:
    """Rows of a log, of which those that are `joined` ran together with the row before.

    Each gets a part of the time, as long as its share of the threads' `work`, by default that of
    the log itself (equal parts where none is known), and the threads' late and waiting time by the
    same share.
    """
    out = rows.copy()
    spent = work_of(rows) if work is None or len(work) < len(rows) else work
    edges = np.r_[np.flatnonzero(~joined), len(rows)]
    for first, last in pairwise(edges):
        if last - first == 1:
            continue
        group = rows[first:last]
        threads = group[:, LOG_ROW:].reshape(last - first, -1, LOG_THREAD)
        own_work = spent[first:last].astype(np.float64)
        whole = own_work.sum()
        share = own_work / whole if whole else np.full(last - first, 1 / (last - first))
        begin, end = int(group[0, BEGIN]), int(group[0, END])
        cuts = begin + np.rint(np.r_[0, np.cumsum(share)] * (end - begin)).astype(np.int64)
        out[first:last, BEGIN], out[first:last, END] = cuts[:-1], cuts[1:]
        came = threads[:, :, 0] > 0
        late = np.where(came.any(axis=0), threads[0, :, 0] - begin, 0)
        waiting = np.where(came.any(axis=0), end - threads[-1, :, 1], 0)
        own = out[first:last, LOG_ROW:].reshape(last - first, -1, LOG_THREAD)
        own[:, :, 0] = np.where(came, cuts[:-1, None] + np.rint(share[:, None] * late), 0)
        own[:, :, 1] = np.where(came, cuts[1:, None] - np.rint(share[:, None] * waiting), 0)
        out[first:last, LOG_ROW:] = own.reshape(last - first, -1)
    return out
