"""How far a compiled network is from its meaning in float32: `accuracy`.

In: a module, the `Graph` that it was compiled from, and inputs (random ones by default). Out: an
`Accuracy` for each output. Differences are told in units of the largest value of the output.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ansorlite.calls import Array
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph, evaluate

CLASSES = 2  # an output with as many numbers in its last axis has a top class


@dataclass(frozen=True)
class Accuracy:
    """The error of one output against the network's meaning.

    `largest` and `mean` are absolute differences divided by the largest absolute value, `cosine` is
    that of the angle between both, `same_top` the share of rows whose largest element has the same
    place (None for integers and for rows of one element). Elements that are not finite in both are
    left out.
    """

    output: str
    largest: float
    mean: float
    cosine: float
    same_top: float | None

    def __str__(self) -> str:
        top = "" if self.same_top is None else f", top class the same in {self.same_top:.1%}"
        return (
            f"{self.output}: error at most {self.largest:.2g}, mean {self.mean:.2g} of the largest"
            f" value, cosine {self.cosine:.6f}{top}"
        )


def accuracy(
    module: Callable[..., Any], network: Graph, inputs: Sequence[Array] | None = None
) -> tuple[Accuracy, ...]:
    """One `Accuracy` an output of `module(*inputs)`, against numpy's result of `network`.

    `inputs` are arrays in the order of `network.inputs`; by default random ones. Raises ModelError
    for inputs that do not fit. Example: `print(*al.accuracy(module, network), sep="\\n")`.
    """
    arrays = list(inputs) if inputs is not None else list(random_inputs(network))
    out = module(*arrays)
    made = out if isinstance(out, tuple | list) else (out,)
    wanted = evaluate(network, arrays)
    names = network.outputs
    return tuple(compared(n, x, y) for n, x, y in zip(names, made, wanted, strict=True))


def meant_accuracy(low: Graph, network: Graph) -> tuple[Accuracy, ...]:
    """The error of a lowered graph as numpy computes it, on random inputs."""
    arrays = random_inputs(network)
    rows = zip(network.outputs, evaluate(low, arrays), evaluate(network, arrays), strict=True)
    return tuple(compared(name, got, wanted) for name, got, wanted in rows)


def compared(name: str, got: Array, wanted: Array) -> Accuracy:
    """The error of an array against another of the same shape."""
    x, y = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    known = np.isfinite(x) | np.isfinite(y)
    a, b = np.where(known, x, 0.0), np.where(known, y, 0.0)
    size = float(np.abs(b).max(initial=0.0)) or 1.0
    apart = np.abs(a - b) / size
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(np.vdot(a, b)) / norm if norm else 1.0
    top = None
    if y.ndim and y.shape[-1] >= CLASSES and y.size and np.asarray(wanted).dtype.kind == "f":
        top = float((x.argmax(-1) == y.argmax(-1)).mean())
    mean = float(apart.mean()) if apart.size else 0.0
    return Accuracy(name, float(apart.max(initial=0.0)), mean, min(cosine, 1.0), top)
