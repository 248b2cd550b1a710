"""A builder of LLVM IR as text: types, values, instructions, functions, modules.

In: calls of an `IRBuilder`, one for each instruction. Out: `str(module)`, the text that LLVM
parses. An instruction is a line of its block from the start; a value is its type and its name.
Nothing is checked here: LLVM's parser and verifier do that. Types are made once, so equal types are
the same object, and comparisons are by identity.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from itertools import count
from typing import Any

MOST_TEXTS = 4096  # of constants of one type that are kept
MOST_TIMES = 1 << 30  # that a branch is said to be taken


class Type:
    """A type: its text, and `short`, which names of intrinsics have in its place ("f32").

    `element` and `count` are those of vectors and arrays; other types are one element.
    """

    __slots__ = ("_texts", "_vectors", "count", "element", "short", "text")

    def __init__(self, text: str, short: str = "") -> None:
        self.text, self.short = text, short
        self.element, self.count = self, 1
        self._vectors: dict[int, VectorType] = {}
        self._texts: dict[str, str] = {}

    def __str__(self) -> str:
        return self.text

    def __call__(self, value: Any) -> Constant:
        """A constant of this type, see `constant_text`."""
        key = repr(value)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= MOST_TEXTS:
                self._texts.clear()
            text = self._texts[key] = self.constant_text(value)
        return Constant(self, text, value)

    def constant_text(self, value: Any) -> str:
        """A constant as operands have it, without the type; None is zero or null."""
        return "null" if value is None else str(value)


class IntType(Type):
    __slots__ = ("width",)

    def __init__(self, width: int) -> None:
        super().__init__(f"i{width}", f"i{width}")
        self.width = width

    def __call__(self, value: Any) -> Constant:
        return Constant(self, self.constant_text(value), value)

    def constant_text(self, value: Any) -> str:
        return str(int(value or 0))


class FloatType(Type):
    """A floating-point type; `code` is its format in `struct`."""

    __slots__ = ("code",)

    def __init__(self, text: str, short: str, code: str) -> None:
        super().__init__(text, short)
        self.code = code

    def constant_text(self, value: Any) -> str:
        number = 0.0 if value is None else float(value)  # -0.0 is another constant than 0.0
        (rounded,) = struct.unpack(self.code, struct.pack(self.code, number))
        return f"0x{int.from_bytes(struct.pack('>d', rounded)):016x}"


class VectorType(Type):
    __slots__ = ()

    def __init__(self, element: Type, lanes: int) -> None:
        super().__init__(f"<{lanes} x {element.text}>", f"v{lanes}{element.short}")
        self.element, self.count = element, lanes

    def constant_text(self, value: Any) -> str:
        """`value` is a number for all lanes, or a list with one for each."""
        if value is None:
            return "zeroinitializer"
        lanes = value if isinstance(value, list) else [value]
        texts = [self.element.constant_text(v) for v in lanes]
        if any(t != texts[0] for t in texts):
            return f"<{', '.join([f'{self.element.text} {t}' for t in texts])}>"
        zero = texts[0] == self.element.constant_text(0)
        return "zeroinitializer" if zero else f"splat ({self.element.text} {texts[0]})"


class ArrayType(Type):
    __slots__ = ()

    def __init__(self, element: Type, size: int) -> None:
        super().__init__(f"[{size} x {element.text}]")
        self.element, self.count = element, size

    def constant_text(self, value: Any) -> str:
        """`value` is None for zeros, or a number for all elements."""
        if value is None:
            return "zeroinitializer"
        return f"[{', '.join([self.element(value).typed] * self.count)}]"

    def of(self, parts: Sequence[Value]) -> Constant:
        """The constant with these elements."""
        return Constant(self, f"[{', '.join([p.typed for p in parts])}]")


class StructType(Type):
    __slots__ = ()

    def __init__(self, parts: Sequence[Type]) -> None:
        super().__init__(f"{{{', '.join([p.text for p in parts])}}}")

    def of(self, parts: Sequence[Value]) -> Constant:
        """The constant with these parts."""
        return Constant(self, f"{{{', '.join([p.typed for p in parts])}}}")


class FunctionType:
    __slots__ = ("args", "result", "text", "var_arg")

    def __init__(self, result: Type, args: Sequence[Type], var_arg: bool = False) -> None:
        self.result, self.args, self.var_arg = result, args, var_arg
        listed = [a.text for a in args] + ["..."] * var_arg
        self.text = f"{result.text} ({', '.join(listed)})"


VOID, PTR = Type("void"), Type("ptr", "p0")
_INTEGERS = {n: IntType(n) for n in (1, 8, 16, 32, 64)}
I1, I8, I16, I32, I64 = _INTEGERS.values()
HALF, FLOAT, DOUBLE = (
    FloatType(text, short, code)
    for text, short, code in (("half", "f16", "e"), ("float", "f32", "f"), ("double", "f64", "d"))
)
BFLOAT = Type("bfloat", "bf16")
TILE = Type("x86_amx")  # the contents of a tile register


def integer(bits: int) -> IntType:
    """The type of integers of 1, 8, 16, 32 or 64 bits."""
    return _INTEGERS[bits]


def vector(element: Type, lanes: int) -> VectorType:
    """The type of vectors of `lanes` elements."""
    known = element._vectors.get(lanes)
    if known is None:
        known = element._vectors[lanes] = VectorType(element, lanes)
    return known


class Value:
    """A value: its type and its name; `typed` is both, as most operands are written.

    `number` and `home` are notes of `codegen.scope`.
    """

    __slots__ = ("home", "number", "text", "type", "typed")

    def __init__(self, kind: Type, text: str) -> None:
        self.type, self.text, self.typed = kind, text, f"{kind.text} {text}"
        self.number = -1
        self.home: Any = None  # a Scope


class Constant(Value):
    """A constant, which its type makes: `I64(3)`. `constant` is the Python value."""

    __slots__ = ("constant",)

    def __init__(self, kind: Type, text: str, value: Any = None) -> None:
        super().__init__(kind, text)
        self.constant = value


class Undefined(Constant):
    """Any value."""

    __slots__ = ()

    def __init__(self, kind: Type) -> None:
        super().__init__(kind, "undef")


class Argument(Value):
    """A parameter of a function; `attributes` follow its type, " noalias"."""

    __slots__ = ("attributes",)

    def __init__(self, kind: Type, text: str) -> None:
        super().__init__(kind, text)
        self.attributes = ""


class Phi(Value):
    """A phi instruction, which gets its incoming values later."""

    __slots__ = ("_incoming",)

    def __init__(self, kind: Type, text: str) -> None:
        super().__init__(kind, text)
        self._incoming: list[str] = []

    def add_incoming(self, value: Value, block: Block) -> None:
        self._incoming.append(f"[{value.text}, {block.text}]")

    def line(self) -> str:
        return f"  {self.text} = phi {self.type.text} {', '.join(self._incoming)}"


class Block:
    """A basic block. `head` are lines in front of all others."""

    __slots__ = ("function", "head", "lines", "name", "phis", "terminator", "text")

    def __init__(self, function: Function, name: str) -> None:
        self.function, self.name, self.text = function, name, f"%{name}"
        self.phis: list[Phi] = []
        self.head: list[str] = []
        self.lines: list[str] = []
        self.terminator = ""

    def all_lines(self) -> list[str]:
        phis = [phi.line() for phi in self.phis]
        return [f"{self.name}:", *phis, *self.head, *self.lines, self.terminator]


class Module:
    """A module; `globals` are its functions and variables by name, in the order of the text."""

    def __init__(self, name: str = "", triple: str = "", data_layout: str = "") -> None:
        self.name, self.triple, self.data_layout = name, triple, data_layout
        self.globals: dict[str, Function | Variable] = {}
        self._notes: dict[str, str] = {}

    def note(self, content: str) -> str:
        """A node of metadata by its reference, `!0`; equal ones are the same."""
        return self._notes.setdefault(content, f"!{len(self._notes)}")

    def __str__(self) -> str:
        lines = [f'; ModuleID = "{self.name}"']
        if self.triple:
            lines.append(f'target triple = "{self.triple}"')
        if self.data_layout:
            lines.append(f'target datalayout = "{self.data_layout}"')
        for known in self.globals.values():
            lines.extend(known.all_lines())
        lines.extend(f"{name} = {content}" for content, name in self._notes.items())
        return "\n".join([*lines, ""])


class Function(Value):
    """A function of a module: a declaration until it has blocks."""

    __slots__ = ("args", "blocks", "is_internal", "kind", "marks", "module", "name", "numbers")

    def __init__(
        self,
        module: Module,
        kind: FunctionType,
        name: str,
        *,
        internal: bool = False,
        marks: str = "",
    ) -> None:
        """`marks` are attributes of the function: "noinline"."""
        super().__init__(PTR, f'@"{name}"')
        self.module, self.kind, self.name = module, kind, name
        self.is_internal, self.marks = internal, marks
        self.numbers = count()
        self.args = [Argument(a, f"%a{next(self.numbers)}") for a in kind.args]
        self.blocks: list[Block] = []
        module.globals[name] = self

    def append_basic_block(self, name: str) -> Block:
        block = Block(self, f"{name}.{next(self.numbers)}")
        self.blocks.append(block)
        return block

    def all_lines(self) -> Iterator[str]:
        if not self.blocks:
            listed = [a.text for a in self.kind.args] + ["..."] * self.kind.var_arg
            yield f"declare {self.kind.result.text} {self.text}({', '.join(listed)})"
            return
        args = ", ".join([f"{a.type.text}{a.attributes} {a.text}" for a in self.args])
        linkage = "internal " if self.is_internal else ""
        # No exception passes through: without `nounwind`, LLVM would write tables for that.
        marks = f"{self.marks} nounwind".lstrip()
        yield f"define {linkage}{self.kind.result.text} {self.text}({args}) {marks} {{"
        for block in self.blocks:
            yield from block.all_lines()
        yield "}"


class Variable(Value):
    """A global variable of a module, with a first value."""

    __slots__ = ("_line",)

    def __init__(
        self,
        module: Module,
        name: str,
        start: Constant,
        *,
        internal: bool = False,
        constant: bool = False,
        align: int = 0,
    ) -> None:
        super().__init__(PTR, f'@"{name}"')
        linkage, kind = "internal " if internal else "", "constant" if constant else "global"
        aligned = f", align {align}" if align else ""
        self._line = f"{self.text} = {linkage}{kind} {start.typed}{aligned}"
        module.globals[name] = self

    def all_lines(self) -> Iterator[str]:
        yield self._line


@lru_cache(maxsize=MOST_TEXTS)
def _mask(order: tuple[int, ...]) -> str:
    """The order of lanes as an operand."""
    return vector(I32, len(order))(list(order)).typed


_SIGNS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
Flags = Sequence[str]


class IRBuilder:
    """Appends instructions to the blocks of one function, at the end of the `block` chosen last.

    Methods have the names of LLVM's instructions and return the value.
    """

    def __init__(self, block: Block) -> None:
        self.function, self.module = block.function, block.function.module
        self._numbers = block.function.numbers
        self.position_at_end(block)

    # ---- places -----------------------------------------------------------------------------

    def position_at_end(self, block: Block) -> None:
        """Go to the end of a block, before its terminator if it has one."""
        self.block = block
        self._lines = block.lines

    def position_at_start(self, block: Block) -> None:
        """Go in front of what is in the block, behind its phis."""
        self.block = block
        self._lines = block.head

    def append_basic_block(self, name: str) -> Block:
        return self.function.append_basic_block(name)

    def _value(self, kind: Type, code: str) -> Value:
        """The value of an instruction, which is written."""
        value = Value(kind, f"%v{next(self._numbers)}")
        self._lines.append(f"  {value.text} = {code}")
        return value

    # ---- arithmetic -------------------------------------------------------------------------

    def _binary(self, name: str, x: Value, y: Value, flags: Flags = ()) -> Value:
        text = f"%v{next(self._numbers)}"
        if flags:
            name = f"{name} {' '.join(flags)}"
        self._lines.append(f"  {text} = {name} {x.typed}, {y.text}")
        return Value(x.type, text)

    def add(self, x: Value, y: Value, flags: Flags = ()) -> Value:
        return self._binary("add", x, y, flags)

    def sub(self, x: Value, y: Value) -> Value:
        return self._binary("sub", x, y)

    def mul(self, x: Value, y: Value, flags: Flags = ()) -> Value:
        return self._binary("mul", x, y, flags)

    def sdiv(self, x: Value, y: Value) -> Value:
        return self._binary("sdiv", x, y)

    def udiv(self, x: Value, y: Value) -> Value:
        return self._binary("udiv", x, y)

    def srem(self, x: Value, y: Value) -> Value:
        return self._binary("srem", x, y)

    def urem(self, x: Value, y: Value) -> Value:
        return self._binary("urem", x, y)

    def neg(self, x: Value) -> Value:
        return self.sub(x.type(0), x)

    def fadd(self, x: Value, y: Value, flags: Flags = ()) -> Value:
        return self._binary("fadd", x, y, flags)

    def fsub(self, x: Value, y: Value, flags: Flags = ()) -> Value:
        return self._binary("fsub", x, y, flags)

    def fmul(self, x: Value, y: Value, flags: Flags = ()) -> Value:
        return self._binary("fmul", x, y, flags)

    def fdiv(self, x: Value, y: Value) -> Value:
        return self._binary("fdiv", x, y)

    def fneg(self, x: Value) -> Value:
        return self._value(x.type, f"fneg {x.typed}")

    def and_(self, x: Value, y: Value) -> Value:
        return self._binary("and", x, y)

    def or_(self, x: Value, y: Value) -> Value:
        return self._binary("or", x, y)

    def xor(self, x: Value, y: Value) -> Value:
        return self._binary("xor", x, y)

    def not_(self, x: Value) -> Value:
        return self.xor(x, x.type(-1))

    def shl(self, x: Value, y: Value) -> Value:
        return self._binary("shl", x, y)

    def lshr(self, x: Value, y: Value) -> Value:
        return self._binary("lshr", x, y)

    def ashr(self, x: Value, y: Value) -> Value:
        return self._binary("ashr", x, y)

    # ---- comparisons and choices ------------------------------------------------------------

    def _compared(self, name: str, x: Value, y: Value) -> Value:
        kind = vector(I1, x.type.count) if isinstance(x.type, VectorType) else I1
        return self._value(kind, f"{name} {x.typed}, {y.text}")

    def icmp_signed(self, sign: str, x: Value, y: Value) -> Value:
        order = "" if sign in ("==", "!=") else "s"
        return self._compared(f"icmp {order}{_SIGNS[sign]}", x, y)

    def icmp_unsigned(self, sign: str, x: Value, y: Value) -> Value:
        order = "" if sign in ("==", "!=") else "u"
        return self._compared(f"icmp {order}{_SIGNS[sign]}", x, y)

    def fcmp_ordered(self, sign: str, x: Value, y: Value) -> Value:
        """`sign` may be "ord": neither is NaN."""
        return self._compared(f"fcmp {sign if sign == 'ord' else 'o' + _SIGNS[sign]}", x, y)

    def fcmp_unordered(self, sign: str, x: Value, y: Value) -> Value:
        """`sign` may be "uno": one is NaN."""
        return self._compared(f"fcmp {sign if sign == 'uno' else 'u' + _SIGNS[sign]}", x, y)

    def select(self, flag: Value, x: Value, y: Value) -> Value:
        return self._value(x.type, f"select {flag.typed}, {x.typed}, {y.typed}")

    # ---- conversions ------------------------------------------------------------------------

    def _cast(self, name: str, x: Value, kind: Type) -> Value:
        if x.type is kind:
            return x
        return self._value(kind, f"{name} {x.typed} to {kind.text}")

    def trunc(self, x: Value, kind: Type) -> Value:
        return self._cast("trunc", x, kind)

    def zext(self, x: Value, kind: Type) -> Value:
        return self._cast("zext", x, kind)

    def sext(self, x: Value, kind: Type) -> Value:
        return self._cast("sext", x, kind)

    def fptrunc(self, x: Value, kind: Type) -> Value:
        return self._cast("fptrunc", x, kind)

    def fpext(self, x: Value, kind: Type) -> Value:
        return self._cast("fpext", x, kind)

    def fptosi(self, x: Value, kind: Type) -> Value:
        return self._cast("fptosi", x, kind)

    def sitofp(self, x: Value, kind: Type) -> Value:
        return self._cast("sitofp", x, kind)

    def uitofp(self, x: Value, kind: Type) -> Value:
        return self._cast("uitofp", x, kind)

    def bitcast(self, x: Value, kind: Type) -> Value:
        return self._cast("bitcast", x, kind)

    # ---- vectors ----------------------------------------------------------------------------

    def insert_element(self, v: Value, x: Value, lane: Value) -> Value:
        return self._value(v.type, f"insertelement {v.typed}, {x.typed}, {lane.typed}")

    def extract_element(self, v: Value, lane: Value) -> Value:
        return self._value(v.type.element, f"extractelement {v.typed}, {lane.typed}")

    def shuffle_vector(self, x: Value, y: Value, order: list[int]) -> Value:
        """Lanes of x and, behind them, of y in the order of these numbers."""
        code = f"shufflevector {x.typed}, {y.typed}, {_mask(tuple(order))}"
        return self._value(vector(x.type.element, len(order)), code)

    # ---- memory -----------------------------------------------------------------------------

    def alloca(self, kind: Type, align: int) -> Value:
        return self._value(PTR, f"alloca {kind.text}, align {align}")

    def gep(self, pointer: Value, index: Value | int, kind: Type) -> Value:
        """The address `index` elements of the type `kind` behind another."""
        by = index.typed if isinstance(index, Value) else f"i64 {index}"
        return self._value(PTR, f"getelementptr {kind.text}, {pointer.typed}, {by}")

    def load(self, pointer: Value, kind: Type, align: int = 0) -> Value:
        aligned = f", align {align}" if align else ""
        return self._value(kind, f"load {kind.text}, {pointer.typed}{aligned}")

    def store(
        self, value: Value, pointer: Value, align: int = 0, *, past_caches: bool = False
    ) -> None:
        """`past_caches`: a non-temporal store."""
        aligned = f", align {align}" if align else ""
        mark = f", !nontemporal {self.module.note('!{i32 1}')}" if past_caches else ""
        self._lines.append(f"  store {value.typed}, {pointer.typed}{aligned}{mark}")

    def fence(self, ordering: str) -> None:
        self._lines.append(f"  fence {ordering}")

    # ---- control flow -----------------------------------------------------------------------

    def branch(self, to: Block) -> None:
        self.block.terminator = f"  br label {to.text}"

    def cbranch(self, flag: Value, yes: Block, no: Block, times: int = 0) -> None:
        """With `times` `yes` is taken so often for each time that `no` is."""
        mark = ""
        if times:
            weights = f'!{{!"branch_weights", i32 {min(times, MOST_TIMES)}, i32 1}}'
            mark = f", !prof {self.module.note(weights)}"
        self.block.terminator = f"  br {flag.typed}, label {yes.text}, label {no.text}{mark}"

    def ret_void(self) -> None:
        self.block.terminator = "  ret void"

    def phi(self, kind: Type) -> Phi:
        """A phi of the block; phis stand in front of all other instructions."""
        phi = Phi(kind, f"%v{next(self._numbers)}")
        self.block.phis.append(phi)
        return phi

    def call(self, function: Function, args: Sequence[Value], flags: Flags = ()) -> Value:
        kind = function.kind
        named = kind.text if kind.var_arg else kind.result.text
        marks = "".join([f"{f} " for f in flags])
        return self._called(f"call {marks}{named} {function.text}", kind.result, args)

    def asm(self, constraint: str, result: Type, args: Sequence[Value], *, effect: bool) -> Value:
        """An empty assembly statement; with an `effect` it stays where it is."""
        kind = FunctionType(result, [a.type for a in args])
        mark = "sideeffect " if effect else ""
        return self._called(f'call {kind.text} asm {mark}"", "{constraint}"', result, args)

    def _called(self, what: str, result: Type, args: Sequence[Value]) -> Value:
        code = f"{what}({', '.join([a.typed for a in args])})"
        if result is not VOID:
            return self._value(result, code)
        self._lines.append(f"  {code}")
        return Value(VOID, "")

    @contextmanager
    def if_then(self, flag: Value) -> Iterator[None]:
        """What is emitted inside runs where the flag is set."""
        then, end = self.append_basic_block("if"), self.append_basic_block("endif")
        self.cbranch(flag, then, end)
        with self._arm(then, end):
            yield
        self.position_at_end(end)

    @contextmanager
    def if_else(
        self, flag: Value
    ) -> Iterator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """Two places for code: where the flag is set, and where not."""
        then, other, end = (self.append_basic_block(n) for n in ("if", "else", "endif"))
        self.cbranch(flag, then, other)
        yield self._arm(then, end), self._arm(other, end)
        self.position_at_end(end)

    @contextmanager
    def _arm(self, block: Block, end: Block) -> Iterator[None]:
        self.position_at_end(block)
        yield
        self.branch(end)
