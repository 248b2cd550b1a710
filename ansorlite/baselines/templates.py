"""Schedule templates: one straight-line schedule per operator, its numbers left open.

The other way to make a search space (AutoTVM, NeurIPS'18): people who know an operator write down
how it is done, and only split factors and annotations are searched. In: a `ComputeDAG`. Out:
`Sketch`es, so that policies, models, builders and records are those of all others; a template's are
called by its name. The built-in ones are meant to be strong: register tiles, packed operands and
vectors are theirs as they are the sketches'. `register` adds a user's own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ansorlite.baselines.config_space import ConfigSpace, all_runs
from ansorlite.errors import ScheduleError, UsageError
from ansorlite.ir.traverse import loads
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target
from ansorlite.te.access import has_data_reuse, has_more_reduction_parallel
from ansorlite.te.dag import ComputeDAG

VECTORS = 4  # of a register tile, at most, along the vector axis
MAX_PARTS = 32  # iterations of a middle level


@dataclass(frozen=True)
class Template:
    """`write` schedules what `matches`; several may match: the one registered last is taken."""

    name: str
    matches: Callable[[ConfigSpace], bool]
    write: Callable[[ConfigSpace], None]


TEMPLATES: dict[str, Template] = {}


def register(
    name: str, matches: Callable[[ConfigSpace], bool]
) -> Callable[[Callable[[ConfigSpace], None]], Callable[[ConfigSpace], None]]:
    """A decorator that makes a function (ConfigSpace) -> None the template of what matches."""

    def put(write: Callable[[ConfigSpace], None]) -> Callable[[ConfigSpace], None]:
        TEMPLATES.pop(name, None)  # the last one registered comes first
        TEMPLATES[name] = Template(name, matches, write)
        return write

    return put


def template_of(dag: ComputeDAG, target: Target) -> Template:
    """The template for a DAG; UsageError where none matches."""
    for t in reversed(TEMPLATES.values()):
        if t.matches(ConfigSpace(dag, target)):
            return t
    known = ", ".join(TEMPLATES)
    raise UsageError(f"no template matches this computation (there are: {known}): {dag}")


def template_sketches(dag: ComputeDAG, target: Target, name: str | None = None) -> list[Sketch]:
    """The space of a DAG's template, or of the one called `name`: a sketch a structure.

    Raises UsageError where no template matches, or where it does not fit the DAG.
    """
    if name is not None and name not in TEMPLATES:
        raise UsageError(f"no template is called {name}: choose one of {', '.join(TEMPLATES)}")
    template = template_of(dag, target) if name is None else TEMPLATES[name]
    if not template.matches(ConfigSpace(dag, target)):
        raise UsageError(f"template {template.name} does not fit this computation: {dag}")
    out = []
    try:
        for taken, state in all_runs(template.write, dag, target):
            label = "".join(f"-{k}" for k in taken)
            out.append(Sketch(f"{template.name}{label}", state, (template.name,)))
    except ScheduleError as error:
        raise UsageError(f"template {template.name} does not fit this: {error}") from error
    return out


# ---- parts of the built-in templates ------------------------------------------------------------


def _reuses(cfg: ConfigSpace) -> bool:
    return has_data_reuse(cfg.stage(cfg.main).compute)


def _tiled(
    cfg: ConfigSpace,
    rows: str,
    outer: list[str],
    *,
    whole: tuple[str, ...] = (),
    channels: bool = True,
) -> None:
    """Register tiles of `rows` x the last axis, with what is reduced around them.

    Nest: outer axes, blocks of the last axis and rows | blocks of channels, window | inside of a
    block of channels | the tile. `outer` (before the blocks of the last axis) is parallel with
    them; `whole` axes are innermost without being split.
    """
    main = cfg.main
    spatial, reduction = cfg.spatial(main), cfg.reduction(main)
    last = spatial[-1]
    lanes = cfg.target.lanes(cfg.stage(main).compute.dtype)
    columns = cfg.define_split(main, last, 3, "inexact", VECTORS * lanes)
    tile = cfg.define_split(main, rows, 2, "inexact") if rows != last else []
    depth = cfg.define_split(main, reduction[-1], 2, "inexact", 1024) if channels else []
    window = reduction[:-1] if channels else reduction
    between = [a for a in spatial if a not in (*outer, *whole, rows, last)]
    inner_columns = columns[1:-1]
    around = [*outer, columns[0], *between, *tile[:-1], *inner_columns]
    body = [*window, *depth]
    body = [*depth[:-1], *window, *depth[-1:]] if len(depth) > 1 else body
    registers = [*whole, *tile[-1:], *columns[-1:]] if len(columns) > 1 else [*whole, *tile[-1:]]
    around = [a for a in around if a not in registers]
    cfg.define_reorder(main, [*around, *body, *registers])
    wide = [loop for loop in registers if _is_long(cfg, main, loop)]
    cfg.define_annotate(main, wide, "register")
    vector = next((loop for loop in reversed(wide) if loop in columns or loop == last), None)
    if vector is not None:
        cfg.define_annotate(main, [vector], "vectorize")
    long = [loop for loop in body if _is_long(cfg, main, loop)]
    if long:
        cfg.define_annotate(main, long, "unroll")
    level = [loop for loop in around if loop not in inner_columns]
    if not cfg.attach_to_consumer(main, level):
        cfg.define_annotate(main, level, "parallel")


def _is_long(cfg: ConfigSpace, stage: str, loop: str) -> bool:
    s = cfg.stage(stage)
    return cfg.extent(stage, s.iters[s.position(loop)].axis) > 1


def _pack_weights(cfg: ConfigSpace) -> None:
    """What moves with the vectors is packed, ahead of time; an operand that varies maybe."""
    main = cfg.main
    last = cfg.spatial(main)[-1]
    for tensor in cfg.operands(main):
        reads = [x for x in _loads(cfg, main) if x[0] == tensor]
        if not any(last in free for _, free in reads):
            continue
        constant = cfg.state.schedule.is_constant(tensor)
        if constant or cfg.define_knob((False, True)):
            cfg.pack(main, tensor)


def _loads(cfg: ConfigSpace, stage: str) -> list[tuple[str, frozenset[str]]]:
    return [(x.tensor, frozenset(x.free)) for x in loads(cfg.stage(stage).compute.body)]


# ---- the built-in templates ---------------------------------------------------------------------


@register("reduction", lambda cfg: not _reuses(cfg))
def reduction(cfg: ConfigSpace) -> None:
    """Norms, means and sums: one large reduction is cut in parts for the cores."""
    cfg.inline()
    op = cfg.stage(cfg.main).compute
    if has_more_reduction_parallel(op, cfg.target.cores):
        axes = [a for a in cfg.reduction(cfg.main) if cfg.extent(cfg.main, a) > 1]
        keep = cfg.define_knob(("outer", "inner"))
        cfg.define_factor(cfg.main, axes[0] if keep == "outer" else axes[-1], keep)
    cfg.leave_open()


@register("rows", lambda cfg: not _reuses(cfg) and len(_reductions(cfg)) > 1)
def rows(cfg: ConfigSpace) -> None:
    """Softmax and normalisations: all stages for some rows at a time."""
    cfg.inline()
    cfg.fuse_rows()
    cfg.leave_open()


def _reductions(cfg: ConfigSpace) -> list[str]:
    return [s.name for s in cfg.stages if s.compute.reduce_axes]


@register("tiled", _reuses)
def tiled(cfg: ConfigSpace) -> None:
    """Anything else with data reuse: tiles of the last two axes that are not short."""
    cfg.inline()
    main = cfg.main
    spatial = cfg.spatial(main)
    row = next((a for a in reversed(spatial[:-1]) if cfg.extent(main, a) > 1), spatial[-1])
    outer = spatial[: spatial.index(row)] if row != spatial[-1] else spatial[:-1]
    _tiled(cfg, row, outer, channels=bool(cfg.reduction(main)))
    _pack_weights(cfg)


def _all_move(cfg: ConfigSpace) -> bool:
    """Whether all that is read moves with the last axis: no channels are summed up."""
    last = cfg.spatial(cfg.main)[-1]
    return all(last in free for _, free in _loads(cfg, cfg.main))


def _is_dense(cfg: ConfigSpace) -> bool:
    """One reduction axis: a matrix product, maybe of a batch of matrices."""
    return _reuses(cfg) and len(cfg.reduction(cfg.main)) == 1 and len(cfg.spatial(cfg.main)) >= 2


@register("dense", _is_dense)
def dense(cfg: ConfigSpace) -> None:
    """Matrix products: [batch], blocks of columns, of rows | k | the tile."""
    cfg.inline()
    spatial = cfg.spatial(cfg.main)
    _tiled(cfg, spatial[-2], spatial[:-2])
    _pack_weights(cfg)


def _is_conv(cfg: ConfigSpace) -> bool:
    """A window over each axis between the first and the last, then channels."""
    s, r = cfg.spatial(cfg.main), cfg.reduction(cfg.main)
    return _reuses(cfg) and len(s) >= 3 and len(r) == len(s) - 1


@register("conv", _is_conv)
def conv(cfg: ConfigSpace) -> None:
    """Convolutions [n, *s, ci] -> [n, *s, co] of any rank, dilated or strided."""
    cfg.inline()
    spatial = cfg.spatial(cfg.main)
    _tiled(cfg, spatial[-2], spatial[:1])
    _pack_weights(cfg)


def _is_grouped(cfg: ConfigSpace) -> bool:
    """[n, h, w, g, co] with a window over h and w and channels of a group."""
    s, r = cfg.spatial(cfg.main), cfg.reduction(cfg.main)
    return _reuses(cfg) and len(s) == 5 and len(r) == 3 and not _all_move(cfg)


@register("grouped_conv", _is_grouped)
def grouped_conv(cfg: ConfigSpace) -> None:
    """A group at a time: its channels of the output are the vectors, pixels of a row the rows."""
    cfg.inline()
    n, _, w, g, _ = cfg.spatial(cfg.main)
    _tiled(cfg, w, [n, g])
    _pack_weights(cfg)


def _is_depthwise(cfg: ConfigSpace) -> bool:
    """[n, *s, c] with a window and no channels to reduce."""
    s, r = cfg.spatial(cfg.main), cfg.reduction(cfg.main)
    windows = len(s) >= 3 and len(r) == len(s) - 2
    return _reuses(cfg) and windows and _all_move(cfg)


@register("depthwise_conv", _is_depthwise)
def depthwise_conv(cfg: ConfigSpace) -> None:
    """Channels are the vectors, pixels of a row the rows; the window is unrolled or not."""
    cfg.inline()
    spatial = cfg.spatial(cfg.main)
    _tiled(cfg, spatial[-2], spatial[:1], channels=False)
    _pack_weights(cfg)


def _is_transposed(cfg: ConfigSpace) -> bool:
    """[n, h, ph, w, pw, co]: pixels by phase, as a transposed convolution has them."""
    s, r = cfg.spatial(cfg.main), cfg.reduction(cfg.main)
    return _reuses(cfg) and len(s) == 6 and len(r) == 3


@register("conv_transpose", _is_transposed)
def conv_transpose(cfg: ConfigSpace) -> None:
    """Every phase is a convolution of its own, with its own part of the weights."""
    cfg.inline()
    n, h, ph, w, pw, _ = cfg.spatial(cfg.main)
    _tiled(cfg, w, [n, ph, pw, h])
    _pack_weights(cfg)


def _is_capsule(cfg: ConfigSpace) -> bool:
    """[n, h, w, i, j, co] with a window, the capsule's inner axis and channels."""
    s, r = cfg.spatial(cfg.main), cfg.reduction(cfg.main)
    return _reuses(cfg) and len(s) == 6 and len(r) == 4


@register("capsule_conv", _is_capsule)
def capsule_conv(cfg: ConfigSpace) -> None:
    """Rows of the capsules' matrices, or pixels, are the rows of the tile."""
    cfg.inline()
    n, h, w, i, j, _ = cfg.spatial(cfg.main)
    row, outer = cfg.define_knob(((w, [n, i, j, h]), (i, [n, j, h, w])))
    _tiled(cfg, row, outer)
    _pack_weights(cfg)


def size(sketches: list[Sketch]) -> int:
    """How many programs a space has."""
    return sum(math.prod(len(h.options) for h in s.holes) for s in sketches)
