"""A contender's process: prepares one computation, then times it whenever it is told to.

In: `python -m bench.serve MODULE OPTIONS`, where `bench.peers.MODULE` has
`prepare(options) -> (call, mode)` and OPTIONS are its argument as JSON; then on standard input
lines {"seconds": s, "each": bool}. Out, as JSON lines: {"mode": ...} once it is ready, then a line
a turn with the median latency of the calls made in that time, or with the latency of each call.
Runs in a peer's interpreter, which need not have any of ansorlite's dependencies.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

BATCH_S = 0.0002  # short calls are timed in batches of about this length
WARM_UP = 4
LONG_S = 0.05


def timed(call: Callable[[], Any], seconds: float) -> tuple[float, int]:
    """(median seconds of a call, number of calls) of about so many seconds, after a warm-up."""
    once, warm = 0.0, 0
    while warm < WARM_UP and once < LONG_S:  # one call is warm-up enough for what takes long
        began = perf_counter()
        call()
        once = max(perf_counter() - began, 1e-7)
        warm += 1
    inner = max(1, round(BATCH_S / once))
    times: list[float] = []
    end = perf_counter() + seconds
    while not times or perf_counter() < end:
        began = perf_counter()
        for _ in range(inner):
            call()
        times.append((perf_counter() - began) / inner)
    return median(times), inner * len(times)


def each_call(call: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of every call for about so long, without a warm-up."""
    times, end = [], perf_counter() + seconds
    while (began := perf_counter()) < end:
        call()
        times.append(perf_counter() - began)
    return times


def main() -> int:
    module, options = sys.argv[1], json.loads(sys.argv[2])
    # What libraries print goes to standard error: standard output is the protocol.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**values: Any) -> None:
        out.write(json.dumps(values) + "\n")
        out.flush()

    try:
        call, mode = import_module(f"bench.peers.{module}").prepare(options)
    except Exception as error:  # the driver prints it
        say(error=f"{type(error).__name__}: {error}")
        return 1
    say(mode=mode)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["each"]:
                say(times_s=each_call(call, asked["seconds"]))
            else:
                latency, calls = timed(call, asked["seconds"])
                say(latency_s=latency, calls=calls)
        except Exception as error:
            say(error=f"{type(error).__name__} in mode {mode}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
