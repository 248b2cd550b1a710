"""Damaged tuning logs: each costs the damaged records at most, and gives no wrong answer (minutes).

Claim: logs cut at every byte of their last lines, with flipped bits, edited numbers, swapped lines,
fields and holes, nested values, keys that stand twice, huge integers, NaN, edited steps and choices
lead to no crash, no traceback and no wrong answer, whether they are compiled from, continued,
shown, replayed, simulated, merged or learned from. Makes a small log first; every program that a
log leads to is run and compared with numpy once. Logs are used in child processes, so that a crash
is counted, too.
Usage: python scripts/damage_logs.py [--count 3300] [--seed 0] [--json FILE]
"""

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ansorlite as al
import ansorlite.search.recorded as recorded
from ansorlite import te
from ansorlite.baselines.simulate import RecordedTask, simulate_policy
from ansorlite.cli import main as command
from ansorlite.codegen.kernel import Kernel
from ansorlite.ir.program import Program
from ansorlite.records import read_log
from ansorlite.report.logs import log_stats
from ansorlite.report.show import stage
from ansorlite.search.recorded import record_program
from ansorlite.search.session import Session
from ansorlite.search.transfer import transferred
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.task import SearchTask

CHUNK = 150  # logs of a child process
SPACE = SpaceOptions(max_sketches=8, locations=False)
NUMBERS = ("0", "-1", "6", "7", "1e999", "1e-300", "0.0", "NaN", "-0.0", "Infinity", "null", "true")
HUGE = (str(2**31), str(2**63), "9" * 30, "9" * 5000)
Lines = list[bytes]
Damage = Callable[[Lines, int, np.random.Generator], bytes]


