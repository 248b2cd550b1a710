"""Concrete program -> `KernelImage`; also the entry function of the build workers.

A `BuildRequest` names a shared program with holes and the values of the holes. The worker fills the
holes, so the request is the only object that the tuner makes per candidate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansorlite.codegen.compile import (
    Passes,
    assembly,
    compile_module,
    compile_shown,
    optimized_ir,
)
from ansorlite.codegen.emit import argument_slots, emit_module, workspace_bytes
from ansorlite.codegen.hot_loop import look
from ansorlite.codegen.image import KernelImage, Param, Role
from ansorlite.codegen.spans import Spans, spans
from ansorlite.errors import BuildError
from ansorlite.ir.expr import Const, Expr
from ansorlite.ir.inside import verify_inside
from ansorlite.ir.interpret import concrete_layout
from ansorlite.ir.program import Program, all_buffers, stores_under, verify
from ansorlite.ir.specialize import specialize
from ansorlite.ir.traverse import loads
from ansorlite.schedule.lower import fill
from ansorlite.settings import settings
from ansorlite.target import Target

SYMBOL = "ansorlite_kernel"


@dataclass(frozen=True)
class BuildRequest:
    """Fill the shared program `program` with `values` (hole name -> values), then compile.

    With `looked` the image has a `Look` at the assembly; with `kept` it is taken from the objects
    that are kept on disk, or put there (`codegen.object_cache`).
    """

    program: str
    values: dict[str, tuple[int, ...]]
    target: Target
    looked: bool = False
    kept: bool = False


def build_request(request: BuildRequest, shared: Mapping[str, Any]) -> KernelImage:
    """Entry function of the build workers; raises BuildError or ScheduleError.

    `shared` maps the keys of programs to the programs (see `measure.builder`).
    """
    program = fill(shared[request.program], request.values)
    if request.kept and not request.looked:
        from ansorlite.codegen.object_cache import compiled  # which imports this module

        return compiled(program, request.target)
    return build_program(program, request.target, looked=request.looked)


def build_program(
    program: Program,
    target: Target,
    symbol: str = SYMBOL,
    *,
    looked: bool = False,
) -> KernelImage:
    """Compile a concrete program (no holes); raises BuildError where it cannot be compiled.

    `looked`: the image has a `Look` at the assembly of the same code.

    Example: `load_image(build_program(lower(state), Target.detect()))`.
    """
    ready = specialize(program)
    if settings().verify:
        verify(ready)
        verify_inside(ready)
    text, shown = emit_module(ready, target, symbol), None
    if looked:
        code, lines = compile_shown(text, target, passes=passes_for(ready))
        shown = look(lines, target.arch)
    else:
        code = compile_module(text, target, passes=passes_for(ready))
    params = kernel_params(program)
    read = {x.tensor for store, _ in stores_under(ready.body) for x in loads(store.value)}
    unread = frozenset(p.name for p in params if p.role in ("constant", "derived")) - read
    touched: tuple[Spans | None, ...] = ()
    if target.cores > 1:
        touched = spans(ready, argument_slots(ready), target.cores)
    return replace(image_of(program, code, target, symbol, unread), look=shown, spans=touched)


def image_of(
    program: Program, code: bytes, target: Target, symbol: str, unread: frozenset[str]
) -> KernelImage:
    """The image of a program's object code; `unread` as in `KernelImage`."""
    params, cpu, features = kernel_params(program), target.cpu, target.features
    return KernelImage(
        code,
        symbol,
        params,
        target.triple,
        cpu,
        program.bound,
        unread,
        features=features,
        has_steps=True,
    )


def llvm_ir(program: Program, target: Target, optimized: bool = True) -> str:
    """LLVM IR text of a concrete program, after LLVM's passes or (not `optimized`) before them."""
    ready = specialize(program)
    text = emit_module(ready, target, SYMBOL)
    return optimized_ir(text, target, passes=passes_for(ready)) if optimized else text


def kernel_assembly(program: Program, target: Target) -> str:
    """Assembly text of a concrete program for the target."""
    ready = specialize(program)
    return assembly(emit_module(ready, target, SYMBOL), target, passes=passes_for(ready))


def passes_for(ready: Program) -> Passes:
    """All of LLVM's passes where a reduction loop accumulates in memory, else a few passes.

    LLVM's loop passes keep such an accumulator in a register during the loop.
    """
    scopes = {b.name: b.scope for b in all_buffers(ready)}
    in_memory = any(
        s.combiner and scopes[s.buffer] != "register" and any(lp.reduce for lp in loops)
        for s, loops in stores_under(ready.body)
    )
    return "all" if in_memory else "few"


def kernel_params(program: Program) -> tuple[Param, ...]:
    """Parameters of the entry point: inputs and constants, outputs, then the workspace if any."""
    params: list[Param] = []
    for b in program.params:
        role: Role = "input" if b.role == "temp" else b.role
        params.append(Param(b.name, _ints(b.logical, b.name), b.dtype, role, concrete_layout(b)))
    size = workspace_bytes(program)
    if size:
        # float32: checked runs poison the workspace, so a read before any write gives NaN
        params.append(Param("workspace", (-(-size // 4),), "float32", "workspace"))
    return tuple(params)


def _ints(shape: tuple[Expr, ...], name: str) -> tuple[int, ...]:
    if not all(isinstance(e, Const) for e in shape):
        raise BuildError(f"buffer {name} has the shape {tuple(map(str, shape))}: fill the holes")
    return tuple(int(e.value) for e in shape if isinstance(e, Const))
