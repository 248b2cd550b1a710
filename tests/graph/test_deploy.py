"""Saved networks: the same numbers from Python without this package's tools, and from C."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ansorlite.codegen.build import build_program
from ansorlite.deployed import load_module
from ansorlite.errors import AnsorliteError, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.manifest import DESCRIBED, METADATA, sealed
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state
from ansorlite.target import Target

ROOT = Path(__file__).parents[2]
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def small_net() -> Graph:
    """A convolution, a pool, a dense layer; of three outputs one is a view, one a constant."""
    b = GraphBuilder("small")
    x = b.input("x", (2, 3, 8, 8))
    window = {"dilations": (1, 1), "layout": "channels_first"}
    y = b.emit(
        "conv",
        [x, b.constant(normal(6, 3, 3, 3))],
        strides=(1, 1),
        pads=((1, 1),) * 2,
        groups=1,
        **window,
    )
    y = b.emit("relu", [y], "features")
    z = b.emit(
        "max_pool",
        [y],
        kernel=(2, 2),
        strides=(2, 2),
        pads=((0, 0),) * 2,
        ceil_mode=False,
        **window,
    )
    flat = b.emit("reshape", [z], shape=(2, 96))
    out = b.emit("matmul", [flat, b.constant(normal(96, 5))], "logits")
    scaled = b.emit("mul", [out, b.input("factor", (2, 1))])
    view = b.emit("reshape", [scaled], "rows", shape=(10,))
    return b.finish([scaled, view, b.constant(normal(4), "known")])


def compiled(graph: Graph) -> CompiledModule:
    target, parts = Target.detect(), partition(optimize(graph))
    images = [build_program(lower(plain_state(t.dag, target)), target) for t in tasks(parts)]
    return CompiledModule(parts, images)


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    return compiled(small_net())


@pytest.fixture
def saved(module: CompiledModule, tmp_path: Path) -> Path:
    return module.save(tmp_path / "net")


INPUTS = normal(2, 3, 8, 8), normal(2, 1)


@needs_cc
def test_the_same_numbers_in_a_process_without_the_tools(
    module: CompiledModule, saved: Path, tmp_path: Path
) -> None:
    for k, x in enumerate(INPUTS):
        np.save(tmp_path / f"x{k}.npy", x)
    code = f"""
import sys
for name in ("llvmlite", "lightgbm", "networkx", "tqdm", "onnx"):
    sys.modules[name] = None
import numpy as np
import ansorlite as al
net = al.load_module({str(saved)!r})
out = net(*(np.load(r"{tmp_path}/x%d.npy" % k) for k in range(2)))
again = net(**{{"factor": np.load(r"{tmp_path}/x1.npy"), "x": np.load(r"{tmp_path}/x0.npy")}})
for k, (y, z) in enumerate(zip(out, again)):
    assert np.array_equal(y, z)
    np.save(r"{tmp_path}/y%d.npy" % k, y)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    for k, want in enumerate(module(*INPUTS)):
        got = np.load(tmp_path / f"y{k}.npy")
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


EXAMPLE = """
#include <stdio.h>
#include "network.h"
int main(void) {
  static float x[384], factor[2], y[10], rows[10], known[4];
  const char *error = 0;
  network *net = network_open("weights.bin", &error);
  if (!net) { printf("%s", error); return 1; }
  for (int k = 0; k < 384; k++) x[k] = (float)(k % 17) / 17;
  factor[0] = 1.5f; factor[1] = -2.0f;
  const void *in[] = {x, factor};
  void *out[] = {y, rows, known};
  network_set_threads(1);
  network_run(net, in, out);
  for (int k = 0; k < 10; k++) printf("%.9g ", y[k]);
  network_close(net);
  return 0;
}
"""


