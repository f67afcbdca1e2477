"""LOGITS -> TOKENS: the sampler chain, stop strings and the record that a stream is made of.

Sees logits through `engine.types.Logits` and token ids as numbers; knows no prompt, no session and no client.
"""
