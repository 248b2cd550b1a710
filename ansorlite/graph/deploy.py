"""Step after `compile`: a compiled network -> a folder that needs numpy alone, or a C compiler.

In: a `Linked` network and a folder. Out, in it: `libnetwork.so` where a C compiler links one,
else what it is linked from; `network.h`, `network.c` (all kernels in order, memory), `kernel*.o`,
`threads.o`, `weights.bin` in the kernels' own layouts, and the manifest `network.json`. Python
reads the folder by `ansorlite.deployed`, which needs numpy alone; C by `network.h`. Names are data:
in C they stand in literals and comments alone, written by `names`.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ansorlite
from ansorlite.calls import ALIGNMENT, aligned_bytes
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.threads import serial_ir, threads_ir
from ansorlite.deployed import cpu_flags
from ansorlite.errors import AnsorliteError, BuildError
from ansorlite.graph.linked import Linked
from ansorlite.graph.whole_folder import whole_folder
from ansorlite.manifest import (
    HEADER,
    LIBRARY,
    METADATA,
    SOURCE,
    THREADS,
    WEIGHTS,
    file_entry,
    identity,
    kernel_file,
    link_command,
    sealed,
)
from ansorlite.names import c_comment, c_string
from ansorlite.target import Target

CHUNK = 1 << 20  # bytes of weights that are written at a time
SYMBOL = "ansorlite_kernel"
SOURCE_FORM = Path(__file__).with_name("network.c.in")
HEADER_FORM = Path(__file__).with_name("network.h.in")


def save(network: Linked, folder: str | Path) -> Path:
    """Write the network into a new or empty folder and return the folder.

    The folder is there whole or not at all. Raises AnsorliteError where the folder holds anything
    or cannot be written, BuildError where the C compiler refuses.
    """
    try:
        path = Path(folder)
    except TypeError:
        raise AnsorliteError(f"a {type(folder).__name__} names no folder: give a path") from None
    layout = _Layout(network)
    with whole_folder(path, last=METADATA) as made:
        _fill(network, layout, made)
    return path


def _fill(network: Linked, layout: "_Layout", path: Path) -> None:
    files = {WEIGHTS: _write_weights(layout, path), **_write_objects(network, path)}
    described = _described(network, layout)
    source = _source(network, layout, identity(described, files))
    (path / SOURCE).write_text(source, encoding="ascii")
    (path / HEADER).write_text(_header(network), encoding="ascii")
    if compiler := shutil.which("cc"):
        _link(path, [compiler, *link_command(len(network.images))[1:]])
        files[LIBRARY] = file_entry(path / LIBRARY)
    files |= {name: file_entry(path / name) for name in (SOURCE, HEADER)}
    metadata = json.dumps(sealed(described, files), indent=1) + "\n"
    (path / METADATA).write_text(metadata, encoding="ascii")


def _link(path: Path, command: Sequence[str]) -> None:
    """Run the compiler in the folder, where its temporary files lie, too."""
    before = {f.name for f in path.iterdir()}
    try:
        process = subprocess.Popen(
            command,
            cwd=path,
            env={**os.environ, "TMPDIR": str(path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise BuildError(f"cc cannot be run: {error.strerror}: mend it or take it away") from None
    try:
        said, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # the compiler's own children, too
        process.communicate()
        raise
    if process.returncode or not (path / LIBRARY).is_file():
        text = " ".join(said.decode("utf-8", "replace").split())[:500] or "it said nothing"
        raise BuildError(f"cc cannot link the network (status {process.returncode}): {text}")
    for file in path.iterdir():
        if file.name not in (*before, LIBRARY):
            file.unlink()


class _Layout:
    """Where each pointer of each kernel points to: (kind, byte offset), by the network's addresses.

    Kinds are "A" for the arena, "W" for weights, "S" for the workspace, "C" for the caller's.
    """

    def __init__(self, network: Linked) -> None:
        memory = network.memory
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
            at += aligned_bytes(array.nbytes)
        self.weights_bytes = max(at, ALIGNMENT)
        self.checksum = 0  # of the weights, when they are written
        self.links, self.results, self.checks = memory.links, memory.results, memory.checks
        self.loops = memory.loops
        given = {(link.call, link.slot) for link in memory.links}
        self.slots = [
            [("C", 0) if (k, s) in given else self.place(int(p or 0)) for s, p in enumerate(args)]
            for k, (_, args) in enumerate(memory.calls)
        ]

    def blocks(self) -> Iterator[Any]:
        """All weights in order, in blocks of bytes that are multiples of `ALIGNMENT`."""
        for _, array in self.weights:
            flat = array.reshape(-1).view(np.uint8)
            for at in range(0, flat.size, CHUNK):
                yield _padded(flat[at : at + CHUNK])
        if not any(array.nbytes for _, array in self.weights):
            yield np.zeros(ALIGNMENT, np.uint8)

    def place(self, address: int) -> tuple[str, int]:
        if address in self._offsets:
            return "W", self._offsets[address]
        for kind, (start, size) in self._starts.items():
            if start <= address < start + max(size, 1):
                return kind, address - start
        for at, array in self.weights:  # a part of one
            if 0 <= address - int(array.ctypes.data) < array.nbytes:
                return "W", at + address - int(array.ctypes.data)
        raise AnsorliteError("a kernel reads memory that is not the network's own")


def _padded(block: Any) -> Any:
    short = -block.size % ALIGNMENT
    return np.concatenate([block, np.zeros(short, np.uint8)]) if short else block


def _write_objects(network: Linked, path: Path) -> dict[str, Any]:
    """The object files of all kernels; each entry point gets a distinct name."""
    files = {}
    for k, image in enumerate(network.images):
        if image.symbol != SYMBOL or SYMBOL.encode() not in image.object_bytes:
            raise AnsorliteError(f"kernel {k} has the entry point {image.symbol}, not {SYMBOL}")
        code = image.object_bytes.replace(SYMBOL.encode(), entry(k).encode())
        (path / kernel_file(k)).write_bytes(code)
        files[kernel_file(k)] = file_entry(path / kernel_file(k))
    target = Target.detect()
    try:
        threads = threads_ir(target, hidden=True)
    except ValueError:  # a system that the pool does not know
        threads = serial_ir(hidden=True)
    (path / THREADS).write_bytes(compile_module(threads, target))
    files[THREADS] = file_entry(path / THREADS)
    return files


def _write_weights(layout: "_Layout", path: Path) -> dict[str, Any]:
    """Write the weights block by block, with no copy of all; sets `layout.checksum`."""
    known, size, sums = hashlib.sha256(), 0, 0
    with (path / WEIGHTS).open("wb") as file:
        for block in layout.blocks():
            file.write(block.data)
            known.update(block.data)
            sums += checksum(block, size // 8)
            size += block.size
    layout.checksum = sums % (1 << 64)
    return {"bytes": size, "sha256": known.hexdigest()}


def checksum(block: Any, at: int) -> int:
    """The part of a block of bytes, a multiple of 8, in the sum that network.c checks.

    Every 64-bit word is mixed with its position (Steele et al., SplittableRandom, OOPSLA'14, the
    generator's output function); the mixed words are added modulo 2^64. `at` is the position of
    the first word.
    """
    words = block.view(np.uint64)
    x = words + np.arange(at + 1, at + 1 + words.size, dtype=np.uint64) * np.uint64(GOLDEN)
    for shift, factor in MIX:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return int((x ^ (x >> np.uint64(31))).sum(dtype=np.uint64))


GOLDEN = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def entry(k: int) -> str:
    """The entry point of kernel k; as long as SYMBOL, which it replaces in the object's bytes."""
    return f"ansorlite_{k:06x}"[: len(SYMBOL)].ljust(len(SYMBOL), "_")


def _source(network: Linked, layout: _Layout, known_as: str) -> str:
    """The C source: tables, then the code that is the same for every network."""
    used = range(len(network.images))
    calls = network.memory.calls
    widest = max((len(s) for s in layout.slots), default=1)
    rows = []
    for (k, _), slots in zip(calls, layout.slots, strict=True):
        places = ", ".join(f"{{'{kind}', {at}ll}}" for kind, at in slots)
        rows.append(f"  {{{entry(k)}, {len(slots)}, {{{places}}}}},")
    kernels = "\n".join(f"extern void {entry(k)}(void **);" for k in used)
    inputs = [_value(network, v) for v in network.graph.inputs]
    outputs = [_value(network, v) for v in network.graph.outputs]
    tables = f"""{kernels}

#define N_CALLS {len(calls)}
#define N_LINKS {len(layout.links)}
#define N_LOOPS {len(layout.loops)}
#define N_CHECKS {len(layout.checks)}
#define N_INPUTS {len(network.graph.inputs)}
#define N_OUTPUTS {len(network.graph.outputs)}
#define MOST_SLOTS {max(widest, 1)}
#define ARENA_BYTES {layout.arena_bytes}ll
#define WORKSPACE_BYTES {layout.workspace_bytes}ll
#define WEIGHTS_BYTES {layout.weights_bytes}ll
#define WEIGHTS_CHECKSUM {layout.checksum:#018x}ull
#define IDENTITY {c_string(known_as)}
"""
    flags = [f for f in _required() if f in C_FLAGS]
    checks = "\n".join(f'  if (!__builtin_cpu_supports("{f}")) return "{f}";' for f in flags)
    filled = {
        "TABLES": tables,
        "CALLS": "\n".join(rows) or "  {0},",
        "CHECKS": _rows(_checks(network, layout)),
        "LINKS": _rows(
            (n.call, n.slot, n.index, int(n.written), f"{n.start}ll") for n in layout.links
        ),
        "MOVES": _rows((k, s, f"{by}ll") for x in layout.loops for k, s, by in x.moves),
        "LOOPS": _rows((x.first, x.calls, f"{x.times}ll", len(x.moves)) for x in layout.loops),
        "INPUTS": ", ".join(f"{v['bytes']}ll" for v in inputs) or "0",
        "OUTPUTS": _rows(_origins(network, layout, outputs)),
        "TOLD": f"{_told('inputs', inputs)}\n{_told('outputs', outputs)}",
        "CPU": checks,
    }
    return _filled(SOURCE_FORM, filled)


def _filled(form: Path, parts: Mapping[str, str]) -> str:
    """The form with each mark replaced once: nothing is looked for in what was filled in."""
    marks = re.compile(rf"/\* ({'|'.join(parts)}) \*/")
    return marks.sub(lambda found: parts[found[1]], form.read_text(encoding="ascii"))


def _rows(rows: Iterable[Sequence[Any]]) -> str:
    return ",\n".join(f"  {{{', '.join(map(str, row))}}}" for row in rows) or "  {0}"


def _origins(
    network: Linked, layout: _Layout, outputs: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, str]]:
    """The origin of each output, as a row of network.c's table OUTPUTS."""
    for v, origin in zip(outputs, layout.results, strict=True):
        kind = {"written": "K", "constant": "W", "input": "I", "output": "O", "arena": "A"}[
            origin.kind
        ]
        at, start = origin.index, origin.start
        if kind == "W":
            _, at = layout.place(network.memory.returned[v["name"]])
        elif kind == "A":
            (_, at), start = layout.place(start), 0
        yield f"'{kind}'", f"{at}ll", f"{start}ll", f"{v['bytes']}ll"


