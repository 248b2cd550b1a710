"""The reference kernel: devices that throttle or differ are scaled or held back, and named."""

import pytest

pytest.importorskip("distributed")

from ansorlite.pool.reference import Rates, Verdict, verdicts


def test_equal_devices() -> None:
    same = verdicts({"a": Rates(1e9, 1e9), "b": Rates(1.01e9, 0.99e9)})
    assert same == {"a": Verdict(), "b": Verdict()}
    assert verdicts({}) == {} and verdicts({"a": Rates(0.0, 0.0)}) == {"a": Verdict()}


def test_a_device_that_throttles_is_scaled_then_held_back() -> None:
    rates = {name: Rates(1e9, 1e9) for name in "abc"}
    found = verdicts(rates | {"d": Rates(1e9, 1e9 / 1.1)})["d"]
    assert found.factor == pytest.approx(1.1) and not found.held_back
    assert found.words.startswith("throttles: ") and "1.10 times as slow" in found.words
    assert found.words.endswith("its results are scaled")
    found = verdicts(rates | {"d": Rates(1e9, 0.5e9)})["d"]
    assert found.held_back and found.words.endswith("it is held back")


def test_a_device_that_differs() -> None:
    rates = {name: Rates(1e9, 1e9) for name in "abc"}
    found = verdicts(rates | {"d": Rates(1.1e9, 1.1e9)})["d"]
    assert found.factor == pytest.approx(1 / 1.1) and found.words.startswith("differs: ")
    assert "1.10 times as fast" in found.words
    assert verdicts(rates | {"d": Rates(2e9, 2e9)})["d"].held_back
