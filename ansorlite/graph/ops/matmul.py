"""Matrix products: matmul (with leading axes) and, before the passes, gemm."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import Arrays, Form, Op, Orders, Perm, Placed, Shape, Types, named, wide
from ansorlite.graph.ops.strassen import product_forms
from ansorlite.graph.types import Array, Attrs, TensorType, broadcast, number, same_dtype
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor


def _matmul_type(attrs: Attrs, types: Types) -> TensorType:
    """[..., m, k] x [..., k, n] with broadcast leading axes."""
    a, b = types
    if a.rank < 2 or b.rank < 2 or a.shape[-1] != b.shape[-2]:
        raise ModelError(f"cannot multiply matrices {a} and {b}: inner extents differ")
    lead = broadcast([a.shape[:-2], b.shape[:-2]])
    return TensorType((*lead, a.shape[-2], b.shape[-1]), same_dtype(types))


def _matmul(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray((wide(xs[0]) @ wide(xs[1])).astype(xs[0].dtype))


def dense(x: Tensor, w: Tensor, name: str = "dense") -> Tensor:
    """[m, k] x [k, n] -> [m, n]."""
    k = te.reduce_axis(x.shape[1], name="k")
    shape = (x.shape[0], w.shape[1])
    return te.compute(shape, lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name=name)


# (operand a, operand b, place) -> the product of both at a place of the summed axis
Term = Callable[[Callable[[Any], Expr], Callable[[Any], Expr], Any], Expr]


def plain_term(a: Callable[[Any], Expr], b: Callable[[Any], Expr], k: Any) -> Expr:
    return a(k) * b(k)


def batch_matmul(
    a: Tensor,
    b: Tensor,
    perm_a: Sequence[int] | None = None,
    perm_b: Sequence[int] | None = None,
    perm_out: Sequence[int] | None = None,
    name: str = "matmul",
    term: Term = plain_term,
    depth: int = 1,
) -> Tensor:
    """[..., m, k] x [..., k, n] with broadcast leading axes -> [..., m, n].

    With `perm_a` (`perm_b`) the operand is transpose(a, perm_a), which is never stored; with
    `perm_out` the result is transpose(product, perm_out). `term` is the product of what the
    operands have at one number of the summed axis, which stands for `depth` places of `a`.
    """
    view_a = tuple(a.shape[p] for p in perm_a or range(len(a.shape)))
    view_b = tuple(b.shape[p] for p in perm_b or range(len(b.shape)))
    if -(-view_a[-1] // depth) != view_b[-2]:
        raise ModelError(f"cannot multiply {list(view_a)} and {list(view_b)}: inner extents differ")
    lead = max(len(view_a), len(view_b)) - 2
    full_a = (1,) * (lead + 2 - len(view_a)) + view_a
    full_b = (1,) * (lead + 2 - len(view_b)) + view_b
    batch = tuple(max(p, q) for p, q in zip(full_a[:lead], full_b[:lead], strict=True))
    k = te.reduce_axis(view_b[-2], name="k")

    def read(x: Tensor, perm: Sequence[int] | None, view: tuple[int, ...], at: Any) -> Expr:
        lead_at = at[len(at) - len(view) : -2]
        whole = zip(view[:-2], batch[lead - len(lead_at) :], lead_at, strict=True)
        logical = [*(i if n == full else 0 for n, full, i in whole), *at[-2:]]
        stored: list[Any] = [0] * len(view)
        for position, axis in enumerate(perm or range(len(view))):
            stored[axis] = logical[position]
        return x[tuple(stored)]

    order = tuple(perm_out or range(lead + 2))

    def element(*at: Any) -> Expr:
        *lead_at, i, j = (at[order.index(d)] for d in range(lead + 2))

        def left(n: Any) -> Expr:
            return read(a, perm_a, view_a, (*lead_at, i, n))

        def right(n: Any) -> Expr:
            return read(b, perm_b, view_b, (*lead_at, n, j))

        return te.sum(term(left, right, k), axis=k)

    names = (*(("b",) if lead == 1 else tuple(f"b{d}" for d in range(lead))), "i", "j")
    shape = (*batch, view_a[-2], view_b[-1])
    placed = tuple(shape[d] for d in order), [names[d] for d in order]
    return te.compute(placed[0], named(placed[1], element), name=name)


def _matmul_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    a, b = xs
    return dense(a, b) if len(a.shape) == len(b.shape) == 2 else batch_matmul(a, b)


def _matmul_transposed(
    xs: Sequence[Tensor], perms: Sequence[Perm | None], order: Perm | None
) -> Tensor:
    return batch_matmul(xs[0], xs[1], perms[0], perms[1], order)


def _matmul_views(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """[..., m, k] x [k, n] as one matrix product; equal leading axes as one batch axis."""
    a, b = types[0].shape, types[1].shape
    lead = b[:-2]
    if math.prod(lead) == 1 and len(a) >= len(b):
        merged: tuple[Shape, ...] = ((math.prod(a[:-1]), a[-1]), b[-2:])
    elif a[:-2] == lead:
        merged = ((math.prod(lead), *a[-2:]), (math.prod(lead), *b[-2:]))
    else:
        return ((a, b),)
    return (merged,) if merged == (a, b) else (merged, (a, b))


def _matmul_forms(attrs: Attrs, types: Types) -> tuple[Form, ...]:
    """Strassen's, of a matrix on the right."""
    a, b = types
    if b.rank != 2 or b.dtype != "float32":
        return ()
    return product_forms(math.prod(a.shape[:-1]), *b.shape)


