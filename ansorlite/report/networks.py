"""The stages of a network as `ansorlite show` prints them: passes, partition, and a picture.

In: a `Graph` as imported. Out: text that ends in a newline. The picture is SVG, so that a browser
and the page of `ansorlite report` show it without Graphviz: kernels in layers from inputs to
outputs, arrows for the values between them.
"""

from collections.abc import Callable

import networkx as nx

from ansorlite.errors import UsageError
from ansorlite.graph.choice import Lowering
from ansorlite.graph.cuts import merges
from ansorlite.graph.fuse import fuse
from ansorlite.graph.ir import Graph
from ansorlite.graph.partition import Partition, Subgraph
from ansorlite.graph.passes import PASSES
from ansorlite.names import shown, xml_text
from ansorlite.units import format_bytes, format_flop

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 46, 26, 38, 20  # pixels
LABEL = 28  # characters of a line of a box
# Fill by what a kernel mainly does: the first of its operators that is listed.
COLOURS = {
    "conv": "#cfe3f7",
    "conv_transpose": "#cfe3f7",
    "matmul": "#d9d2f2",
    "product": "#d9d2f2",
    "softmax": "#f7dccf",
    "reduce_sum": "#f7dccf",
    "max_pool": "#f7efc4",
    "sum_pool": "#f7efc4",
}
OTHERWISE, TERMINAL = "#e4efdc", "#ffffff"


def passes_text(graph: Graph) -> str:
    """The imported graph, the graph after each pass that changed it, and what transposes cost."""
    parts, at = [f"# import\n{graph}"], graph
    for step in PASSES:
        after = step(at)
        if str(after) == str(at):
            parts.append(f"# {step.__name__}: no change\n")
        else:
            parts.append(f"# {step.__name__}: {len(at.nodes)} -> {len(after.nodes)} nodes\n{after}")
        at = after
    return "\n".join([*parts, _transposes(at)])


def _transposes(graph: Graph) -> str:
    """One line: the transposes that are kernels, each with the elements that it moves.

    Products read and write their operands in any order; such transposes cost nothing.
    """
    moved, joined = list[tuple[str, int]](), 0
    for group in fuse(graph):
        for n in group.nodes:
            if n.op == "transpose" and n is group.anchor:
                moved.append((shown(n.output), graph.types[n.output].size))
            else:
                joined += n.op == "transpose"
    total = sum(size for _, size in moved)
    each = f": {', '.join(f'{name} {size}' for name, size in moved)}" if moved else ""
    more = f"; {joined} more are part of products" if joined else ""
    return f"# transposes: {len(moved)}, {total} elements to move{each}{more}\n"


def partition_text(graph: Graph) -> str:
    """Kernels and views in running order, then kernels that may take the place of several."""
    parts = Lowering().partition(graph)
    further = []
    for m in merges(parts):
        old, less = ", ".join(map(shown, m.replaces)), format_bytes(m.saved_bytes)
        further.append(f"# {shown(m.subgraph.name)} may replace {old}: {less} less")
    return "\n".join([str(parts).rstrip("\n"), *further, ""])


