"""The fields of a line of a tuning log: names, types and limits.

Flow: `records` checks every line that it reads, and every record that it writes, against `FIELDS`.
The fields of a line that was read must also be consistent (`check_sense`). In: text, or the values
of a record by field. Out: the values, or `Damaged` with the reason. Limits on numbers keep later
sums, indices and dates from overflowing; the limit on nesting keeps recursion short.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

FORMAT = 1
OK = "OK"
CHOSEN = "CHOSEN"
ESTIMATED = "ESTIMATED"
# The values of `measure.result.Status`; CHOSEN: the line names the winner of a tuning run;
# ESTIMATED: the program was built for a machine that was not at hand, and not run.
STATUSES = (
    OK,
    "BUILD_ERROR",
    "BUILD_TIMEOUT",
    "RUN_ERROR",
    "RUN_TIMEOUT",
    "WRONG_OUTPUT",
    CHOSEN,
    ESTIMATED,
)
MIN_SECONDS, MAX_SECONDS = 1e-12, 1e9  # limits of a latency and of the time of a measurement
MAX_VALUE = 2**31  # values of a hole lie below
MAX_COUNT = 2**31  # numbers of rounds and trials that are written lie below
PLAUSIBLE_COUNT = 10**9  # numbers that are read lie below, so that a resumed run can count on
MAX_DEPTH = 16  # nesting of steps
LAST_DATE = 2.5e11  # seconds since 1970, in the year 9892; Python's calendar ends in 9999
SLACK = 1e-6  # relative distance that a latency may lie outside of its times


class Damaged(Exception):
    """A text or values that form no record; the message gives the reason."""


def load_object(line: str) -> dict[str, Any]:
    """The JSON object of a line; raises Damaged for other text or where a key occurs twice."""
    try:
        data = json.loads(line, parse_constant=_no_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"not a JSON object: {error}") from error
    if not isinstance(data, dict):
        raise Damaged(f"not a JSON object: {line[:40]!r}")
    return data


def check_fields(data: Mapping[str, Any]) -> None:
    """Raise Damaged where a field is missing, has a wrong type or exceeds its limits."""
    for name, (test, wanted) in FIELDS.items():
        if name not in data:
            raise Damaged(f"field {name!r} is missing")
        if not test(data[name]):
            raise Damaged(f"field {name!r} is not {wanted}: {shown(data[name])!r}")
    for name, (test, wanted) in OPTIONAL.items():
        if name in data and not test(data[name]):
            raise Damaged(f"field {name!r} is not {wanted}: {shown(data[name])!r}")


def check_sense(data: Mapping[str, Any]) -> None:
    """Raise Damaged where fields that passed `check_fields` contradict each other."""
    for name in ("round", "trial"):
        if data[name] >= PLAUSIBLE_COUNT:
            raise Damaged(f"field {name!r} is {data[name]}, more than any run has")
    status, latency_s, times_s = data["status"], data["latency_s"], data["times_s"]
    if (latency_s is None) == (status in (OK, CHOSEN, ESTIMATED)):
        raise Damaged(f"status {status} does not go with a latency of {latency_s}")
    if status in (OK, ESTIMATED) and times_s:
        low, high = min(times_s), max(times_s)
        if not (1 - SLACK) * low <= latency_s <= (1 + SLACK) * high:
            raise Damaged(f"latency_s is {latency_s}, its times_s go from {low} to {high}")


def shown(value: object) -> str:
    """A value for a message, at most 40 characters."""
    try:
        return str(value)[:40]
    except ValueError:  # an integer of thousands of digits
        return "a huge integer"


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice[:40]!r} occurs twice")
    return data


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def is_int(value: object) -> bool:
    return type(value) is int


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


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
    return _between(value, 0.0, MAX_SECONDS)


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
            return depth < MAX_DEPTH and all(_is_json(v, depth + 1) for v in value)
        case dict():
            # json.dumps silently turns other keys into text.
            return depth < MAX_DEPTH and all(
                _is_text(k) and _is_json(v, depth + 1) for k, v in value.items()
            )
    return False


def _is_steps(value: object) -> bool:
    return isinstance(value, list | tuple) and _is_json(value)


def _is_holes(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(k, str)
        and isinstance(v, list)
        and all(type(x) is int and 0 <= x < MAX_VALUE for x in v)
        for k, v in value.items()
    )


def _is_times(value: object) -> bool:
    return isinstance(value, list) and all(_between(t, MIN_SECONDS, MAX_SECONDS) for t in value)


def _is_latency(value: object) -> bool:
    return value is None or _between(value, MIN_SECONDS, MAX_SECONDS)


_COUNT = (_is_count, f"an integer from 0 to {MAX_COUNT - 1}")
_SPENT = (_is_spent, f"a finite number from 0 to {MAX_SECONDS:.0e}")
_TEXT = (_is_text, "text")
_SECONDS = f"from {MIN_SECONDS} to {MAX_SECONDS:.0e}"
FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "format": (lambda value: is_int(value) and value == FORMAT, f"{FORMAT}"),
    "target": _TEXT,
    "task": _TEXT,
    "task_name": _TEXT,
    "sketch": _TEXT,
    "steps": (_is_steps, f"a list of finite numbers, text, lists and mappings, {MAX_DEPTH} deep"),
    "holes": (_is_holes, f"a mapping from names to lists of integers from 0 to {MAX_VALUE - 1}"),
    "status": (lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "times_s": (_is_times, f"a list of numbers {_SECONDS}"),
    "latency_s": (_is_latency, f"null or a positive finite number {_SECONDS}"),
    "error": _TEXT,
    "round": _COUNT,
    "trial": _COUNT,
    "seed": (_is_seed, "an integer of 64 bits"),
    "timestamp": (_is_date, f"a finite number of seconds from 0 to {LAST_DATE:.1e}"),
    "build_s": _SPENT,
    "run_s": _SPENT,
    "version": _TEXT,
}
# Fields that are written only where they have a value.
OPTIONAL: Mapping[str, tuple[Callable[[object], bool], str]] = {"device": _TEXT}
