"""Benchmark of the parsers: `python -m bench.parsing`."""
