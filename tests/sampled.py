"""Samples of long tests: the default tier runs a part of the cases, the slow tier all of them.

`@some_or_all(8)` gives the test an argument `every`: 8 in the default tier, 1 in the slow tier; the
test goes through `cases[::every]`. `sampled(cases, 8)` marks seven of eight parameters as slow.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def some_or_all(every: int) -> pytest.MarkDecorator:
    """Run with every = `every`, and with every = 1 in the slow tier."""
    cases = [pytest.param(every, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
    return pytest.mark.parametrize("every", cases)


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Parameters of a test: every `every`-th case in the default tier, the others are slow."""
    return [
        pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.slow)
        if k % every
        else c
        for k, c in enumerate(cases)
    ]
