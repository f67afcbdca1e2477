"""What steps name: one file per weight format and per operation. Raw addresses in, raw addresses out; nothing is allocated.

Every kernel has the one signature kernel(step, state, ith, nth) and its NumPy twin in `plan/twin.py`. Only the compiling
child process imports this room (through `registry`); see `runtime/library.py`.
"""
