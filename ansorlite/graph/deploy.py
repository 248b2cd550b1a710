"""Step after `compile`: a compiled network -> a folder that runs without this package's tools.

In: a `CompiledModule` and a folder. Out, in it: `libnetwork.so` where a C compiler links one,
else what it is linked from; `network.h`, `network.c` (all kernels in order, memory, OpenMP found
when it is loaded), `kernel*.o`, `weights.bin` in the kernels' own layouts, `network.json`. Python
reads the folder by `ansorlite.deployed`, which needs numpy alone; C by `network.h`.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ansorlite
from ansorlite.deployed import FORMAT, LIBRARY, METADATA, WEIGHTS, cpu_flags
from ansorlite.errors import AnsorliteError
from ansorlite.target import Target

if TYPE_CHECKING:
    from ansorlite.graph.module import CompiledModule

ALIGN = 64
SYMBOL = "ansorlite_kernel"
SOURCE = Path(__file__).with_name("network.c.in")
HEADER = Path(__file__).with_name("network.h.in")
FLAGS = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden")
LIBRARIES = ("-ldl", "-lm", "-lpthread")


def save(module: "CompiledModule", folder: str | Path) -> Path:
    """Write the network into a new or empty folder and return the folder.

    Raises AnsorliteError where the folder holds anything, or the C compiler refuses.
    """
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise AnsorliteError(f"{path} is there already: name a new folder, so that nothing is lost")
    path.mkdir(parents=True, exist_ok=True)
    layout = _Layout(module)
    objects = _write_objects(module, path)
    weights = np.zeros(max(layout.weights_bytes, ALIGN), np.uint8)
    for at, array in layout.weights:
        flat = array.reshape(-1).view(np.uint8)
        weights[at : at + flat.size] = flat
    weights.tofile(path / WEIGHTS)
    (path / "network.c").write_text(_source(module, layout))
    (path / "network.h").write_text(_header(module))
    command = ["cc", *FLAGS, "-o", LIBRARY, "network.c", *objects, *LIBRARIES]
    metadata = _metadata(module, layout, command)
    (path / METADATA).write_text(json.dumps(metadata, indent=1) + "\n")
    if shutil.which("cc"):
        done = subprocess.run(command, cwd=path, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AnsorliteError(f"cc cannot link the network: {done.stderr.strip()[:500]}")
    return path


class _Layout:
    """Where each pointer of each kernel points to: (kind, byte offset), by the module's addresses.

    Kinds are "A" for the arena, "W" for weights, "S" for the workspace.
    """

    def __init__(self, module: "CompiledModule") -> None:
        memory = module.memory
        self.arena_bytes, self.workspace_bytes = memory.arena.nbytes, memory.workspace.nbytes
        self._starts = {
            "A": (memory.arena.ctypes.data, memory.arena.nbytes),
            "S": (memory.workspace.ctypes.data, memory.workspace.nbytes),
        }
        self.weights: list[tuple[int, Any]] = []
        self._offsets: dict[int, int] = {}
        at = 0
        for array in memory.constants:
            self.weights.append((at, array))
            self._offsets[int(array.ctypes.data)] = at
            at += -(-array.nbytes // ALIGN) * ALIGN
        self.weights_bytes = at
        self.slots = [[self.place(int(p or 0)) for p in args] for _, args in memory.calls]

    def place(self, address: int) -> tuple[str, int]:
        if address in self._offsets:
            return "W", self._offsets[address]
        for kind, (start, size) in self._starts.items():
            if start <= address < start + max(size, 1):
                return kind, address - start
        raise AnsorliteError("a kernel reads memory that is not the network's own")


def _write_objects(module: "CompiledModule", path: Path) -> list[str]:
    """The objects of all kernels, each with its entry point under a name of its own."""
    names = []
    for k, image in enumerate(module.images):
        if image.symbol != SYMBOL or SYMBOL.encode() not in image.object_bytes:
            raise AnsorliteError(f"kernel {k} has the entry point {image.symbol}, not {SYMBOL}")
        code = image.object_bytes.replace(SYMBOL.encode(), entry(k).encode())
        (path / f"kernel{k}.o").write_bytes(code)
        names.append(f"kernel{k}.o")
    return names


def entry(k: int) -> str:
    """The name of kernel k, of the length of the name that it was built with."""
    return f"ansorlite_{k:06x}"[: len(SYMBOL)].ljust(len(SYMBOL), "_")


def _source(module: "CompiledModule", layout: _Layout) -> str:
    """The C source: tables, then the code that is the same for every network."""
    used = range(len(module.images))
    calls = module.memory.calls
    widest = max((len(s) for s in layout.slots), default=1)
    rows = []
    for (k, _), slots in zip(calls, layout.slots, strict=True):
        places = ", ".join(f"{{'{kind}', {at}ll}}" for kind, at in slots)
        rows.append(f"  {{{entry(k)}, {len(slots)}, {{{places}}}}},")
    kernels = "\n".join(f"extern void {entry(k)}(void **);" for k in used)
    inputs, outputs = _inputs(module, layout), _outputs(module, layout)
    tables = f"""{kernels}

