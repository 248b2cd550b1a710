"""Networks for machines that are not at hand: compiled and saved, not called; linkers found."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from ansorlite import deployed
from ansorlite.errors import BuildError, ModelError
from ansorlite.graph import link
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.graph.module import CompiledModule
from ansorlite.manifest import LIBRARY, check_files, read_metadata
from ansorlite.pipeline import compile_plain
from ansorlite.target import Target

FOREIGN = Target.cross("cortex-a53" if Target.detect().arch == "x86_64" else "x86-avx2")


def dense() -> Graph:
    b = GraphBuilder("dense")
    weights = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    return b.finish([b.emit("matmul", [b.input("x", (3, 8)), b.constant(weights)], "y")])


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    return compile_plain(dense(), FOREIGN)


def test_a_foreign_network_is_not_called(module: CompiledModule) -> None:
    x = np.ones((3, 8), np.float32)
    for again in (module, pickle.loads(pickle.dumps(module))):
        assert again.target.cpu == FOREIGN.cpu
        with pytest.raises(ModelError, match=f"compiled for {FOREIGN.cpu} .* save it"):
            again(x)
        with pytest.raises(ModelError, match="save it, and load it there"):
            again.profile(x)


def test_without_a_cross_compiler_all_but_the_library_is_there(
    module: CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "cross_compilers", lambda target: iter(()))
    with pytest.warns(UserWarning, match="no cross compiler is installed.*run in the folder: cc "):
        folder = module.save(tmp_path / "net")
    names = {f.name for f in folder.iterdir()}
    assert {"kernel0.o", "threads.o", "network.c", "network.h", "weights.bin"} <= names
    assert LIBRARY not in names
    told = read_metadata(folder)
    assert told["triple"] == FOREIGN.triple and told["targets"][0]["cpu"] == FOREIGN.cpu
    with pytest.raises(ModelError, match="link it there with: cc "):
        check_files(folder, told)
    machine = {"aarch64": b"\xb7\x00", "x86_64": b"\x3e\x00"}[FOREIGN.arch]
    for name in ("kernel0.o", "threads.o"):
        assert (folder / name).read_bytes()[18:20] == machine


def test_a_compiler_that_fails_is_followed_by_the_next(
    module: CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that it leaves behind are removed; what it said is told where none links."""
    wrong = "open('left', 'w'); import os; os.mkdir('.zig'); raise SystemExit('no headers')"
    right = f"open({LIBRARY!r}, 'w').write('a library'); open('more', 'w')"
    compilers = [(n, [sys.executable, "-c", code]) for n, code in (("a", wrong), ("b", right))]
    monkeypatch.setattr(link, "cross_compilers", lambda target: iter(compilers))
    folder = module.save(tmp_path / "net")
    names = {f.name for f in folder.iterdir()}
    assert LIBRARY in names and not names & {"left", ".zig", "more"}
    monkeypatch.setattr(link, "cross_compilers", lambda target: iter(compilers[:1]))
    with pytest.warns(UserWarning, match="a cannot link the network .status 1.: no headers"):
        module.save(tmp_path / "other")


def test_which_cross_compilers_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(link, "find_spec", lambda name: name == "ziglang")
    arm = dict(link.cross_compilers(Target.cross("cortex-a76")))
    assert list(arm) == ["aarch64-linux-gnu-gcc", "clang", "zig cc", "zig cc of ziglang"]
    assert "--target=aarch64-linux-gnu" in arm["clang"]
    assert arm["zig cc of ziglang"][1:] == ["-m", "ziglang", "cc", "-target", "aarch64-linux-gnu"]
    mac = dict(link.cross_compilers(Target.cross("apple-m1")))
    assert list(mac) == ["zig cc", "zig cc of ziglang"]  # no other has a Mac's libraries
    assert mac["zig cc"][-1] == "aarch64-macos"
    monkeypatch.setattr(link, "find_spec", lambda name: None)
    monkeypatch.setattr(link.shutil, "which", lambda name: None)
    assert not list(link.cross_compilers(Target.cross("cortex-a76")))


def test_a_network_for_a_mac_has_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "cross_compilers", lambda target: iter(()))
    if Target.detect().system == "darwin":
        pytest.skip("this is a Mac")
    with pytest.warns(UserWarning, match="was not linked"):
        folder = compile_plain(dense(), "apple-m1").save(tmp_path / "net")
    for name in ("kernel0.o", "threads.o"):
        data = (folder / name).read_bytes()
        assert data[:4] == b"\xcf\xfa\xed\xfe" and b"_ansorlite_" in data
    assert read_metadata(folder)["targets"][0]["requires"] == []


def test_images_alone_are_for_one_target(module: CompiledModule) -> None:
    assert module.for_target(None) is module and module.for_target(FOREIGN) is module
    with pytest.raises(ModelError, match="programs are not at hand: schedule it for neoverse-n1"):
        module.for_target("neoverse-n1")


def test_the_own_compiler_must_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(link.shutil, "which", lambda name: str(broken))
    with pytest.raises(BuildError, match=r"cc cannot link the network .status 3.: it said"):
        compile_plain(dense()).save(tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_a_machine_is_its_architecture_and_its_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator may show the flags of the machine that it runs on: these count for nothing."""
    monkeypatch.setattr(deployed.platform, "system", lambda: "Linux")
    own = {"name": "cortex-a76", "requires": ["asimd"]}
    known = {"targets": [own], "triple": "aarch64-unknown-linux-gnu"}
    mac = {**known, "triple": "arm64-apple-macosx11.0.0"}
    other = "aarch64" if Target.detect().arch == "x86_64" else "x86_64"
    monkeypatch.setattr(deployed.platform, "machine", lambda: other)
    assert deployed.cpu_flags() == set()
    monkeypatch.setattr(deployed.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(deployed, "cpu_flags", set)
    deployed._check_machine(known, Path("net"))
    with pytest.raises(ModelError, match=r"code for arm64-apple-macosx11\.0\.0.* runs linux"):
        deployed._check_machine(mac, Path("net"))
    monkeypatch.setattr(deployed, "cpu_flags", lambda: {"fp"})
    with pytest.raises(ModelError, match="this CPU lacks asimd"):
        deployed._check_machine(known, Path("net"))
    monkeypatch.setattr(deployed.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(deployed.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(deployed, "cpu_flags", set)
    deployed._check_machine(mac, Path("net"))
