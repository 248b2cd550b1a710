"""LocalRunner: right kernels are timed, each kind of failure has its status, nothing escapes."""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure_kernels as mk
import numpy as np
import pytest
from measure_processes import alive, eventually, processor_s, read_pids, start_script

from ansorlite import te
from ansorlite.codegen.image import Param
from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.measure.buffers import Buffers
from ansorlite.measure.inputs import NormalNumbers
from ansorlite.measure.race import race
from ansorlite.measure.result import Status
from ansorlite.measure.runner import CheckSpec, LocalRunner, thread_variables
from ansorlite.measure.runner_child import Data, TaskData, _prepare, make_reference
from ansorlite.measure.timing import TimingPolicy

QUICK = TimingPolicy(repeat_s=1e-4, least_s=0.0, max_repeats=3)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    """One that has task "t" prepared; it is the runner's job to survive what is done to it."""
    with LocalRunner(policy=QUICK, n_threads=3) as r:
        prepared = r.prepare("t", mk.check_spec())
        assert prepared.ok and prepared.error == ""
        assert prepared.max_error is not None and prepared.max_error < 1e-6
        yield r


def pid_of(runner: LocalRunner) -> int:
    child = runner._worker._child
    assert child is not None
    return child.process.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_run_whose_process_was_killed_is_repeated(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    submit, killed = runner._worker.submit, list[int]()

    def submit_and_kill(request: Any, timeout_s: float) -> None:
        submit(request, timeout_s)
        if request[0] == "run" and not killed:
            killed.append(pid_of(runner))
            os.kill(killed[0], number)

    monkeypatch.setattr(runner._worker, "submit", submit_and_kill)
    assert runner.run("t", mk.kernel()).status is Status.OK
    assert killed and eventually(lambda: not alive(killed[0]))


def test_a_runner_that_is_killed_while_it_starts_costs_nothing() -> None:
    with LocalRunner(policy=QUICK, n_threads=1) as starting:
        os.kill(pid_of(starting), signal.SIGKILL)
        assert starting.prepare("t", mk.check_spec()).ok


def test_wrong_numbers_of_threads_and_seconds() -> None:
    for options in ({"n_threads": -1}, {"timeout_s": 0.0}, {"prepare_timeout_s": -1.0}):
        with pytest.raises(UsageError, match=r"at least 1|give positive numbers"):
            LocalRunner(**options)


def test_a_right_kernel_is_timed(runner: LocalRunner) -> None:
    result = runner.run("t", mk.kernel())
    assert result.status is Status.OK and result.error == ""
    assert result.latency_s == pytest.approx(float(np.median(result.times_s)))
    assert min(result.times_s) > 1e-7 and len(result.times_s) <= 3
    assert result.run_s > 0 and result.check_s > 0
    assert result.max_error is not None and 0 < result.max_error < 1e-5


@pytest.mark.parametrize(
    ("options", "first_wrong", "n_wrong"),
    [
        ({"narrow": mk.ONE_ROW}, "C[123] is 9.0", "1 of 300"),
        ({"rows": mk.ROWS - 1}, "C[299] is nan", "1 of 300"),
        ({"narrow": mk.READ_SCRATCH}, "C[0] is nan", "300 of 300"),
        ({"narrow": "%c = fadd float %acc1, 0.0078125"}, "C[0] is", "300 of 300"),
        ({"narrow": mk.ROOT}, "C[", "of 300"),
    ],
    ids=["one row", "row left out", "reads scratch", "slightly off", "another function"],
)
def test_a_wrong_output_is_reported_with_its_first_element(
    runner: LocalRunner, options: dict[str, Any], first_wrong: str, n_wrong: str
) -> None:
    result = runner.run("t", mk.kernel(**options))
    assert (result.status, result.latency_s, result.times_s) == (Status.WRONG_OUTPUT, None, ())
    assert result.error.startswith(first_wrong) and f"{n_wrong} elements are wrong" in result.error
    assert "expected" in result.error and result.run_s == 0.0
    assert result.max_error is not None and result.max_error > 1e-4


def test_a_kernel_that_is_right_only_once_is_wrong(runner: LocalRunner) -> None:
    result = runner.run("t", mk.kernel(narrow=mk.SECOND_RUN))
    assert (result.status, result.latency_s) == (Status.WRONG_OUTPUT, None)
    assert result.error.startswith("right at first, wrong after more runs")


@pytest.mark.parametrize(
    ("before", "signal"),
    [
        (mk.WRITE_INPUT, "SIGSEGV"),
        (mk.READ_BEFORE, "SIGSEGV"),
        (mk.WRITE_BEHIND, "SIGSEGV"),
        (mk.TRAP, "SIG(ILL|TRAP)"),
    ],
)
def test_a_crash_is_a_run_error_with_its_signal(
    runner: LocalRunner, before: str, signal: str
) -> None:
    result = runner.run("t", mk.kernel(before))
    assert (result.status, result.latency_s) == (Status.RUN_ERROR, None)
    assert re.match(f"killed by {signal}", result.error)
    assert ("guard pages" in result.error) == (signal == "SIGSEGV")
    assert runner.run("t", mk.kernel()).ok


def test_a_hang_is_a_run_timeout() -> None:
    with LocalRunner(timeout_s=60.0, policy=QUICK) as short:
        assert short.prepare("t", mk.check_spec()).ok
        before = pid_of(short)
        short._timeout_s = 0.3
        result = short.run("t", mk.kernel(mk.HANG))
        assert (result.status, result.latency_s) == (Status.RUN_TIMEOUT, None)
        assert result.run_s >= 0.3
        short._timeout_s = 60.0
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        assert short.run("t", mk.kernel()).ok


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"object_bytes": b"no object"}, "cannot load kernel kernel"),
        ({"symbol": "elsewhere"}, "cannot load kernel elsewhere"),
        ({"params": mk.PARAMS[:2]}, "kernel kernel does not write C"),
        ({"params": mk.with_constant("Z")}, "reads Z, which the task does not have"),
        (
            {"params": (Param("A", (3, 4), "float32", "input"), *mk.PARAMS[1:])},
            "has input A as float32[3, 4], the task has float32[300, 70]",
        ),
    ],
)
def test_an_image_that_does_not_fit_is_a_run_error(
    runner: LocalRunner, change: dict[str, Any], text: str
) -> None:
    before = pid_of(runner)
    result = runner.run("t", replace(mk.kernel(), **change))
    assert result.status is Status.RUN_ERROR and text in result.error
    assert pid_of(runner) == before


