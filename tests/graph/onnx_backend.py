"""Backend adapter that runs onnx's own conformance tests on ansorlite.

`prepare` imports a model, `run` compiles and runs it. In these tests, operands that must be
constant (shapes, axes, ...) are inputs. Where a model cannot be imported without their values,
`run` turns all inputs that are not float32 data into constants. `sets` and `outcome` are for a
case of `onnx.backend.test.loader`; scripts/onnx_node_tests.py counts with them, too.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from ansorlite.codegen.build import build_program
from ansorlite.errors import ModelError
from ansorlite.graph.ir import Graph
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import Partition, evaluate_partition, partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state
from ansorlite.target import Target

SETTINGS = (  # float operands
    *("scales", "roi", "pads", "constant_value", "min", "max", "value"),
    *("depth", "start", "limit", "delta"),
    *("lower_edge_hertz", "upper_edge_hertz"),
)


def compiled(parts: Partition, target: Target) -> CompiledModule:
    """Native kernels by the plain schedule: nothing is searched."""
    images = [build_program(lower(plain_state(t.dag, target)), target) for t in tasks(parts)]
    return CompiledModule(parts, images)


class Rep(BackendRep):  # type: ignore[misc]
    """A model; `native=False` runs the meaning of its kernels in numpy instead."""

    def __init__(self, model: onnx.ModelProto, native: bool = True) -> None:
        self.model, self.native = model, native

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        known = {t.name for t in self.model.graph.initializer}
        names = [v.name for v in self.model.graph.input if v.name not in known]
        feeds = {n: np.asarray(x) for n, x in zip(names, inputs, strict=False)}
        try:
            shapes = {n: x.shape for n, x in feeds.items()}
            graph, rest = load_onnx(self.model, shapes=shapes), feeds
        except ModelError:
            frozen = {n: x for n, x in feeds.items() if x.dtype != np.float32 or n in SETTINGS}
            if not frozen:
                raise
            rest = {n: x for n, x in feeds.items() if n not in frozen}
            shapes = {n: x.shape for n, x in rest.items()}
            graph = load_onnx(with_constants(self.model, frozen), shapes=shapes)
        return self.results(graph, [rest[n] for n in graph.inputs])

    def results(self, graph: Graph, inputs: Sequence[Any]) -> tuple[Any, ...]:
        parts = partition(optimize(graph))
        if not self.native or not parts.subgraphs:
            return evaluate_partition(parts, inputs)
        out = compiled(parts, Target.detect())(*inputs)
        return out if isinstance(out, tuple) else (out,)


def with_constants(model: onnx.ModelProto, values: dict[str, Any]) -> onnx.ModelProto:
    """A copy of the model in which some inputs are initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [v for v in copy.graph.input if v.name not in values]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    for name, x in values.items():
        copy.graph.initializer.append(onnx.numpy_helper.from_array(x, name))
    return copy


class AnsorliteBackend(Backend):  # type: ignore[misc]
    """What onnx's test runners expect of a runtime."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Rep:
        return Rep(model, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


# ---- cases of onnx ------------------------------------------------------------------------------


def sets(case: Any) -> Iterator[tuple[onnx.ModelProto, list[Any], list[Any]]]:
    """(model, inputs, expected outputs) of each data set, from the case or from its files."""
    if case.model is not None:
        for inputs, wanted in case.data_sets:
            yield case.model, inputs, wanted
        return
    model = onnx.load(str(Path(case.model_dir) / "model.onnx"))
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield model, _arrays(folder, "input"), _arrays(folder, "output")


def _arrays(folder: Path, kind: str) -> list[Any]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(str(p))) for p in files]


def _array(value: Any) -> Any:
    """The array of a tensor that a case has as onnx's message; anything else as it is."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def outcome(case: Any, model: onnx.ModelProto, inputs: Any, wanted: Any, native: bool) -> str:
    """ "passed", or why it was refused; AssertionError for a wrong answer."""
    inputs, wanted = (list(map(_array, values)) for values in (inputs, wanted))
    arrays = [*inputs, *wanted]
    if not all(isinstance(x, np.ndarray | np.generic) for x in arrays):
        return "values that are no tensors"
    try:
        got = AnsorliteBackend.prepare(model, native=native).run(inputs)
    except ModelError as error:
        return str(error)
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted, strict=True):
        rtol = case.rtol
        if y.dtype.name == "bfloat16":  # float32 at the interface; values of 8 significant bits
            y, rtol = y.astype(np.float32), max(rtol, 2.0**-6)  # as in onnx's own runner
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x, y, rtol=rtol, atol=max(case.atol, 1e-5))
    return "passed"


GENERAL = (  # what errors of many nodes have in common: their text without names and numbers
    (r"^.* uses \d+ unsupported operators?: .*$", "unsupported operator"),
    (r"^.* uses opset .*$", "opset"),
    (r"^.*has the dynamic dimension.*$", "dynamic dimension"),
    (r"^node \S+ \([^)]*\):? ", ""),
    (r": .*$", ""),  # advice
    (r"\[[^]]*\]", "[...]"),
    (r"'[^']*'", "..."),
    (r"(?<![a-z\d])-?\d+(\.\d+)?(?![a-z])", "N"),
    (r"(operand|output|input|constant|initializer|attribute) (?!N |has|may)\S+", r"\1 ..."),
)


def reason(why: str) -> str:
    """A refusal without the names and numbers of its model."""
    for pattern, general in GENERAL:
        why = re.sub(pattern, general, why)
    return why[:80]
