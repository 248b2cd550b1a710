"""What is known before anything is measured: trees that correct the analytic estimate.

In: programs of many tasks with their latencies, as rows of `cost.relative`. Out: for programs of
any task the log2 by which they are faster than estimated, up to a constant of the task. One model
is shipped (`prior.npz`, made by scripts/train_prior.py): of random layers, measured with AVX-512
and with AVX2 on one AMD core of 2024. Arm was not measured: what the model says of NEON is what
both vector widths have in common, and counts by half. Models of a machine are further stages on top
(`search.knowledge`). Files are npz without pickles around LightGBM's text, which is checked.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ansorlite.cost.losses import Features, Floats, Loss, Packs, TrainingGroup, labels
from ansorlite.cost.relative import (
    N_RELATIVE,
    RELATIVE_NAMES,
    Rows,
    Tiles,
    no_tiles,
    relative_rows,
)
from ansorlite.cost.trees import GBDTParams, parse_booster, sum_of_trees, train_trees
from ansorlite.files import arrays_of
from ansorlite.target import Target

if TYPE_CHECKING:
    import lightgbm as lgb

SHIPPED, TILES = "prior.npz", "tiles"
LARGEST_BYTES = 8 << 20  # of a model's text
# Weights of programs by their share of the best speed: the order of the fast ones matters, and that
# slow ones are slow.
EXPONENT, LEAST_WEIGHT = 6.0, 0.05
LEAST_LABEL = 2.0**-5
LARGEST = 2.5  # log2 of a correction; of measured programs 99.9 % need less
UNMEASURED = 0.5  # share of the correction for instruction sets of which nothing was measured
PARAMS = GBDTParams(
    n_trees=400,
    n_leaves=31,
    rows_per_leaf=30,
    learning_rate=0.08,
    min_rows_in_leaf=10,
    feature_fraction=0.4,
    l2=1.0,
    min_hessian_in_leaf=1e-2,
    max_bins=127,
    min_programs=64,
    holdout=0.0,
)
DIGEST = sha256(" ".join(RELATIVE_NAMES).encode()).hexdigest()[:16]


class RowGroup(NamedTuple):
    """Programs of one task: rows float32[P, N_RELATIVE], and seconds, inf for a failure."""

    task: str
    rows: Rows
    latency_s: Floats


class Stage(NamedTuple):
    """Trees of one training, how many programs they have seen, and how much they count."""

    booster: "lgb.Booster"
    programs: int
    share: float = 1.0


class Prior:
    """The correction for programs of one target: the sum of the trees of all stages.

    `stages` is called when the first program is looked at: LightGBM takes half a second to load.
    `tiles` is what register tiles reach on the machine, by default what the shipped model knows of
    the instruction set.
    """

    def __init__(
        self,
        target: Target,
        stages: Callable[[], Sequence[Stage]],
        tiles: Tiles | None = None,
        threads: int = 1,
    ) -> None:
        self.target, self._load, self._threads = target, stages, threads
        self._tiles = tiles

    @cached_property
    def stages(self) -> Sequence[Stage]:
        """What is added up."""
        return self._load()

    @cached_property
    def tiles(self) -> Tiles:
        """What register tiles reach."""
        return tiles_of(self.target) if self._tiles is None else self._tiles

    def correction(self, features: Features) -> Floats:
        """float64[P] from float32[P, S, F]: log2 of the speed beyond the estimate's."""
        if not len(features) or not features.shape[1]:
            return np.zeros(len(features))
        rows = relative_rows(features, self.target, self.tiles)
        return np.clip(corrections(self.stages, rows, self._threads), -LARGEST, LARGEST)


def corrections(stages: Sequence[Stage], rows: Rows, threads: int = 1) -> Floats:
    """float64[P]: what all stages add to the estimate of rows float32[P, N_RELATIVE]."""
    out = np.zeros(len(rows))
    for stage in stages:
        out += stage.share * sum_of_trees(stage.booster, rows, threads)
    return out


def row_group(group: TrainingGroup, target: Target, tiles: Tiles | None = None) -> RowGroup:
    """The programs of a task that have statements, as rows; `tiles` as those of a `Prior`."""
    tiles = tiles_of(target) if tiles is None else tiles
    sizes = np.array([len(f) for f in group.features], np.int64)
    rows = np.zeros((len(sizes), N_RELATIVE), np.float32)
    for size in np.unique(sizes[sizes > 0]):
        at = np.flatnonzero(sizes == size)
        rows[at] = relative_rows(np.stack([group.features[int(k)] for k in at]), target, tiles)
    return RowGroup(group.task_key, rows[sizes > 0], np.asarray(group.latency_s)[sizes > 0])


def estimates(rows: Rows) -> Floats:
    """float64[P]: the analytic estimate of rows, log2 of the speed up to a constant."""
    found: Floats = -rows[:, RELATIVE_NAMES.index("total_cycles")].astype(np.float64)
    return found


