"""The thread pool of this process's kernels, controlled by OpenMP's environment variables.

In: nothing; the pool of `codegen.threads` is compiled and loaded on the first call. Out: a
`Runtime` with the addresses that kernels are linked with. ANSORLITE_NUM_THREADS, else
OMP_NUM_THREADS, is the number of threads of a region (default: the processors that this process may
use), at most OMP_THREAD_LIMIT. With OMP_WAIT_POLICY=passive, idle threads sleep at once. The pool
uses no OpenMP library and does not touch one that is loaded for other reasons (libgomp, libomp). A
child of a fork starts new threads.
"""

import ctypes
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from ansorlite.codegen import object_cache
from ansorlite.codegen.compile import compile_module, new_jit
from ansorlite.codegen.threads import MAX_THREADS, SPIN_NS, SYMBOLS, serial_ir, threads_ir
from ansorlite.settings import settings
from ansorlite.target import Target


@dataclass(frozen=True)
class Runtime:
    """A loaded pool: its name in words ("" without threads), and the address of each symbol.

    `owner` keeps the code alive and has no other use.
    """

    library: str
    addresses: dict[str, int]
    owner: Any

    @property
    def is_serial(self) -> bool:
        return not self.library


@cache
def runtime() -> Runtime:
    """The process's pool, made on the first call; warns once on a system without thread support."""
    target = Target.detect()
    try:
        found = _linked(pool_object(target), "built-in threads")
    except ValueError as error:
        warnings.warn(f"kernels run on one thread: {error}", UserWarning, stacklevel=2)
        return serial_runtime()
    _function(found, "ansorlite_set_threads", ctypes.c_int64)(default_threads(os.environ, target))
    spin_ns = 0 if os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive" else SPIN_NS
    _function(found, "ansorlite_set_spin", ctypes.c_int64)(spin_ns)
    after_fork = _function(found, "ansorlite_after_fork")

    def forget_threads(pool: Runtime = found) -> None:  # the default keeps the pool's code alive
        after_fork()

    os.register_at_fork(after_in_child=forget_threads)
    return found


@cache
def pool_object(target: Target) -> bytes:
    """Relocatable object of the pool; raises ValueError for a system without thread support.

    It takes a quarter of a second, so that one process of a machine compiles it.
    """
    text = threads_ir(target)
    if not object_cache.is_on():
        return compile_module(text, target)
    key = object_cache.key_of("threads", text, target)
    known = object_cache.load(key)
    if known is None:
        known = compile_module(text, target)
        object_cache.save(key, known)
    return known


def serial_runtime() -> Runtime:
    """The functions of the pool for one thread: a region is a plain call."""
    return _linked(compile_module(serial_ir(), Target.detect()), "")


def default_threads(env: Mapping[str, str], target: Target) -> int:
    """The number of threads of a region, from the environment `env` and the target's cores.

    OMP_NUM_THREADS may be a list by nesting level; the first number counts. Values that are no
    number are ignored, as OpenMP runtimes do.
    """
    wanted = settings().num_threads or _number(env.get("OMP_NUM_THREADS", "").split(",")[0])
    limit = _number(env.get("OMP_THREAD_LIMIT", "")) or MAX_THREADS
    return min(wanted or target.cores, limit, MAX_THREADS)


def set_num_threads(n: int) -> None:
    """Let kernels use at most `n` threads from now on; raises ValueError for `n` below 1."""
    if n < 1:
        raise ValueError(f"cannot use {n} threads: at least 1")
    _function(runtime(), "ansorlite_set_threads", ctypes.c_int64)(n)


def max_threads() -> int:
    """The largest number of threads that a kernel uses."""
    address = runtime().addresses["ansorlite_threads"]
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(address)())


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else 0


def _function(pool: Runtime, name: str, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(None, *arguments)(pool.addresses[name])


def _linked(code: bytes, library: str) -> Runtime:
    jit = new_jit()
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in SYMBOLS:
        builder.export_symbol(name)
    tracker = builder.link(jit, "ansorlite_threads")
    return Runtime(library, {name: tracker[name] for name in SYMBOLS}, (tracker, jit))
