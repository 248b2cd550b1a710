"""Contenders that take turns: neighbours in time are compared, as a shared machine changes speed.

In: contenders in processes of their own (see `serve`), or calls in this process. Out: seconds of
every turn. The ratio of two contenders is the median over the turns of the ratio within each turn.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from ansorlite.errors import MeasureError
from bench.serve import timed

SCRIPTS = Path(__file__).parents[1]
PAUSE_S = 0.03  # lets the threads of the contender before go to sleep
OURS = "ansorlite"


@dataclass(frozen=True)
class Spec:
    """What a contender's process is to prepare: `prepare(options)` of the module `bench.peers.X`.

    `python` is the interpreter that has the peer.
    """

    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable


class Contender:
    """A process that runs `bench.serve`; `mode` says in its own words what it runs.

    Raises MeasureError where the process cannot prepare or run its computation.
    """

    def __init__(self, name: str, spec: Spec) -> None:
        self.name = name
        folders = [str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [spec.python, "-m", "bench.serve", spec.module, json.dumps(dict(spec.options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        )
        try:
            self.mode = str(self._answer()["mode"])
        except BaseException:
            self.close()
            raise

    def turn(self, seconds: float) -> float:
        """Call for about so many seconds: the median latency."""
        return float(self._told(seconds)["latency_s"])

    def calls(self, seconds: float) -> list[float]:
        """Call for about so many seconds: the latency of every call."""
        return [float(t) for t in self._told(seconds, each=True)["times_s"]]

    def _told(self, seconds: float, each: bool = False) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: its answer, or none, tells why
            self._process.stdin.write(json.dumps({"seconds": seconds, "each": each}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MeasureError(f"contender {self.name} died: status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise MeasureError(f"contender {self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def take_turns(
    specs: Mapping[str, Spec], turns: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(latencies of the turns, mode) by contender; processes start one after the other."""
    with contextlib.ExitStack() as stack:
        contenders = [stack.enter_context(Contender(n, spec)) for n, spec in specs.items()]
        times: dict[str, list[float]] = {c.name: [] for c in contenders}
        for _ in range(turns):
            for c in contenders:
                time.sleep(PAUSE_S)
                times[c.name].append(c.turn(seconds))
        return times, {c.name: c.mode for c in contenders}


def in_turn(
    calls: Sequence[Callable[[], Any]], turns: int, seconds: float
) -> list[tuple[float, ...]]:
    """Of every turn the seconds of each call, which run in this process for `seconds` each."""
    return [tuple(timed(call, seconds)[0] for call in calls) for _ in range(turns)]


def paired_ratio(turns: Mapping[str, Sequence[float]], peer: str, ours: str = OURS) -> float:
    """The peer's latency over that of `ours`: the median over the turns, each within its turn.

    A machine that gets slower or faster meanwhile does so for both of a pair.
    """
    pairs = zip(turns[peer], turns[ours], strict=True)
    return median(theirs / ours for theirs, ours in pairs)
