"""Machines by name: the fields of a `Target` for each, and how fast a core of it computes.

In: nothing. Out: `PRESETS`, the fields of `Target.cross(name)`; `TYPICAL_CORES`; `CORES`, the
throughputs of Arm cores by LLVM's name of the CPU, from the vendors' optimisation guides and public
measurements. The analytic score reads them where nothing can be measured. Sizes are in bytes.
"""

from dataclasses import dataclass
from typing import Any

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True)
class Core:
    """Throughputs of one core, in vectors of 16 bytes and cycles, and its usual clock.

    `fma` multiply-adds, `loads` vector loads and `issue` instructions per cycle; `fma_latency`
    cycles from one accumulation to the next of the same register. `beyond_l1`, `beyond_l2` and
    `beyond_l3` are bytes per cycle from the next level. `overlap` is the share of other work that
    an out-of-order core hides behind the longest kind: 0 for none.
    """

    clock_ghz: float
    fma: float
    fma_latency: float
    loads: float
    issue: float
    beyond_l1: float
    beyond_l2: float
    beyond_l3: float
    overlap: float

    @property
    def flops(self) -> float:
        """float32 operations per second of one core, at most; a multiply-add counts as two."""
        return self.clock_ghz * 1e9 * self.fma * 4 * 2


# The A53 issues two instructions in order and loads 8 bytes a cycle; the A72 has one multiply-add
# of 16 bytes a cycle.
CORES: dict[str, Core] = {
    "cortex-a53": Core(1.4, 1.0, 4.0, 0.5, 1.7, 4.0, 2.0, 2.0, 0.2),
    "cortex-a72": Core(1.5, 1.0, 3.5, 1.0, 2.6, 8.0, 4.0, 4.0, 0.6),
    "cortex-a76": Core(2.4, 2.0, 2.5, 2.0, 3.6, 24.0, 12.0, 5.0, 0.7),
    "neoverse-n1": Core(2.6, 2.0, 2.5, 2.0, 3.6, 24.0, 12.0, 6.0, 0.7),
    "neoverse-v2": Core(2.8, 4.0, 2.5, 3.0, 6.5, 40.0, 24.0, 8.0, 0.75),
    "apple-m1": Core(3.2, 4.0, 3.5, 3.0, 7.0, 48.0, 24.0, 16.0, 0.75),
}
NARROW_LOADS = ("cortex-a53",)  # cores that read 8 bytes a cycle, and issue no more beside 16
TYPICAL_CORES = {name: 4 for name in CORES}

_NEON = {"vector_bytes": 16, "vector_registers": 32}
_LINUX = {"triple": "aarch64-unknown-linux-gnu", **_NEON}
_V3 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe"
_V4 = f"{_V3},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
_ZEN3 = f"{_V3},+adx,+aes,+pclmul,+prfchw,+sha,+sse4a,+vaes,+vpclmulqdq"
_ZEN4 = (
    f"{_ZEN3},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,+avx512ifma,+avx512vbmi"
    ",+avx512vbmi2,+avx512vnni,+avx512bitalg,+avx512vpopcntdq,+avx512bf16,+gfni"
)
_X86_256 = {"triple": "x86_64-unknown-linux-gnu", "vector_bytes": 32, "vector_registers": 16}
_X86_512 = {"triple": "x86_64-unknown-linux-gnu", "vector_bytes": 64, "vector_registers": 32}
_DOT = "+neon,+crc,+lse,+rdm,+rcpc,+fullfp16,+dotprod"

