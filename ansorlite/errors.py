"""Errors that a user can act on; all exceptions of the public interface are of these kinds.

Every message names the thing, the number and the place, and says what to do. A candidate that fails
to build or run is no exception but a `MeasureResult` with a status. The command line prints an
error as one line and exits with its `status`: 2 for wrong input, 1 for a failure. Example::

    try:
        net = al.load_onnx("model.onnx")
    except al.ModelError as error:
        print(error)
"""

from ansorlite.names import shown


class AnsorliteError(Exception):
    """Base class: `except al.AnsorliteError` catches every error of the package."""

    status = 1  # exit status of the command line

    def __str__(self) -> str:
        """The message on one line; control characters (names may contain some) are escaped."""
        return shown(" ".join(line.strip() for line in super().__str__().splitlines()))


class UsageError(AnsorliteError, ValueError):
    """An argument, an option, an environment variable or a path has a value that is not allowed."""

    status = 2


class MachineError(AnsorliteError):
    """The system does not provide a resource: a process, memory, a file, a CPU instruction."""


class MeasureError(AnsorliteError):
    """A task cannot be measured: its reference kernel fails, is wrong, or was not prepared."""


class ScheduleError(AnsorliteError):
    """A schedule step is illegal in the state to which it is applied."""

    status = 2  # on the command line, steps come from a log or a template: both are input


class BuildError(AnsorliteError):
    """A program cannot be compiled to native code, or an object cannot be loaded."""


class ModelError(AnsorliteError):
    """A network, an operator, a shape or an array cannot be used."""

    status = 2


class SizesError(ModelError):
    """Sizes of a network's inputs are missing, contradict each other or are none of the listed.

    The message is in the words of Python; `shell` says the same in those of the command line, and
    `options` are what has to be added there.
    """

    def __init__(self, text: str, shell: str = "", options: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.shell, self.options = shell or text, options


class LogError(AnsorliteError):
    """A tuning log cannot be read or used."""

    status = 2


class LogWriteError(LogError):
    """A tuning log cannot be written: no space, no permission, deleted, or locked by a tuner."""

    status = 1


class MissingExtra(AnsorliteError):
    """An optional dependency is missing; the message names the extra that installs it."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed: pip install 'ansorlite[{extra}]'")
