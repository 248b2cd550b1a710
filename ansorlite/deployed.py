"""A saved network, loaded with numpy alone: no compiler, no search, no source network.

In: a folder that `CompiledModule.save` wrote. Out: a `DeployedModule`, callable like the saved
module. Every file is compared with the manifest before its use, and the library's tables of inputs
and outputs with those of the manifest. Raises ModelError for a folder without a saved network, a
changed file, a missing library, or a CPU feature that this machine lacks. As a command
(`python -m ansorlite.deployed DIR --bench`) it describes the network, or times it.
"""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ansorlite.calls import Array, Operand, Results, address, in_order, new_lock
from ansorlite.errors import ModelError, UsageError
from ansorlite.manifest import (
    LIBRARY,
    VALUE,
    WEIGHTS,
    Metadata,
    check_files,
    read_metadata,
    sizes_of,
)
from ansorlite.names import shown
from ansorlite.settings import forced_target, lacking
from ansorlite.sizes import shapes_of, unlisted

SYSTEMS = {"linux": ("linux",), "darwin": ("darwin", "macos")}  # words in a triple
ARCHITECTURES = {"AMD64": "x86_64", "arm64": "aarch64"}  # platform.machine() -> name in a triple


def cpu_flags() -> set[str]:
    """Features of this CPU as /proc/cpuinfo names them; empty on systems without that file.

    Also under an emulator that shows the file of another architecture. Without those that
    ANSORLITE_CPU_LACKS names.
    """
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return set()
    arm = ARCHITECTURES.get(platform.machine(), platform.machine()) == "aarch64"
    wanted = "Features" if arm else "flags"
    for line in info.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == wanted:
            return set(value.split()) - lacking(os.environ)
    return set()


MOST_THREADS = 1024


