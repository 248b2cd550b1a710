"""`network.json`, the manifest of a saved network: a description and checksums of the folder.

Flow: `graph.deploy` writes the manifest last; `deployed` checks it before it uses any other file.
The manifest holds the description of the network; size and SHA-256 of every file; the identity
(SHA-256 of description, weights and kernels, which the library contains as well); and the SHA-256
of all these. Raises ModelError for a folder that differs from the saved one. Checksums detect
damage and mixed-up files, but they are no signature: a library is native code, so load only
libraries that you trust.
"""

import hashlib
import json
import math
import os
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.names import shown

FORMAT = 5
LIBRARY, METADATA, WEIGHTS = "libnetwork.so", "network.json", "weights.bin"
SOURCE, HEADER, THREADS = "network.c", "network.h", "threads.o"
CPP_HEADER, WRAPPER = "network.hpp", "network.py"
FLAGS = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden")
LIBRARIES = ("-lm", "-lpthread")
MAX_BYTES = 64 << 20  # size of network.json
# The keys of network.json that describe the network, and the types of their values.
DESCRIBED: dict[str, type] = {
    "network": str,
    "version": str,
    "triple": str,
    "targets": list,
    "inputs": list,
    "outputs": list,
    "more_sizes": list,
    "arena_bytes": int,
    "weights_bytes": int,
    "kernels": int,
}
SIZE: dict[str, type] = {"inputs": list, "outputs": list}  # of an entry of more_sizes
# Of an entry of targets, the best one first: a set of kernels, the features of /proc/cpuinfo that
# these need, and how many kernels were found in which way (see `search.retarget`).
TARGET: dict[str, type] = {"name": str, "cpu": str, "requires": list, "kernels": dict}
MAX_TARGETS = 32
SEALED: dict[str, type] = {"link": str, "identity": str, "files": dict, "sha256": str}
VALUE: dict[str, type] = {"name": str, "shape": list, "dtype": str, "bytes": int}
MACH_O = (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
HEX = re.compile("[0-9a-f]{64}")

Metadata = dict[str, Any]


def kernel_file(k: int) -> str:
    """File name of the object of kernel k."""
    return f"kernel{k}.o"


def link_command(kernels: int) -> list[str]:
    """The command that links the library from the other files, run in their folder."""
    objects = [kernel_file(k) for k in range(kernels)]
    return ["cc", *FLAGS, "-o", LIBRARY, SOURCE, *objects, THREADS, *LIBRARIES]


# ---- writing ------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of keys and of spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def file_entry(file: Path) -> Metadata:
    """{"bytes": size, "sha256": checksum} of a file."""
    with file.open("rb") as data:
        found = hashlib.file_digest(data, "sha256").hexdigest()
        return {"bytes": os.fstat(data.fileno()).st_size, "sha256": found}


def identity(described: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """The identity of a network (SHA-256); `parts` are the entries of the files `parts(kernels)`.

    The library contains the identity, so its own entry is no part of it.
    """
    return digest({"described": {k: described[k] for k in DESCRIBED}, "parts": dict(parts)})


def parts(kernels: int) -> tuple[str, ...]:
    """The files that the identity covers."""
    return (WEIGHTS, THREADS, *map(kernel_file, range(kernels)))


def sealed(described: Mapping[str, Any], files: Mapping[str, Any]) -> Metadata:
    """The content of network.json, from the description and the entries of all files."""
    kernels = described["kernels"]
    whole = {
        "format": FORMAT,
        **described,
        "link": " ".join(link_command(kernels)),
        "identity": identity(described, {name: files[name] for name in parts(kernels)}),
        "files": dict(files),
    }
    return {**whole, "sha256": digest(whole)}


def sizes_of(metadata: Metadata) -> list[Metadata]:
    """Inputs and outputs of every size."""
    return [{kind: size[kind] for kind in SIZE} for size in (metadata, *metadata["more_sizes"])]


# ---- reading ------------------------------------------------------------------------------------


def read_metadata(folder: Path) -> Metadata:
    """The content of a folder's network.json, after checks of its checksum and of all types.

    Raises ModelError for a missing, damaged or changed file and for another format.
    """
    file = folder / METADATA
    if not _regular(file):
        raise ModelError(f"{folder} holds no saved network: it has no {METADATA}")
    try:
        with file.open("rb") as data:
            text = data.read(MAX_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise _damaged(file, f"it has more than {MAX_BYTES} bytes")
    try:
        found = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(file, shown(str(error), 200)) from None
    version = found.get("format") if isinstance(found, dict) else None
    if type(version) is not int or version != FORMAT:
        told = shown(str(version), 40)
        raise ModelError(f"{file} has format {told}; this version reads {FORMAT}: save it again")
    told = found.pop("sha256", None)
    try:
        right = told == digest(found)
    except (ValueError, RecursionError) as error:
        raise _damaged(file, shown(str(error), 200)) from None
    if not right:
        raise _damaged(file, "it was changed after it was saved")
    _check_types(file, {**found, "sha256": told})
    return {**found, "sha256": told}


def check_files(folder: Path, metadata: Mapping[str, Any]) -> str:
    """The library's SHA-256; raises ModelError where a file is missing or differs from the saved.

    A library without an entry in the manifest was linked later. Its own program and section tables
    must lie inside the file, so that loading it reads no byte behind its end.
    """
    files = metadata["files"]
    for name, entry in files.items():
        file = folder / name
        if not _regular(file):
            raise ModelError(f"{folder} has no {name}: copy all files, or save the network again")
        try:
            found = file.stat().st_size
            if found != entry["bytes"]:
                raise _damaged(file, f"it has {found} bytes, not {entry['bytes']}")
            if file_entry(file) != entry:
                raise _damaged(file, "its content is not the saved one (SHA-256)")
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    library = folder / LIBRARY
    if LIBRARY in files:
        return str(files[LIBRARY]["sha256"])
    if not _regular(library):
        command = " ".join(link_command(metadata["kernels"]))
        raise ModelError(f"{folder} has no {LIBRARY}: link it there with: {command}")
    if not _is_whole(library):
        raise _damaged(library, "it is no library, or cut short")
    return str(file_entry(library)["sha256"])


def _damaged(file: Path, why: str) -> ModelError:
    return ModelError(f"{file} is damaged: {why}: save the network again")


def _regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except (OSError, ValueError):
        return False


def _check_types(file: Path, found: Mapping[str, Any]) -> None:
    """Raise ModelError where a key is missing or its value has a wrong type or form."""
    _check_keys(file, "", found, {**DESCRIBED, **SEALED})
    _check_targets(file, found["targets"])
    for n, size in enumerate((found, *found["more_sizes"])):
        at = f"more_sizes[{n - 1}]." if n else ""
        _check_keys(file, at, size, SIZE)
        for kind in SIZE:
            for k, value in enumerate(size[kind]):
                _check_keys(file, f"{at}{kind}[{k}].", value, VALUE)
                _check_value(file, f"{at}{kind}[{k}]", value)
            if [v["name"] for v in size[kind]] != [v["name"] for v in found[kind]]:
                raise _damaged(file, f"{at}{kind} are others than those of the first size")
    files, kernels = found["files"], found["kernels"]
    if len(files) < kernels:  # checked before `parts` makes a list of so many names
        raise _damaged(file, f"it has {kernels} kernels and {len(files)} files")
    needed = (SOURCE, HEADER, CPP_HEADER, WRAPPER, *parts(kernels))
    missing = [n for n in needed if n not in files]
    more = [n for n in files if n not in (LIBRARY, *needed)]
    if missing or more:
        what = "missing from" if missing else "unexpected among"
        raise _damaged(file, f"{shown((missing + more)[0], 80)} is {what} its files")
    for name, entry in files.items():
        _check_keys(file, f"files.{name}.", entry, {"bytes": int, "sha256": str})
    entries = {name: files[name] for name in parts(kernels)}
    if found["identity"] != identity(found, entries):
        raise _damaged(file, "its identity is another network's")


def _check_targets(file: Path, targets: list[Any]) -> None:
    if not 1 <= len(targets) <= MAX_TARGETS:
        raise _damaged(file, f"it has {len(targets)} targets, not 1 to {MAX_TARGETS}")
    for k, target in enumerate(targets):
        _check_keys(file, f"targets[{k}].", target, TARGET)
        if not all(isinstance(name, str) for name in target["requires"]):
            raise _damaged(file, f"an entry of targets[{k}].requires is no text")
        if not all(type(n) is int and 0 <= n < 1 << 31 for n in target["kernels"].values()):
            raise _damaged(file, f"targets[{k}].kernels has an entry that is no number")
    names = [target["name"] for target in targets]
    if len(set(names)) < len(names):
        raise _damaged(file, "two of its targets have one name")


def _check_keys(file: Path, at: str, found: Any, types: Mapping[str, type]) -> None:
    for key, kind in types.items():
        value: Any = found.get(key) if isinstance(found, dict) else None
        number = value if type(value) is int else 0
        right = type(value) is kind and 0 <= number < 1 << 63
        if not right or (key in ("sha256", "identity") and not HEX.fullmatch(value)):
            raise _damaged(file, f"{at}{key} is no valid {kind.__name__}")


def _check_value(file: Path, at: str, value: Mapping[str, Any]) -> None:
    shape, dtype = value["shape"], value["dtype"]
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise _damaged(file, f"{at}.shape has an extent that is no integer from 0 to 2^63 - 1")
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError):
        known = np.dtype("V1")
    if known.name != dtype or known.kind not in "fiub":
        raise _damaged(file, f"{at}.dtype is no numeric type: {shown(dtype, 40)}")
    if value["bytes"] != math.prod(shape) * known.itemsize:
        raise _damaged(file, f"{at}.bytes is {value['bytes']}, which differs from shape and dtype")


def _is_whole(library: Path) -> bool:
    """Do the program and section tables of an ELF file, and all segments, lie inside the file?

    True for macOS libraries (Mach-O), which the system's loader checks.
    """
    size = library.stat().st_size
    with library.open("rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF":
            return head[:4] in MACH_O
        if len(head) < 64 or head[4] != 2 or head[5] not in (1, 2):
            return False
        order = "<" if head[5] == 1 else ">"
        programs, sections = struct.unpack_from(f"{order}QQ", head, 32)
        widths = struct.unpack_from(f"{order}HHHH", head, 54)
        n_bytes = widths[0] * widths[1]
        if programs + n_bytes > size or sections + widths[2] * widths[3] > size or widths[0] != 56:
            return False
        file.seek(programs)
        table = file.read(n_bytes)
    entries: Iterable[tuple[int, ...]] = struct.iter_unpack(f"{order}IIQQQQQQ", table)
    return all(at + length <= size for _, _, at, _, _, length, _, _ in entries)