#define N_CALLS {len(calls)}
#define N_INPUTS {len(module.graph_inputs)}
#define N_OUTPUTS {len(module.graph_outputs)}
#define MOST_SLOTS {widest}
#define ARENA_BYTES {layout.arena_bytes}ll
#define WORKSPACE_BYTES {layout.workspace_bytes}ll
#define WEIGHTS_BYTES {max(layout.weights_bytes, ALIGN)}ll
"""
    rest = SOURCE.read_text()
    rest = rest.replace("/* CALLS */", "\n".join(rows) or "  {0},")
    rest = rest.replace("/* INPUTS */", _table(inputs)).replace("/* OUTPUTS */", _table(outputs))
    flags = [f for f in _required() if f in C_FLAGS]
    checks = "\n".join(f'  if (!__builtin_cpu_supports("{f}")) return "{f}";' for f in flags)
    return rest.replace("/* TABLES */", tables).replace("/* CPU */", checks)


def _table(values: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"  {{\"{v['name']}\", {{'{v['kind']}', {v['offset']}ll}}, {v['bytes']}ll}}" for v in values
    ]
    return ",\n".join(rows)


# Names that C compilers' __builtin_cpu_supports knows.
C_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")


def _required() -> list[str]:
    """Features of the target that /proc/cpuinfo of this machine tells, in its own words."""
    target = Target.detect()
    on = {f[1:].replace(".", "_") for f in target.features.split(",") if f.startswith("+")}
    return sorted(on & cpu_flags())


def _header(module: "CompiledModule") -> str:
    graph = module.partition.graph
    lines = [f" *   input {k}: {v}, {graph.types[v]}" for k, v in enumerate(module.graph_inputs)]
    lines += [f" *   output {k}: {v}, {graph.types[v]}" for k, v in enumerate(module.graph_outputs)]
    return HEADER.read_text().replace("/* VALUES */", "\n".join(lines))


def _value(module: "CompiledModule", name: str, kind: str, at: int) -> dict[str, Any]:
    known = module.partition.graph.types[name]
    return {
        "name": name,
        "shape": list(known.shape),
        "dtype": known.dtype,
        "bytes": known.size * np.dtype(known.dtype).itemsize,
        "kind": kind,
        "offset": at,
    }


def _inputs(module: "CompiledModule", layout: _Layout) -> list[dict[str, Any]]:
    return [_value(module, v, *layout.place(module.address(v))) for v in module.graph_inputs]


def _outputs(module: "CompiledModule", layout: _Layout) -> list[dict[str, Any]]:
    return [_value(module, v, *layout.place(module.address(v))) for v in module.graph_outputs]


def _metadata(
    module: "CompiledModule", layout: _Layout, command: Sequence[str]
) -> Mapping[str, Any]:
    target = Target.detect()
    return {
        "format": FORMAT,
        "network": module.partition.graph.name,
        "version": ansorlite.__version__,
        "triple": target.triple,
        "cpu": target.cpu,
        "requires": _required(),
        "inputs": _inputs(module, layout),
        "outputs": _outputs(module, layout),
        "arena_bytes": layout.arena_bytes,
        "weights_bytes": layout.weights_bytes,
        "kernels": len(module.images),
        "link": " ".join(command),
    }
