"""Saved folders: any damage is reported before a file is used; saving is atomic."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ansorlite.codegen.build import build_program
from ansorlite.deployed import load_module
from ansorlite.errors import AnsorliteError, BuildError, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.deploy import checksum
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.manifest import DESCRIBED, METADATA, sealed
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state
from ansorlite.target import Target

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
ROOT = Path(__file__).parents[2]
X = np.linspace(-1, 1, 6, dtype=np.float32)


def dense(seed: int, names: tuple[str, str] = ("x", "y"), network: str = "dense") -> CompiledModule:
    """relu(x W) with weights of that seed, and its argument's weights as a second result."""
    b = GraphBuilder(network)
    x = b.input(names[0], (1, 6))
    w = b.constant(np.random.default_rng(seed).standard_normal((6, 4)).astype(np.float32))
    graph = optimize(b.finish([b.emit("relu", [b.emit("matmul", [x, w])], names[1]), w]))
    target, parts = Target.detect(), partition(graph)
    images = [build_program(lower(plain_state(t.dag, target)), target) for t in tasks(parts)]
    return CompiledModule(parts, images)


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    return dense(0)


@pytest.fixture(scope="module")
def pristine(module: CompiledModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return module.save(tmp_path_factory.mktemp("pristine") / "net")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense(1).save(tmp_path_factory.mktemp("other") / "net")


@pytest.fixture
def saved(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "net"))


