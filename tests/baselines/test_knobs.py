"""Knob features of AutoTVM's models, the fast analytic score, uncertain and pretrained models."""

import numpy as np
import pytest

from ansorlite.baselines.annealing import expected_improvement
from ansorlite.baselines.ensemble import BootstrapEnsemble, SingleModel
from ansorlite.baselines.knobs import FEATURE_SETS
from ansorlite.baselines.templates import template_sketches
from ansorlite.cost.analytic import analytic_score
from ansorlite.cost.fast_analytic import fast_analytic_score
from ansorlite.cost.features import FeaturePlan, features
from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.planned import BLOCK_ROWS
from ansorlite.schedule.holes import population_columns
from ansorlite.space.sketch import Sketch, sketches
from ansorlite.target import Target
from ansorlite.workloads import workload

TASK = workload("C2D:2")
TEMPLATE = template_sketches(TASK.dag, TASK.target)[0]


@pytest.mark.parametrize("sketch", sketches(TASK.dag, TASK.target)[:3], ids=lambda s: s.name)
def test_the_draft_is_the_analytic_score(sketch: Sketch) -> None:
    """By blocks, and without the features that it does not need."""
    rows = sketch.sample(BLOCK_ROWS + 33, np.random.default_rng(0))
    columns, target = population_columns(sketch.holes, rows), Target.detect()
    got = fast_analytic_score(FeaturePlan(sketch.program), columns, len(rows), target)
    want = analytic_score(features(sketch.program, columns, len(rows), target))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", FEATURE_SETS)
def test_features_of_rows_do_not_depend_on_their_neighbours(name: str) -> None:
    made = FEATURE_SETS[name]()
    rows = TEMPLATE.sample(40, np.random.default_rng(1))
    every = made.of(TEMPLATE, rows, TASK.target)
    assert every.shape[:2] == (40, 1) and np.isfinite(every).all()
    np.testing.assert_array_equal(made.of(TEMPLATE, rows[7:9], TASK.target), every[7:9])
    assert len(np.unique(every[:, 0], axis=0)) > 20


def test_relations_have_one_width_for_all_programs() -> None:
    other = workload("GMM:1")
    widths = set()
    for task in (TASK, other):
        sketch = template_sketches(task.dag, task.target)[0]
        rows = sketch.sample(3, np.random.default_rng(0))
        widths |= {
            FEATURE_SETS[name]().of(sketch, rows, task.target).shape[2] for name in ("relation",)
        }
    assert len(widths) == 1


def group(seed: int, n: int = 120, key: str = "a") -> TrainingGroup:
    """Latencies that the first of four features decides."""
    x = np.random.default_rng(seed).uniform(0, 1, (n, 1, 4)).astype(np.float32)
    return TrainingGroup(key, list(x), np.asarray(1e-3 * (1 + 3 * x[:, 0, 0]), np.float64))


def test_an_ensemble_is_less_sure_of_what_it_never_saw() -> None:
    model = BootstrapEnsemble(seed=0)
    known = group(0)
    model.update([known])
    seen = np.stack(known.features)
    assert model.is_trained and model.spread(seen).mean() > 0
    order = np.corrcoef(model.predict(seen), known.latency_s)[0, 1]
    assert order < -0.8
    assert not SingleModel().spread(seen).any()


def test_a_task_begins_with_what_others_taught() -> None:
    alone, helped = SingleModel(seed=0), SingleModel(seed=0, transfer=True)
    few, test = group(2, 6, "new"), group(3, 200, "new")
    alone.update([few])
    helped.update([group(0), few])
    assert helped.is_trained and not alone.is_trained
    x = np.stack(test.features)
    assert np.corrcoef(helped.predict(x), test.latency_s)[0, 1] < -0.8


def test_expected_improvement() -> None:
    mean, spread = np.array([1.0, 1.0, 0.5]), np.array([0.1, 0.2, 1e-6])
    got = expected_improvement(mean, spread, 1.0)
    np.testing.assert_allclose(
        got, [0.1 / np.sqrt(2 * np.pi), 0.2 / np.sqrt(2 * np.pi), 0.0], atol=1e-9
    )
