"""Benchmarks: one command each, each beside something else in the same run."""
