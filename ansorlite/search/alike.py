"""Sketches of a task by their patterns: some of its space, made in a fraction of the time.

In: patterns that sketches of similar tasks have. Out: the task's own sketches with these patterns,
each made once, with names that differ from those of the space.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from ansorlite.space.sketch import Pattern, Sketch, SpaceOptions, sketches_alike
from ansorlite.task import SearchTask

NUMBER = re.compile(r"^s\d+")  # of a structure, in the name of a sketch


class SketchesAlike:
    """The sketches of one task that were asked for by pattern."""

    def __init__(self, task: SearchTask, options: SpaceOptions | None = None) -> None:
        self._task, self._options = task, options
        self._made: dict[Pattern, Sketch] = {}

    def __bool__(self) -> bool:
        return bool(self._made)

    @property
    def all(self) -> tuple[Sketch, ...]:
        """All that were made."""
        return tuple(self._made.values())

    def of(self, patterns: Sequence[Pattern]) -> list[Sketch]:
        """Those with these patterns, as far as the task has them."""
        new = [p for p in dict.fromkeys(patterns) if p not in self._made]
        made = sketches_alike(self._task.dag, self._task.target, new, self._options) if new else []
        for pattern, s in zip(new, made, strict=True):
            if s is not None:
                name = NUMBER.sub(f"f{len(self._made)}", s.name, count=1)
                self._made[pattern] = replace(s, name=name)
        return [s for p in patterns if (s := self._made.get(p)) is not None]
