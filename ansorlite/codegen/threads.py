"""The threads of parallel kernels: LLVM IR of a pool, for a process or for a library.

In: a `Target`. Out: the text of a module that defines `SYMBOLS`. A program (`codegen.steps`) is one
call of `ansorlite_run`: the caller starts at once, other threads join while it runs, and nobody
waits for a thread that holds no work. Idle threads spin for `SPIN_NS`, then sleep in the kernel.

    ansorlite_run(ptr first row, ptr end, ptr args, ptr log)
        Runs the rows in order, on up to `threads` threads; the caller runs them alone where another
        program is running, or with one thread. `args` are those of rows that have none; `log` may
        be null.
    ansorlite_parallel(ptr body, ptr data, i64 threads)
        Runs body(data, me, n) on exactly n = `threads` threads, once on each; `me` is 0 on the
        caller. Where another program is running, or with one thread: body(data, 0, 1).
    ansorlite_threads() -> i64, ansorlite_set_threads(i64): the largest number of threads of a team
    ansorlite_set_spin(i64 nanoseconds): how long idle threads spin before they sleep
    ansorlite_after_fork(): resets the pool in a child process, where its threads do not exist
    ansorlite_stop_threads(): ends the threads, before the code is unloaded
"""

import re
from collections.abc import Mapping

from ansorlite.codegen.steps import (
    ALONE,
    CHUNKS_PER_PART,
    LOG_HEAD,
    LOG_ROW,
    LOG_THREAD,
    MAX_PARTS,
    STEPS,
)
from ansorlite.codegen.team import TEAM
from ansorlite.target import Target

SYMBOLS = (
    "ansorlite_run",
    "ansorlite_parallel",
    "ansorlite_threads",
    "ansorlite_set_threads",
    "ansorlite_set_spin",
    "ansorlite_after_fork",
    "ansorlite_stop_threads",
)
SPIN_NS = 50_000
MAX_THREADS = MAX_PARTS
LOOKS = 16  # pauses between two reads of the clock
FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # number of the system call on Linux
PAUSE = {"x86_64": "@llvm.x86.sse2.pause()", "aarch64": "@llvm.aarch64.isb(i32 15)"}
DECLARED = {
    "x86_64": "declare void @llvm.x86.sse2.pause()\n",
    "aarch64": "declare void @llvm.aarch64.isb(i32)\n",
}

FIELDS = (
    "UNITS",
    "PARTS",
    "CHUNK",
    "ENTRY",
    "OWN",
    "SIZE",
)  # of the line `gate`, after the position
WORDS = {
    "MAX_PARTS": str(MAX_PARTS),
    "MAX_THREADS": str(MAX_THREADS),
    "CHUNKS_PER_PART": str(CHUNKS_PER_PART),
    "LOG_HEAD": str(LOG_HEAD),
    "LOG_ROW": str(LOG_ROW),
    "LOG_THREAD": str(LOG_THREAD),
    **{name: f"getelementptr (i8, ptr @gate, i64 {8 + 8 * k})" for k, name in enumerate(FIELDS)},
}

# How a thread rounds and treats subnormal numbers, to and from memory.
ARITHMETIC = {
    "x86_64": """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @get_arithmetic(ptr %to) alwaysinline {
  call void @llvm.x86.sse.stmxcsr(ptr %to)
  ret void
}
define internal void @set_arithmetic(ptr %from) alwaysinline {
  call void @llvm.x86.sse.ldmxcsr(ptr %from)
  ret void
}
""",
    "aarch64": """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal void @get_arithmetic(ptr %to) alwaysinline {
  %state = call i64 @llvm.aarch64.get.fpcr()
  store i64 %state, ptr %to
  ret void
}
define internal void @set_arithmetic(ptr %from) alwaysinline {
  %state = load i64, ptr %from
  call void @llvm.aarch64.set.fpcr(i64 %state)
  ret void
}
""",
}
NO_ARITHMETIC = """
define internal void @get_arithmetic(ptr %to) {
  ret void
}
define internal void @set_arithmetic(ptr %from) {
  ret void
}
"""

