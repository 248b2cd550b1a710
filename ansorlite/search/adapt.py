"""Programs for a task of new extents, made of those that are known for tasks of other extents.

In: a task that was never searched, results of tasks that were (measured, or the model's choice),
and records of a log. Out: a `TuneResult` whose program has the same steps and the nearest legal
values. Nothing is measured. Where no known program fits, the model chooses one.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ansorlite.ir.program import Program
from ansorlite.records import Record, distill
from ansorlite.search.history import Candidate
from ansorlite.search.result import TuneResult
from ansorlite.search.session import Session
from ansorlite.search.transfer import transferred
from ansorlite.search.tune_tasks import WeightedTask
from ansorlite.search.tuner import TaskTuner
from ansorlite.task import SearchTask


class Known(NamedTuple):
    """The result of a task, and what kind of computation the task is."""

    kind: str
    result: TuneResult


def adapted_results(
    session: Session, weighted: Sequence[WeightedTask], known: Sequence[Known]
) -> list[TuneResult]:
    """A result for each task: that of an equal task, else a program made of the nearest one's."""
    by_key = {k.result.task.workload_key: k.result for k in known}
    target = weighted[0].task.target.fingerprint if weighted else ""
    logged = distill([r for r in session.store.history if r.target == target], 1)
    out = []
    for w in weighted:
        same = next((by_key[f.workload_key] for f in w.forms if f.workload_key in by_key), None)
        out.append(same or _adapted(session, w, known, logged))
    return out


def _adapted(
    session: Session, weighted: WeightedTask, known: Sequence[Known], logged: Sequence[Record]
) -> TuneResult:
    tuners: dict[str, TaskTuner] = {}

    def tuner_of(form: SearchTask) -> TaskTuner:
        return tuners.setdefault(form.workload_key, session.tuner(form))

    def distance(k: Known) -> tuple[bool, float]:
        flops = max(k.result.task.flop, 1.0), max(weighted.task.flop, 1.0)
        return k.kind != weighted.similarity, abs(math.log(flops[0] / flops[1]))

    answered = [f for f in weighted.forms if session.answered(f)]
    if answered:
        best = min(map(tuner_of, answered), key=lambda t: t.best_latency_s or math.inf)
        if (record := best.best) is not None:
            return _result(session, best, best.space.program(record))
    for k in sorted(known, key=distance):
        other = k.result.task.meaning is not None
        for form in weighted.other_forms if other else (weighted.task,):
            tuner = tuner_of(form)
            named = k.result.guess if k.result.best is None else k.result.best.record
            for c in transferred(tuner.task, tuner.sketches, [named] if named else [], 1):
                return _result(session, tuner, _program(c))
    plain = tuner_of(weighted.task)
    for c in transferred(plain.task, plain.sketches, logged, 1):
        return _result(session, plain, _program(c))
    return _result(session, plain, plain.predicted())


def _program(c: Candidate) -> Program:
    return c.sketch.fill(np.asarray(c.row, np.int32))


def _result(session: Session, tuner: TaskTuner, program: Program) -> TuneResult:
    clock = session.budget.clock.seconds
    return TuneResult(tuner.task, None, (), clock, session.budget.elapsed_s, predicted=program)
