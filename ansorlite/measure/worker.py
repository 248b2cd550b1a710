"""A supervised child process: it may hang or crash, its owner gets an answer all the same.

Flow: `PoolBuilder` and `LocalRunner` own Workers. In: an entry "module:function" (a factory, called
once in the child with `initargs`) and then picklable requests. Out: one `Reply` a request: the
handler's value, the text of its exception, a time-out (seconds) or a crash with its signal.
A child that hung or crashed is killed and replaced. Children are started from a fresh interpreter
that never imports the user's `__main__`, so scripts without a guard, notebooks and stdin work.
"""

import contextlib
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

from ansorlite.errors import AnsorliteError
from ansorlite.measure.child import receive, send

START_TIMEOUT_S = 60.0
TAIL_BYTES = 2000


@dataclass(frozen=True)
class Reply:
    """What came of one request; `value` counts only for kind "value", `error` only otherwise.

    `seconds` is the time from sending the request to the answer.
    """

    kind: Literal["value", "error", "timeout", "crash"]
    value: Any = None
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    log: int  # descriptor of the unnamed file that holds what the child printed
    owner_pid: int


class Worker:
    """One child process, replaced whenever it dies and after every `max_tasks` requests.

    `env` is added to the child's environment. Not thread-safe. Raises AnsorliteError where the
    child cannot even start, for that is no candidate's fault.
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
        self.generation = 0  # children started so far: state inside a child dies with it
        self.deadline: float | None = None  # of what is under way, on time.monotonic()
        self._first = pickle.dumps((entry, initargs))
        self._env = dict(env or {})
        self._max_tasks = max_tasks
        self._start_timeout_s = start_timeout_s
        self._child: _Child | None = None
        self._state: Literal["off", "starting", "idle", "busy"] = "off"
        self._sent_at = self._timeout_s = 0.0
        self._answered = 0
        self._safety_net: weakref.finalize[..., Worker] | None = None

    def start(self) -> None:
        """Start the child if there is none; returns at once, it imports in the background."""
        if self._child is not None:
            return
        child = _launch(self.name, self._env)
        self._child = child
        self._safety_net = weakref.finalize(self, _kill, child)
        self._state, self._answered = "starting", 0
        self.generation += 1
        self.deadline = time.monotonic() + self._start_timeout_s
        with contextlib.suppress(OSError):  # died already: poll finds out and says why
            send(child.channel, self._first)

    def close(self) -> None:
        """Kill the child and everything it started; the worker can be started again."""
        net, self._safety_net = self._safety_net, None
        self._child, self._state, self.deadline = None, "off", None
        if net is not None:
            net()

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
        """Descriptor that becomes readable when `poll` has news (for select and the like)."""
        return self._running().channel.fileno()

    @property
    def idle(self) -> bool:
        """The child is up and waits for a request."""
        return self._state == "idle"

    @property
    def starting(self) -> bool:
        """The child is on its way up, which keeps a processor busy for half a second."""
        return self._state == "starting"

    def submit(self, request: Any, timeout_s: float) -> None:
        """Send a request to an idle worker; its answer comes from `poll`."""
        assert self._state == "idle", f"{self.name} is {self._state}"
        child, message = self._running(), pickle.dumps(request, protocol=5)
        os.ftruncate(child.log, 0)
        self._state, self._sent_at, self._timeout_s = "busy", time.monotonic(), timeout_s
        self.deadline = self._sent_at + timeout_s
        child.channel.settimeout(timeout_s)
        with contextlib.suppress(OSError):  # hung or dead: poll tells which
            send(child.channel, message)

    def poll(self) -> Reply | None:
        """The answer if there is one by now; also notices that the child is up, late or dead."""
        if self._state == "off":
            return None
        child = self._running()
        if not wait([child.channel], 0) and not self._late():
            return None
        try:
            message = receive(child.channel, self.deadline)
        except TimeoutError:
            return self._on_timeout()
        if message is None:
            return self._on_exit()
        kind, value = pickle.loads(message)
        if kind == "failed":
            self.close()
            raise AnsorliteError(f"{self.name} cannot start: {value}")
        self.deadline = None
        if kind == "ready":
            self._state = "idle"
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
        """Send a request and wait for its answer, at most `timeout_s` (without the start-up)."""
        try:
            self.await_idle()
            self.submit(request, timeout_s)
            while (reply := self.poll()) is None:
                wait([self._running().channel], self.remaining_s())
            return reply
        except BaseException:
            self.close()  # whatever the child is doing, nobody waits for its answer any more
            raise

    def await_idle(self) -> None:
        """Start the child where needed and wait until it can take a request."""
        self.start()
        self.poll()  # a child that died while idle is replaced here
        while not self.idle:
            wait([self._running().channel], self.remaining_s())
            self.poll()

    def remaining_s(self) -> float | None:
        """Seconds until the deadline of what is under way; None while nothing is."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)

    def _running(self) -> _Child:
        assert self._child is not None, f"{self.name} is not started"
        return self._child

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _replace(self) -> None:
        self.close()
        self.start()

    def _on_timeout(self) -> Reply:
        seconds, tail = time.monotonic() - self._sent_at, _tail(self._running())
        if self._state == "starting":
            self.close()
            raise AnsorliteError(
                f"{self.name} was not ready after {self._start_timeout_s:g} s{tail}"
            )
        self._replace()
        return Reply("timeout", None, f"no answer within {self._timeout_s:g} s{tail}", seconds)

    def _on_exit(self) -> Reply | None:
        child, state, seconds = self._running(), self._state, time.monotonic() - self._sent_at
        text = _cause_of_death(child) + _tail(child)
        if state == "starting":
            self.close()
            raise AnsorliteError(f"{self.name} cannot start: {text}")
        self._replace()
        return Reply("crash", None, text, seconds) if state == "busy" else None