# x86: one common CPU per instruction set, with the caches of a typical server core. Arm: one core
# each, with the caches of a common machine that has it. SVE is not generated: vectors are NEON's.
PRESETS: dict[str, dict[str, Any]] = {
    "x86-avx2": {
        "triple": "x86_64-unknown-linux-gnu",
        "cpu": "haswell",
        "features": "+avx2,+fma",
        "vector_bytes": 32,
        "vector_registers": 16,
        "l1_bytes": 32 * KIB,
        "l2_bytes": 512 * KIB,
        "l3_bytes": 32 * MIB,
    },
    "x86-avx512": {
        "triple": "x86_64-unknown-linux-gnu",
        "cpu": "skylake-avx512",
        "features": "+avx512f,+avx512bw,+avx512dq,+avx512vl,+fma",
        "vector_bytes": 64,
        "vector_registers": 32,
        "l1_bytes": 32 * KIB,
        "l2_bytes": 1 * MIB,
        "l3_bytes": 24 * MIB,
    },
    "sapphirerapids": {  # Xeon of the fourth generation, with AMX
        "triple": "x86_64-unknown-linux-gnu",
        "cpu": "sapphirerapids",
        "features": "+avx512f,+avx512bw,+avx512dq,+avx512vl,+fma,+avx512bf16,+avx512vnni"
        ",+amx-tile,+amx-bf16,+amx-int8",
        "vector_bytes": 64,
        "vector_registers": 32,
        "l1_bytes": 48 * KIB,
        "l2_bytes": 2 * MIB,
        "l3_bytes": 30 * MIB,
    },
    "x86-64-v3": {  # the level of the x86-64 ABI: AVX2 with all that came with it
        **_X86_256,
        "cpu": "x86-64-v3",
        "features": _V3,
        "l1_bytes": 32 * KIB,
        "l2_bytes": 512 * KIB,
        "l3_bytes": 32 * MIB,
    },
    "x86-64-v4": {  # AVX-512 as all CPUs that have it
        **_X86_512,
        "cpu": "x86-64-v4",
        "features": _V4,
        "l1_bytes": 32 * KIB,
        "l2_bytes": 1 * MIB,
        "l3_bytes": 24 * MIB,
    },
    "znver3": {
        **_X86_256,
        "cpu": "znver3",
        "features": _ZEN3,
        "l1_bytes": 32 * KIB,
        "l2_bytes": 512 * KIB,
        "l3_bytes": 32 * MIB,
    },
    "znver4": {
        **_X86_512,
        "cpu": "znver4",
        "features": _ZEN4,
        "l1_bytes": 32 * KIB,
        "l2_bytes": 1 * MIB,
        "l3_bytes": 32 * MIB,
    },
    "aarch64-neon": {
        **_LINUX,
        "cpu": "neoverse-n1",
        "features": "+neon",
        "l1_bytes": 64 * KIB,
        "l2_bytes": 1 * MIB,
        "l3_bytes": 32 * MIB,
    },
    "cortex-a53": {  # Raspberry Pi 3: ARMv8.0 without the optional cryptography
        **_LINUX,
        "cpu": "cortex-a53",
        "features": "+neon,-aes,-sha2",
        "l1_bytes": 32 * KIB,
        "l2_bytes": 512 * KIB,
        "l3_bytes": 0,
    },
    "cortex-a72": {  # Raspberry Pi 4
        **_LINUX,
        "cpu": "cortex-a72",
        "features": "+neon,-aes,-sha2",
        "l1_bytes": 32 * KIB,
        "l2_bytes": 1 * MIB,
        "l3_bytes": 0,
    },
    "cortex-a76": {  # Raspberry Pi 5
        **_LINUX,
        "cpu": "cortex-a76",
        "features": _DOT,
        "l1_bytes": 64 * KIB,
        "l2_bytes": 512 * KIB,
        "l3_bytes": 2 * MIB,
    },
    "neoverse-n1": {  # Graviton 2, Ampere Altra
        **_LINUX,
        "cpu": "neoverse-n1",
        "features": _DOT,
        "l1_bytes": 64 * KIB,
        "l2_bytes": 1 * MIB,
        "l3_bytes": 32 * MIB,
    },
    "neoverse-v2": {  # Graviton 4, Grace
        **_LINUX,
        "cpu": "neoverse-v2",
        "features": f"{_DOT},+bf16,+i8mm,-sve,-sve2",
        "l1_bytes": 64 * KIB,
        "l2_bytes": 2 * MIB,
        "l3_bytes": 36 * MIB,
    },
    "apple-m1": {  # the four fast cores, which share 12 MiB of second-level cache
        "triple": "arm64-apple-macosx11.0.0",
        **_NEON,
        "cpu": "apple-m1",
        "features": _DOT,
        "l1_bytes": 128 * KIB,
        "l2_bytes": 12 * MIB,
        "l3_bytes": 0,
        "cache_line": 128,
    },
}
# LLVM's name of a feature -> the word of /proc/cpuinfo, where these differ by more than a dot.
X86_FLAGS: dict[str, str] = {
    "avx512bf16": "avx512_bf16",
    "avx512bitalg": "avx512_bitalg",
    "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch",
    "sha": "sha_ni",
    "sse3": "pni",
}
# Implementer and part of /proc/cpuinfo -> LLVM's name. Of several clusters the last one listed here
# counts.
ARM_PARTS: dict[tuple[int, int], str] = {
    (0x41, 0xD03): "cortex-a53",
    (0x41, 0xD04): "cortex-a35",
    (0x41, 0xD05): "cortex-a55",
    (0x41, 0xD46): "cortex-a510",
    (0x41, 0xD07): "cortex-a57",
    (0x41, 0xD08): "cortex-a72",
    (0x41, 0xD09): "cortex-a73",
    (0x41, 0xD0A): "cortex-a75",
    (0x41, 0xD0B): "cortex-a76",
    (0x41, 0xD0D): "cortex-a77",
    (0x41, 0xD41): "cortex-a78",
    (0x41, 0xD47): "cortex-a710",
    (0x41, 0xD44): "cortex-x1",
    (0x41, 0xD48): "cortex-x2",
    (0x41, 0xD0C): "neoverse-n1",
    (0x41, 0xD49): "neoverse-n2",
    (0x41, 0xD40): "neoverse-v1",
    (0x41, 0xD4F): "neoverse-v2",
    (0x61, 0x022): "apple-m1",  # Icestorm and Firestorm, under Linux
    (0x61, 0x023): "apple-m1",
}
# LLVM's name of a feature -> the word of /proc/cpuinfo.
ARM_FLAGS: dict[str, str] = {
    "neon": "asimd",
    "crc": "crc32",
    "lse": "atomics",
    "rdm": "asimdrdm",
    "rcpc": "lrcpc",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "bf16": "bf16",
    "i8mm": "i8mm",
}
