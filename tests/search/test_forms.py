"""The choice of the form (direct, Winograd, ...) that is measured next."""

from typing import Any, cast

from search_cases import Pretender
from test_families import product

from ansorlite.search.forms import Forms
from ansorlite.search.session import Session
from ansorlite.search.settle import CLOSE
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.search.tuner import TaskTuner


class Stub:
    """A tuner by its figures."""

    def __init__(self, rounds: int, latency_s: float | None, pending: int = 0) -> None:
        self.rounds, self.best_latency_s, self.pending = rounds, latency_s, pending
        self.trials = 8 * rounds


def forms(*stubs: Any) -> Forms:
    return Forms(cast("list[TaskTuner]", stubs))


def given(found: Forms, n: int) -> list[TaskTuner]:
    """The tuners that the next n rounds go to."""
    out = []
    for _ in range(n):
        out.append(found.next())
        out[-1].rounds += 1
    return out


def test_every_form_gets_a_first_round() -> None:
    plain, other = Stub(1, 1.0), Stub(0, None)
    both = forms(plain, other)
    assert both.next() is plain
    plain.rounds = 2
    assert both.untried and both.next() is other
    other.rounds = 2
    assert not both.untried


def test_rounds_go_to_the_faster_form() -> None:
    slow, fast = Stub(2, 2.0), Stub(2, 1.0)
    both = forms(slow, fast)
    assert all(chosen is fast for chosen in given(both, 20))
    slow.best_latency_s = 1.05  # a close one keeps its share
    assert {both.next() is fast for _ in range(1)} == {False}


def test_a_first_round_is_not_the_last_word() -> None:
    """The third form is 1.4 times slower after a round: it gets a second one, then no others."""
    plain, fast, late = Stub(2, 3.0), Stub(5, 1.0), Stub(2, 1.4)
    all_three = forms(plain, fast, late)
    assert all_three.next() is late
    late.rounds = 3
    assert all(chosen is fast for chosen in given(all_three, 6))


def test_a_torn_round_is_finished_first() -> None:
    a, b = Stub(3, 1.0), Stub(3, 5.0, pending=4)
    assert forms(a, b).next() is b


def test_the_best_of_all_counts() -> None:
    a, b = Stub(3, 2.0), Stub(2, 1.0)
    both = forms(a, b)
    assert both.best_latency_s == 1.0 and both.fastest is b and both.trials == 40
    assert forms(Stub(0, None), Stub(0, None)).best_latency_s is None


def test_a_form_without_candidates_is_left() -> None:
    a, b = Stub(2, 1.0), Stub(0, None)
    both = forms(a, b)
    assert both.next() is b
    both.told(b, 0)
    assert both.next() is a and not both.untried
    assert not both.exhausted
    both.told(a, 0)
    assert both.exhausted


def test_a_form_that_is_expected_to_be_slow_waits() -> None:
    """The slow form is measured after two rounds of the fast one, not never."""
    inf = float("inf")
    plain, fast, slow, unknown = Stub(1, 9.0), Stub(0, None), Stub(0, None), Stub(0, None)
    tuners = cast("list[TaskTuner]", [plain, fast, slow, unknown])
    found = Forms(tuners, (1, 3, 2, 0), 1.0, (8.0, 1.0, 1.5, inf))
    for wanted in (fast, unknown):
        assert found.untried and found.next() is wanted
        wanted.rounds, wanted.best_latency_s = 2, 1.0 if wanted is fast else 3.0
    assert not found.untried
    chosen = given(found, 4)
    assert chosen[0] is fast and slow in chosen and plain not in chosen


def test_the_first_rival_is_of_another_structure() -> None:
    """Inside the network programs of one structure fare alike."""
    both = Pretender()
    with Session(64, progress=False, builder=both, runner=both) as session:
        found = tune_tasks(session, [WeightedTask(product(16, 32), 1.0)], race_follows=True)[0]
        assert found.best is not None and found.rivals
        own = found.best.record
        near = [r for r in found.records if r.ok and r.sketch != own.sketch]
        close = [r for r in near if (r.latency_s or 1.0) < CLOSE * (own.latency_s or 0.0)]
        assert close, "latencies are pretended: many are close"
        first, *rest = found.rivals
        assert first.record.sketch != own.sketch
        assert first.record.latency_s == min(r.latency_s or 1.0 for r in close)
        assert len({(r.record.task, r.record.trial) for r in found.rivals}) == 1 + len(rest)
