"""The target: defaults from the host, presets, JSON, and reading cache sizes."""

import os
import sys
from pathlib import Path

import pytest

import ansorlite.host as module
from ansorlite.errors import UsageError
from ansorlite.host import (
    _caches,
    cpu_quota,
    darwin_arm,
    linux_arm,
    size_bytes,
    tiles_permitted,
    vector_unit,
    with_flags,
    without_tiles,
)
from ansorlite.presets import CORES, PRESETS
from ansorlite.target import Target


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
        "sapphirerapids": (64, 32),
        "x86-64-v3": (32, 16),
        "x86-64-v4": (64, 32),
        "znver3": (32, 16),
        "znver4": (64, 32),
        "aarch64-neon": (16, 32),
        **{name: (16, 32) for name in CORES},
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
    assert len(prints) == 2 + len(PRESETS) and all(len(p) < 50 for p in prints)
    broken = Target().to_json() | {"gpu": 1}
    with pytest.raises(UsageError, match="gpu"):
        Target.from_json(broken)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="cores is 0"):
        Target(cores=0)
    with pytest.raises(UsageError, match="power of two"):
        Target(vector_bytes=24)


def testvector_unit_from_features() -> None:
    assert vector_unit("x86_64", {"avx512f": True, "avx512vl": True, "avx": True}) == (64, 32)
    assert vector_unit("x86_64", {"avx512f": False, "avx": True}) == (32, 16)
    assert vector_unit("x86_64", {}) == (16, 16)
    assert vector_unit("aarch64", {"neon": True, "sve": True}) == (16, 32)


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
    assert size_bytes("512") == 512


def cgroups(folder: Path, own: str, files: dict[str, str]) -> float | None:
    folder.mkdir()
    (folder / "own").write_text(own)
    for name, text in files.items():
        path = folder / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return cpu_quota(folder / "own", folder / "fs")


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
    assert cpu_quota(tmp_path / "no such file", tmp_path) is None


def test_cores_follow_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for quota, cores in ((None, 8), (2.5, 2), (0.5, 1), (64.0, 8)):
        monkeypatch.setattr(module, "cpu_quota", lambda found=quota: found)
        assert module.available_cores() == cores


# ---- Arm ----------------------------------------------------------------------------------------

PI5 = """processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc \
dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0b
CPU revision\t: 1
"""
LITTLE = "processor : {}\nFeatures : fp asimd crc32\nCPU implementer : 0x41\nCPU part : 0xd03\n"
BIG = (
    "processor : {}\nFeatures : fp asimd crc32 asimddp\nCPU implementer : 0x41\nCPU part : 0xd08\n"
)


def machine(folder: Path, cpuinfo: str, caches: dict[int, list[str]]) -> dict[str, object]:
    """`linux_arm` of recorded texts; `caches` has "Type level size" by core."""
    (folder / "cpuinfo").write_text(cpuinfo)
    for core, lines in caches.items():
        for k, line in enumerate(lines):
            index = folder / f"cpu{core}" / "cache" / f"index{k}"
            index.mkdir(parents=True)
            for name, text in zip(("type", "level", "size"), line.split(), strict=True):
                (index / name).write_text(text + "\n")
    return linux_arm({"cpu": "generic", "features": "+neon,-sve"}, folder / "cpuinfo", folder)


def test_an_arm_core_by_cpuinfo_and_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_affinity", set)
    caches = {0: ["Data 1 64K", "Instruction 1 64K", "Unified 2 512K", "Unified 3 2048K"]}
    found = machine(tmp_path, PI5, caches)
    assert found["cpu"] == "cortex-a76"
    assert found["caches"] == {1: 64 * 1024, 2: 512 * 1024, 3: 2048 * 1024}
    asked = str(found["features"]).split(",")
    assert {"+neon", "-sve", "+dotprod", "+lse", "+fullfp16"} <= set(asked)
    assert len(asked) == len(set(asked)) and "+bf16" not in asked
    preset = Target.cross("cortex-a76")
    assert preset.asked <= {f[1:] for f in asked}


