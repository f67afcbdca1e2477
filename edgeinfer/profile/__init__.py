"""WHAT FITS HERE: what this machine has, what a model needs, and the settings that follow, each with its reason.

Decides numbers and says why; starts no thread, loads no model, prints nothing.
"""
