"""Programs of tasks that nothing is measured of: what `n_trials=0` compiles.

In: tasks, one after the other. Out: the program of each that is predicted to be the fastest, and
its object code. Of a task whose kin was measured before the package was made (`search.shipped`) it
is one of those programs, adapted. Others are searched: the first task of a family, tasks that
differ by extents alone, in all sketches; the others in those that did best there, from rows adapted
to their extents. Programs are built in processes of their own meanwhile. Answers are kept on disk
(`codegen.object_cache`), by all that they depend on, hints of the family included: they are the
same with and without.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ansorlite.codegen import object_cache
from ansorlite.codegen.build import BuildRequest
from ansorlite.codegen.image import KernelImage
from ansorlite.ir.program import Program
from ansorlite.measure.builder import PoolBuilder
from ansorlite.schedule.lower import lower
from ansorlite.schedule.naming import canonical_names
from ansorlite.search.alike import SketchesAlike
from ansorlite.search.debug import Trace
from ansorlite.search.evolve import Rows
from ansorlite.search.families import NEAREST_KIN, PATTERNS, adapted_programs, not_far
from ansorlite.search.guess import Guess, GuessParams, guesses
from ansorlite.search.history import History, each
from ansorlite.search.policy import round_rng
from ansorlite.search.roles import family_of
from ansorlite.search.shipped import shipped
from ansorlite.search.shrink_task import adapted, are_legal
from ansorlite.settings import settings
from ansorlite.space.plain import plain_state
from ansorlite.space.sketch import ROWS, Pattern, Sketch, sketches, sketches_alike
from ansorlite.target import Target
from ansorlite.task import SearchTask

HINTS = 4  # sketches of the first task of a family that the others are searched in
AHEAD_FROM = 6  # tasks from which processes that build pay for their start
MOST_BUILDERS = 2
Renamed = Callable[[str], str]  # canonical name of a hole


@dataclass(frozen=True)
class Hint:
    """A sketch that did well: its pattern, and the values of its best row by canonical hole."""

    pattern: Pattern
    values: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Answer:
    """The program of a task, its object code where it was built, and hints for its family."""

    program: Program
    hints: tuple[Hint, ...] = ()
    image: KernelImage | None = None


@dataclass
class _Open:
    """A task in work: where its answer is kept, the answer, and whether it is being built."""

    task: SearchTask
    key: str
    answer: Answer
    building: bool = False


class Untuned:
    """Answers for the tasks of one session; `close` ends its processes."""

    def __init__(self, seed: int, trace: Trace, params: GuessParams | None = None) -> None:
        self._seed, self._trace, self._params = seed, trace, params or GuessParams()
        self._hints: dict[str, tuple[Hint, ...]] = {}
        self._found: dict[str, _Open] = {}  # by workload key
        self._builder: PoolBuilder | None = None

    def close(self) -> None:
        if self._builder is not None:
            self._builder.close()

    def program(self, task: SearchTask, n_tasks: int = 1) -> Program:
        """The program of a task, one of so many; from `AHEAD_FROM` on, its build begins here."""
        family = family_of(task)
        hints = self._hints.get(family, ())
        key = object_cache.key_of(
            "untuned",
            (task.dag.ops, task.dag.output_names, task.target),
            (self._seed, self._params, hints),
        )
        answer = _kept(key)
        if answer is None:
            answer = self._search(task, hints)
            _keep(key, answer)
        self._hints.setdefault(family, answer.hints)
        found = self._found[task.workload_key] = _Open(task, key, answer)
        if answer.image is None and n_tasks >= AHEAD_FROM:
            self._begin(found)
        return answer.program

    def has_kin(self, task: SearchTask) -> bool:
        """Is its program one of those that are shipped, adapted?"""
        return _of_kin(task) is not None

    def image(self, task: SearchTask) -> KernelImage | None:
        """The object code of a task's program, if it was built here or before."""
        self._finish()
        found = self._found.get(task.workload_key)
        return None if found is None else found.answer.image

    # ---- builds ---------------------------------------------------------------------------------

    def _begin(self, found: _Open) -> None:
        """Have the program built while the next task is searched."""
        if self._builder is None:
            self._builder = PoolBuilder(_builders(found.task.target))
        self._builder.share(found.key, found.answer.program)
        self._builder.begin(BuildRequest(found.key, {}, found.task.target))
        found.building = True

    def _finish(self) -> None:
        """Wait for all builds; what failed is built, and fails, where it is needed."""
        waiting = [f for f in self._found.values() if f.building]
        if self._builder is None or not waiting:
            return
        for found, outcome in zip(waiting, self._builder.finish(), strict=True):
            self._builder.unshare(found.key)
            found.building = False
            if outcome.image is not None:
                found.answer = replace(found.answer, image=outcome.image)
                _keep(found.key, found.answer)

    # ---- the search -----------------------------------------------------------------------------

    def _search(self, task: SearchTask, hints: Sequence[Hint]) -> Answer:
        dag, target = task.dag, task.target
        known_best = _of_kin(task)
        if known_best is not None:
            return Answer(known_best)
        names = canonical_names(dag)
        alike = sketches_alike(dag, target, [h.pattern for h in hints]) if hints else []
        known = [s for s in alike if s is not None]
        whole = not known or len(known) < len(hints)
        space = sketches(dag, target) if whole else known
        self._trace.task(task, space)
        first = {} if whole else _adapted(alike, hints, target, names.hole)
        history = History(space, target)
        rng = round_rng(self._seed, task.workload_key, 1)
        found = guesses(history, history.drafts, rng, first, self._params)
        if not found:
            return Answer(lower(plain_state(dag, target)))
        program = history.sketches[found[0].name].fill(np.asarray(found[0].row, np.int32))
        return Answer(program, tuple(_hint(history, g, names.hole) for g in _varied(found)))


