"""What the assembly of a kernel shows: its hot loop, and figures of that for a search without runs.

In: assembly text as `codegen.build.kernel_assembly` gives it, of x86-64 or AArch64. Out: the lines
of the innermost loop that does most of the arithmetic, or a `Look`: how many instructions,
multiply-adds, loads and spills that loop has, and how long the code is. A loop is a label and a
later jump back to the label; nothing is run.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

LABEL = re.compile(r"^(\.?L[\w.$]+):")
JUMP = re.compile(r"^\s+(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s.*?(\.?L[\w.$]+)\s*$")
WORK = re.compile(
    r"^\s+(?:v?(?:fn?m(?:add|sub|la|ls)|add[ps][sd]|mul[ps][sd]|max[ps][sd]|min[ps][sd])"
    r"|vpdp|vdpb|tdp)"
)
_DOT_ARM = r"(?:bfdot|us?dot|su?dot)"
WORK_ARM = re.compile(rf"^\s+(?:fml[as]|fmadd|fadd|fmul|fmax|fmin|{_DOT_ARM})\w*[\s.]")
MOST_LINES = 160
_FMA = re.compile(rf"^\s+(?:vfn?m(?:add|sub)\d*p|v(?:pdp|dpb)|(?:fml[as]|{_DOT_ARM})[.\s])")
_FMA_SCALAR = re.compile(r"^\s+(?:vfn?m(?:add|sub)\d*s|fn?m(?:add|sub)\s)")
_BY_ELEMENT = re.compile(rf"^\s+(?:fml[as]|{_DOT_ARM})\S*\s.*\[\d+\]\s*$")
_ACCUMULATOR = re.compile(
    rf"^\s+(?:fml[as]|{_DOT_ARM})\S*\s+([vqds]\d+)"
    r"|^\s+(?:vf|vpdp|vdp|tdp).*[\s,]%([xyzt]mm\d+)\s*$"
)
_MATRIX, _TILE_LOAD = re.compile(r"^\s+tdp"), re.compile(r"^\s+tileload")
_PAIR = re.compile(r"^\s+ldp\s+q")
_LOAD = re.compile(r"^\s+(?:ldu?r[bhsw]*|ldp|ld1\S*)\s|^\s+v?(?:mov|broadcast)\S*\s+[^%]*\(%")
_NARROW = re.compile(r"^\s+ld(?:u?r|p)\s+[sdxw]\d")
_BROADCAST = re.compile(r"^\s+(?:ld1r|dup)\b|^\s+vbroadcast")
_STACK = re.compile(
    r"^\s+(?:ldr|ldur|str|stur|ldp|stp)\s+[qvds]\d+.*\[sp\b|^\s+v?mov[au]p[sd]\s.*\(%r[sb]p"
)
_INSTRUCTION = re.compile(r"^\s+[a-z]")
BYTES_AN_INSTRUCTION = {"aarch64": 4}  # of x86-64 about 6 where vectors are used


@dataclass(frozen=True)
class Look:
    """The hot loop of a kernel in figures.

    `fma` are vector multiply-adds and sums of products of one iteration, `scalar_fma` those of
    single elements, `by_element` those that multiply by a lane of a register (Arm), `accumulators`
    the registers that they add to; `loads` are vectors and scalars read, a pair counted twice;
    `spills` are vectors or floats written to or read from the stack, `broadcasts` scalars copied to
    all lanes. `matrix` are products of tiles, `tile_loads` tiles read. `code_bytes` is the whole
    kernel's code, `narrow_loads` are the loads of at most 8 bytes (Arm).
    """

    instructions: int = 0
    fma: int = 0
    scalar_fma: int = 0
    by_element: int = 0
    accumulators: int = 0
    loads: int = 0
    spills: int = 0
    broadcasts: int = 0
    code_bytes: int = 0
    matrix: int = 0
    tile_loads: int = 0
    narrow_loads: int = 0

    def __str__(self) -> str:
        parts = [f"{self.instructions} instructions", f"{self.fma + self.scalar_fma} multiply-adds"]
        parts += [f"{self.accumulators} accumulators", f"{self.loads} loads"]
        return ", ".join([*parts, f"{self.spills} spills", f"{self.code_bytes} bytes of code"])


def look(assembly: str, arch: str = "aarch64") -> Look:
    """The figures of a kernel's hot loop; zeros but for the code's length where it has no loop."""
    code = sum(bool(_INSTRUCTION.match(x)) and not _is_directive(x) for x in assembly.splitlines())
    body = [x for x in _hot_lines(assembly) if _INSTRUCTION.match(x) and not _is_directive(x)]

    def count(pattern: re.Pattern[str]) -> int:
        return sum(bool(pattern.match(x)) for x in body)

    return Look(
        instructions=len(body),
        fma=count(_FMA),
        scalar_fma=count(_FMA_SCALAR),
        by_element=count(_BY_ELEMENT),
        accumulators=_accumulators(body),
        loads=count(_LOAD) + count(_PAIR),
        spills=count(_STACK),
        broadcasts=count(_BROADCAST),
        matrix=count(_MATRIX),
        tile_loads=count(_TILE_LOAD),
        code_bytes=code * BYTES_AN_INSTRUCTION.get(arch, 6),
        narrow_loads=count(_NARROW),
    )


def _accumulators(lines: Sequence[str]) -> int:
    """Registers that multiply-adds add to."""
    found = (_ACCUMULATOR.match(x) for x in lines)
    return len({m.group(1) or m.group(2) for m in found if m})


def hot_loop(assembly: str) -> tuple[str, ...]:
    """Lines from the label to the jump back; empty where there is no loop.

    Directives and comments are left out.

    Of the innermost loops the one with most accumulators counts: the rests of a tile have fewer. Of
    equals the one with most floating-point instructions, then the longest. A loop of more than 160
    lines loses its middle.

    >>> hot_loop(".LBB0_1:\\n\\tvaddps %ymm0, %ymm1, %ymm1\\n\\tjne .LBB0_1\\n")[0]
    '.LBB0_1:'
    """
    body = tuple(x.expandtabs(8) for x in _hot_lines(assembly) if not _is_directive(x))
    if len(body) <= MOST_LINES:
        return body
    half = MOST_LINES // 2
    return (*body[:half], f"        ... {len(body) - 2 * half} lines ...", *body[-half:])


def _hot_lines(assembly: str) -> list[str]:
    """All lines of the hot loop."""
    lines = [
        line.split("#")[0].rstrip() if "\t#" in line else line for line in assembly.splitlines()
    ]
    places = {m.group(1): n for n, line in enumerate(lines) if (m := LABEL.match(line))}
    loops = []
    for end, line in enumerate(lines):
        jump = JUMP.match(line)
        begin = places.get(jump.group(1), end) if jump else end
        if begin < end:
            loops.append((begin, end))
    innermost = [
        (begin, end)
        for begin, end in loops
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops)
    ]
    if not innermost:
        return []
    begin, end = max(innermost, key=lambda span: _rank(lines[span[0] : span[1] + 1]))
    return lines[begin : end + 1]


def _rank(loop: Sequence[str]) -> tuple[int, int, int]:
    """Accumulators, floating-point instructions, lines."""
    return (
        _accumulators(loop),
        sum(bool(WORK.match(x) or WORK_ARM.match(x)) for x in loop),
        len(loop),
    )


def _is_directive(line: str) -> bool:
    """Is it a directive, or a comment alone (LLVM's around an assembly statement)?"""
    text = line.strip()
    if not text or text.startswith(("//", ";")):
        return True
    return line.startswith(("\t.", " ")) and text.startswith(".")
