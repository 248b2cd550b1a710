"""Tuning for a machine that is not at hand: estimates, their records, the chosen loops."""

from dataclasses import replace
from pathlib import Path

import pytest

import ansorlite as al
from ansorlite.cli import main
from ansorlite.codegen.build import kernel_assembly
from ansorlite.codegen.hot_loop import Look, look
from ansorlite.cost.features import FeaturePlan
from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.ir.program import Program
from ansorlite.presets import CORES
from ansorlite.record_fields import ESTIMATED
from ansorlite.records import read_log
from ansorlite.report.logs import log_stats
from ansorlite.search.debug import Trace
from ansorlite.search.estimate import EstimatingRunner, estimate_s, estimating
from ansorlite.search.result import TuneResult
from ansorlite.search.store import Store
from ansorlite.search.untuned import Untuned
from ansorlite.target import Target

HOST = Target.detect()
FOREIGN = "cortex-a76" if HOST.arch == "x86_64" else "x86-avx512"


def tune(case: str, cpu: str, n: int, log: Path | None = None, seed: int = 0) -> TuneResult:
    task = al.workload(case, target=Target.named(cpu))
    result: TuneResult = al.tune(task, n, log=log, seed=seed, progress=False)
    return result


def test_what_the_object_shows_changes_the_estimate() -> None:
    task = al.workload("GMM:0", target=Target.cross("cortex-a76", cores=2))
    program: Program = Untuned(0, Trace()).program(task)
    plan = FeaturePlan(program)
    good = Look(40, 24, 0, 24, 24, 10, 0, 0, 2000)

    def seconds(seen: Look, target: Target = task.target) -> float:
        return estimate_s(plan, {}, seen, target)

    for worse in (
        replace(good, instructions=90),
        replace(good, spills=12),
        replace(good, loads=40),
        replace(good, accumulators=2),
        replace(good, code_bytes=200_000),
    ):
        assert seconds(worse) > seconds(good), worse
    assert seconds(replace(good, fma=48, instructions=80, loads=20)) == seconds(good)
    little = replace(task.target, cpu="cortex-a53")
    assert seconds(good, little) > 2 * seconds(good)
    halves = replace(good, loads=80, narrow_loads=80)  # an A53 reads a half a cycle
    assert seconds(halves, little) == seconds(replace(good, loads=40), little)
    assert seconds(halves) == seconds(replace(good, loads=80))
    least = task.flop / (2 * CORES["cortex-a76"].flops)
    assert least < seconds(good) < 4 * least
    assert seconds(Look()) > 0  # nothing is seen: the model's own estimate


def test_records_of_estimates_are_marked_and_kept_apart(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    result = tune("GMM:0", FOREIGN, 2, log)
    assert result.estimated and result.best is not None and len(result.records) == 2
    assert "an estimate: nothing was measured" in str(result)
    assert "2 programs built, none run" in str(result)
    with pytest.raises(AnsorliteError, match="cannot load kernel"):
        _ = result.kernel
    contents = read_log(log)
    assert not contents.records and not contents.choices
    assert [r.status for r in contents.estimates] == [ESTIMATED] * 2
    assert not any(r.ok for r in contents.estimates) and "2 estimates" in str(contents)
    assert "estimates: 2 programs built" in log_stats(contents)
    assert Store(log, read_only=True).history == ()  # for a run that measures
    assert all(r.ok for r in Store(log, read_only=True, estimated=True).history)
    merged = tmp_path / "merged.jsonl"
    assert main(["log", "merge", str(log), "--output", str(merged)]) == 0
    assert len(read_log(merged).estimates) == 2


@pytest.mark.slow
def test_estimates_are_deterministic_and_resume(tmp_path: Path) -> None:
    whole, torn = (tune("SFM:0", FOREIGN, n, tmp_path / f"{n}.jsonl") for n in (5, 2))
    again = tune("SFM:0", FOREIGN, 5, tmp_path / "2.jsonl")
    lines = [read_log(tmp_path / f"{n}.jsonl").estimates for n in (5, 2)]
    assert [(r.holes, r.latency_s) for r in lines[0]] == [(r.holes, r.latency_s) for r in lines[1]]
    assert torn.trials == 2 and again.trials == 5
    assert str(again.program) == str(whole.program)
    answered = tune("SFM:0", FOREIGN, 0, tmp_path / "5.jsonl")
    assert str(answered.program) == str(whole.program) and answered.estimated


def test_this_machine_is_measured() -> None:
    assert estimating(HOST) is None and isinstance(
        estimating(Target.named(FOREIGN)), EstimatingRunner
    )


def test_commands_for_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune-op", "SFM:0", "--target", FOREIGN, "--trials", "1", "-q"]) == 0
    assert "nothing was measured" in capsys.readouterr().out
    assert main(["tune-op", "SFM:0", "--target", "vax"]) == 2
    assert "no target preset 'vax'" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["tune", "dcgan", "--save", str(tmp_path / "full")]) == 2
    assert "name a new folder" in capsys.readouterr().err
    new = ["tune", "dcgan", "--save", str(tmp_path / "new")]
    for arguments, told in (
        (["tune", "dcgan", "--targets", "x86-64-v3"], "give --save DIR"),
        ([*new, "--targets", "vax,x86-64-v3"], "no target preset 'vax'"),
        ([*new, "--targets", "x86-64-v3, x86-64-v3"], "is named twice"),
        ([*new, "--targets", "x86-64-v3,cortex-a53"], "save a folder for each"),
    ):
        assert main(arguments) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(UsageError, match="a preset's name, or None"):
        al.auto_schedule(al.network("dcgan"), 1, target=3)  # type: ignore[call-overload]


# ---- the loops that are chosen ------------------------------------------------------------------


def check_hot_loop(case: str, cpu: str, n: int) -> None:
    """At least 16 accumulators, multiply-adds by element, nothing on the stack."""
    result = tune(case, cpu, n)
    text = kernel_assembly(result.program, result.task.target)
    seen = look(text)
    assert seen.accumulators >= 16 and seen.spills == 0 and seen.scalar_fma == 0, seen
    assert seen.by_element == seen.fma >= 16 and seen.broadcasts == 0, seen
    assert seen.instructions <= 2.2 * seen.fma, seen


@pytest.mark.slow
@pytest.mark.parametrize("cpu", CORES)
@pytest.mark.parametrize("case", ["GMM:2", "C2D:2"])
def test_hot_loops_use_the_registers(case: str, cpu: str) -> None:
    check_hot_loop(case, cpu, 16)
