"""Sketches of tasks, and a first look at them, made in another process and kept for later runs.

In: a task and the options of its space. Out: the sketches that `space.sketch.sketches` makes, and
features of a few rows of some of them (`EvolutionaryPolicy.first_looks`). Both follow from the
computation, the target, the options and this package's code, which are their key on disk
(`codegen.object_cache`); making them takes tenths of a second, reading them some milliseconds. A
process of its own makes those of the next tasks while others are searched here (`SpacesAhead`), and
stands still while anything is measured. Spaces with rules of one's own are made each time.
"""

import contextlib
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from ansorlite.codegen import object_cache
from ansorlite.cost.losses import Features
from ansorlite.cost.model import CostModel
from ansorlite.measure.worker import Worker
from ansorlite.search.policy import EvolutionaryPolicy
from ansorlite.space.rules import SKETCH_RULES
from ansorlite.space.sketch import Sketch, SpaceOptions, sketches
from ansorlite.task import SearchTask

MAKE_S = 120.0  # the longest that making a space may take
NICE = 15  # builds go first (`measure.builder.NICER`)


@dataclass(frozen=True)
class SpaceRequest:
    """Make the sketches of a task, and look at so many of them as a policy with `seed` would."""

    task: SearchTask
    options: SpaceOptions | None
    seed: int
    looks: int

    def make(self) -> None:
        """The answer is on disk."""
        task, options = self.task, self.options
        if kept_looks(task, options, self.seed):
            return
        made = kept_sketches(task, options, lambda: sketches(task.dag, task.target, options))
        model: Any = CostModel  # no model has a part in what is looked at
        policy = EvolutionaryPolicy(made, task.target, self.seed, task.workload_key, model)
        looks = pickle.dumps(policy.first_looks(self.looks), protocol=5)
        object_cache.save(_looks_key(task, options, self.seed), looks)


def serve() -> Callable[[SpaceRequest], None]:
    """Inside the process that makes spaces: the handler of requests."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    return SpaceRequest.make


class SpacesAhead:
    """Requests by a key, which a process of its own answers one after the other.

    Nothing goes on but between `resume` and `pause`, and the next request begins with `step`.
    """

    def __init__(self) -> None:
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._worker = Worker(f"{__name__}:serve", name="spaces", env=env)
        self._waiting: dict[str, SpaceRequest] = {}
        self.in_work: str | None = None
        self._worker.start()

    def want(self, key: str, request: SpaceRequest) -> None:
        """Ask for a space, after those that were asked for before."""
        self._waiting[key] = request

    def forget(self, key: str) -> None:
        """A space is no longer wanted, if it is not in work yet."""
        self._waiting.pop(key, None)

    def step(self) -> None:
        """Take an answer that is there, and begin the next request."""
        if self._worker.poll() is not None:
            self.in_work = None
        if self._waiting and self.in_work is None and self._worker.idle:
            self.in_work = next(iter(self._waiting))
            self._worker.submit(self._waiting.pop(self.in_work), MAKE_S)

    def wait(self) -> None:
        """Until the request in work, if there is one, is answered."""
        awaited = self.in_work
        while awaited is not None and self.in_work == awaited:
            wait([self._worker.fileno()], self._worker.remaining_s())
            self.step()

    def pause(self) -> None:
        """Leave both cores to others."""
        self._worker.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._worker.resume()

    def close(self) -> None:
        """Kill the process."""
        self._worker.close()


def can_be_kept(options: SpaceOptions | None) -> bool:
    """Are spaces with these options kept?"""
    return (options is None or options.rules == SKETCH_RULES) and object_cache.is_on()


def kept_sketches(
    task: SearchTask, options: SpaceOptions | None, make: Callable[[], Sequence[Sketch]]
) -> Sequence[Sketch]:
    """`make()`, or what was kept of it."""
    if not can_be_kept(options):
        return make()
    key = object_cache.key_of("space", *_own(task, options))
    known = _loaded(key)
    if isinstance(known, list) and all(isinstance(s, Sketch) for s in known):
        return known
    made = list(make())
    object_cache.save(key, pickle.dumps(made, protocol=5))
    return made


def kept_looks(task: SearchTask, options: SpaceOptions | None, seed: int) -> dict[str, Features]:
    """What was looked at of the task's sketches; empty where nothing is known."""
    known = _loaded(_looks_key(task, options, seed)) if can_be_kept(options) else None
    return known if isinstance(known, dict) else {}


def _looks_key(task: SearchTask, options: SpaceOptions | None, seed: int) -> str:
    return object_cache.key_of("looks", *_own(task, options), seed)


def _own(task: SearchTask, options: SpaceOptions | None) -> tuple[object, ...]:
    o = options or SpaceOptions()
    computation = task.dag.ops, task.dag.output_names, task.target
    return computation, (o.folding, o.packing, o.locations, o.max_sketches)


def _loaded(key: str) -> Any:
    data = object_cache.load(key)
    try:
        return None if data is None else pickle.loads(data)
    except Exception:  # of another version of a library, say: anything may be raised
        return None
