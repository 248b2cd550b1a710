"""The target: defaults from the host, presets, JSON, and reading cache sizes."""

import os
import sys
from pathlib import Path

import pytest

import ansorlite.target as module
from ansorlite.errors import UsageError
from ansorlite.target import PRESETS, Target, _caches, _cpu_quota, _size_bytes, _vector_unit


def test_defaults_are_the_host_and_fields_override_it() -> None:
    host = Target.detect()
    assert Target() == host
    twenty = Target(cores=20)
    assert twenty.cores == 20 and twenty.cpu == host.cpu and twenty.features == host.features
    assert 1 <= host.cores <= (os.cpu_count() or 1)
    assert host.l1_bytes <= host.l2_bytes
    assert "\n" not in str(host) and str(host) == str(Target())


def test_lanes_count_elements_of_one_register() -> None:
    avx2 = Target.cross("x86-avx2")
    dtypes = ("float32", "float64", "int32", "int64", "bool")
    assert [avx2.lanes(d) for d in dtypes] == [8, 4, 8, 4, 32]
    assert Target.cross("x86-avx512").lanes("float32") == 16
    assert Target.cross("aarch64-neon").lanes("float64") == 2


def test_presets_have_the_registers_of_their_instruction_set() -> None:
    units = {name: Target.cross(name) for name in PRESETS}
    assert {n: (t.vector_bytes, t.vector_registers) for n, t in units.items()} == {
        "x86-avx2": (32, 16),
        "x86-avx512": (64, 32),
        "aarch64-neon": (16, 32),
    }
    assert Target.cross("aarch64-neon", cores=8).cores == 8
    assert Target.cross("aarch64-neon").arch == "aarch64"
    with pytest.raises(UsageError, match="no target preset 'vax'"):
        Target.cross("vax")


def test_the_host_with_the_instructions_of_a_preset() -> None:
    host, avx2 = Target.detect(), Target.host_as("x86-avx2")
    assert avx2.vector_bytes == 32 and avx2.cpu == Target.cross("x86-avx2").cpu
    assert (avx2.cores, avx2.l2_bytes) == (host.cores, host.l2_bytes)
    with pytest.raises(UsageError, match="no target preset 'vax'"):
        Target.host_as("vax")


def test_json_round_trip_and_fingerprint() -> None:
    for target in (Target(), *map(Target.cross, PRESETS)):
        assert Target.from_json(target.to_json()) == target
    prints = {t.fingerprint for t in (Target(), Target(cores=77), *map(Target.cross, PRESETS))}
    assert len(prints) == 5 and all(len(p) < 50 for p in prints)
    broken = Target().to_json() | {"gpu": 1}
    with pytest.raises(UsageError, match="gpu"):
        Target.from_json(broken)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="cores is 0"):
        Target(cores=0)
    with pytest.raises(UsageError, match="power of two"):
        Target(vector_bytes=24)


def test_vector_unit_from_features() -> None:
    assert _vector_unit("x86_64", {"avx512f": True, "avx512vl": True, "avx": True}) == (64, 32)
    assert _vector_unit("x86_64", {"avx512f": False, "avx": True}) == (32, 16)
    assert _vector_unit("x86_64", {}) == (16, 16)
    assert _vector_unit("aarch64", {"neon": True, "sve": True}) == (16, 32)


@pytest.mark.skipif(sys.platform != "linux", reason="sysfs is Linux's")
def test_caches_from_sysfs(tmp_path: Path) -> None:
    cpu = tmp_path / f"cpu{min(os.sched_getaffinity(0))}" / "cache"
    levels = [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2M")]
    for i, (kind, level, size) in enumerate(levels):
        folder = cpu / f"index{i}"
        folder.mkdir(parents=True)
        for name, text in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(text + "\n")
    (cpu / "index3").mkdir()
    assert _caches(tmp_path) == {1: 48 * 1024, 2: 2 * 1024 * 1024}
    assert _caches(tmp_path / "missing") == {}
    assert _size_bytes("512") == 512


def cgroups(folder: Path, own: str, files: dict[str, str]) -> float | None:
    folder.mkdir()
    (folder / "own").write_text(own)
    for name, text in files.items():
        path = folder / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return _cpu_quota(folder / "own", folder / "fs")


def test_quotas_of_control_groups(tmp_path: Path) -> None:
    second = "0::/a/b\n"
    assert cgroups(tmp_path / "none", second, {}) is None
    assert cgroups(tmp_path / "max", second, {"a/b/cpu.max": "max 100000"}) is None
    assert cgroups(tmp_path / "own", second, {"a/b/cpu.max": "250000 100000"}) == 2.5
    above = {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}
    assert cgroups(tmp_path / "above", second, above) == 0.5
    # a container whose path is that of the machine, with its own group at the root
    assert cgroups(tmp_path / "root", "0::/../c\n", {"cpu.max": "100000 100000"}) == 1.0
    first = "7:memory:/x\n4:cpu,cpuacct:/docker/x\n0::/\n"
    quota = {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}
    for top in ("cpu,cpuacct", "cpu,cpuacct/docker/x", "cpu", "cpu/docker/x"):
        files = {f"{top}/{name}": text for name, text in quota.items()}
        assert cgroups(tmp_path / top.replace("/", "-"), first, files) == 3.0
    free = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert cgroups(tmp_path / "free", first, free) is None
    assert cgroups(tmp_path / "odd", second, {"a/b/cpu.max": "lots"}) is None
    assert _cpu_quota(tmp_path / "no such file", tmp_path) is None


def test_cores_follow_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for quota, cores in ((None, 8), (2.5, 2), (0.5, 1), (64.0, 8)):
        monkeypatch.setattr(module, "_cpu_quota", lambda found=quota: found)
        assert module._available_cores() == cores
