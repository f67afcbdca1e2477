"""IS IT GOOD: measures of a model's answers against the truth.

`exact.py` is the float forward that counts as the truth, `divergence.py` the distance from it. This room reads files
through `model/` and `formats/`; it must not know a kernel, and it never prints.
"""
