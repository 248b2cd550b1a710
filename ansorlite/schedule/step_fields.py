"""Types of step fields: JSON data becomes a step only if every field has the expected type.

In: a step class and values by field name (tuples for JSON lists). Whether a step is legal is
decided later, when the step is applied to a schedule.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ansorlite.errors import ScheduleError
from ansorlite.schedule.stage import Factor

# By annotation of the field: element types, and whether the field is a tuple.
_TYPES: Mapping[str, tuple[tuple[type, ...], bool]] = {
    str(str): ((str,), False),
    str(Factor): ((int, str), False),
    str(tuple[str, ...]): ((str,), True),
    str(tuple[Factor, ...]): ((int, str), True),
}


def check_fields(cls: type[Any], given: Mapping[str, Any]) -> None:
    """Raise ScheduleError unless `given` has exactly the fields of the step, each of its type."""
    wanted = {f.name: _TYPES[str(f.type)] for f in fields(cls)}
    if set(given) != set(wanted):
        names = sorted(map(str, given))
        raise ScheduleError(f"step {cls.tag} has fields {names}, not {sorted(wanted)}")
    for name, (types, many) in wanted.items():
        value = given[name]
        parts = value if isinstance(value, tuple) else (value,)
        if isinstance(value, tuple) != many or any(type(v) not in types for v in parts):
            raise ScheduleError(f"field {name} of step {cls.tag} is {str(value)[:40]!r}")
