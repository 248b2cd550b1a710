"""Kernels that measure a machine's limits: multiply-adds, sums of products, copies and reads.

In: a `Target`. Out: `KernelImage`s that `measure.peak` runs. The first parameter of each kernel
holds the amount of work and the number of threads, so one image serves all measurements. These
kernels use the compiler, loader and threads of all other kernels, so the limits are limits that a
kernel of this package can reach.
"""

from collections.abc import Callable
from typing import TypeAlias

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.dot import accumulated
from ansorlite.codegen.emit_index import declared
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.ir_text import FLOAT, I32, I64, PTR, VOID
from ansorlite.ir.packed import PACKED
from ansorlite.target import Target

Value: TypeAlias = ir.Value

READS = 8  # vectors read in one step, each added to a separate sum


def fma_accumulators(target: Target) -> int:
    """Number of independent sums that hides the FMA latency (4 cycles, 2 or more pipes).

    At least two vector registers stay free for the operands.
    """
    return 12 if target.vector_registers < 32 else 24


def fma_kernel(target: Target) -> KernelImage:
    """`work[0]` iterations on each of `work[1]` threads, of `fma_accumulators` vector FMAs each.

    Parameters: work int64[2], operands float32[2, lanes] (factor and summand), out
    float32[cores, lanes], to which every thread that ran writes its sum. A thread executes
    2 * lanes * accumulators operations per iteration. `work[1]` is at most the target's cores.
    """
    lanes = target.lanes("float32")
    vector = ir.vector(FLOAT, lanes)

    def step(b: ir.IRBuilder, total: Value, factor: Value, summand: Value) -> Value:
        fma = declared(b.module, f"llvm.fmuladd.v{lanes}f32", vector, [vector] * 3)
        return b.call(fma, [total, factor, summand])

    return _sums_kernel("fma", target, "float32", "float32", step)


def dot_kernel(target: Target, op: str) -> KernelImage:
    """Like `fma_kernel`, with the target's code for sums of packed products `op` ("dot_bf16").

    Parameters: work int64[2], operands int32[2, lanes] (both factors, packed), out [cores, lanes]
    of the sum's dtype. A thread executes 2 * depth * lanes * accumulators operations per iteration.
    """

    def step(b: ir.IRBuilder, total: Value, x: Value, y: Value) -> Value:
        return accumulated(b, op, total, x, y, target)

    return _sums_kernel(op, target, PACKED[op].dtype, "int32", step)


def _sums_kernel(
    symbol: str,
    target: Target,
    dtype: str,
    operand: str,
    step: Callable[[ir.IRBuilder, Value, Value, Value], Value],
) -> KernelImage:
    """A loop over independent sums in registers; `step(b, sum, first, second)` is the next sum."""
    lanes = target.lanes("float32")
    kinds = {"float32": FLOAT, "int32": I32}
    vector, given = (ir.vector(kinds[d], lanes) for d in (dtype, operand))
    module, b, args, (iterations, _) = _threaded(symbol)
    operands, out = _argument(b, args, 1), _argument(b, args, 2)
    first = b.load(operands, given, align=4)
    second = b.load(_at(b, operands, given, I64(1)), given, align=4)
    start, loop, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    sums = [b.phi(vector) for _ in range(fma_accumulators(target))]
    nexts = [step(b, s, first, second) for s in sums]
    following = b.add(i, I64(1))
    b.cbranch(b.icmp_signed("<", following, iterations), loop, done)
    i.add_incoming(I64(0), start)
    i.add_incoming(following, loop)
    for k, (s, after) in enumerate(zip(sums, nexts, strict=True)):
        number = float(k) if dtype == "float32" else k
        s.add_incoming(vector(number), start)
        s.add_incoming(after, loop)
    b.position_at_end(done)
    total = nexts[0]
    for after in nexts[1:]:
        total = b.fadd(total, after) if dtype == "float32" else b.add(total, after)
    b.store(total, _at(b, out, vector, b.function.args[1]), align=4)
    b.ret_void()
    params = (
        Param("work", (2,), "int64", "input"),
        Param("operands", (2, lanes), operand, "input"),
        Param("out", (target.cores, lanes), dtype, "output"),
    )
    return _image(module, symbol, params, target)


def copy_kernel(target: Target, n: int) -> KernelImage:
    """y = scale * x on the first `work[0]` vectors, `work[2]` times, on `work[1]` threads.

    Each thread copies one even part of the vectors, the same part each time. Parameters: work
    int64[3], scale float32[lanes], x and y float32[n]. The multiplication keeps LLVM from calling
    memcpy, which uses streaming stores that ordinary kernels do not use.
    """
    vector = ir.vector(FLOAT, target.lanes("float32"))
    module, b, args, (vectors, _) = _threaded("copy")
    scale = b.load(_argument(b, args, 1), vector, align=4)
    x, y = _argument(b, args, 2), _argument(b, args, 3)

    def step(i: Value, _: list[Value]) -> list[Value]:
        scaled = b.fmul(b.load(_at(b, x, vector, i), vector, align=4), scale)
        b.store(scaled, _at(b, y, vector, i), align=4)
        return []

    _sweeps(b, args, vectors, [], step)
    b.ret_void()
    params = (
        Param("work", (3,), "int64", "input"),
        Param("scale", (target.lanes("float32"),), "float32", "input"),
        Param("x", (n,), "float32", "input"),
        Param("y", (n,), "float32", "output"),
    )
    return _image(module, "copy", params, target)


