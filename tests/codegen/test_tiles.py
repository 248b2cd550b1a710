"""Register tiles in the assembly of every target: what the inner loop consists of."""

import re

import pytest

from ansorlite.codegen.build import kernel_assembly
from ansorlite.measure.calibrate import body_state, legal_bodies
from ansorlite.schedule.lower import lower
from ansorlite.target import PRESETS, Target

FMA = re.compile(r"\t(vfn?madd|fmla)")
BRANCH = re.compile(r"\tj[a-z]+|\t(b|b\.[a-z]+|cbn?z)\t")
STACK = re.compile(r"\(%rsp|\(%rbp|\[sp")
FULL = 0.7  # of the registers


def inner_loop(text: str) -> list[str]:
    """The instructions between labels or branches that have the most multiply-adds."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if re.match(r"[.\w]+:", line):
            blocks.append([])
        elif line.startswith("\t") and not line.startswith("\t."):
            blocks[-1].append(line)
            if BRANCH.match(line):
                blocks.append([])
    return max(blocks, key=lambda b: sum(bool(FMA.search(x)) for x in b))


def cases() -> list[tuple[str, int, int]]:
    """The large tiles of each target: those that a schedule would choose.

    Of 32 registers two must be left: LLVM loads ahead, and spills one of 31 now and then.
    """
    out = []
    for preset in PRESETS:
        target = Target.cross(preset)
        usable = target.vector_registers - (2 if target.vector_registers > 16 else 0)
        for rows, vectors in legal_bodies(target):
            live = rows * vectors + min(rows, vectors) + 1
            large = rows * vectors >= FULL * target.vector_registers and live <= usable
            if large and min(rows, vectors) > 1:
                out.append((preset, rows, vectors))
    return out


@pytest.mark.parametrize(("preset", "rows", "vectors"), cases())
def test_accumulators_stay_in_registers(preset: str, rows: int, vectors: int) -> None:
    """Nothing but multiply-adds, loads, broadcasts and the loop: no accumulator on the stack."""
    target = Target.cross(preset)
    width = vectors * target.lanes("float32")
    state = body_state(rows, width, 64, 1, 2, True, target)
    loop = inner_loop(kernel_assembly(lower(state), target))
    n = sum(bool(FMA.search(x)) for x in loop)
    assert n >= rows * vectors and n % (rows * vectors) == 0, "\n".join(loop)
    spilled = [x for x in loop if STACK.search(x)]
    assert not spilled, "\n".join(loop)
    # Per step: a load for each vector of one operand, at most a broadcast for each row.
    others = len(loop) - n
    assert others <= (rows + vectors) * (n // (rows * vectors)) + 12, "\n".join(loop)
