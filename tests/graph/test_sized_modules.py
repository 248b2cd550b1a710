"""Networks of several sizes: one module, weights once, found by shapes, saved as one folder."""

import copy
import json
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import ansorlite as al
from ansorlite.deployed import load_module
from ansorlite.errors import ModelError, SizesError, UsageError
from ansorlite.graph.ir import evaluate
from ansorlite.graph.kernels import plain_image
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.graph.pool import ConstantPool
from ansorlite.graph.sized_module import SizedModule
from ansorlite.manifest import DESCRIBED, METADATA, sealed
from ansorlite.records import read_log
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.tuner import TaskTuner
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target

FEW = EvolutionParams(population=32, generations=1, looked_at_first=4)
QUICK: dict[str, Any] = {"n_trials": 0, "params": FEW, "progress": False, "exact": True}
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def proto() -> onnx.ModelProto:
    """A dense layer and the mean over its rows; x[n, w, 6], factor[n, 1]."""
    w1 = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Mul", ["m", "factor"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "sized",
        [info("x", 1, ["n", "w", 6]), info("factor", 1, ["n", 1])],
        [info("y", 1, ["n", 40])],
        [onnx.numpy_helper.from_array(w1, "w1")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def inputs(n: int, w: int) -> list[Any]:
    rng = np.random.default_rng([n, w])
    shapes = (n, w, 6), (n, 1)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def check(call: Any, n: int, w: int) -> None:
    given = inputs(n, w)
    (want,) = evaluate(load_onnx(proto(), dims={"n": n, "w": w}), given)
    np.testing.assert_allclose(call(*given), want, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def net() -> Any:
    return load_onnx(proto(), shapes={"x": [(1, 8, 6), (2, 12, 6)]})


@pytest.fixture(scope="module")
def module(net: Any) -> Any:
    return al.auto_schedule(net, **QUICK)


SIZES = [(1, 8), (2, 12)]


def test_a_call_runs_the_size_of_its_arrays(module: Any) -> None:
    for n, w in SIZES:
        check(module, n, w)
        x, factor = inputs(n, w)
        want = module(x, factor)
        for y in (
            module(x=x, factor=factor),
            module({"factor": factor, "x": x}),
            module(x.tolist() and np.ascontiguousarray(x), factor),
        ):
            np.testing.assert_array_equal(y, want)
    assert module.size_of(*inputs(2, 12)) is module.modules[1]
    rows = module.profile(*inputs(1, 8), repeats=1).rows
    assert len(rows) == len(module.modules[0].partition.subgraphs)
    assert "2 sizes" in str(module)


def test_shapes_that_are_not_listed(module: Any) -> None:
    with pytest.raises(SizesError) as caught:
        module(*inputs(1, 9))
    told = str(caught.value)
    assert "not compiled for x [1, 9, 6], factor [1, 1]; its sizes are x [1, 8, 6]" in told
    assert all(f"x [{n}, {w}, 6]" in told for n, w in SIZES) and "on_new_shape" in told
    with pytest.raises(ModelError, match="takes 2 inputs"):
        module(inputs(1, 8)[0])
    with pytest.raises(ModelError, match="input x is no array"):
        module([[1], [1, 2]], inputs(1, 8)[1])


def test_weights_are_held_once(net: Any) -> None:
    """Where layouts agree, as those of plain schedules do."""
    target, pool = Target.detect(), ConstantPool()
    modules = []
    for graph in net.graphs:
        parts = partition(optimize(graph))
        images = [plain_image(w.task) for w in network_tasks(parts, target)]
        modules.append(CompiledModule(parts, images, None, pool))
    module = SizedModule(modules, net.labels)
    assert module.weights_bytes == 6 * 40 * 4 == modules[0].weights_bytes
    check(module, 1, 8)
    check(module, 2, 12)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.weights_bytes == module.weights_bytes
        check(other, 2, 12)
        with pytest.raises(SizesError):
            other(*inputs(3, 8))


def test_tasks_of_all_sizes_are_tuned_under_one_budget(net: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tuned = al.auto_schedule(net, 10, log=log, params=FEW, progress=False, exact=True)
    rows = tuned.report.rows
    assert sum(r.trials for r in rows) == 10 == len(read_log(log).records)
    assert len(rows) == sum(len(m.report.rows) for m in tuned.modules)
    for n, w in SIZES:
        check(tuned, n, w)


# ---- new shapes ---------------------------------------------------------------------------------


def test_new_shapes_are_compiled_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = load_onnx(proto(), dims={"n": 1, "w": [8]})
    module = al.auto_schedule(small, **QUICK, on_new_shape="compile")
    asked: list[str] = []
    guessed = TaskTuner.guessed

    def noted(self: TaskTuner) -> Any:
        asked.append(self.task.name)
        return guessed(self)

    monkeypatch.setattr(TaskTuner, "guessed", noted)
    check(module, 1, 16)
    check(module, 1, 16)
    assert not any("matmul" in name for name in asked)  # the known program is adapted
    assert len(module.modules) == 2 and module.labels[1] == "x=1x16x6"
    with pytest.raises(ModelError, match="contradicts the model"):
        module(np.zeros((1, 8, 7), np.float32), np.zeros((1, 1), np.float32))
    with pytest.raises(ModelError, match="axis n is"):
        module(np.zeros((1, 8, 6), np.float32), np.zeros((2, 1), np.float32))


def test_new_shapes_from_measured_programs(tmp_path: Path) -> None:
    small: Any = load_onnx(proto(), dims={"n": 1, "w": [8]})
    log = tmp_path / "log"
    module = al.auto_schedule(small, 6, log=log, params=FEW, progress=False, on_new_shape="compile")
    before = log.read_bytes()
    check(module, 1, 10)
    assert log.read_bytes() == before


def test_on_new_shape_without_a_meaning() -> None:
    one = load_onnx(proto(), dims={"n": 1, "w": 8})
    with pytest.raises(UsageError, match="needs a network of sizes: load it with a list"):
        al.auto_schedule(one, **QUICK, on_new_shape="compile")
    with pytest.raises(UsageError, match="on_new_shape is 'guess': choose"):
        al.auto_schedule(one, **QUICK, on_new_shape="guess")


# ---- saved --------------------------------------------------------------------------------------

EXAMPLE = """
#include <stdio.h>
#include "network.h"
int main(void) {
  static float x[2 * 12 * 6], factor[2] = {1.5f, -2.0f}, y[80];
  const char *error = 0;
  network *net = network_open("weights.bin", &error);
  if (!net) { printf("%s", error); return 1; }
  const long long rows[] = {2, 12, 6}, column[] = {2, 1}, odd[] = {2, 13, 6};
  const long long *shapes[] = {rows, column}, *none[] = {odd, column};
  for (int k = 0; k < 2 * 12 * 6; k++) x[k] = (float)(k % 17) / 17;
  const void *in[] = {x, factor};
  void *out[] = {y};
  const network_value *values;
  if (network_outputs_of(1, &values) != 1 || values->shape[0] != 2) return 2;
  if (network_run_size(net, 9, in, out) != 3 || network_inputs_of(2, &values) != -1) return 3;
  printf("%d %d %d ", network_sizes(), network_size_of(shapes), network_size_of(none));
  network_run_size(net, network_size_of(shapes), in, out);
  for (int k = 0; k < 80; k++) printf("%.9g ", y[k]);
  network_close(net);
  return 0;
}
"""


@needs_cc
def test_all_sizes_are_saved_as_one_folder(module: Any, tmp_path: Path) -> None:
    folder = module.save(tmp_path / "net")
    loaded = load_module(folder)
    for n, w in SIZES:
        x, factor = inputs(n, w)
        want = module(x, factor)
        np.testing.assert_array_equal(loaded(x, factor), want)
        np.testing.assert_array_equal(loaded({"factor": factor, "x": x}), want)
        np.testing.assert_array_equal(loaded(factor=factor, x=x), want)
    with pytest.raises(SizesError, match=r"not compiled for x \[3, 8, 6\]"):
        loaded(*inputs(3, 8))
    padded = module.weights_bytes + 64 * sum(len(m.constants) for m in module.modules)
    assert (folder / "weights.bin").stat().st_size <= padded
    (folder / "example.c").write_text(EXAMPLE)
    strict = ["-Wall", "-Wextra", "-Werror"]
    command = ["cc", *strict, "example.c", "./libnetwork.so", "-o", "example"]
    subprocess.run(command, cwd=folder, check=True)
    printed = subprocess.run(["./example"], cwd=folder, check=True, stdout=subprocess.PIPE).stdout
    first, second, third, *values = printed.split()
    assert (first, second, third) == (b"2", b"1", b"-1")
    x = ((np.arange(144) % 17).astype(np.float32) / np.float32(17)).reshape(2, 12, 6)
    want = module(x, np.asarray([[1.5], [-2.0]], np.float32))
    np.testing.assert_allclose([float(v) for v in values], want.ravel(), rtol=1e-6)


@needs_cc
def test_a_manifest_of_other_sizes_is_told(module: Any, tmp_path: Path) -> None:
    folder = module.save(tmp_path / "net")
    text = (folder / METADATA).read_text()
    for change in (
        lambda m: m["more_sizes"].pop(),
        lambda m: m["more_sizes"][0]["inputs"][0].update(shape=[2, 13, 6], bytes=4 * 156),
        lambda m: m["more_sizes"][0]["outputs"].pop(),
        lambda m: m["more_sizes"][0].pop("inputs"),
        lambda m: m["more_sizes"].append(3),
    ):
        m = json.loads(text)
        change(m)
        found = sealed({k: m[k] for k in DESCRIBED}, m["files"])
        (folder / METADATA).write_text(json.dumps(found))
        with pytest.raises(ModelError):
            load_module(folder)
