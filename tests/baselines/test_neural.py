"""Neural cost models: they learn an order, come back from a file, and say what is missing.

Without torch most of them are skipped: `pip install -e '.[dev,torch]'` has them run.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from ansorlite.baselines.neural import Kind, NeuralModel
from ansorlite.cost.losses import TrainingGroup
from ansorlite.errors import AnsorliteError, MissingExtra


def group(seed: int, n: int = 160, statements: int = 2) -> TrainingGroup:
    """Latencies that the first feature of the first statement decides."""
    x = np.random.default_rng(seed).uniform(0.1, 1, (n, statements, 6)).astype(np.float32)
    return TrainingGroup("a", list(x), np.asarray(1e-3 * (1 + 3 * x[:, 0, 0]), np.float64))


@pytest.mark.parametrize("objective", ["rank", "regression"])
@pytest.mark.parametrize("kind", ["gru", "attention"])
def test_an_order_is_learned(kind: Kind, objective: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs ansorlite[torch]")
    model = NeuralModel(kind, 0, objective)  # type: ignore[arg-type]
    known, test = group(0), group(1)
    assert not model.is_trained and not model.predict(np.stack(test.features)).any()
    model.update([TrainingGroup("few", known.features[:5], known.latency_s[:5])])
    assert not model.is_trained
    model.update([known, group(2, 40, 1)])  # programs of one statement beside
    x = np.stack(test.features)
    assert np.corrcoef(model.predict(x), test.latency_s)[0, 1] < -0.8
    again = NeuralModel(kind, 0, objective)  # type: ignore[arg-type]
    again.update([known, group(2, 40, 1)])
    np.testing.assert_allclose(again.predict(x), model.predict(x), rtol=1e-5)
    model.save(tmp_path / "model.npz")
    loaded = NeuralModel(kind)
    loaded.load(tmp_path / "model.npz")
    np.testing.assert_allclose(loaded.predict(x), model.predict(x), rtol=1e-5)
    other = NeuralModel("attention" if kind == "gru" else "gru")
    with pytest.raises(AnsorliteError, match="is no usable"):
        other.load(tmp_path / "model.npz")


def test_nothing_learned_is_nothing_to_save(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs ansorlite[torch]")
    with pytest.raises(AnsorliteError, match="nothing to save"):
        NeuralModel().save(tmp_path / "model.npz")
    (tmp_path / "text").write_text("no model")
    with pytest.raises(AnsorliteError, match="is no usable gru model"):
        NeuralModel().load(tmp_path / "text")


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"ansorlite\[torch\]"):
        NeuralModel()
