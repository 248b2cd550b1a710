"""What is kept on disk: the same objects as without, whatever happens to the files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ansorlite import te
from ansorlite.codegen import object_cache, openmp
from ansorlite.codegen.build import build_program
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.kernel import Kernel
from ansorlite.ir.program import Program
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate
from ansorlite.target import Target

TARGET = Target.detect()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, which is on."""
    monkeypatch.setattr(object_cache, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(object_cache, "_written", {})
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", str(tmp_path))
    return tmp_path / object_cache.FOLDER


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that were really compiled."""
    found: list[Program] = []

    def build(program: Program, *rest: Any, **options: Any) -> KernelImage:
        found.append(program)
        return build_program(program, *rest, **options)

    monkeypatch.setattr(object_cache, "build_program", build)
    return found


def scaled(by: float = 2.0) -> Program:
    x = te.placeholder((5,), name="X")
    return lower(State(te.ComputeDAG([te.compute((5,), lambda i: x[i] * by, name="Y")])))


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_program_is_compiled_once(folder: Path, built: list[Program]) -> None:
    images = [object_cache.compiled(scaled(), TARGET) for _ in range(3)]
    assert images[0] == images[1] == images[2] == build_program(scaled(), TARGET)
    assert len(built) == 1
    (file,) = files(folder)
    assert file.stat().st_mode & 0o077 == 0 == folder.stat().st_mode & 0o077


def test_spans_are_kept(folder: Path, built: list[Program]) -> None:
    x = te.placeholder((64, 4), name="X")
    dag = te.ComputeDAG([te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="Y")])
    program = lower(State(dag).apply(Annotate("Y", "i", "parallel", 1)))
    target = Target.cross("x86-avx2", cores=2)
    first, again = (object_cache.compiled(program, target) for _ in range(2))
    assert first == again and first.spans[0] is not None and len(built) == 1


@pytest.mark.parametrize("what", ["program", "target", "symbol", "version", "code"])
def test_all_that_determines_an_object_is_its_key(
    what: str, folder: Path, built: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    object_cache.compiled(scaled(), TARGET)
    program = scaled(3.0) if what == "program" else scaled()
    target = Target.cross("x86-avx2", cores=1) if what == "target" else TARGET
    if what == "version":
        monkeypatch.setattr("llvmlite.__version__", "0.0")
    if what == "code":
        monkeypatch.setattr(object_cache, "_own_code", lambda: "other")
    object_cache.compiled(program, target, "other" if what == "symbol" else "ansorlite_kernel")
    assert len(built) == len(files(folder)) == 2


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "foreign"])
def test_a_damaged_entry_is_made_again(damage: str, folder: Path, built: list[Program]) -> None:
    right = object_cache.compiled(scaled(), TARGET)
    (file,) = files(folder)
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    wrong = {"empty": b"", "short": bytes(data[:-1]), "flipped": bytes(data), "foreign": b"x" * 99}
    file.write_bytes(wrong[damage])
    assert object_cache.compiled(scaled(), TARGET) == right
    assert len(built) == 2
    assert object_cache.compiled(scaled(), TARGET) == right
    assert len(built) == 2


def test_what_others_can_write_is_not_run(folder: Path, built: list[Program]) -> None:
    object_cache.compiled(scaled(), TARGET)
    (file,) = files(folder)
    file.chmod(0o666)
    object_cache.compiled(scaled(), TARGET)
    assert len(built) == 2
    folder.chmod(0o777)
    object_cache.compiled(scaled(), TARGET)
    assert len(built) == 3


def test_the_least_recently_used_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "MOST_BYTES", 10_000)
    for k in range(6):
        object_cache.save(str(k), bytes(1500))
        os.utime(folder / str(k), (k, k))
    assert object_cache.load("0") is not None  # now the most recently used one
    object_cache.save("6", bytes(1500))
    left = {f.name for f in files(folder)}
    assert {"0", "6"} <= left and not {"1", "2"} & left
    assert sum(f.stat().st_size for f in files(folder)) <= 0.75 * 10_000
    object_cache.save("large", bytes(9_000))
    assert object_cache.load("large") is None


@pytest.mark.parametrize("value", ["off", "OFF", "missing/file"])
def test_no_folder_is_no_error(
    value: str, tmp_path: Path, built: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "missing").write_text("in the way of a folder")
    path = value if value.lower() == "off" else str(tmp_path / value)
    monkeypatch.setattr(object_cache, "MOST_BYTES", 1 << 20)
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", path)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        object_cache.compiled(scaled(), TARGET)
    assert len(built) == 2
    assert [f.name for f in tmp_path.iterdir()] == ["missing"]


SHARED = """
import sys
from ansorlite.codegen import object_cache, openmp
for k in range(60):
    key = str(k % 7)
    data = object_cache.load(key)
    assert data in (None, key.encode() * 5000), key
    object_cache.save(key, key.encode() * 5000)
"""


def test_several_processes_share_a_folder(folder: Path) -> None:
    start = SHARED.replace("import sys", f"import sys\nsys.path[:0] = {sys.path!r}")
    start = start.replace("for k", "object_cache.MOST_BYTES = 20_000\nfor k", 1)
    line = [sys.executable, "-c", start]
    running = [subprocess.Popen(line, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert all(f.name in "0123456" for f in files(folder))


def test_a_kernel_from_the_cache_computes_the_same(folder: Path, built: list[Program]) -> None:
    x = np.arange(5, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(Kernel(scaled(), TARGET)(x), 2 * x)
    assert len(built) == 1


def test_the_thread_pool_is_compiled_once_on_a_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openmp.pool_object.cache_clear()
    first = openmp.pool_object(TARGET)
    openmp.pool_object.cache_clear()
    monkeypatch.setattr(openmp, "compile_module", None)
    assert openmp.pool_object(TARGET) == first
    openmp.pool_object.cache_clear()
    assert len(files(folder)) == 1
