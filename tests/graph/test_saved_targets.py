"""A saved network with kernels for several targets: one set is chosen when it is opened."""

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ansorlite as al
from ansorlite.deployed import load_module
from ansorlite.errors import ModelError, UsageError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.sized import SizedNetwork
from ansorlite.ir.layout import Layout
from ansorlite.manifest import read_metadata
from ansorlite.measure.peak import Peak
from ansorlite.pipeline import ScheduledModule, compile_plain
from ansorlite.records import read_log
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.retarget import retargeted
from ansorlite.space.sketch import SpaceOptions
from ansorlite.target import Target

HOST = Target.detect()
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or HOST.arch != "x86_64" or HOST.vector_bytes < 32,
    reason="there is no C compiler, or no AVX2",
)
PEAK = Peak(2e11, 1e11, 2e10)
FEW = EvolutionParams(population=32, generations=1, looked_at_first=4)
V3, V4 = "x86-64-v3", "x86-64-v4"
RUNNABLE = [name for name in (V4, V3) if not Target.cross(name).is_foreign]
NAMES = [V4, "znver4", V3] if V4 in RUNNABLE else [V3, "x86-avx2", "native"]
X = np.random.default_rng(0).standard_normal((48, 96)).astype(np.float32)


def net() -> Graph:
    b, rng = GraphBuilder("products"), np.random.default_rng(1)
    y = b.input("x", X.shape)
    for _ in range(2):
        w = b.constant(rng.standard_normal((96, 96)).astype(np.float32) / 10)
        y = b.emit("relu", [b.emit("matmul", [y, w])])
    return b.finish([y])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "log.jsonl"


