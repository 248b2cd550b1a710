"""Options of commands that quantise a network before anything else: `--calibration` and its like.

In: parsed arguments and a network. Out: the network in int8, calibrated by the arrays of a file
that numpy.savez wrote: one for each input, by its name, with the sets of inputs along an axis of
its own in front. Raises UsageError for a file that has others.
"""

import argparse
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansorlite.cli.paths import readable
from ansorlite.errors import UsageError
from ansorlite.names import brief

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.graph.quantize import QuantizedGraph
    from ansorlite.graph.sized import SizedNetwork


def calibration_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE.npz",
        help="quantise to int8 first, by sets of inputs: arrays [sets, ...] by name",
    )
    p.add_argument(
        "--method",
        choices=("minmax", "percentile", "entropy"),
        default="minmax",
        help="of calibration (minmax)",
    )


def calibrated(
    args: argparse.Namespace, network: "Graph | SizedNetwork"
) -> "Graph | SizedNetwork | QuantizedGraph":
    """The network in int8 where that is asked for."""
    from ansorlite.graph.ir import Graph
    from ansorlite.graph.quantize import quantize

    if args.calibration is None:
        if args.max_error is not None and args.precision != "auto":
            raise UsageError(
                "--max-error goes with --precision auto, or with --calibration FILE.npz"
            )
        return network
    if args.precision != "float32":
        raise UsageError("--calibration makes int8: leave out --precision")
    if not isinstance(network, Graph):
        raise UsageError("--calibration is of one size: give --dim and --shape one size")
    if args.exact:
        raise UsageError("--calibration makes integers of floats, which --exact rules out")
    sets = _sets(readable(args.calibration), network)
    return quantize(network, sets, args.method, max_error=args.max_error)


def _sets(path: Path, network: "Graph") -> list[dict[str, Any]]:
    """A dict of the inputs for each set."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {v: file[v] for v in network.inputs if v in file.files}
            given = list(file.files)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is no file of numpy.savez: {str(error)[:80]}") from None
    missing = [v for v in network.inputs if v not in arrays]
    if missing:
        listed = brief(", ".join(given)) or "nothing"
        raise UsageError(f"{path} has no array {brief(missing[0])}, only {listed}")
    counts = {v: len(x) if x.ndim else 0 for v, x in arrays.items()}
    if len({*counts.values()}) != 1:
        told = ", ".join(f"{n} of {brief(v)}" for v, n in counts.items())
        raise UsageError(f"{path} has different numbers of sets: {told}")
    return [{v: x[k] for v, x in arrays.items()} for k in range(next(iter(counts.values())))]
