"""Measure the last contenders again, in turn, so that drift and disturbances hit all alike.

In: a prepared runner and kernel images of one task. Out: one `MeasureResult` an image, in order;
`times_s` are the medians of its heats, `latency_s` is their median (seconds). Every heat checks the
outputs again. Heats go A B C, C B A, A B C ...: a clock that slows down favours nobody.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ansorlite.codegen.image import KernelImage
from ansorlite.measure.result import MeasureResult
from ansorlite.measure.runner import Runner

MIN_HEATS = 2


def race(
    runner: Runner,
    task_key: str,
    images: Sequence[KernelImage],
    *,
    heats: int = 5,
    margin: float = 1.1,
) -> list[MeasureResult]:
    """Run `heats` heats; who fails once, or stays above margin times the leader, drops out.

    A contender that fails has that heat's result, whatever it did before.
    """
    results: list[list[MeasureResult]] = [[] for _ in images]
    running = list(range(len(images)))
    for heat in range(heats):
        for k in running if heat % 2 == 0 else running[::-1]:
            results[k].append(runner.run(task_key, images[k]))
        running = [k for k in running if results[k][-1].ok]
        if heat + 1 >= MIN_HEATS and running:
            lead = min(_latency(results[k]) for k in running)
            running = [k for k in running if min(_times(results[k])) <= margin * lead]
    return [_summary(r) for r in results]


def _times(results: Sequence[MeasureResult]) -> list[float]:
    return [r.latency_s for r in results if r.latency_s is not None]


def _latency(results: Sequence[MeasureResult]) -> float:
    return median(_times(results))


def _summary(results: Sequence[MeasureResult]) -> MeasureResult:
    last = results[-1]
    if not last.ok:
        return last
    return replace(
        last,
        latency_s=_latency(results),
        times_s=tuple(_times(results)),
        run_s=sum(r.run_s for r in results),
        check_s=sum(r.check_s for r in results),
        max_error=max(r.max_error or 0.0 for r in results),
    )
