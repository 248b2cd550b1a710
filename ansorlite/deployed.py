"""A saved network, loaded with numpy alone: no compiler, no search, no source network.

In: a folder that `CompiledModule.save` wrote. Out: `DeployedModule`, callable like the module that
was saved. Raises ModelError for a folder that is no such network, lacks its library, or needs a
CPU feature that this machine does not have.
"""

import ctypes
import json
import platform
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ModelError

Array = npt.NDArray[Any]
FORMAT = 1
LIBRARY, METADATA, WEIGHTS = "libnetwork.so", "network.json", "weights.bin"
ARCHITECTURES = {"AMD64": "x86_64", "arm64": "aarch64"}  # other words for the same


def cpu_flags() -> set[str]:
    """Features of this machine's CPU in the words of /proc/cpuinfo; empty where there is none."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return set()
    for line in info.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


class DeployedModule:
    """Callable network; calls are serialised, they share one arena."""

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder)
        self.metadata = _metadata(path)
        _check_machine(self.metadata, path)
        library = path / LIBRARY
        if not library.is_file():
            raise ModelError(
                f"{path} has no {LIBRARY}: link it there, by: {self.metadata.get('link')}"
            )
        try:
            self._library = ctypes.CDLL(str(library.resolve()))
        except OSError as error:
            raise ModelError(f"{library} cannot be loaded: {error}") from None
        self._library.network_open.restype = ctypes.c_void_p
        self._library.network_open.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p))
        self._library.network_run.argtypes = (ctypes.c_void_p,) * 3
        self._library.network_run.restype = None
        self._library.network_close.argtypes = (ctypes.c_void_p,)
        self._lock = threading.Lock()
        self._net: int | None = None
        why = ctypes.c_char_p()
        weights = str((path / WEIGHTS).resolve()).encode()
        self._net = self._library.network_open(weights, ctypes.byref(why))
        if not self._net:
            raise ModelError(f"{path} cannot be opened: {(why.value or b'?').decode()}")
        if not self._library.network_is_parallel():
            warnings.warn(
                "no OpenMP runtime found, the network runs on one thread: install libgomp",
                UserWarning,
                stacklevel=3,
            )

    def __del__(self) -> None:
        if getattr(self, "_net", None):
            self._library.network_close(self._net)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(v["name"] for v in self.metadata["inputs"])

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(v["name"] for v in self.metadata["outputs"])

    def __call__(self, *args: npt.ArrayLike, **named: npt.ArrayLike) -> Array | tuple[Array, ...]:
        """Run on arrays in input order, or by input name; one array, or a tuple in output order.

        Raises ModelError for a wrong number, shape or dtype of inputs.
        """
        given = [
            _checked(v, x)
            for v, x in zip(self.metadata["inputs"], self._ordered(args, named), strict=True)
        ]
        results = [np.empty(v["shape"], v["dtype"]) for v in self.metadata["outputs"]]
        with self._lock:
            self._library.network_run(self._net, _pointers(given), _pointers(results))
        return results[0] if len(results) == 1 else tuple(results)

    def _ordered(
        self, args: Sequence[npt.ArrayLike], named: Mapping[str, npt.ArrayLike]
    ) -> list[npt.ArrayLike]:
        names = self.inputs
        if args and named:
            raise ModelError("give the network's inputs in order or by name, not both")
        wrong = [n for n in named if n not in names]
        if wrong:
            raise ModelError(f"the network has no input {wrong[0]} (it has: {', '.join(names)})")
        missing = [n for n in names if n not in named] if named else []
        if missing:
            raise ModelError(f"no value is given for input {missing[0]}")
        found = [named[n] for n in names] if named else list(args)
        if len(found) != len(names):
            raise ModelError(
                f"the network takes {len(names)} inputs ({', '.join(names)}), got {len(found)}"
            )
        return found


def load_module(folder: str | Path) -> DeployedModule:
    """The network in a folder that `CompiledModule.save` wrote."""
    return DeployedModule(folder)


def _metadata(path: Path) -> dict[str, Any]:
    file = path / METADATA
    if not file.is_file():
        raise ModelError(f"{path} holds no saved network: it has no {METADATA}")
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise ModelError(f"{file} is damaged: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        version = found.get("format") if isinstance(found, dict) else None
        raise ModelError(f"{file} has format {version}; this version reads {FORMAT}: save it anew")
    return found


def _check_machine(metadata: Mapping[str, Any], path: Path) -> None:
    here = ARCHITECTURES.get(platform.machine(), platform.machine())
    made_for = str(metadata["triple"]).split("-")[0]
    if made_for != here:
        raise ModelError(f"{path} is {made_for} code, and this machine is {here}")
    flags = cpu_flags()
    missing = [f for f in metadata["requires"] if f not in flags] if flags else []
    if missing:
        raise ModelError(
            f"{path} was compiled for {metadata['cpu']}; this CPU lacks {', '.join(missing)}: "
            "compile the network on a machine like this one"
        )


def _checked(v: Mapping[str, Any], x: npt.ArrayLike) -> Array:
    array = np.asarray(x)
    if list(array.shape) != v["shape"] or str(array.dtype) != v["dtype"]:
        raise ModelError(
            f"input {v['name']} is {array.dtype}{list(array.shape)}, expected "
            f"{v['dtype']}{v['shape']}"
        )
    return np.ascontiguousarray(array)


def _pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
