"""Operations of tapes as native loops, compiled once in each process.

In: a table of values, float64[rows, PART], and runs of operations of one kind each. Out: the table
with their results. numpy copies the operands of a run side by side and passes over them again; here
each operand is read where it lies. The operations are those of `CODES`; each does what its numpy
function does (remainders: of finite numbers).
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ansorlite.ir.tape import Function, ceildiv, floordiv, where

PART = 32  # candidates that are kept together

_I64, _DOUBLE = ir.IntType(64), ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, PART)
_Make = Callable[..., Any]  # of a builder and the operands, <PART x double>


def _zero() -> ir.Constant:
    return ir.Constant(_VECTOR, [0.0] * PART)


def _called(b: ir.IRBuilder, name: str, x: Any) -> Any:
    """A function that LLVM knows, of each element."""
    full = f"llvm.{name}.v{PART}f64"
    known = b.module.globals.get(full)
    fn = known or ir.Function(b.module, ir.FunctionType(_VECTOR, [_VECTOR]), full)
    return b.call(fn, [x])


def _rounded(name: str) -> _Make:
    return lambda b, x, y: _called(b, name, b.fdiv(x, y))


def _remainder(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    return b.fsub(x, b.fmul(_rounded("floor")(b, x, y), y))


def _compared(test: str) -> _Make:
    def make(b: ir.IRBuilder, x: Any, y: Any) -> Any:
        ordered = b.fcmp_unordered if test == "!=" else b.fcmp_ordered
        return b.uitofp(ordered(test, x, y), _VECTOR)

    return make


def _extreme(test: str) -> _Make:
    def make(b: ir.IRBuilder, x: Any, y: Any) -> Any:  # NaN, if one of them is
        first = b.or_(b.fcmp_ordered(test, x, y), b.fcmp_unordered("uno", x, x))
        return b.select(first, x, y)

    return make


def _is_true(b: ir.IRBuilder, x: Any) -> Any:
    return b.fcmp_unordered("!=", x, _zero())


_MAKE: dict[Function, tuple[int, _Make]] = {
    np.multiply: (2, lambda b, x, y: b.fmul(x, y)),
    np.add: (2, lambda b, x, y: b.fadd(x, y)),
    np.subtract: (2, lambda b, x, y: b.fsub(x, y)),
    np.true_divide: (2, lambda b, x, y: b.fdiv(x, y)),
    np.minimum: (2, _extreme("<")),
    np.maximum: (2, _extreme(">")),
    np.absolute: (1, lambda b, x: _called(b, "fabs", x)),
    np.remainder: (2, _remainder),
    floordiv: (2, _rounded("floor")),
    ceildiv: (2, _rounded("ceil")),
    np.less: (2, _compared("<")),
    np.less_equal: (2, _compared("<=")),
    np.greater: (2, _compared(">")),
    np.greater_equal: (2, _compared(">=")),
    np.equal: (2, _compared("==")),
    np.not_equal: (2, _compared("!=")),
    np.logical_and: (2, lambda b, x, y: b.uitofp(b.and_(_is_true(b, x), _is_true(b, y)), _VECTOR)),
    np.logical_or: (2, lambda b, x, y: b.uitofp(b.or_(_is_true(b, x), _is_true(b, y)), _VECTOR)),
    np.logical_not: (1, lambda b, x: b.uitofp(b.not_(_is_true(b, x)), _VECTOR)),
    where: (3, lambda b, x, y, z: b.select(_is_true(b, x), y, z)),
}
CODES: dict[Function, int] = {fn: code for code, fn in enumerate(_MAKE)}


@cache
def operations() -> Callable[..., None]:
    """`run(table, first, begins, counts, operands, values, codes, bounds, runs)`, all addresses.

    `first`, int64[values], is the row where a value begins; of the values in their order of
    evaluation `begins` and `counts` are first rows and numbers of rows, and `operands`,
    int64[3, values], the values that they are of. Run k has the operation `codes[k]` and the values
    from `bounds[k]` to `bounds[k + 1]` in that order.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(_module())), host)
    engine.finalize_object()
    made = ctypes.CFUNCTYPE(
        None, *[ctypes.c_void_p] * 5, ctypes.c_int64, *[ctypes.c_void_p] * 2, ctypes.c_int64
    )(engine.get_function_address("run"))
    made.engine = engine  # type: ignore[attr-defined]  # which owns the code
    return made


def _module() -> ir.Module:
    module = ir.Module("tape")
    numbers = _I64.as_pointer()
    types = [_DOUBLE.as_pointer(), *[numbers] * 4, _I64, numbers, numbers, _I64]
    run = ir.Function(module, ir.FunctionType(ir.VoidType(), types), "run")
    table, first, begins, counts, operands, values, codes, bounds, runs = run.args
    b = ir.IRBuilder(run.append_basic_block("entry"))

    def at(numbers: Any, k: Any) -> Any:
        return b.load(b.gep(numbers, [k]))

    def row(k: Any) -> Any:
        place = b.gep(table, [b.mul(k, ir.Constant(_I64, PART))])
        return b.bitcast(place, _VECTOR.as_pointer())

    k, leave = _loop(b, ir.Constant(_I64, 0), runs)
    begin, end = at(bounds, k), at(bounds, b.add(k, ir.Constant(_I64, 1)))
    done = run.append_basic_block("done")
    choice = b.switch(at(codes, k), done)
    for code, (arity, make) in enumerate(_MAKE.values()):
        choice.add_case(code, own := run.append_basic_block(f"operation{code}"))
        b.position_at_end(own)
        v, next_value = _loop(b, begin, end)
        places = [b.add(v, b.mul(values, ir.Constant(_I64, n))) for n in range(arity)]
        given, to = [at(first, at(operands, p)) for p in places], at(begins, v)
        part, next_part = _loop(b, ir.Constant(_I64, 0), at(counts, v))
        made = make(b, *(b.load(row(b.add(g, part)), align=8) for g in given))
        b.store(made, row(b.add(to, part)), align=8)
        next_part()
        next_value()
        b.branch(done)
    b.position_at_end(done)
    leave()
    b.ret_void()
    return module


def _loop(b: ir.IRBuilder, begin: Any, end: Any) -> tuple[Any, Callable[[], None]]:
    """The iterator of a loop whose body is built next, and what ends that body."""
    before, head = b.block, b.append_basic_block("head")
    body, after = b.append_basic_block("body"), b.append_basic_block("after")
    b.branch(head)
    b.position_at_end(head)
    iterator = b.phi(_I64)
    iterator.add_incoming(begin, before)
    b.cbranch(b.icmp_signed("<", iterator, end), body, after)
    b.position_at_end(body)

    def close() -> None:
        iterator.add_incoming(b.add(iterator, ir.Constant(_I64, 1)), b.block)
        b.branch(head)
        b.position_at_end(after)

    return iterator, close
