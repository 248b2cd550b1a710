"""What the fields of a step may be: data of any origin becomes a step only if every field fits.

In: a step's class and values by field name, as JSON has them (tuples for lists). Whether a step is
legal shows when it is applied to a schedule.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ansorlite.errors import ScheduleError
from ansorlite.schedule.stage import Factor

# By annotation: the types of a value, or of its parts, and whether it has many.
_TYPES: Mapping[str, tuple[tuple[type, ...], bool]] = {
    str(str): ((str,), False),
    str(Factor): ((int, str), False),
    str(tuple[str, ...]): ((str,), True),
    str(tuple[Factor, ...]): ((int, str), True),
}


def check_fields(cls: type[Any], given: Mapping[str, Any]) -> None:
    """ScheduleError unless these are the fields of the step, each of its type."""
    wanted = {f.name: _TYPES[str(f.type)] for f in fields(cls)}
    if set(given) != set(wanted):
        names = sorted(map(str, given))
        raise ScheduleError(f"step {cls.tag} has fields {names}, not {sorted(wanted)}")
    for name, (types, many) in wanted.items():
        value = given[name]
        parts = value if isinstance(value, tuple) else (value,)
        if isinstance(value, tuple) != many or any(type(v) not in types for v in parts):
            raise ScheduleError(f"field {name} of step {cls.tag} is {str(value)[:40]!r}")
