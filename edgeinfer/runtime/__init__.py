"""One native call: SIMD vocabulary, instruction sets, threads, barrier, interpreter and the cache of compiled kernels.

This room knows no word of language models. It compiles small functions over raw addresses (Numba emits them, in a
child process), keeps the machine code on disk, and lets a standing team of threads walk a list of step records.

Only `vec`, `simd`, `tile`, `memory`, `threads_native` and `compiler` import numba, and only the compiling child
process imports those; a process that runs a model loads finished machine code through llvmlite.
"""
