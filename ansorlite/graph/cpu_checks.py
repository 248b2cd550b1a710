"""Features that a saved network's kernels need, and the C code that looks for them.

In: the `Target` of a set of kernels. Out: words of /proc/cpuinfo, which the manifest lists and
Python compares, and rows of network.c's table, which asks the CPU itself (CPUID, and XGETBV for
what the system has to save; on Arm under Linux the auxiliary vector). Features that no compiler
uses unasked are left out.
"""

from collections.abc import Sequence

from ansorlite.deployed import cpu_flags
from ansorlite.presets import ARM_FLAGS, X86_FLAGS
from ansorlite.target import Target

# Registers that the system saves, as bits of XCR0: AVX's, AVX-512's.
_YMM, _ZMM = 0x6, 0xE6
EAX, EBX, ECX, EDX = range(4)
# Word of /proc/cpuinfo: leaf and subleaf of CPUID, register, bit, bits of XCR0.
X86: dict[str, tuple[int, int, int, int, int]] = {
    "pni": (1, 0, ECX, 0, 0),
    "pclmulqdq": (1, 0, ECX, 1, 0),
    "ssse3": (1, 0, ECX, 9, 0),
    "fma": (1, 0, ECX, 12, _YMM),
    "cx16": (1, 0, ECX, 13, 0),
    "sse4_1": (1, 0, ECX, 19, 0),
    "sse4_2": (1, 0, ECX, 20, 0),
    "movbe": (1, 0, ECX, 22, 0),
    "popcnt": (1, 0, ECX, 23, 0),
    "aes": (1, 0, ECX, 25, 0),
    "avx": (1, 0, ECX, 28, _YMM),
    "f16c": (1, 0, ECX, 29, _YMM),
    "bmi1": (7, 0, EBX, 3, 0),
    "avx2": (7, 0, EBX, 5, _YMM),
    "bmi2": (7, 0, EBX, 8, 0),
    "avx512f": (7, 0, EBX, 16, _ZMM),
    "avx512dq": (7, 0, EBX, 17, _ZMM),
    "adx": (7, 0, EBX, 19, 0),
    "avx512ifma": (7, 0, EBX, 21, _ZMM),
    "avx512cd": (7, 0, EBX, 28, _ZMM),
    "sha_ni": (7, 0, EBX, 29, 0),
    "avx512bw": (7, 0, EBX, 30, _ZMM),
    "avx512vl": (7, 0, EBX, 31, _ZMM),
    "avx512vbmi": (7, 0, ECX, 1, _ZMM),
    "avx512_vbmi2": (7, 0, ECX, 6, _ZMM),
    "gfni": (7, 0, ECX, 8, 0),
    "vaes": (7, 0, ECX, 9, _YMM),
    "vpclmulqdq": (7, 0, ECX, 10, _YMM),
    "avx512_vnni": (7, 0, ECX, 11, _ZMM),
    "avx512_bitalg": (7, 0, ECX, 12, _ZMM),
    "avx512_vpopcntdq": (7, 0, ECX, 14, _ZMM),
    "avx512_vp2intersect": (7, 0, EDX, 8, _ZMM),
    "avx512_fp16": (7, 0, EDX, 23, _ZMM),
    "avx_vnni": (7, 1, EAX, 4, _YMM),
    "avx512_bf16": (7, 1, EAX, 5, _ZMM),
    "abm": (0x80000001, 0, ECX, 5, 0),
    "sse4a": (0x80000001, 0, ECX, 6, 0),
    "3dnowprefetch": (0x80000001, 0, ECX, 8, 0),
}
# Linux on Arm: type of the auxiliary vector's entry and bit.
HWCAP: dict[str, tuple[int, int]] = {
    "asimd": (16, 1),
    "crc32": (16, 7),
    "atomics": (16, 8),
    "asimdhp": (16, 10),
    "asimdrdm": (16, 12),
    "lrcpc": (16, 15),
    "asimddp": (16, 20),
    "i8mm": (26, 13),
    "bf16": (26, 14),
}


def required(target: Target) -> list[str]:
    """Features of the target in the words of /proc/cpuinfo, those that can be looked for.

    Of this machine's own code, as far as this machine's file lists them.
    """
    if target.arch == "x86_64":
        on = {X86_FLAGS.get(f, f.replace(".", "_")) for f in target.asked} & X86.keys()
    else:
        on = {ARM_FLAGS.get(f, f) for f in target.asked} & HWCAP.keys()
    if target.is_foreign:
        return sorted(on) if target.system == "linux" else []
    return sorted(on & cpu_flags())


def c_rows(names: Sequence[str], arch: str) -> list[str]:
    """Rows of network.c's table of features: name, then where the feature is told of."""
    table: dict[str, tuple[int, ...]] = dict(X86 if arch == "x86_64" else HWCAP)
    rows = []
    for name in names:
        at = (*table[name], 0, 0, 0)[:5]
        rows.append(f'  {{"{name}", {", ".join(f"{n:#x}u" for n in at)}}}')
    return rows
