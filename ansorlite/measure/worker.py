"""A supervised child process: its owner gets an answer even if the child hangs or crashes.

Flow: `PoolBuilder` and `LocalRunner` own Workers. In: an entry "module:function" (a factory, called
once in the child with `initargs`), then requests that can be pickled. Out: one `Reply` per request:
the handler's value, the text of its exception, a time-out (seconds) or a crash with its signal. A
child that hangs, crashes or fails to start is replaced; several failed starts in a row are an
error. A child is a fresh interpreter that never imports the user's `__main__`, so scripts without
an `if __name__ == "__main__"` guard, notebooks and standard input work.
"""

import contextlib
import errno
import fcntl
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Literal, Self

from ansorlite.errors import MachineError
from ansorlite.measure.child import receive, send
from ansorlite.streams import above_standard

START_TIMEOUT_S = 60.0
MAX_FAILED_STARTS = 3  # in a row; the last one is an error
START_CHECK_S = 1.0  # time between two checks whether a starting child was stopped
LAUNCH_TRIES = 4  # tries to start a process while the system lacks processes or memory
LAUNCH_PAUSE_S = 0.25
TAIL_BYTES = 2000  # printed text that an error message quotes
# Signals from the system or a user: a measured program does not send them to itself.
OUTSIDE = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGALRM}
)
ADVICE = {
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "the system has no file descriptor left: end other programs",
    errno.EAGAIN: "allow more processes (ulimit -u), or set ANSORLITE_BUILD_WORKERS to fewer",
    errno.ENOMEM: "free memory, allow more of it (ulimit -v), or set ANSORLITE_BUILD_WORKERS",
    errno.ENOSPC: "free space, or set TMPDIR to a directory that has some",
}


@dataclass(frozen=True)
class Reply:
    """The outcome of one request: `value` for the kind "value", `error` for all other kinds.

    `seconds` is the time from sending the request to the answer. `outside`: the system (out of
    memory) or a user killed or stopped the child, so the owner may send the request again.
    """

    kind: Literal["value", "error", "timeout", "crash"]
    value: Any = None
    error: str = ""
    seconds: float = 0.0
    outside: bool = False


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    log: int  # descriptor of the unnamed file that holds what the child printed
    owner_pid: int


