"""Programs of steps, and what one thread does with them alone: LLVM IR, part of `codegen.threads`.

A step is a row of 8 words (`Row`): kernels' nests, and the ends of loops. `STEPS` has functions
that run rows on one thread and note in a log when they ran; `ALONE` is a pool without threads. A
log has `LOG_HEAD` words, then rows of `LOG_ROW` words and of `LOG_THREAD` words for each thread.
"""

from typing import NamedTuple

MAX_PARTS = 1024  # of a step, and threads of a pool
CHUNKS_PER_PART = 8  # a member takes its part of the units in this many chunks
WORDS = 8  # of a row
JOINED = -1  # `together` of a row that runs together with the one before it
LOG_HEAD = 4  # words of a log before its rows: rows noted, rows that fit, threads told apart, 0
LOG_ROW = 4  # of a row of the log: parts (0: serial), begin, end, number; then of each thread
LOG_THREAD = 3  # words: begin, end, nanoseconds at work


class Row(NamedTuple):
    """A step, in the order of its words.

    `code` is `void code(args, i64 first grain, i64 end)`, or null at the end of a loop. `together`
    counts the rows that run as one parallel step, unit by unit, from this one on (0: serial), on
    at most `most` threads (0: on all); a unit has `of_unit` grains. At the end of a loop `args` is
    the first row, `grains` the steps of the loop, `together` 0, `of_unit` the number of moves,
    `most` their address, `units` the steps done. A move is the address of a pointer, and the bytes
    by which it moves after a step.
    """

    code: int
    args: int
    grains: int
    together: int = 0
    of_unit: int = 1
    number: int = 0
    most: int = 0
    units: int = 1


