"""The loader under bad files: what is run on each of them, how they are made, and the seeds they are made from."""
