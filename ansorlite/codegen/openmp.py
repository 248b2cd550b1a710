"""The OpenMP runtime that parallel kernels call.

Kernels call GNU's entry point `GOMP_parallel(fn, data, threads, flags)`, which libgomp, LLVM's
libomp and Intel's libiomp5 all export, and ask `omp_get_thread_num` which thread they are. This
module finds such a library (the system's, else one that an installed wheel brought along), loads
it for the whole process and gives the functions' addresses to the loader. Without one, five
functions compiled here run everything on the calling thread, after one warning.
"""

import ctypes
import ctypes.util
import site
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

SYMBOLS = (
    "GOMP_parallel",
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_get_max_threads",
    "omp_set_num_threads",
)

# In the order of preference: GNU's is what gcc, scikit-learn's and LightGBM's Linux builds use,
# and two runtimes in one process fight for the cores.
LIBRARY_NAMES = (
    "libgomp.so.1",
    "libomp.so.5",
    "libomp.so",
    "libiomp5.so",
    "libomp.dylib",
    "libiomp5.dylib",
    "/opt/homebrew/opt/libomp/lib/libomp.dylib",
    "/usr/local/opt/libomp/lib/libomp.dylib",
)

# Where wheels keep the runtimes that they bundle, relative to site-packages.
WHEEL_PATTERNS = (
    "*.libs/libgomp*.so*",
    "*/lib/libgomp*.so*",
    "*/lib/libomp*.so*",
    "*/lib/libiomp5*.so*",
    "*/.dylibs/libomp*.dylib",
    "*/lib/libomp*.dylib",
)

SERIAL_IR = """
define void @GOMP_parallel(ptr %fn, ptr %data, i32 %threads, i32 %flags) {
  call void %fn(ptr %data)
  ret void
}
define i32 @omp_get_thread_num() {
  ret i32 0
}
define i32 @omp_get_num_threads() {
  ret i32 1
}
define i32 @omp_get_max_threads() {
  ret i32 1
}
define void @omp_set_num_threads(i32 %n) {
  ret void
}
"""


@dataclass(frozen=True)
class OpenMP:
    """A loaded runtime: its library ("" for the serial one) and the address of each symbol.

    `owner` keeps the code alive; it is nobody's business.
    """

    library: str
    addresses: dict[str, int]
    owner: Any

    @property
    def is_serial(self) -> bool:
        return not self.library


@cache
def runtime() -> OpenMP:
    """The process's runtime, found on the first call; warns once where there is none."""
    for name in (*LIBRARY_NAMES, *_system_libraries(), *_wheel_libraries(_site_packages())):
        found = load(name)
        if found is not None:
            return found
    warnings.warn(
        "no OpenMP runtime found, kernels run on one thread: install libgomp"
        " (apt-get install libgomp1, dnf install libgomp) or libomp (brew install libomp)",
        UserWarning,
        stacklevel=2,
    )
    return serial_runtime()


def load(library: str) -> OpenMP | None:
    """The runtime in `library` (a name or a path); None if it is absent or lacks a symbol."""
    try:
        handle = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        addresses = {name: _address(getattr(handle, name)) for name in SYMBOLS}
    except (OSError, AttributeError):
        return None
    return OpenMP(library, addresses, handle)


def serial_runtime() -> OpenMP:
    """The same five functions for one thread: `GOMP_parallel` only calls `fn(data)`."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    jit = llvm.create_lljit_compiler()
    library = llvm.JITLibraryBuilder().add_ir(SERIAL_IR)
    for name in SYMBOLS:
        library.export_symbol(name)
    tracker = library.link(jit, "ansorlite_serial_openmp")
    return OpenMP("", {name: tracker[name] for name in SYMBOLS}, (tracker, jit))


def set_num_threads(n: int) -> None:
    """Let kernels that the calling thread starts from now on use `n` threads (at least 1)."""
    if n < 1:
        raise ValueError(f"cannot use {n} threads: at least 1")
    ctypes.CFUNCTYPE(None, ctypes.c_int)(runtime().addresses["omp_set_num_threads"])(n)


def max_threads() -> int:
    """How many threads a kernel that the calling thread starts may use."""
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(runtime().addresses["omp_get_max_threads"])())


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _system_libraries() -> Iterator[str]:
    """What the system's own search finds under other names; asked last, since it runs tools."""
    for name in ("gomp", "omp", "omp5", "iomp5"):
        found = ctypes.util.find_library(name)
        if found:
            yield found


def _site_packages() -> list[Path]:
    folders = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    return [Path(f) for f in dict.fromkeys(folders) if f.endswith("-packages")]


def _wheel_libraries(folders: list[Path]) -> Iterator[str]:
    """Paths of the runtimes inside installed wheels, in the order of WHEEL_PATTERNS."""
    for pattern in WHEEL_PATTERNS:
        for folder in folders:
            yield from map(str, sorted(folder.glob(pattern)))
