"""Trees are retrained after enough new records; a resumed run derives the same cut-off."""

from dataclasses import replace

import numpy as np
import pytest

from ansorlite.cost import model as model_module
from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.model import GBDTModel, ValidityModel
from ansorlite.cost.training_cutoff import RETRAIN_GROWTH, before_cutoff


def group(key: str, told: list[int], seed: int = 0) -> TrainingGroup:
    rng = np.random.default_rng([seed, len(key)])
    features = [rng.random((1, 3)).astype(np.float32) for _ in told]
    latency_s = np.array([1e-3 * (0.1 + float(f[0, 0])) for f in features])
    return TrainingGroup(key, features, latency_s, np.array(told, np.int64))


def rounds(sizes: list[int]) -> list[int]:
    return [number for number, size in enumerate(sizes) for _ in range(size)]


def count(groups: list[TrainingGroup]) -> int:
    return sum(len(g.latency_s) for g in groups)


def test_few_programs_are_all_learned_from() -> None:
    """Rounds of 64 of one task: each is more than is asked for, until there are 2,048."""
    for n in range(1, 33):
        g = group("a", rounds([64] * n))
        assert before_cutoff([g])[0] is g


def test_of_many_programs_the_last_rounds_wait() -> None:
    sizes = [8] * 400
    trained = []
    for n in range(1, 401):
        found = count(before_cutoff([group("a", rounds(sizes[:n]))]))
        assert found <= 8 * n < (1.0 + RETRAIN_GROWTH) * found + 8
        trained.append(found)
    assert trained == sorted(trained)
    assert len(set(trained)) < 150  # trainings of 400 rounds


def test_rounds_are_those_of_all_tasks() -> None:
    """Tasks take turns; what is left out is what was told last, whichever task it is of."""
    told = np.arange(600)
    a, b = group("a", list(told[::2])), group("b", list(told[1::2]))
    found = before_cutoff([a, b])
    last = max(int(g.round_index.max()) for g in found if g.round_index is not None)
    assert 600 / (1.0 + RETRAIN_GROWTH) - 1 < count(found) < 600
    assert count(found) == last + 1
    new = group("c", [600])
    keys = [g.task_key for g in before_cutoff([a, b, new])]
    assert keys == ["a", "b"]  # all programs of the new task are after the cutoff


def test_without_numbers_everything_counts() -> None:
    numbered, plain = group("a", rounds([8] * 300)), replace(group("b", [0] * 5), round_index=None)
    assert count(before_cutoff([numbered])) < 2400
    assert count(before_cutoff([numbered, plain])) == 2405
    assert before_cutoff([]) == []


@pytest.mark.parametrize("kind", [GBDTModel, ValidityModel])
def test_models_wait_and_end_up_the_same(
    kind: type[GBDTModel] | type[ValidityModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that saw every round, and one that begins with the last: the same predictions."""
    trainings = []
    packed = model_module.pack_groups
    monkeypatch.setattr(model_module, "pack_groups", lambda g: trainings.append(1) or packed(g))
    sizes = [8] * 120
    whole = group("a", rounds(sizes))
    whole.latency_s[::5] = np.inf  # failures, which the one learns from
    long, short = kind(), kind()
    for n in range(8, 961, 8):
        keep = slice(0, n)
        assert whole.round_index is not None
        long.update(
            [
                TrainingGroup(
                    "a", whole.features[keep], whole.latency_s[keep].copy(), whole.round_index[keep]
                )
            ]
        )
    assert len(trainings) < 100
    short.update([whole])
    x = np.random.default_rng(5).random((50, 1, 3)).astype(np.float32)
    assert np.array_equal(long.predict(x), short.predict(x))
    assert len(np.unique(long.predict(x))) > 5
