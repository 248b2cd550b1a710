"""The operators of graphs, one entry each: `table.OPERATORS` by name; `op.Op` lists the fields.

An operator's type, numpy meaning, tensor expression and layout stand together in the file of its
topic. Passes, fusion, lowering and limits know operators by their entries alone.

To add an operator that ONNX has, first ask whether others express it. Then it needs a reader in
`graph.onnx`, a line in `onnx.table.READERS` and a `Case` in tests/graph/test_onnx_operators.py, and
nothing here. `onnx.normalization.group_norm` is one: means and arithmetic, which `graph.fuse` joins
to one kernel. Where an ONNX operator has several results, its reader returns a tuple of values.

Otherwise it needs an entry, in the `OPS` of a file that is a line of `table`. Nodes of constants
are computed by their meaning, so shape arithmetic needs no more than that. As if group
normalisation were such an operator (a test runs this):

    import numpy as np
    from ansorlite import te
    from ansorlite.errors import ModelError
    from ansorlite.graph.ops.op import Op, wide
    from ansorlite.graph.ops.reduce import reduce
    from ansorlite.graph.types import integer

    def _type(attrs, types):  # the result's type, or an error with advice
        (x,), groups = types, integer(attrs, "groups")
        if x.rank < 3 or groups < 1 or x.shape[1] % groups:
            raise ModelError(f"the channels of {x} make no {groups} groups: give a divisor")
        return x

    def _meaning(attrs, xs):  # float64 inside, rounded once
        rows = wide(xs[0]).reshape(xs[0].shape[0], integer(attrs, "groups"), -1)
        centred = rows - rows.mean(axis=2, keepdims=True)
        out = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + 1e-5)
        return out.reshape(xs[0].shape).astype(xs[0].dtype)

    def _views(attrs, types):  # the kernel reads [batch, groups, elements of a group]
        (x,), groups = types, integer(attrs, "groups")
        return (((x.shape[0], groups, x.size // (x.shape[0] * groups)),),)

    def _tensor(attrs, xs):
        (x,), scale = xs, 1 / xs[0].shape[2]
        total = reduce(x, "sum", (2,), "total")
        centred = te.compute(x.shape, lambda n, g, i: x[n, g, i] - total[n, g] * scale, "centred")
        square = te.compute(x.shape, lambda n, g, i: centred[n, g, i] * centred[n, g, i], "square")
        power = reduce(square, "sum", (2,), "power")
        return te.compute(
            x.shape,
            lambda n, g, i: centred[n, g, i] / te.sqrt(power[n, g] * scale + 1e-5),
            "group_norm",
        )

    OPS = (
        Op(
            "group_norm",
            "anchor",
            _type,
            _meaning,
            attrs=("groups",),
            tensor=_tensor,
            views=_views,
        ),
    )

Its layout is the default: data in the graph's own order, channels first. One that follows its axes,
as softmax does, says `layout=follows(axes=("axes",))`; convolutions have rules of their own.

Its test is a case in tests/graph/test_op_table.py, where expression and meaning are compared.
"""
