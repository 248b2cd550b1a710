"""Readers of matrix products."""

from ansorlite.graph.onnx.context import Context, OnnxNode


def gemm(c: Context, n: OnnxNode) -> str:
    attrs = n.attrs
    return c.emit(
        "gemm",
        c.operands(n),
        trans_a=bool(attrs.get("transA", 0)),
        trans_b=bool(attrs.get("transB", 0)),
        alpha=float(attrs.get("alpha", 1.0)),
        beta=float(attrs.get("beta", 1.0)),
    )


def matmul(c: Context, n: OnnxNode) -> str:
    a, b = c.operands(n)
    return product(c, a, b)


def product(c: Context, a: str, b: str) -> str:
    """The matrix product of two values, of which a vector is a row on the left, else a column."""
    row, column = len(c.shape(a)) == 1, len(c.shape(b)) == 1
    if row:
        a = c.emit("reshape", [a], shape=(1, *c.shape(a)))
    if column:
        b = c.emit("reshape", [b], shape=(*c.shape(b), 1))
    out = c.emit("matmul", [a, b])
    shape = c.shape(out)
    if row:
        shape = (*shape[:-2], *shape[-1:])
    if column:
        shape = shape[:-1]
    return c.emit("reshape", [out], shape=shape) if row or column else out
