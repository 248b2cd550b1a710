"""Tuning one task: the front door of the search for users of Python.

In: a `SearchTask` and a budget of trials, of seconds or of both. Out: a `TuneResult`. The loop is
that of networks, see `search.tune_tasks`.
"""

from collections.abc import Sequence
from pathlib import Path

from ansorlite.cost.model import CostModel
from ansorlite.errors import UsageError
from ansorlite.measure.builder import Builder
from ansorlite.measure.runner import Runner
from ansorlite.search.arguments import check_tasks
from ansorlite.search.estimate import estimating
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.result import TuneResult
from ansorlite.search.session import Session
from ansorlite.search.tune_tasks import ALONE, ONE_TASK, WeightedTask, tune_tasks
from ansorlite.space.sketch import SpaceOptions
from ansorlite.task import SearchTask


def tune(
    task: SearchTask,
    n_trials: int | None = 64,
    timeout: float | None = None,
    *,
    seed: int = 0,
    log: str | Path | None = None,
    policy: str = "evolutionary",
    model: CostModel | None = None,
    builder: Builder | None = None,
    runner: Runner | None = None,
    space: SpaceOptions | None = None,
    progress: bool = True,
    round_size: int | None = None,
    params: EvolutionParams | None = None,
    pretrained: str | Path | None = None,
    known: bool = True,
    others: Sequence[SearchTask] = (),
) -> TuneResult:
    """Search for a fast program of one task.

    >>> result = tune(workload("GMM", 2), n_trials=64, log="gmm.jsonl")
    >>> result.kernel(a, b)

    `n_trials` counts measured candidates, those of the log included; `timeout` is wall-clock
    seconds for everything; the first budget spent ends the search. Ctrl-C ends it with the best so
    far. With `n_trials=0` nothing is measured or written: the best of the log, else the model's
    prediction. For a target that this machine cannot run, and without a `runner` that can, nothing
    is measured either: programs are built and ranked by estimates (`search.estimate`). More options
    are those of `search.session.TuneOptions`. The log's records of tasks
    in `others` train the model, and begin searchers that transfer (template-xgb-transfer); none of
    them counts as a trial, and nothing of them is measured. Raises UsageError for an argument
    without a meaning, MeasureError or BuildError where the plain schedule fails.
    """
    check_tasks((task, *others))
    if others and log is None:
        raise UsageError("what is known of other tasks is read from the log: name one")
    with Session(
        n_trials,
        timeout,
        seed=seed,
        log=log,
        policy=policy,
        model=model,
        builder=builder,
        runner=runner or estimating(task.target),
        space=space,
        progress=progress,
        round_size=round_size,
        params=params,
        pretrained=pretrained,
        known=known,
    ) as session:
        alone = [WeightedTask(task, 1.0)]
        return tune_tasks(session, alone, ONE_TASK, manner=ALONE, other_tasks=others)[0]