def test_constants_come_in_the_layout_of_the_kernel(runner: LocalRunner) -> None:
    params = mk.with_constant(layout=mk.LAYOUT)
    assert runner.run("t", mk.kernel(place=mk.PACKED_PLACE, params=params)).ok
    assert runner.run("t", mk.kernel(params=params)).status is Status.WRONG_OUTPUT


def test_a_packed_constant_cannot_be_written(runner: LocalRunner) -> None:
    params = mk.with_constant(layout=mk.LAYOUT)
    right = mk.kernel(place=mk.PACKED_PLACE, params=params)
    for _ in range(2):  # the second time in the memory of the first
        assert runner.run("t", right).ok
        wrong = mk.kernel("store volatile float %w, ptr %pw", place=mk.PACKED_PLACE, params=params)
        result = runner.run("t", wrong)
        assert result.status is Status.RUN_ERROR and "SIGSEGV" in result.error


def test_a_constant_that_an_image_does_not_read_has_no_memory(runner: LocalRunner) -> None:
    params = mk.with_constant(layout=mk.LAYOUT)
    reads = mk.kernel(place=mk.PACKED_PLACE, params=params)
    result = runner.run("t", replace(reads, unread=frozenset({"W"})))
    assert result.status is Status.RUN_ERROR and "SIGSEGV" in result.error
    unused = Param("V", (mk.K,), "float32", "derived")
    image = replace(mk.kernel(params=(*mk.PARAMS, unused)), unread=frozenset({"V"}))
    assert runner.run("t", image).ok


def test_tasks_share_inputs_and_outputs() -> None:
    buffers, numbers = Buffers(), NormalNumbers()
    root = CheckSpec(mk.dag_with_root(), 0, mk.kernel(real="double", narrow=mk.ROOT_DOUBLE))
    wide = CheckSpec(mk.dag_of_a_prepared_constant(), 0, mk.kernel(params=mk.with_constant("V")))
    tasks = list[TaskData]()
    for spec in (mk.check_spec(), mk.check_spec(seed=1), root, wide):
        task, prepared, reference = _prepare(spec, None, Data(buffers, numbers, tasks))
        buffers.settle()
        assert prepared.ok
        known, _, _ = _prepare(spec, reference, Data(buffers, numbers))
        for name, own in task.inputs.items():
            assert np.array_equal(own.array, known.inputs[name].array)
        tasks.append(task)
    first, other, positive, alike = tasks
    assert first.inputs["A"].start == alike.inputs["A"].start
    assert first.inputs["W"].start == alike.inputs["W"].start
    assert len({t.inputs["A"].start for t in (first, other, positive)}) == 3
    assert len({t.outputs["C"].start for t in tasks}) == 1


