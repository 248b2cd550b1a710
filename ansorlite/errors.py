"""Errors that a user can act on.

Every message names the thing, the number and the place, and says what to do. Failures of single
candidates are no exceptions: they travel as `MeasureResult.status`. Whatever leaves the package is
one of these kinds. The command line prints an error as one line and exits with its `status`: 2 for
input that is wrong, 1 for a failure.
"""

from ansorlite.names import shown


class AnsorliteError(Exception):
    """Base class."""

    status = 1  # of the command line

    def __str__(self) -> str:
        """The message on one line; control characters, as names may hold them, are escaped."""
        return shown(" ".join(line.strip() for line in super().__str__().splitlines()))


class UsageError(AnsorliteError, ValueError):
    """An argument, an option, a name, a variable or a path that was given makes no sense."""

    status = 2


class MachineError(AnsorliteError):
    """The machine, or a limit of it, refuses what is needed: a process, memory, a file, a core."""


class MeasureError(AnsorliteError):
    """Nothing of a task can be measured: its reference fails, is wrong, or was not prepared."""


class ScheduleError(AnsorliteError):
    """A schedule step is illegal where it was applied."""

    status = 2  # no command applies steps of its own but those of a log


class BuildError(AnsorliteError):
    """A program could not be turned into native code."""


class ModelError(AnsorliteError):
    """A network, an operator, a shape or an input array is not usable."""

    status = 2


class LogError(AnsorliteError):
    """A tuning log cannot be used."""

    status = 2


class LogWriteError(LogError):
    """A tuning log cannot be written to: no space, no rights, deleted, or another tuner has it."""

    status = 1


class MissingExtra(AnsorliteError):
    """An optional dependency is missing; the message names the extra that brings it."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed: pip install 'ansorlite[{extra}]'")
