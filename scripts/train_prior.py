"""The cost model that is shipped: trained on random layers, measured on this machine.

Claim: of programs of a layer that it has not seen, the best of the four scored best reaches 95 %
of the best; by the estimate alone 91 to 92 %. Four steps, each of which goes on where it was:
`propose` draws layers and builds programs of them for each instruction set (an hour, at low
priority); `calibrate` measures register tiles (half a minute), `measure` runs the programs (five
minutes, in pieces of `--seconds`), both on an idle machine; `train` makes cost/prior.npz. The
shipped one is of tasks 0 to 399 and, with `--prior`, 1000 on, as far as these were built. AVX2 is
measured on this machine, without its wider vectors; Arm is not (see cost/prior.py).
Usage: python scripts/train_prior.py {propose,calibrate,measure,train} [--seconds 100]
       [--folder DIR] [--tasks 400] [--first 0] [--prior] [--targets x86-avx2 x86-avx512]
"""

import argparse
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from ansorlite.codegen.build import BuildRequest, build_program, build_request
from ansorlite.codegen.image import KernelImage
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import Features, Floats, TrainingGroup
from ansorlite.cost.prior import (
    SHIPPED,
    RowGroup,
    corrections,
    estimates,
    model_bytes,
    row_group,
    trained,
)
from ansorlite.errors import AnsorliteError, MeasureError
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.measure.calibrate import calibrate
from ansorlite.measure.runner import CheckSpec, LocalRunner
from ansorlite.measure.timing import TimingPolicy
from ansorlite.schedule.lower import lower
from ansorlite.search import lessons
from ansorlite.search.measuring import CHECK_SEED
from ansorlite.search.policy import EvolutionaryPolicy, EvolutionParams
from ansorlite.search.reference import reduction_length, reference_state
from ansorlite.shared_tasks import network_tasks
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target
from ansorlite.task import SearchTask
from bench.drawn_layers import drawn_layer
from bench.experiment import exit_status, kept_folder

OUTPUT = Path(__file__).parents[1] / "ansorlite" / "cost" / SHIPPED
SEED = 43
TARGETS = ("x86-avx512", "x86-avx2")
LARGEST_FLOP = 1.3e9  # of a task, so that its reference takes a tenth of a second
OTHER_FORM = 0.3  # share of tasks in another form than the plain one, where there are others
BEST, VISITED, RANDOM = 10, 8, 4  # programs of a task: predicted best, looked at, at random
LEAST_PROGRAMS = 6  # of a task that ran
FOLDS = 5
TIMING = TimingPolicy(least_s=0.008, budget_s=0.05, limit_s=0.4, fresh_constants=True)


@dataclass
class Proposed:
    """Programs of a task that wait to be measured: their features and object code."""

    key: str
    target: str
    spec: CheckSpec
    features: list[Features]
    images: list[KernelImage]


def drawn_task(k: int, target: Target) -> SearchTask | None:
    """The task of a number; None where the layer has no task of a fitting size."""
    rng = np.random.default_rng([SEED, k])
    try:
        found = network_tasks(partition(optimize(drawn_layer(rng))), target)
    except AnsorliteError:
        return None
    weighted = max(found, key=lambda w: w.task.flop)
    if rng.random() < 0.06:  # what changes layouts between others
        weighted = found[int(rng.integers(len(found)))]
    task = weighted.task
    if weighted.other_forms and rng.random() < OTHER_FORM:
        task = weighted.other_forms[int(rng.integers(len(weighted.other_forms)))]
    return task if task.flop <= LARGEST_FLOP else None


def proposed(task: SearchTask, seed: int, name: str, prior: bool) -> Proposed | None:
    """Programs of a task, built; None where it has no candidates."""
    target = task.target
    options = None if task.meaning is None else SpaceOptions(max_sketches=8)
    found = sketches(task.dag, target, options)
    params = EvolutionParams(population=512, visited=VISITED / (BEST + VISITED))
    model = CorrectionModel()
    known = lessons.prior(target) if prior else None
    if known is not None:
        model.begin_with(known)
    policy = EvolutionaryPolicy(found, target, seed, task.workload_key, model, params)
    candidates = policy.ask(BEST + VISITED, 1)
    rng = np.random.default_rng([SEED, seed])
    candidates += policy.history.strangers(RANDOM, rng, [c.key for c in candidates])
    features: list[Features] = []
    images: list[KernelImage] = []
    seen: set[bytes] = set()
    for c in candidates:
        request = BuildRequest("", c.values, target)
        try:
            image = build_request(request, {"": c.sketch.program})
        except AnsorliteError:
            continue
        code = sha256(image.object_bytes).digest()
        if code in seen:
            continue
        seen.add(code)
        row = np.asarray([c.row], np.int32)
        features.append(policy.history.features(c.sketch.name, row)[0])
        images.append(image)
    if len(images) < 2:
        return None
    reference = build_program(lower(reference_state(task.plain)), task.plain.target)
    length = reduction_length(task.plain.dag)
    spec = CheckSpec(task.dag, CHECK_SEED, reference, length, task.rtol, task.meaning)
    return Proposed(task.workload_key, name, spec, features, images)


