"""The native half of the thread pool: interpreter, worker loop, barrier. Memory layouts are in `pool.py`.

A thread that waits spins briefly, then yields, then parks in the kernel, so a busy neighbour slows us in proportion and
an idle process costs no CPU.
"""

from __future__ import annotations

from .layout import (
    BARRIER_CLOCK,
    BARRIER_LATE,
    JOB_GO,
    JOB_ITH,
    JOB_NTH,
    JOB_PARKED,
    JOB_PROGRAM,
    JOB_STATE,
    JOB_STEPS,
    JOB_THREAD,
    JOB_WAITED,
    JOB_WORDS,
    MASK_WORDS,
    NEVER_STOP,
    RECORD_CORE,
    RECORD_MASK,
    RECORD_PROGRAM,
    RECORD_SLOTS,
    RECORD_STATE,
    RECORD_STEPS,
    SPINS_BARRIER,
    SPINS_IDLE,
    STATE_BARRIER,
    STATE_STOP,
    STATE_STOP_AT,
    STEP_BYTES,
    STEP_KERNEL,
    STEP_SYNC,
)  # fmt: skip
from .memory import (
    FUTEX_WAIT_PRIVATE,
    FUTEX_WAKE_PRIVATE,
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap,
    call_kernel,
    clock_gettime,
    field,
    futex,
    get_affinity,
    get_cpu,
    pause,
    put_field,
    sched_yield,
    set_affinity,
)  # fmt: skip
from .vec import native


@native
def _nanoseconds(mine):
    """The clock reading in a thread's line of a barrier."""
    return field(mine, BARRIER_CLOCK) * 1_000_000_000 + field(mine, BARRIER_CLOCK + 1)


@native
def barrier(address, ith, nth):
    """Wait until all nth threads have come: a counter that only grows, and each thread's own generation on its own line.

    The time for which a thread had to wait after it had spun in vain is added up in its line.
    """
    if nth > 1:
        mine = address + 64 * (1 + ith)
        generation = field(mine, 0) + 1
        put_field(mine, 0, generation)
        wanted = generation * nth
        if atomic_add(address, 1) + 1 < wanted:
            spins = 0
            while atomic_load(address) < wanted:
                pause()
                spins += 1
                if spins > SPINS_BARRIER:
                    if spins == SPINS_BARRIER + 1:
                        clock_gettime(mine + BARRIER_CLOCK * 8)
                    sched_yield()
            if spins > SPINS_BARRIER:
                began = _nanoseconds(mine)
                clock_gettime(mine + BARRIER_CLOCK * 8)
                put_field(mine, BARRIER_LATE, field(mine, BARRIER_LATE) + _nanoseconds(mine) - began)


@native
def run_program(program, n_steps, state, ith, nth):
    """Call each step's kernel by the address in it, with a barrier after the steps that ask for one.

    To stop, all threads must leave behind the same barrier. Thread 0 writes the number of the barrier that it is about
    to enter; a thread that reads this late, still behind the barrier before, finds a number that it has not reached.
    """
    wait = field(state, STATE_BARRIER)
    stop_at = state + STATE_STOP_AT * 8
    for i in range(n_steps):
        step = program + i * STEP_BYTES
        call_kernel(field(step, STEP_KERNEL), step, state, ith, nth)
        if field(step, STEP_SYNC) != 0:
            if ith == 0 and atomic_load(state + STATE_STOP * 8) != 0 and atomic_load(stop_at) == NEVER_STOP:
                atomic_store(stop_at, i)
            barrier(wait, ith, nth)
            if atomic_load(stop_at) <= i:
                break


@native
def without_core(mask, words, core):
    """Take a core out of a set, a bit for each in words of 64, if it is in it and not alone; whether it was taken out."""
    at = core >> 6
    bit = 1 << (core & 63)
    if at >= words or field(mask, at) & bit == 0:
        return False
    others = field(mask, at) & ~bit
    for i in range(words):
        if i != at:
            others |= field(mask, i)
    if others != 0:
        put_field(mask, at, field(mask, at) & ~bit)
    return others != 0


@native
def wake(job, record):
    """Wake a parked worker on another core than the caller's; once it is there it may go wherever it might before.

    Where both cores of a machine were busy shortly before, Linux 6.18 puts a woken thread behind the one that wakes it, though
    the other core is idle, and moves it after one or two time slices: a prompt of 32 tokens took 22 ms instead of 14.
    """
    mask = record + RECORD_MASK * 8
    core = record + RECORD_CORE * 8
    for i in range(MASK_WORDS):
        put_field(mask, i, 0)
    put_field(core, 0, 0)
    thread = field(job, JOB_THREAD)
    size = get_affinity(thread, MASK_WORDS * 8, mask)
    steered = size > 0 and get_cpu(core) == 0 and without_core(mask, size // 8, field(core, 0))
    if steered:
        set_affinity(thread, size, mask)
    futex(job + JOB_GO * 8, FUTEX_WAKE_PRIVATE, 1)
    if steered:
        at = field(core, 0)
        put_field(mask, at >> 6, field(mask, at >> 6) | 1 << (at & 63))
        set_affinity(thread, size, mask)


def run(jobs, record, _unused, nth):
    """Thread 0 of a call: hand the record's job to nth-1 workers and run it with them; the record lists their slots."""
    program = field(record, RECORD_PROGRAM)
    n_steps = field(record, RECORD_STEPS)
    state = field(record, RECORD_STATE)
    for k in range(1, nth):
        job = jobs + field(record, RECORD_SLOTS + k - 1) * JOB_WORDS * 8
        put_field(job, JOB_PROGRAM, program)
        put_field(job, JOB_STEPS, n_steps)
        put_field(job, JOB_STATE, state)
        put_field(job, JOB_ITH, k)
        put_field(job, JOB_NTH, nth)
        atomic_add(job + JOB_GO * 8, 1)
        if atomic_swap(job + JOB_PARKED * 8, 0) != 0:
            wake(job, record)
    run_program(program, n_steps, state, 0, nth)
    barrier(field(state, STATE_BARRIER), 0, nth)  # every worker has let go of the state


def work(job, _unused, _ith, _nth):
    """A worker's whole life: wait for its slot's counter to move, run the job, wait again. A negative counter ends it."""
    seen = field(job, JOB_WAITED)
    while True:
        spins = 0
        while atomic_load(job + JOB_GO * 8) == seen:
            pause()
            spins += 1
            if spins > SPINS_IDLE:
                atomic_swap(job + JOB_PARKED * 8, 1)
                if atomic_load(job + JOB_GO * 8) == seen:
                    futex(job + JOB_GO * 8, FUTEX_WAIT_PRIVATE, seen & 0xFFFFFFFF)
                spins = 0
        seen = atomic_load(job + JOB_GO * 8)
        if seen < 0:
            break
        state = field(job, JOB_STATE)
        ith = field(job, JOB_ITH)
        nth = field(job, JOB_NTH)
        run_program(field(job, JOB_PROGRAM), field(job, JOB_STEPS), state, ith, nth)
        barrier(field(state, STATE_BARRIER), ith, nth)


def stop(jobs, slot, _ith, _nth):
    """End the worker of a slot."""
    job = jobs + slot * JOB_WORDS * 8
    atomic_store(job + JOB_GO * 8, -1)
    futex(job + JOB_GO * 8, FUTEX_WAKE_PRIVATE, 1)
