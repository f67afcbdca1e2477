"""REQUESTS -> BATCHES: which tokens are evaluated when, and whose they are.

Sees an engine through `engine.types.Engine` and text through a tokenizer's stream; knows no file, template or client.
"""