def _checks(network: Linked, layout: _Layout) -> Iterator[tuple[str, ...]]:
    """Indices that are checked at run time: place, number, extent, message."""
    for check, kind, k in layout.checks:
        known = network.graph.types[check.value]
        letter, at = layout.place(k) if kind == "arena" else (kind[0].upper(), k)
        wide = np.dtype(known.dtype).itemsize
        numbers = (f"{at}ll", f"{known.size}ll", str(wide), f"{check.extent}ll")
        yield f"'{letter}'", *numbers, c_string(check.told())


def _told(kind: str, values: Sequence[Mapping[str, Any]]) -> str:
    """The library's table of its inputs or outputs: names and dtypes as literals, shapes."""
    shapes = [
        f"static const long long {kind}_{k}_shape[] = {{{', '.join(map(str, v['shape'])) or 0}}};"
        for k, v in enumerate(values)
    ]
    rows = [
        f"  {{{c_string(v['name'])}, {len(v['name'].encode('utf-8', 'surrogatepass'))}ll,"
        f" {c_string(v['dtype'])}, {len(v['shape'])}, {kind}_{k}_shape, {v['bytes']}ll}},"
        for k, v in enumerate(values)
    ]
    table = "\n".join(rows) or "  {0},"
    return "\n".join([*shapes, f"static const network_value {kind}_told[] = {{", table, "};"])