# `sleep_while(word, seen)` sleeps while *word == seen; it returns at once where *word differs.
LINUX_SLEEP = """
declare i64 @syscall(i64, ...)
define internal void @sleep_while(ptr %word, i32 %seen) {
  call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i32 128, i32 %seen, ptr null, ptr null, i32 0)
  ret void
}
define internal void @wake(ptr %word, i32 %count) {
  call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i32 129, i32 %count, ptr null, ptr null, i32 0)
  ret void
}
"""
DARWIN_SLEEP = """
declare i32 @__ulock_wait(i32, ptr, i64, i32)
declare i32 @__ulock_wake(i32, ptr, i64)
define internal void @sleep_while(ptr %word, i32 %seen) {
  %wide = zext i32 %seen to i64
  call i32 @__ulock_wait(i32 1, ptr %word, i64 %wide, i32 0)
  ret void
}
define internal void @wake(ptr %word, i32 %count) {
  call i32 @__ulock_wake(i32 257, ptr %word, i64 0)
  ret void
}
"""

POOL = """
@sleepers = internal global i32 0, align 128
@caller_sleeps = internal global i32 0
@stopping = internal global i32 0
@busy = internal global i32 0, align 128
@started = internal global i64 0
@threads = internal global i64 1
@spin_ns = internal global i64 SPIN_NS
@handles = internal global [MAX_THREADS x i64] zeroinitializer

declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)

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

define internal void @pause() alwaysinline {
  PAUSE
  ret void
}

; One step of a wait: a pause, and after every LOOKS of them a look at the clock. True when the
; wait has lasted for @spin_ns. %wait points to two i64, both 0 at first: pauses, start of the wait.
define internal i1 @spun(ptr %wait) alwaysinline {
entry:
  call void @pause()
  %looks = load i64, ptr %wait
  %more = add i64 %looks, 1
  store i64 %more, ptr %wait
  %due = icmp uge i64 %more, LOOKS
  br i1 %due, label %timed, label %early
early:
  ret i1 false
timed:
  store i64 0, ptr %wait
  %time = call i64 @now()
  %place = getelementptr i64, ptr %wait, i64 1
  %began = load i64, ptr %place
  %first = icmp eq i64 %began, 0
  %start = select i1 %first, i64 %time, i64 %began
  store i64 %start, ptr %place
  %passed = sub i64 %time, %start
  %limit = load i64, ptr @spin_ns
  %over = icmp uge i64 %passed, %limit
  ret i1 %over
}

; Starts threads until there are %wanted; returns their number. The threads block all signals.
define internal i64 @grow(i64 %wanted) {
entry:
  %every = alloca [16 x i64]
  %before = alloca [16 x i64]
  %there = load i64, ptr @started
  %short = icmp ult i64 %there, %wanted
  br i1 %short, label %begin, label %same
same:
  ret i64 %there
begin:
  call i32 @sigfillset(ptr %every)
  call i32 @pthread_sigmask(i32 SETMASK, ptr %every, ptr %before)
  br label %next
next:
  %k = phi i64 [ %there, %begin ], [ %after, %grown ]
  %enough = icmp uge i64 %k, %wanted
  br i1 %enough, label %done, label %create
create:
  %handle = getelementptr i64, ptr @handles, i64 %k
  %after = add i64 %k, 1
  %index = inttoptr i64 %after to ptr
  %refused = call i32 @pthread_create(ptr %handle, ptr null, ptr @thread, ptr %index)
  %made = icmp eq i32 %refused, 0
  br i1 %made, label %grown, label %done
grown:
  br label %next
done:
  store i64 %k, ptr @started
  call i32 @pthread_sigmask(i32 SETMASK, ptr %before, ptr null)
  ret i64 %k
}

define i64 @ansorlite_threads() {
  %n = load i64, ptr @threads
  ret i64 %n
}

define void @ansorlite_set_threads(i64 %n) {
  %low = icmp ult i64 %n, 1
  %some = select i1 %low, i64 1, i64 %n
  %high = icmp ugt i64 %some, MAX_THREADS
  %bound = select i1 %high, i64 MAX_THREADS, i64 %some
  store i64 %bound, ptr @threads
  ret void
}

define void @ansorlite_set_spin(i64 %ns) {
  store i64 %ns, ptr @spin_ns
  ret void
}

define void @ansorlite_after_fork() {
  store i64 0, ptr @started
  store atomic i32 0, ptr @sleepers seq_cst, align 4
  store atomic i32 0, ptr @caller_sleeps seq_cst, align 4
  store atomic i32 0, ptr @stopping seq_cst, align 4
  store atomic i64 0, ptr @done seq_cst, align 8
  ; the fork may have come while the line was written
  %was = load atomic i64, ptr @gate seq_cst, align 8
  %low = and i64 %was, 1
  %even = add i64 %was, %low
  store atomic i64 %even, ptr @gate seq_cst, align 8
  call void @publish(ptr null, i64 0, i64 0, i64 1, i64 0, i64 0)
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
}

define void @ansorlite_stop_threads() {
entry:
  %n = load i64, ptr @started
  %none = icmp eq i64 %n, 0
  br i1 %none, label %end, label %begin
begin:
  store atomic i32 1, ptr @stopping seq_cst, align 4
  call void @publish(ptr null, i64 0, i64 0, i64 1, i64 0, i64 0)
  call void @wake(ptr @gate, i32 MAX_THREADS)
  br label %join
join:
  %k = phi i64 [ 0, %begin ], [ %next, %join ]
  %place = getelementptr i64, ptr @handles, i64 %k
  %handle = load i64, ptr %place
  call i32 @pthread_join(i64 %handle, ptr null)
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %join, label %ended
ended:
  call void @ansorlite_after_fork()
  br label %end
end:
  ret void
}
"""

