"""Canonical names in tuning records: renaming of steps, holes and sketch names.

A workload key does not depend on names, so a record under the key must not either. Operations
become T0, T1, ... in the order of the DAG; their axes become a0, a1, ... (spatial, then reduction),
as in `ComputeDAG.canonical_text`. Derived names keep their suffixes: stages `C.cache`, `C.rf`,
`C.turned`, `B.packed` (with axes d0, d1, ...), `C.f64`; axes `k_o`, `k_i`; iterators `i.1`; factor
tokens `C.i:1` and `C.parallel:1>2`; holes `C.i`, `C.rf.k`, `C.lanes`. In: JSON values as
`State.to_json` and records hold them. Out: the same values with other names. Raises ScheduleError
for an unknown name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ansorlite.errors import ScheduleError
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import DERIVED_ENDINGS, ComputeOp

AXIS_ENDINGS = ("_o", "_i")
ANNOTATION_HOLES = ("parallel", "lanes", "unroll", "prefetch", "stream")
STAGE_FIELDS = ("stage", "target", "leader", "tensor", "reader")
FACTOR_FIELDS = ("factors", "factor", "value")


@dataclass(frozen=True)
class Renaming:
    """A map of names: `tensors` from old to new; `axes`, by old tensor name, from old to new."""

    tensors: Mapping[str, str]
    axes: Mapping[str, Mapping[str, str]]

    @cached_property
    def inverse(self) -> "Renaming":
        """The map in the opposite direction."""
        axes = {
            self.tensors[tensor]: {new: old for old, new in names.items()}
            for tensor, names in self.axes.items()
        }
        return Renaming({new: old for old, new in self.tensors.items()}, axes)

    def steps(self, steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Renamed steps, as `step_to_json` writes steps; ScheduleError for malformed steps."""
        try:
            return [self._step(s) for s in steps]
        except (AttributeError, KeyError, TypeError) as error:
            raise ScheduleError(
                f"a step lacks a field, or has a number where a name belongs: {error}"
            ) from error

    def frozen(self, steps: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
        """Renamed steps in the immutable form of records, with tuples instead of lists."""
        return tuple(
            {k: tuple(v) if isinstance(v, list) else v for k, v in s.items()}
            for s in self.steps(steps)
        )

    def holes(self, holes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Hole values by renamed hole."""
        return {self.hole(name): list(values) for name, values in holes.items()}

    def hole(self, name: str) -> str:
        """A renamed hole: `C.i`, `C.rf.k`, `C.lanes`; a hole of no operation keeps its name."""
        owner = self._owner(name)
        if owner is None or owner == name:
            return name
        endings, last = self._endings(owner, name)
        new = last if last in ANNOTATION_HOLES else self._axis_name(owner, endings, last)
        return f"{self.tensors[owner]}{endings}.{last if new is None else new}"

    def sketch(self, name: str, steps: Sequence[Mapping[str, Any]]) -> str:
        """A renamed sketch name such as `s2+B.packed@pad:h.1`, given the steps with old names.

        The iterator `h.1` belongs to the stage that `pad` is attached to, which only the steps
        tell.
        """

        def renamed(found: re.Match[str]) -> str:
            mark, stage, iterator = found.groups()
            text = f"{mark}{self.stage(stage)}"
            if iterator is None:
                return text
            targets = [
                s["target"]
                for s in steps
                if s["step"] == "compute_at" and (s["stage"], s["iterator"]) == (stage, iterator)
            ]
            if not targets:
                raise ScheduleError(
                    f"sketch {name} has no step that computes {stage} at {iterator}"
                )
            return f"{text}:{self.iterator(targets[-1], iterator)}"

        return self._in_sketches.sub(renamed, name)

    @cached_property
    def _in_sketches(self) -> re.Pattern[str]:
        longest_first = sorted(self.tensors, key=len, reverse=True)
        tensor = "|".join(map(re.escape, longest_first))
        ending = "|".join(map(re.escape, DERIVED_ENDINGS))
        return re.compile(rf"([+@])((?:{tensor})(?:{ending})*)(?::([^+@]+))?(?=[+@]|$)")

    # ---- single names ---------------------------------------------------------------------------

    def stage(self, name: str) -> str:
        """A renamed stage: an operation, or a stage derived from an operation."""
        owner = self._owner(name)
        if owner is None:
            raise ScheduleError(f"{name} is no operation of this DAG and derives from none")
        return self.tensors[owner] + name[len(owner) :]

    def axis(self, stage: str, name: str) -> str:
        """A renamed axis of a stage, including `k_o` and `k_i` of an rfactor."""
        owner = self._owner(stage)
        new = None if owner is None else self._axis_name(owner, stage[len(owner) :], name)
        if new is None:
            raise ScheduleError(f"stage {stage} has no axis {name}")
        return new

    def iterator(self, stage: str, name: str) -> str:
        """A renamed iterator: `i`, or `i.1` with its level."""
        axis, dot, level = name.rpartition(".")
        if dot and level.isdecimal():
            return f"{self.axis(stage, axis)}.{level}"
        return self.axis(stage, name)

    def factor(self, f: int | str) -> int | str:
        """A renamed factor: a number, a column `C.i:1`, or a depth `C.parallel:1>2`."""
        if isinstance(f, int):
            return f
        hole, colon, rest = f.rpartition(":")
        return f"{self.hole(hole)}{colon}{rest}"

    def _owner(self, name: str) -> str | None:
        """The operation with the longest name that equals `name` or is its dotted prefix."""
        while name not in self.tensors:
            name, dot, _ = name.rpartition(".")
            if not dot:
                return None
        return name

    def _endings(self, owner: str, hole: str) -> tuple[str, str]:
        """(suffixes of derived stages, last part) of a hole name after the operation name."""
        rest = hole[len(owner) :]
        endings = ""
        while e := next((e for e in DERIVED_ENDINGS if rest.startswith(f"{e}.")), ""):
            endings, rest = endings + e, rest[len(e) :]
        return endings, rest[1:]

    def _axis_name(self, owner: str, endings: str, name: str) -> str | None:
        """The new name of an axis of a (derived) stage; None if the axis is unknown."""
        if endings.endswith(".packed"):
            return name  # axes d0, d1, ... of a packed copy
        known = self.axes.get(owner, {})
        if name in known:
            return known[name]
        for e in AXIS_ENDINGS:
            if name.endswith(e) and name.removesuffix(e) in known:
                return known[name.removesuffix(e)] + e
        return None

    # ---- steps ----------------------------------------------------------------------------------

    def _step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        return {field: self._field(step, field, value) for field, value in step.items()}

    def _field(self, step: Mapping[str, Any], field: str, value: Any) -> Any:
        """The value of one field of a step, renamed according to the kind of the field."""
        if field in STAGE_FIELDS:
            return self.stage(value)
        if field in FACTOR_FIELDS:
            many = isinstance(value, list | tuple)
            return [self.factor(f) for f in value] if many else self.factor(value)
        match field:
            case "axis":
                return self.axis(step["stage"], value)
            case "axes":
                return [self.axis(step["stage"], name) for name in value]
            case "order":
                return [self.iterator(step["stage"], name) for name in value]
            case "iterator":
                return self.iterator(step.get("target", step.get("stage", "")), value)
        return value


@lru_cache(maxsize=512)
def canonical_names(dag: ComputeDAG) -> Renaming:
    """The map from a DAG's own names to canonical names; `.inverse` maps back."""
    computes = [op for op in dag.ops if isinstance(op, ComputeOp)]
    axes = {
        op.name: {a.name: f"a{k}" for k, a in enumerate(op.axes + op.reduce_axes)}
        for op in computes
    }
    return Renaming({op.name: f"T{k}" for k, op in enumerate(dag.ops)}, axes)
