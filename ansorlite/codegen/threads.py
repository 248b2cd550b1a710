"""The threads of parallel kernels: LLVM IR of a fork-join pool, for a process or for a library.

In: a `Target`. Out: the text of a module that defines `SYMBOLS`. A region is one call of
`ansorlite_parallel`: the caller starts the body at once, other threads join while the region is
open, and the caller waits only for threads that joined. A thread that the operating system does not
run therefore delays no region. Idle threads spin for `SPIN_NS`, then sleep in the kernel.

    ansorlite_parallel(ptr body, ptr data, i64 threads, i64 all)
        Runs body(data, me, n) on up to `threads` threads. `me` is 0 on the caller and different on
        each thread; n is the largest possible number of threads. If `all` is not 0: on exactly n
        threads, once on each. If another region is running, or with one thread, the caller alone
        runs body(data, 0, 1).
    ansorlite_threads() -> i64, ansorlite_set_threads(i64): the largest number of threads per region
    ansorlite_set_spin(i64 nanoseconds): how long idle threads spin before they sleep
    ansorlite_after_fork(): resets the pool in a child process, where its threads do not exist
    ansorlite_stop_threads(): ends the threads, before the code is unloaded
"""

from ansorlite.target import Target

SYMBOLS = (
    "ansorlite_parallel",
    "ansorlite_threads",
    "ansorlite_set_threads",
    "ansorlite_set_spin",
    "ansorlite_after_fork",
    "ansorlite_stop_threads",
)
SPIN_NS = 50_000
MAX_THREADS = 1024
LOOKS = 16  # pauses between two reads of the clock
FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # number of the system call on Linux
PAUSE = {"x86_64": "@llvm.x86.sse2.pause()", "aarch64": "@llvm.aarch64.isb(i32 15)"}
DECLARED = {
    "x86_64": "declare void @llvm.x86.sse2.pause()\n",
    "aarch64": "declare void @llvm.aarch64.isb(i32)\n",
}

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

