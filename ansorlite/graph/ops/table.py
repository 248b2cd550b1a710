"""`OPERATORS`: the operator set of graphs, by name. A new operator's file is a line here."""

from ansorlite.graph.ops import (
    arithmetic,
    bfloat16,
    conditions,
    conv,
    conv_transpose,
    elementwise,
    gathering,
    indexing,
    loops,
    low_precision,
    matmul,
    movement,
    normalization,
    pool,
    quantization,
    ranking,
    reduce,
    sampling,
    scan,
)
from ansorlite.graph.ops.op import Op

OPERATORS: dict[str, Op] = {
    op.name: op
    for op in (
        *elementwise.OPS,
        *arithmetic.OPS,
        *conditions.OPS,
        *conv.OPS,
        *conv_transpose.OPS,
        *matmul.OPS,
        *pool.OPS,
        *reduce.OPS,
        *normalization.OPS,
        *movement.OPS,
        *indexing.OPS,
        *quantization.OPS,
        *scan.OPS,
        *gathering.OPS,
        *ranking.OPS,
        *sampling.OPS,
        *loops.OPS,
        *low_precision.OPS,
        *bfloat16.OPS,
    )
}
