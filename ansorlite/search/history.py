"""What a search knows: results by sketch, with their features; which candidates are new.

In: sketches and a target, then candidates and their latencies in seconds. Out: features and
scores of rows, legal rows, rows that are neither measured nor, as far as features tell, the same
program as one that is (a hole may change nothing: the depth of parallel loops of extent 1, the
prefetch of a loop that is not there). Such rows would be built, and measured, for nothing.
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.cost.fast_analytic import fast_analytic_scores
from ansorlite.cost.features import FeaturePlan, features_of
from ansorlite.cost.losses import Features, TrainingGroup
from ansorlite.cost.planned import Population
from ansorlite.cost.signatures import signatures
from ansorlite.schedule.holes import population_columns
from ansorlite.search.evolve import Rows
from ansorlite.search.mend import mended
from ansorlite.search.select import unique_rows
from ansorlite.space.legality import broken_of, legal_of
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target

FEWEST_DRAWS = 64  # of a sketch that are made together
FEW = 4  # legal rows of a sketch: with fewer, draws are mended
MENDED = 256  # draws that are mended
GROWN = 4  # times as many rows are looked at next, where those before were not enough
Scores = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Row = npt.NDArray[np.int32]
Ranked = tuple[str, Row, float]  # sketch, row, score
Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Candidate:
    """A row of a sketch; `score` is what the policy predicted (0 if it did not)."""

    sketch: Sketch
    row: tuple[int, ...]
    score: float = 0.0

    @property
    def key(self) -> Key:
        return self.sketch.name, self.row

    @property
    def values(self) -> dict[str, tuple[int, ...]]:
        return self.sketch.values(np.asarray(self.row, dtype=np.int32))


def each(
    candidates: Sequence[Candidate], scores: Callable[[Mapping[str, Rows]], Mapping[str, Scores]]
) -> list[float]:
    """The score of each candidate, where `scores` has those of rows by sketch."""
    at: dict[str, list[int]] = {}
    for k, c in enumerate(candidates):
        at.setdefault(c.sketch.name, []).append(k)
    rows = {n: np.asarray([candidates[k].row for k in ks], np.int32) for n, ks in at.items()}
    out = [0.0] * len(candidates)
    for name, own in scores(rows).items():
        for k, score in zip(at[name], own, strict=True):
            out[k] = float(score)
    return out


class Guess(NamedTuple):
    """A program that was chosen and not measured, in the words of a record."""

    task: str
    steps: tuple[Any, ...]
    holes: dict[str, list[int]]
    ok: bool = True


@dataclass
class _Measured:
    """What was told of one sketch."""

    rows: list[tuple[int, ...]] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)
    place: list[int] = field(default_factory=list)  # among all that was told of the task


class _LookedAt:
    """Features of rows of one sketch."""

    def __init__(self) -> None:
        self._known: dict[bytes, Features] = {}
        self._new: list[tuple[Rows, Features]] = []  # not among those yet: most are never asked for

    def add(self, rows: Rows, found: Features) -> None:
        self._new.append((rows, found))

    def __getitem__(self, row: Row) -> Features | None:
        """float32[S, F]; None of a row that was not looked at."""
        for rows, found in self._new:
            self._known |= {own.tobytes(): f for own, f in zip(rows, found, strict=True)}
        self._new.clear()
        return self._known.get(row.tobytes())

    def of(self, rows: Sequence[tuple[int, ...]]) -> "_LookedAt":
        """Only what is known of these."""
        out = _LookedAt()
        for row in rows:
            own = np.asarray(row, np.int32)
            found = self[own]
            if found is not None:
                out._known[own.tobytes()] = found.copy()  # not all that were found with it
        return out


_NOTHING = _LookedAt()


class History:
    """Results by sketch, shared by the policies."""

    def __init__(self, sketches: Sequence[Sketch], target: Target) -> None:
        self.sketches: dict[str, Sketch] = {}
        self.target = target
        self.told: dict[str, _Measured] = {}
        self.add(sketches)
        self._plans: dict[str, FeaturePlan] = {}
        self._alike: set[bytes] = set()  # signatures of what was told
        self._looked_at: dict[str, _LookedAt] = {}  # since something was told
        self._mended: dict[str, Rows] = {}

    def add(self, sketches: Sequence[Sketch]) -> None:
        """Sketches that may be searched, beside those known."""
        for s in sketches:
            self.sketches.setdefault(s.name, s)
            self.told.setdefault(s.name, _Measured())

    def tell(self, candidates: Sequence[Candidate], latency_s: Sequence[float]) -> None:
        before, times = self.n_told, list(latency_s)
        for name in dict.fromkeys(c.sketch.name for c in candidates):
            at = [k for k, c in enumerate(candidates) if c.sketch.name == name]
            m = self.told[name]
            rows = np.asarray([candidates[k].row for k in at], dtype=np.int32)
            found = self._recalled({name: rows})[name]
            m.features.extend(found)
            self._alike.update(signatures(found))
            m.rows.extend(candidates[k].row for k in at)
            m.latency_s.extend(times[k] for k in at)
            m.place.extend(before + k for k in at)
        self._looked_at.clear()

    def looks(self, rows: Mapping[str, Rows]) -> dict[str, Features]:
        """`features_of` rows, some of which will be asked for again before results are told."""
        found = self.features_of(rows)
        for name, own in rows.items():
            self._looked_at.setdefault(name, _LookedAt()).add(own, found[name])
        return found

    def keep(self, candidates: Sequence[Candidate]) -> None:
        """Forget what was looked at but for these."""
        for name, looked_at in list(self._looked_at.items()):
            rows = [c.row for c in candidates if c.sketch.name == name]
            self._looked_at[name] = looked_at.of(rows)

    def _recalled(self, rows: Mapping[str, Rows]) -> dict[str, Features]:
        """`features_of` rows; those that were looked at are not made again."""
        known = {
            name: [self._looked_at.get(name, _NOTHING)[row] for row in own]
            for name, own in rows.items()
        }
        missing = {n: [k for k, f in enumerate(found) if f is None] for n, found in known.items()}
        made = self.looks({name: rows[name][at] for name, at in missing.items() if at})
        for name, found in made.items():
            for k, f in zip(missing[name], found, strict=True):
                known[name][k] = f
        return {name: np.stack([f for f in own if f is not None]) for name, own in known.items()}

    def features(self, name: str, rows: Rows) -> Features:
        """float32[P, S, F] of rows."""
        return self.features_of({name: rows})[name]

    def features_of(self, rows: Mapping[str, Rows]) -> dict[str, Features]:
        """float32[P, S, F] of rows of sketches by name."""
        found = features_of(self._populations(rows), self.target)
        return dict(zip(rows, found, strict=True))

    def draft(self, name: str, rows: Rows) -> Scores:
        """The analytic score of rows."""
        return self.drafts({name: rows})[name]

    def drafts(self, rows: Mapping[str, Rows]) -> dict[str, Scores]:
        """The analytic score of rows of sketches by name."""
        found = fast_analytic_scores(self._populations(rows), self.target)
        return dict(zip(rows, found, strict=True))

    def _populations(self, rows: Mapping[str, Rows]) -> list[Population]:
        return [
            self._plan(name).population(self._columns(name, own), len(own), self.target)
            for name, own in rows.items()
        ]

    def _columns(self, name: str, rows: Rows) -> Mapping[str, npt.NDArray[np.int64]]:
        return population_columns(self.sketches[name].holes, rows)

    def _plan(self, name: str) -> FeaturePlan:
        if name not in self._plans:
            self._plans[name] = FeaturePlan(self.sketches[name].program)
        return self._plans[name]

    def legal(self, name: str, rows: Rows) -> Mask:
        """bool[P], see `space.legality`."""
        return self.legal_of({name: rows})[name]

    def legal_of(self, rows: Mapping[str, Rows]) -> dict[str, Mask]:
        """bool[P] of rows of sketches by name."""
        asked = [
            (self.sketches[n].legality(self.target), self._columns(n, own), len(own))
            for n, own in rows.items()
        ]
        return dict(zip(rows, legal_of(asked), strict=True))

    def measured_rows(self, name: str) -> Rows:
        rows = self.told[name].rows
        width = len(self.sketches[name].holes)
        return np.asarray(rows, dtype=np.int32).reshape(len(rows), width)

    def signatures(self, name: str, rows: npt.ArrayLike) -> list[bytes]:
        """Of rows, see `cost.signatures`."""
        rows = np.asarray(rows, np.int32)
        return signatures(self._recalled({name: rows})[name]) if len(rows) else []

    def holds(self, signature: bytes) -> bool:
        """Was a program like this told?"""
        return signature in self._alike

    def is_new(self, name: str, rows: Rows) -> Mask:
        """bool[P]: neither measured nor like something that was."""
        return np.array([not self.holds(s) for s in self.signatures(name, rows)], np.bool_)

    def fresh(self, name: str, rows: Rows, taken: set[bytes]) -> Iterator[Row]:
        """Rows that are new and no copy of one before; `taken` holds what was yielded."""
        ranked = [(name, row, 0.0) for row in rows]
        return (row for _, row, _ in self.distinct(ranked, max(1, len(rows)), taken))

    def distinct(self, ranked: Sequence[Ranked], block: int, taken: set[bytes]) -> Iterator[Ranked]:
        """In order those that are new and no copy of one before, which `taken` then holds.

        The first `block` of them are looked at together, then more at a time.
        """
        end = 0
        while end < len(ranked):
            begin, end, block = end, end + block, GROWN * block
            part = ranked[begin:end]
            at: dict[str, list[int]] = {}
            for k, (name, *_) in enumerate(part):
                at.setdefault(name, []).append(k)
            found = self._recalled({n: np.stack([part[k][1] for k in ks]) for n, ks in at.items()})
            own: dict[int, bytes] = {}
            for name, places in at.items():
                own |= zip(places, signatures(found[name]), strict=True)
            for k, entry in enumerate(part):
                if own[k] not in taken and not self.holds(own[k]):
                    taken.add(own[k])
                    yield entry

    def sample(self, name: str, n: int, draws: int, rng: np.random.Generator) -> Rows:
        """Up to n legal rows, none twice, of a bounded number of draws (there may be none)."""
        return self.samples([name], n, draws, lambda _: rng)[name]

    def samples(
        self,
        names: Iterable[str],
        n: int,
        draws: int,
        rng_of: Callable[[str], np.random.Generator],
    ) -> dict[str, Rows]:
        """`sample` of several sketches, each drawn by the generator that `rng_of` its name is."""
        left = {name: rng_of(name) for name in names}
        drawn = {name: np.empty((0, len(self.sketches[name].holes)), np.int32) for name in left}
        out = dict(drawn)
        done, most = 0, max(FEWEST_DRAWS, n * draws)
        while left and done < most:
            # Most draws are legal in most sketches: no more are made and looked at.
            size = min(max(FEWEST_DRAWS, 2 * n, done), most - done)
            part = {}
            for name, rng in left.items():
                every = np.concatenate([drawn[name], self.sketches[name].sample(size, rng)])
                first, known = unique_rows(every), len(drawn[name])
                drawn[name], part[name] = every[first], every[first[first >= known]]
            legal = self.legal_of(part)
            for name, rows in part.items():
                out[name] = np.concatenate([out[name], rows[legal[name]]])[:n]
            done += size
            left = {name: rng for name, rng in left.items() if len(out[name]) < n}
        for name, rows in out.items():
            if len(rows) < min(n, FEW):
                rows = np.concatenate([rows, self._legal_rows(name)])
                out[name] = rows[unique_rows(rows)][:n]
        return out

    def _legal_rows(self, name: str) -> Rows:
        """Legal rows of a sketch in which hardly any draw is legal: always the same."""
        if name not in self._mended:
            s, rng = self.sketches[name], np.random.default_rng(zlib.crc32(name.encode()))
            legality, options = s.legality(self.target), np.array([len(h.options) for h in s.holes])

            def broken(rows: Rows) -> Scores:
                return broken_of([(legality, self._columns(name, rows), len(rows))])[0]

            self._mended[name] = mended(s.sample(MENDED, rng), options, broken, rng)
        return self._mended[name]

    def strangers(
        self, n: int, rng: np.random.Generator, taken: Collection[Key] = ()
    ) -> list[Candidate]:
        """Up to n legal rows of random sketches, neither measured nor `taken`."""
        names, out, alike = list(self.sketches), dict[Key, Candidate](), set[bytes]()
        for _ in range(16 * max(1, n)):
            if len(out) >= n:
                break
            name = names[int(rng.integers(len(names)))]
            for row in self.fresh(name, self.sample(name, 4, 16, rng), alike):
                c = Candidate(self.sketches[name], tuple(int(v) for v in row))
                if c.key not in taken:
                    out[c.key] = c
                    break
        return list(out.values())

    @property
    def n_told(self) -> int:
        return sum(len(m.latency_s) for m in self.told.values())

    def group(self, task_key: str) -> TrainingGroup:
        """Everything told so far, in that order, as the cost model learns it."""
        feats = [f for m in self.told.values() for f in m.features]
        times = np.array([t for m in self.told.values() for t in m.latency_s], np.float64)
        order = np.argsort([p for m in self.told.values() for p in m.place], kind="stable")
        return TrainingGroup(task_key, [feats[k] for k in order], times[order])

    @property
    def best_latency_s(self) -> float:
        times = [t for m in self.told.values() for t in m.latency_s]
        return min(times, default=float("inf"))