# Names that C compilers' __builtin_cpu_supports knows.
C_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")


def _required() -> list[str]:
    """Features of the target, spelled as in /proc/cpuinfo, as far as that file lists them."""
    target = Target.detect()
    on = {f[1:].replace(".", "_") for f in target.features.split(",") if f.startswith("+")}
    return sorted(on & cpu_flags())


def _header(network: Linked) -> str:
    graph = network.graph
    ends = {"input": network.graph.inputs, "output": network.graph.outputs}
    lines = [
        f" *   {kind} {k}: {c_comment(v)}, {graph.types[v]}"
        for kind, values in ends.items()
        for k, v in enumerate(values)
    ]
    return _filled(HEADER_FORM, {"VALUES": "\n".join(lines)})


def _value(network: Linked, name: str) -> dict[str, Any]:
    known = network.graph.types[name]
    return {
        "name": name,
        "shape": list(known.shape),
        "dtype": known.dtype,
        "bytes": known.size * np.dtype(known.dtype).itemsize,
    }


def _described(network: Linked, layout: _Layout) -> dict[str, Any]:
    """The description of the network in network.json: `manifest.DESCRIBED`."""
    target = Target.detect()
    return {
        "network": network.graph.name,
        "version": ansorlite.__version__,
        "triple": target.triple,
        "cpu": target.cpu,
        "requires": _required(),
        "inputs": [_value(network, v) for v in network.graph.inputs],
        "outputs": [_value(network, v) for v in network.graph.outputs],
        "arena_bytes": layout.arena_bytes,
        "weights_bytes": layout.weights_bytes,
        "kernels": len(network.images),
    }
