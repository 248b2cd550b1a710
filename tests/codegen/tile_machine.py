"""A matrix unit in numpy: runs the tile instructions of a kernel on a CPU that has none.

The kernel's LLVM IR stays as it is but for its tile instructions, which become calls of the
functions below: they follow the pseudocode of Intel's manual, with the contents of a tile register
as 16 rows of 64 bytes.
"""

import ctypes
import re
from typing import Any

import numpy as np

from ansorlite.codegen.build import SYMBOL, image_of
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.emit import emit_module
from ansorlite.codegen.kernel import Kernel
from ansorlite.ir.program import Program
from ansorlite.ir.specialize import specialize
from ansorlite.target import Target

ROWS, ROW_BYTES = 16, 64
HELD = "<256 x i32>"
I16, I64, AT = ctypes.c_int16, ctypes.c_int64, ctypes.c_void_p


def _memory(at: int, rows: int, row_bytes: int, stride: int) -> Any:
    """The bytes [rows, row_bytes] at an address, writeable."""
    size = (rows - 1) * stride + row_bytes
    flat = np.frombuffer((ctypes.c_uint8 * size).from_address(at), np.uint8)
    return np.lib.stride_tricks.as_strided(flat, (rows, row_bytes), (stride, 1), writeable=True)


def _tile(at: int) -> Any:
    return _memory(at, ROWS, ROW_BYTES, ROW_BYTES)


class TileMachine:
    """Counts what ran in `executed`: (instruction, shape) -> times."""

    def __init__(self) -> None:
        self.executed: dict[tuple[Any, ...], int] = {}
        self._kept = {
            "load": ctypes.CFUNCTYPE(None, I16, I16, AT, I64, AT)(self._load),
            "store": ctypes.CFUNCTYPE(None, I16, I16, AT, I64, AT)(self._store),
            **{
                name: ctypes.CFUNCTYPE(None, I16, I16, I16, AT, AT, AT)(self._product(name))
                for name in ("tdpbf16ps", "tdpbusd", "tdpbsud")
            },
        }

    def _note(self, *what: Any) -> None:
        self.executed[what] = self.executed.get(what, 0) + 1

    def _load(self, rows: int, row_bytes: int, at: int, stride: int, to: int) -> None:
        tile = _tile(to)
        tile[:] = 0
        tile[:rows, :row_bytes] = _memory(at, rows, row_bytes, stride)
        self._note("tileload", rows, row_bytes)

    def _store(self, rows: int, row_bytes: int, at: int, stride: int, tile: int) -> None:
        _memory(at, rows, row_bytes, stride)[:] = _tile(tile)[:rows, :row_bytes]

    def _product(self, name: str) -> Any:
        def run(m: int, n: int, k: int, total: int, left: int, right: int) -> None:
            rows, columns, words = m, n // 4, k // 4
            a, b = _tile(left)[:rows, :k], _tile(right)[:words, :n]
            if name == "tdpbf16ps":
                out = _tile(total).view(np.float32)[:rows, :columns]
                x, y = (
                    (v.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for v in (a, b)
                )
                depth = 2
            else:
                signs = {"tdpbusd": (np.uint8, np.int8), "tdpbsud": (np.int8, np.uint8)}[name]
                out = _tile(total).view(np.int32)[:rows, :columns]
                x, y = (v.view(d).astype(np.int32) for v, d in zip((a, b), signs, strict=True))
                depth = 4
            for w in range(words):
                for d in range(depth):
                    out += np.outer(x[:, depth * w + d], y[w, d::depth])
            self._note(name, m, n, k)

        return run

    def _defined(self, name: str, arguments: str, passed: str, result: str) -> str:
        """LLVM IR of a function that hands its tiles to Python in memory."""
        address = ctypes.cast(self._kept[name], ctypes.c_void_p).value
        tiles = re.findall(rf"{HELD} (%\w+)", arguments)
        lines = [f"  {t}.at = alloca {HELD}, align 64" for t in (*tiles, "%out")]
        lines += [f"  store {HELD} {t}, ptr {t}.at" for t in tiles]
        lines += [f"  %f = inttoptr i64 {address} to ptr", f"  call void %f({passed})"]
        if result == "void":
            lines.append("  ret void")
        else:
            at = "%c.at" if tiles else "%out.at"
            lines += [f"  %r = load {HELD}, ptr {at}", f"  ret {HELD} %r"]
        return (
            f"define internal {result} @tile.{name}({arguments}) noinline {{\n"
            + "\n".join(lines)
            + "\n}\n"
        )

    def runnable(self, text: str) -> str:
        """LLVM IR with calls of this machine in place of tile instructions."""
        names = {"tileloadd64": "load", "tilestored64": "store"}
        lines = [x for x in text.splitlines() if not re.match(r'declare .*@"llvm\.x86\.t', x)]
        body = "\n".join(lines).replace("x86_amx", HELD)
        body = re.sub(
            r'@"llvm\.x86\.(\w+)\.internal"', lambda m: f"@tile.{names.get(m[1], m[1])}", body
        )
        memory, place = "i16 %m, i16 %n, ptr %p, i64 %s", "i16 %m, i16 %n, ptr %p, i64 %s, ptr"
        given = f"i16 %m, i16 %n, i16 %k, {HELD} %c, {HELD} %a, {HELD} %b"
        passed = "i16 %m, i16 %n, i16 %k, ptr %c.at, ptr %a.at, ptr %b.at"
        parts = [
            self._defined("load", memory, f"{place} %out.at", HELD),
            self._defined("store", f"{memory}, {HELD} %c", f"{place} %c.at", "void"),
            *(self._defined(n, given, passed, HELD) for n in self._kept if n.startswith("tdp")),
        ]
        return body + "\n" + "\n".join(parts)

    def run(self, program: Program, target: Target, inputs: dict[str, Any]) -> Any:
        """The only output of the program, compiled for `target` but for its tile instructions."""
        host = Target.detect()
        text = self.runnable(emit_module(specialize(program), target, SYMBOL))
        code = compile_module(text, host)
        kernel = Kernel(program, host, image_of(program, code, host, SYMBOL, frozenset()))
        return kernel(*(inputs[p.name] for p in kernel.inputs))
