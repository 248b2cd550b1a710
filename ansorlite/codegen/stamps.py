"""The clock around kernels and inside their parallel regions, noted by native code.

In: kernels of this process with prepared pointers. Out: `StampedCalls`, a call sequence that notes
begin and end of each call, and `StampedRegions`, threads that note begin and end of each region and
of each thread in it. Kernels that are linked with `StampedRegions.threads` run on the process's own
pool, through a function around `ansorlite_parallel`: pool and untouched kernels are what they were.
Times are nanoseconds of the system's monotonic clock.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from ansorlite.codegen import openmp
from ansorlite.codegen.compile import new_jit
from ansorlite.codegen.loader import CallSequence, Loop, NativeFunction
from ansorlite.target import Target

Stamps = npt.NDArray[np.int64]
HEAD = 2  # of a log: rows that were noted, rows that there is room for
CALL = 3  # columns: number, begin, end
REGION = 4  # columns: largest number of threads, begin, end, 0; then begin and end of each thread

CLOCK_IR = """
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() {
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 CLOCK, ptr %time)
  %s = load i64, ptr %time
  %place = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %place
  %whole = mul i64 %s, 1000000000
  %sum = add i64 %whole, %ns
  ret i64 %sum
}

; The next row of %width words in a log, null where there is no room; counted in either case.
define internal ptr @row(ptr %log, i64 %width) {
  %n = load i64, ptr %log
  %room_at = getelementptr i64, ptr %log, i64 1
  %room = load i64, ptr %room_at
  %more = add i64 %n, 1
  store i64 %more, ptr %log
  %before = mul i64 %n, %width
  %words = add i64 %before, HEAD
  %place = getelementptr i64, ptr %log, i64 %words
  %fits = icmp ult i64 %n, %room
  %found = select i1 %fits, ptr %place, ptr null
  ret ptr %found
}
"""

CALLS_IR = """
; %call: kernel, its argument, number, log
define void @stamped(ptr %call) {
entry:
  %args_at = getelementptr i64, ptr %call, i64 1
  %number_at = getelementptr i64, ptr %call, i64 2
  %log_at = getelementptr i64, ptr %call, i64 3
  %kernel = load ptr, ptr %call
  %args = load ptr, ptr %args_at
  %number = load i64, ptr %number_at
  %log = load ptr, ptr %log_at
  %begin = call i64 @now()
  call void %kernel(ptr %args)
  %end = call i64 @now()
  %row = call ptr @row(ptr %log, i64 3)
  %none = icmp eq ptr %row, null
  br i1 %none, label %done, label %note
note:
  %begin_at = getelementptr i64, ptr %row, i64 1
  %end_at = getelementptr i64, ptr %row, i64 2
  store i64 %number, ptr %row
  store i64 %begin, ptr %begin_at
  store i64 %end, ptr %end_at
  br label %done
done:
  ret void
}
"""

REGIONS_IR = """
@log = internal global ptr null
@width = internal global i64 0
@slots = internal global i64 0

declare void @ansorlite_parallel(ptr, ptr, i64, i64)

define void @set_log(ptr %log, i64 %width, i64 %slots) {
  store ptr %log, ptr @log
  store i64 %width, ptr @width
  store i64 %slots, ptr @slots
  ret void
}

; The body of one thread. %frame: body, data, row or null
define internal void @share(ptr %frame, i64 %me, i64 %size) {
entry:
  %begin = call i64 @now()
  %data_at = getelementptr i64, ptr %frame, i64 1
  %row_at = getelementptr i64, ptr %frame, i64 2
  %body = load ptr, ptr %frame
  %data = load ptr, ptr %data_at
  %row = load ptr, ptr %row_at
  call void %body(ptr %data, i64 %me, i64 %size)
  %none = icmp eq ptr %row, null
  br i1 %none, label %done, label %known
known:
  %first = icmp eq i64 %me, 0
  br i1 %first, label %sized, label %place
sized:
  store i64 %size, ptr %row
  br label %place
place:
  %slots = load i64, ptr @slots
  %fits = icmp ult i64 %me, %slots
  br i1 %fits, label %note, label %done
note:
  %two = mul i64 %me, 2
  %begin_word = add i64 %two, REGION
  %end_word = add i64 %begin_word, 1
  %begin_at = getelementptr i64, ptr %row, i64 %begin_word
  %end_at = getelementptr i64, ptr %row, i64 %end_word
  store i64 %begin, ptr %begin_at
  %end = call i64 @now()
  store i64 %end, ptr %end_at
  br label %done
done:
  ret void
}

