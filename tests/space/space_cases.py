"""Computations of Ansor's paper and tests, in sizes that decide which sketch rules apply."""

import numpy as np

from ansorlite import te
from ansorlite.codegen.kernel import Kernel
from ansorlite.ir.interpret import interpret
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.space.legality import legal
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG

TARGET = Target.cross("x86-avx2", cores=20)
HOST = Target.detect()
RNG = np.random.default_rng(5)


def check(dag: te.ComputeDAG, sketch: Sketch, n: int) -> None:
    """Check `n` legal rows: filling equals lowering; interpreter and native code equal numpy."""
    arrays = {
        p.name: RNG.standard_normal([int(str(e)) for e in p.shape]).astype(np.float32)
        for p in dag.inputs
    }
    want = dag.evaluate(arrays)
    rows = sketch.sample(2000, RNG)
    ok = legal(sketch.program, population_columns(sketch.holes, rows), len(rows), HOST)
    assert ok.any(), sketch.name
    for row in rows[ok][:n]:
        program = sketch.fill(row)
        assert str(program) == str(lower(sketch.state.fill(sketch.values(row))))
        got = interpret(specialize(program), arrays)
        native = Kernel(program, HOST)(*(arrays[p.name] for p in dag.inputs))
        for name, expected in want.items():
            np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(native, expected, rtol=1e-4, atol=1e-4)


def matmul(n: int, m: int, k: int, a: te.Tensor | None = None, name: str = "C") -> te.Tensor:
    """C[n, m] = A[n, k] B[k, m]."""
    a = a if a is not None else te.placeholder((n, k), name="A")
    b = te.placeholder((k, m), name=f"B{name}")
    r = te.reduce_axis(k, "k")
    return te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name=name)


def conv_bn_relu(size: int, channels: int) -> te.Tensor:
    """A padded 3x3 convolution, channels last, with scale, shift and ReLU."""
    x = te.placeholder((1, size, size, channels), name="X")
    w = te.placeholder((3, 3, channels, channels), name="W", constant=True)
    scale = te.placeholder((channels,), name="scale", constant=True)
    shift = te.placeholder((channels,), name="shift", constant=True)
    kh, kw = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")
    ci = te.reduce_axis(channels, "ci")

    def padded(n: te.Expr, h: te.Expr, w: te.Expr, c: te.Expr) -> te.Expr:
        inside = te.all(h >= 1, h < size + 1, w >= 1, w < size + 1)
        return te.select(inside, x[n, h - 1, w - 1, c], 0.0)

    pad = te.compute((1, size + 2, size + 2, channels), padded, name="pad")
    conv = te.compute(
        (1, size, size, channels),
        lambda n, y, z, co: te.sum(
            pad[n, y + kh, z + kw, ci] * w[kh, kw, ci, co], axis=[kh, kw, ci]
        ),
        name="conv",
    )
    scaled = te.compute(conv.shape, lambda n, h, w, c: conv[n, h, w, c] * scale[c], name="scaled")
    shifted = te.compute(
        conv.shape, lambda n, h, w, c: scaled[n, h, w, c] + shift[c], name="shifted"
    )
    return te.relu(shifted, name="relu")


def max_pool(size: int, channels: int) -> te.Tensor:
    """Max pooling with a 3x3 window and stride 2."""
    x = te.placeholder((1, size, size, channels), name="X")
    kh, kw = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")
    out = size // 2 - 1
    return te.compute(
        (1, out, out, channels),
        lambda n, h, w, c: te.max(x[n, h * 2 + kh, w * 2 + kw, c], axis=[kh, kw]),
        name="pool",
    )


def row_minimum(n: int, m: int) -> te.Tensor:
    x = te.placeholder((n, m), name="X")
    k = te.reduce_axis(m, "k")
    return te.compute((n,), lambda i: te.min(x[i, k], axis=k), name="low")


def softmax(n: int, m: int) -> te.Tensor:
    """Row maximum, exponentials, row sum, quotient."""
    x = te.placeholder((n, m), name="X")
    k, k2 = te.reduce_axis(m, "k"), te.reduce_axis(m, "k2")
    top = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="top")
    ex = te.compute((n, m), lambda i, j: te.exp(x[i, j] - top[i]), name="ex")
    total = te.compute((n,), lambda i: te.sum(ex[i, k2], axis=k2), name="total")
    return te.compute((n, m), lambda i, j: ex[i, j] / total[i], name="out")


def example_1() -> ComputeDAG:
    """Input 1 of the paper's figure 5: D = relu(A B) on 512 x 512."""
    a, b = te.placeholder((512, 512), name="A"), te.placeholder((512, 512), name="B")
    k = te.reduce_axis(512, "k")
    c = te.compute((512, 512), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.ComputeDAG([te.relu(c, name="D")])


def example_2() -> ComputeDAG:
    """Input 2 of figure 5: B = relu(A), C = B padded with zeros to 512 columns, E = C D."""
    a, d = te.placeholder((8, 400), name="A"), te.placeholder((512, 4), name="D")
    b = te.relu(a, name="B")
    c = te.compute((8, 512), lambda i, k: te.select(k < 400, b[i, k], 0.0), name="C")
    k = te.reduce_axis(512, "k")
    e = te.compute((8, 4), lambda i, j: te.sum(c[i, k] * d[k, j], axis=k), name="E")
    return te.ComputeDAG([e])
