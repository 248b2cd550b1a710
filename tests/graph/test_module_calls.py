"""Calls of compiled and of saved networks: any arrays, kept results, copies, threads, forks."""

import copy
import multiprocessing
import os
import pickle
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ansorlite.calls import aligned_empty
from ansorlite.codegen.build import build_program
from ansorlite.deployed import load_module
from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state
from ansorlite.target import Target

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
W = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
KNOWN = np.arange(3, dtype=np.float32)


def build() -> CompiledModule:
    """Seven outputs of all origins: kernels, the same again, a view, an input, a constant."""
    b = GraphBuilder("origins")
    x = b.input("x", (64, 40))
    product = b.emit("relu", [b.emit("matmul", [x, b.constant(W)])], "product")
    deep = b.emit("exp", [b.emit("mul", [product, b.constant(np.float32(0.01))])], "deep")
    view = b.emit("reshape", [product], "view", shape=(4096,))
    flat = b.emit("reshape", [x], "flat", shape=(2560,))
    outputs = [product, deep, view, product, x, flat, b.constant(KNOWN, "known")]
    return compiled_plain(b.finish(outputs))


def compiled_plain(graph: Graph) -> CompiledModule:
    target, parts = Target.detect(), partition(optimize(graph))
    images = [build_program(lower(plain_state(t.dag, target)), target) for t in tasks(parts)]
    return CompiledModule(parts, images)


@pytest.fixture(scope="module")
def compiled() -> CompiledModule:
    return build()


@pytest.fixture(scope="module", params=["compiled", pytest.param("saved", marks=needs_cc)])
def net(request: Any, compiled: CompiledModule, tmp_path_factory: Any) -> Any:
    if request.param == "compiled":
        return compiled
    return load_module(compiled.save(tmp_path_factory.mktemp("saved") / "net"))


def given(k: int = 0, shift: int = 0) -> np.ndarray:
    memory = aligned_empty((64 * 40 * 4 + shift,), "uint8")[shift:]
    x = np.ndarray((64, 40), np.float32, buffer=memory.data)
    x[...] = np.random.default_rng(k).standard_normal((64, 40))
    return x


def right(x: np.ndarray, results: Any) -> bool:
    product = np.maximum(x @ W, 0)
    wanted = [product, np.exp(0.01 * product), product.ravel(), product, x, x.ravel(), KNOWN]
    return all(np.allclose(a, b, 1e-4, 1e-4) for a, b in zip(wanted, results, strict=True))


@pytest.mark.parametrize("shift", [0, 1, 4, 16, 52])
def test_inputs_may_begin_anywhere(net: Any, shift: int) -> None:
    x = given(1, shift)
    assert right(x, net(x)) and right(x, net(x=x))
    assert right(x, net(np.asfortranarray(x)))