def test_a_stage_of_constants_is_computed_ahead(runner: LocalRunner) -> None:
    reference = mk.kernel(real="double", params=mk.with_constant("V"))
    spec = CheckSpec(mk.dag_of_a_prepared_constant(), 0, reference, mk.K)
    assert runner.prepare("of constants", spec).ok
    params = mk.with_constant("V", mk.LAYOUT)
    assert runner.run("of constants", mk.kernel(place=mk.PACKED_PLACE, params=params)).ok
    assert runner.run("of constants", mk.kernel()).status is Status.WRONG_OUTPUT


def test_kernels_use_the_threads_that_were_asked_for(runner: LocalRunner) -> None:
    def spec(n: int) -> CheckSpec:
        out = te.compute((1,), lambda i: te.const(n, "int64"), name="threads")
        return CheckSpec(te.ComputeDAG([out]), 0, mk.threads_kernel())

    assert runner.n_threads == 3
    assert runner.prepare("three", spec(3)).ok
    wrong = runner.prepare("four", spec(4))
    assert not wrong.ok and "threads[0] is 3, expected 4; 1 of 1" in wrong.error


def test_the_process_gets_the_number_of_threads() -> None:
    told = thread_variables(4)
    assert told["ANSORLITE_NUM_THREADS"] == told["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"real": "double", "narrow": mk.SCALED_DOUBLE}, "is wrong, so nothing can be checked"),
        ({"narrow": mk.ONE_ROW}, "C[123] is 9.0"),
        ({"before": mk.TRAP}, "cannot run the reference kernel kernel: killed by SIG"),
        ({"before": mk.HANG}, "cannot run the reference kernel kernel: no answer within 1 s"),
        ({"params": mk.PARAMS[:2]}, "kernel kernel does not write C"),
    ],
    ids=["scaled", "one row", "crash", "hang", "no output"],
)
def test_a_wrong_reference_is_an_error_of_prepare(options: dict[str, Any], text: str) -> None:
    spec = replace(mk.check_spec(), reference=mk.kernel(**options))
    timeout_s = 1.0 if text.endswith("within 1 s") else 60.0
    with LocalRunner(prepare_timeout_s=timeout_s) as short:
        result = short.prepare("t", spec)
        assert not result.ok and text in result.error
        with pytest.raises(AnsorliteError, match="task t was not prepared"):
            short.run("t", mk.kernel())


def test_an_explicit_tolerance_counts() -> None:
    spec = replace(mk.check_spec(), rtol=0.01)
    assert spec.tolerance("float32") == 0.01 and spec.tolerance("int32") == 0.0
    with LocalRunner(policy=QUICK) as r:
        assert r.prepare("t", spec).ok
        assert r.run("t", mk.kernel(narrow="%c = fmul float %acc1, 1.0009765625")).ok
        wrong = r.run("t", mk.kernel(narrow="%c = fmul float %acc1, 1.015625"))
        assert wrong.status is Status.WRONG_OUTPUT


def test_undefined_values_are_avoided_by_positive_inputs() -> None:
    reference = mk.kernel(real="double", narrow=mk.ROOT_DOUBLE)
    data = Data(Buffers(), NormalNumbers())
    inputs, made, _ = make_reference(CheckSpec(mk.dag_with_root(), 0, reference), data)
    assert made.positive and min(b.array.min() for b in inputs.values()) > 0
    assert np.isfinite(made.outputs["C"]).all()
    _, made, _ = make_reference(mk.check_spec(), data)
    assert not made.positive


def test_dropped_data_is_prepared_again() -> None:
    with LocalRunner(policy=QUICK, memory_bytes=0) as r:
        assert r.prepare("a", mk.check_spec(0)).ok
        assert r.prepare("b", mk.check_spec(1)).ok
        before = pid_of(r)
        assert r.run("a", mk.kernel()).ok
        assert r.run("b", mk.kernel()).ok
        assert r.run("a", mk.kernel(narrow=mk.ONE_ROW)).status is Status.WRONG_OUTPUT
        assert pid_of(r) == before


