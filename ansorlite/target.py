"""The machine for which the search finds and generates code.

In: nothing (the host is detected), the name of a preset, or single fields. Out: a frozen `Target`,
which the search space (register and cache limits), the cost model and code generation read. Sizes
are in bytes: l1 and l2 per core, l3 of one cache that several cores share (0 without one). The
target may be another machine than the host: see `Target.cross`.
"""

import hashlib
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from ansorlite.errors import UsageError

SYSFS_CPU = Path("/sys/devices/system/cpu")
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
KIB, MIB = 1024, 1024 * 1024


def _from_host(name: str) -> Any:
    return field(default_factory=lambda: _detected()[name])


@dataclass(frozen=True)
class Target:
    """One CPU model with a number of cores; omitted fields have the values of the host.

    `triple`, `cpu` and `features` are LLVM's names ("x86_64-unknown-linux-gnu", "znver3",
    "+avx2,-avx512f"). `vector_bytes` is the width of a vector register, `vector_registers` their
    number (AVX2: 32 B, 16; AVX-512: 64 B, 32; NEON: 16 B, 32). `cores` is the number of threads of
    a kernel. Fields are independent of each other: for another CPU start from `cross`. Raises
    UsageError for a value that is not allowed.

    Examples: `Target.detect()`, `Target(cores=1)` (the host with one core),
    `Target.cross("aarch64-neon", cores=4)`.
    """

    triple: str = _from_host("triple")
    cpu: str = _from_host("cpu")
    features: str = _from_host("features")
    cores: int = _from_host("cores")
    vector_bytes: int = _from_host("vector_bytes")
    vector_registers: int = _from_host("vector_registers")
    l1_bytes: int = _from_host("l1_bytes")
    l2_bytes: int = _from_host("l2_bytes")
    l3_bytes: int = _from_host("l3_bytes")
    cache_line: int = 64

    def __post_init__(self) -> None:
        for name in ("cores", "vector_bytes", "vector_registers", "l1_bytes", "cache_line"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"Target.{name} is {value!r}: it must be a positive integer")
        sizes = (self.l2_bytes, self.l3_bytes)
        if not all(isinstance(n, int) and n >= 0 for n in sizes):
            raise UsageError(
                f"Target.l2_bytes is {self.l2_bytes}, l3_bytes {self.l3_bytes}: give at least 0"
            )
        if self.vector_bytes & (self.vector_bytes - 1):
            raise UsageError(f"Target.vector_bytes is {self.vector_bytes}: not a power of two")

    @staticmethod
    def detect() -> "Target":
        """The host: LLVM's triple, CPU and features, the usable cores, the caches."""
        return Target()

    @staticmethod
    def cross(name: str, cores: int = 1) -> "Target":
        """The target of a preset (a key of `PRESETS`), independent of the host.

        Raises UsageError for an unknown name. Example: `Target.cross("x86-avx512", cores=8)`.
        """
        if name not in PRESETS:
            raise UsageError(f"no target preset {name!r}: choose one of {', '.join(PRESETS)}")
        return Target(cores=cores, **PRESETS[name])

    @staticmethod
    def host_as(name: str) -> "Target":
        """The host with the instructions of a preset; the host must support these instructions."""
        host = Target.detect()
        kept = {k: getattr(host, k) for k in ("l1_bytes", "l2_bytes", "l3_bytes", "cache_line")}
        return replace(Target.cross(name, host.cores), **kept)

    @property
    def arch(self) -> str:
        """The architecture from the triple, with one name for each: "x86_64", "aarch64"."""
        arch = self.triple.split("-")[0]
        return {"arm64": "aarch64", "amd64": "x86_64"}.get(arch, arch)

    @property
    def fingerprint(self) -> str:
        """A short text that depends on all fields, for example "znver3-2c-1f0a9c3d"."""
        return f"{self.cpu}-{self.cores}c-{_short_hash(repr(self))}"

    def has(self, feature: str) -> bool:
        """Does LLVM know that the CPU has the feature, for example "avx512bf16"?"""
        return f"+{feature}" in self.features.split(",")

    @property
    def has_masks(self) -> bool:
        """Has the target masked vector loads without extra cost (AVX and later)?"""
        return self.arch == "x86_64" and self.vector_bytes >= 32

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one vector register, at least 1; a bool has one byte."""
        return max(1, self.vector_bytes // np.dtype(dtype).itemsize)

    def to_json(self) -> dict[str, Any]:
        """The fields by name, as JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Target":
        """The inverse of `to_json`; raises UsageError for a missing or unknown field."""
        names = {f.name for f in fields(Target)}
        if names != data.keys():
            odd = ", ".join(sorted(names ^ data.keys()))
            raise UsageError(f"target in JSON: missing or unknown field {odd}")
        return Target(**data)

    def __str__(self) -> str:
        caches = "/".join(
            f"{size // KIB}K" for size in (self.l1_bytes, self.l2_bytes, self.l3_bytes)
        )
        return (
            f"Target({self.cpu}, {self.cores} cores, {self.vector_registers} vectors of"
            f" {self.vector_bytes} B, caches {caches}, {self.triple},"
            f" features {_short_hash(self.features)})"
        )


