"""Forms with fewer products against layers as written, layer by layer (about 20 minutes).

Claim: where a form by transforms is chosen, it takes less time than the layer as written, and on
large maps of 64 to 256 channels at most two thirds of it. Layers are those of ResNet, a U-Net,
Inception, a dilated network, DCGAN, a network over volumes and transformers. The layer as written
and each promising form are tuned with the same budget, the best form and the plain one timed in
turn.
Writes results/fewer_operations.jsonl and the table.
Usage: python scripts/fewer_operations.py [--trials 48] [--timeout 20] [--only resnet.56 ...]
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import ansorlite as al
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.search.promise import promising, transforms
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target
from bench.contest import in_turn
from bench.experiment import RESULTS, Experiment, Row, exit_status, stamp
from bench.peers.ours import kernel_call

TURNS, TURN_S = 7, 0.15


class Layer(NamedTuple):
    """A convolution with bias and relu; `up` for a transposed one, with the stride `stride`.

    Without taps a product of so many rows and a matrix.
    """

    size: tuple[int, ...]
    channels: tuple[int, int]
    taps: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    up: bool = False


LAYERS = {
    "resnet.56": Layer((56, 56), (64, 64), (3, 3)),
    "resnet.28": Layer((28, 28), (128, 128), (3, 3)),
    "resnet.14": Layer((14, 14), (256, 256), (3, 3)),
    "resnet.7": Layer((7, 7), (512, 512), (3, 3)),
    "resnet.28.stride": Layer((56, 56), (128, 128), (3, 3), stride=2),
    "unet.256": Layer((256, 256), (64, 64), (3, 3)),
    "unet.128": Layer((128, 128), (128, 128), (3, 3)),
    "unet.64": Layer((64, 64), (256, 256), (3, 3)),
    "inception.1x7": Layer((17, 17), (192, 192), (1, 7)),
    "inception.7x1": Layer((17, 17), (192, 192), (7, 1)),
    "inception.1x3": Layer((8, 8), (384, 384), (1, 3)),
    "inception.5x5": Layer((35, 35), (48, 64), (5, 5)),
    "deeplab.dilated": Layer((65, 65), (256, 256), (3, 3), dilation=2),
    "dcgan.16": Layer((16, 16), (256, 128), (4, 4), stride=2, up=True),
    "volume.28": Layer((8, 28, 28), (64, 64), (3, 3, 3)),
    "bert.attention": Layer((128,), (768, 768), ()),
    "bert.expand": Layer((128,), (768, 3072), ()),
    "bert.project": Layer((128,), (3072, 768), ()),
    "vit.project": Layer((197,), (3072, 768), ()),
}


def network(layer: Layer) -> al.Graph:
    """The layer alone, with random weights."""
    b, rank, rng = GraphBuilder("layer"), len(layer.taps), np.random.default_rng(0)
    ci, co = layer.channels
    if not layer.taps:
        x = b.input("x", (*layer.size, ci))
        y = b.emit("matmul", [x, b.constant(rng.standard_normal((ci, co), np.float32))])
        bias = b.constant(rng.standard_normal(co, np.float32))
        return b.finish([b.emit("relu", [b.emit("add", [y, bias])])])
    x = b.input("x", (1, ci, *layer.size))
    shape = (ci, co) if layer.up else (co, ci)
    weight = b.constant(rng.standard_normal((*shape, *layer.taps), np.float32))
    attrs: dict[str, Any] = {"strides": (layer.stride,) * rank, "layout": "channels_first"}
    if layer.up:
        y = b.emit("conv_transpose", [x, weight], pads=((1, 1),) * rank, **attrs)
    else:
        pads = tuple(((k - 1) // 2 * layer.dilation,) * 2 for k in layer.taps)
        attrs |= {"dilations": (layer.dilation,) * rank, "groups": 1}
        y = b.emit("conv", [x, weight], pads=pads, **attrs)
    bias = b.constant(rng.standard_normal((co, *(1,) * rank), np.float32))
    return b.finish([b.emit("relu", [b.emit("add", [y, bias])])])


def forms(layer: Layer, target: Target) -> list[al.SearchTask]:
    """The layer as written, and its promising forms."""
    parts = partition(optimize(network(layer)))
    weighted = max(network_tasks(parts, target), key=lambda w: w.task.flop)
    return promising(weighted.forms)


def name_of(form: al.SearchTask) -> str:
    """The products of a tile along each axis that is transformed: "8x8" of F(6 x 6, 3 x 3).

    Of matrices "7" or "49", which are Strassen's.
    """
    if not transforms(form.dag):
        return "as written"
    sums = next(op for op in form.dag.computes if op.combiner)
    return "x".join(str(n) for n in sums.shape[: len(sums.shape) - len(form.dag.inputs[0].shape)])


HEAD = f"{'layer':18} {'form':>10} {'ms':>8} {'as written':>10} {'times as fast':>13}"


def table_line(row: Row) -> str:
    return (
        f"{row['layer']:18} {row['form']:>10} {1e3 * row['form_s']:8.3f} "
        f"{1e3 * row['plain_s']:10.3f} {row['ratio']:13.2f}"
    )


def closing(rows: Sequence[Row]) -> list[str]:
    return [", ".join(map(str, rows[-1]["machine"].values()))]


EXPERIMENT = Experiment[Row](
    RESULTS / "fewer_operations.jsonl",
    key=lambda r: r["layer"],
    line=table_line,
    head=HEAD,
    foot=closing,
    order=lambda r: list(LAYERS).index(r["layer"]),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", choices=LAYERS, default=list(LAYERS))
    args = parser.parse_args()
    target = Target.detect()

    def once(layer: str) -> Row:
        found = []
        for form in forms(LAYERS[layer], target):
            result = al.tune(form, n_trials=args.trials, timeout=args.timeout, progress=False)
            if result.best is not None:
                found.append((result.best.latency_s, form, result))
        plain = found[0]
        best = min(found[1:], key=lambda f: f[0], default=plain)
        turns = in_turn([kernel_call(r.kernel) for _, _, r in (best, plain)], TURNS, TURN_S)
        return {
            "layer": layer,
            "form": name_of(best[1]),
            "form_s": median(a for a, _ in turns),
            "plain_s": median(b for _, b in turns),
            "ratio": median(b / a for a, b in turns),
            "turns_s": turns,
            "tried": [(name_of(form), s) for s, form, _ in found],
            "trials": args.trials,
            **stamp(target),
        }

    EXPERIMENT.run(args.only, once, again=True)
    EXPERIMENT.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
