"""The conformance tests of the onnx wheel: right results or a clear error, never wrong results.

The node tests cover every operator of every domain, most with other dtypes than networks have. The
tests print counts, with reasons for node tests that were not run.
"""

import warnings
from collections import Counter
from functools import cache
from typing import Any

import pytest
from onnx.backend.test.loader import load_model_tests
from onnx_backend import outcome, reason, sets
from sampled import some_or_all

EVERY = 48  # node tests of which one runs natively in the default tier


@cache
def node_cases() -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def run_all(cases: Any, native: bool) -> Counter[str]:
    """Outcomes by kind; fails with all wrong answers and crashes at once."""
    found, wrong = Counter[str](), list[str]()
    for case in cases:
        for model, inputs, wanted in sets(case):
            try:
                found[reason(outcome(case, model, inputs, wanted, native))] += 1
            except Exception as error:  # all of them are to be seen
                wrong.append(f"{case.name}: {type(error).__name__} {str(error).strip()[:200]}")
    print(f"\n{found['passed']} passed; not run, by reason:")
    for why, count in found.most_common():
        if why != "passed":
            print(f"  {count} {why}")
    assert not wrong, "\n".join(wrong)
    return found


@some_or_all(24)
def test_node_models_by_their_meaning(every: int) -> None:
    least = {1: 1000, 24: 35}[every]
    assert run_all(node_cases()[::every], native=False)["passed"] >= least


def test_some_node_models_natively() -> None:
    assert run_all(node_cases()[::EVERY], native=True)["passed"] >= 15


@pytest.mark.slow
def test_all_node_models_natively() -> None:
    assert run_all(node_cases(), native=True)["passed"] >= 880


@some_or_all(4)
@pytest.mark.parametrize("kind", ["pytorch-converted", "simple"])
def test_models_natively(kind: str, every: int) -> None:
    assert run_all(list(load_model_tests(kind=kind))[::every], native=True)["passed"] >= 1
