"""The peers by name: which adapter runs each, what it needs, and what it can run.

An adapter is a module of this folder with `prepare(options) -> (call, mode)`. Options of an
operator are {name, params, threads} as in workloads/ops.toml, of a network {model, threads}, a path
of an ONNX file; `PEERS` adds those of the peer. `call` runs the computation once on data that is
there already, `mode` says in words what runs. Adapters run in the peer's own interpreter, that of
.venv-PACKAGE of this checkout, which is made when a script first needs the peer and has none of
ansorlite's dependencies.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansorlite.errors import UsageError

ROOT = Path(__file__).parents[3]
OPERATORS, NETWORKS = "operators", "networks"


@dataclass(frozen=True)
class Peer:
    """`module` of this folder runs `package`, as `requirements` of pip install it."""

    module: str
    package: str
    requirements: tuple[str, ...]
    runs: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


_TORCH = (
    "torch",
    "torch",
    ("torch==2.13.0", "numpy", "onnx", "onnxscript", "transformers"),
    (OPERATORS, NETWORKS),
)
_OPENVINO = ("openvino", "openvino", ("openvino>=2025.0", "numpy"), (NETWORKS,))
PEERS: dict[str, Peer] = {
    "numpy": Peer("numpy", "numpy", ("numpy",), (OPERATORS,)),
    "onnxruntime": Peer("onnxruntime", "onnxruntime", ("onnxruntime", "numpy"), (NETWORKS,)),
    "openvino": Peer(*_OPENVINO, {"precision": "f32"}),
    "openvino-bf16": Peer(*_OPENVINO, {"precision": "bf16"}),
    "openvino-default": Peer(*_OPENVINO),  # bfloat16 where the processor has it
    "torch": Peer(*_TORCH, {"modes": ["eager", "frozen", "mkldnn"]}),  # the fastest of these
    "torch-eager": Peer(*_TORCH, {"modes": ["eager"]}),
    "torch-frozen": Peer(*_TORCH, {"modes": ["frozen"]}),
    "torch-inductor": Peer(*_TORCH, {"modes": ["inductor"]}),
}


def peers_of(kind: str) -> tuple[str, ...]:
    """The names of the peers that run "operators" or "networks"."""
    return tuple(name for name, peer in PEERS.items() if kind in peer.runs)


def interpreter(name: str, given: str | None = None) -> str:
    """A Python that has the peer: `given`, the one of its environment, or this one.

    Raises UsageError where none has the package.
    """
    package = PEERS[name].package
    own = str(ROOT / f".venv-{package}" / "bin" / "python")
    found = given and os.path.abspath(shutil.which(given) or given)  # peers run in another folder
    for python in [found] if found else [own, sys.executable]:
        if _has(python, [package]):
            return python
    raise UsageError(f"no interpreter with {package}: name one with --peer-python")


def install(names: Sequence[str]) -> None:
    """Make .venv-PACKAGE for each peer that neither its environment nor this one has."""
    for peer in (PEERS[name] for name in names):
        folder = ROOT / f".venv-{peer.package}"
        python = str(folder / "bin" / "python")
        modules = [r.partition("=")[0].partition(">")[0] for r in peer.requirements]
        if _has(python, modules) or _has(sys.executable, modules):
            continue
        print(f"installing {', '.join(peer.requirements)} into {folder.name}", file=sys.stderr)
        if not Path(python).exists():
            venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *peer.requirements], check=True)


def _has(python: str, modules: Sequence[str]) -> bool:
    code = "import sys, importlib.util as u; sys.exit(any(u.find_spec(m) is None for m in MODULES))"
    try:
        ran = subprocess.run([python, "-c", code.replace("MODULES", repr(list(modules)))])
    except OSError:
        return False
    return ran.returncode == 0


def random_inputs(shapes: Sequence[Sequence[int]], integers: Sequence[bool]) -> list[Any]:
    """Random data of a network's inputs: float32, or int64 from 0 to 999."""
    import numpy as np

    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 1000, shape).astype(np.int64)
        if whole
        else rng.standard_normal(shape).astype(np.float32)
        for shape, whole in zip(shapes, integers, strict=True)
    ]
