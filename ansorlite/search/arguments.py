"""What callers may ask of a tuning run: checked before anything is started.

In: the arguments of `tune`, `auto_schedule` and `Session`. Out: nothing, or a UsageError that names
the argument, its value and what is allowed.
"""

import math
import operator
import os
from collections.abc import Callable, Iterable
from numbers import Real

from ansorlite.errors import UsageError
from ansorlite.target import Target
from ansorlite.task import SearchTask


def check_whole(name: str, value: object, least: int) -> None:
    """A whole number that is not too small; a bool is none."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise UsageError(f"{name} is {_brief(value)}: it must be a whole number >= {least}")
    if number < least:
        why = "must not be negative" if least == 0 else f"must be at least {least}"
        raise UsageError(f"{name} is {number}: it {why}")


def check_number(name: str, value: object) -> None:
    """A number >= 0; NaN is none."""
    if not isinstance(value, Real) or isinstance(value, bool) or math.isnan(value):
        raise UsageError(f"{name} is {_brief(value)}: it must be a number >= 0")
    if value < 0:
        raise UsageError(f"{name} is {value}: it must not be negative")


def check_budget(n_trials: object, timeout: object, seed: object, round_size: object) -> None:
    """There is a budget of trials or of seconds, and all of it makes sense."""
    if n_trials is None and timeout is None:
        raise UsageError("tuning needs a budget: give n_trials or timeout")
    if n_trials is not None:
        check_whole("n_trials", n_trials, 0)
    if timeout is not None:
        check_number("timeout", timeout)
    check_whole("seed", seed, 0)
    if round_size is not None:
        check_whole("round_size", round_size, 1)


def check_path(name: str, value: object) -> None:
    """A path that the system can take, or None."""
    if value is None:
        return
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise UsageError(f"{name} is {_brief(value)}: give a path as text or Path")
    if "\0" in os.fspath(value) or not os.fspath(value):
        raise UsageError(f"{name} is {_brief(os.fspath(value))}, which is no path of a file")


def check_tasks(tasks: Iterable[object]) -> None:
    """Tasks, and not their names or tensors."""
    for task in tasks:
        if not isinstance(task, SearchTask):
            raise UsageError(
                f"{_brief(task)} is no task: make one with SearchTask([tensor]) or workload(name)"
            )


def target_of(value: object) -> Target:
    """The target that a caller means: itself, a preset's name, or None for this machine."""
    if value is None:
        return Target.detect()
    if isinstance(value, str):
        return Target.named(value)
    if not isinstance(value, Target):
        raise UsageError(
            f"target is {_brief(value)}: give a Target, a preset's name, or None for this machine"
        )
    return value


def check_callable(name: str, value: Callable[..., object] | None) -> None:
    if value is not None and not callable(value):
        raise UsageError(f"{name} is {_brief(value)}: give a function, or None")


def check_able(name: str, value: object, method: str) -> None:
    """An object of the caller's own kind, which has to have this method; or None."""
    if value is not None and not callable(getattr(value, method, None)):
        raise UsageError(f"{name} is {_brief(value)}, which has no method {method}")


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Keyword arguments that exist."""
    for name in given:
        if name not in (names := list(known)):
            raise UsageError(f"there is no argument {name!r}: choose among {', '.join(names)}")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
