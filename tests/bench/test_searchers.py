"""Ansor's search against AutoTVM's: runs, who reaches what another ends at, programs compared."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ansorlite.errors import AnsorliteError
from ansorlite.workloads import workload
from bench.programs import program_at, structure, structures
from bench.runs import RacedRun, experiment_of_runs
from bench.searchers import case_by_case, claims_text, run_case, space_of

FAST = RacedRun("ansor", "C2D:2", 0, [8.0, None, 4.0, 2.0], 1.0, at_s=[1.0, 2.0, 3.0, 4.0])
SLOW = RacedRun("template-ga", "C2D:2", 0, [8.0, 8.0, 4.0, 4.0], 3.0, at_s=[1.0, 3.0, 5.0, 7.0])


def test_how_long_it_took_to_get_somewhere() -> None:
    assert (FAST.trials_to(4.0), FAST.seconds_to(4.0)) == (3, 3.0)
    assert (SLOW.trials_to(2.0), SLOW.seconds_to(2.0)) == (None, None)
    assert RacedRun("a", "b", 0, [1.0], 1.0).seconds_to(1.0) is None  # times were not kept


def test_how_soon_one_reaches_what_another_ends_at() -> None:
    text = claims_text([FAST, SLOW])
    line = "ansor reaches the last result of template-ga in 1 of 1 runs"
    assert f"{line}, on average after 75% of its trials and 43% of its time" in text
    missed = "template-ga reaches the last result of ansor in 0 of 1 runs"
    assert f"{missed}, on average after 100% of its trials and 175% of its time" in text
    assert claims_text([]).startswith("searcher")


def test_a_file_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    experiment = experiment_of_runs(path)
    experiment.add(FAST)
    assert experiment.rows() == [FAST]
    path.write_text('{"format": 1}\n')
    with pytest.raises(AnsorliteError, match="does not hold runs of searches"):
        experiment.rows()


def test_programs_that_were_raced() -> None:
    """Shares are those of the race; within its doubt two programs are as fast."""
    raced = {("ansor", "C2D:2", 0, 2): 4.03, ("template-ga", "C2D:2", 0, 4): 4.0}
    text = claims_text([FAST, SLOW], raced)
    assert "  raced: as fast as its last program in 1 of 1 after 2" in text
    # The run's own times are corrected by the race: its first program is as fast as the second.
    assert "template-ga in 1 of 1 runs, on average after 25% of its trials" in text
    raced["ansor", "C2D:2", 0, 2] = 4.1
    assert "in 0 of 1 after 2" in claims_text([FAST, SLOW], raced)


def test_cases_one_by_one() -> None:
    """Speed and time, medians over the seeds, of what was raced."""
    runs = [replace(r, seed=k) for k in range(3) for r in (FAST, SLOW)]
    raced = {("ansor", "C2D:2", k, 2): 2.0 * (k + 1) for k in range(3)}
    raced |= {("template-ga", "C2D:2", k, 4): 4.0 for k in range(3)}
    text = case_by_case(runs, raced, "ansor", "template-ga", 2)
    assert "  C2D:2   1.000   29%" in text
    assert "as fast in 1 of 1 cases, sooner in 1" in text
    assert case_by_case(runs, raced, "ansor", "template-ga", 3) == ""
    slower = {**raced, ("ansor", "C2D:2", 1, 2): 4.1}
    assert "as fast in 0 of 1" in case_by_case(runs, slower, "ansor", "template-ga", 2)


@pytest.mark.slow
def test_a_program_that_no_template_has() -> None:
    """Structures are of loops and packing, whatever the numbers."""
    task = workload("GMM:0")
    template, ansor = space_of("template-xgb", task), space_of("ansor", task)
    known = structures(template, samples=40)
    rng = np.random.default_rng(1)
    (row,) = next(iter(template.values())).sample(1, rng)
    assert structure(next(iter(template.values())).fill(row)) in structures(template, samples=400)
    assert not structures(ansor, samples=5) <= known


@pytest.mark.slow
def test_a_run_keeps_its_last_program() -> None:
    run = run_case("NRM:0", "ansor", 0, 6)
    space = space_of("ansor", workload("NRM:0"))
    assert program_at(run, len(run.latency_s), space) is not None
    assert program_at(run, 5, space) is None
