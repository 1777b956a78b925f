"""Benchmarks: what refold costs, measured on the machine at hand. `python -m benchmarks`."""