SERIAL = """
define internal i64 @now() {
  ret i64 0
}
define void @ansorlite_parallel(ptr %body, ptr %data, i64 %asked) {
  call void %body(ptr %data, i64 0, i64 1)
  ret void
}
define i64 @ansorlite_threads() {
  ret i64 1
}
define void @ansorlite_set_threads(i64 %n) {
  ret void
}
define void @ansorlite_set_spin(i64 %ns) {
  ret void
}
define void @ansorlite_after_fork() {
  ret void
}
define void @ansorlite_stop_threads() {
  ret void
}
"""


def threads_ir(target: Target, *, hidden: bool = False) -> str:
    """LLVM IR of the pool for Linux or macOS on this architecture.

    `hidden` keeps the functions out of the interface of the library that contains the object.
    Raises ValueError for another system: kernels run on one thread there (`serial_ir`).
    """
    darwin = "darwin" in target.triple or "macos" in target.triple
    if not darwin and ("linux" not in target.triple or target.arch not in FUTEX):
        raise ValueError(f"no threads on {target.triple}")
    pause = PAUSE.get(target.arch)
    words = {
        "PAUSE": f"call void {pause}" if pause else "",
        "CLOCK": "6" if darwin else "1",  # CLOCK_MONOTONIC
        "SETMASK": "3" if darwin else "2",  # SIG_SETMASK
        "SPIN_NS": str(SPIN_NS),
        "LOOKS": str(LOOKS),
        "FUTEX": str(FUTEX.get(target.arch, 0)),
    }
    own = (DARWIN_SLEEP if darwin else LINUX_SLEEP) + DECLARED.get(target.arch, "")
    own += ARITHMETIC.get(target.arch, NO_ARITHMETIC)
    text = _filled(POOL + STEPS + TEAM + own, {**words, **WORDS})
    return _hidden(text) if hidden else text


def serial_ir(*, hidden: bool = False) -> str:
    """LLVM IR of the same functions for systems without threads: regions of one thread."""
    text = _filled(SERIAL + STEPS + ALONE, WORDS)
    return _hidden(text) if hidden else text


def _filled(text: str, words: Mapping[str, str]) -> str:
    return re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[0]], text)


def _hidden(text: str) -> str:
    for kind in ("void", "i64"):
        text = text.replace(f"define {kind} @ansorlite", f"define hidden {kind} @ansorlite")
    return text
