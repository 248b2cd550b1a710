"""Errors that a user can act on.

Every message names the thing, the number and the place, and says what to do. Failures of single
candidates are no exceptions: they travel as `MeasureResult.status`.
"""

from ansorlite.names import shown


class AnsorliteError(Exception):
    """Base class; the command line prints it as one line and exits with a non-zero status."""

    def __str__(self) -> str:
        """The message on one line; control characters, as names may hold them, are escaped."""
        return shown(" ".join(line.strip() for line in super().__str__().splitlines()))


class ScheduleError(AnsorliteError):
    """A schedule step is illegal where it was applied."""


class BuildError(AnsorliteError):
    """A program could not be turned into native code."""


class ModelError(AnsorliteError):
    """A network, an operator, a shape or an input array is not usable."""


class LogError(AnsorliteError):
    """A tuning log cannot be used."""


class MissingExtra(AnsorliteError):
    """An optional dependency is missing; the message names the extra that brings it."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed: pip install 'ansorlite[{extra}]'")
