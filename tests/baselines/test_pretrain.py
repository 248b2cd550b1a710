"""Pretraining: random tasks resemble those of networks; a search uses the model unchanged."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ansorlite as al
from ansorlite.baselines import pretrain as module
from ansorlite.baselines.pretrain import Layer, LayerPrior, layer_tasks, layers_of, pretrain
from ansorlite.baselines.saved import load_model
from ansorlite.errors import AnsorliteError, MissingExtra
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.records import read_log
from ansorlite.search import knowledge
from ansorlite.search.budget import Budget
from ansorlite.search.session import Session
from ansorlite.space.plain import PLAIN
from ansorlite.target import Target


def dense_net() -> Graph:
    b = GraphBuilder("dense")
    x = b.input("x", (8, 32))
    for n in (48, 16):
        w = b.constant(np.ones((b.shape(x)[1], n), np.float32))
        x = b.emit("relu", [b.emit("matmul", [x, w])])
    return b.finish([x])


def test_layers_of_networks() -> None:
    found = layers_of(al.network("mobilenet_v2"))
    kinds = {layer.kind for layer in found}
    assert kinds == {"conv", "grouped", "dense"} and len(found) == 53
    first = found[0]
    assert (first.spatial, first.ci, first.co, first.strides) == ((224, 224), 3, 32, (2, 2))


def test_drawn_layers_are_computations() -> None:
    """Whatever is drawn has a task, in the form in which networks have it."""
    prior = LayerPrior([x for n in ("mobilenet_v2", "resnet18") for x in layers_of(al.network(n))])
    rng = np.random.default_rng(0)
    drawn = [prior.draw(rng) for _ in range(60)]
    assert {layer.kind for layer in drawn} >= {"conv", "grouped"}
    assert len(set(drawn)) > 40
    target = Target.detect()
    for layer in drawn:
        assert layer_tasks(layer, target)[0].flop > 0
        assert layer.ci % layer.groups == 0 and layer.co % layer.groups == 0
    known = {layer.spatial for layer in prior.layers}
    assert {layer.spatial for layer in drawn} <= known


def test_networks_without_layers_to_learn_from_are_an_error() -> None:
    with pytest.raises(AnsorliteError, match="no convolution or dense layer"):
        LayerPrior([])


def pretrained(path: Path, **options: Any) -> list[str]:
    """A small network's model and what is told of it; the time is over after two tasks."""
    told: list[str] = []
    few = replace(module.PARAMS, min_programs=24, n_trees=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROUND", 8)
        patch.setattr(module, "PARAMS", few)
        patch.setattr(Budget, "left_s", lambda budget: 60.0 * (len(told) < 2))
        pretrain([dense_net()], 1.0, path, tell=told.append, **options)
    return told


@pytest.mark.slow
def test_one_shot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretrained on a small network, then used without an update; and kept for later runs."""
    path, log = tmp_path / "model.json", tmp_path / "log.jsonl"
    monkeypatch.setenv("ANSORLITE_KNOWLEDGE", "1")
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", str(tmp_path / "cache"))
    lines = pretrained(path, log=log)
    assert len({r.task for r in knowledge.programs(Target.detect())}) == 2
    with Session(1, None, progress=False) as session:
        assert session.cost_model.is_trained
    monkeypatch.setenv("ANSORLITE_KNOWLEDGE", "0")
    assert len(lines) == 2 and "programs" in lines[-1]
    assert len({r.task for r in read_log(log).records}) == 2
    assert load_model(path).is_trained
    (task,) = layer_tasks(Layer("dense", (24,), 40, 64), Target.detect())
    result = al.tune(task, n_trials=6, policy="one-shot", pretrained=path, progress=False)
    assert result.best is not None and result.trials == 6
    x = np.ones((8, 32), np.float32)
    for n_trials in (10, 1):  # with one, what the model predicts serves the others
        once = {"policy": "one-shot", "pretrained": path, "progress": False}
        log = tmp_path / f"{n_trials}.jsonl"
        net = al.auto_schedule(dense_net(), n_trials=n_trials, log=log, **once)
        records = read_log(log).records
        assert len(records) == n_trials and all(r.sketch != PLAIN for r in records)
        assert net(x).shape == (8, 16)


def test_attention(tmp_path: Path) -> None:
    """The self-attention predictor serves one-shot search, and no other."""
    pytest.importorskip("torch", reason="needs ansorlite[torch]")
    path = tmp_path / "model.npz"
    pretrained(path, kind="attention")
    (task,) = layer_tasks(Layer("dense", (24,), 40, 64), Target.detect())
    result = al.tune(task, n_trials=6, policy="one-shot", pretrained=path, progress=False)
    assert result.best is not None and result.trials == 6
    with pytest.raises(AnsorliteError, match="only one-shot search"):
        al.tune(task, n_trials=6, pretrained=path, progress=False)


def test_attention_without_torch_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"ansorlite\[torch\]"):
        pretrain([dense_net()], 60.0, tmp_path / "model.npz", kind="attention")


def test_one_shot_without_a_model_is_an_error() -> None:
    (task,) = layer_tasks(Layer("dense", (24,), 40, 64), Target.detect())
    with pytest.raises(AnsorliteError, match="needs a pretrained model: make one with"):
        al.tune(task, n_trials=6, policy="one-shot", progress=False)


def test_other_forms_of_a_layer_are_learned_from_too() -> None:
    """Winograd's: what one-shot search asks about is to be known to its model."""
    layer = Layer("conv", (14, 14), 32, 32, (3, 3), (1, 1), ((1, 1), (1, 1)))
    plain, *others = layer_tasks(layer, Target.detect())
    assert plain.meaning is None and others
    assert all(t.meaning is plain.dag or t.plain.dag is plain.dag for t in others)
