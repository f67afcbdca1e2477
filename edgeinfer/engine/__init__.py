"""Program to logits: links steps to compiled kernels, packs weights, keeps the KV pages, runs forwards. Knows no text."""
