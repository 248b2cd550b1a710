"""The searchers by name: a space, a policy and a model, each independent of the others.

In: a task and what a `Session` knows. Out: its sketches and the `SearchPolicy` over them. Ansor,
AutoTVM's searchers and their variants are rows of one table; measuring, recording and resuming are
the same for all. A row of `ansorlite.baselines` names its maker as text: the module is imported
when the searcher is used, so a default run loads none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.model import CostModel, ValidityModel
from ansorlite.errors import UsageError
from ansorlite.search.policy import (
    EvolutionaryPolicy,
    EvolutionParams,
    RandomPolicy,
    SearchPolicy,
)
from ansorlite.space.sketch import Sketch, SpaceOptions, sketches
from ansorlite.task import SearchTask

TEMPLATES = "ansorlite.baselines.templates:template_sketches"
ANNEALING = "ansorlite.baselines.annealing:make"


@dataclass
class Context:
    """What a policy may be made of."""

    task: SearchTask
    seed: int
    model: CostModel
    params: EvolutionParams | None = None
    validity: ValidityModel | None = None
    # Measurements of the session's other tasks, in the features of the same searcher.
    other_tasks: Callable[[], Sequence[TrainingGroup]] = field(default=lambda: ())


Maker = Callable[..., SearchPolicy]  # (sketches, Context, options of the row by keyword)


@dataclass(frozen=True)
class Searcher:
    """A row of the table; `maker` and `loader` are functions, or "module:function".

    `options` are keyword arguments of the maker. `template`: the space is that of the task's
    template instead of all sketches. `neighbours`: programs that did well for similar tasks are
    measured first. `plain`: the plain schedule is the first trial of every task, so that there is a
    measured answer whenever the search ends. `space_options` hold unless the caller gives others.
    `loader` reads the pretrained model (path, seed) that the searcher cannot do without; `learns`
    tells whether measurements train the session's model.
    """

    what: str
    maker: Maker | str
    template: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    neighbours: bool = False
    plain: bool = True
    space_options: SpaceOptions | None = None
    loader: str = ""
    learns: bool = True

    def make(self, found: Sequence[Sketch], context: Context) -> SearchPolicy:
        """The policy over the sketches of a task."""
        maker = loaded(self.maker) if isinstance(self.maker, str) else self.maker
        made: SearchPolicy = maker(found, context, **self.options)
        return made

    def space(self, task: SearchTask, options: SpaceOptions | None) -> list[Sketch]:
        """The task's sketches; AnsorliteError where no template matches."""
        if self.template:
            return template_sketches(task)
        return sketches(task.dag, task.target, options or self.space_options)


def loaded(place: str) -> Any:
    """The object at "module:name", whose module is imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def template_sketches(task: SearchTask) -> list[Sketch]:
    """The space of the template that matches a task; UsageError where none does."""
    found: list[Sketch] = loaded(TEMPLATES)(task.dag, task.target)
    return found


def _evolutionary(found: Sequence[Sketch], c: Context) -> SearchPolicy:
    return EvolutionaryPolicy(
        found, c.task.target, c.seed, c.task.workload_key, c.model, c.params, c.validity
    )


def _random(found: Sequence[Sketch], c: Context) -> SearchPolicy:
    return RandomPolicy(found, c.task.target, c.seed, c.task.workload_key)


SEARCHERS: dict[str, Searcher] = {
    "evolutionary": Searcher(
        "Ansor's: sketches, evolution, a learned cost model", _evolutionary, neighbours=True
    ),
    "random": Searcher("legal programs of all sketches at random", _random),
    "one-shot": Searcher(
        "a pretrained model, no updates: few programs are measured",
        _evolutionary,
        plain=False,
        # Making and looking at all sketches takes longer than measuring does.
        space_options=SpaceOptions(max_sketches=8, locations=False),
        loader="ansorlite.baselines.saved:load_model",
        learns=False,
    ),
    "beam": Searcher(
        "programs built decision by decision, early pruning", "ansorlite.baselines.beam:make"
    ),
    "annealing": Searcher("AutoTVM's annealing over all sketches", ANNEALING),
    "template-grid": Searcher(
        "a template's programs in order", "ansorlite.baselines.genetic:make_grid", True
    ),
    "template-random": Searcher("a template's programs at random", _random, True),
    "template-ga": Searcher("AutoTVM's genetic search", "ansorlite.baselines.genetic:make", True),
    "template-xgb": Searcher("AutoTVM: annealing over boosted trees, rank loss", ANNEALING, True),
    "template-xgb-reg": Searcher(
        "the same with the regression loss", ANNEALING, True, {"objective": "regression"}
    ),
    "template-xgb-knobs": Searcher(
        "the same on the numbers of the knobs", ANNEALING, True, {"features": "knobs"}
    ),
    "template-xgb-ei": Searcher(
        "an ensemble, searched by expected improvement",
        ANNEALING,
        True,
        {"objective": "regression", "acquisition": "ei"},
    ),
    "template-xgb-ucb": Searcher(
        "an ensemble, searched by an upper bound",
        ANNEALING,
        True,
        {"objective": "regression", "acquisition": "ucb"},
    ),
    "template-treegru": Searcher(
        "a recurrent network over the loops (needs torch)", ANNEALING, True, {"neural": True}
    ),
    "template-xgb-transfer": Searcher(
        "relation features, begun with what the session's other tasks taught",
        ANNEALING,
        True,
        {"features": "relation", "objective": "regression", "transfer": True},
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
