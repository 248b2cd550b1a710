"""The operator suite at its real sizes: random legal candidates against numpy at sampled points."""

import math

import numpy as np
import pytest
from native import run_native

from ansorlite import te
from ansorlite.schedule.holes import population_columns
from ansorlite.space.legality import legal
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.workloads.ops import operators, workload

CASES = [(name, i) for name, op in operators().items() for i in range(len(op.cases))]
POINTS = 500
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "case"), CASES)
def test_candidates_of_an_operator(name: str, case: int) -> None:
    """Three sketches, one legal row each; values are quarters, so sums are nearly exact."""
    dag = workload(name, case, batch=1, constant_weights=bool(case % 2)).dag
    rng = np.random.default_rng(case)
    inputs = {}
    for p in dag.inputs:
        shape = [int(str(e)) for e in p.shape]
        inputs[p.name] = (rng.integers(-4, 5, shape) / 4).astype(p.dtype)
    target = Target()
    expected = {}
    for op in dag.outputs:
        shape = op.shape
        points = np.stack([rng.integers(0, n, POINTS) for n in shape], axis=1)
        expected[op.name] = points, te.evaluate_points(dag, inputs, op.name, points)
    found = sketches(dag, target)
    for k in rng.permutation(len(found))[:3]:
        sketch = found[k]
        rows = sketch.sample(300, rng)
        mask = legal(sketch.program, population_columns(sketch.holes, rows), len(rows), target)
        for row in rows[mask][:1]:
            got = run_native(sketch.fill(row), inputs, target)
            for output, (points, want) in expected.items():
                value = got[output][tuple(points.T)]
                scale = max(1.0, float(np.abs(want).max())) * math.sqrt(POINTS)
                np.testing.assert_allclose(
                    value, want, rtol=1e-5, atol=1e-6 * scale, err_msg=f"{sketch.name} {row}"
                )
