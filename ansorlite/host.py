"""The machine that the package runs on: LLVM's names for it, usable cores, caches.

In: nothing; LLVM, /proc/cpuinfo, sysfs, control groups, on macOS sysctl. Out: `detected()`, the
fields of `Target.detect()` by name. Containers may hide files and old kernels may not know caches:
what is missing is that of the preset of the same CPU, else a usual size. Sizes are in bytes.
"""

import ctypes
import os
import platform
import subprocess
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from ansorlite.presets import ARM_FLAGS, ARM_PARTS, KIB, MIB, PRESETS

SYSFS_CPU = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@cache
def detected() -> dict[str, Any]:
    """The fields of `Target.detect()`."""
    triple = llvm.get_process_triple()
    arch = triple.split("-")[0]
    enabled = llvm.get_host_cpu_features()
    found: dict[str, Any] = {
        "triple": triple,
        "cpu": llvm.get_host_cpu_name(),
        "features": without_tiles(enabled.flatten()),
        "cores": available_cores(),
        "cache_line": 64,
    }
    if arch in ("aarch64", "arm64"):
        found |= darwin_arm(found) if platform.system() == "Darwin" else linux_arm(found)
    found["vector_bytes"], found["vector_registers"] = vector_unit(arch, enabled)
    caches = found.pop("caches", None) or _caches()
    usual = PRESETS.get(found["cpu"], {})
    return {
        **found,
        "l1_bytes": caches.get(1) or usual.get("l1_bytes", 32 * KIB),
        "l2_bytes": caches.get(2) or usual.get("l2_bytes", 512 * KIB),
        "l3_bytes": caches.get(3, 0 if caches else usual.get("l3_bytes", 8 * MIB)),
    }


# ---- x86-64 -------------------------------------------------------------------------------------

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18


def tiles_permitted() -> bool:
    """Ask Linux for the use of AMX's tile registers, which stays with this process."""
    if platform.system() != "Linux":
        return False
    syscall = ctypes.CDLL(None).syscall
    return int(syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) == 0


def without_tiles(features: str, ask: Callable[[], bool] = tiles_permitted) -> str:
    """LLVM's features, without AMX where the CPU has it and the system refuses it to programs."""
    if "+amx-tile" not in features.split(",") or ask():
        return features
    return features.replace("+amx-", "-amx-")


# ---- Arm ----------------------------------------------------------------------------------------


