"""Running concrete programs natively in tests, between guard pages.

In: a concrete program and arrays by parameter name. Out: its outputs by name. Inputs are read-only
and every buffer ends next to a page that nobody may touch, so a kernel that leaves its buffers by
more than 63 bytes kills the process; outputs and workspace are poisoned first.
"""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from ansorlite.codegen.build import build_program
from ansorlite.codegen.kernel import derive
from ansorlite.codegen.loader import load_image
from ansorlite.ir.program import Program
from ansorlite.measure.memory import guarded_copy, guarded_empty
from ansorlite.target import Target

Arrays = dict[str, npt.NDArray[Any]]


def run_native(program: Program, inputs: Mapping[str, npt.NDArray[Any]], target: Target) -> Arrays:
    """Compile, run once, and return the outputs."""
    image = build_program(program, target)
    if program.bound is not None:
        inputs = {**inputs, **derive(program.bound, target, inputs)}
    buffers = []
    outputs: Arrays = {}
    for p in image.params:
        if p.role in ("input", "constant", "derived"):
            x = inputs[p.name]
            buffers.append(guarded_copy(p.layout.pack(x) if p.layout else x, read_only=True))
            continue
        buffers.append(guarded_empty(p.stored_shape, p.dtype))
        if p.dtype == "bool":
            buffers[-1].array[...] = True
        else:
            buffers[-1].poison()
        if p.role == "output":
            outputs[p.name] = buffers[-1].array
    load_image(image).run([b.array for b in buffers])
    return {name: x.copy() for name, x in outputs.items()}
