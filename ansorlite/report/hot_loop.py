"""The hot loop of a kernel's assembly: the innermost loop that does most of the arithmetic.

In: assembly text as `codegen.build.kernel_assembly` gives it. Out: the lines of one loop. A
loop is a label and a later jump back to the label; nothing is run.
"""

import re

LABEL = re.compile(r"^(\.?L[\w.$]+):")
JUMP = re.compile(r"^\s+(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s.*?(\.?L[\w.$]+)\s*$")
WORK = re.compile(
    r"^\s+v?(?:fn?m(?:add|sub|la|ls)|add[ps][sd]|mul[ps][sd]|max[ps][sd]|min[ps][sd])"
)
WORK_ARM = re.compile(r"^\s+(?:fml[as]|fmadd|fadd|fmul|fmax|fmin)\w*\s")
MOST_LINES = 160


def hot_loop(assembly: str) -> tuple[str, ...]:
    """Lines from the label to the jump back, without directives; empty where there is no loop.

    Of the innermost loops the one with most floating-point instructions counts, of equals the
    longest. A loop of more than 160 lines loses its middle.

    >>> hot_loop(".LBB0_1:\\n\\tvaddps %ymm0, %ymm1, %ymm1\\n\\tjne .LBB0_1\\n")[0]
    '.LBB0_1:'
    """
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
        return ()
    begin, end = max(innermost, key=lambda span: (_work(lines, *span), span[1] - span[0]))
    body = tuple(line.expandtabs(8) for line in lines[begin : end + 1] if not _is_directive(line))
    if len(body) <= MOST_LINES:
        return body
    half = MOST_LINES // 2
    return (*body[:half], f"        ... {len(body) - 2 * half} lines ...", *body[-half:])


def _work(lines: list[str], begin: int, end: int) -> int:
    return sum(bool(WORK.match(x) or WORK_ARM.match(x)) for x in lines[begin : end + 1])


def _is_directive(line: str) -> bool:
    return not line.strip() or (line.startswith(("\t.", " ")) and line.strip().startswith("."))