def test_a_replaced_process_gets_the_checked_reference() -> None:
    spec = mk.check_spec()
    with LocalRunner(policy=QUICK) as r:
        assert r.prepare("t", spec).ok
        # were the reference computed again, this one would be refused
        r._tasks["t"] = (replace(spec, reference=mk.kernel(mk.TRAP)), r._tasks["t"][1])
        assert r.run("t", mk.kernel(mk.TRAP)).status is Status.RUN_ERROR
        assert r.run("t", mk.kernel()).ok
        assert r.run("t", mk.kernel(narrow=mk.ONE_ROW)).status is Status.WRONG_OUTPUT
        r.close()
        assert r.run("t", mk.kernel()).ok


def test_caches_can_be_emptied_before_each_run() -> None:
    with LocalRunner(policy=TimingPolicy(cold=True, max_repeats=3)) as r:
        assert r.prepare("t", mk.check_spec()).ok
        result = r.run("t", mk.kernel())
        assert result.ok and len(result.times_s) == 3


def test_contenders_race(runner: LocalRunner) -> None:
    wrong = mk.kernel(narrow=mk.ONE_ROW)
    a, b, c = race(runner, "t", [mk.kernel(), wrong, mk.kernel(real="double")], 0.05)
    assert a.ok and c.ok and len(a.times_s) > 1 and len(c.times_s) > 1
    assert b.status is Status.WRONG_OUTPUT


def test_a_long_race_has_heats_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansorlite.measure.runner.HEAT_S", 0.02)
    with LocalRunner(policy=QUICK) as r:
        assert r.prepare("t", mk.check_spec()).ok
        first = pid_of(r)
        assert all(x.ok for x in r.race("t", [mk.kernel(), mk.kernel()], 0.03))
        assert pid_of(r) == first
        assert all(x.ok and len(x.times_s) >= 6 for x in r.race("t", [mk.kernel()] * 2, 0.06))
        assert pid_of(r) != first
        assert r.run("t", mk.kernel()).ok


def test_a_hang_fails_the_race_and_not_the_runner() -> None:
    with LocalRunner(timeout_s=60.0) as r:
        assert r.prepare("t", mk.check_spec()).ok
        r._timeout_s = 0.2
        found = r.race("t", [mk.kernel(), mk.kernel(mk.HANG)], 0.05)
        assert [x.status for x in found] == [Status.RUN_TIMEOUT] * 2
        r._timeout_s = 60.0
        assert [x.ok for x in r.race("t", [mk.kernel(), mk.kernel()], 0.05)] == [True, True]


def test_a_killed_tuner_leaves_no_process() -> None:
    """SIGKILL while one builder hangs, another is idle, and a kernel hangs in the runner."""
    process = start_script("""
        import measure_kernels as mk
        from ansorlite.measure.builder import PoolBuilder
        from ansorlite.measure.runner import LocalRunner
        builder, runner = PoolBuilder(2, entry="measure_entries:build"), LocalRunner()
        assert runner.prepare("t", mk.check_spec()).ok
        assert len(builder.build([("echo", 1)] * 4)) == 4
        workers = [*builder._workers, runner._worker]
        workers[0].await_idle()
        workers[0].submit((__import__("pickle").dumps(("hang in C", None)), {}, ()), 1000)
        print(*(w._child.process.pid for w in workers), flush=True)
        runner._timeout_s = 1000
        runner.run("t", mk.kernel(mk.HANG))
    """)
    pids = read_pids(process)
    assert len(pids) == 3 and all(map(alive, pids))
    began_s = processor_s(pids[2])
    assert eventually(lambda: processor_s(pids[2]) > began_s + 0.1)  # the kernel runs
    process.kill()
    process.wait()
    assert eventually(lambda: not any(map(alive, pids)))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_the_process_has_no_openmp_runtime_and_no_learner(runner: LocalRunner) -> None:
    assert runner.run("t", mk.kernel()).ok
    lines = Path(f"/proc/{pid_of(runner)}/maps").read_text().splitlines()
    libraries = {Path(line.split()[-1]).name for line in lines if ".so" in line}
    assert not [x for x in libraries if re.match(r"lib(g|i)?omp", x)], libraries
    assert not [x for x in libraries if re.search("lightgbm|torch|onnx", x)]
