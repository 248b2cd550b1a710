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
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import ansorlite as al
from ansorlite.bench.ops import machine
from ansorlite.bench.serve import timed
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph
from ansorlite.measure.peak import measure_peak
from ansorlite.pretrain import pretrain
from ansorlite.target import Target

RESULTS = Path(__file__).parents[1] / "results" / "one_shot.jsonl"
MODEL = Path.home() / ".cache" / "ansorlite" / "one_shot.json"
LEARNED_FROM = ("resnet18", "mobilenet_v2", "resnet18_3d", "bert_base")
TURNS, TURN_S = 21, 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
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
    rows = [json.loads(s) for s in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    here = Target.detect().fingerprint
    done = {
        (r["network"], r["seed"], r["one_shot_trials"])
        for r in rows
        if r["machine"]["fingerprint"] == here
    }
    if not args.table and not args.model.exists():
        args.model.parent.mkdir(parents=True, exist_ok=True)
        made(args.model, args.minutes)
    for seed in [] if args.table else range(args.seeds):
        if (args.network, seed, args.one_shot_trials) not in done:
            row = compared(al.network(args.network), args.model, seed, args)
            rows.append(row)
            with RESULTS.open("a") as out:
                out.write(json.dumps(row) + "\n")
    text = table(rows)
    RESULTS.with_suffix(".txt").write_text(text)
    print(text, end="")
    draw(rows)
    return 0


def made(model: Path, minutes: float) -> None:
    """The model of this machine, from drawn layers of networks other than the one tuned."""
    graphs = [al.network(name) for name in LEARNED_FROM]
    log = model.with_suffix(".jsonl")

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    pretrain(graphs, minutes, model, log=log, tell=tell)


def compared(net: Graph, model: Path, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Both ways of tuning, then the two modules in turn."""
    once = al.auto_schedule(
        net,
        n_trials=args.one_shot_trials,
        policy="one-shot",
        pretrained=model,
        seed=seed,
        progress=False,
    )
    full = al.auto_schedule(net, n_trials=args.trials, seed=seed, progress=False)
    inputs = random_inputs(net)
    turns = [[timed(lambda m=m: m(*inputs), TURN_S)[0] for m in (once, full)] for _ in range(TURNS)]
    target = Target.detect()
    return {
        "network": net.name,
        "seed": seed,
        "one_shot_trials": args.one_shot_trials,
        "full_trials": args.trials,
        "one_shot_s": once.report.wall_s,
        "full_s": full.report.wall_s,
        "one_shot_latency_s": median(a for a, _ in turns),
        "full_latency_s": median(b for _, b in turns),
        "speed_share": median(b / a for a, b in turns),
        "turns_s": turns,
        "machine": machine(target, measure_peak(target)),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A line a pair: what was reached of the fully tuned speed, in what share of its time."""
    one_way = "  trials  tuned s       ms"
    lines = [f"network       seed{one_way}{one_way}  speed  time  machine"]
    lines += [
        f"{r['network']:12} {r['seed']:5} {r['one_shot_trials']:7} {r['one_shot_s']:8.0f} "
        f"{r['one_shot_latency_s'] * 1e3:8.3f} {r['full_trials']:7} {r['full_s']:8.0f} "
        f"{r['full_latency_s'] * 1e3:8.3f} {r['speed_share']:6.0%} "
        f"{r['one_shot_s'] / r['full_s']:5.0%}  {r['machine']['cpu']}"
        for r in rows
    ]
    lines.append("left one-shot, right full tuning; both modules timed in turn in one process")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]]) -> None:
    """Seconds of tuning and latency of both ways; bars span the middle half of the turns."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: it needs matplotlib (pip install 'ansorlite[report]')", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for r in rows:
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
    axes.set_xlabel("seconds of tuning")
    axes.set_ylabel("latency (ms)")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS.with_suffix(".svg"))
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