class Worker:
    """One child process, replaced when it dies and after every `max_tasks` requests.

    `env` is added to the child's environment. Not thread-safe. Raises MachineError after
    `MAX_FAILED_STARTS` failed starts in a row. Example:
    `Worker("module:factory").call(request, timeout_s=10)`.
    """

    def __init__(
        self,
        entry: str,
        initargs: tuple[Any, ...] = (),
        *,
        name: str = "worker",
        env: Mapping[str, str] | None = None,
        max_tasks: int | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.generation = 0  # number of children started; state inside a child dies with it
        self.deadline: float | None = None  # of the start or the request, on time.monotonic()
        self._first = pickle.dumps((entry, initargs))
        self._env = dict(env or {})
        self._max_tasks = max_tasks
        self._start_timeout_s = start_timeout_s
        self._child: _Child | None = None
        self._state: Literal["off", "starting", "idle", "busy"] = "off"
        self._sent_at = self._timeout_s = 0.0
        self._answered = 0
        self._failed_starts = 0  # in a row
        self._safety_net: weakref.finalize[..., Worker] | None = None

    def start(self) -> None:
        """Start the child if there is none; returns without waiting until it is ready."""
        if self._child is not None:
            return
        child = _launch(self.name, self._env)
        self._child = child
        self._safety_net = weakref.finalize(self, _kill, child)
        self._state, self._answered = "starting", 0
        self.generation += 1
        self.deadline = time.monotonic() + self._start_timeout_s
        with contextlib.suppress(OSError):  # a dead child: `poll` reports it
            send(child.channel, self._first)

    def close(self) -> None:
        """Kill the child and the processes that it started; `start` works again afterwards."""
        net, self._safety_net = self._safety_net, None
        self._child, self._state, self.deadline = None, "off", None
        if net is not None:
            net()

    def pause(self) -> None:
        """Stop the child where it is, so that others have its core; `resume` lets it go on.

        A child that is starting goes on.
        """
        if self._child is not None and not self.starting:
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused child go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        child = self._child
        if child is not None and child.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process.pid, number)

    def interrupt(self) -> None:
        """Kill the child from another thread: the request in progress ends as a crash."""
        child = self._child
        if child is not None and child.process.returncode is None:
            _kill_group(child.process.pid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """A descriptor that becomes readable when `poll` has an answer (for select)."""
        return self._running().channel.fileno()

    @property
    def idle(self) -> bool:
        """Is the child ready for a request?"""
        return self._state == "idle"

    @property
    def starting(self) -> bool:
        """Is the child starting? That keeps a core busy for about half a second."""
        return self._state == "starting"

    def submit(self, request: Any, timeout_s: float) -> None:
        """Send a request to an idle worker; `poll` returns the answer."""
        assert self._state == "idle", f"{self.name} is {self._state}"
        child, message = self._running(), pickle.dumps(request, protocol=5)
        os.ftruncate(child.log, 0)
        self._state, self._sent_at, self._timeout_s = "busy", time.monotonic(), timeout_s
        self.deadline = self._sent_at + timeout_s
        child.channel.settimeout(timeout_s)
        with contextlib.suppress(OSError):  # a hung or dead child: `poll` reports it
            send(child.channel, message)

    def poll(self) -> Reply | None:
        """The answer, or None if there is none yet; handles the start, time-out and death, too."""
        if self._state == "off":
            return None
        child = self._running()
        if not wait([child.channel], 0) and not self._late():
            if self.starting and _is_stopped(child):
                self._on_failed_start(f"was stopped by a signal{_tail(child)}")
            return None
        try:
            message = receive(child.channel, self.deadline)
        except TimeoutError:
            return self._on_timeout()
        if message is None:
            return self._on_exit()
        kind, value = pickle.loads(message)
        if kind == "failed":
            self._on_failed_start(f"cannot start: {value}")
            return None
        self.deadline = None
        if kind == "ready":
            self._state, self._failed_starts = "idle", 0
            return None
        seconds = time.monotonic() - self._sent_at
        self._state = "idle"
        self._answered += 1
        if self._answered == self._max_tasks:
            self._replace()
        return (
            Reply("value", value, "", seconds)
            if kind == "value"
            else Reply("error", None, value, seconds)
        )

    def call(self, request: Any, timeout_s: float) -> Reply:
        """Send a request and wait for its answer, at most `timeout_s` after the child is ready."""
        try:
            self.await_idle()
            self.submit(request, timeout_s)
            while (reply := self.poll()) is None:
                wait([self._running().channel], self.remaining_s())
            return reply
        except BaseException:
            self.close()  # the answer will not be read
            raise

    def await_idle(self) -> None:
        """Start the child if needed and wait until it is ready for a request."""
        self.start()
        self.poll()  # replaces a child that died while it was idle
        while not self.idle:
            wait([self._running().channel], self.remaining_s())
            self.poll()

    def remaining_s(self) -> float | None:
        """Seconds until `poll` has to be called again; None: not before an answer arrives."""
        if self.deadline is None:
            return None
        left_s = max(self.deadline - time.monotonic(), 0.0)
        return min(left_s, START_CHECK_S) if self.starting else left_s

    def _running(self) -> _Child:
        assert self._child is not None, f"{self.name} is not started"
        return self._child

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _replace(self) -> None:
        self.close()
        self.start()

    def _on_timeout(self) -> Reply | None:
        child = self._running()
        seconds, tail = time.monotonic() - self._sent_at, _tail(child)
        if self.starting:
            self._on_failed_start(f"was not ready after {self._start_timeout_s:g} s{tail}")
            return None
        stopped = _is_stopped(child)
        self._replace()
        why = " (a signal stopped it)" if stopped else ""
        text = f"no answer within {self._timeout_s:g} s{why}{tail}"
        return Reply("timeout", None, text, seconds, stopped)

    def _on_exit(self) -> Reply | None:
        child, state, seconds = self._running(), self._state, time.monotonic() - self._sent_at
        number = _end(child)
        text = _in_words(number) + _tail(child)
        if state == "starting":
            self._on_failed_start(f"cannot start: {text}")
            return None
        self._replace()
        outside = number < 0 and -number in OUTSIDE
        return Reply("crash", None, text, seconds, outside) if state == "busy" else None

    def _on_failed_start(self, text: str) -> None:
        """Start another child, or raise MachineError after `MAX_FAILED_STARTS` failed starts."""
        self.close()
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            self._failed_starts = 0
            raise MachineError(f"{self.name} {text} (the last of {MAX_FAILED_STARTS} tries)")
        self.start()


def _launch(name: str, env: Mapping[str, str]) -> _Child:
    if not sys.executable:
        raise MachineError(
            f"cannot start {name}: sys.executable is empty, so no Python interpreter is known"
        )
    for left in reversed(range(LAUNCH_TRIES)):
        try:
            return _launch_once(name, env)
        except OSError as error:
            if left and error.errno in (errno.EAGAIN, errno.ENOMEM):
                time.sleep(LAUNCH_PAUSE_S)
                continue
            advice = ADVICE.get(error.errno or 0, f"is {sys.executable} a Python that runs?")
            raise MachineError(
                f"cannot start {name}: {error.strerror or error}: {advice}"
            ) from error
    raise AssertionError


def _launch_once(name: str, env: Mapping[str, str]) -> _Child:
    tied = threading.current_thread() is threading.main_thread()
    # The child gets the whole search path, so that its imports find the same modules; -P keeps the
    # current directory out of the front of the path. The separate process group protects the child
    # from Ctrl-C before it sets its signal handlers, and lets `_kill` reach processes it starts.
    path = os.pathsep.join(filter(None, map(_absolute, sys.path)))
    code = "from ansorlite.measure.child import main; main({}, {}, {})"
    with contextlib.ExitStack() as stack:
        ours, theirs = map(_kept_apart, socket.socketpair())
        stack.callback(theirs.close)
        on_failure = stack.enter_context(contextlib.ExitStack())
        on_failure.callback(ours.close)
        log = above_standard(_unnamed_file())
        on_failure.callback(os.close, log)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code.format(theirs.fileno(), os.getpid(), tied), name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, **env, "PYTHONPATH": path},
            process_group=0,
        )
        on_failure.pop_all()
    return _Child(process, ours, log, os.getpid())


