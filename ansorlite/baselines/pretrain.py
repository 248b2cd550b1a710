"""A cost model for the machine at hand, trained once: One-Shot Tuner (CC'22).

In: networks whose layers tell what tasks are likely, and minutes. Out: a saved model: boosted
trees, or the paper's self-attention over a program's statements (needs torch). Tasks are drawn from
the conditional distributions of layer types and sizes (prior-guided sampling), and of each task
those programs are measured that a search comes by, rather than programs at random
(exploration-based sampling). The searcher "one-shot" then uses the model without updates: one pass
of search, and the few best are measured.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from ansorlite.baselines.neural import NeuralModel
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.model import CostModel
from ansorlite.errors import MeasureError, UsageError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.graph.types import integer, ints, pairs, text
from ansorlite.measure.runner import LocalRunner
from ansorlite.measure.timing import TimingPolicy
from ansorlite.search import lessons
from ansorlite.search.session import Session
from ansorlite.search.tuner import TaskTuner
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target
from ansorlite.task import SearchTask

ROUNDS, ROUND = 3, 16  # of programs of a drawn task
RECENT = 12  # tasks that the model learns from while data are collected
JITTER = (0.5, 0.75, 1.0, 1.0, 1.0, 1.5, 2.0)  # of drawn channel numbers
LARGEST_FLOP = 4e9  # of a drawn task
T = TypeVar("T")
Kind = Literal["trees", "attention"]
# More data than a search has: more and larger trees.
PARAMS = replace(CorrectionModel.PARAMS, n_trees=600, n_leaves=63)


@dataclass(frozen=True)
class Layer:
    """A convolution [n, *spatial, ci] -> co channels, or a matrix product [m, ci] x [ci, co].

    `kind` is "conv", "grouped" or "dense"; of the latter `spatial` is (m,).
    """

    kind: str
    spatial: tuple[int, ...]
    ci: int
    co: int
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()
    groups: int = 1


def layers_of(graph: Graph) -> list[Layer]:
    """The convolutions and dense layers of a network, as often as they occur."""
    best = optimize(graph)
    found = [_layer(best, n) for n in best.nodes]
    return [layer for layer in found if layer is not None]


def _layer(graph: Graph, node: Node) -> Layer | None:
    shapes = [graph.types[v].shape for v in node.inputs]
    if node.op == "matmul" and len(shapes[1]) == 2:
        m = math.prod(shapes[0][:-1])
        return Layer("dense", (m,), shapes[0][-1], shapes[1][-1])
    if node.op != "conv" or text(node.attrs, "layout") != "channels_last":
        return None
    *kernel, _, co = shapes[1]
    groups = integer(node.attrs, "groups")
    return Layer(
        "conv" if groups == 1 else "grouped",
        shapes[0][1:-1],
        shapes[0][-1],
        co,
        tuple(kernel),
        tuple(ints(node.attrs, "strides")),
        tuple(pairs(node.attrs, "pads")),
        groups,
    )


class LayerPrior:
    """Draws layers that resemble those of some networks."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        if not layers:
            raise UsageError("the networks have no convolution or dense layer to learn from")
        self.layers = tuple(layers)

    def draw(self, rng: np.random.Generator) -> Layer:
        """Type, then window and image given the type, then channels given the image."""
        kind = _one([layer.kind for layer in self.layers], rng)
        same = [layer for layer in self.layers if layer.kind == kind]
        window = _one([_window(x) for x in same], rng)
        same = [x for x in same if _window(x) == window]
        spatial = _one([x.spatial for x in same], rng)
        size = math.prod(spatial)
        near = sorted(same, key=lambda x: abs(math.log2(math.prod(x.spatial) / size)))
        model = _one(near[:4], rng)
        # Images have three channels.
        ci = model.ci if model.ci < 8 else _channels(model.ci, rng)
        drawn = replace(model, spatial=spatial, ci=ci, co=_channels(model.co, rng))
        if model.kind != "grouped":
            return drawn
        of_group = model.ci // model.groups
        groups = max(1, ci // of_group)
        co = groups * max(1, model.co // model.groups)
        return replace(drawn, ci=groups * of_group, co=co, groups=groups)


def _one(values: Sequence[T], rng: np.random.Generator) -> T:
    return values[int(rng.integers(len(values)))]


def _window(layer: Layer) -> tuple[object, ...]:
    return layer.kernel, layer.strides, layer.pads


def _channels(n: int, rng: np.random.Generator) -> int:
    """About n, in eights where it is not small."""
    drawn = n * float(rng.choice(JITTER))
    return max(1, round(drawn / 8) * 8) if drawn >= 8 else max(1, int(drawn))


def layer_graph(layer: Layer) -> Graph:
    """relu(layer + bias) as a network of one kernel, with weights of zeros."""
    b = GraphBuilder(f"{layer.kind} {layer.spatial}")
    if layer.kind == "dense":
        x = b.input("x", (layer.spatial[0], layer.ci))
        y = b.emit("matmul", [x, b.constant(np.zeros((layer.ci, layer.co), np.float32), "w")])
    else:
        x = b.input("x", (1, *layer.spatial, layer.ci))
        shape = (*layer.kernel, layer.ci // layer.groups, layer.co)
        y = b.emit(
            "conv",
            [x, b.constant(np.zeros(shape, np.float32), "w")],
            strides=layer.strides,
            pads=layer.pads,
            dilations=(1,) * len(layer.kernel),
            groups=layer.groups,
            layout="channels_last",
        )
    y = b.emit("add", [y, b.constant(np.ones(layer.co, np.float32), "b")])
    return b.finish([b.emit("relu", [y])])


def layer_tasks(layer: Layer, target: Target) -> tuple[SearchTask, ...]:
    """The search tasks of a layer with bias and relu: its plain form, then all others."""
    (own,) = network_tasks(partition(layer_graph(layer)), target)
    return own.forms


def pretrain(
    networks: Sequence[Graph],
    minutes: float,
    output: str | Path,
    *,
    log: str | Path | None = None,
    seed: int = 0,
    target: Target | None = None,
    kind: Kind = "trees",
    tell: Callable[[str], None] = lambda line: None,
) -> CostModel:
    """Measure programs of drawn tasks for so many minutes, train on them, save the model.

    A `log` keeps the measurements. The best programs, and what a model learns from, are also kept
    for later runs on this machine (`search.knowledge`, `search.lessons`). Raises UsageError where
    there is nothing to learn from, MeasureError where the time is too short; MissingExtra, at once,
    for "attention" without torch.
    """
    machine = target or Target.detect()
    model: CostModel = (
        NeuralModel("attention", seed)
        if kind == "attention"
        else CorrectionModel(seed, machine.cores, params=PARAMS, fast=CorrectionModel.FAST_PARAMS)
    )
    prior = LayerPrior([layer for g in networks for layer in layers_of(g)])
    rng = np.random.default_rng(seed)
    groups: list[TrainingGroup] = []
    began = time.perf_counter()
    seen: set[str] = set()
    with (
        LocalRunner(policy=TimingPolicy(fresh_constants=True)) as runner,
        Session(None, 60 * minutes, seed=seed, log=log, runner=runner, progress=False) as session,
    ):
        recent: list[TaskTuner] = []
        session.keeps_lessons = True
        while session.budget.left_s() > 0:
            forms = layer_tasks(prior.draw(rng), machine)
            if forms[0].flop > LARGEST_FLOP or forms[0].workload_key in seen:
                continue
            seen.add(forms[0].workload_key)
            for task in forms:
                tuner = session.tuner(task)
                recent = [*recent[1 - RECENT :], tuner]
                tuner.round(1)
                for _ in range(ROUNDS):
                    if session.budget.left_s() <= 0:
                        break
                    session.train(recent)
                    tuner.round(ROUND)
                group = tuner.policy.training_group() if tuner.has_begun else None
                if group is not None:
                    groups.append(group)
            spent = (time.perf_counter() - began) / 60
            programs = sum(len(g.latency_s) for g in groups)
            tell(f"{len(groups)} tasks, {programs} programs, {spent:.1f} min")
    model.update([g for g in groups if len(g.latency_s)])
    if not model.is_trained:
        raise MeasureError(f"{minutes} minutes were too few to learn from: give it more")
    model.save(output)
    lessons.learn(machine)  # of what the session kept
    return model
