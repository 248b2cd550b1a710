"""The conformance tests of the onnx wheel: right results or a clear error, never wrong results.

The node tests cover every operator of every domain, most with other dtypes than networks have. The
tests print counts, with reasons for node tests that were not run.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests
from onnx_backend import AnsorliteBackend
from sampled import some_or_all

from ansorlite.errors import ModelError

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
EVERY = 12  # node tests of which one runs natively in the default tier


@cache
def node_cases() -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def sets_on_disk(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield _arrays(folder, "input"), _arrays(folder, "output")


def _arrays(folder: Path, kind: str) -> list[Any]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(str(p))) for p in files]


def outcome(case: Any, model: onnx.ModelProto, inputs: Any, wanted: Any, native: bool) -> str:
    """ "passed", or why it was not run; AssertionError for a wrong answer."""
    arrays = [*inputs, *wanted]
    if not all(isinstance(x, np.ndarray | np.generic) for x in arrays):
        return "values that are no tensors"
    try:
        got = AnsorliteBackend.prepare(model, native=native).run(inputs)
    except ModelError as error:
        return _kind(str(error))
    assert len(got) == len(wanted)
    wanted = [y.astype(np.float32) if y.dtype.name == "bfloat16" else y for y in wanted]
    for x, y in zip(got, wanted, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x, y, rtol=case.rtol, atol=max(case.atol, 1e-5))
    return "passed"


def _kind(error: str) -> str:
    """What errors of many nodes have in common."""
    for part in ("unsupported operator", "has dtype", "uses opset", "dynamic dimension"):
        if part in error:
            return part
    return error.split(": ", 1)[-1][:60]


def run_all(cases: Any, native: bool) -> Counter[str]:
    """Outcomes by kind; fails with all wrong answers and crashes at once."""
    found, wrong = Counter[str](), list[str]()
    for case in cases:
        on_disk = case.model is None
        model = onnx.load(str(Path(case.model_dir) / "model.onnx")) if on_disk else case.model
        for inputs, wanted in sets_on_disk(case) if on_disk else case.data_sets:
            try:
                found[outcome(case, model, inputs, wanted, native)] += 1
            except Exception as error:  # all of them are to be seen
                wrong.append(f"{case.name}: {type(error).__name__} {str(error).strip()[:200]}")
    print(f"\n{found['passed']} passed; not run, by reason:")
    for reason, count in found.most_common():
        if reason != "passed":
            print(f"  {count} {reason}")
    assert not wrong, "\n".join(wrong)
    return found


@some_or_all(6)
def test_node_models_by_their_meaning(every: int) -> None:
    least = {1: 1000, 6: 150}[every]
    assert run_all(node_cases()[::every], native=False)["passed"] >= least


def test_some_node_models_natively() -> None:
    assert run_all(node_cases()[::EVERY], native=True)["passed"] >= 60


@pytest.mark.slow
def test_all_node_models_natively() -> None:
    assert run_all(node_cases(), native=True)["passed"] >= 880


@pytest.mark.parametrize("kind", ["pytorch-converted", "simple"])
def test_models_natively(kind: str) -> None:
    assert run_all(load_model_tests(kind=kind), native=True)["passed"] >= 1
