"""Benchmark of the guard and of quarantine, over HTTP through a gateway replica with simulated engines."""