@pytest.fixture(scope="module")
def module(log: Path) -> ScheduledModule:
    """A network of which one program is "measured" that packs its weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ansorlite.measure.runner.CHILD_ENTRY", "quick_runner:serve")
        patch.setenv("ANSORLITE_BUILD_WORKERS", "1")
        patch.setattr("ansorlite.search.session.measure_peak", lambda target: PEAK)
        return al.auto_schedule(
            net(), 3, log=log, progress=False, space=SpaceOptions(max_sketches=2), params=FEW
        )


@pytest.fixture(scope="module")
def folder(module: ScheduledModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return module.save(tmp_path_factory.mktemp("saved") / "net", targets=NAMES)


def wrapper(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("network", folder / "network.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_each_set_of_kernels_runs_when_it_is_asked_for(
    folder: Path, module: ScheduledModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = module(X)
    best = load_module(folder)
    assert sorted(best.targets) == sorted(NAMES) and best.target == best.targets[0]
    for name in NAMES:
        monkeypatch.setenv("ANSORLITE_TARGET", name)
        native, plain = load_module(folder), wrapper(folder).Network()
        assert native.target == plain.target == name and plain.targets == list(native.targets)
        np.testing.assert_allclose(native(X), want, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(native(X), np.asarray(plain(X)[0]))
    monkeypatch.setenv("ANSORLITE_TARGET", "8086")
    known = ", ".join(best.targets)
    with pytest.raises(ModelError, match=f"ANSORLITE_TARGET=8086 .* which has {known}"):
        load_module(folder)
    with pytest.raises(RuntimeError, match=f"ANSORLITE_TARGET=8086 .* which has {known}"):
        wrapper(folder).Network()


def test_a_cpu_that_runs_none_is_refused_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSORLITE_CPU_LACKS", "avx512f,fma")
    for load, kind in ((load_module, ModelError), (wrapper(folder).Network, RuntimeError)):
        with pytest.raises(kind, match="this CPU runs none of") as caught:
            load(folder)
        told = str(caught.value)
        assert "\n" not in told and "fma" in told and all(name in told for name in NAMES)
    monkeypatch.setenv("ANSORLITE_TARGET", NAMES[0])
    for load, kind in ((load_module, ModelError), (wrapper(folder).Network, RuntimeError)):
        with pytest.raises(kind, match="fma"):
            load(folder)


@pytest.mark.skipif(V4 not in RUNNABLE, reason="this CPU has no AVX-512")
def test_the_best_set_that_the_cpu_runs_is_chosen(
    folder: Path, module: ScheduledModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lacks, chosen in (("avx512_bf16", V4), ("avx512f", V3), ("sse4a, avx512bw", V3)):
        monkeypatch.setenv("ANSORLITE_CPU_LACKS", lacks)
        native = load_module(folder)
        assert native.target == wrapper(folder).Network().target == chosen
        np.testing.assert_allclose(native(X), module(X), rtol=1e-4, atol=1e-4)


PROGRAM = """
#include <cstdio>
#include "network.hpp"
int main(int, char **argv) {
  try {
    ansorlite::Network net(argv[1]);
    std::vector<float> x = net.input<float>(0), y = net.output<float>(0);
    net.run({x.data()}, {y.data()});
    std::printf("%s of %zu", net.target().c_str(), net.targets().size());
  } catch (std::runtime_error &e) { std::printf("%s", e.what()); }
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_a_cpp_program_links_one_library(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "main.cpp"
    program.write_text(PROGRAM)
    library = [f"-I{folder}", str(folder / "libnetwork.so"), f"-Wl,-rpath,{folder}"]
    command = ["c++", "-std=c++11", "-Wall", "-Werror", "-o", tmp_path / "main", program, *library]
    subprocess.run(command, check=True)

    def told() -> str:
        run = [tmp_path / "main", folder / "weights.bin"]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout

    monkeypatch.setenv("ANSORLITE_TARGET", V3)
    assert told() == f"{V3} of {len(NAMES)}"
    monkeypatch.setenv("ANSORLITE_CPU_LACKS", "avx2")
    assert f"ANSORLITE_TARGET={V3}: this CPU lacks avx2" in told()


def test_weights_in_one_layout_are_there_once_and_the_folder_tells_of_its_kernels(
    folder: Path, module: ScheduledModule
) -> None:
    told = read_metadata(folder)
    assert told["weights_bytes"] <= len(NAMES) * module.weights_bytes
    here = [t["kernels"] for t in told["targets"]]
    assert all(sum(kernels.values()) == len(module.images) for kernels in here)
    if HOST.vector_bytes == 64:  # kernels of 32 bytes are made of those of 64, and weights packed
        how = {t["name"]: set(t["kernels"]) for t in told["targets"]}
        assert how[V3] == {"adapted"} and how[V4] <= {"recompiled", "tuned"}
    done = subprocess.run(
        [sys.executable, "-m", "ansorlite.deployed", folder], capture_output=True, text=True
    )
    assert done.returncode == 0 and f"{V3}: kernels" in done.stdout.replace(" (runs here)", "")


def test_sizes_share_weights_for_every_target(tmp_path: Path) -> None:
    """Two sizes: each weight is in the file once a layout."""
    sized = SizedNetwork((_dense(2), _dense(4)), ("2", "4"), lambda shapes: _dense(2))
    one = SpaceOptions(max_sketches=1)
    module = al.auto_schedule(sized, 0, params=FEW, space=one, progress=False)
    native = load_module(module.save(tmp_path / "net", targets=[V3, "native"]))
    for rows in (2, 4):
        x = np.ones((rows, 8), np.float32)
        np.testing.assert_allclose(native(x), module(x), rtol=1e-5)
    layouts = 2 * len({id(x) for m in module.modules for x in m.constants})
    assert native.metadata["weights_bytes"] <= layouts * 8 * 16 * 4


def _dense(rows: int) -> Graph:
    b = GraphBuilder("dense")
    w = b.constant(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))
    return b.finish([b.emit("matmul", [b.input("x", (rows, 8)), w])])


def test_what_the_log_has_for_a_target_is_taken(module: ScheduledModule, log: Path) -> None:
    own = module.report.results[0]
    assert own.best is not None
    target = replace(Target.cross("x86-64-v4", HOST.cores), vector_bytes=HOST.vector_bytes)
    target = replace(target, vector_registers=HOST.vector_registers)
    (slower,) = [r for r in read_log(log).records if r is not None and r.ok and not r.round][:1]
    named = replace(
        slower, target=f"{target.cpu}-{target.cores}c-0123abcd", task=own.best.record.task
    )
    assert retargeted(own, target, [named]).how == "tuned"
    other = replace(named, target=f"{target.cpu}-{target.cores + 1}c-0123abcd")
    damaged = replace(named, steps=({"step": "none"},))
    assert retargeted(own, target, [other, damaged]).how == "recompiled"


def test_targets_without_a_meaning_are_refused(module: ScheduledModule, tmp_path: Path) -> None:
    wrong: list[tuple[Any, str]] = [
        ([], "0 targets: give 1 to 32"),
        ([V3, V3], f"the target {V3} is named twice"),
        ([V3, "cortex-a53"], "not for aarch64 linux, x86_64 linux: save a folder for each"),
        (["z80"], "no target preset 'z80'"),
        (V3, "give a list"),
    ]
    for targets, told in wrong:
        with pytest.raises(UsageError, match=told):
            module.save(tmp_path / "net", targets=targets)
    with pytest.raises(UsageError, match="both given"):
        module.save(tmp_path / "net", target=V3, targets=[V3])
    with pytest.raises(ModelError, match="programs are not at hand"):
        compile_plain(net()).save(tmp_path / "net", targets=["cortex-a53"])
    assert not (tmp_path / "net").exists()
    assert isinstance(module.for_target("native"), CompiledModule)


def test_a_layout_is_undone() -> None:
    layout = Layout(((2, 3), (1, 4)), ((1, 0), (0, 0), (1, 1), (0, 1)))
    x = np.arange(15.0).reshape(5, 3)
    np.testing.assert_array_equal(layout.unpack(layout.pack(x), x.shape), x)
