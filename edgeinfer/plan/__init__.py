"""Weights to program: what to compute, as data. Knows no machine code, no threads and no text.

A `Builder` turns one description of a model family into an immutable `Program` of steps; `fields` says which words each
kind of step carries; `checker` proves that a program is sound; `twin` is each step's meaning in NumPy.
"""
