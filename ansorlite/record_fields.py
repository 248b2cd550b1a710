"""What a line of a tuning log may hold: its fields, their types and their limits.

Flow: `records` checks every line that it reads, and every record that it writes, against `FIELDS`;
what is read must make sense besides (`check_sense`). In: text, or the values of a record by field.
Out: the values, or `Damaged`, whose message says what is wrong. Numbers are bounded, so that no
later sum, index or date overflows; nesting is, so that nothing recurses without end.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

FORMAT = 1
OK = "OK"
CHOSEN = "CHOSEN"
# Those of `measure.result.Status`, and that of a line which tells what a run settled on.
STATUSES = (
    OK,
    "BUILD_ERROR",
    "BUILD_TIMEOUT",
    "RUN_ERROR",
    "RUN_TIMEOUT",
    "WRONG_OUTPUT",
    CHOSEN,
)
LEAST_S, MOST_S = 1e-12, 1e9  # of a latency, and of what a measurement takes
MOST_VALUE = 2**31  # of a hole
MOST_COUNT = 2**31  # of rounds and trials that are written
PLAUSIBLE_COUNT = 10**9  # of those that are read, so that the next ones have a place
MOST_DEPTH = 16  # of steps
LAST_DATE = 2.5e11  # seconds since 1970, in the year 9892: calendars end soon after
SLACK = 1e-6  # by which a latency may lie outside of its times


class Damaged(Exception):
    """Text or values that make no record; the message says why."""


def load_object(line: str) -> dict[str, Any]:
    """The JSON object of a line; Damaged where there is none, or a key stands in it twice."""
    try:
        data = json.loads(line, parse_constant=_no_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"not a JSON object: {error}") from error
    if not isinstance(data, dict):
        raise Damaged(f"not a JSON object: {line[:40]!r}")
    return data


def check_fields(data: Mapping[str, Any]) -> None:
    """Damaged unless every field has the type and lies within the limits that it is to have."""
    for name, (test, wanted) in FIELDS.items():
        if name not in data:
            raise Damaged(f"field {name!r} is missing")
        if not test(data[name]):
            raise Damaged(f"field {name!r} is not {wanted}: {shown(data[name])!r}")


def check_sense(data: Mapping[str, Any]) -> None:
    """Damaged where checked fields of a line contradict each other, or cannot be true."""
    for name in ("round", "trial"):
        if data[name] >= PLAUSIBLE_COUNT:
            raise Damaged(f"field {name!r} is {data[name]}, which no run comes to")
    status, latency_s, times_s = data["status"], data["latency_s"], data["times_s"]
    if (latency_s is None) == (status in (OK, CHOSEN)):
        raise Damaged(f"status {status} does not go with a latency of {latency_s}")
    if status == OK and times_s:
        low, high = min(times_s), max(times_s)
        if not (1 - SLACK) * low <= latency_s <= (1 + SLACK) * high:
            raise Damaged(f"latency_s is {latency_s}, its times_s go from {low} to {high}")


def shown(value: object) -> str:
    """A value for a message, cut short."""
    try:
        return str(value)[:40]
    except ValueError:  # an integer of thousands of digits
        return "a huge integer"


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice[:40]!r} stands in it twice")
    return data


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def is_int(value: object) -> bool:
    return type(value) is int


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_COUNT


def _is_seed(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**64


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _between(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and _is_number(value) and low <= value <= high


def _is_spent(value: object) -> bool:
    return _between(value, 0.0, MOST_S)


def _is_date(value: object) -> bool:
    return _between(value, 0.0, LAST_DATE)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_json(value: object, depth: int = 0) -> bool:
    match value:
        case None | bool() | str():
            return True
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return math.isfinite(value)
        case list() | tuple():
            return depth < MOST_DEPTH and all(_is_json(v, depth + 1) for v in value)
        case dict():
            # json.dumps would turn other keys into text without a word.
            return depth < MOST_DEPTH and all(
                _is_text(k) and _is_json(v, depth + 1) for k, v in value.items()
            )
    return False


def _is_steps(value: object) -> bool:
    return isinstance(value, list | tuple) and _is_json(value)


def _is_holes(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(k, str)
        and isinstance(v, list)
        and all(type(x) is int and 0 <= x < MOST_VALUE for x in v)
        for k, v in value.items()
    )


def _is_times(value: object) -> bool:
    return isinstance(value, list) and all(_between(t, LEAST_S, MOST_S) for t in value)


def _is_latency(value: object) -> bool:
    return value is None or _between(value, LEAST_S, MOST_S)


_COUNT = (_is_count, f"an integer from 0 to {MOST_COUNT - 1}")
_SPENT = (_is_spent, f"a finite number from 0 to {MOST_S:.0e}")
_TEXT = (_is_text, "text")
FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "format": (lambda value: is_int(value) and value == FORMAT, f"{FORMAT}"),
    "target": _TEXT,
    "task": _TEXT,
    "task_name": _TEXT,
    "sketch": _TEXT,
    "steps": (_is_steps, f"a list of finite numbers, text, lists and mappings, {MOST_DEPTH} deep"),
    "holes": (_is_holes, f"a mapping from names to lists of integers from 0 to {MOST_VALUE - 1}"),
    "status": (lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "times_s": (_is_times, f"a list of numbers from {LEAST_S} to {MOST_S:.0e}"),
    "latency_s": (_is_latency, f"null or a positive finite number, {LEAST_S} to {MOST_S:.0e}"),
    "error": _TEXT,
    "round": _COUNT,
    "trial": _COUNT,
    "seed": (_is_seed, "an integer of 64 bits"),
    "timestamp": (_is_date, f"a finite number of seconds from 0 to {LAST_DATE:.1e}"),
    "build_s": _SPENT,
    "run_s": _SPENT,
    "version": _TEXT,
}