def test_of_big_and_little_cores_the_big_ones_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(LITTLE.format(k) for k in range(4)) + "".join(BIG.format(k) for k in (4, 5))
    caches = {0: ["Data 1 32K"], 4: ["Data 1 48K", "Unified 2 1M"]}
    monkeypatch.setattr(module, "_affinity", set)
    found = machine(tmp_path, text, caches)
    assert found["cpu"] == "cortex-a72" and found["caches"] == {1: 48 * 1024, 2: 1024 * 1024}
    assert "+dotprod" not in str(found["features"])  # the little cores have none
    monkeypatch.setattr(module, "_affinity", lambda: {1, 2})  # pinned to little ones
    (tmp_path / "pinned").mkdir()
    found = machine(tmp_path / "pinned", text, {1: ["Data 1 32K"]})
    assert found["cpu"] == "cortex-a53" and found["caches"] == {1: 32 * 1024}


def test_what_an_arm_machine_hides_is_llvms_or_the_presets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_affinity", set)
    odd = "processor : zero\nCPU implementer : 0xZZ\nCPU part\n"
    assert machine(tmp_path, odd, {}) == {"cpu": "generic", "features": "+neon,-sve"}
    monkeypatch.setattr(module.llvm, "get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    monkeypatch.setattr(module, "linux_arm", lambda known: {"cpu": "cortex-a53", "caches": {}})
    monkeypatch.setattr(module, "_caches", dict)
    fields = module.detected.__wrapped__()
    usual = Target.cross("cortex-a53")
    assert (fields["l1_bytes"], fields["l2_bytes"]) == (usual.l1_bytes, usual.l2_bytes)
    assert (fields["l3_bytes"], fields["vector_bytes"], fields["vector_registers"]) == (0, 16, 32)


def test_a_mac_by_sysctl() -> None:
    told = {
        "machdep.cpu.brand_string": "Apple M1 Pro",
        "hw.perflevel0.logicalcpu": "8",
        "hw.cachelinesize": "128",
        "hw.perflevel0.l1dcachesize": "131072",
        "hw.perflevel0.l2cachesize": "12582912",
        "hw.optional.arm.FEAT_DotProd": "1",
        "hw.optional.arm.FEAT_BF16": "0",
    }
    known = {"cpu": "generic", "features": "", "cores": 10}
    found = darwin_arm(known, lambda name: told.get(name, ""))
    assert found == {
        "cpu": "apple-m1",
        "features": "+neon,+dotprod",
        "cores": 8,
        "cache_line": 128,
        "caches": {1: 131072, 2: 12582912},
    }
    silent = darwin_arm({"cpu": "apple-m2", "features": "", "cores": 8}, lambda name: "")
    assert (silent["cpu"], silent["cores"], silent["cache_line"]) == ("apple-m2", 8, 128)


def test_features_that_llvm_missed_are_added_once() -> None:
    assert with_flags("+neon,-dotprod", {"asimd", "asimddp"}) == "+neon,+dotprod"
    assert with_flags("", ()) == ""


def test_named_targets_have_the_cores_of_such_a_machine() -> None:
    assert Target.named("cortex-a76") == Target.cross("cortex-a76", cores=4)
    assert Target.named("neoverse-n1:16").cores == 16
    for text in ("cortex-a76:", "cortex-a76:0", "cortex-a76:9999", "cortex-a76:4x"):
        with pytest.raises(UsageError, match="is no number of cores"):
            Target.named(text)
    with pytest.raises(UsageError, match=r"choose one of .*cortex-a53.*apple-m1"):
        Target.named("cortex-a99")


def test_a_foreign_target_is_one_that_this_machine_cannot_run() -> None:
    host = Target.detect()
    other = "cortex-a76" if host.arch == "x86_64" else "x86-avx2"
    assert Target.cross(other).is_foreign and not host.is_foreign
    assert Target.cross("apple-m1").is_foreign or host.system == "darwin"
    assert not Target(cores=99).is_foreign
    assert Target(features=f"{host.features},+unheard-of").is_foreign


def test_tiles_are_used_where_the_system_permits_it() -> None:
    """Linux gives AMX's registers to programs that ask, and a sandbox may refuse that."""
    known = "+avx2,+amx-tile,+amx-bf16,-amx-fp16"
    assert without_tiles(known, lambda: True) == known
    assert without_tiles(known, lambda: False) == "+avx2,-amx-tile,-amx-bf16,-amx-fp16"
    assert without_tiles("+avx2,-amx-tile", lambda: pytest.fail("asked")) == "+avx2,-amx-tile"
    assert isinstance(tiles_permitted(), bool)
