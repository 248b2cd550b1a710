"""Random ONNX graphs with NaN, infinities and extreme values, run natively, against onnxruntime.

The generator is that of scripts/random_graphs.py, which runs thousands in every way.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from random_graphs import outcome
from random_layers import random_net
from random_onnx import near

COUNT = 40


def test_the_same_seed_is_the_same_graph() -> None:
    one, other = random_net(5), random_net(5)
    assert one.model == other.model
    for name, x in one.feeds.items():
        np.testing.assert_array_equal(x, other.feeds[name])


def test_a_wrong_value_is_seen() -> None:
    want = np.asarray([1.0, np.nan, np.inf, 0.0], np.float32)
    assert near(want.copy(), want, None)
    for k, wrong in enumerate((1.001, 1.0, -np.inf, -0.0)):
        got = want.copy()
        got[k] = wrong
        assert not near(got, want, None)


def test_random_graphs_natively() -> None:
    found = Counter[str]()
    for seed in range(COUNT):
        what, why = outcome(random_net(seed), "plain")
        assert what in ("right", "refused"), f"--only {seed} --ways plain: {what} {why}"
        found[what] += 1
    assert found["right"] >= COUNT * 3 // 4, found
