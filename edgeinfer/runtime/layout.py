"""Word offsets of the records that Python writes and native code reads: steps, state and jobs. Knows no kernel."""

from __future__ import annotations

# A step: 24 words. Word 0 is the kernel's address, word 1 the barrier flag, the rest the kernel's own fields.
STEP_WORDS = 24
STEP_BYTES = STEP_WORDS * 8
STEP_KERNEL, STEP_SYNC, STEP_FIELDS = 0, 1, 2

# The state of a call: what changes from call to call. Addresses and counts, 8 bytes each.
STATE_WORDS = 24
(
    STATE_BARRIER,  # address of the barrier: a counter, then one cache line per thread
    STATE_N,  # tokens in this call
    STATE_N_OUT,  # rows that want logits
    STATE_IDS,  # int64 token ids (n)
    STATE_POSITIONS,  # int64 positions (n)
    STATE_SLOTS,  # int64 sequence slots (n)
    STATE_OUT_ROWS,  # int64 row numbers that want logits (n_out)
    STATE_N_RUNS,  # runs: tokens of one sequence, side by side
    STATE_RUNS,  # int64 (n_runs, 4): slot, first position, count, first row
    STATE_TABLES,  # int64 page numbers (slot, group, page)
    STATE_SLOT_STRIDE,  # bytes from a slot's tables to the next slot's
    STATE_GROUP_STRIDE,  # bytes from a group's table to the next group's
    STATE_THREAD,  # address of thread 0's private memory
    STATE_THREAD_STRIDE,  # bytes from a thread's private memory to the next one's
    STATE_STOP,  # not 0: stop at the next barrier; may be set while the call runs
    STATE_STOP_AT,  # the step after whose barrier all threads stop; NEVER_STOP while nothing was asked
) = range(16)
NEVER_STOP = 1 << 40
RUN_WORDS = 4
RUN_SLOT, RUN_POSITION, RUN_COUNT, RUN_ROW = range(4)

# What a caller wants run: program address, number of steps, state address; room for a set of cores and for the number of one;
# then the slots of the workers it borrowed.
RECORD_PROGRAM, RECORD_STEPS, RECORD_STATE, RECORD_MASK = range(4)
MASK_WORDS = 16  # 1,024 cores; a machine with more is left to the kernel
RECORD_CORE = RECORD_MASK + MASK_WORDS
RECORD_SLOTS = RECORD_CORE + 1

# A job: two cache lines per worker slot, counted from 1.
JOB_WORDS = 16
JOB_GO, JOB_PARKED, JOB_PROGRAM, JOB_STEPS, JOB_STATE, JOB_ITH, JOB_NTH, JOB_WAITED, JOB_THREAD = range(9)

# A thread's line of a barrier: its generation, nanoseconds it waited for late threads, and the clock when it began to.
BARRIER_LATE, BARRIER_CLOCK = 1, 2

SPINS_BARRIER = 4000  # pauses before a waiting thread starts to yield inside a step
SPINS_IDLE = 20000  # pauses before a worker without work parks: about a millisecond

# A measuring loop's step: the memory it reads (or the operands it keeps in registers), bytes (or rounds), where results go.
METER_START, METER_COUNT, METER_OUT = range(STEP_FIELDS, STEP_FIELDS + 3)
# Products in a round of the loop that multiplies, by the kind of dot product.
METER_PRODUCTS = {"vpdpbusd512": 12, "vpdpbusd256": 5, "pmaddubsw": 2, "sdot": 5, "plain": 2}
