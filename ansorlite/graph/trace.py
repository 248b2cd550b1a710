"""Kernels, threads and waiting of one run of a network, in Chrome's trace format.

In: names of calls, what is told of each, and the notes of `codegen.stamps` in nanoseconds. Out: a
dict for JSON; chrome://tracing and ui.perfetto.dev show it. Times are microseconds from the first
call on. A row of the picture is a thread: thread 0 has the kernels, and in them what it does in
parallel regions; the others what they do in those.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansorlite.codegen.stamps import Stamps
from ansorlite.names import shown


def trace_events(
    network: str,
    names: Sequence[str],
    told: Sequence[Mapping[str, Any]],
    calls: Stamps,
    regions: Stamps,
) -> dict[str, Any]:
    """The run as complete events ("X"), the network's and the threads' names as metadata ("M")."""
    threads = max([1, *map(int, regions[:, 0])]) if len(regions) else 1
    start = int(calls[0, 1]) if len(calls) else 0
    events = [_named("process_name", 0, network)]
    events += [
        _named("thread_name", k, "thread 0: kernels" if k == 0 else f"thread {k}")
        for k in range(threads)
    ]
    own = iter(regions)
    region = next(own, None)
    for number, begin, end in calls.tolist():
        name = shown(names[number])
        events.append(_event(name, 0, begin - start, end - start, "kernel", told[number]))
        while region is not None and int(region[1]) < end:
            events += _shares(name, region, start)
            region = next(own, None)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _shares(name: str, region: Any, start: int) -> Iterator[dict[str, Any]]:
    """What each thread does in a region, and how long it then waits for the end of it."""
    size, _, end, _, *stamps = region.tolist()
    for k, (first, last) in enumerate(zip(stamps[::2], stamps[1::2], strict=True)):
        if k < size and first:
            yield _event(name, k, first - start, last - start, "share", {})
            if last < end:
                yield _event("waiting", k, last - start, end - start, "waiting", {})


def _event(
    name: str, thread: int, begin: int, end: int, kind: str, told: Mapping[str, Any]
) -> dict[str, Any]:
    times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": 1,
        "tid": thread,
        **times,
        "args": {**told},
    }


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": shown(name)}}