def partition_svg(network: Graph | Partition) -> str:
    """The partition as SVG: boxes are kernels, arrows are the values between kernels."""
    parts = Lowering().partition(network) if isinstance(network, Graph) else network
    edges = _edges(parts)
    layers = list(nx.topological_generations(edges))
    columns = _columns(edges, layers)
    wide = max(map(len, columns)) * (WIDTH + GAP_X) + 2 * MARGIN - GAP_X
    high = len(columns) * (HEIGHT + GAP_Y) + 2 * MARGIN - GAP_Y
    place: dict[str, tuple[float, float]] = {}
    for row, names in enumerate(columns):
        left = (wide - len(names) * (WIDTH + GAP_X) + GAP_X) / 2
        for k, name in enumerate(names):
            place[name] = left + k * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11">',
        f"<title>{xml_text(parts.graph.name)}</title>",
        '<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#888"/></marker>',
        *(_arrow(place[a], place[b], d["value"]) for a, b, d in edges.edges(data=True)),
        *(_box(place[n], d["lines"], d["fill"]) for n, d in edges.nodes(data=True)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _edges(parts: Partition) -> nx.DiGraph:
    """Nodes: graph inputs, kernels, graph outputs, with the lines of their boxes."""
    types, aliases = parts.graph.types, parts.aliases
    g, source = nx.DiGraph(), dict[str, dict[str, None]]()  # kernels that write parts of a value
    for v in parts.graph.inputs:
        g.add_node(f"in {v}", lines=(v, str(types[v])), fill=TERMINAL)
        source[v] = {f"in {v}": None}
    for s in parts.subgraphs:
        g.add_node(s.name, lines=_kernel_lines(s, str(types[s.outputs[0]])), fill=_colour(s))
        for v in dict.fromkeys(aliases.get(v, v) for v in s.inputs):
            for kernel in source.get(v, ()):
                g.add_edge(kernel, s.name, value=f"{v}: {types[v]}")
        for v in s.outputs:
            source.setdefault(aliases.get(v, v), {})[s.name] = None
    for v in parts.graph.outputs:
        owner = aliases.get(v, v)
        g.add_node(f"out {v}", lines=(v, str(types[v])), fill=TERMINAL)
        for kernel in source.get(owner, ()):
            g.add_edge(kernel, f"out {v}", value=f"{v}: {types[v]}")
    return g


def _kernel_lines(s: Subgraph, kind: str) -> tuple[str, ...]:
    forms = "" if len(s.forms) == 1 else f", {len(s.forms)} forms"
    return s.name, kind, f"{format_flop(s.dag.flop)}{forms}"


def _colour(s: Subgraph) -> str:
    return next((c for op, c in COLOURS.items() if f"{op}_" in f"{s.name}_"), OTHERWISE)


def _columns(g: nx.DiGraph, layers: list[list[str]]) -> list[list[str]]:
    """The boxes of each layer, ordered by the mean place of the boxes that they read."""
    at: dict[str, float] = {}
    out = []
    for layer in layers:

        def centre(name: str) -> float:
            before = [at[p] for p in g.predecessors(name)]
            return sum(before) / len(before) if before else 0.0

        names = sorted(layer, key=centre)
        at.update({n: (k + 0.5) / len(names) for k, n in enumerate(names)})
        out.append(names)
    return out


def _arrow(a: tuple[float, float], b: tuple[float, float], title: str) -> str:
    x, y, u, v = a[0] + WIDTH / 2, a[1] + HEIGHT, b[0] + WIDTH / 2, b[1]
    # Past boxes in between, on their right.
    skips = v - y > GAP_Y + 1
    bend = (WIDTH / 2 + GAP_X) if skips else 0.0
    middle = GAP_Y / 2
    path = f"M{x:.0f},{y:.0f} C{x + bend:.0f},{y + middle:.0f} {u + bend:.0f},{v - middle:.0f}"
    return (
        f'<path d="{path} {u:.0f},{v:.0f}" fill="none" stroke="#888" marker-end="url(#tip)">'
        f"<title>{xml_text(title)}</title></path>"
    )


def _box(at: tuple[float, float], lines: tuple[str, ...], fill: str) -> str:
    x, y = at
    rows = [
        f'<text x="{x + WIDTH / 2:.0f}" y="{y + 14 + 13 * k:.0f}" text-anchor="middle">'
        f"{xml_text(_short(line))}</text>"
        for k, line in enumerate(lines)
    ]
    shape = (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
        f'fill="{fill}" stroke="#555"/>'
    )
    return f"<g><title>{xml_text(' | '.join(lines))}</title>{shape}{''.join(rows)}</g>"


def _short(text: str) -> str:
    text = shown(text)
    return text if len(text) <= LABEL else f"{text[: LABEL - 2]}.."


NETWORK_STAGES: dict[str, Callable[[Graph], str]] = {
    "passes": passes_text,
    "partition": partition_text,
    "svg": partition_svg,
}


def network_stage(graph: Graph, name: str) -> str:
    """The stage of that name; raises UsageError where there is none."""
    if name not in NETWORK_STAGES:
        known = ", ".join(NETWORK_STAGES)
        raise UsageError(f"{name!r} is no stage of a network: choose one of {known}")
    return NETWORK_STAGES[name](graph)