@needs_cc
def test_a_c_program_prints_the_same_numbers(module: CompiledModule, saved: Path) -> None:
    (saved / "example.c").write_text(EXAMPLE)
    subprocess.run(["cc", "example.c", "./libnetwork.so", "-o", "example"], cwd=saved, check=True)
    printed = subprocess.run(["./example"], cwd=saved, check=True, stdout=subprocess.PIPE).stdout
    x = (np.arange(384) % 17).astype(np.float32) / np.float32(17)
    factor = np.asarray([[1.5], [-2.0]], np.float32)
    want, *_ = module(x.reshape(2, 3, 8, 8), factor)
    np.testing.assert_allclose([float(v) for v in printed.split()], want.ravel(), rtol=1e-6)


@needs_cc
def test_several_handles_and_wrong_weights(saved: Path, module: CompiledModule) -> None:
    nets = [load_module(saved) for _ in range(3)]
    want = module(*INPUTS)
    for net in nets:
        assert net.inputs == ("x", "factor") and len(net.outputs) == 3
        for x, y in zip(net(*INPUTS), want, strict=True):
            np.testing.assert_array_equal(x, y)
    (saved / "weights.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"weights.bin is damaged: it has 5 bytes, not \d+"):
        load_module(saved)


@needs_cc
def test_wrong_inputs(saved: Path) -> None:
    net = load_module(saved)
    with pytest.raises(ModelError, match="takes 2 inputs"):
        net(INPUTS[0])
    with pytest.raises(ModelError, match="input x has dtype float64, expected float32"):
        net(INPUTS[0].astype(np.float64), INPUTS[1])
    with pytest.raises(ModelError, match="has no input z"):
        net(z=INPUTS[0])
    with pytest.raises(ModelError, match="no value is given for input factor"):
        net(x=INPUTS[0])


def test_folders_that_are_no_network(tmp_path: Path, module: CompiledModule) -> None:
    with pytest.raises(ModelError, match="holds no saved network"):
        load_module(tmp_path / "none")
    (tmp_path / "network.json").write_text("{")
    with pytest.raises(ModelError, match="is damaged"):
        load_module(tmp_path)
    (tmp_path / "network.json").write_text('{"format": 99}')
    with pytest.raises(ModelError, match="has format 99; this version reads 5"):
        load_module(tmp_path)
    with pytest.raises(AnsorliteError, match="name a new folder"):
        module.save(tmp_path)


def resealed(folder: Path, **changes: Any) -> None:
    """Edit the manifest as one who knows how it is sealed."""
    file = folder / METADATA
    metadata = json.loads(file.read_text()) | changes
    described = {k: metadata[k] for k in DESCRIBED}
    file.write_text(json.dumps(sealed(described, metadata["files"])))


def test_a_cpu_that_lacks_a_feature_is_refused(saved: Path) -> None:
    (own,) = json.loads((saved / METADATA).read_text())["targets"]
    resealed(saved, targets=[{**own, "requires": ["avx1024"]}])
    with pytest.raises(ModelError, match="this CPU lacks avx1024"):
        load_module(saved)
    resealed(saved, triple="riscv64-unknown-linux-gnu")
    with pytest.raises(ModelError, match="is riscv64 code"):
        load_module(saved)


@needs_cc
def test_without_a_compiler_the_parts_are_there(
    module: CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = module.save(tmp_path / "net")
    names = {p.name for p in folder.iterdir()}
    assert {"network.h", "network.c", "network.json", "weights.bin", "kernel0.o"} <= names
    with pytest.raises(ModelError, match=r"has no libnetwork.so: link it there with: cc"):
        load_module(folder)
    monkeypatch.undo()
    subprocess.run(
        json.loads((folder / METADATA).read_text())["link"].split(), cwd=folder, check=True
    )
    for x, y in zip(load_module(folder)(*INPUTS), module(*INPUTS), strict=True):
        np.testing.assert_array_equal(x, y)
    library = (folder / "libnetwork.so").read_bytes()
    for size in (0, 10, 63, 64, 1000, len(library) // 2, len(library) - 1):
        (folder / "libnetwork.so").unlink()
        (folder / "libnetwork.so").write_bytes(library[:size])
        with pytest.raises(ModelError, match="it is no library, or cut short"):
            load_module(folder)
