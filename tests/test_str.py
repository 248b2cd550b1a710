"""`str` of the public objects: what a user sees who prints one."""

from collections.abc import Iterator

import numpy as np
import pytest
from log_cases import record

import ansorlite
from ansorlite import te
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.module import CompiledModule
from ansorlite.measure.calibrate import Calibration, LevelSpeed
from ansorlite.measure.peak import Peak
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.pipeline import compile_plain
from ansorlite.records import LogContents, LogProblem
from ansorlite.search.result import BestProgram, TuneResult
from ansorlite.target import Target
from ansorlite.task import SearchTask

PEAK = Peak(2e11, 1e11, 2e10)


@pytest.fixture(scope="module")
def task() -> SearchTask:
    found: SearchTask = ansorlite.workload("GMM:0", target=Target.detect())
    return found


@pytest.fixture(scope="module")
def module() -> Iterator[CompiledModule]:
    b = GraphBuilder("net")
    weight = np.ones((24, 8), np.float32)
    yield compile_plain(b.finish([b.emit("matmul", [b.input("x", (16, 24)), b.constant(weight)])]))


def test_a_task_and_its_computation(task: SearchTask) -> None:
    head, *dag = str(task).splitlines()
    assert head.startswith("SearchTask GMM:0 batch 1 (4.19 MFLOP) on Target(")
    assert dag[0] == "A = placeholder([1, 128, 128], float32)" and dag[-1] == "return matmul"
    assert repr(task.dag) == "<ComputeDAG (A, B) -> matmul>"
    assert str(te.placeholder((4, 8), name="A")) == "A = placeholder([4, 8], float32)"


def test_what_tuning_gives(task: SearchTask) -> None:
    one = record(task)
    bad = record(task, 1, status="RUN_TIMEOUT", latency_s=None, error="after 10 s")
    best = BestProgram(task, one, 1e-3, PEAK)
    head = "GMM:0 batch 1: 1.000 ms, 4.2 GFLOP/s, 2.1 % of the FMA limit (trial 0, sketch s0)"
    assert str(best).splitlines()[:2] == [head, "def kernel(A, B, matmul):"]
    result = TuneResult(task, best, (one, bad), wall_s=3.0)
    assert str(result) == f"{head}\n2 trials, 1 failed (1 run timeout), 3.0 s used"
    assert str(TuneResult(task, None, ())).startswith("GMM:0 batch 1: no program ran\n0 trials")
    predicted = TuneResult(task, None, (), predicted=best.program)
    assert "the model chose a program" in str(predicted)
    assert str(predicted.kernel) == (
        "Kernel(A: float32[1, 128, 128], B: float32[1, 128, 128]) -> matmul: float32[1, 128, 128]"
        f" for {task.target.cpu}"
    )
    assert repr(predicted.kernel) == f"<{predicted.kernel}>"


def test_more_than_the_limit_is_explained(task: SearchTask) -> None:
    text = BestProgram(task, record(task), 1e-5, PEAK).summary
    assert "210 % of the FMA limit (the limit was measured while the machine was slower)" in text
    form = SearchTask(task.dag, task.target, task.name, meaning=task.dag, rtol=1e-3)
    assert "limit (its form needs fewer" in BestProgram(form, record(form), 1e-5, PEAK).summary


def test_records_logs_and_measurements(task: SearchTask) -> None:
    one = record(task, 3)
    assert str(one).startswith("GMM:0 batch 1 trial 3: OK, 1.000 ms, sketch s0, T2.")
    bad = record(task, 1, status="BUILD_ERROR", latency_s=None, error="no \x1b[2J memory")
    assert "BUILD_ERROR, no \\x1b[2J memory, sketch" in str(bad)
    contents = LogContents((one, bad), (LogProblem(2, "it is no JSON"),))
    assert str(contents) == (
        "2 records of 1 tasks, 1 of them failed; a damaged line is left out: line 2: it is no JSON"
    )
    assert str(MeasureResult(Status.OK, 1e-3)) == "OK, 1.000 ms"
    assert str(MeasureResult(Status.RUN_ERROR, error="signal 11")) == "RUN_ERROR: signal 11"


def test_limits_of_the_machine() -> None:
    assert str(PEAK) == "200.0 GFLOP/s (100.0 on one core), copy 20.0 GB/s"
    levels = (LevelSpeed("memory", 1e10, 2e10, 2e10, 3e10),)
    text = str(Calibration(PEAK, levels, (), "2026-01-01"))
    assert text == f"measured 2026-01-01: {PEAK}; copy on all cores: memory 20.0 GB/s"


def test_networks(module: CompiledModule) -> None:
    (taken,), (given,) = module.partition.graph.inputs, module.partition.graph.outputs
    signature = f"net({taken}: float32[16, 24]) -> {given}: float32[16, 8]"
    assert str(module) == f"CompiledModule {signature}: 1 calls of 1 kernels, 6.14 kFLOP"
    assert repr(module) == f"<{module}>"
    assert str(module.partition.graph).startswith("graph net(x: float32[16, 24]):")
