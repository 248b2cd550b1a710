"""Races: contenders run in turn, losers and failures drop out, ratios within turns decide."""

from ansorlite.codegen.image import KernelImage
from ansorlite.measure.race import MAX_TURNS, pooled, race, run_turns
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import PrepareResult


class ScriptedRunner:
    """Gives each kernel (by symbol) its next scripted latency; None is a crash."""

    def __init__(self, **script: list[float | None]) -> None:
        self.script = {name: iter(times) for name, times in script.items()}
        self.log = ""
        self.now_s = 0.0

    def prepare(self, task_key: str, spec: object) -> PrepareResult:
        return PrepareResult(True)

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        self.log += image.symbol
        latency_s = next(self.script[image.symbol])
        if latency_s is None:
            return MeasureResult(Status.RUN_ERROR, error="killed by SIGSEGV")
        self.now_s += latency_s
        return MeasureResult(Status.OK, latency_s, (latency_s,), run_s=0.1, max_error=latency_s)

    def close(self) -> None:
        pass


def run(runner: ScriptedRunner, budget_s: float = 5.0) -> list[MeasureResult]:
    images = [KernelImage(b"", name, (), "", "") for name in runner.script]
    return race(runner, "task", images, budget_s, lambda: runner.now_s)  # type: ignore[arg-type]


def test_turns_alternate_in_direction_and_ratios_decide() -> None:
    """The machine is slow for two turns: B, which is the better one, runs in them as A does."""
    runner = ScriptedRunner(A=[1.0, 2.1, 2.1, 1.0, 1.05], B=[0.99, 2.0, 2.0, 1.1, 1.0])
    a, b = run(runner, 12.5)
    assert runner.log == "ABBAABBAAB"
    assert b.latency_s == 1.1 and a.latency_s is not None and a.latency_s > 1.1
    assert a.times_s == (1.0, 2.1, 2.1, 1.0, 1.05) and a.status is Status.OK
    assert abs(a.run_s - 0.5) < 1e-9 and a.max_error == 2.1


def test_a_clear_loser_drops_out_after_two_turns() -> None:
    runner = ScriptedRunner(A=[1.0] * 4, B=[1.4, 1.4], C=[1.5, 1.05, 1.0, 1.0])
    a, b, c = run(runner, 10.0)
    assert runner.log == "ABCCBAACCA"
    assert b.times_s == (1.4, 1.4) and b.latency_s is not None and b.latency_s > 1.3
    assert a.latency_s == 1.0 and c.latency_s is not None and c.latency_s > 1.0


def test_one_disturbed_turn_drops_no_contender() -> None:
    runner = ScriptedRunner(A=[1.0] * 6, B=[0.9, 2.0, 2.0, 0.9, 0.9, 0.9])
    _, b = run(runner, 11.5)
    assert len(b.times_s) == 5 and b.latency_s == 0.9


def test_a_dropped_contender_with_low_times_does_not_win() -> None:
    runner = ScriptedRunner(A=[1.0, 1.0, 3.0, 3.0, 3.0], B=[1.5, 1.5], C=[1.1, 1.1, 3.1, 3.1, 3.1])
    a, b, _ = run(runner, 20.0)
    assert a.latency_s == 3.0 and b.latency_s == 4.5


def test_a_failure_is_the_result() -> None:
    runner = ScriptedRunner(A=[0.1, None], B=[1.0] * 5)
    a, b = run(runner)
    assert (a.status, a.latency_s) == (Status.RUN_ERROR, None)
    assert (b.status, b.latency_s) == (Status.OK, 1.0)
    assert runner.log == "ABBABBB"


def test_all_may_fail() -> None:
    assert [r.status for r in run(ScriptedRunner(A=[None], B=[None]))] == [Status.RUN_ERROR] * 2
    assert run(ScriptedRunner()) == []


def test_turns_end_with_their_number() -> None:
    (found, _) = run_turns([lambda: 1e-6, lambda: 1e-6], 1.0)
    assert found is not None and len(found.times_s) == MAX_TURNS


def test_heats_are_pooled_relative_to_the_middle_of_each() -> None:
    """B is the fastest but for one process in which memory lies badly; the machine slows down."""
    times = [(1.0, 0.98, 1.1), (2.0, 3.0, 2.2), (1.0, 0.98, 1.1)]
    heats = [[MeasureResult(Status.OK, t, (t,)) for t in heat] for heat in times]
    a, b, c = pooled(heats)
    assert b.latency_s is not None and a.latency_s is not None and c.latency_s is not None
    assert b.latency_s < a.latency_s < c.latency_s < 1.2
    assert b.times_s == (0.98, 3.0, 0.98)


def test_a_failure_in_one_heat_is_the_result() -> None:
    ok, crash = MeasureResult(Status.OK, 1.0, (1.0,)), MeasureResult(Status.RUN_ERROR, error="x")
    a, b = pooled([[ok, ok], [ok, crash], [ok, ok]])
    assert a.ok and a.latency_s == 1.0 and b is crash
    assert pooled([[crash], [crash]]) == [crash]