define void @stamped_parallel(ptr %body, ptr %data, i64 %asked, i64 %all) {
entry:
  %frame = alloca [3 x i64]
  %log = load ptr, ptr @log
  %width = load i64, ptr @width
  %row = call ptr @row(ptr %log, i64 %width)
  %data_at = getelementptr i64, ptr %frame, i64 1
  %row_at = getelementptr i64, ptr %frame, i64 2
  store ptr %body, ptr %frame
  store ptr %data, ptr %data_at
  store ptr %row, ptr %row_at
  %begin = call i64 @now()
  call void @ansorlite_parallel(ptr @share, ptr %frame, i64 %asked, i64 %all)
  %end = call i64 @now()
  %none = icmp eq ptr %row, null
  br i1 %none, label %done, label %note
note:
  %begin_at = getelementptr i64, ptr %row, i64 1
  %end_at = getelementptr i64, ptr %row, i64 2
  store i64 %begin, ptr %begin_at
  store i64 %end, ptr %end_at
  br label %done
done:
  ret void
}
"""


class StampedCalls:
    """Kernels that run one after another as in `CallSequence`; `rows` is int64[events, 3].

    A row is (number of the call, begin, end) of the last run, in running order; a call in a loop
    has one a step.
    """

    def __init__(
        self,
        calls: Sequence[tuple[NativeFunction, ctypes.Array[ctypes.c_void_p]]],
        loops: Sequence[Loop] = (),
    ) -> None:
        times = {k: x.times for x in loops for k in range(x.first, x.first + x.calls)}
        self._events = sum(times.get(k, 1) for k in range(len(calls)))
        self._log = _new_log(self._events, CALL)
        owners, addresses = _linked(_text(CALLS_IR), ("stamped",), {})
        self._owners = owners, calls
        self._described = np.array(
            [
                (f.address, ctypes.addressof(args), k, self._log.ctypes.data)
                for k, (f, args) in enumerate(calls)
            ],
            np.int64,
        ).reshape(len(calls), 4)
        at, wide = self._described.ctypes.data, self._described.strides[0]
        entries = [(addresses["stamped"], at + k * wide) for k in range(len(calls))]
        self._sequence = CallSequence(calls, loops, entries)

    def run(self) -> None:
        self._log[0] = 0
        self._sequence.run()

    @property
    def rows(self) -> Stamps:
        n = int(self._log[0])
        assert n <= self._events, "a call ran more often than its loop says"
        return self._log[HEAD : HEAD + n * CALL].reshape(n, CALL)


class StampedRegions:
    """Threads whose regions are noted; `rows` is int64[regions, 4 + 2 * slots].

    A row is (largest number of threads, begin, end, 0), then begin and end of each thread, 0 for
    those that came too late. `slots` threads are told apart: as many as a region can have now. The
    regions must not overlap. At first regions are only counted: `allow` makes room.
    """

    def __init__(self) -> None:
        pool = openmp.runtime()
        self.slots = openmp.max_threads()
        known = {name: pool.addresses[name] for name in ("ansorlite_parallel",)}
        owners, found = _linked(_text(REGIONS_IR), ("stamped_parallel", "set_log"), known)
        three = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        self._set_log = ctypes.CFUNCTYPE(None, *three)(found["set_log"])
        addresses = {**pool.addresses, "ansorlite_parallel": found["stamped_parallel"]}
        self.threads = replace(pool, addresses=addresses, owner=(pool.owner, owners))
        self.allow(0)

    def allow(self, regions: int) -> None:
        """Make room for so many regions a run."""
        self._log = _new_log(regions, self.width)
        self._set_log(self._log.ctypes.data, self.width, self.slots)

    @property
    def width(self) -> int:
        return REGION + 2 * self.slots

    def clear(self) -> None:
        self._log[0] = 0
        self._log[HEAD:] = 0

    @property
    def count(self) -> int:
        """Regions since `clear`, whether there was room or not."""
        return int(self._log[0])

    @property
    def rows(self) -> Stamps:
        n = min(self.count, int(self._log[1]))
        return self._log[HEAD : HEAD + n * self.width].reshape(n, self.width)


def _new_log(rows: int, width: int) -> Stamps:
    log = np.zeros(HEAD + rows * width, np.int64)
    log[1] = rows
    return log


@cache
def _text(own: str) -> str:
    darwin = any(word in Target.detect().triple for word in ("darwin", "macos"))
    text = CLOCK_IR + own
    words = {"CLOCK": "6" if darwin else "1", "HEAD": str(HEAD), "REGION": str(REGION)}
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _linked(text: str, names: Sequence[str], known: dict[str, int]) -> tuple[Any, dict[str, int]]:
    """(owners of the code, addresses of the named functions)."""
    jit = new_jit()
    library = llvm.JITLibraryBuilder().add_ir(text).add_current_process()
    for name, address in known.items():
        library.import_symbol(name, address)
    for name in names:
        library.export_symbol(name)
    tracker = library.link(jit, "ansorlite_stamps")
    return (tracker, jit), {name: tracker[name] for name in names}
