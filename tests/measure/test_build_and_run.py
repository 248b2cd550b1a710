"""From a lowered program to a checked time, through the real builder and runner."""

import numpy as np

from ansorlite import te
from ansorlite.codegen.build import BuildRequest, build_program
from ansorlite.measure.builder import PoolBuilder
from ansorlite.measure.result import Status
from ansorlite.measure.runner import CheckSpec, LocalRunner
from ansorlite.measure.timing import TimingPolicy
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.space.plain import plain_state
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


def root_of_the_largest(keeps_nan: bool) -> te.ComputeDAG:
    x, k = te.placeholder((4, 35), name="x"), te.reduce_axis(35, name="k")
    root = te.compute((4, 35), lambda i, j: te.sqrt(x[i, j] - 0.2), name="root")

    def read(i: te.Expr) -> te.Expr:
        value = root[i, k]
        return value if keeps_nan else te.select(te.equal(value, value), value, -1.0)

    return te.ComputeDAG([te.compute((4,), lambda i: te.max(read(i), axis=k), name="y")])


def test_a_nan_that_the_meaning_has_is_compared_and_not_refused() -> None:
    """Some inputs are below 0.2, positive ones too: all maxima are NaN, of a right kernel."""
    target = Target.detect()
    meant = root_of_the_largest(True)
    right = build_program(lower(plain_state(meant, target)), target)
    wrong = build_program(lower(plain_state(root_of_the_largest(False), target)), target)
    with LocalRunner(policy=TimingPolicy(repeat_s=1e-4, least_s=0.0)) as runner:
        assert runner.prepare("t", CheckSpec(meant, 0, right, 35)).ok
        assert runner.run("t", right).ok
        result = runner.run("t", wrong)
        assert result.status is Status.WRONG_OUTPUT and "expected nan" in result.error