def refused(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_module(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- names --------------------------------------------------------------------------------------

NAMES = (
    'a"b',
    "a\nb\r\t",
    "a*/b/*",
    "ends in \\",
    "??/ ??' trigraphs",
    "/* OUTPUTS */",
    "%s%n {0}",
    "nul\0 in it",
    "é 日本 \U0001f600 \u202e",
    "\ud800 alone",
    "\x1b[31mred\x07",
    "self",
    "0",
    "",
    "../../up",
    "x" * 10_000 + '"',
)


@needs_cc
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_can_be_saved_and_called(name: str, tmp_path: Path) -> None:
    module = dense(2, (name, f"{name} out"), name)
    net = load_module(module.save(tmp_path / "net"))
    assert net.inputs == (name,) and net.outputs[0] == f"{name} out"
    want = module(X[None])[0]
    np.testing.assert_array_equal(net(X[None])[0], want)
    np.testing.assert_array_equal(net(**{name: X[None]})[0], want)
    for file in ("network.c", "network.h", METADATA):
        assert (tmp_path / "net" / file).read_bytes().isascii()
    with pytest.raises(ModelError) as caught:
        net(X)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-trigraphs", "-fsyntax-only", "-xc"]
    subprocess.run([*command, tmp_path / "net/network.h"], check=True)
    subprocess.run([*command, tmp_path / "net/network.c"], check=True)


# ---- damage -------------------------------------------------------------------------------------


@needs_cc
def test_every_file_that_is_cut_grown_flipped_or_gone_is_told(pristine: Path, saved: Path) -> None:
    names = sorted(p.name for p in saved.iterdir())
    assert {"libnetwork.so", "network.c", "network.h", "weights.bin", "kernel0.o"} <= set(names)
    for name in names:
        file, data = saved / name, (pristine / name).read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 4
        for damaged in (b"", data[:-1], data[: len(data) // 2], data + b"\0", bytes(flipped)):
            if name == METADATA and damaged == data[:-1]:
                continue  # the line end
            file.unlink()
            file.write_bytes(damaged)
            assert name in refused(saved)
        file.unlink()
        assert name in refused(saved)
        for build in (file.mkdir, lambda f=file: os.mkfifo(f)):
            build()
            assert name in refused(saved)
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        file.symlink_to(pristine / name)  # a link to the right content is right
        load_module(saved)
        file.unlink()
        shutil.copyfile(pristine / name, file)
    load_module(saved)


@needs_cc
def test_files_of_another_network_are_told(pristine: Path, other: Path, saved: Path) -> None:
    same = []
    for name in sorted(p.name for p in saved.iterdir()):
        if (other / name).read_bytes() == (pristine / name).read_bytes():
            same.append(name)
            continue
        (saved / name).unlink()
        shutil.copyfile(other / name, saved / name)
        assert name == METADATA or name in refused(saved)
        refused(saved)
        (saved / name).unlink()
        shutil.copyfile(pristine / name, saved / name)
    assert "weights.bin" not in same and "libnetwork.so" not in same


def edited(folder: Path, change: Callable[[dict[str, Any]], None], seal: bool) -> None:
    """Change the manifest, and its sums as well if `seal`: as one does who knows them."""
    file = folder / METADATA
    metadata = json.loads(file.read_text())
    change(metadata)
    if seal:
        metadata = sealed({k: metadata[k] for k in DESCRIBED}, metadata["files"])
    file.write_text(json.dumps(metadata))


def smaller(m: dict[str, Any]) -> None:
    m["outputs"][0].update(shape=[1, 1], bytes=4)


def target(manifest: dict[str, Any], k: int) -> dict[str, Any]:
    return {**manifest["targets"][0], "name": str(k)}


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "smaller output": smaller,
    "larger input": lambda m: m["inputs"][0].update(shape=[1, 12], bytes=48),
    "other shape": lambda m: m["outputs"][0].update(shape=[4, 1]),
    "other dtype": lambda m: m["outputs"][0].update(dtype="int32"),
    "other name": lambda m: m["inputs"][0].update(name="z"),
    "fewer outputs": lambda m: m["outputs"].pop(),
    "another file": lambda m: m["files"].update({"../x": {"bytes": 0, "sha256": "0" * 64}}),
    "bytes": lambda m: m["outputs"][0].update(bytes=1),
    "object": lambda m: m["outputs"][0].update(dtype="object", bytes=32),
    "negative": lambda m: m["inputs"][0].update(shape=[-1, -6]),
    "huge": lambda m: m["inputs"][0].update(shape=[1, 10**40]),
    "true": lambda m: m["inputs"][0].update(shape=[True, 6]),
    "kernels": lambda m: m.update(kernels=0),
    "arena": lambda m: m.update(arena_bytes=1 << 50),
    "requires": lambda m: m["targets"][0].update(requires=[]),
    "no targets": lambda m: m.update(targets=[]),
    "other target": lambda m: m["targets"][0].update(name="x"),
    "twice": lambda m: m["targets"].append(m["targets"][0]),
    "many targets": lambda m: m.update(targets=[target(m, k) for k in range(99)]),
    "counts": lambda m: m["targets"][0].update(kernels={"tuned": "1"}),
}


@needs_cc
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_edited_manifest_is_told(saved: Path, change: Callable[..., None]) -> None:
    text = (saved / METADATA).read_text()
    edited(saved, change, seal=False)
    assert "it was changed after it was saved" in refused(saved)
    (saved / METADATA).write_text(text)
    edited(saved, change, seal=True)
    refused(saved)


TEXTS = {
    "nothing": b"",
    "a list": b"[]",
    "a number": b"2",
    "not UTF-8": b'{"format": 5, "network": "\xff"}',
    "deep": b'{"format": 5, "inputs": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "long number": b'{"format": 5, "kernels": ' + b"9" * 10_000 + b"}",
    "format true": b'{"format": true}',
    "format 2.0": b'{"format": 3.0}',
    "format deep": b'{"format": ' + b"[" * 500 + b"]" * 500 + b"}",
    "NaN": b'{"format": 5, "kernels": NaN}',
    "no keys": b'{"format": 3}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_texts_that_are_no_manifest(text: bytes, tmp_path: Path) -> None:
    (tmp_path / METADATA).write_bytes(text)
    assert len(refused(tmp_path)) < 500


@needs_cc
def test_every_key_is_needed_and_has_its_type(saved: Path) -> None:
    whole = json.loads((saved / METADATA).read_text())
    places = [whole, whole["inputs"][0], whole["files"]["weights.bin"]]
    for place in places:
        for key in list(place):
            if place is whole["inputs"][0] and key in ("kind", "offset"):
                continue
            kept = place[key]
            for wrong in (None, [], {}, "1", -1, 1.5, True):
                if wrong == kept and type(wrong) is type(kept):
                    continue
                place[key] = wrong
                (saved / METADATA).write_text(json.dumps(whole))
                refused(saved)
            del place[key]
            (saved / METADATA).write_text(json.dumps(whole))
            refused(saved)
            place[key] = kept


@needs_cc
def test_a_library_that_was_linked_later_is_that_of_its_folder(
    module: CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        folders = [module.save(tmp_path / "a"), dense(1).save(tmp_path / "b")]
    for folder in folders:
        link = json.loads((folder / METADATA).read_text())["link"].split()
        subprocess.run(link, cwd=folder, check=True)
    mixed = Path(shutil.copytree(folders[0], tmp_path / "mixed"))
    shutil.copyfile(folders[1] / "libnetwork.so", mixed / "libnetwork.so")
    assert "is another network's" in refused(mixed)
    (mixed / "libnetwork.so").unlink()
    (mixed / "none.c").write_text("int none;")
    subprocess.run(["cc", "-shared", "-o", "libnetwork.so", "none.c"], cwd=mixed, check=True)
    assert "is no library of a saved network" in refused(mixed)
    for folder in folders:
        load_module(folder)


@needs_cc
def test_a_network_that_was_saved_anew_in_the_same_place(
    module: CompiledModule, tmp_path: Path
) -> None:
    modules = [module, dense(1), dense(2, ("z", "y"))]
    nets = []
    for k in (0, 1, 2, 0, 1):
        nets.append(load_module(modules[k].save(tmp_path / "net")))
        shutil.rmtree(tmp_path / "net")
    for k, net in zip((0, 1, 2, 0, 1), nets, strict=True):
        for got, want in zip(net(X[None]), modules[k](X[None]), strict=True):
            np.testing.assert_array_equal(got, want)


@needs_cc
def test_forty_damaged_folders() -> None:
    command = [sys.executable, "scripts/damage_saved.py", "--count", "40", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    assert found["refused"] > 30 and found["right"] + found["refused"] == 40


@needs_cc
def test_what_names_no_folder(tmp_path: Path, module: CompiledModule) -> None:
    for wrong in (None, 3, "nul\0", tmp_path / ("x" * 300), b"bytes"):
        with pytest.raises(ModelError):
            load_module(wrong)  # type: ignore[arg-type]
        with pytest.raises(AnsorliteError):
            module.save(wrong)  # type: ignore[arg-type]


# ---- from C -------------------------------------------------------------------------------------

C_USER = """
#include <stdio.h>
#include "network.h"
int main(void) {
  const network_value *in, *out;
  const char *error = 0;
  int n = network_inputs(&in), m = network_outputs(&out);
  printf("%d %d %.*s %s %d %lld %lld %lld\\n", n, m, (int)in[0].name_bytes, in[0].name, in[0].dtype,
         in[0].rank, in[0].shape[0], in[0].shape[1], in[0].bytes);
  network *net = network_open("weights.bin", &error);
  printf("%s\\n", net ? "open" : error);
  network_close(net);
  return 0;
}
"""


@needs_cc
def test_c_programs_are_told_of_damaged_weights_and_of_the_tables(saved: Path) -> None:
    (saved / "user.c").write_text(C_USER)
    subprocess.run(["cc", "user.c", "./libnetwork.so", "-o", "user"], cwd=saved, check=True)

    def said() -> list[str]:
        done = subprocess.run(["./user"], cwd=saved, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    assert said() == ["1 2 x float32 2 1 6 24", "open"]
    file = saved / "weights.bin"
    right = file.read_bytes()
    wrong = [bytes(len(right)), right[8:16] + right[:8] + right[16:]]
    for bit in (0, 31, 63, 8 * 95 + 7):
        flipped = bytearray(right)
        flipped[bit // 8] ^= 1 << bit % 8
        wrong.append(bytes(flipped))
    twice = bytearray(right)  # the uppermost bits of two words
    twice[7] ^= 128
    twice[15] ^= 128
    for data in (*wrong, bytes(twice)):
        file.write_bytes(data)
        assert said()[1] == "the weights are damaged, or not this network's"
    file.write_bytes(right[:-1])
    assert said()[1] == "the weights are not there, or not this network's"
    file.unlink()
    os.mkfifo(file)
    assert said()[1] == "the weights are not there, or not this network's"


def test_the_checksum_does_not_depend_on_blocks() -> None:
    data = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
    whole = checksum(data, 0)
    parts = checksum(data[:1024], 0) + checksum(data[1024:], 128)
    assert (whole - parts) % (1 << 64) == 0


# ---- saving -------------------------------------------------------------------------------------


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@needs_cc
def test_the_places_that_a_network_can_be_saved_in(
    module: CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = module(X[None])[0]
    empty, linked, above = tmp_path / "empty", tmp_path / "linked", tmp_path / "a/b/c"
    empty.mkdir(0o750)
    (tmp_path / "pointee").mkdir()
    linked.symlink_to(tmp_path / "pointee")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for folder in (empty, linked, above, Path()):
        assert module.save(folder) == folder
        np.testing.assert_array_equal(load_module(folder)(X[None])[0], want)
        with pytest.raises(AnsorliteError, match="name a new folder"):
            module.save(folder)
    assert empty.stat().st_mode & 0o777 == 0o750
    assert Path.cwd() == here and "network.json" in left(here)
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "net"):
        with pytest.raises(AnsorliteError):
            module.save(folder)
    assert left(tmp_path) == ["a", "empty", "file", "here", "linked", "pointee"]


@needs_cc
def test_a_compiler_that_fails_leaves_nothing_behind(
    module: CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    place = tmp_path / "place"
    place.mkdir()
    cc, path = tools / "cc", os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tools}:{path}")
    for script in (
        "#!/bin/sh\necho no; echo more >&2; exit 3\n",
        "#!/bin/sh\nexit 0\n",
        "no script",
    ):
        cc.write_text(script)
        cc.chmod(0o755)
        with pytest.raises(
            BuildError, match=r"^cc cannot be run|^cc cannot link .*: (no more|it said nothing)$"
        ):
            module.save(place / "deep/net")
        assert not left(place)
    monkeypatch.setenv("PATH", path)
    module.save(place / "deep/net")


@needs_cc
def test_a_full_disk_leaves_nothing_behind(module: CompiledModule, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 64, 128, 1000, 5000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(AnsorliteError) as caught:
                module.save(tmp_path / "net")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(caught.value)
        assert not left(tmp_path)
    module.save(tmp_path / "net")


@needs_cc
@pytest.mark.parametrize("name", ["write_text", "write_bytes", "rename", "chmod"])
def test_an_interrupt_anywhere_leaves_nothing_behind(
    module: CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "net").mkdir()

    def stop(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, stop)
        with pytest.raises(KeyboardInterrupt):
            module.save(tmp_path / "net")
    assert left(tmp_path) == ["net"] and not left(tmp_path / "net")
    load_module(module.save(tmp_path / "net"))


SAVER = """
import os, sys, time
sys.path.insert(0, {tests!r})
from test_saved_folders import dense
from pathlib import Path
module = dense(0)
place = Path(sys.argv[1])
print("ready", flush=True)
module.save(place / "net")
"""
SLOW_CC = """#!/bin/sh
(sleep 60; touch "$TMPDIR/late") &
touch "$TMPDIR/ccXYZ.s"
touch {mark}
wait
"""


@needs_cc
def test_signals_leave_nothing_behind(module: CompiledModule, tmp_path: Path) -> None:
    """The saver is stopped while the compiler runs; what KILL left goes with the next save."""
    tools, place = tmp_path / "tools", tmp_path / "place"
    tools.mkdir()
    place.mkdir()
    mark = tmp_path / "mark"
    (tools / "cc").write_text(SLOW_CC.format(mark=mark))
    (tools / "cc").chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    code = textwrap.dedent(SAVER.format(tests=str(Path(__file__).parent)))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        mark.unlink(missing_ok=True)
        command = [sys.executable, "-c", code, str(place)]
        saver = subprocess.Popen(
            command, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        while not mark.exists() and saver.poll() is None:
            time.sleep(0.01)
        os.kill(saver.pid, number)
        saver.wait(timeout=60)
        assert saver.returncode == -number
        assert saver.stdout is not None
        saver.stdout.close()
        if number != signal.SIGKILL:
            assert not left(place)
    assert len(left(place)) == 1 and ".saving-" in left(place)[0]
    load_module(module.save(place / "net"))
    assert left(place) == ["net"]