def _launch(name: str, env: Mapping[str, str]) -> _Child:
    if not sys.executable:
        raise AnsorliteError(
            f"cannot start {name}: sys.executable is empty, so no Python interpreter is known"
        )
    tied = threading.current_thread() is threading.main_thread()
    # The whole search path travels, so that the child finds what we find; -P keeps the current
    # directory from being put in front of it. A process group of its own keeps Ctrl-C away while
    # the child has not yet set its signal handlers, and lets us kill what it starts itself.
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    ours, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as log:
        # appending, so that cutting the file to nothing between requests leaves no hole
        fcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)
        code = "from ansorlite.measure.child import main; main({}, {}, {})"
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", code.format(theirs.fileno(), os.getpid(), tied), name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **env, "PYTHONPATH": path},
                process_group=0,
            )
        except OSError as error:
            ours.close()
            raise AnsorliteError(f"cannot start {name}: {sys.executable}: {error}") from error
        return _Child(process, ours, os.dup(log.fileno()), os.getpid())


def _kill(child: _Child) -> None:
    child.channel.close()
    os.close(child.log)
    if child.owner_pid != os.getpid():  # we are a fork of the owner: the child is not ours
        return
    if child.process.returncode is None:
        _kill_group(child.process.pid)
        child.process.wait()


def _kill_group(pid: int) -> None:
    # PermissionError: on macOS, a group of nothing but zombies
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _cause_of_death(child: _Child) -> str:
    # It closed its socket, so it is past deciding how it ends: a signal of ours changes nothing,
    # but reaches what it started, and must come before the wait that gives its number away.
    _kill_group(child.process.pid)
    code = child.process.wait()
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def _tail(child: _Child) -> str:
    size = os.fstat(child.log).st_size
    text = os.pread(child.log, TAIL_BYTES, max(size - TAIL_BYTES, 0)).decode(errors="replace")
    return f"; it printed: {text.strip()}" if text.strip() else ""
