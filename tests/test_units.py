"""Formatting of figures where the number of digits or the unit changes."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansorlite.units import (
    format_bytes,
    format_flop,
    format_flop_rate,
    format_gflops,
    format_latency,
    format_seconds,
    format_share,
    rate,
    share,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.43e-3, "1.430 ms"),
        (12.3456e-6, "12.35 us"),
        (999.94e-6, "999.9 us"),
        (999.96e-6, "1.000 ms"),
        (9.9996e-3, "10.00 ms"),
        (5e-9, "5.000 ns"),
        (0.0, "0.000 ns"),
        (2.5, "2.500 s"),
        (12345.6, "12346 s"),
        (None, "-"),
        (math.inf, "-"),
        (math.nan, "-"),
    ],
)
def test_latency(seconds: float | None, text: str) -> None:
    assert format_latency(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (0.34, "0.3 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7620, "2 h 07 min"),
        (360000, "100 h 00 min"),
        (None, "-"),
        (math.inf, "-"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("flop", "text"),
    [
        (0, "0 FLOP"),
        (12, "12.0 FLOP"),
        (999, "999 FLOP"),
        (999.6, "1.00 kFLOP"),
        (2.68e8, "268 MFLOP"),
        (1.074e9, "1.07 GFLOP"),
        (9.996e9, "10.0 GFLOP"),
        (3e12, "3.00 TFLOP"),
        (4.5e18, "4500 PFLOP"),
        (None, "-"),
        (math.nan, "-"),
    ],
)
def test_flop(flop: float | None, text: str) -> None:
    assert format_flop(flop) == text


def test_rates_and_shares() -> None:
    assert format_flop_rate(1.87e11) == "187 GFLOP/s"
    assert format_gflops(1.87e11) == "187.0"
    assert format_gflops(None) == "-"
    assert format_share(0.934) == "93 %"
    assert format_share(0.0994) == "9.9 %"
    assert format_share(0.0996) == "10 %"
    assert format_share(0.0) == "0.0 %"
    assert format_share(None) == "-"
    assert rate(2e9, 0.5) == 4e9
    assert rate(0.0, 0.5) is rate(None, 0.5) is rate(1.0, None) is rate(1.0, math.inf) is None
    assert share(1.0, 4.0) == 0.25
    assert share(None, 1.0) is share(1.0, None) is share(1.0, 0.0) is None


@given(value=st.floats(1e-12, 1e16))
@pytest.mark.parametrize("write", [format_latency, format_flop])
def test_the_figure_is_right_to_its_digits(write: Callable[[float], str], value: float) -> None:
    number, _, unit = write(value).partition(" ")
    scale = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    prefix = 1.0 if unit in ("s", "FLOP") else scale[unit[0]]
    # Below 1 ns and 1 FLOP there is no smaller unit and fewer digits are left.
    assert float(number) * prefix == pytest.approx(value, rel=5.1e-3, abs=6e-13)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB")],
)
def test_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text
    assert format_bytes(None) == format_bytes(float("nan")) == "-"
