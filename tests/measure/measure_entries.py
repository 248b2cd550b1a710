"""Entry functions for worker processes in tests: one for each kind of failure."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def obey() -> Callable[[tuple[str, Any]], Any]:
    """A handler of requests (action, argument): it performs the action."""
    served = [0]

    def handle(request: tuple[str, Any]) -> Any:
        what, argument = request
        served[0] += 1
        match what:
            case "echo":
                return argument
            case "count":
                return served[0]
            case "pid":
                return os.getpid()
            case "nice":
                return os.nice(0)
            case "modules":
                return sorted(sys.modules)
            case "raise":
                raise ValueError(argument)
            case "exit":
                sys.exit(argument)
            case "leave":
                os._exit(argument)
            case "print":
                print(argument)
                print(argument, file=sys.stderr)
                return None
            case "print and crash":
                print(argument, flush=True)
                os.kill(os.getpid(), signal.SIGABRT)
            case "signal me once":
                notes, number = argument
                if not os.path.exists(notes):
                    with open(notes, "w"):
                        os.kill(os.getpid(), number)
                return os.getpid()
            case "crash":
                ctypes.string_at(8)
            case "sleep":
                time.sleep(argument)
                return argument
            case "wait for":
                while not os.path.exists(argument):
                    time.sleep(0.01)
                return argument
            case "pid after":
                time.sleep(argument)
                return os.getpid()
            case "hang in C":
                ctypes.PyDLL(None).sleep(1000)  # PyDLL holds the interpreter's lock meanwhile
            case "start a child and hang":
                child = subprocess.Popen(["sleep", "1000"])
                with open(argument, "w") as file:
                    file.write(str(child.pid))
                time.sleep(1000)
            case "lambda":
                return lambda: argument
        raise AssertionError(what)

    return handle


def refuse(reason: str) -> Callable[[Any], Any]:
    raise ValueError(reason)


def die_at_start() -> Callable[[Any], Any]:
    print("no luck today", flush=True)
    os.kill(os.getpid(), signal.SIGABRT)
    raise AssertionError


def signalled_at_start(notes: str, times: int, number: int) -> Callable[[tuple[str, Any]], Any]:
    """Like `obey`, but the first `times` children send themselves a signal while they start."""
    with open(notes, "a") as file:
        file.write(f"{os.getpid()}\n")
    with open(notes) as file:
        if len(file.readlines()) <= times:
            print("not this time", flush=True)
            os.kill(os.getpid(), number)
    return obey()


def never_ready() -> Callable[[Any], Any]:
    time.sleep(1000)
    raise AssertionError


class Unpackable:
    """An object that can be pickled but not unpickled."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        raise ValueError("cannot be unpacked")


class Counted:
    """An object that counts how often this process unpickled one of its kind."""

    unpickled = 0

    def __init__(self) -> None:
        self.state = 1

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__.update(state)
        Counted.unpickled += 1


def build(request: Any, shared: Any) -> Any:
    """A build entry function: the requests of `obey`, and requests about shared objects."""
    match request:
        case ("shared", key):
            return shared[key]
        case ("keys", _):
            return sorted(shared)
        case ("unpickled", key):
            _ = shared[key]
            return Counted.unpickled
        case _:
            return obey()(request)