def trained(
    groups: Sequence[RowGroup],
    before: Sequence[Stage] = (),
    params: GBDTParams = PARAMS,
    seed: int = 0,
    threads: int = 1,
) -> Stage | None:
    """Trees on what the stages `before` leave of the error; None for too few programs.

    Failed programs tell nothing here: whether a program fails is another model's question.
    """
    known = [_valid(g) for g in groups]
    known = [g for g in known if len(g.rows) > 1]
    if sum(len(g.rows) for g in known) < params.min_programs:
        return None
    rows = np.concatenate([g.rows for g in known])
    n = len(rows)
    packs = Packs(
        rows,
        np.arange(n),
        np.ones(n, np.int64),
        np.concatenate([labels(g.latency_s) for g in known]),
        np.repeat(np.arange(len(known)), [len(g.rows) for g in known]),
        tuple(g.task for g in known),
    )
    start = estimates(rows) + corrections(before, rows, threads)
    return Stage(train_trees(packs, params, _centred_loss, start, seed, threads), n)


def _valid(group: RowGroup) -> RowGroup:
    ok = np.isfinite(group.latency_s)
    return RowGroup(group.task, group.rows[ok], group.latency_s[ok])


def _centred_loss(packs: Packs, rng: np.random.Generator) -> Loss:
    """Squared error of the log2 of speeds within each task, whatever the task's constant.

    Every task counts as much, however many programs it has.
    """
    y = np.log2(np.maximum(packs.label, LEAST_LABEL))
    w = np.maximum(packs.label**EXPONENT, LEAST_WEIGHT)
    n = len(packs.keys)
    w = w / np.maximum(np.bincount(packs.group, w, n), 1e-12)[packs.group]
    w *= len(w) / max(n, 1)

    def errors(scores: Floats) -> Floats:
        e = scores - y
        middle = np.bincount(packs.group, w * e, n) / np.bincount(packs.group, w, n)
        return np.asarray(e - middle[packs.group])

    return Loss(
        lambda scores: (w * errors(scores), w),
        lambda scores: float(w @ np.square(errors(scores)) / 2),
    )


# ---- files --------------------------------------------------------------------------------------


def model_bytes(stage: Stage, tiles: Mapping[int, Tiles] = MappingProxyType({})) -> bytes:
    """A file of a stage, and of what register tiles reach by vector bytes."""
    out = io.BytesIO()
    arrays: dict[str, Any] = {f"{TILES}{width}": table for width, table in tiles.items()}
    arrays["trees"] = np.frombuffer(stage.booster.model_to_string().encode(), np.uint8)
    arrays["features"] = np.array(DIGEST)
    arrays["programs"] = np.array(stage.programs, np.int64)
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def parsed_model(data: bytes, trusted: bool = False) -> Stage | None:
    """The stage of a file; None where the file is damaged or of another version's features."""
    found = arrays_of(data, LARGEST_BYTES)
    if found is None or str(found.get("features")) != DIGEST:
        return None
    try:
        text, programs = found["trees"].astype(np.uint8, casting="no"), int(found["programs"])
        booster = parse_booster(text.tobytes().decode("ascii"), trusted)
    except (KeyError, ValueError, TypeError):
        return None
    return Stage(booster, programs) if booster.num_feature() == N_RELATIVE else None


class Shipped(NamedTuple):
    """What comes with the package: a stage, and what register tiles reach by vector bytes."""

    stages: tuple[Stage, ...] = ()
    tiles: Mapping[int, Tiles] = MappingProxyType({})


def has_shipped() -> bool:
    """Does a model come with the package?"""
    return resources.files("ansorlite.cost").joinpath(SHIPPED).is_file()


@lru_cache(maxsize=1)
def shipped() -> Shipped:
    """What comes with the package; nothing where its file is not there or does not fit."""
    try:
        data = resources.files("ansorlite.cost").joinpath(SHIPPED).read_bytes()
    except OSError:
        return Shipped()
    stage = parsed_model(data, trusted=True)
    if stage is None:
        return Shipped()
    found = arrays_of(data, LARGEST_BYTES) or {}
    tiles = {int(k.removeprefix(TILES)): v for k, v in found.items() if k.startswith(TILES)}
    return Shipped((stage,), tiles)


def stages_for(target: Target) -> tuple[Stage, ...]:
    """The shipped stage; it counts less for an instruction set of which nothing was measured."""
    share = 1.0 if target.arch == "x86_64" else UNMEASURED
    return tuple(stage._replace(share=share) for stage in shipped().stages)


def tiles_of(target: Target) -> Tiles:
    """What register tiles reach with a target's instruction set, as far as that is shipped."""
    found = shipped().tiles.get(target.vector_bytes) if target.arch == "x86_64" else None
    return no_tiles(target) if found is None else found
