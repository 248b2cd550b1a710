"""A saved folder from C++ and from a Python that has nothing but ctypes."""

import array
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ansorlite
from ansorlite.deployed import load_module
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.sized_module import SizedModule
from ansorlite.pipeline import compile_plain

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
NAME = 'a "net" */ \\ \n of é'
INPUTS = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[True], [False]])


def net(rows: int = 2) -> Graph:
    """y = x * w where the row is chosen, else 0; and how many elements are below 3, as int64."""
    b = GraphBuilder(NAME)
    x, chosen = b.input("x", (rows, 3)), b.input("chosen", (rows, 1), "bool")
    zero = b.constant(np.zeros((1, 1), np.float32))
    y = b.emit("mul", [x, b.constant(np.array([[1.0, 2.0, 4.0]], np.float32))])
    return b.finish([b.emit("where", [chosen, y, zero]), b.emit("reshape", [x], shape=(3 * rows,))])


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    return compile_plain(net())


@pytest.fixture(scope="module")
def folder(module: CompiledModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return module.save(tmp_path_factory.mktemp("saved") / "net")


@pytest.fixture(scope="module")
def sized(module: CompiledModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    both = SizedModule([module, compile_plain(net(4))], ["2", "4"])
    return both.save(tmp_path_factory.mktemp("saved") / "sized")


def wrapper(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("network", folder / "network.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_python_without_any_package(folder: Path, module: CompiledModule) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(folder)!r})
import array
from network import Network
with Network() as net:
    y, flat = net(array.array("f", range(6)), bytes([1, 0]))
    assert (y.format, y.shape, flat.shape) == ("f", (2, 3), (6,))
    print(*(v for row in y.tolist() for v in row))
    print(ascii(net.name), net.version, *(v.name for v in net.inputs))
"""
    command = [sys.executable, "-I", "-S", "-c", code]  # no site-packages
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    numbers, about = done.stdout.splitlines()
    np.testing.assert_array_equal(np.fromstring(numbers, sep=" "), module(*INPUTS)[0].reshape(-1))
    assert about == f"{NAME!a} {ansorlite.__version__} x chosen"


def test_arrays_of_numpy_are_read_and_results_are_theirs(
    folder: Path, module: CompiledModule
) -> None:
    network = wrapper(folder).Network()
    frozen = INPUTS[0].copy()
    frozen.flags.writeable = False
    for x in (INPUTS[0], frozen, INPUTS[0].reshape(-1), INPUTS[0].tobytes()):
        got = network(x, INPUTS[1])
        for y, want in zip(got, module(*INPUTS), strict=True):
            np.testing.assert_array_equal(np.asarray(y), want)
    kept = np.asarray(got[0])
    network(INPUTS[0] + 1, INPUTS[1])
    network.close()
    np.testing.assert_array_equal(kept, module(*INPUTS)[0])
    with pytest.raises(RuntimeError, match="closed"):
        network(*INPUTS)


def test_what_does_not_fit_is_told(folder: Path, tmp_path: Path) -> None:
    made = wrapper(folder)
    network, (x, chosen) = made.Network(), INPUTS
    wrong: list[tuple[Any, str]] = [
        ((x,), "takes 2 inputs, not 1"),
        ((x.astype(np.float64), chosen), "'x' is float32"),
        ((x.astype(np.int32), chosen), "'x' is float32"),
        ((x.T.copy(), chosen), "'x' is float32"),
        ((np.ones((3, 3), np.float32), chosen), "'x' is float32"),
        ((np.ones((2, 6), np.float32)[:, ::2], chosen), "not C-contiguous"),
        ((b"123", chosen), "'x' is float32"),
    ]
    for arrays, told in wrong:
        with pytest.raises(ValueError, match=told):
            network(*arrays)
    with pytest.raises(ValueError, match="there is no 1"):
        network(x, chosen, size=1)
    for n in (0, 1.5, "2"):
        with pytest.raises(ValueError, match="threads"):
            network.threads = n
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        made.Network(tmp_path)
    (tmp_path / "w").write_bytes(b"x")
    with pytest.raises(RuntimeError, match="not this network's"):
        made.Network(folder, weights=str(tmp_path / "w"))


def test_threads_version_and_names(folder: Path) -> None:
    network, native = wrapper(folder).Network(), load_module(folder)
    assert (network.version, network.identity) == (
        ansorlite.__version__,
        native.metadata["identity"],
    )
    before = network.threads
    network.threads = 3
    assert network.threads == 3
    network.threads = before
    known = [tuple(v.values()) for v in native.metadata["inputs"]]
    assert [(v.name, list(v.shape), v.dtype, v.bytes) for v in network.inputs] == known
    done = subprocess.run(
        [sys.executable, folder / "network.py"], capture_output=True, text=True, check=True
    )
    assert "saved by ansorlite" in done.stdout and "input 'x': float32[2, 3]" in done.stdout


def test_sizes_are_found_by_shapes(sized: Path) -> None:
    network = wrapper(sized).Network()
    for rows in (2, 4):
        x, chosen = np.ones((rows, 3), np.float32), np.ones((rows, 1), bool)
        y, flat = network(x, chosen)
        assert (y.shape, flat.shape) == ((rows, 3), (3 * rows,))
    assert network(array.array("f", [1] * 12), bytes(4), size=1)[0].shape == (4, 3)
    with pytest.raises(ValueError, match=r"no size has inputs of .* these are"):
        network(np.ones((3, 3), np.float32), np.ones((3, 1), bool))


PROGRAM = """
#include <cstdio>
#include "network.hpp"
int main(int, char **argv) {
  using ansorlite::Network;
  if (Network::version() != VERSION || Network::sizes() != 2) return 10;
  Network::set_threads(2);
  if (Network::threads() != 2 || Network::inputs(1)[0].shape[0] != 4) return 11;
  int size = Network::size_of({{4, 3}, {4, 1}});
  Network first(argv[1]), net(std::move(first));
  std::vector<float> x = net.input<float>(0, size), y = net.output<float>(0, size);
  std::vector<float> flat = net.output<float>(1, size);
  std::vector<char> chosen = net.input<char>(1, size);
  for (size_t k = 0; k < x.size(); k++) x[k] = k;
  for (char &c : chosen) c = 1;
  net.run({x.data(), chosen.data()}, {y.data(), flat.data()}, size);
  for (float v : y) std::printf("%g ", v);
  std::puts("");
  int told = 0;
  using Error = std::runtime_error;
  try { net.run({x.data()}, {y.data(), flat.data()}, size); } catch (Error &) { told++; }
  try { net.run({}, {}, 2); } catch (Error &) { told++; }
  try { net.input<double>(0); } catch (Error &) { told++; }
  try { Network::size_of({{5, 3}, {5, 1}}); } catch (Error &) { told++; }
  try { Network::size_of({{4}}); } catch (Error &) { told++; }
  try { Network missing("none"); } catch (std::runtime_error &e) { std::puts(e.what()); told++; }
  return told == 6 ? 0 : 12;
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_a_cpp_program(sized: Path, tmp_path: Path) -> None:
    program = tmp_path / "main.cpp"
    program.write_text(PROGRAM)
    built = tmp_path / "main"
    version = f'-DVERSION="{ansorlite.__version__}"'
    strict = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", version]
    library = [f"-I{sized}", str(sized / "libnetwork.so"), f"-Wl,-rpath,{sized}"]
    subprocess.run(["c++", *strict, "-o", built, program, *library], check=True)
    done = subprocess.run([built, sized / "weights.bin"], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    numbers, missing = done.stdout.splitlines()
    want = np.arange(12, dtype=np.float32).reshape(4, 3) * [1, 2, 4]
    np.testing.assert_array_equal(np.fromstring(numbers, sep=" "), want.reshape(-1))
    assert missing.startswith("none: the weights are not there")
