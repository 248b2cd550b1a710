"""Runs concrete programs natively in tests, with buffers between guard pages.

In: a concrete program and arrays by parameter name. Out: its outputs by name. Inputs are read-only,
and every buffer lies between guard pages: an access more than 63 bytes outside kills the process.
Outputs and workspace are poisoned before the run.
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
    """Compile the program, run it once and return its outputs by name."""
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
