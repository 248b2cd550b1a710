"""From a lowered program to a checked time, through the real builder and runner."""

import numpy as np

from ansorlite import te
from ansorlite.codegen.build import BuildRequest
from ansorlite.measure.builder import PoolBuilder
from ansorlite.measure.result import Status
from ansorlite.measure.runner import CheckSpec, LocalRunner
from ansorlite.measure.timing import TimingPolicy
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.target import Target


def product(scale: float) -> te.ComputeDAG:
    a, b = te.placeholder((20, 30), name="A"), te.placeholder((30, 9), name="B", constant=True)
    k = te.reduce_axis(30, name="k")
    c = te.compute((20, 9), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.ComputeDAG([te.compute((20, 9), lambda i, j: c[i, j] * scale, name="D")])


def test_a_program_is_built_checked_and_timed_and_another_one_is_found_wrong() -> None:
    target = Target.detect()
    with (
        PoolBuilder(2) as builder,
        LocalRunner(policy=TimingPolicy(repeat_s=1e-4, least_s=0.0)) as runner,
    ):
        for key, scale in (("right", 2.0), ("wrong", 2.5)):
            builder.share(key, lower(State(product(scale), ())))
        requests = [BuildRequest(key, {}, target) for key in ("right", "wrong", "unknown")]
        right, wrong, unknown = builder.build(requests)
        assert unknown.status is Status.BUILD_ERROR and "KeyError: 'unknown'" in unknown.error
        assert right.image and wrong.image, (right.error, wrong.error)
        prepared = runner.prepare("t", CheckSpec(product(2.0), 0, right.image, 30))
        assert prepared.ok, prepared.error
        result = runner.run("t", right.image)
        assert result.ok and result.latency_s == float(np.median(result.times_s))
        assert runner.run("t", wrong.image).status is Status.WRONG_OUTPUT