class DeployedModule:
    """A callable network; calls share one arena of memory, so they run one after another.

    Made by `load_module`. It can be copied and pickled as a reference to its folder.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            path = Path(folder)
        except TypeError:
            kind = type(folder).__name__
            raise ModelError(f"the folder is of type {kind}: give a path") from None
        self.metadata = read_metadata(path)
        _check_machine(self.metadata, path)
        found = check_files(path, self.metadata)
        self._library = _library(path / LIBRARY, found, self.metadata)
        self._folder = path.resolve()
        self._lock = new_lock(self)
        self._sizes = [_Size(size) for size in sizes_of(self.metadata)]
        self._by_shapes = {s.shapes: k for k, s in enumerate(self._sizes)}
        self._first, self._is_one = self._sizes[0], len(self._sizes) == 1
        self._read = (ctypes.c_void_p * max(1, len(self._first.operands)))()
        self._written = (ctypes.c_void_p * max(1, len(self._first.fresh)))()
        self._places = ctypes.addressof(self._read), ctypes.addressof(self._written)
        self._net: int | None = None
        why = ctypes.c_char_p()
        weights = os.fsencode((path / WEIGHTS).resolve())
        self._net = self._library.network_open(weights, ctypes.byref(why))
        if not self._net:
            raise ModelError(f"{path} cannot be opened: {(why.value or b'?').decode()}")
        self._run = self._library.network_run_size
        self._target = int(self._library.network_target(self._net))

    def __del__(self) -> None:
        if getattr(self, "_net", None):
            self._library.network_close(self._net)

    def __str__(self) -> str:
        taken, given = (
            ", ".join(f"{v['name']}: {v['dtype']}{v['shape']}" for v in self.metadata[ends])
            for ends in ("inputs", "outputs")
        )
        return shown(f"DeployedModule {self._folder}({taken}) -> {given}")

    def __repr__(self) -> str:
        return f"<{self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or an unpickled module, is loaded from the same folder."""
        return DeployedModule, (self._folder,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of a call."""
        return tuple(v["name"] for v in self.metadata["inputs"])

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in the order of a call's results."""
        return tuple(v["name"] for v in self.metadata["outputs"])

    @property
    def version(self) -> str:
        """The version of ansorlite that saved the network."""
        return str(self._library.network_version().decode())

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that the folder has kernels for, the best one first."""
        return tuple(t["name"] for t in self.metadata["targets"])

    @property
    def target(self) -> str:
        """The target whose kernels run: the first that this CPU runs, or ANSORLITE_TARGET."""
        return self.targets[self._target]

    @property
    def threads(self) -> int:
        """The largest number of threads of a kernel; shared by all modules of the same folder.

        Can be set; raises UsageError for no whole number from 1 on. See ANSORLITE_NUM_THREADS for
        the number at first.
        """
        return int(self._library.network_threads())

    @threads.setter
    def threads(self, n: int) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise UsageError(f"threads is {n!r}: give a whole number from 1 on")
        self._library.network_set_threads(min(n, MOST_THREADS))

    @property
    def sizes(self) -> tuple[Metadata, ...]:
        """Each size's inputs and outputs: lists of name, shape, dtype and bytes."""
        return tuple(sizes_of(self.metadata))

    def __call__(
        self, /, *args: npt.ArrayLike, **named: npt.ArrayLike
    ) -> Array | tuple[Array, ...]:
        """Run on arrays; one array, or a tuple in output order.

        Arrays are in input order, by name, or one dict of names and arrays. Raises ModelError for a
        wrong number, shape or dtype of inputs. Example: `y = net(x)`, `y = net(data=x)` or
        `y = net({"data": x})`.
        """
        size, number = self._first, 0
        if named or len(args) != len(size.operands) or isinstance(args[0] if args else 0, dict):
            args = tuple(in_order(self.inputs, args, named))
        if not self._is_one:
            number = self._number(args)
            size = self._sizes[number]
        given: list[Any] = []
        for w, x in zip(size.operands, args):  # noqa: B905 (for speed: a call takes microseconds)
            given.append(x if w.fits(x) else w.read(x))
        with self._lock:
            for k, x in enumerate(given):
                self._read[k] = address(x)
            results = [r.take() for r in size.fresh]
            for k, y in enumerate(results):
                self._written[k] = address(y)
            if self._run(self._net, number, *self._places):
                why = self._library.network_why(self._net)
                raise ModelError(f"the network cannot run: {why.decode()}")
        return results[0] if len(results) == 1 else tuple(results)

    def _number(self, args: Sequence[npt.ArrayLike]) -> int:
        """The size that these arrays have; a SizesError lists all where there is none."""
        shapes = shapes_of(self.inputs, args)
        found = self._by_shapes.get(shapes)
        if found is None:
            raise unlisted(self.inputs, shapes, list(self._by_shapes))
        return found


class _Size:
    """One size of a network: its operands and memory for its results."""

    def __init__(self, size: Metadata) -> None:
        self.operands, results = (
            [Operand(v["name"], v["shape"], v["dtype"], kind) for v in size[f"{kind}s"]]
            for kind in ("input", "output")
        )
        self.fresh = tuple(map(Results, results))
        self.shapes = tuple(w.shape for w in self.operands)


def load_module(folder: str | Path) -> DeployedModule:
    """Load the network from a folder that `CompiledModule.save` wrote.

    Raises ModelError as the module's docstring says. Example:
    `net = al.load_module("resnet50-native"); y = net(x)`.
    """
    return DeployedModule(folder)


class _Value(ctypes.Structure):
    """`network_value` of network.h."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_longlong),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_longlong)),
        ("bytes", ctypes.c_longlong),
    )


_loaded: dict[Path, list[str]] = {}  # path of a library -> SHA-256 of each content loaded from it
_loading = threading.Lock()


def _unused_spelling(file: Path, digest: str) -> str:
    """A spelling of the file's path that this process has used for no other content.

    For a path with a known spelling, the dynamic loader returns the library that it has already
    loaded, even if another network was saved there since. Additional "." parts change the spelling.
    """
    path = file.resolve()
    with _loading:
        known = _loaded.setdefault(path, [])
        if digest not in known:
            known.append(digest)
        return os.path.join(path.parent, *["."] * known.index(digest), path.name)


def _library(file: Path, digest: str, metadata: Metadata) -> ctypes.CDLL:
    """The loaded library with the signatures of its functions; it must match the manifest."""
    try:
        library = ctypes.CDLL(_unused_spelling(file, digest))
    except OSError as error:
        raise ModelError(f"{file} cannot be loaded: {error}") from None
    try:
        library.network_identity.restype = library.network_version.restype = ctypes.c_char_p
        library.network_threads.restype = ctypes.c_int
        library.network_set_threads.argtypes = (ctypes.c_int,)
        library.network_open.restype = ctypes.c_void_p
        library.network_open.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p))
        pointer = ctypes.c_void_p
        library.network_run_size.argtypes = (pointer, ctypes.c_int, pointer, pointer)
        library.network_run_size.restype = ctypes.c_int
        library.network_why.argtypes = (ctypes.c_void_p,)
        library.network_why.restype = ctypes.c_char_p
        library.network_close.argtypes = (ctypes.c_void_p,)
        library.network_target.argtypes = (ctypes.c_void_p,)
        library.network_target_name.restype = ctypes.c_char_p
        names = [library.network_target_name(k) for k in range(library.network_targets())]
        known_as = library.network_identity()
        told = [
            {
                "inputs": _library_table(library.network_inputs_of, k),
                "outputs": _library_table(library.network_outputs_of, k),
            }
            for k in range(library.network_sizes())
        ]
    except AttributeError as error:
        raise ModelError(f"{file} is no library of a saved network: {error}") from None
    if known_as != metadata["identity"].encode():
        raise ModelError(
            f"{file} is another network's library: copy all files of one network, or link it again"
        )
    if names != [target["name"].encode() for target in metadata["targets"]]:
        raise ModelError(f"{file} has other targets than the manifest: save the network again")
    known = sizes_of(metadata)
    if len(told) != len(known):
        raise ModelError(f"{file} has other sizes than the manifest: save the network again")
    for own, size in zip(told, known, strict=True):
        for kind, values in own.items():
            if values != [{key: v[key] for key in VALUE} for v in size[kind]]:
                raise ModelError(
                    f"{file} has other {kind} than the manifest: save the network again"
                )
    return library


def _library_table(function: Any, size: int) -> list[dict[str, Any]]:
    """The library's own table of inputs or outputs of a size."""
    table = ctypes.POINTER(_Value)()
    function.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.POINTER(_Value)))
    n = function(size, ctypes.byref(table))
    return [
        {
            "name": ctypes.string_at(v.name, v.name_bytes).decode("utf-8", "surrogatepass"),
            "shape": v.shape[: v.rank],
            "dtype": v.dtype.decode(),
            "bytes": v.bytes,
        }
        for v in table[:n]
    ]


