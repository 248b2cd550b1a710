"""PyTorch in the fastest of some modes. In: {threads, modes} and an operator or a network.

Modes: "eager"; "frozen" (traced, frozen and optimised for inference: batch norms folded, weights
reordered ahead of time); "inductor" (torch.compile, which needs a C++ compiler); "mkldnn" (single
convolutions with reordered weights). Networks and convolutions are tried contiguous and
channels-last, with the data in the mode's own layout before timing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

from bench.serve import timed

Call = Callable[[], Any]
TRIAL_S = {"operator": 0.15, "network": 0.5}  # of each mode


def prepare(options: dict[str, Any]) -> tuple[Call, str]:
    """(the call of the fastest mode, the mode's name)."""
    import torch

    from bench.peers import torch_network, torch_operators

    torch.set_num_threads(options["threads"])
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    modes = options["modes"]
    if "model" in options:
        seconds, found = (
            TRIAL_S["network"],
            layouts(*torch_network.network(options["model"]), modes),
        )
    else:
        name, params = options["name"], options["params"]
        seconds, found = TRIAL_S["operator"], torch_operators.calls(name, params, modes)
    timings: list[tuple[float, str, Call]] = []
    for label, call in found:
        with suppress(RuntimeError):  # not every mode exists for every computation
            timings.append((timed(call, seconds)[0], label, call))
    if not timings:
        raise ValueError(f"none of the modes {', '.join(modes)} runs")
    _, label, call = min(timings, key=lambda t: t[0])
    return call, f"torch {torch.__version__} {label}"


def layouts(module: Any, inputs: Sequence[Any], modes: Sequence[str]) -> Iterator[tuple[str, Call]]:
    """(mode and layout, call) of a module in evaluation mode: channels first, all its layouts."""
    import torch

    formats: dict[str, Any] = {"contiguous": torch.contiguous_format}
    rank = max(x.dim() for x in inputs)
    if rank in (4, 5):
        formats["channels-last"] = torch.channels_last if rank == 4 else torch.channels_last_3d
    for layout, kept in formats.items():
        own = deepcopy(module).to(memory_format=kept)
        data = [x.contiguous(memory_format=kept) if x.dim() == rank > 3 else x for x in inputs]
        if "eager" in modes:
            yield f"eager {layout}", partial(own, *data)
        if "frozen" in modes:
            with suppress(Exception):
                frozen = torch.jit.freeze(torch.jit.trace(own, tuple(data)))
                yield f"frozen {layout}", _warm(torch.jit.optimize_for_inference(frozen), data)
        if "inductor" in modes:
            with suppress(Exception):
                yield f"inductor {layout}", _warm(torch.compile(own), data)


def _warm(module: Any, data: Sequence[Any]) -> Call:
    """The call, after the first few, which still optimise."""
    for _ in range(3):
        module(*data)
    return partial(module, *data)
