"""Tune one operator and look at the result: expression, latency, loops, machine code.

Usage: python scripts/examples/01_tune_an_operator.py (some ten seconds; no extras).
"""

import numpy as np

import ansorlite as al
from ansorlite import te
from ansorlite.search.stages import program_stage


def main() -> None:
    # 1. The computation: D = relu(A @ B). It says what is computed, and nothing about loops.
    # B is constant (a weight), so the search may store B in the order in which a kernel reads B.
    A = te.placeholder((96, 128), name="A")
    B = te.placeholder((128, 64), name="B", constant=True)
    k = te.reduce_axis(128, name="k")
    C = te.compute((96, 64), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    task = al.SearchTask([te.relu(C, name="D")], name="matmul_relu")
    print(f"{task}\n")

    # 2. The search: 8 programs are built, checked against the reference, and timed.
    # A real budget is some 64 to 1,000 trials; with log="file.jsonl" a second run continues.
    result = al.tune(task, n_trials=8, seed=0, progress=False)
    assert result.best is not None

    # 3. The winner: latency, speed, share of the machine's limit, and the loops.
    print(f"{result.best}\n")
    print(f"{result.time_table()}\n")

    # 4. The same program as machine code (`ansorlite show CASE --stage asm` for the suite).
    assembly = program_stage("asm", result.program, task.target)
    products = [line.strip() for line in assembly.splitlines() if "fmadd" in line]
    print(f"{len(products)} fused multiply-adds in the machine code, the first three:")
    print("\n".join(products[:3]))

    # 5. The kernel: a function from numpy arrays to a numpy array.
    rng = np.random.default_rng(0)
    a = rng.standard_normal((96, 128), np.float32)
    b = rng.standard_normal((128, 64), np.float32)
    d = result.kernel(a, b)
    fast = result.kernel.bind(B=b)  # B is packed once, here, and not at every call
    expected = np.maximum(a @ b, 0)
    np.testing.assert_allclose(d, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(fast(a), d)
    print(f"\nthe kernel agrees with numpy: largest difference {abs(d - expected).max():.1e}")


if __name__ == "__main__":
    main()
