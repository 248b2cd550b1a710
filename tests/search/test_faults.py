"""Candidates that crash, hang, give wrong outputs or kill their builder: each costs one trial."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sampled import sampled
from search_cases import PEAK, Impatient, Pretender, Saboteur, matmul, pretended

import ansorlite.search.session as session_module
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import AnsorliteError
from ansorlite.measure.builder import BuildOutcome
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import CheckSpec, LocalRunner, PrepareResult
from ansorlite.records import read_log
from ansorlite.search.tune import tune
from ansorlite.search.tune_tasks import SAME_ERRORS

FAULTS = {
    "segfault": ("RUN_ERROR", "killed by SIGSEGV"),
    "endless": ("RUN_TIMEOUT", "no answer within 0.3 s"),
    "wrong": ("WRONG_OUTPUT", "relu"),
    "worker killed": ("BUILD_ERROR", "killed by SIGKILL"),
    "worker hangs": ("BUILD_TIMEOUT", "no answer within 0.3 s"),
    "worker raises": ("BUILD_ERROR", "it was to fail"),
}


@pytest.fixture(autouse=True)
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "measure_peak", lambda target: PEAK)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with Impatient() as made:
        yield made


@pytest.mark.parametrize(
    "policy", sampled(["random", "template-ga", "template-xgb", "template-grid"], 4)
)
def test_each_fault_costs_one_trial(tmp_path: Path, runner: LocalRunner, policy: str) -> None:
    path = tmp_path / "log"
    # Good candidates before, between and after those that fail.
    faults = [f for fault in FAULTS for f in ("", fault)]
    n_trials = 1 + len(faults) + 2
    with Saboteur(faults) as builder:
        result = tune(
            matmul(),
            n_trials,
            seed=1,
            log=path,
            policy=policy,
            builder=builder,
            runner=runner,
            progress=False,
            round_size=len(faults),
        )
    assert result.trials == n_trials
    records = read_log(path).records
    assert records == result.records and [r.trial for r in records] == list(range(n_trials))
    for record, fault in zip(records[1:], faults, strict=False):
        status, error = FAULTS.get(fault, ("OK", ""))
        assert record.status == status and error in record.error, (fault, record.error)
        assert (record.latency_s is None) == (status != "OK")
    assert [r.status for r in records[-2:]] == ["OK", "OK"]
    assert result.best is not None and result.best.record.ok
    # What failed is known to have failed: the log continues without asking it again.
    programs = {(r.sketch, str(r.holes)) for r in records}
    assert len(programs) == n_trials


def test_the_plain_schedule_must_run(runner: LocalRunner) -> None:
    with Saboteur([]) as builder:
        builder.faults = ["segfault"]
        with pytest.raises(AnsorliteError, match=r"reference of task C\.relu cannot.*SIGSEGV"):
            tune(matmul(20), 4, builder=builder, runner=runner, progress=False)
        builder.faults = ["worker killed"]
        with pytest.raises(AnsorliteError, match=r"reference of task C\.relu does not build"):
            tune(matmul(20), 4, builder=builder, runner=runner, progress=False)


class AlwaysFails(Pretender):
    """Only the plain schedule runs."""

    def run(
        self, task_key: str, image: object, best_latency_s: float | None = None
    ) -> MeasureResult:
        self.ran += 1
        if self.ran == 1:
            return MeasureResult(Status.OK, 1e-3, (1e-3,))
        return MeasureResult(Status.RUN_ERROR, error="killed by SIGILL")


def test_a_task_whose_candidates_all_fail_alike_is_given_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = AlwaysFails()
    result = tune(matmul(), 500, builder=both, runner=both, policy="random", round_size=4)
    assert SAME_ERRORS <= result.trials <= SAME_ERRORS + 8
    assert result.best is not None and result.best.record.sketch == "plain"
    assert "RUN_ERROR killed by SIGILL" in capsys.readouterr().err


class Interrupted(Pretender):
    """Ctrl-C while a candidate runs, or already while the task is prepared."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult:
        if self.after < 0:
            raise KeyboardInterrupt
        return super().prepare(task_key, spec)

    def run(
        self, task_key: str, image: object, best_latency_s: float | None = None
    ) -> MeasureResult:
        if self.ran >= self.after:
            raise KeyboardInterrupt
        return super().run(task_key, image, best_latency_s)  # type: ignore[arg-type]


@pytest.mark.parametrize("after", [-1, 0, 1, 6])
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, after: int) -> None:
    both = Interrupted(after)
    result = tune(
        matmul(),
        50,
        log=tmp_path / "log",
        builder=both,
        runner=both,
        policy="random",
        progress=False,
        round_size=4,
    )
    assert result.interrupted and result.trials == max(0, after)
    assert read_log(tmp_path / "log").records == result.records
    assert (result.best is None) == (after < 1)


def test_ctrl_c_in_the_last_race_keeps_the_best(tmp_path: Path) -> None:
    both = Interrupted(9)
    result = tune(
        matmul(), 9, builder=both, runner=both, policy="random", progress=False, round_size=4
    )
    assert result.interrupted and result.trials == 9
    assert result.best is not None
    assert result.best.latency_s == min(r.latency_s for r in result.records if r.latency_s)


class Alike(Pretender):
    """All candidates become the same code."""

    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]:
        self.built += len(requests)
        image = replace(pretended(requests[0]), object_bytes=b"the same")
        return [BuildOutcome(Status.OK, image, "", 0.01)] * len(requests)

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        return replace(super().run(task_key, image, best_latency_s), run_s=0.5)


def test_equal_code_is_run_once() -> None:
    both = Alike()
    result = tune(matmul(), 9, builder=both, runner=both, progress=False, round_size=4)
    assert both.built == 9 and result.trials == 9
    plain, first, *others = result.records
    assert plain.run_s == first.run_s == 0.5
    assert all(r.run_s == 0.0 and r.latency_s == first.latency_s for r in others)


def test_no_time_left_is_not_an_exhausted_space(capsys: pytest.CaptureFixture[str]) -> None:
    both = Pretender()
    result = tune(matmul(), None, 1e-9, builder=both, runner=both, policy="random")
    assert result.trials == 0 and result.best is None
    assert "no candidate is left" not in capsys.readouterr().err
