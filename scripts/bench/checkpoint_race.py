"""What searches of a network would have settled on after some numbers of trials, raced in the end.

In: tuning logs of searches of the same weighted tasks. Out: for each log the weighted sum of the
tasks' latencies, in seconds, at every checkpoint: of each task's `CONTENDERS` best programs so far
the one that wins the race, as at the end of a search. All programs of a task run in turn, those of
all searches together, so neither the luck of the least of many measurements counts nor the hour.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ansorlite.ir.program import Program
from ansorlite.measure.timing import TimingPolicy
from ansorlite.records import Record, read_log
from ansorlite.search.recorded import record_program
from ansorlite.search.tune_tasks import TOGETHER, WeightedTask
from bench.programs import RACES, raced

CONTENDERS = TOGETHER.race.contenders
AS_IN_A_NETWORK = TimingPolicy(fresh_constants=True)  # weights come from memory
Key = tuple[str, str]  # workload key of a form, text of a program


def settled(
    logs: Sequence[Path],
    weighted: Sequence[WeightedTask],
    checkpoints: Sequence[int],
    seconds: float,
) -> list[dict[int, float]]:
    """Checkpoint -> seconds, a log; `seconds` are those of every task's race.

    Checkpoints at which a task has no valid program are left out, as are those beyond a log.
    """
    out: list[dict[int, float]] = [{n: 0.0 for n in checkpoints} for _ in logs]
    records = [read_log(path).records for path in logs]
    for w in weighted:
        programs: dict[Key, Program] = {}
        found = [_contenders(own, w, checkpoints, programs) for own in records]
        latency = _latencies(w, programs, seconds)
        for sums, at in zip(out, found, strict=True):
            for n in list(sums):
                times = [t for key in at.get(n, ()) if (t := latency.get(key)) is not None]
                if times:
                    sums[n] += w.weight * min(times)
                else:
                    del sums[n]
    return out


def _contenders(
    records: Sequence[Record],
    weighted: WeightedTask,
    checkpoints: Sequence[int],
    programs: dict[Key, Program],
) -> dict[int, list[Key]]:
    """Checkpoint -> (form, program's text) of the best so far; `programs` gets them all."""
    forms = {f.workload_key: f for f in weighted.forms}
    out: dict[int, list[Key]] = {}
    known: dict[int, Key] = {}  # by place in the log
    for n in checkpoints:
        if n > len(records):
            break
        ok = [k for k, r in enumerate(records[:n]) if r.ok and r.task in forms and r.latency_s]
        for k in sorted(ok, key=lambda k: records[k].latency_s or 0.0)[:CONTENDERS]:
            if k not in known:
                program = record_program(forms[records[k].task], records[k])
                known[k] = records[k].task, str(program)
                programs[known[k]] = program
            out.setdefault(n, []).append(known[k])
    return out


def _latencies(
    weighted: WeightedTask, programs: Mapping[Key, Program], seconds: float
) -> dict[Key, float]:
    """(form, text) -> seconds; forms run one after the other, each for its share of the time."""
    out: dict[Key, float | None] = {}
    for form in weighted.forms:
        own = {key: p for key, p in programs.items() if key[0] == form.workload_key}
        if own:
            share = seconds * len(own) / len(programs)
            times = raced(form, list(own.values()), share, RACES, AS_IN_A_NETWORK)
            out |= zip(own, times, strict=True)
    return {key: t for key, t in out.items() if t is not None}