# `gate` is the state of the region: its number (bits 32 to 63), closed or open (bit 31), how many
# threads joined (bits 16 to 30), how many of these are at work (bits 0 to 15). Idle threads sleep
# on its upper word, the caller on its lower one. BODY, DATA and SIZE follow in the same line, as
# whoever joins reads them next.
POOL = """
@gate = internal global [4 x i64] [i64 2147483648, i64 0, i64 0, i64 0], align 128
@waiting = internal global i32 0, align 128
@sleepers = internal global i32 0
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
declare i32 @sched_yield()

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

; The loop of one thread: join each region that is open and not full.
define internal ptr @thread(ptr %unused) {
entry:
  %wait = alloca { i64, i64 }
  br label %fresh
fresh:
  %last_seen = phi i32 [ 0, %entry ], [ %seen, %lost ], [ %number, %left ], [ %seen, %woken ]
  store { i64, i64 } zeroinitializer, ptr %wait
  br label %look
look:
  %seen = phi i32 [ %last_seen, %fresh ], [ %seen, %idle ]
  %state = load atomic i64, ptr @gate acquire, align 8
  %high = lshr i64 %state, 32
  %number = trunc i64 %high to i32
  %old = icmp eq i32 %number, %seen
  br i1 %old, label %idle, label %new

new:
  %low = trunc i64 %state to i32
  %joins = lshr i32 %low, 16
  %joined = zext i32 %joins to i64
  %size = load atomic i64, ptr SIZE monotonic, align 8
  %me = add i64 %joined, 1
  ; in a closed region bit 31 is set, which makes %joined larger than any size
  %room = icmp ult i64 %me, %size
  br i1 %room, label %join, label %left
left:
  br label %fresh
join:
  %next = add i64 %state, 65537
  %swap = cmpxchg ptr @gate, i64 %state, i64 %next acq_rel acquire
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %work, label %lost
lost:
  br label %fresh
work:
  %body = load ptr, ptr BODY
  %data = load ptr, ptr DATA
  call void %body(ptr %data, i64 %me, i64 %size)
  atomicrmw sub ptr @gate, i64 1 seq_cst
  %awaited = load atomic i32, ptr @waiting seq_cst, align 4
  %sleeps = icmp ne i32 %awaited, 0
  br i1 %sleeps, label %tell, label %left
tell:
  call void @wake(ptr @gate, i32 1)
  br label %left

idle:
  %spun = call i1 @spun(ptr %wait)
  br i1 %spun, label %rest, label %look
rest:
  atomicrmw add ptr @sleepers, i32 1 seq_cst
  ; whoever stops the threads says so first, then changes the number
  %last = load atomic i32, ptr NUMBER seq_cst, align 4
  %ending = load atomic i32, ptr @stopping seq_cst, align 4
  %same = icmp eq i32 %last, %seen
  %goes_on = icmp eq i32 %ending, 0
  %none = and i1 %same, %goes_on
  br i1 %none, label %sleep, label %awake
sleep:
  call void @sleep_while(ptr NUMBER, i32 %seen)
  br label %awake
awake:
  atomicrmw sub ptr @sleepers, i32 1 seq_cst
  %ended = load atomic i32, ptr @stopping seq_cst, align 4
  %stop = icmp ne i32 %ended, 0
  br i1 %stop, label %end, label %woken
woken:
  br label %fresh
end:
  ret ptr null
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
  %refused = call i32 @pthread_create(ptr %handle, ptr null, ptr @thread, ptr null)
  %made = icmp eq i32 %refused, 0
  br i1 %made, label %grown, label %done
grown:
  %after = add i64 %k, 1
  br label %next
done:
  store i64 %k, ptr @started
  call i32 @pthread_sigmask(i32 SETMASK, ptr %before, ptr null)
  ret i64 %k
}

; Returns when no thread is at work any more: spins first, then sleeps.
define internal void @await() {
entry:
  %wait = alloca { i64, i64 }
  store { i64, i64 } zeroinitializer, ptr %wait
  br label %look
look:
  %now = load atomic i32, ptr @gate acquire, align 4
  %busy = and i32 %now, 65535
  %all = icmp eq i32 %busy, 0
  br i1 %all, label %end, label %missing
missing:
  %spun = call i1 @spun(ptr %wait)
  br i1 %spun, label %rest, label %look
rest:
  store atomic i32 1, ptr @waiting seq_cst, align 4
  br label %again
again:
  %then = load atomic i32, ptr @gate seq_cst, align 4
  %left = and i32 %then, 65535
  %reached = icmp eq i32 %left, 0
  br i1 %reached, label %over, label %sleep
sleep:
  call void @sleep_while(ptr @gate, i32 %then)
  br label %again
over:
  store atomic i32 0, ptr @waiting seq_cst, align 4
  br label %end
end:
  ret void
}

define void @ansorlite_parallel(ptr %body, ptr %data, i64 %asked, i64 %all) {
entry:
  %usual = load i64, ptr @threads
  %exactly = icmp ne i64 %all, 0
  %most = select i1 %exactly, i64 MAX_THREADS, i64 %usual
  %more = icmp ult i64 %asked, %most
  %wanted = select i1 %more, i64 %asked, i64 %most
  %alone = icmp ule i64 %wanted, 1
  br i1 %alone, label %serial, label %lock
serial:
  call void %body(ptr %data, i64 0, i64 1)
  ret void
lock:
  %got = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %free = extractvalue { i32, i1 } %got, 1
  br i1 %free, label %ready, label %serial
ready:
  %others = sub i64 %wanted, 1
  %have = call i64 @grow(i64 %others)
  %fewer = icmp ult i64 %have, %others
  %helpers = select i1 %fewer, i64 %have, i64 %others
  %size = add i64 %helpers, 1
  %nobody = icmp eq i64 %helpers, 0
  br i1 %nobody, label %unable, label %open
unable:
  store atomic i32 0, ptr @busy release, align 4
  br label %serial
open:
  store ptr %body, ptr BODY
  store ptr %data, ptr DATA
  store atomic i64 %size, ptr SIZE monotonic, align 8
  %last = load atomic i32, ptr NUMBER monotonic, align 4
  %number = add i32 %last, 1
  %wide = zext i32 %number to i64
  %state = shl i64 %wide, 32
  store atomic i64 %state, ptr @gate seq_cst, align 8
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %quiet = icmp eq i32 %asleep, 0
  br i1 %quiet, label %run, label %rouse
rouse:
  %few = trunc i64 %helpers to i32
  call void @wake(ptr NUMBER, i32 %few)
  br label %run
run:
  call void %body(ptr %data, i64 0, i64 %size)
  br i1 %exactly, label %gather, label %close
gather:
  %looks = phi i32 [ 0, %run ], [ %again, %absent ]
  %seen = load atomic i64, ptr @gate acquire, align 8
  %half = trunc i64 %seen to i32
  %joins = lshr i32 %half, 16
  %joined = zext i32 %joins to i64
  %complete = icmp eq i64 %joined, %helpers
  br i1 %complete, label %close, label %missing
missing:
  call void @pause()
  %again = add i32 %looks, 1
  %yields = icmp ugt i32 %again, 10000
  br i1 %yields, label %give, label %absent
give:
  call i32 @sched_yield()
  br label %absent
absent:
  br label %gather
close:
  %final = atomicrmw or ptr @gate, i64 2147483648 acq_rel
  %members = and i64 %final, 65535
  %idle = icmp eq i64 %members, 0
  br i1 %idle, label %ended, label %wait
wait:
  call void @await()
  br label %ended
ended:
  store atomic i32 0, ptr @busy release, align 4
  ret void
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
  store atomic i32 0, ptr @waiting seq_cst, align 4
  store atomic i32 0, ptr @stopping seq_cst, align 4
  atomicrmw or ptr @gate, i64 2147483648 seq_cst
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
  %last = load atomic i32, ptr NUMBER monotonic, align 4
  %number = add i32 %last, 1
  %wide = zext i32 %number to i64
  %high = shl i64 %wide, 32
  %state = or i64 %high, 2147483648
  store atomic i64 %state, ptr @gate seq_cst, align 8
  call void @wake(ptr NUMBER, i32 MAX_THREADS)
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
define void @ansorlite_parallel(ptr %body, ptr %data, i64 %asked, i64 %all) {
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
        "MAX_THREADS": str(MAX_THREADS),
        "LOOKS": str(LOOKS),
        "FUTEX": str(FUTEX.get(target.arch, 0)),
        "NUMBER": "getelementptr (i8, ptr @gate, i64 4)",
        "BODY": "getelementptr (i8, ptr @gate, i64 8)",
        "DATA": "getelementptr (i8, ptr @gate, i64 16)",
        "SIZE": "getelementptr (i8, ptr @gate, i64 24)",
    }
    text = POOL + (DARWIN_SLEEP if darwin else LINUX_SLEEP) + DECLARED.get(target.arch, "")
    for word, value in words.items():
        text = text.replace(word, value)
    return _hidden(text) if hidden else text


def serial_ir(*, hidden: bool = False) -> str:
    """LLVM IR of the same functions for systems without threads: regions of one thread."""
    return _hidden(SERIAL) if hidden else SERIAL


def _hidden(text: str) -> str:
    for kind in ("void", "i64"):
        text = text.replace(f"define {kind} @ansorlite", f"define hidden {kind} @ansorlite")
    return text