def _matmul_layout(attrs: Attrs, types: Types, orders: Orders) -> Placed | None:
    """A matrix on the right lets the leading axes of the left operand lie in any order."""
    perm, right = orders.operands[0], types[1]
    if right.rank != 2 or perm[-1] != len(perm) - 1:
        return None
    return Placed((perm, (0, 1)), perm)


def _scaled_by(attrs: Attrs, types: Types) -> tuple[int, int] | None:
    return (types[0].rank - 1, 1) if types[1].rank == 2 else None


def _matmul_work(attrs: Attrs, types: Types, result: TensorType) -> int:
    inner = types[0].shape[0] if attrs.get("trans_a") else types[0].shape[-1]
    return sum(t.size for t in types) + result.size + result.size * inner // 4


# ---- gemm ---------------------------------------------------------------------------------------


def _gemm_type(attrs: Attrs, types: Types) -> TensorType:
    """alpha * op(a) x op(b) + beta * c for matrices a, b and c that broadcasts to the product."""
    a, b = types[0], types[1]
    if a.rank != 2 or b.rank != 2:
        raise ModelError(f"gemm needs matrices, got {a} and {b}")
    factors = number(attrs, "alpha"), number(attrs, "beta")
    if not a.dtype.startswith("float") and any(f != int(f) for f in factors):
        raise ModelError(
            f"a product of {a.dtype} times {factors[0]} plus {factors[1]} times another"
        )
    left = a.shape[::-1] if attrs["trans_a"] else a.shape
    right = b.shape[::-1] if attrs["trans_b"] else b.shape
    out = _matmul_type(attrs, (TensorType(left, a.dtype), TensorType(right, b.dtype)))
    if len(types) > 2:
        full = broadcast([out.shape, types[2].shape])
        if TensorType(full, same_dtype((out, types[2]))) != out:
            raise ModelError(f"operand c {types[2]} does not broadcast to {out}")
    return out


def _gemm(attrs: Attrs, xs: Arrays) -> Array:
    a = xs[0].T if attrs["trans_a"] else xs[0]
    b = xs[1].T if attrs["trans_b"] else xs[1]
    alpha, beta = number(attrs, "alpha"), number(attrs, "beta")
    out = wide(a) @ wide(b)
    out = out if alpha == 1.0 else alpha * out
    if len(xs) > 2 and beta != 0.0:
        out = out + (wide(xs[2]) if beta == 1.0 else beta * wide(xs[2]))
    return np.asarray(out.astype(xs[0].dtype))


OPS = (
    Op(
        "matmul",
        "anchor",
        _matmul_type,
        _matmul,
        arity=(2, 2),
        tensor=_matmul_tensor,
        views=_matmul_views,
        forms=_matmul_forms,
        transposed=_matmul_transposed,
        names=("data", "weight"),
        layout=_matmul_layout,
        scaled_by=_scaled_by,
        traits=("rounded_sum",),
        work=_matmul_work,
    ),
    Op(
        "gemm",
        "source",
        _gemm_type,
        _gemm,
        attrs=("trans_a", "trans_b", "alpha", "beta"),
        arity=(2, 3),
        work=_matmul_work,
    ),
)
