"""ansorlite: a template-free auto-scheduler; it finds fast native programs for tensor computations.

`tune` searches for one computation, `auto_schedule` for a whole network; README.md has examples.
The module of a public name is imported at the first use of the name: `import ansorlite` takes
milliseconds, and worker processes, which import the package as well, stay small.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "SearchTask": "ansorlite.task",
    "Target": "ansorlite.target",
    "tune": "ansorlite.search.tune",
    "TuneResult": "ansorlite.search.result",
    "SpaceOptions": "ansorlite.space.sketch",
    "Kernel": "ansorlite.codegen.kernel",
    "RemoteRunner": "ansorlite.pool.runner",
    "workload": "ansorlite.workloads",
    "network": "ansorlite.workloads",
    "load_onnx": "ansorlite.graph.onnx.load",
    "from_torch": "ansorlite.pytorch.load",
    "torch_backend": "ansorlite.pytorch.backend",
    "auto_schedule": "ansorlite.pipeline",
    "accuracy": "ansorlite.graph.accuracy",
    "quantize": "ansorlite.graph.quantize",
    "load_module": "ansorlite.deployed",
    "CompiledModule": "ansorlite.graph.module",
    "Graph": "ansorlite.graph.ir",
    "AnsorliteError": "ansorlite.errors",
    "UsageError": "ansorlite.errors",
    "ModelError": "ansorlite.errors",
    "SizesError": "ansorlite.errors",
    "LogError": "ansorlite.errors",
    "ScheduleError": "ansorlite.errors",
    "BuildError": "ansorlite.errors",
    "MeasureError": "ansorlite.errors",
    "MachineError": "ansorlite.errors",
    "MissingExtra": "ansorlite.errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ansorlite' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