def read_kernel(target: Target, n: int) -> KernelImage:
    """Reads the first `work[0]` groups of READS vectors, `work[2]` times, on `work[1]` threads.

    Parameters: work int64[3], x float32[n], out float32[cores, lanes], to which every thread writes
    the sum of its elements.
    """
    lanes = target.lanes("float32")
    vector = ir.vector(FLOAT, lanes)
    module, b, args, (groups, _) = _threaded("read")
    x, out = _argument(b, args, 1), _argument(b, args, 2)

    def step(i: Value, sums: list[Value]) -> list[Value]:
        first = b.mul(i, I64(READS))
        places = [_at(b, x, vector, b.add(first, I64(k))) for k in range(READS)]
        return [b.fadd(s, b.load(p, vector, align=4)) for s, p in zip(sums, places, strict=True)]

    zero = vector(None)
    total, *sums = _sweeps(b, args, groups, [zero] * READS, step)
    for s in sums:
        total = b.fadd(total, s)
    thread = b.function.args[1]
    b.store(total, _at(b, out, vector, thread), align=4)
    b.ret_void()
    params = (
        Param("work", (3,), "int64", "input"),
        Param("x", (n,), "float32", "input"),
        Param("out", (target.cores, lanes), "float32", "output"),
    )
    return _image(module, "read", params, target)


def _sweeps(
    b: ir.IRBuilder,
    args: Value,
    steps: Value,
    starts: list[Value],
    step: Callable[[Value, list[Value]], list[Value]],
) -> list[Value]:
    """Emit `work[2]` sweeps over this thread's even part of [0, steps).

    `step(index, carried values)` emits one iteration and returns the new carried values; `starts`
    are the first ones. Returns the carried values at the end, where the builder is then placed.
    """
    times = b.load(_at(b, _argument(b, args, 0), I64, I64(2)), I64)
    thread, threads = b.function.args[1], b.function.args[2]
    first = b.sdiv(b.mul(steps, thread), threads)
    last = b.sdiv(b.mul(steps, b.add(thread, I64(1))), threads)
    start, again = b.block, b.append_basic_block("again")
    loop, ended, done = (b.append_basic_block(n) for n in ("loop", "ended", "done"))
    b.cbranch(b.icmp_signed("<", first, last), again, done)
    b.position_at_end(again)
    time, outer = b.phi(I64), [b.phi(v.type) for v in starts]
    b.branch(loop)
    b.position_at_end(loop)
    i, inner = b.phi(I64), [b.phi(v.type) for v in starts]
    carried = step(i, list(inner))
    following = b.add(i, I64(1))
    i.add_incoming(first, again)
    i.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, last), loop, ended)
    b.position_at_end(ended)
    # LLVM must not assume that memory is unchanged between sweeps and skip the later ones.
    b.asm("~{memory}", VOID, [], effect=True)
    later = b.add(time, I64(1))
    time.add_incoming(I64(0), start)
    time.add_incoming(later, ended)
    b.cbranch(b.icmp_signed("<", later, times), again, done)
    b.position_at_end(done)
    results = [b.phi(v.type) for v in starts]
    for k, v in enumerate(starts):
        outer[k].add_incoming(v, start)
        outer[k].add_incoming(carried[k], ended)
        inner[k].add_incoming(outer[k], again)
        inner[k].add_incoming(carried[k], loop)
        results[k].add_incoming(v, start)
        results[k].add_incoming(carried[k], ended)
    return [*results]


def _threaded(symbol: str) -> tuple[ir.Module, ir.IRBuilder, Value, tuple[Value, Value]]:
    """A module whose entry point runs an (empty) body on `work[1]` threads.

    Returns (module, builder inside the body, the body's `args`, (work[0], work[1])).
    """
    module = ir.Module(symbol)
    kind = ir.FunctionType(VOID, [PTR, I64, I64])
    body = ir.Function(module, kind, f"{symbol}_body", internal=True)
    parallel = declared(module, "ansorlite_parallel", VOID, [PTR, PTR, I64])

    entry = ir.Function(module, ir.FunctionType(VOID, [PTR]), symbol)
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    _, threads = _work(b, entry.args[0])
    b.call(parallel, [body, entry.args[0], threads])
    b.ret_void()

    b = ir.IRBuilder(body.append_basic_block("entry"))
    return module, b, body.args[0], _work(b, body.args[0])


def _work(b: ir.IRBuilder, args: Value) -> tuple[Value, Value]:
    work = _argument(b, args, 0)
    return b.load(work, I64), b.load(_at(b, work, I64, I64(1)), I64)


def _argument(b: ir.IRBuilder, args: Value, index: int) -> Value:
    return b.load(_at(b, args, PTR, I64(index)), PTR)


def _at(b: ir.IRBuilder, pointer: Value, element: ir.Type, index: Value) -> Value:
    return b.gep(pointer, index, element)


def _image(
    module: ir.Module, symbol: str, params: tuple[Param, ...], target: Target
) -> KernelImage:
    code = compile_module(str(module), target)
    return KernelImage(code, symbol, params, target.triple, target.cpu)
