"""Auto-schedules ResNet-18 at 224x224 and runs it on a picture (about two minutes on two cores).

Usage: sh scripts/demo.sh [--timeout SECONDS] [--log FILE]. Prints the progress of tuning, the
tables of tasks and of wall time, the latencies of the network with plain schedules and after tuning
(medians over calls), the tuned network's share of the measured FMA limit, and the largest relative
error of the output against the numpy reference. The exit status is 1 if the error is too large.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

import ansorlite as al
from ansorlite.graph.ir import evaluate
from ansorlite.measure.peak import measure_peak
from ansorlite.pipeline import compile_plain
from ansorlite.target import Target
from ansorlite.workloads.networks import network
from bench.serve import timed

TOLERANCE = 1e-4
TIMED_S = 3.0


def picture(size: int = 224) -> npt.NDArray[np.float32]:
    """A drawn landscape, float32[1, 3, size, size], normalised as ImageNet networks expect."""
    y, x = np.mgrid[0:size, 0:size] / size
    sky = np.stack([0.45 + 0.2 * y, 0.65 + 0.15 * y, 0.95 - 0.2 * y])
    sun = np.exp(-((x - 0.72) ** 2 + (y - 0.25) ** 2) / 0.006)
    sky += sun * np.array([0.6, 0.45, -0.3])[:, None, None]
    hills = 0.62 + 0.08 * np.sin(7 * x) + 0.03 * np.sin(23 * x + 1)
    stripes = 0.04 * np.sin(90 * y + 8 * np.sin(5 * x))
    grass = np.stack([0.2 + stripes, 0.5 + 0.2 * (y - hills) + stripes, 0.15 + stripes])
    image = np.where(y > hills, grass, sky).clip(0, 1)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    normal = (image - mean[:, None, None]) / deviation[:, None, None]
    return np.asarray(normal[None], np.float32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeout", type=float, default=110.0, help="seconds of tuning")
    parser.add_argument("--log", type=Path, default=Path("demo-log.jsonl"), help="tuning log")
    args = parser.parse_args()

    target = Target.detect()
    print(f"machine: {target}")
    net, x = network("resnet18"), picture()
    expected = evaluate(net, [x])[0]
    plain = compile_plain(net, target)
    plain_s = timed(lambda: plain(x), TIMED_S)[0]
    module = al.auto_schedule(net, timeout=args.timeout, log=args.log, seed=0)
    print(f"\n{module.report}")
    tuned_s = timed(lambda: module(x), TIMED_S)[0]
    y = module(x)
    error = float(np.abs(y - expected).max() / np.abs(expected).max())
    peak = measure_peak(target).flops_all
    flop = module.partition.flop
    print(f"plain schedule: {plain_s * 1e3:.1f} ms   tuned: {tuned_s * 1e3:.1f} ms   ", end="")
    print(f"speed-up {plain_s / tuned_s:.1f}")
    print(
        f"tuned: {flop / tuned_s / 1e9:.0f} GFLOP/s end to end, "
        f"{flop / tuned_s / peak:.2f} of the measured FMA limit ({peak / 1e9:.0f} GFLOP/s)"
    )
    top = np.argsort(-y[0])[:3]
    print(f"largest logits: {', '.join(f'class {k}: {y[0, k]:.3f}' for k in top)}")
    print(f"relative error against the numpy reference: {error:.1e} ", end="")
    print("(correct)" if error < TOLERANCE else f"(WRONG: the limit is {TOLERANCE})")
    return 0 if error < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
