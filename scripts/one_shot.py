"""One-shot tuning of a network that its model has not seen, against full tuning (some 35 minutes
the first time, 25 of them for the model of this machine).

Claim: with a model pretrained on other networks, in less than two hours, one pass of search and few
measurements give a network at least 90 % of the fully tuned speed in at most a tenth of the time.
Both modules are timed in turn in one process. A model made before is used again. Runs what is
missing in results/one_shot.jsonl, then writes the table and a plot beside it.
Usage: python scripts/one_shot.py [--network resnet50] [--minutes 25] [--model FILE] [--trials 3000]
       [--one-shot-trials 110] [--seeds 1] [--table]
"""

import argparse
import sys
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import ansorlite as al
from ansorlite.baselines.pretrain import pretrain
from ansorlite.graph.inputs import random_inputs
from ansorlite.target import Target
from bench.contest import in_turn
from bench.experiment import RESULTS, Experiment, Row, exit_status, stamp

MODEL = Path.home() / ".cache" / "ansorlite" / "one_shot.json"
LEARNED_FROM = ("resnet18", "mobilenet_v2", "resnet18_3d", "bert_base")
TURNS, TURN_S = 21, 0.3
ONE_WAY = "  trials  tuned s       ms"


def table_line(r: Row) -> str:
    """A pair: what was reached of the fully tuned speed, in what share of its time."""
    return (
        f"{r['network']:12} {r['seed']:5} {r['one_shot_trials']:7} {r['one_shot_s']:8.0f} "
        f"{r['one_shot_latency_s'] * 1e3:8.3f} {r['full_trials']:7} {r['full_s']:8.0f} "
        f"{r['full_latency_s'] * 1e3:8.3f} {r['speed_share']:6.0%} "
        f"{r['one_shot_s'] / r['full_s']:5.0%}  {r['machine']['cpu']}"
    )


EXPERIMENT = Experiment[Row](
    RESULTS / "one_shot.jsonl",
    key=lambda r: (r["network"], r["seed"], r["one_shot_trials"]),
    line=table_line,
    head=f"network       seed{ONE_WAY}{ONE_WAY}  speed  time  machine",
    foot=lambda rows: [
        "left one-shot, right full tuning; both modules timed in turn in one process"
    ],
    keeps_all=True,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--minutes", type=float, default=25.0, help="of measuring for the model")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--one-shot-trials", type=int, default=110)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    args = parser.parse_args()
    if args.network in LEARNED_FROM:
        parser.error(f"{args.network} is one of those that the model learns from")
    if not args.table and not args.model.exists():
        args.model.parent.mkdir(parents=True, exist_ok=True)
        graphs = [al.network(name) for name in LEARNED_FROM]
        log = args.model.with_suffix(".jsonl")
        pretrain(graphs, args.minutes, args.model, log=log, tell=lambda x: print(x, flush=True))
    here = Target.detect().fingerprint
    keys = [(args.network, seed, args.one_shot_trials) for seed in range(args.seeds)]
    EXPERIMENT.run(
        [] if args.table else keys,
        lambda key: compared(args.model, args.trials, *key),
        done=lambda r: bool(r["machine"]["fingerprint"] == here),
    )
    EXPERIMENT.finish(EXPERIMENT.table())
    EXPERIMENT.draw("seconds of tuning", "latency (ms)", both_ways)
    return 0


def compared(model: Path, trials: int, network: str, seed: int, one_shot_trials: int) -> Row:
    """Both ways of tuning, then the two modules in turn."""
    net = al.network(network)
    shared = {"seed": seed, "progress": False}
    pretrained = {"policy": "one-shot", "pretrained": model}
    once = al.auto_schedule(net, n_trials=one_shot_trials, **pretrained, **shared)
    full = al.auto_schedule(net, n_trials=trials, **shared)
    inputs = random_inputs(net)
    turns = in_turn([lambda: once(*inputs), lambda: full(*inputs)], TURNS, TURN_S)
    return {
        "network": net.name,
        "seed": seed,
        "one_shot_trials": one_shot_trials,
        "full_trials": trials,
        "one_shot_s": once.report.wall_s,
        "full_s": full.report.wall_s,
        "one_shot_latency_s": median(a for a, _ in turns),
        "full_latency_s": median(b for _, b in turns),
        "speed_share": median(b / a for a, b in turns),
        "turns_s": turns,
        **stamp(Target.detect()),
    }


def both_ways(axes: Any) -> None:
    """Seconds of tuning and latency of both ways; bars span the middle half of the turns."""
    for r in EXPERIMENT.rows():
        for k, (way, mark) in enumerate((("one_shot", "o"), ("full", "s"))):
            low, middle, high = quantiles([1e3 * turn[k] for turn in r["turns_s"]], n=4)
            axes.errorbar(
                r[f"{way}_s"],
                middle,
                [[middle - low], [high - middle]],
                fmt=mark,
                capsize=4,
                label=f"{r['network']}, {r['machine']['cpu']}, seed {r['seed']}: "
                f"{way.replace('_', '-')} ({r[f'{way}_trials']} trials)",
            )


if __name__ == "__main__":
    sys.exit(exit_status(main))