def matmul(n: int) -> SearchTask:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B", constant=True)
    k = te.reduce_axis(n, name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return SearchTask([te.relu(c)])


def joined(lines: Lines) -> bytes:
    return b"".join(line + b"\n" for line in lines)


# ---- damage: lines, the number of the log, chance -> the damaged log -----------------------------


def victim(lines: Lines, rng: np.random.Generator) -> int:
    """The place of a line: mostly the fastest record or the last choice, which answer."""
    if rng.random() < 0.3:
        return int(rng.integers(len(lines)))
    rows = [json.loads(line) for line in lines]
    best = min(range(len(rows)), key=lambda k: rows[k]["latency_s"] or 1.0)
    return best if rng.random() < 0.5 else len(rows) - 1


def cut(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    """At every byte of the last two lines, in turn."""
    data = joined(lines)
    return data[: len(data) - n % (len(lines[-1]) + len(lines[-2]) + 2)]


def flipped(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    k = victim(lines, rng)
    data = bytearray(lines[k])
    for _ in range(int(rng.integers(1, 4))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return joined([*lines[:k], bytes(data), *lines[k + 1 :]])


def _replaced(lines: Lines, pattern: bytes, words: tuple[str, ...], rng: Any) -> bytes:
    k = victim(lines, rng)
    places = list(re.finditer(pattern, lines[k]))
    if not places:
        return joined(lines)
    at = places[int(rng.integers(len(places)))]
    word = words[int(rng.integers(len(words)))].encode()
    if rng.random() < 0.4:  # a digit alone
        word = at.group()[:-1] + str(int(rng.integers(10))).encode()
    lines[k] = lines[k][: at.start()] + word + lines[k][at.end() :]
    return joined(lines)


def numbers(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    return _replaced(lines, rb"(?<=[:\[,])-?[0-9][0-9.e+-]*", (*NUMBERS, *HUGE), rng)


def values(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    """Of holes alone."""
    k = victim(lines, rng)
    data = json.loads(lines[k])
    if data["holes"]:
        name = list(data["holes"])[int(rng.integers(len(data["holes"])))]
        own = data["holes"][name]
        others = [v for vs in data["holes"].values() for v in vs]
        choices: list[Any] = [*others, 0, 1, 2, 3, 6, 16, 64, 2**20, 2**31, -4]
        own[int(rng.integers(len(own)))] = choices[int(rng.integers(len(choices)))]
    lines[k] = json.dumps(data).encode()
    return joined(lines)


def swapped(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    """Lines, or fields of two records, change places; one stands twice or is gone."""
    i, k = victim(lines, rng), int(rng.integers(len(lines)))
    how = int(rng.integers(4))
    if how == 0:
        lines[i], lines[k] = lines[k], lines[i]
    elif how == 1:
        lines.insert(k, lines[i])
    elif how == 2:
        del lines[i]
    else:
        a, b = json.loads(lines[i]), json.loads(lines[k])
        for name in rng.choice(list(a), int(rng.integers(1, 4)), replace=False):
            a[name], b[name] = b[name], a[name]
        lines[i], lines[k] = json.dumps(a).encode(), json.dumps(b).encode()
    return joined(lines)


def nested(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    depth = int(rng.choice([2, 20, 400, 900, 20000]))
    opening, closing = (("[", "]"), ('{"x":', "}"))[int(rng.integers(2))]
    word = opening * depth + "1" + closing * depth
    return _replaced(lines, rb"(?<=[:\[,])-?[0-9][0-9.e+-]*", (word,), rng)


def twice(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    k = victim(lines, rng)
    fields = re.findall(rb'"[a-z_]+":(?:[0-9.e+-]+|"[^"]*")', lines[k])
    field = fields[int(rng.integers(len(fields)))]
    lines[k] = lines[k].replace(field, field + b"," + field[:-1] + b'1"'[field[-1] != 34 :], 1)
    return joined(lines)


def steps(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    """A step is gone, stands twice, moves, or has another field or value."""
    k = victim(lines, rng)
    data = json.loads(lines[k])
    own = data["steps"]
    at, how = int(rng.integers(len(own))), int(rng.integers(5))
    if how == 0:
        del own[at]
    elif how == 1:
        own.insert(int(rng.integers(len(own))), dict(own[at]))
    elif how == 2:
        own.insert(int(rng.integers(len(own))), own.pop(at))
    else:
        name = list(own[at])[int(rng.integers(len(own[at])))]
        known: list[Any] = [v for s in own for v in s.values()]
        known += [5, None, -1, 6, [], {}, [[1]], "", "T9", "x" * 10000, 2**40, "T2.lanes:1"]
        value = known[int(rng.integers(len(known)))]
        own[at] = {**own[at], name: value} if how == 3 else {**own[at], f"{name}s": value}
    lines[k] = json.dumps(data).encode()
    return joined(lines)


def words(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    """Status, target, task, sketch: other words of the log or none."""
    known = tuple(f'"{w}"' for w in ("OK", "CHOSEN", "OJ", "", "plain", "s0", "\\ud800", "\\u0000"))
    return _replaced(lines, rb'"[^"]*"(?=[,}])', known, rng)


def choices(lines: Lines, n: int, rng: np.random.Generator) -> bytes:
    """A choice at the end, fast, of a damaged record."""
    make = (values, steps, swapped, numbers)[n % 4]
    damaged = make([lines[victim(lines, rng)]] * 2, n, rng).splitlines()
    last = damaged[-1].replace(b'"OK"', b'"CHOSEN"')
    last = re.sub(rb'"latency_s": ?[0-9.e+-]+', b'"latency_s":1e-7', last)
    return joined([*lines, last])


DAMAGES: tuple[Damage, ...] = (
    cut,
    flipped,
    numbers,
    values,
    swapped,
    nested,
    twice,
    steps,
    words,
    choices,
)


# ---- use ----------------------------------------------------------------------------------------


class Wrong(Exception):
    """A kernel gave a wrong answer."""


class User:
    """Uses logs in every way; programs are run and compared once each."""

    def __init__(self) -> None:
        self.task, self.other = matmul(48), matmul(36)
        rng = np.random.default_rng(0)
        self.a, self.b = (rng.standard_normal((48, 48)).astype(np.float32) for _ in range(2))
        self.expected = np.maximum(self.a.astype(np.float64) @ self.b, 0)
        self.right: set[str] = set()
        self.spaces = {t: sketches(t.dag, t.target, SPACE) for t in (self.task, self.other)}
        self.known: dict[tuple[str, str], Any] = {}
        self.look_for, recorded.sketch_of = recorded.sketch_of, self.sketch_of

    def sketch_of(self, dag: Any, target: Any, steps: Any, options: Any = None) -> Any:
        """As the tuner finds the sketch of a record, but once for all logs: lowering takes long."""
        key = dag.workload_key, repr(steps)
        if key not in self.known:
            self.known[key] = self.look_for(dag, target, steps, options)
        return self.known[key]

    def check(self, program: Program) -> None:
        if str(program) not in self.right:
            got = Kernel(program, self.task.target)(self.a, self.b)
            if not np.allclose(got, self.expected, rtol=1e-4, atol=1e-4):
                raise Wrong(str(program))
            self.right.add(str(program))

    def compiled(self, log: Path) -> tuple[str, ...]:
        found = al.tune(self.task, 0, log=log, space=SPACE, progress=False)
        self.check(found.program)
        return found.problems

    def continued(self, log: Path) -> tuple[str, ...]:
        with Session(1, None, log=log, space=SPACE, progress=False) as session:
            tuner = session.tuner(self.task)
            for r in tuner.contenders(5):
                self.check(tuner.space.program(r))
            session.train([tuner])
            return session.store.problems

    def network(self, log: Path) -> tuple[str, ...]:
        weighted = [WeightedTask(t, 1.0) for t in (self.task, self.other)]
        with Session(0, None, log=log, space=SPACE, progress=False) as session:
            found = tune_tasks(session, weighted)
            self.check(found[0].program)
            return session.store.problems

    def shown(self, log: Path) -> tuple[str, ...]:
        log_stats(read_log(log))
        return tuple(stage(self.task, "program", "best", log, 0)[1])

    def replayed(self, log: Path) -> tuple[str, ...]:
        contents = read_log(log)
        told = [contents.damage] if contents.damage else []
        for r in contents.records:
            if r.ok and r.task == self.task.workload_key:
                try:
                    self.check(record_program(self.task, r))
                except al.AnsorliteError as error:
                    told.append(str(error))
        return tuple(told)

    def learned(self, log: Path) -> tuple[str, ...]:
        contents = read_log(log)
        transferred(self.other, self.spaces[self.other], contents.records, 8)
        own = [r for r in contents.records if r.task == self.task.workload_key]
        recorded = RecordedTask(self.task, self.spaces[self.task], own)
        simulate_policy(recorded, "random", 8, 0)
        return (contents.damage,) if contents.damage else ()

    def merged(self, log: Path) -> tuple[str, ...]:
        new = log.with_name("merged.jsonl")
        new.unlink(missing_ok=True)
        how = ("merge", "distill")[log.stat().st_size % 2]
        with contextlib.redirect_stdout(io.StringIO()):
            status = command(["log", how, str(log), str(log), "--output", str(new)])
        if status:
            raise al.AnsorliteError("told by the command")
        return self.compiled(new)


USES = ("compiled", "continued", "network", "shown", "replayed", "learned", "merged")


def used(user: User, base: Path, n: int, seed: int, folder: Path) -> tuple[str, str]:
    """(kind of damage, outcome) of a log."""
    damage = DAMAGES[n % len(DAMAGES)]
    place = n // len(DAMAGES)
    try:
        data = damage(base.read_bytes().splitlines(), place, np.random.default_rng([seed, n]))
    except (ValueError, KeyError, IndexError, TypeError):
        return damage.__name__, "not made"
    log = folder / "log.jsonl"
    log.write_bytes(data)
    outcomes = set()
    for way in ("compiled", USES[1 + place % (len(USES) - 1)]):
        try:
            outcomes.add("skipped" if getattr(user, way)(log) else "used")
        except al.AnsorliteError:
            outcomes.add("refused")
        except Exception as error:
            kind = "wrong" if isinstance(error, Wrong) else "traceback"
            print(f"log {n}, {damage.__name__}, {way}:", file=sys.stderr)
            traceback.print_exc()
            return damage.__name__, kind
    return damage.__name__, next(o for o in ("refused", "skipped", "used") if o in outcomes)


def child(base: Path, first: int, count: int, seed: int) -> None:
    warnings.simplefilter("ignore")
    user = User()
    with tempfile.TemporaryDirectory() as folder:
        for n in range(first, first + count):
            print("outcome", *used(user, base, n, seed, Path(folder)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=3300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="counts are appended to it")
    parser.add_argument("--child", nargs=2, metavar=("LOG", "FIRST"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(Path(args.child[0]), int(args.child[1]), args.count, args.seed)
        return 0
    began, counts = time.perf_counter(), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base.jsonl"
        for task in (matmul(36), matmul(48)):
            al.tune(task, 12, log=base, space=SPACE, progress=False)
        for first in range(0, args.count, CHUNK):
            size = min(CHUNK, args.count - first)
            line = [sys.executable, __file__, "--count", str(size), "--seed", str(args.seed)]
            done = subprocess.run(
                [*line, "--child", str(base), str(first)], stdout=subprocess.PIPE, text=True
            )
            told = [x.split()[1:] for x in done.stdout.splitlines() if x.startswith("outcome ")]
            counts.update((kind, outcome) for kind, outcome in told)
            if done.returncode or len(told) < size:
                kind = DAMAGES[(first + len(told)) % len(DAMAGES)].__name__
                print(f"log {first + len(told)}, {kind}: exit code {done.returncode}")
                counts[kind, "crash"] += size - len(told)
    outcomes = ("refused", "skipped", "used", "not made", "wrong", "traceback", "crash")
    print(f"{'damage':10}" + "".join(f"{o:>10}" for o in outcomes))
    for damage in DAMAGES:
        kind = damage.__name__
        print(f"{kind:10}" + "".join(f"{counts[kind, o]:>10}" for o in outcomes))
    total = {o: sum(n for (_, own), n in counts.items() if own == o) for o in outcomes}
    print(f"{'all':10}" + "".join(f"{total[o]:>10}" for o in outcomes))
    print(f"{sum(total.values())} logs in {time.perf_counter() - began:.0f} s")
    if args.json:
        with args.json.open("a") as out:
            out.write(json.dumps({"count": args.count, "seed": args.seed, **total}) + "\n")
    return 1 if total["wrong"] + total["traceback"] + total["crash"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
