"""Searches with parts left out: figures from runs, and one small run of each policy."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ansorlite.baselines.runs import efficiency
from bench import ablations
from bench.ablations import POLICIES, gain, table
from bench.programs import corrected, race_all
from bench.runs import RacedRun, area, draw, experiment_of_runs

FULL = RacedRun("full", "C2D:2", 0, [8.0, None, 4.0, 2.0], 1.0)
OTHER = RacedRun("random", "C2D:2", 0, [8.0, 8.0, None, 4.0], 1.0)


def test_curves_are_relative_to_the_best_of_all_runs() -> None:
    curves = efficiency([FULL, OTHER])
    np.testing.assert_allclose(curves[FULL.key], [0.25, 0.25, 0.5, 1.0])
    np.testing.assert_allclose(curves[OTHER.key], [0.25, 0.25, 0.25, 0.5])
    assert area(curves[FULL.key]) == pytest.approx(1.75 / 3)


def test_gains_pair_cases_and_seeds() -> None:
    runs = [FULL, OTHER, replace(FULL, seed=1), replace(OTHER, seed=2)]
    mean, low, high, pairs = gain(efficiency(runs), "random")
    assert pairs == 1 and mean == low == high == pytest.approx((1.75 - 1.0) / 3)
    assert math.isnan(gain(efficiency([FULL]), "random")[0])
    assert "+0.250 (+0.250 to +0.250, 1 pairs)" in table(runs)


def test_recorded_policies_that_are_left_out_by_now_are_shown() -> None:
    former = [replace(FULL, policy=p) for p in ("former", "former-random")]
    lines = table([*former, replace(OTHER, policy="former-no-draft-no-hops")]).splitlines()
    assert lines[2].startswith("former-random ") and "1 pairs) [former]  legal rows" in lines[2]
    assert "nan" in lines[3] and "[former-no-draft]" in lines[3]  # which nothing was run of


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs(policy: str) -> None:
    run = ablations.run(policy, "NRM:1", 0, 12)
    assert run.policy == policy and len(run.latency_s) == 12
    assert np.isfinite(run.best()[-1])


def test_shares_at_the_budgets_are_those_of_the_race() -> None:
    runs = [replace(r, latency_s=[8.0] * 16) for r in (FULL, OTHER)]
    raced = {("full", "C2D:2", 0, 16): 4.0, ("random", "C2D:2", 0, 16): 5.0}
    lines = table(runs, raced).splitlines()
    assert "100.0%   100%" in lines[1] and "80.0%    80%" in lines[2]
    assert "100.0%   100%" in table(runs).splitlines()[2]  # both measured the same at the time


def test_budgets_that_a_policy_was_not_run_to_are_blank() -> None:
    lines = table([replace(FULL, latency_s=[8.0] * 64), replace(OTHER, latency_s=[8.0] * 16)])
    short, full = sorted(lines.splitlines()[1:3], key=lambda s: s.count("%"))
    assert short.startswith("random") and "nan" not in lines
    assert short.count("%") == 2 and full.count("%") == 4
    assert lines.splitlines()[3:] == [f"full at {b}, by case: C2D:2 100%" for b in (16, 64)]


def test_curves_are_corrected_by_the_race() -> None:
    curves = efficiency([FULL, OTHER])
    assert corrected(curves, None).keys() == curves.keys()
    np.testing.assert_array_equal(corrected(curves, {})[FULL.key], curves[FULL.key])
    raced = {(*FULL.key, 2): 4.0, (*FULL.key, 4): 4.0, (*OTHER.key, 4): 5.0}
    found = corrected(curves, raced)
    # 0.25 after two trials was worth 1.0 in the race, 1.0 after four was.
    np.testing.assert_allclose(found[FULL.key], [1.0, 1.0, 0.5 * 4 ** (1 - np.log2(1.5)), 1.0])
    np.testing.assert_allclose(found[OTHER.key], curves[OTHER.key] * 0.8 / 0.5)


@pytest.mark.slow
def test_what_was_found_is_raced() -> None:
    first, second = (ablations.run(p, "NRM:1", 0, 16) for p in ("full", "limited"))
    assert set(first.programs) == {"16"}
    raced = race_all([first, second, replace(first, target="another")], ablations.space_of, 0.5)
    assert set(raced) == {(r.policy, "NRM:1", 0, 16) for r in (first, second)}
    assert all(0 < t < 1e-3 for t in raced.values())


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    experiment = experiment_of_runs(tmp_path / "runs.jsonl")
    draw(experiment, [FULL, replace(OTHER, at_s=[1.0, 2.0, 3.0, 4.0])])
    for name in ("runs.svg", "runs_seconds.svg"):
        assert (tmp_path / name).read_text().startswith("<?xml")


def test_no_plot_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw(experiment_of_runs(tmp_path / "runs.jsonl"), [FULL, OTHER])
    assert "ansorlite[report]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
