"""FILE -> WEIGHTS: the GGUF file, its configuration, weights, tokenizer and chat template. Must not know numba."""