def linux_arm(
    known: Mapping[str, Any], cpuinfo: Path = CPUINFO, sysfs: Path = SYSFS_CPU
) -> dict[str, Any]:
    """`cpu`, `features` and `caches` of an Arm core under Linux, by cpuinfo and sysfs.

    Of several kinds of cores (big and little ones) that this process may use, the largest counts:
    the one that `ARM_PARTS` lists last. `known` are LLVM's answers, which stay where files are
    missing.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    kinds, flags = _cores_of(text)
    usable = _affinity()
    mine = {core: cpu for core, cpu in kinds.items() if not usable or core in usable} or kinds
    order = list(ARM_PARTS.values())
    core = max(mine, key=lambda k: (order.index(mine[k]), -k), default=None)
    found: dict[str, Any] = {
        "cpu": known["cpu"] if core is None else mine[core],
        "features": with_flags(known["features"], flags),
    }
    if core is not None:
        found["caches"] = _caches(sysfs, core)
    return found


def _cores_of(cpuinfo: str) -> tuple[dict[int, str], set[str]]:
    """(LLVM's name of each core that is known, the features that all cores have)."""
    kinds: dict[int, str] = {}
    flags: set[str] | None = None
    core = implementer = 0
    for line in cpuinfo.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        try:
            if key == "processor":
                core = int(value)
            elif key == "CPU implementer":
                implementer = int(value, 16)
            elif key == "CPU part" and (name := ARM_PARTS.get((implementer, int(value, 16)))):
                kinds[core] = name
            elif key == "Features":
                flags = set(value.split()) & (flags or set(value.split()))
        except ValueError:
            continue
    return kinds, flags or set()


def with_flags(features: str, flags: Collection[str]) -> str:
    """LLVM's features with those added that /proc/cpuinfo or sysctl name and that LLVM left out."""
    told = {f[1:]: f for f in features.split(",") if f}
    new = [f"+{f}" for f, flag in ARM_FLAGS.items() if flag in flags and told.get(f) != f"+{f}"]
    kept = [f for name, f in told.items() if f"+{name}" not in new]
    return ",".join([*kept, *new])


def sysctl(name: str) -> str:
    """The value of a name of macOS's sysctl; empty where there is none."""
    command = ["sysctl", "-n", name]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def darwin_arm(known: Mapping[str, Any], ask: Callable[[str], str] = sysctl) -> dict[str, Any]:
    """`cpu`, `features`, `cores`, `cache_line` and `caches` of a Mac with Apple's own cores.

    Cores are the fast ones: a parallel loop waits for its slowest thread.
    """
    words = ask("machdep.cpu.brand_string").lower().split()  # "Apple M1 Pro"
    cpu = known["cpu"]
    if cpu in ("", "generic") and words[:1] == ["apple"] and len(words) > 1:
        cpu = f"apple-{words[1]}"
    named = {
        "asimddp": "FEAT_DotProd",
        "asimdhp": "FEAT_FP16",
        "atomics": "FEAT_LSE",
        "asimdrdm": "FEAT_RDM",
        "crc32": "FEAT_CRC32",
        "lrcpc": "FEAT_LRCPC",
        "bf16": "FEAT_BF16",
        "i8mm": "FEAT_I8MM",
    }
    flags = {flag for flag, name in named.items() if ask(f"hw.optional.arm.{name}") == "1"}
    fast, line = ask("hw.perflevel0.logicalcpu"), ask("hw.cachelinesize")
    return {
        "cpu": cpu,
        "features": with_flags(known["features"], {"asimd", *flags}),
        "cores": min(known["cores"], int(fast)) if fast.isdigit() else known["cores"],
        "cache_line": int(line) if line.isdigit() and int(line) else 128,
        "caches": _darwin_caches(ask),
    }


# ---- vectors, cores, caches ---------------------------------------------------------------------


def vector_unit(arch: str, enabled: dict[str, bool]) -> tuple[int, int]:
    """(bytes of a vector register, number of registers); SVE counts as NEON of 16 bytes."""
    if arch in ("x86_64", "amd64", "i386", "i686"):
        if enabled.get("avx512f") and enabled.get("avx512vl"):
            return 64, 32
        return (32 if enabled.get("avx") else 16), 16
    return 16, 32


def available_cores() -> int:
    """Number of processors in this process's affinity, limited by CPU quotas of its containers."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return count if quota is None else max(1, min(count, int(quota)))


def cpu_quota(own: Path = OWN_CGROUPS, root: Path = CGROUPS) -> float | None:
    """CPU quota of this process's control groups in processors, None without a limit.

    With more threads than the quota, the whole process pauses until the next period. The quotas of
    a group and of all groups above it hold. In a container, the path may be the path on the host,
    while the container's own group lies at the root: all folders on the way are read.
    """
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names == "":  # version 2
            tops, read = [root, root / "unified"], _quota_v2
        elif "cpu" in names.split(","):
            tops, read = [root / names, root / "cpu"], _quota_v1
        else:
            continue
        parts = [p for p in path.split("/") if p not in ("", "..")]
        for top in tops:
            folders = [top.joinpath(*parts[:n]) for n in range(len(parts) + 1)]
            quotas += [q for q in map(read, folders) if q is not None]
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> float | None:
    """Quota of a version 2 group: cpu.max holds microseconds per period, or "max", and the period.

    None where the file is absent or there is no limit.
    """
    return _quota(_words(folder / "cpu.max"))


def _quota_v1(folder: Path) -> float | None:
    """Quota of a version 1 group; its file holds -1 for no limit."""
    return _quota(_words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us"))


def _quota(words: list[str]) -> float | None:
    try:
        limit_us, period_us = map(float, words)
    except ValueError:
        return None
    return limit_us / period_us if limit_us > 0 and period_us > 0 else None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []


def _affinity() -> set[int]:
    """The processors that this process may use; empty where the system does not tell."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def _caches(root: Path = SYSFS_CPU, core: int | None = None) -> dict[int, int]:
    """Level -> bytes of the data cache of a core, by default the first of this process's affinity.

    Unknown levels are left out: containers may hide the files. macOS has other sources.
    """
    if platform.system() == "Darwin":
        return _darwin_caches()
    core = min(_affinity(), default=0) if core is None else core
    found: dict[int, int] = {}
    for index in sorted((root / f"cpu{core}" / "cache").glob("index*")):
        try:
            kind, level, size = (
                (index / name).read_text(encoding="utf-8").strip()
                for name in ("type", "level", "size")
            )
            if kind in ("Data", "Unified"):
                found[int(level)] = size_bytes(size)
        except (OSError, ValueError):
            continue
    return {level: size for level, size in found.items() if size > 0}


def size_bytes(text: str) -> int:
    """The bytes of a size in sysfs's form: "32K", "8M", "512"."""
    unit = {"K": KIB, "M": MIB, "G": 1024 * MIB}.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def _darwin_caches(ask: Callable[[str], str] = sysctl) -> dict[int, int]:
    """Level -> bytes on macOS: of the fast cores (perflevel0), on Intel of all cores."""
    found: dict[int, int] = {}
    names = {1: "l1dcachesize", 2: "l2cachesize", 3: "l3cachesize"}
    for level, name in names.items():
        for prefix in ("hw.perflevel0.", "hw."):
            text = ask(prefix + name)
            if text.isdigit():
                found[level] = int(text)
                break
    return {level: size for level, size in found.items() if size > 0}