def _absolute(path: str) -> str:
    """The absolute path; "" where the current directory was deleted."""
    try:
        return os.path.abspath(path)
    except OSError:
        return ""


def _kept_apart(end: socket.socket) -> socket.socket:
    """The socket on a descriptor above 2: the child uses 0 to 2 for its standard streams."""
    return socket.socket(fileno=above_standard(end.detach()))


def _unnamed_file() -> int:
    """Descriptor of a file without a name, in memory or else in the temporary folder.

    Opened for appending, so that truncating the file between requests leaves no hole.
    """
    if hasattr(os, "memfd_create"):
        try:
            fd = os.memfd_create("ansorlite-worker")
        except OSError as error:
            if error.errno in ADVICE:  # a limit is reached: the temporary folder would not help
                raise
        else:
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
            return fd
    with tempfile.TemporaryFile() as file:
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        return os.dup(file.fileno())


def _kill(child: _Child) -> None:
    child.channel.close()
    os.close(child.log)
    if child.owner_pid != os.getpid():  # this process is a fork of the owner of the child
        return
    if child.process.returncode is None:
        _kill_group(child.process.pid)
        child.process.wait()


def _kill_group(pid: int) -> None:
    # PermissionError: on macOS, for a group that has only zombies
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _is_stopped(child: _Child) -> bool:
    """Did a signal stop the child (SIGSTOP)? It does not continue by itself."""
    if not hasattr(os, "waitid"):
        return False
    try:
        news = os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return news is not None


def _end(child: _Child) -> int:
    """Kill the rest of a child that closed its socket; returns its exit status, or minus a signal.

    The status is fixed once the socket is closed: the signal reaches only processes that the child
    started. It is sent before the wait, after which the process number may belong to another
    process.
    """
    _kill_group(child.process.pid)
    return child.process.wait()


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _tail(child: _Child) -> str:
    size = os.fstat(child.log).st_size
    text = os.pread(child.log, TAIL_BYTES, max(size - TAIL_BYTES, 0)).decode(errors="replace")
    return f"; it printed: {text.strip()}" if text.strip() else ""
