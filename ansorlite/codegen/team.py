"""The team that runs a program of parallel steps: LLVM IR, part of the pool of `codegen.threads`.

In: nothing. Out: `TEAM`, a text with the words of `threads.threads_ir`, for programs of
`codegen.steps`. A team enters a program once. Each member owns one part of a step's units and takes
chunks of it, then chunks of other parts. Whoever finishes the last unit of a step runs the serial
steps behind it and opens the next parallel one: a member that the operating system does not run
delays nobody, unless it holds a chunk.
"""

# `gate` is the open step: its position (even; odd while the line is written), units (0: no step),
# parts, units of a chunk, its row, whether each member has exactly one unit, members. Idle members
# wait for another position. `team` is what only a member that holds a chunk reads or writes.
# A part's place holds the step's number (bits 16 to 63) and the chunks that are left (0 to 15). A
# number before that of the open step: nobody has begun with the part. Chunks are taken by comparing
# and swapping, which fails where the step is over: whatever was read of it before does not matter.
TEAM = """
@gate = internal global [16 x i64] zeroinitializer, align 128
@done = internal global [16 x i64] zeroinitializer, align 128
@team = internal global { ptr, ptr, ptr, i64, ptr, i64 } zeroinitializer, align 128
@places = internal global [MAX_PARTS x [16 x i64]] zeroinitializer, align 128

; Opens a step, or with %units 0 closes the program, and wakes whoever sleeps for it.
define internal void @publish(ptr %e, i64 %units, i64 %parts, i64 %chunk, i64 %own, i64 %size) {
entry:
  %was = load atomic i64, ptr @gate monotonic, align 8
  %odd = add i64 %was, 1
  store atomic i64 %odd, ptr @gate monotonic, align 8
  fence release
  store atomic i64 %units, ptr UNITS monotonic, align 8
  store atomic i64 %parts, ptr PARTS monotonic, align 8
  store atomic i64 %chunk, ptr CHUNK monotonic, align 8
  store atomic ptr %e, ptr ENTRY monotonic, align 8
  store atomic i64 %own, ptr OWN monotonic, align 8
  store atomic i64 %size, ptr SIZE monotonic, align 8
  %position = add i64 %was, 2
  store atomic i64 %position, ptr @gate seq_cst, align 8
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %quiet = icmp eq i32 %asleep, 0
  br i1 %quiet, label %end, label %rouse
rouse:
  %caller = load atomic i32, ptr @caller_sleeps seq_cst, align 4
  %first = icmp ne i32 %caller, 0
  %narrow = trunc i64 %parts to i32
  %helpers = sub i32 %narrow, 1
  %closing = icmp eq i64 %units, 0
  %usual = select i1 %closing, i32 0, i32 %helpers
  ; others than the members may sleep as well: the system wakes any
  %there = load i64, ptr @started
  %most = add i64 %there, 1
  %strange = icmp ugt i64 %most, %size
  %opens = xor i1 %closing, true
  %several = and i1 %strange, %opens
  %each = or i1 %first, %several
  %count = select i1 %each, i32 MAX_THREADS, i32 %usual
  %any = icmp sgt i32 %count, 0
  br i1 %any, label %call, label %end
call:
  call void @wake(ptr @gate, i32 %count)
  br label %end
end:
  ret void
}

; Opens the parallel step at %e.
define internal void @open_step(ptr %e) {
  %size_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 3
  %team = load i64, ptr %size_at
  %most_at = getelementptr %step, ptr %e, i64 0, i32 6
  %most = load i64, ptr %most_at
  %rest = sub i64 %most, 1  ; of 0, no limit, the largest number
  %fits = icmp uge i64 %rest, %team
  %size = select i1 %fits, i64 %team, i64 %most
  %units_at = getelementptr %step, ptr %e, i64 0, i32 7
  %units = load i64, ptr %units_at
  %few = icmp ult i64 %units, %size
  %parts = select i1 %few, i64 %units, i64 %size
  %pieces = mul i64 %parts, CHUNKS_PER_PART
  %each = udiv i64 %units, %pieces
  %small = icmp eq i64 %each, 0
  %chunk = select i1 %small, i64 1, i64 %each
  %log_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 2
  %log = load ptr, ptr %log_at
  %together_at = getelementptr %step, ptr %e, i64 0, i32 3
  %together = load i64, ptr %together_at
  %rows = call ptr @log_rows(ptr %log, ptr %e, i64 %together, i64 %parts)
  %rows_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 4
  store ptr %rows, ptr %rows_at
  call void @publish(ptr %e, i64 %units, i64 %parts, i64 %chunk, i64 0, i64 %size)
  ret void
}

; The open step is done: the serial rows behind it, then the next step. True for the caller where
; the program is at its end.
define internal i1 @advance(ptr %e, i64 %me) {
entry:
  store atomic i64 0, ptr @done monotonic, align 8
  %end = load ptr, ptr @team
  %given_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 1
  %given = load ptr, ptr %given_at
  %log_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 2
  %log = load ptr, ptr %log_at
  %rows_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 4
  %rows = load ptr, ptr %rows_at
  %together_at = getelementptr %step, ptr %e, i64 0, i32 3
  %together = load i64, ptr %together_at
  call void @log_end(ptr %log, ptr %rows, i64 %together)
  %behind = getelementptr %step, ptr %e, i64 %together
  %next = call ptr @serial_rows(ptr %behind, ptr %end, ptr %given, ptr %log, i64 %me)
  %over = icmp eq ptr %next, %end
  br i1 %over, label %ends, label %more
more:
  call void @open_step(ptr %next)
  ret i1 false
ends:
  %caller = icmp eq i64 %me, 0
  br i1 %caller, label %known, label %tell
known:
  ret i1 true
tell:
  call void @publish(ptr null, i64 0, i64 0, i64 1, i64 0, i64 0)
  ret i1 false
}

; Takes part in the step at %position, as long as there are chunks; true where no step is open, or
; where the caller has brought the program to its end.
define internal i1 @take_part(i64 %me, i64 %position) {
entry:
  %units = load atomic i64, ptr UNITS monotonic, align 8
  %parts = load atomic i64, ptr PARTS monotonic, align 8
  %chunk = load atomic i64, ptr CHUNK monotonic, align 8
  %e = load atomic ptr, ptr ENTRY monotonic, align 8
  %own = load atomic i64, ptr OWN monotonic, align 8
  %size = load atomic i64, ptr SIZE monotonic, align 8
  fence acquire
  %still = load atomic i64, ptr @gate monotonic, align 8
  %same = icmp eq i64 %still, %position
  br i1 %same, label %valid, label %missed
missed:
  ret i1 false
valid:
  %closed = icmp eq i64 %units, 0
  br i1 %closed, label %nothing, label %open
nothing:
  ret i1 true
open:
  %member = icmp ult i64 %me, %size
  br i1 %member, label %begin, label %missed
begin:
  %number = lshr i64 %position, 1
  %mark = shl i64 %number, 16
  %single = icmp ne i64 %own, 0
  %looks = select i1 %single, i64 1, i64 %parts
  %lower = udiv i64 %units, %parts
  %covered = mul i64 %lower, %parts
  %rest = sub i64 %units, %covered
  %within = icmp ult i64 %me, %parts
  br i1 %within, label %parted, label %beyond
beyond:
  %turned = urem i64 %me, %parts
  br label %parted
parted:
  %mine = phi i64 [ %me, %begin ], [ %turned, %beyond ]
  br label %part

part:
  %k = phi i64 [ 0, %parted ], [ %k_next, %onward ]
  %q = phi i64 [ %mine, %parted ], [ %q_next, %onward ]
  %place = getelementptr [MAX_PARTS x [16 x i64]], ptr @places, i64 0, i64 %q, i64 0
  %before = mul i64 %q, %lower
  %longer = icmp ult i64 %q, %rest
  %shift = select i1 %longer, i64 %q, i64 %rest
  %low = add i64 %before, %shift
  %one = zext i1 %longer to i64
  %length = add i64 %lower, %one
  %high = add i64 %low, %length
  %up = add i64 %length, %chunk
  %up1 = sub i64 %up, 1
  %chunks = udiv i64 %up1, %chunk
  br label %look
look:
  %total = phi i64 [ 0, %part ], [ %total, %again ], [ %with, %run ]
  %word = load atomic i64, ptr %place monotonic, align 8
  %begun = lshr i64 %word, 16
  %older = icmp ult i64 %begun, %number
  %current = icmp eq i64 %begun, %number
  %low_bits = and i64 %word, 65535
  %rests = select i1 %current, i64 %low_bits, i64 0
  %left = select i1 %older, i64 %chunks, i64 %rests
  %any = icmp ne i64 %left, 0
  br i1 %any, label %take, label %part_done
take:
  %fewer = sub i64 %left, 1
  %new = or i64 %mark, %fewer
  %swap = cmpxchg ptr %place, i64 %word, i64 %new acq_rel monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %work, label %again
again:
  br label %look
work:
  %helps = icmp ne i64 %me, 0
  br i1 %helps, label %adopt, label %run
adopt:
  ; as the caller rounds and treats subnormal numbers
  %state_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 5
  call void @set_arithmetic(ptr %state_at)
  br label %run
run:
  %c = sub i64 %chunks, %left
  %c_units = mul i64 %c, %chunk
  %first = add i64 %low, %c_units
  %stop = add i64 %first, %chunk
  %beyond_part = icmp ult i64 %high, %stop
  %last = select i1 %beyond_part, i64 %high, i64 %stop
  %to = select i1 %single, i64 %units, i64 %last
  %given_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 1
  %given = load ptr, ptr %given_at
  %log_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 2
  %log = load ptr, ptr %log_at
  %rows_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 4
  %rows = load ptr, ptr %rows_at
  %together_at = getelementptr %step, ptr %e, i64 0, i32 3
  %together = load i64, ptr %together_at
  call void @run_units(ptr %e, i64 %together, i64 %first, i64 %to, ptr %given, ptr %log, ptr %rows,
                       i64 %me)
  %count = sub i64 %last, %first
  %with = add i64 %total, %count
  br label %look
part_done:
  ; report at once: where that completes the step, nobody else's part needs a look
  %idle = icmp eq i64 %total, 0
  br i1 %idle, label %onward, label %report
report:
  %reached = atomicrmw add ptr @done, i64 %total acq_rel
  %all = add i64 %reached, %total
  %complete = icmp eq i64 %all, %units
  br i1 %complete, label %last_one, label %onward
onward:
  %k_next = add i64 %k, 1
  %q_up = add i64 %q, 1
  %wraps = icmp eq i64 %q_up, %parts
  %q_next = select i1 %wraps, i64 0, i64 %q_up
  %more = icmp ult i64 %k_next, %looks
  br i1 %more, label %part, label %missed
last_one:
  %ended = call i1 @advance(ptr %e, i64 %me)
  ret i1 %ended
}

; The loop of one thread of the pool, whose number %index is 1 or more.
define internal ptr @thread(ptr %index) {
entry:
  %wait = alloca { i64, i64 }
  %me = ptrtoint ptr %index to i64
  br label %fresh
fresh:
  %last = phi i64 [ 1, %entry ], [ %position, %join ], [ %seen, %woken ]
  store { i64, i64 } zeroinitializer, ptr %wait
  br label %look
look:
  %seen = phi i64 [ %last, %fresh ], [ %seen, %idle ]
  %position = load atomic i64, ptr @gate acquire, align 8
  %old = icmp eq i64 %position, %seen
  %low = and i64 %position, 1
  %written = icmp ne i64 %low, 0
  %stay = or i1 %old, %written
  br i1 %stay, label %idle, label %join
join:
  %unused = call i1 @take_part(i64 %me, i64 %position)
  br label %fresh
idle:
  %spun = call i1 @spun(ptr %wait)
  br i1 %spun, label %rest, label %look
rest:
  call void @park(i64 %seen)
  %ended = load atomic i32, ptr @stopping seq_cst, align 4
  %stop = icmp ne i32 %ended, 0
  br i1 %stop, label %end, label %woken
woken:
  br label %fresh
end:
  ret ptr null
}

; Sleeps while the position is %seen.
define internal void @park(i64 %seen) {
entry:
  atomicrmw add ptr @sleepers, i32 1 seq_cst
  ; whoever stops the threads says so first, then changes the position
  %last = load atomic i64, ptr @gate seq_cst, align 8
  %ending = load atomic i32, ptr @stopping seq_cst, align 4
  %same = icmp eq i64 %last, %seen
  %goes_on = icmp eq i32 %ending, 0
  %none = and i1 %same, %goes_on
  br i1 %none, label %sleep, label %awake
sleep:
  %word = trunc i64 %seen to i32
  call void @sleep_while(ptr @gate, i32 %word)
  br label %awake
awake:
  atomicrmw sub ptr @sleepers, i32 1 seq_cst
  ret void
}

; Takes part as the caller, until the program is at its end.
define internal void @lead() {
entry:
  %wait = alloca { i64, i64 }
  br label %fresh
fresh:
  %last = phi i64 [ 1, %entry ], [ %position, %join ], [ %seen, %rest ]
  store { i64, i64 } zeroinitializer, ptr %wait
  br label %look
look:
  %seen = phi i64 [ %last, %fresh ], [ %seen, %idle ]
  %position = load atomic i64, ptr @gate acquire, align 8
  %old = icmp eq i64 %position, %seen
  %low = and i64 %position, 1
  %written = icmp ne i64 %low, 0
  %stay = or i1 %old, %written
  br i1 %stay, label %idle, label %join
join:
  %over = call i1 @take_part(i64 0, i64 %position)
  br i1 %over, label %end, label %fresh
idle:
  %spun = call i1 @spun(ptr %wait)
  br i1 %spun, label %rest, label %look
rest:
  store atomic i32 1, ptr @caller_sleeps seq_cst, align 4
  call void @park(i64 %seen)
  store atomic i32 0, ptr @caller_sleeps seq_cst, align 4
  br label %fresh
end:
  ret void
}

; Takes the pool for a team of up to %wanted threads: its size, or 0 where the caller is alone.
define internal i64 @enter(i64 %wanted) {
entry:
  %few = icmp ult i64 %wanted, 2
  br i1 %few, label %nobody, label %try
nobody:
  ret i64 0
try:
  %taken = load atomic i32, ptr @busy monotonic, align 4
  %used = icmp ne i32 %taken, 0
  br i1 %used, label %nobody, label %lock
lock:
  %got = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %free = extractvalue { i32, i1 } %got, 1
  br i1 %free, label %ready, label %nobody
ready:
  %others = sub i64 %wanted, 1
  %have = call i64 @grow(i64 %others)
  %fewer = icmp ult i64 %have, %others
  %helpers = select i1 %fewer, i64 %have, i64 %others
  %size = add i64 %helpers, 1
  %none = icmp eq i64 %helpers, 0
  br i1 %none, label %unable, label %led
unable:
  store atomic i32 0, ptr @busy release, align 4
  br label %nobody
led:
  ret i64 %size
}

define internal void @describe(ptr %end, ptr %given, ptr %log, i64 %size) {
  %given_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 1
  %log_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 2
  %size_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 3
  %rows_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 4
  store ptr %end, ptr @team
  store ptr %given, ptr %given_at
  store ptr %log, ptr %log_at
  store i64 %size, ptr %size_at
  store ptr null, ptr %rows_at
  %state_at = getelementptr { ptr, ptr, ptr, i64, ptr, i64 }, ptr @team, i64 0, i32 5
  call void @get_arithmetic(ptr %state_at)
  ret void
}

define void @ansorlite_run(ptr %first, ptr %end, ptr %given, ptr %log) {
entry:
  br label %start
start:
  %e = phi ptr [ %first, %entry ], [ %behind, %single ]
  %next = call ptr @serial_rows(ptr %e, ptr %end, ptr %given, ptr %log, i64 0)
  %over = icmp eq ptr %next, %end
  br i1 %over, label %done, label %step
step:
  %wanted = load i64, ptr @threads
  %size = call i64 @enter(i64 %wanted)
  %nobody = icmp eq i64 %size, 0
  br i1 %nobody, label %single, label %together
single:
  %behind = call ptr @alone(ptr %next, ptr %given, ptr %log)
  br label %start
together:
  call void @describe(ptr %end, ptr %given, ptr %log, i64 %size)
  call void @open_step(ptr %next)
  call void @lead()
  store atomic i32 0, ptr @busy release, align 4
  br label %done
done:
  ret void
}

define void @ansorlite_parallel(ptr %body, ptr %data, i64 %asked) {
entry:
  %row = alloca %step, align 64
  %high = icmp ugt i64 %asked, MAX_THREADS
  %wanted = select i1 %high, i64 MAX_THREADS, i64 %asked
  %size = call i64 @enter(i64 %wanted)
  %nobody = icmp eq i64 %size, 0
  br i1 %nobody, label %serial, label %together
serial:
  call void %body(ptr %data, i64 0, i64 1)
  ret void
together:
  store %step zeroinitializer, ptr %row
  store ptr %body, ptr %row
  %args_at = getelementptr %step, ptr %row, i64 0, i32 1
  store ptr %data, ptr %args_at
  %together_at = getelementptr %step, ptr %row, i64 0, i32 3
  store i64 1, ptr %together_at
  %each_at = getelementptr %step, ptr %row, i64 0, i32 4
  store i64 1, ptr %each_at
  %end = getelementptr %step, ptr %row, i64 1
  call void @describe(ptr %end, ptr %data, ptr null, i64 %size)
  call void @publish(ptr %row, i64 %size, i64 %size, i64 1, i64 1, i64 %size)
  call void @lead()
  store atomic i32 0, ptr @busy release, align 4
  ret void
}
"""