def test_results_are_the_callers(net: Any) -> None:
    xs = [given(k) for k in range(6)]
    kept = [net(x) for x in xs]
    assert all(right(x, results) for x, results in zip(xs, kept, strict=True))
    x = given(9)
    results = net(x)
    places = {y.ctypes.data for y in results}
    assert len(places) == len(results) and x.ctypes.data not in places
    results[0][...] = -1.0
    results[6][...] = -1.0
    assert right(given(9), net(given(9)))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "takes 1 inputs"),
        ((given().astype(">f4"),), "input x has dtype >f4, expected float32"),
        ((given()[:, :39],), r"input x has shape \(64, 39\), expected \(64, 40\)"),
        (([[1.0], [2.0, 3.0]],), "input x is no array"),
        ((None,), r"input x has shape \(\)"),
    ],
)
def test_wrong_inputs_are_one_kind_of_error(net: Any, args: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        net(*args)


def test_one_dict_of_arrays(net: Any) -> None:
    x = given(4)
    assert right(x, net({"x": x})) and right(x, net(x=x))
    for wrong, text in (
        (({"z": x},), r"the network has no input z \(it has: x\)"),
        (({3: x},), "the network has no input 3"),
        (({},), "no value is given for input x"),
        (({"x": x}, x), "takes 1 inputs"),
        (({"x": x[:1]},), r"input x has shape \(1, 40\)"),
    ):
        with pytest.raises(ModelError, match=text):
            net(*wrong)
    with pytest.raises(ModelError, match="in order or by name, not both"):
        net({"x": x}, x=x)


def test_copies_and_pickles(net: Any) -> None:
    x = given(3)
    for made in (copy.deepcopy(net), copy.copy(net), pickle.loads(pickle.dumps(net))):
        assert made is not net and right(x, made(x))


def test_threads_share_a_network(net: Any) -> None:
    wrong: list[int] = []

    def caller(k: int) -> None:
        x = given(k)
        wrong.extend(k for _ in range(50) if not right(x, net(x)))

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(8)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong


def in_child(check: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return child


def test_children_of_forks_run_it(net: Any) -> None:
    x = given(4)
    assert right(x, net(x))
    with net._lock:  # as if another thread were in a call
        children = [in_child(lambda: all(right(x, net(x)) for _ in range(20))) for _ in range(4)]
    assert all(right(x, net(x)) for _ in range(20))
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _square(net: Any, k: int) -> bool:
    x = given(k)
    return right(x, net(x))


def test_pools_of_processes_run_it(net: Any) -> None:
    _square(net, 0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap(_square, [(net, k) for k in range(4)]) == [True] * 4


OVERLAPPING = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "network.h"

/* Inputs and outputs in one block: result 0 begins inside of the input. */
static int run(network *net, const float *x, const char *file) {
  const network_value *told;
  int n = network_outputs(&told);
  void *outputs[16];
  char *block = malloc(1 << 20);
  memcpy(block, x, 64 * 40 * 4);
  const void *inputs[] = {block};
  outputs[0] = block + 128;
  long long at = 1 << 17;
  for (int k = 1; k < n; k++) { outputs[k] = block + at; at += told[k].bytes + 4; }
  if (network_run(net, inputs, outputs)) return 1;
  FILE *out = fopen(file, "wb");
  for (int k = 0; k < n; k++) fwrite(outputs[k], 1, told[k].bytes, out);
  fclose(out);
  free(block);
  return 0;
}

int main(int argc, char **argv) {
  const char *why = "?";
  network *net = network_open(argv[1], &why);
  float *x = malloc(64 * 40 * 4);
  FILE *in = fopen(argv[2], "rb");
  if (!net || fread(x, 4, 64 * 40, in) != 64 * 40) { puts(why); return 2; }
  if (run(net, x, "parent.bin")) return 3;
  pid_t child = fork();
  if (!child) { alarm(20); _exit(run(net, x, "child.bin")); }
  int status;
  waitpid(child, &status, 0);
  network_close(net);
  return status;
}
"""


@needs_cc
def test_c_programs_fork_and_may_let_outputs_overlap_inputs(
    compiled: CompiledModule, tmp_path: Path
) -> None:
    saved = compiled.save(tmp_path / "net")
    (tmp_path / "use.c").write_text(OVERLAPPING)
    x = given(5)
    x.tofile(tmp_path / "x.bin")
    subprocess.run(
        ["cc", "-I", saved, "-o", "use", "use.c", saved / "libnetwork.so", f"-Wl,-rpath,{saved}"],
        cwd=tmp_path,
        check=True,
    )
    subprocess.run(["./use", saved / "weights.bin", "x.bin"], cwd=tmp_path, check=True, timeout=60)
    sizes = [4096, 4096, 4096, 4096, 2560, 2560, 3]
    for name in ("parent.bin", "child.bin"):
        flat = np.fromfile(tmp_path / name, np.float32)
        found = np.split(flat, np.cumsum(sizes)[:-1])
        product = np.maximum(x @ W, 0).ravel()
        wanted = [product, np.exp(0.01 * product), product, product, x.ravel(), x.ravel(), KNOWN]
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_allclose(a, b, 1e-4, 1e-4)


@needs_cc
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_saved_networks_check_indices(dtype: str, tmp_path: Path) -> None:
    b = GraphBuilder("taken")
    x, i = b.input("x", (5, 2)), b.input("i", (3,), dtype)
    j = b.emit("add", [i, b.constant(np.array(1, dtype))])
    net = compiled_plain(
        b.finish([b.emit("take", [x, i], axis=0), b.emit("take", [x, j], "late", axis=0), j])
    )
    loaded = load_module(net.save(tmp_path / "net"))
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    for module in (net, loaded):
        for indices in ([0, 3, -2], [-5, 1, 3], [2, 2, 2]):
            given = np.array(indices, dtype)
            early, late, _ = module(rows, given)
            np.testing.assert_array_equal(early, rows[given])
            np.testing.assert_array_equal(late, rows[given + 1])
        for wrong in ([0, 5, 0], [0, 4, 0], [-7, 0, 0], [np.iinfo(dtype).max, 0, 0]):
            with pytest.raises(ModelError, match="indices are from -5 to 4"):
                module(rows, np.array(wrong, dtype))


@needs_cc
def test_outputs_that_are_parts_of_other_values(tmp_path: Path) -> None:
    """Of an input, of an output, and of a value that is none."""
    b = GraphBuilder("parts")
    x = b.input("x", (6, 8))
    product = b.emit("matmul", [x, b.constant(W[:8, :5])], "product")
    hidden = b.emit("matmul", [x, b.constant(W[8:16, :3])], "hidden")
    parts = [b.emit("part", [v], start=6, shape=(4, 3)) for v in (x, product, hidden)]
    ends = [b.emit("exp", [b.emit("part", [v], start=3, shape=(9,))]) for v in (x, hidden)]
    net = compiled_plain(b.finish([*parts, product, *ends]))
    xs = np.random.default_rng(1).standard_normal((2, 6, 8)).astype(np.float32)
    saved = load_module(net.save(tmp_path / "net"))
    for call in (net, saved, pickle.loads(pickle.dumps(net))):
        for given in xs:
            wide, low = given @ W[:8, :5], given @ W[8:16, :3]
            wanted = [v.reshape(-1)[6:18].reshape(4, 3) for v in (given, wide, low)]
            wanted += [wide, *(np.exp(v.reshape(-1)[3:12]) for v in (given, low))]
            for got, want in zip(call(given), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
