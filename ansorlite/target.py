"""The machine for which the search finds and generates code.

In: nothing (the host is detected), the name of a preset, or single fields. Out: a frozen `Target`,
which the search space (register and cache limits), the cost model and code generation read. Sizes
are in bytes: l1 and l2 per core, l3 of one cache that several cores share (0 without one). The
target may be another machine than the host: see `Target.cross`.
"""

import hashlib
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from ansorlite.errors import UsageError
from ansorlite.host import detected
from ansorlite.presets import KIB, NARROW_LOADS, PRESETS, TYPICAL_CORES

MAX_CORES = 1024  # that a name may ask for


def _from_host(name: str) -> Any:
    return field(default_factory=lambda: detected()[name])


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
    cache_line: int = _from_host("cache_line")

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
        return Target(cores=cores, **{"cache_line": 64, **PRESETS[name]})

    @staticmethod
    def named(text: str) -> "Target":
        """A preset by name with the usual number of cores of such a machine, or with "NAME:CORES".

        Raises UsageError for an unknown name or another number than 1 to 1024. Examples:
        `Target.named("cortex-a76")` (4 cores), `Target.named("neoverse-n1:16")`.
        """
        name, colon, cores = text.partition(":")
        if not colon:
            return Target.cross(name, TYPICAL_CORES.get(name, 1))
        if not (cores.isascii() and cores.isdecimal() and 1 <= int(cores[:6]) <= MAX_CORES):
            raise UsageError(f"target {text!r}: {cores!r} is no number of cores from 1 to 1024")
        return Target.cross(name, int(cores))

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
    def is_foreign(self) -> bool:
        """Can this machine not run the target's code: another architecture, system or features?

        A feature counts that the target asks for and the host does not have.
        """
        host = Target.detect()
        if (self.arch, self.system) != (host.arch, host.system):
            return True
        return self.vector_bytes > host.vector_bytes or bool(self.asked - host.asked)

    @property
    def asked(self) -> frozenset[str]:
        """LLVM's names of the features that are switched on by `features`."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))

    @property
    def system(self) -> str:
        """ "linux", "darwin", or the third part of the triple for other systems."""
        if "darwin" in self.triple or "macos" in self.triple:
            return "darwin"
        return "linux" if "linux" in self.triple else (self.triple.split("-") + [""] * 3)[2]

    @property
    def fingerprint(self) -> str:
        """A short text that depends on all fields, for example "znver3-2c-1f0a9c3d"."""
        return f"{self.cpu}-{self.cores}c-{_short_hash(repr(self))}"

    def has(self, feature: str) -> bool:
        """Does LLVM know that the CPU has the feature, for example "avx512bf16"?"""
        return f"+{feature}" in self.features.split(",")

    @property
    def reads_halves(self) -> bool:
        """Does a core read half a vector a cycle, and issue nothing beside a whole one (A53)?"""
        return self.cpu in NARROW_LOADS

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


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
