"""Step `passes`: `PASSES`, applied in order, make an imported network ready for `partition`.

In: a `Graph` as imported or built (channels first). Out: a `Graph` with the same inputs, outputs
and meaning (up to rounding), channels last, batch norm folded, without "source" operators.
"""

from collections.abc import Callable, Container
from dataclasses import replace

from ansorlite.graph import rewrites as rw
from ansorlite.graph.dynamic import rescaled, sink_views
from ansorlite.graph.groups import split_groups
from ansorlite.graph.integers import in_bytes, scale_apart
from ansorlite.graph.ir import Graph, Node, Step
from ansorlite.graph.layout import channels_last
from ansorlite.graph.precision import lowered
from ansorlite.graph.projections import join_projections
from ansorlite.graph.quantized import fold_steps, integer_products, unsigned
from ansorlite.graph.rounding import Rounding
from ansorlite.graph.upsampling import fold_upsampling, sink_upsampling

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    integer_products,
    rw.remove_dead_nodes,
    rw.fold_constants,
    rw.remove_empty,
    rw.remove_identities,
    rw.lower_batch_norm,
    rw.lower_gemm,
    rw.lower_conv_transpose,
    rw.split_bias,
    rw.remove_empty,
    rw.fold_pad,
    rw.drop_taps,
    sink_upsampling,
    fold_upsampling,
    rw.drop_expands,
    split_groups,
    rw.lower_means,
    rw.simplify_arithmetic,
    rw.fold_scales,
    channels_last,
    rw.merge_views,
    rw.fold_flatten,
    rw.merge_views,
    rw.remove_identities,
    rw.merge_duplicates,
    join_projections,
    rw.join_slices,
    rw.split_wide,
    rw.view_slices,
    rw.merge_duplicates,
    fold_steps,
    unsigned,
    in_bytes,
    rescaled,
    sink_views,
    scale_apart,
)
# Replacements for the passes that change how the network rounds.
EXACTLY: dict[Pass, tuple[Pass, ...]] = {
    rw.lower_batch_norm: (rw.batch_norm_as_written,),
    rw.simplify_arithmetic: (rw.simplify_exactly,),
    rw.fold_scales: (),
    fold_upsampling: (),
    integer_products: (),
    fold_steps: (),
}
EXACT_PASSES: tuple[Pass, ...] = tuple(p for step in PASSES for p in EXACTLY.get(step, (step,)))


def optimize(
    graph: Graph,
    exact: bool = False,
    precision: str = "float32",
    kept: Container[str] = (),
    rounding: Rounding | None = None,
) -> Graph:
    """All of `PASSES`, one after the other; each result is verified where it is built.

    With `exact` each operator's result is rounded as the network writes it (`EXACT_PASSES`).
    `precision` is one of `graph.precision.PRECISIONS`; bodies of loops stay in float32,
    and so do the products `kept` (results of nodes of the graph in float32). Sizes of one network
    share `rounding`, and with it their weights.
    """
    for step in EXACT_PASSES if exact else PASSES:
        graph = step(graph)
    graph = lowered(graph, precision, kept, rounding)
    bodies = [n for n in graph.nodes if n.operator.kind == "loop"]
    return replace(graph, nodes=tuple(_of_loop(n, exact) for n in graph.nodes)) if bodies else graph


def _of_loop(node: Node, exact: bool) -> Node:
    """The node with the body of its loop optimised."""
    step = node.attrs.get("body")
    if not isinstance(step, Step):
        return node
    return replace(node, attrs={**node.attrs, "body": Step(optimize(step.graph, exact))})
