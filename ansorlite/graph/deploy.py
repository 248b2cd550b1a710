"""Step after `compile`: a compiled network -> a folder that needs numpy alone, or a C compiler.

In: a network's `KernelSet`s, one a target, and a folder. Out, in it: `libnetwork.so` where a C
compiler links one, else what it is linked from; `network.h`, `network.c` (all kernels in order,
memory, the choice of a set), `kernel*.o`, `threads.o`, `weights.bin` in the kernels' own layouts,
and the manifest `network.json`. Python reads the folder by `ansorlite.deployed`, which needs numpy
alone, or by `network.py`, which needs nothing; C by `network.h`, C++ by `network.hpp`. Names are
data: in C they stand in literals and comments alone, written by `names`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import ansorlite
from ansorlite.calls import ALIGNMENT, aligned_bytes
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.image import STEPS, KernelImage
from ansorlite.codegen.threads import serial_ir, threads_ir
from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.graph.cpu_checks import c_rows, required
from ansorlite.graph.link import link
from ansorlite.graph.linked import KernelSet, Linked
from ansorlite.graph.whole_folder import whole_folder
from ansorlite.manifest import (
    CPP_HEADER,
    HEADER,
    LIBRARY,
    MAX_TARGETS,
    METADATA,
    SOURCE,
    THREADS,
    WEIGHTS,
    WRAPPER,
    file_entry,
    identity,
    kernel_file,
    sealed,
)
from ansorlite.names import c_comment, c_string
from ansorlite.target import Target

CHUNK = 1 << 20  # bytes of weights that are written at a time
SYMBOL = "ansorlite_kernel"
PLAIN_CPU = {"x86_64": "x86-64"}  # LLVM's name of what every CPU of the architecture runs
SOURCE_FORM = Path(__file__).with_name("network.c.in")
HEADER_FORM = Path(__file__).with_name("network.h.in")
# Files that are the same for every network: for C++, and for a Python that has ctypes alone.
WRAPPERS = {name: Path(__file__).with_name(f"{name}.in") for name in (CPP_HEADER, WRAPPER)}


def save(sets: Sequence[KernelSet], folder: str | Path) -> Path:
    """Write a network for one or several targets into a new or empty folder; returns the folder.

    The folder is there whole or not at all; weights that sizes and targets share are there once.
    Raises AnsorliteError where the folder holds anything or cannot be written, UsageError for
    targets that cannot be in one library, BuildError where the C compiler refuses.
    """
    try:
        path = Path(folder)
    except TypeError:
        raise AnsorliteError(f"a {type(folder).__name__} names no folder: give a path") from None
    layout = _Layout(_best_first(sets))
    with whole_folder(path, last=METADATA) as made:
        _fill(layout, made)
    return path


def _best_first(sets: Sequence[KernelSet]) -> list[KernelSet]:
    """The sets with the widest vectors first; of equal ones those that need more of a CPU."""
    check_targets([s.name for s in sets], [s.target for s in sets])
    return sorted(sets, key=lambda s: (-s.target.vector_bytes, -len(required(s.target))))


def check_targets(names: Sequence[str], targets: Sequence[Target]) -> None:
    """UsageError where these cannot be the sets of kernels of one library."""
    kinds = sorted({f"{t.arch} {t.system}" for t in targets})
    if not 1 <= len(names) <= MAX_TARGETS:
        raise UsageError(f"{len(names)} targets: give 1 to {MAX_TARGETS}")
    if len(kinds) > 1:
        raise UsageError(
            f"one library has code for one architecture and system, not for {', '.join(kinds)}: "
            "save a folder for each"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"the target {twice[0]} is named twice: leave one out")


def _fill(layout: "_Layout", path: Path) -> None:
    files = {WEIGHTS: _write_weights(layout, path), **_write_objects(layout, path)}
    described = _described(layout)
    source = _source(layout, identity(described, files))
    (path / SOURCE).write_text(source, encoding="ascii")
    (path / HEADER).write_text(_header(layout), encoding="ascii")
    if link(path, len(layout.images), layout.target):
        files[LIBRARY] = file_entry(path / LIBRARY)
    for name, form in WRAPPERS.items():
        (path / name).write_bytes(form.read_bytes())
    files |= {name: file_entry(path / name) for name in (SOURCE, HEADER, *WRAPPERS)}
    metadata = json.dumps(sealed(described, files), indent=1) + "\n"
    (path / METADATA).write_text(metadata, encoding="ascii")


@dataclass
class _Segment:
    """Weights that the same sets of kernels read: a run of the file, and its part of the sum."""

    readers: int  # a bit a set
    start: int
    arrays: list[Any]
    size_bytes: int = 0
    checksum: int = 0


class _Layout:
    """Kernels and weights of all targets and sizes, each once, and the tables of every size.

    Sizes run one after another, so they share one arena and one workspace, of the largest.
    """

    def __init__(self, sets: Sequence[KernelSet]) -> None:
        self.sets = tuple(sets)
        self.networks = [network for own in sets for network in own.sizes]
        self.target = self.sets[0].target
        self.segments = _segments(sets)
        self.offsets: dict[int, int] = {}  # of weights in the file, by their addresses
        at = 0
        for segment in self.segments:
            segment.start = at
            for array in segment.arrays:
                self.offsets[int(array.ctypes.data)] = at
                at += aligned_bytes(array.nbytes)
            at = max(at, segment.start + ALIGNMENT)
            segment.size_bytes = at - segment.start
        self.weights_bytes = at
        numbers: dict[bytes, int] = {}  # of kernels, by their code
        self.images: list[KernelImage] = []
        for network in self.networks:
            for image in network.images:
                if numbers.setdefault(image.object_bytes, len(self.images)) == len(self.images):
                    self.images.append(image)
        names = self.networks[0].graph.outputs
        made = [_Size(network, self.offsets, numbers, names) for network in self.networks]
        n = len(self.sets[0].sizes)
        self.sizes = made[:n]
        self.sizes_of = [made[k * n : (k + 1) * n] for k in range(len(self.sets))]
        memories = [network.memory for network in self.networks]
        self.arena_bytes = max(m.arena.nbytes for m in memories)
        self.workspace_bytes = max(m.workspace.nbytes for m in memories)


def _segments(sets: Sequence[KernelSet]) -> list[_Segment]:
    """All weights by the sets that read them; one segment at least."""
    arrays: dict[int, Any] = {}
    readers: dict[int, int] = {}
    for k, own in enumerate(sets):
        for array in (x for network in own.sizes for x in network.memory.constants):
            address = int(array.ctypes.data)
            arrays.setdefault(address, array)
            readers[address] = readers.get(address, 0) | 1 << k
    by_readers: dict[int, _Segment] = {}
    for address, array in arrays.items():
        mask = readers[address]
        by_readers.setdefault(mask, _Segment(mask, 0, [])).arrays.append(array)
    return list(by_readers.values()) or [_Segment((1 << len(sets)) - 1, 0, [])]


def _blocks(segment: _Segment) -> Iterator[Any]:
    """The weights of a segment in order, in blocks of bytes that are multiples of `ALIGNMENT`."""
    for array in segment.arrays:
        flat = array.reshape(-1).view(np.uint8)
        for at in range(0, flat.size, CHUNK):
            yield _padded(flat[at : at + CHUNK])
    if not any(array.nbytes for array in segment.arrays):
        yield np.zeros(ALIGNMENT, np.uint8)


class _Size:
    """Where each pointer of each kernel points to: (kind, byte offset), by the network's addresses.

    Kinds are "A" for the arena, "W" for weights, "S" for the workspace, "C" for the caller's.
    `kernels` are the numbers of the kernels in running order, among those of all sizes. Outputs are
    called as in the first size, by `names`.
    """

    def __init__(
        self,
        network: Linked,
        offsets: Mapping[int, int],
        numbers: Mapping[bytes, int],
        names: Sequence[str],
    ) -> None:
        memory = network.memory
        self.network, self._offsets = network, offsets
        self._starts = {
            "A": (memory.arena.ctypes.data, memory.arena.nbytes),
            "S": (memory.workspace.ctypes.data, memory.workspace.nbytes),
        }
        self.links, self.results, self.checks = memory.links, memory.results, memory.checks
        self.loops, self.together = memory.loops, memory.together
        self.kernels = [numbers[network.images[k].object_bytes] for k, _ in memory.calls]
        given = {(link.call, link.slot) for link in memory.links}
        self.slots = [
            [("C", 0) if (k, s) in given else self.place(int(p or 0)) for s, p in enumerate(args)]
            for k, (_, args) in enumerate(memory.calls)
        ]
        self.inputs = [_value(network, v) for v in network.graph.inputs]
        self.outputs = [
            {**_value(network, v), "name": name}
            for v, name in zip(network.graph.outputs, names, strict=True)
        ]

    def place(self, address: int) -> tuple[str, int]:
        if address in self._offsets:
            return "W", self._offsets[address]
        for kind, (start, size) in self._starts.items():
            if start <= address < start + max(size, 1):
                return kind, address - start
        for array in self.network.memory.constants:  # a part of one
            start = int(array.ctypes.data)
            if 0 <= address - start < array.nbytes:
                return "W", self._offsets[start] + address - start
        raise AnsorliteError("a kernel reads memory that is not the network's own")


def _padded(block: Any) -> Any:
    short = -block.size % ALIGNMENT
    return np.concatenate([block, np.zeros(short, np.uint8)]) if short else block


def _write_objects(layout: "_Layout", path: Path) -> dict[str, Any]:
    """The object files of all kernels; each entry point gets a distinct name."""
    files, target = {}, layout.target
    for k, image in enumerate(layout.images):
        if image.symbol != SYMBOL or SYMBOL.encode() not in image.object_bytes:
            raise AnsorliteError(f"kernel {k} has the entry point {image.symbol}, not {SYMBOL}")
        code = image.object_bytes.replace(SYMBOL.encode(), entry(k).encode())
        (path / kernel_file(k)).write_bytes(code)
        files[kernel_file(k)] = file_entry(path / kernel_file(k))
    if len(layout.sets) > 1:  # threads run beside whichever set is chosen
        target = replace(target, cpu=PLAIN_CPU.get(target.arch, "generic"), features="")
    try:
        threads = threads_ir(target, hidden=True)
    except ValueError:  # a system that the pool does not know
        threads = serial_ir(hidden=True)
    (path / THREADS).write_bytes(compile_module(threads, target))
    files[THREADS] = file_entry(path / THREADS)
    return files


def _write_weights(layout: "_Layout", path: Path) -> dict[str, Any]:
    """Write the weights block by block, with no copy of all; sets the segments' checksums."""
    known, size = hashlib.sha256(), 0
    with (path / WEIGHTS).open("wb") as file:
        for segment in layout.segments:
            sums = 0
            for block in _blocks(segment):
                file.write(block.data)
                known.update(block.data)
                sums += checksum(block, size // 8)
                size += block.size
            segment.checksum = sums % (1 << 64)
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


def _source(layout: _Layout, known_as: str) -> str:
    """The C source: tables of all sizes, then the code that is the same for every network."""
    kernels = "\n".join(
        f"extern const step {entry(k)}{STEPS}[];" for k in range(len(layout.images))
    )
    every = [size for own in layout.sizes_of for size in own]
    calls = max(sum(len(s.kernels) for s in own) for own in layout.sizes_of)
    needs = [required(own.target) for own in layout.sets]
    tables = f"""{kernels}

#define N_SETS {len(layout.sets)}
#define N_SIZES {len(layout.sizes)}
#define N_CALLS {calls}
#define N_INPUTS {len(layout.sizes[0].inputs)}
#define N_OUTPUTS {len(layout.sizes[0].outputs)}
#define N_SEGMENTS {len(layout.segments)}
#define MOST_SLOTS {max([1, *(len(row) for s in every for row in s.slots)])}
#define ARENA_BYTES {layout.arena_bytes}ll
#define WORKSPACE_BYTES {layout.workspace_bytes}ll
#define WEIGHTS_BYTES {layout.weights_bytes}ll
#define IDENTITY {c_string(known_as)}

static const char version[] = {c_string(ansorlite.__version__)};
static const char name[] = {c_string(layout.networks[0].graph.name)};
"""
    starts = [sum(map(len, needs[:k])) for k in range(len(needs))]
    filled = {
        "TABLES": tables,
        "SIZES": "\n".join(
            [_ends(k, size) for k, size in enumerate(layout.sizes)]
            + [
                _tables(f"{n}_{k}", s)
                for n, own in enumerate(layout.sizes_of)
                for k, s in enumerate(own)
            ]
        ),
        "ROWS": ",\n".join(_rows(_size_rows(n, own)) for n, own in enumerate(layout.sizes_of)),
        "FEATURES": ",\n".join(c_rows([f for own in needs for f in own], layout.target.arch))
        or "  {0}",
        "SETS": ",\n".join(
            f"  {{{c_string(own.name)}, {start}, {len(own_needs)}}}"
            for own, start, own_needs in zip(layout.sets, starts, needs, strict=True)
        ),
        "SEGMENTS": _rows(
            (f"{s.readers:#x}u", f"{s.start}ll", f"{s.size_bytes}ll", f"{s.checksum:#018x}ull")
            for s in layout.segments
        ),
    }
    return _filled(SOURCE_FORM, filled)


def _ends(k: int, size: _Size) -> str:
    """The tables of inputs and outputs of size k, which all sets share."""
    return "\n".join([_told(f"inputs_{k}", size.inputs), _told(f"outputs_{k}", size.outputs)])


def _tables(mark: str, size: _Size) -> str:
    """The tables of what a size runs; `mark` ends their names."""
    calls = []
    for kernel, slots in zip(size.kernels, size.slots, strict=True):
        places = ", ".join(f"{{'{kind}', {at}ll}}" for kind, at in slots)
        calls.append(f"  {{{entry(kernel)}{STEPS}, {len(slots)}, {{{places}}}}},")
    links = [(n.call, n.slot, n.index, int(n.written), f"{n.start}ll") for n in size.links]
    loops = [(x.first, x.calls, f"{x.times}ll", len(x.moves)) for x in size.loops]
    parts = [
        ("call", "calls", "\n".join(calls) or "  {0},"),
        ("link_to", "links", _rows(links)),
        ("loop", "loops", _rows(loops)),
        ("joined", "together", _rows(size.together)),
        ("move", "moves", _rows((k, s, f"{by}ll") for x in size.loops for k, s, by in x.moves)),
        ("index_check", "checks", _rows(_checks(size))),
        ("long long", "input_bytes", ", ".join(f"{v['bytes']}ll" for v in size.inputs) or "0"),
        ("value", "outputs_of", _rows(_origins(size))),
    ]
    return "\n".join(
        f"static const {kind} {name}_{mark}[] = {{\n{rows}\n}};" for kind, name, rows in parts
    )


def _size_rows(n: int, sizes: Sequence[_Size]) -> Iterator[tuple[Any, ...]]:
    """Rows of network.c's table `sizes` for set n: a size's tables, and where its calls begin."""
    first = 0
    for k, s in enumerate(sizes):
        tables = (
            "calls",
            "links",
            "loops",
            "moves",
            "together",
            "checks",
            "input_bytes",
            "outputs_of",
        )
        names = [f"{name}_{n}_{k}" for name in tables]
        told = f"inputs_{k}_told", f"outputs_{k}_told"
        yield (
            *names,
            *told,
            first,
            len(s.kernels),
            len(s.links),
            len(s.loops),
            len(s.together),
            len(s.checks),
        )
        first += len(s.kernels)


def _filled(form: Path, parts: Mapping[str, str]) -> str:
    """The form with each mark replaced once: nothing is looked for in what was filled in."""
    marks = re.compile(rf"/\* ({'|'.join(parts)}) \*/")
    return marks.sub(lambda found: parts[found[1]], form.read_text(encoding="ascii"))


def _rows(rows: Iterable[Sequence[Any]]) -> str:
    return ",\n".join(f"  {{{', '.join(map(str, row))}}}" for row in rows) or "  {0}"


ORIGINS = {"written": "K", "constant": "W", "input": "I", "output": "O", "arena": "A"}


def _origins(size: _Size) -> Iterator[tuple[str, str, str, str]]:
    """The origin of each output, as a row of network.c's table of outputs."""
    own = size.network.graph.outputs
    for v, name, origin in zip(size.outputs, own, size.results, strict=True):
        kind = ORIGINS[origin.kind]
        at, start = origin.index, origin.start
        if kind == "W":
            _, at = size.place(size.network.memory.returned[name])
        elif kind == "A":
            (_, at), start = size.place(start), 0
        yield f"'{kind}'", f"{at}ll", f"{start}ll", f"{v['bytes']}ll"


def _checks(size: _Size) -> Iterator[tuple[str, ...]]:
    """Indices that are checked at run time: place, number, extent, message."""
    for check, kind, k in size.checks:
        known = size.network.graph.types[check.value]
        letter, at = size.place(k) if kind == "arena" else (kind[0].upper(), k)
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


def _header(layout: _Layout) -> str:
    lines = []
    for n, size in enumerate(layout.sizes):
        graph = size.network.graph
        ends = {"input": graph.inputs, "output": graph.outputs}
        lines += [f" *  size {n}:"] * (len(layout.sizes) > 1)
        lines += [
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


def _described(layout: _Layout) -> dict[str, Any]:
    """The description of the network in network.json: `manifest.DESCRIBED`."""
    target, first = layout.target, layout.sizes[0]
    return {
        "network": first.network.graph.name,
        "version": ansorlite.__version__,
        "triple": target.triple,
        "targets": [
            {
                "name": own.name,
                "cpu": own.target.cpu,
                "requires": required(own.target),
                "kernels": dict(own.found),
            }
            for own in layout.sets
        ],
        "inputs": first.inputs,
        "outputs": first.outputs,
        "more_sizes": [{"inputs": s.inputs, "outputs": s.outputs} for s in layout.sizes[1:]],
        "arena_bytes": layout.arena_bytes,
        "weights_bytes": layout.weights_bytes,
        "kernels": len(layout.images),
    }
