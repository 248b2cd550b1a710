"""The searchers by name: a space, a policy and a model, each independent of the others.

In: a task and what a `Session` knows. Out: its sketches and the `SearchPolicy` over them. Ansor,
AutoTVM's searchers and their variants are rows of one table; whatever measures, records and resumes
is the same for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ansorlite.cost.ensemble import BootstrapEnsemble, SingleModel
from ansorlite.cost.knobs import FEATURE_SETS
from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.model import CostModel, FrozenModel, ValidityModel
from ansorlite.cost.neural import NeuralModel
from ansorlite.errors import UsageError
from ansorlite.search.annealing import AnnealingParams, AnnealingPolicy, Surrogate
from ansorlite.search.beam import BeamPolicy
from ansorlite.search.classic import GeneticPolicy, GridPolicy
from ansorlite.search.policy import (
    EvolutionaryPolicy,
    EvolutionParams,
    RandomPolicy,
    SearchPolicy,
)
from ansorlite.space.sketch import Sketch, SpaceOptions, sketches
from ansorlite.space.templates import template_sketches
from ansorlite.task import SearchTask


@dataclass
class Context:
    """What a policy may be made of."""

    task: SearchTask
    seed: int
    model: CostModel
    params: EvolutionParams | None = None
    validity: ValidityModel | None = None
    # Measurements of the session's other tasks, in the features of the same searcher.
    others: Callable[[], Sequence[TrainingGroup]] = field(default=lambda: ())


@dataclass(frozen=True)
class Searcher:
    """`template`: its space is that of the task's template instead of all sketches.

    `neighbours`: what did well for similar tasks is measured first. `plain`: the plain schedule is
    the first trial of every task, so that whatever ends the search there is a measured answer.
    `options` are those of its space, unless others are given.
    """

    what: str
    make: Callable[[Sequence[Sketch], Context], SearchPolicy]
    template: bool = False
    neighbours: bool = False
    plain: bool = True
    options: SpaceOptions | None = None

    def space(self, task: SearchTask, options: SpaceOptions | None) -> list[Sketch]:
        """The task's sketches; AnsorliteError where no template matches."""
        if self.template:
            return template_sketches(task.dag, task.target)
        return sketches(task.dag, task.target, options or self.options)


def _evolutionary(found: Sequence[Sketch], c: Context) -> EvolutionaryPolicy:
    return EvolutionaryPolicy(
        found, c.task.target, c.seed, c.task.workload_key, c.model, c.params, c.validity
    )


def _one_shot(found: Sequence[Sketch], c: Context) -> SearchPolicy:
    if not isinstance(c.model, FrozenModel):
        raise UsageError(
            "one-shot search needs a pretrained model: make one with `ansorlite pretrain` and name "
            "it (pretrained=, --pretrained)"
        )
    return _evolutionary(found, c)


def _beam(found: Sequence[Sketch], c: Context) -> SearchPolicy:
    # The same score as the evolution's, so that only the way of searching differs.
    return BeamPolicy(_evolutionary(found, c), c.seed, c.task.workload_key)


def _random(found: Sequence[Sketch], c: Context) -> SearchPolicy:
    return RandomPolicy(found, c.task.target, c.seed, c.task.workload_key)


def _grid(found: Sequence[Sketch], c: Context) -> SearchPolicy:
    return GridPolicy(found, c.task.target, c.seed, c.task.workload_key)


def _genetic(found: Sequence[Sketch], c: Context) -> SearchPolicy:
    return GeneticPolicy(found, c.task.target, c.seed, c.task.workload_key)


def annealing(
    features: str = "loops",
    objective: Literal["regression", "rank"] = "rank",
    params: AnnealingParams | None = None,
    transfer: bool = False,
    neural: bool = False,
) -> Callable[[Sequence[Sketch], Context], SearchPolicy]:
    """A maker of annealing policies; acquisitions other than the mean have an ensemble."""
    chosen = params or AnnealingParams()

    def make(found: Sequence[Sketch], c: Context) -> SearchPolicy:
        model: Surrogate
        if neural:
            model = NeuralModel("gru", c.seed, objective)
        elif chosen.acquisition == "mean":
            model = SingleModel(c.seed, objective, transfer)
        else:
            model = BootstrapEnsemble(c.seed, objective)
        return AnnealingPolicy(
            found,
            c.task.target,
            c.seed,
            c.task.workload_key,
            model,
            FEATURE_SETS[features](),
            chosen,
            c.others if transfer else lambda: (),
        )

    return make


SEARCHERS: dict[str, Searcher] = {
    "evolutionary": Searcher(
        "Ansor's: sketches, evolution, a learned cost model", _evolutionary, neighbours=True
    ),
    "random": Searcher("legal programs of all sketches at random", _random),
    "one-shot": Searcher(
        "a pretrained model, no updates: few programs are measured",
        _one_shot,
        plain=False,
        # Making and looking at all sketches takes longer than measuring does.
        options=SpaceOptions(max_sketches=8, locations=False),
    ),
    "beam": Searcher("programs built decision by decision, early pruning", _beam),
    "annealing": Searcher("AutoTVM's annealing over all sketches", annealing()),
    "template-grid": Searcher("a template's programs in order", _grid, True),
    "template-random": Searcher("a template's programs at random", _random, True),
    "template-ga": Searcher("AutoTVM's genetic search", _genetic, True),
    "template-xgb": Searcher("AutoTVM: annealing over boosted trees, rank loss", annealing(), True),
    "template-xgb-reg": Searcher(
        "the same with the regression loss", annealing(objective="regression"), True
    ),
    "template-xgb-knobs": Searcher(
        "the same on the numbers of the knobs", annealing(features="knobs"), True
    ),
    "template-xgb-ei": Searcher(
        "an ensemble, searched by expected improvement",
        annealing(objective="regression", params=AnnealingParams(acquisition="ei")),
        True,
    ),
    "template-xgb-ucb": Searcher(
        "an ensemble, searched by an upper bound",
        annealing(objective="regression", params=AnnealingParams(acquisition="ucb")),
        True,
    ),
    "template-treegru": Searcher(
        "a recurrent network over the loops (needs torch)", annealing(neural=True), True
    ),
    "template-xgb-transfer": Searcher(
        "relation features, begun with what the session's other tasks taught",
        annealing(features="relation", objective="regression", transfer=True),
        True,
    ),
}
ALIASES = {"ansor": "evolutionary"}


def searcher(name: str) -> Searcher:
    """The searcher of a name; AnsorliteError lists them."""
    found = SEARCHERS.get(ALIASES.get(name, name))
    if found is None:
        known = ", ".join([*ALIASES, *SEARCHERS])
        raise UsageError(f"no searcher is called {name!r}: choose one of {known}")
    return found