def propose(
    folder: Path, names: Sequence[str], first: int, n: int, seconds: float, prior: bool
) -> int:
    """Build programs of the next tasks for so many seconds; how many tasks are left."""
    end = time.monotonic() + seconds
    targets = {name: Target.host_as(name) for name in names}
    left = 0
    for k in range(first, first + n):
        for name, target in targets.items():
            at = folder / f"{k:05d}.{name}.programs"
            if at.exists() or at.with_suffix(".npz").exists() or at.with_suffix(".none").exists():
                continue
            if time.monotonic() > end:
                left += 1
                continue
            task = drawn_task(k, target)
            found = None if task is None else proposed(task, k, name, prior)
            if found is None:
                at.with_suffix(".none").touch()
                continue
            part = at.with_suffix(".part")
            part.write_bytes(pickle.dumps(found, protocol=5))
            part.rename(at)
    return left


def measure(folder: Path, seconds: float) -> int:
    """Measure programs that wait, for so many seconds; how many tasks are left."""
    waiting = sorted(folder.glob("*.programs"))
    end = time.monotonic() + seconds
    done = 0
    with LocalRunner(policy=TIMING) as runner:
        for at in waiting:
            if time.monotonic() > end:
                break
            found: Proposed = pickle.loads(at.read_bytes())
            key = f"{found.key}/{found.target}"
            best: float | None = None
            times = np.full(len(found.images), np.inf)
            if runner.prepare(key, found.spec).ok:
                for k, image in enumerate(found.images):
                    result = runner.run(key, image, best)
                    if result.ok:
                        times[k] = min(result.times_s)
                        best = float(times.min())
            rows = np.array([len(f) for f in found.features], np.int64)
            np.savez_compressed(
                at.with_suffix(".npz"),
                key=np.array(found.key),
                target=np.array(found.target),
                rows=rows,
                features=np.concatenate(found.features),
                latency_s=times,
            )
            at.unlink()
            done += 1
    return len(waiting) - done


def measured(folder: Path, name: str) -> list[RowGroup]:
    """What was measured for a target, a group a task."""
    target, out = Target.host_as(name), []
    for at in sorted(folder.glob(f"*.{name}.npz")):
        with np.load(at) as found:
            parts = np.split(found["features"], np.cumsum(found["rows"])[:-1])
            known = TrainingGroup(at.name, parts, found["latency_s"])
        if np.isfinite(known.latency_s).sum() >= LEAST_PROGRAMS:
            out.append(row_group(known, target, lessons.tiles(target)))
    return out


def quality(groups: Sequence[RowGroup], score: Callable[[RowGroup], Floats]) -> list[float]:
    """Speed of the best of the 1, 2, 4, 8 best scored, as shares of the best; geometric means."""
    found = []
    for g in groups:
        times = g.latency_s[np.argsort(-score(g), kind="stable")]
        best = times.min()
        found.append([np.log2(best / min(times[:k].min(), 32 * best)) for k in (1, 2, 4, 8)])
    return [float(q) for q in np.exp2(np.mean(found, axis=0))]


def left_out(groups: Sequence[RowGroup], sources: Sequence[RowGroup]) -> list[float]:
    """`quality` of models trained on sources whose layers are others than those of the groups."""
    stages = [trained([g for g in sources if int(g.task[:5]) % FOLDS != k]) for k in range(FOLDS)]

    def score(g: RowGroup) -> Floats:
        stage = stages[int(g.task[:5]) % FOLDS]
        return estimates(g.rows) + corrections([stage] if stage else [], g.rows)

    return quality(groups, score)


def train(folder: Path, names: Sequence[str], output: Path) -> None:
    """Train on all, save; tell how good models are on tasks that they have not seen."""
    known = {name: measured(folder, name) for name in names}
    tiles = {}
    for name in names:
        table = lessons.tiles(Target.host_as(name))
        if table is None:
            raise MeasureError(f"the machine was not calibrated for {name}: run step calibrate")
        tiles[Target.host_as(name).vector_bytes] = table

    def tell(what: str, name: str, found: list[float]) -> None:
        print(f"{what:12} {name:12} " + " ".join(f"{q:6.3f}" for q in found))

    for name, groups in known.items():
        programs = sum(len(g.rows) for g in groups)
        print(f"{name}: {len(groups)} tasks, {programs} programs; best of 1, 2, 4, 8:")
        tell("estimate", name, quality(groups, lambda g: estimates(g.rows)))
        tell("all", name, left_out(groups, [g for n in names for g in known[n]]))
        others = [g for n in names if n != name for g in known[n]]
        if others:
            tell("other sets", name, left_out(groups, others))
    whole = trained([g for n in names for g in known[n]])
    if whole is None:
        raise MeasureError(f"{folder} has too few measured programs: measure more")
    output.write_bytes(model_bytes(whole, tiles))
    print(f"{output}: {output.stat().st_size / 1024:.0f} KiB, {whole.programs} programs")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("propose", "calibrate", "measure", "train"))
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--folder", type=Path, default=kept_folder("train_prior"))
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument(
        "--prior", action="store_true", help="propose what the model now shipped finds"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    match args.step:
        case "propose":
            left = propose(
                args.folder, args.targets, args.first, args.tasks, args.seconds, args.prior
            )
            print(f"{left} tasks are left to build")
        case "calibrate":
            for name in args.targets:
                print(f"{name}: {calibrate(Target.host_as(name))}")
        case "measure":
            print(f"{measure(args.folder, args.seconds)} tasks are left to measure")
        case "train":
            train(args.folder, args.targets, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