def _of_kin(task: SearchTask) -> Program | None:
    """The shipped program of the task's kin, adapted, with the best analytic score."""
    alike = SketchesAlike(task)
    near = not_far(shipped(task.target).of_kin(task, NEAREST_KIN))
    found = adapted_programs(task, alike.of, near, PATTERNS)
    if not found:
        return None
    history = History(alike.all, task.target)
    scores = np.add(each([c for c, _ in found], history.drafts), [own for _, own in found])
    best, _ = found[int(np.argmax(scores))]
    return best.sketch.fill(np.asarray(best.row, np.int32))


def _varied(found: Sequence[Guess]) -> list[Guess]:
    """The best few; among them one fused over rows, if there is one: good for small extents."""
    rows = [g for g in found if ROWS in g.name][:1]
    return list(dict.fromkeys([*found[: HINTS - 1], *rows, *found]))[:HINTS]


def _hint(history: History, guess: Guess, hole: Renamed) -> Hint:
    sketch = history.sketches[guess.name]
    values = sketch.values(np.asarray(guess.row, np.int32))
    return Hint(sketch.pattern, tuple((hole(name), v) for name, v in values.items()))


def _adapted(
    alike: Sequence[Sketch | None], hints: Sequence[Hint], target: Target, hole: Renamed
) -> Mapping[str, Rows]:
    """Rows by sketch that are nearest to the hints' rows, as far as they are legal."""
    rows = []
    for sketch, hint in zip(alike, hints, strict=True):
        if sketch is None:
            continue
        known = dict(hint.values)
        values = {h.name: known[hole(h.name)] for h in sketch.holes if hole(h.name) in known}
        rows.append((sketch, adapted(sketch, values)))
    legal = are_legal(rows, target)
    return {sketch.name: row[None] for (sketch, row), ok in zip(rows, legal, strict=True) if ok}


def _builders(target: Target) -> int:
    """How many processes build: two, where there are as many cores."""
    return min(MOST_BUILDERS, settings().build_workers or target.cores)


# ---- answers on disk ----------------------------------------------------------------------------


def _kept(key: str) -> Answer | None:
    data = object_cache.load(key) if object_cache.is_on() else None
    try:
        found = None if data is None else pickle.loads(data)
    except Exception:  # of another version of a library, say: anything may be raised
        return None
    return found if isinstance(found, Answer) else None


def _keep(key: str, answer: Answer) -> None:
    if object_cache.is_on():
        object_cache.save(key, pickle.dumps(answer, protocol=5))