def _check_machine(metadata: Mapping[str, Any], path: Path) -> None:
    here = ARCHITECTURES.get(platform.machine(), platform.machine())
    made_for = metadata["triple"].split("-")[0]
    made_for = ARCHITECTURES.get(made_for, made_for)
    if made_for != here:
        raise ModelError(f"{path} is {made_for} code, and this machine is {here}")
    system = platform.system().lower()
    if system in ("linux", "darwin") and not any(w in metadata["triple"] for w in SYSTEMS[system]):
        raise ModelError(f"{path} is code for {metadata['triple']}, and this machine runs {system}")
    forced, flags = forced_target(os.environ), cpu_flags()
    known = {t["name"]: t for t in metadata["targets"]}
    if forced and forced not in known:
        raise ModelError(
            f"ANSORLITE_TARGET={shown(forced, 40)} names no set of kernels of {path}, which has "
            f"{', '.join(known)}"
        )
    asked = [known[forced]] if forced else list(known.values())
    missing = [(t, [f for f in t["requires"] if f not in flags]) for t in asked]
    if flags and all(lacks for _, lacks in missing):
        told = "; ".join(f"{t['name']}: this CPU lacks {', '.join(m)}" for t, m in missing)
        raise ModelError(
            f"this CPU runs none of the kernels of {path}, {told}: save the network for this CPU"
        )


if __name__ == "__main__":
    from ansorlite.deployed_bench import main

    sys.exit(main(load_module))
