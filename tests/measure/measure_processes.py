"""Helpers of the tests: scripts in separate processes, is a process alive, what kills one."""

import faulthandler
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def start_script(body: str) -> subprocess.Popen[str]:
    """Run `body` as a script on stdin, without any __main__ guard, in a group of its own.

    It takes SIGINT as a terminal's would, also where ours is ignored, as shells do in the
    background.
    """
    head = f"import signal, sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]\n"
    head += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    process = subprocess.Popen(
        [sys.executable, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdin is not None
    process.stdin.write(head + textwrap.dedent(body))
    process.stdin.close()
    return process


def read_pids(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def signal_of(action: Callable[[], object]) -> int:
    """The signal that `action` kills a fork of this process with; 0 if it survives."""
    if (pid := os.fork()) == 0:
        faulthandler.disable()  # pytest's would print a traceback for each death
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
