"""Networks for Arm machines: tuned without one, saved, cross-linked, run under emulation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated import GCC, OBJDUMP, done, later_instructions, needs_emulator, run_network

import ansorlite as al
from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph
from ansorlite.manifest import LIBRARY, METADATA
from ansorlite.pipeline import ScheduledModule, compile_plain
from ansorlite.workloads.layers import Net
from ansorlite.workloads.networks import mobilenet_v2, resnet
from ansorlite.workloads.transformers import bert

pytestmark = needs_emulator


def small_net(channels: int = 3) -> Graph:
    """Two convolutions, one of them depthwise, a softmax-like end: four kernels."""
    net = Net("small", 0)
    x = net.builder.input("x", (1, channels, 18, 18))
    x = net.relu(net.norm(net.conv(x, "conv1", 24, 3, 2), "bn1"))
    x = net.relu6(net.norm(net.conv(x, "depthwise", 24, 3, 1, 24), "bn2"))
    return net.classifier(x, "fc", 10)


def check(module: ScheduledModule, graph: Graph, folder: Path, cpu: str, **options: Any) -> Path:
    """Save the module; its outputs under emulation are those of plain schedules here."""
    saved = module.save(folder / "net", **options)
    assert (saved / LIBRARY).is_file()
    inputs = random_inputs(graph)
    want: Any = compile_plain(graph)(*inputs)
    (got,) = run_network(saved, inputs, cpu)
    # Winograd's form of a convolution loses digits.
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))
    return saved


def test_a_network_for_the_oldest_core(tmp_path: Path) -> None:
    """Tuned for a Cortex-A53 by estimates; the library has no instruction beyond ARMv8.0."""
    graph = small_net()
    module = al.auto_schedule(graph, 5, target="cortex-a53:2", progress=False)
    assert module.report.results[0].estimated and module.target.cpu == "cortex-a53"
    assert "an estimate: nothing was measured" in str(module.report)
    with pytest.raises(ModelError, match="compiled for cortex-a53"):
        module(*random_inputs(graph))
    saved = check(module, graph, tmp_path, "cortex-a53")
    assert json.loads((saved / METADATA).read_text())["targets"][0]["requires"] == ["asimd"]
    assert later_instructions(saved / LIBRARY, tmp_path) == []
    with pytest.raises(ModelError, match="is aarch64 code"):
        al.load_module(saved)


def test_a_network_of_this_machine_saved_for_another(tmp_path: Path) -> None:
    """Programs found here are compiled again; a CPU that lacks features is refused by name."""
    net = Net("dense", 0)
    graph = net.builder.finish([net.linear(net.builder.input("x", (6, 40)), "fc", 24)])
    module = al.auto_schedule(graph, 0, progress=False)
    saved = check(module, graph, tmp_path, "max", target="cortex-a76")
    assert "asimddp" in json.loads((saved / METADATA).read_text())["targets"][0]["requires"]
    told = "refused: this CPU runs none of its kernels: cortex-a76 needs (asimd|atomics|crc32)"
    with pytest.raises(AssertionError, match=rf"status 80\n.*{told}"):
        run_network(saved, random_inputs(graph), "cortex-a53")


def quantized_net(size: int) -> Graph:
    """uint8 -> two convolutions and a product of int8 weights, sums quantised in between."""
    b, rng = GraphBuilder("bytes"), np.random.default_rng(0)

    def product(x: str, zero: int, co: int, **window: Any) -> str:
        data = b.emit("sub", [b.emit("cast", [x], dtype="int32"), b.constant(np.int32(zero))])
        rows = b.types[x].shape[1]
        shape = (co, rows, *window.get("kernel", ())) if window else (rows, co)
        w = b.constant(rng.integers(-128, 128, shape).astype(np.int32))
        if not window:
            return b.emit("matmul", [data, w])
        attrs = {"groups": 1, "layout": "channels_first", "dilations": (1, 1)}
        return b.emit("conv", [data, w], strides=(1, 1), pads=window["pads"], **attrs)

    def quantized(total: str, scale: float, zero: int) -> str:
        parts = [b.emit("cast", [total], dtype="float32"), b.constant(np.float32(scale))]
        ends = [b.constant(np.float32(1)), b.constant(np.float32(zero))]
        return b.emit("quantize", [b.emit("mul", parts), *ends], dtype="uint8")

    x = b.input("x", (1, 8, size, size), "uint8")
    y = quantized(product(x, 7, 24, kernel=(3, 3), pads=((1, 1), (1, 1))), 2e-3, 131)
    y = quantized(product(y, 131, 20, kernel=(1, 1), pads=((0, 0), (0, 0))), 1e-3, 128)
    y = b.emit("reshape", [y], shape=(1, 20 * size * size))
    return b.finish([product(y, 128, 10)])


def check_precisions(cpu: str, graph: Graph, precision: str, trials: int, folder: Path) -> None:
    """A network whose library has dot products, tuned by estimates: its numbers under emulation.

    Integers are exact. Numbers of bfloat16 may be rounded to a neighbour, where the sums before
    them were rounded otherwise.
    """
    module = al.auto_schedule(graph, trials, target=cpu, precision=precision, progress=False)
    saved = module.save(folder / "net")
    instruction = "bfdot" if precision == "bf16" else ("dot" if cpu == "neoverse-v2" else "sdot")
    assert f"{instruction}\t" in done([OBJDUMP, "-d", saved / LIBRARY])
    inputs = random_inputs(graph)
    if graph.types[graph.inputs[0]].dtype == "uint8":
        inputs = [
            np.random.default_rng(1).integers(0, 256, x.shape).astype(np.uint8) for x in inputs
        ]
    want: Any = compile_plain(graph, precision=precision)(*inputs)
    (got,) = run_network(saved, inputs, "max")
    allowed = 1e-2 * float(np.abs(want).max()) if precision == "bf16" else 0.0
    np.testing.assert_allclose(got, want, rtol=0, atol=allowed)


@pytest.mark.slow
def test_a_network_of_bytes(tmp_path: Path) -> None:
    check_precisions("cortex-a76", quantized_net(5), "float32", 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["cortex-a76", "neoverse-n1", "neoverse-v2"])
def test_tuned_networks_of_bytes(cpu: str, tmp_path: Path) -> None:
    check_precisions(cpu, quantized_net(9), "float32", 30, tmp_path)


@pytest.mark.slow
def test_a_small_network_in_bfloat16(tmp_path: Path) -> None:
    check_precisions("neoverse-v2", small_net(8), "bf16", 20, tmp_path)


def test_the_check_of_instructions_finds_later_ones(tmp_path: Path) -> None:
    """A library with a dot product and one with an atomic addition are no ARMv8.0 code."""
    source = tmp_path / "later.c"
    source.write_text(
        "#include <arm_neon.h>\n"
        "int32x4_t f(int32x4_t a, int8x16_t b, int8x16_t c) { return vdotq_s32(a, b, c); }\n"
        "long g(long *p) { return __atomic_fetch_add(p, 1, 5); }\n"
        + "".join(f"long h{k}(long a, long b) {{ return a * b + {k} * a; }}\n" for k in range(99))
    )
    made = tmp_path / "liblater.so"
    done([GCC, "-O1", "-march=armv8.2-a+dotprod", "-shared", "-fPIC", "-o", made, source])
    found = later_instructions(made, tmp_path)
    assert any(x.startswith("sdot") for x in found) and any(x.startswith("ldadd") for x in found)


NETWORKS = {
    "resnet18": lambda: resnet("resnet18", 1, 0, size=64),
    "mobilenet_v2": lambda: mobilenet_v2("mobilenet_v2", 1, 0, size=64),
    "bert_layer": lambda: bert("bert", 1, 0, size=32, layers=1, width=256, heads=4, vocabulary=99),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_bfloat16_are_right(name: str, tmp_path: Path) -> None:
    check_precisions("neoverse-v2", NETWORKS[name](), "bf16", 40, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a76"])
@pytest.mark.parametrize("name", NETWORKS)
def test_statically_tuned_networks_are_right(name: str, cpu: str, tmp_path: Path) -> None:
    graph = NETWORKS[name]()
    module = al.auto_schedule(graph, 60, target=cpu, progress=False)
    assert all(r.estimated for r in module.report.results)
    saved = check(module, graph, tmp_path, cpu)
    if cpu == "cortex-a53":
        assert later_instructions(saved / LIBRARY, tmp_path) == []