# One common CPU per instruction set, with the caches of a typical server core.
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
    "aarch64-neon": {
        "triple": "aarch64-unknown-linux-gnu",
        "cpu": "neoverse-n1",
        "features": "+neon",
        "vector_bytes": 16,
        "vector_registers": 32,
        "l1_bytes": 64 * KIB,
        "l2_bytes": 1 * MIB,
        "l3_bytes": 32 * MIB,
    },
}


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@cache
def _detected() -> dict[str, Any]:
    triple = llvm.get_process_triple()
    enabled = llvm.get_host_cpu_features()
    vector_bytes, vector_registers = _vector_unit(triple.split("-")[0], enabled)
    caches = _caches()
    return {
        "triple": triple,
        "cpu": llvm.get_host_cpu_name(),
        "features": enabled.flatten(),
        "cores": _available_cores(),
        "vector_bytes": vector_bytes,
        "vector_registers": vector_registers,
        "l1_bytes": caches.get(1, 32 * KIB),
        "l2_bytes": caches.get(2, 512 * KIB),
        "l3_bytes": caches.get(3, 0 if caches else 8 * MIB),
    }


def _vector_unit(arch: str, enabled: dict[str, bool]) -> tuple[int, int]:
    """(bytes of a vector register, number of registers); SVE counts as NEON of 16 bytes."""
    if arch in ("x86_64", "amd64", "i386", "i686"):
        if enabled.get("avx512f") and enabled.get("avx512vl"):
            return 64, 32
        return (32 if enabled.get("avx") else 16), 16
    return 16, 32


def _available_cores() -> int:
    """Number of processors in this process's affinity, limited by CPU quotas of its containers."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    return count if quota is None else max(1, min(count, int(quota)))


def _cpu_quota(own: Path = OWN_CGROUPS, root: Path = CGROUPS) -> float | None:
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


def _caches(root: Path = SYSFS_CPU) -> dict[int, int]:
    """Level -> bytes of the data cache, for the first core of this process's affinity.

    Unknown levels are left out: containers may hide the files. macOS has other sources.
    """
    if platform.system() == "Darwin":
        return _darwin_caches()
    first = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    found: dict[int, int] = {}
    for index in sorted((root / f"cpu{first}" / "cache").glob("index*")):
        try:
            kind, level, size = (
                (index / name).read_text(encoding="utf-8").strip()
                for name in ("type", "level", "size")
            )
            if kind in ("Data", "Unified"):
                found[int(level)] = _size_bytes(size)
        except (OSError, ValueError):
            continue
    return {level: size for level, size in found.items() if size > 0}


def _size_bytes(text: str) -> int:
    """The bytes of a size in sysfs's form: "32K", "8M", "512"."""
    unit = {"K": KIB, "M": MIB, "G": 1024 * MIB}.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def _darwin_caches() -> dict[int, int]:
    """Level -> bytes on macOS: of the fast cores (perflevel0), on Intel of all cores."""
    found: dict[int, int] = {}
    names = {1: "l1dcachesize", 2: "l2cachesize", 3: "l3cachesize"}
    for level, name in names.items():
        for prefix in ("hw.perflevel0.", "hw."):
            command = ["sysctl", "-n", prefix + name]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode == 0 and answer.stdout.strip().isdigit():
                found[level] = int(answer.stdout)
                break
    return {level: size for level, size in found.items() if size > 0}
