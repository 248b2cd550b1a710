"""race: contenders run in turn, losers and failures drop out, medians of the heats decide."""

from ansorlite.codegen.image import KernelImage
from ansorlite.measure.race import race
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import PrepareResult


class ScriptedRunner:
    """Gives each kernel (by symbol) its next scripted latency; None is a crash."""

    def __init__(self, **script: list[float | None]) -> None:
        self.script = {name: iter(times) for name, times in script.items()}
        self.log = ""

    def prepare(self, task_key: str, spec: object) -> PrepareResult:
        return PrepareResult(True)

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        self.log += image.symbol
        latency_s = next(self.script[image.symbol])
        if latency_s is None:
            return MeasureResult(Status.RUN_ERROR, error="killed by SIGSEGV")
        return MeasureResult(Status.OK, latency_s, (latency_s,), run_s=0.1, max_error=latency_s)

    def close(self) -> None:
        pass


def run(runner: ScriptedRunner, **options: float) -> list[MeasureResult]:
    images = [KernelImage(b"", name, (), "", "") for name in runner.script]
    return race(runner, "task", images, **options)  # type: ignore[arg-type]


def test_heats_alternate_in_direction_and_the_median_decides() -> None:
    runner = ScriptedRunner(A=[1.0, 1.01, 9.0, 1.0, 1.02], B=[1.03, 1.0, 0.99, 1.05, 1.04])
    a, b = run(runner)
    assert runner.log == "ABBAABBAAB"
    assert (a.latency_s, b.latency_s) == (1.01, 1.03)
    assert a.times_s == (1.0, 1.01, 9.0, 1.0, 1.02) and a.status is Status.OK
    assert abs(a.run_s - 0.5) < 1e-9 and a.max_error == 9.0


def test_a_clear_loser_drops_out_after_two_heats() -> None:
    runner = ScriptedRunner(A=[1.0] * 4, B=[1.2, 1.3], C=[1.5, 1.05, 1.0, 1.0])
    _, b, c = run(runner, heats=4)
    assert runner.log == "ABCCBAACCA"
    assert b.times_s == (1.2, 1.3) and b.latency_s == 1.25
    assert c.latency_s == 1.025


def test_a_failure_is_the_result() -> None:
    runner = ScriptedRunner(A=[0.1, None], B=[1.0] * 3)
    a, b = run(runner, heats=3)
    assert (a.status, a.latency_s) == (Status.RUN_ERROR, None)
    assert (b.status, b.latency_s) == (Status.OK, 1.0)
    assert runner.log == "ABBAB"


def test_all_may_fail() -> None:
    assert [r.status for r in run(ScriptedRunner(A=[None], B=[None]))] == [Status.RUN_ERROR] * 2
    assert run(ScriptedRunner()) == []
