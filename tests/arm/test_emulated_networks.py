"""Networks for Arm machines: tuned without one, saved, cross-linked, run under emulation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated import GCC, done, later_instructions, needs_emulator, run_network

import ansorlite as al
from ansorlite.errors import ModelError
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph
from ansorlite.manifest import LIBRARY, METADATA
from ansorlite.pipeline import ScheduledModule, compile_plain
from ansorlite.workloads.layers import Net
from ansorlite.workloads.networks import mobilenet_v2, resnet
from ansorlite.workloads.transformers import bert

pytestmark = needs_emulator


def small_net() -> Graph:
    """Two convolutions, one of them depthwise, a softmax-like end: four kernels."""
    net = Net("small", 0)
    x = net.builder.input("x", (1, 3, 18, 18))
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
@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a76"])
@pytest.mark.parametrize("name", NETWORKS)
def test_statically_tuned_networks_are_right(name: str, cpu: str, tmp_path: Path) -> None:
    graph = NETWORKS[name]()
    module = al.auto_schedule(graph, 60, target=cpu, progress=False)
    assert all(r.estimated for r in module.report.results)
    saved = check(module, graph, tmp_path, cpu)
    if cpu == "cortex-a53":
        assert later_instructions(saved / LIBRARY, tmp_path) == []
