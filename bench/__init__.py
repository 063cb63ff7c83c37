"""Benchmarks, one command each; every figure is measured against a reference in the same run."""