# What a thread does alone: rows from %e on, and the log of what ran when.
STEPS = """
%step = type { ptr, ptr, i64, i64, i64, i64, ptr, i64 }
%move = type { ptr, i64 }

define internal ptr @row_args(ptr %e, ptr %given) alwaysinline {
  %at = getelementptr %step, ptr %e, i64 0, i32 1
  %own = load ptr, ptr %at
  %none = icmp eq ptr %own, null
  %args = select i1 %none, ptr %given, ptr %own
  ret ptr %args
}

; Bytes of a row of the log.
define internal i64 @log_width(ptr %log) {
  %slots_at = getelementptr i64, ptr %log, i64 2
  %slots = load i64, ptr %slots_at
  %words = mul i64 %slots, LOG_THREAD
  %all = add i64 %words, LOG_ROW
  %bytes = shl i64 %all, 3
  ret i64 %bytes
}

; Rows of the log for %n rows of a program from %e on, which begin now; null where none fit.
define internal ptr @log_rows(ptr %log, ptr %e, i64 %n, i64 %parts) {
entry:
  %off = icmp eq ptr %log, null
  br i1 %off, label %none, label %on
none:
  ret ptr null
on:
  %noted = load i64, ptr %log
  %room_at = getelementptr i64, ptr %log, i64 1
  %room = load i64, ptr %room_at
  %after = add i64 %noted, %n
  store i64 %after, ptr %log
  %fits = icmp ule i64 %after, %room
  br i1 %fits, label %fill, label %none
fill:
  %width = call i64 @log_width(ptr %log)
  %before = mul i64 %noted, %width
  %head = mul i64 LOG_HEAD, 8
  %offset = add i64 %before, %head
  %first = getelementptr i8, ptr %log, i64 %offset
  %time = call i64 @now()
  br label %each
each:
  %j = phi i64 [ 0, %fill ], [ %j_next, %each ]
  %skip = mul i64 %j, %width
  %row = getelementptr i8, ptr %first, i64 %skip
  store i64 %parts, ptr %row
  %begin_at = getelementptr i64, ptr %row, i64 1
  store i64 %time, ptr %begin_at
  %number_of = getelementptr %step, ptr %e, i64 %j, i32 5
  %number = load i64, ptr %number_of
  %number_at = getelementptr i64, ptr %row, i64 3
  store i64 %number, ptr %number_at
  %j_next = add i64 %j, 1
  %more = icmp ult i64 %j_next, %n
  br i1 %more, label %each, label %noted_all
noted_all:
  ret ptr %first
}

; The end of %n rows that were noted together.
define internal void @log_end(ptr %log, ptr %first, i64 %n) {
entry:
  %off = icmp eq ptr %first, null
  br i1 %off, label %done, label %on
on:
  %width = call i64 @log_width(ptr %log)
  %time = call i64 @now()
  br label %each
each:
  %j = phi i64 [ 0, %on ], [ %j_next, %each ]
  %skip = mul i64 %j, %width
  %row = getelementptr i8, ptr %first, i64 %skip
  %end_at = getelementptr i64, ptr %row, i64 2
  store i64 %time, ptr %end_at
  %j_next = add i64 %j, 1
  %more = icmp ult i64 %j_next, %n
  br i1 %more, label %each, label %done
done:
  ret void
}

; Rows %e to %e + %n of a parallel step on units [%first, %last); %rows are theirs in the log.
define internal void @run_units(ptr %e, i64 %n, i64 %first, i64 %last, ptr %given, ptr %log,
                                ptr %rows, i64 %me) {
entry:
  %off = icmp eq ptr %rows, null
  br i1 %off, label %plain, label %sized
sized:
  %slots_at = getelementptr i64, ptr %log, i64 2
  %slots = load i64, ptr %slots_at
  %told = icmp ult i64 %me, %slots
  br i1 %told, label %noted, label %plain

plain:
  %j = phi i64 [ 0, %entry ], [ 0, %sized ], [ %j_next, %plain ]
  %row = getelementptr %step, ptr %e, i64 %j
  %code = load ptr, ptr %row
  %each_at = getelementptr %step, ptr %row, i64 0, i32 4
  %each = load i64, ptr %each_at
  %args = call ptr @row_args(ptr %row, ptr %given)
  %a = mul i64 %first, %each
  %b = mul i64 %last, %each
  call void %code(ptr %args, i64 %a, i64 %b)
  %j_next = add i64 %j, 1
  %more = icmp ult i64 %j_next, %n
  br i1 %more, label %plain, label %done

noted:
  %width = call i64 @log_width(ptr %log)
  %own = mul i64 %me, LOG_THREAD
  %own_word = add i64 %own, LOG_ROW
  br label %timed
timed:
  %k = phi i64 [ 0, %noted ], [ %k_next, %kept ]
  %trow = getelementptr %step, ptr %e, i64 %k
  %tcode = load ptr, ptr %trow
  %teach_at = getelementptr %step, ptr %trow, i64 0, i32 4
  %teach = load i64, ptr %teach_at
  %targs = call ptr @row_args(ptr %trow, ptr %given)
  %c = mul i64 %first, %teach
  %d = mul i64 %last, %teach
  %began = call i64 @now()
  call void %tcode(ptr %targs, i64 %c, i64 %d)
  %ended = call i64 @now()
  %skip = mul i64 %k, %width
  %line = getelementptr i8, ptr %rows, i64 %skip
  %begin_at = getelementptr i64, ptr %line, i64 %own_word
  %end_at = getelementptr i64, ptr %begin_at, i64 1
  %busy_at = getelementptr i64, ptr %begin_at, i64 2
  %earlier = load i64, ptr %begin_at
  %fresh = icmp eq i64 %earlier, 0
  br i1 %fresh, label %first_time, label %kept
first_time:
  store i64 %began, ptr %begin_at
  br label %kept
kept:
  store i64 %ended, ptr %end_at
  %busy = load i64, ptr %busy_at
  %spent = sub i64 %ended, %began
  %sum = add i64 %busy, %spent
  store i64 %sum, ptr %busy_at
  %k_next = add i64 %k, 1
  %again = icmp ult i64 %k_next, %n
  br i1 %again, label %timed, label %done
done:
  ret void
}

; Moves the pointers of a loop after a step; the row that follows.
define internal ptr @loop_end(ptr %e) {
entry:
  %first_at = getelementptr %step, ptr %e, i64 0, i32 1
  %times_at = getelementptr %step, ptr %e, i64 0, i32 2
  %n_at = getelementptr %step, ptr %e, i64 0, i32 4
  %moves_at = getelementptr %step, ptr %e, i64 0, i32 6
  %done_at = getelementptr %step, ptr %e, i64 0, i32 7
  %first = load ptr, ptr %first_at
  %times = load i64, ptr %times_at
  %n = load i64, ptr %n_at
  %moves = load ptr, ptr %moves_at
  %before = load i64, ptr %done_at
  %now = add i64 %before, 1
  %more = icmp slt i64 %now, %times
  %kept = select i1 %more, i64 %now, i64 0
  store i64 %kept, ptr %done_at
  %back = sub i64 1, %times
  %factor = select i1 %more, i64 1, i64 %back
  %behind = getelementptr %step, ptr %e, i64 1
  %next = select i1 %more, ptr %first, ptr %behind
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %move, label %end
move:
  %m = phi i64 [ 0, %entry ], [ %m_next, %move ]
  %slot_at = getelementptr %move, ptr %moves, i64 %m, i32 0
  %by_at = getelementptr %move, ptr %moves, i64 %m, i32 1
  %slot = load ptr, ptr %slot_at
  %by = load i64, ptr %by_at
  %far = mul i64 %by, %factor
  %was = load i64, ptr %slot
  %is = add i64 %was, %far
  store i64 %is, ptr %slot
  %m_next = add i64 %m, 1
  %left = icmp slt i64 %m_next, %n
  br i1 %left, label %move, label %end
end:
  ret ptr %next
}

; Runs serial rows and ends of loops from %e on; the first parallel row, or %end.
define internal ptr @serial_rows(ptr %first, ptr %end, ptr %given, ptr %log, i64 %me) {
entry:
  br label %look
look:
  %e = phi ptr [ %first, %entry ], [ %behind, %call ], [ %looped, %turn ]
  %over = icmp eq ptr %e, %end
  br i1 %over, label %done, label %kind
done:
  ret ptr %e
kind:
  %together_at = getelementptr %step, ptr %e, i64 0, i32 3
  %together = load i64, ptr %together_at
  %serial = icmp eq i64 %together, 0
  br i1 %serial, label %which, label %done
which:
  %code = load ptr, ptr %e
  %ends = icmp eq ptr %code, null
  br i1 %ends, label %turn, label %call
turn:
  %looped = call ptr @loop_end(ptr %e)
  br label %look
call:
  %grains_at = getelementptr %step, ptr %e, i64 0, i32 2
  %grains = load i64, ptr %grains_at
  %rows = call ptr @log_rows(ptr %log, ptr %e, i64 1, i64 0)
  call void @run_units(ptr %e, i64 1, i64 0, i64 %grains, ptr %given, ptr %log, ptr %rows, i64 %me)
  call void @log_end(ptr %log, ptr %rows, i64 1)
  %behind = getelementptr %step, ptr %e, i64 1
  br label %look
}

; A whole parallel step on this thread alone; the row behind it.
define internal ptr @alone(ptr %e, ptr %given, ptr %log) {
  %together_at = getelementptr %step, ptr %e, i64 0, i32 3
  %units_at = getelementptr %step, ptr %e, i64 0, i32 7
  %together = load i64, ptr %together_at
  %units = load i64, ptr %units_at
  %rows = call ptr @log_rows(ptr %log, ptr %e, i64 %together, i64 1)
  call void @run_units(ptr %e, i64 %together, i64 0, i64 %units, ptr %given, ptr %log, ptr %rows,
                       i64 0)
  call void @log_end(ptr %log, ptr %rows, i64 %together)
  %behind = getelementptr %step, ptr %e, i64 %together
  ret ptr %behind
}
"""

# A program without a team.
ALONE = """
define void @ansorlite_run(ptr %first, ptr %end, ptr %given, ptr %log) {
entry:
  br label %start
start:
  %e = phi ptr [ %first, %entry ], [ %behind, %step ]
  %next = call ptr @serial_rows(ptr %e, ptr %end, ptr %given, ptr %log, i64 0)
  %over = icmp eq ptr %next, %end
  br i1 %over, label %done, label %step
step:
  %behind = call ptr @alone(ptr %next, ptr %given, ptr %log)
  br label %start
done:
  ret void
}
"""
